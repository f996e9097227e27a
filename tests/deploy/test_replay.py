"""Replay over HTTP: what is sent, what is measured, and every way in which a server can fail."""

import math

import hostile_server as hostile
import numpy as np
import pytest

from queuesmith.deploy.prompts import make_prompt, request_body
from queuesmith.deploy.replay import GONE, GONE_AFTER, LEAD, Served, Server, replay
from queuesmith.errors import ConfigError


def test_every_token_of_every_request_is_measured(make_workload):
    workload = make_workload()
    with hostile.serving() as server:
        served = replay(Server(server.base_url), hostile.MODEL, workload)

    assert [one.error for one in served] == [""] * 8
    assert [one.row for one in served] == list(range(8))
    assert [one.num_output_tokens for one in served] == workload.output_len.tolist()
    for one in served:
        assert one.arrival_time <= one.sent < one.first_token_ts < one.last_token_ts


def test_requests_are_sent_when_they_are_due_however_slow_the_server(make_workload):
    workload = make_workload(num_requests=10, gap=0.02, output_len=np.full(10, 5))
    with hostile.serving(gap=0.1) as server:
        served = replay(Server(server.base_url), hostile.MODEL, workload)

    # The first answer takes half a second, in which all ten are sent.
    assert max(one.sent for one in served) < min(one.last_token_ts for one in served)
    assert all(0 <= one.lateness < 0.1 for one in served)


def test_ttft_counts_from_when_a_request_was_due_not_from_when_it_was_sent():
    assert Served(0, 1.0, sent=3.0, first_token_ts=4.0).ttft == 3.0


def test_prompts_and_outputs_have_exactly_the_lengths_of_the_trace(make_workload):
    workload = make_workload()
    with hostile.serving() as server:
        replay(Server(server.base_url), hostile.MODEL, workload)
        bodies = sorted(server.bodies, key=lambda body: len(body["prompt"]))

    assert [len(body["prompt"]) for body in bodies] == workload.trace.prompt_len.tolist()
    assert [body["max_tokens"] for body in bodies] == workload.output_len.tolist()
    assert all(body["ignore_eos"] and body["stream"] for body in bodies)


def test_no_two_prompts_have_the_same_head():
    heads = {tuple(make_prompt(row, 400, seed)[:5]) for row in range(300) for seed in range(20)}

    assert len(heads) == 6000


@pytest.mark.parametrize("length", [1, 4, 5, 6, 1000])
def test_a_prompt_is_as_long_as_asked_and_the_same_every_time(length):
    prompt = make_prompt(3, length, seed=1)

    assert len(prompt) == length
    assert prompt == make_prompt(3, length, seed=1)


def test_the_policy_is_told_no_true_output_length(make_workload):
    """Not even by ``max_tokens``, which is what makes the output as long as in the trace."""
    workload = make_workload(max_tokens=np.full(8, 77), priority=np.arange(8), client=np.arange(8))
    body = request_body(workload, 2, "tiny", seed=0)

    assert body["vllm_xargs"] == {"max_tokens": 77, "priority": 2, "client": "client 2"}


@pytest.mark.parametrize(
    ("behave", "error"),
    [
        (hostile.status(429, "slow down"), "HTTP 429: slow down"),
        (hostile.status(500, "broken"), "HTTP 500: broken"),
        (hostile.status(404, "no model 'x'"), "HTTP 404: no model 'x'"),
        (hostile.reset, "onnection"),
        (hostile.reset_mid_stream, "connection reset by peer after 2 of 3 tokens"),
        (hostile.end_early, "the stream ended early, 1 of 3 tokens came"),
        (hostile.too_few, "too few tokens: 1 of 3 tokens came"),
        (hostile.too_many, "too many tokens: 1000 where 3 were asked for"),
        (hostile.garbage, 'not a completion: {"choices": ['),
        (hostile.wrong_shape, "not a completion: [1, 2]"),
        (hostile.web_page, "not an event stream: <html>It works!</html>"),
        (hostile.error_event, "the server says: out of memory"),
        (hostile.endless_line, "a line without end: xxx"),
        (hostile.not_http, "BadStatusLine"),
        (hostile.hang, "no answer in time"),
        (hostile.drip, "no new token for 0.3 s, 0 of 3 tokens came"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_failure_is_told_by_its_request_and_the_others_are_measured(
    make_workload, behave, error
):
    workload = make_workload(num_requests=3, gap=0.05, output_len=[3, 3, 3])
    with hostile.serving(hostile.only(1, behave)) as server:
        served = replay(Server(server.base_url, timeout=0.3), hostile.MODEL, workload)

    assert error in served[1].error
    assert not math.isnan(served[1].sent)
    assert [served[0].error, served[2].error] == ["", ""]
    assert [served[0].num_output_tokens, served[2].num_output_tokens] == [3, 3]


def test_what_came_before_a_failure_is_kept(make_workload):
    with hostile.serving(hostile.reset_mid_stream) as server:
        [one] = replay(Server(server.base_url), hostile.MODEL, make_workload(1))

    assert one.num_output_tokens == 2
    assert one.first_token_ts <= one.last_token_ts


def test_a_server_that_dies_fails_those_in_flight_and_those_after(make_workload):
    workload = make_workload(num_requests=60, gap=0.03, output_len=np.full(60, 3))

    def die(handler, number):
        if number == 10:
            handler.server.shutdown()
            handler.server.socket.close()  # nobody listens any more
            handler.reset()
            return True
        return False

    with hostile.serving(die) as server:
        served = replay(Server(server.base_url), hostile.MODEL, workload)

    errors = [one.error for one in served]
    assert len(errors) == 60
    assert errors[:8] == [""] * 8
    assert any(error.startswith("cannot connect") for error in errors)
    # Connections are opened ahead of time, so some that are refused come before others are sent.
    assert errors[-1] == GONE
    assert sum(error.startswith("cannot connect") for error in errors) >= GONE_AFTER


def test_nobody_listening_is_told_for_every_request(make_workload):
    with hostile.serving() as server:
        base_url = server.base_url
    served = replay(Server(base_url), hostile.MODEL, make_workload(3))

    assert [one.error for one in served] == ["cannot connect: connection refused"] * 3
    assert all(math.isnan(one.sent) for one in served)


def test_usage_is_believed_where_one_event_brings_several_tokens(make_workload):
    def two_at_once(handler, number):
        handler.begin_stream()
        handler.send_token(2)
        handler.send_token(3)
        handler.send_event("[DONE]")
        handler.end_stream()
        return True

    with hostile.serving(two_at_once) as server:
        [one] = replay(Server(server.base_url), hostile.MODEL, make_workload(1))

    assert (one.num_output_tokens, one.error) == (3, "")


def test_a_wrong_model_name_is_refused_with_those_there_are():
    with (
        hostile.serving() as server,
        pytest.raises(ConfigError, match=r"does not serve 'large' but tiny; give one of these"),
    ):
        Server(server.base_url).find_model("large")


def test_the_only_model_is_found():
    with hostile.serving() as server:
        assert Server(server.base_url).find_model() == hostile.MODEL
        assert Server(server.base_url + "/v1/").find_model() == hostile.MODEL


def test_no_server_is_said_in_one_line():
    with hostile.serving() as server:
        base_url = server.base_url
    with pytest.raises(ConfigError, match=r"no server answers at .*refused; start"):
        Server(base_url).find_model()


@pytest.mark.parametrize("address", ["", "localhost:8000", "ftp://x", "http://", "http://x:99999"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError, match="must look like http://localhost:8000"):
        Server(address)


def test_metrics_are_summed_over_labels():
    with hostile.serving() as server:
        server.steps = 7
        assert Server(server.base_url).metrics()["vllm:iteration_tokens_total_count"] == 7.0


def test_a_first_request_is_not_late_for_being_first(make_workload):
    with hostile.serving() as server:
        served = replay(Server(server.base_url), hostile.MODEL, make_workload(1))

    assert served[0].lateness < LEAD / 2

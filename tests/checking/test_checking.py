"""A check finds the errors that were put in, says what explains them, and claims no more."""

import math
from dataclasses import replace

import numpy as np
import pytest
from measuring import ENGINE, error_of, reasons, serve, traffic

from queuesmith.checking import check
from queuesmith.config import EngineConfig
from queuesmith.engine import simulate
from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.measured import LATENCIES, clean_measured
from queuesmith.traces.trace import Trace


def document_of(logs, **options):
    return check(logs, **{"engine": ENGINE, **options}).document


def shrunk(log, **factors):
    """Return a log whose latencies are multiplied."""
    values = {name: getattr(log.measured, name) * factors.get(name, 1.0) for name in LATENCIES}
    values["tpot"] = None
    return replace(log, measured=clean_measured(log.output_len, **values)[0])


def test_a_server_that_is_the_simulator_has_no_error():
    document = document_of(serve(traffic()), within=1e-6)

    for row in document["errors"]:
        assert row["error"] == pytest.approx(0, abs=1e-12)
        assert (row["low"], row["high"]) == pytest.approx((0, 0), abs=1e-12)
    assert document["scale"]["factor"] == 1
    assert all(value == pytest.approx(1) for value in document["correlations"].values())
    assert document["advice"] == []
    assert document["answer"]["met"] is True
    assert document["answer"]["sentences"][0].startswith(
        "Simulated latencies hold on this log within 0 %: mean TTFT right"
    )


@pytest.mark.parametrize("factor", [2.0, 0.8])
def test_latencies_that_are_off_by_a_factor_are_found_off_by_it(factor):
    log = serve(traffic())
    document = document_of(shrunk(log, ttft=factor, e2el=factor))

    for latency in ("ttft", "tpot", "e2el"):
        for statistic in ("mean", "p50", "p90", "p99"):
            row = error_of(document, latency, statistic)
            assert row["error"] == pytest.approx(1 / factor - 1), (latency, statistic)
            assert row["low"] == pytest.approx(row["high"])
            assert row["simulated"] == pytest.approx(row["measured"] / factor)


@pytest.mark.parametrize("scale", [0.5, 1.4, 3.0])
@pytest.mark.parametrize("rate", [1.0, 6.0])
def test_the_factor_on_step_time_is_found_at_any_load(scale, rate):
    found = document_of(serve(traffic(rate=rate), scale=scale, noise=0.1))

    assert found["scale"]["factor"] == pytest.approx(scale, rel=0.02)
    assert found["scale"]["low"] <= found["scale"]["factor"] <= found["scale"]["high"]
    assert all(abs(found["scale"]["after"]["error"][name]) < 0.05 for name in ("ttft", "e2el"))
    assert reasons(found) == ["step_time"]
    assert f"{found['scale']['factor']:.2f}" in found["advice"][0]["text"]
    assert "queuesmith calibrate" in found["advice"][0]["text"]
    # What is advised is not done.
    slow = error_of(found, "e2el")
    assert slow["error"] < -0.2 if scale > 1 else slow["error"] > 0.2


def test_interval_of_the_factor_covers_the_truth_about_as_often_as_it_says():
    logs = [serve(traffic(400, 3.0, seed), scale=1.3, noise=0.3, seed=seed) for seed in range(12)]
    scales = [document_of(log)["scale"] for log in logs]

    # The jitter is log-normal, hence its log ratios are centred on the factor.
    assert sum(scale["low"] <= 1.3 <= scale["high"] for scale in scales) >= 9
    assert all(0 < scale["high"] - scale["low"] < 0.2 for scale in scales)


def test_an_engine_that_is_another_one_is_called_so():
    found = document_of(serve(traffic(200, 0.2), scale=100.0))

    assert found["scale"]["bound"] is True
    assert found["scale"]["factor"] == pytest.approx(32)
    assert reasons(found)[0] == "no_one_factor"
    assert "over 32.0 times longer" in found["advice"][0]["text"]


@pytest.mark.parametrize("rate", [8.0, 12.0])
def test_a_log_of_a_part_of_the_traffic_is_suspected(rate):
    log = serve(traffic(2000, rate))
    part = log.take(np.sort(np.random.default_rng(1).choice(2000, 700, replace=False)))

    found = document_of(part)

    assert "no_one_factor" in reasons(found)
    assert "only a part of the server's traffic" in found["advice"][0]["text"]
    assert "step_time" not in reasons(found)


def test_a_log_of_several_servers_is_suspected():
    trace = traffic(1200, 20.0)
    halves = [serve(trace.take(np.arange(first, 1200, 2))) for first in (0, 1)]
    times = {}
    for name in ("ttft", "e2el"):
        values = np.empty(1200)
        values[::2], values[1::2] = (getattr(half.measured, name) for half in halves)
        times[name] = values
    log = replace(trace, measured=clean_measured(trace.output_len, **times)[0])

    found = document_of(log)

    assert error_of(found, "ttft")["error"] > 1
    assert "everal servers may share this traffic" in found["advice"][0]["text"]


def test_a_network_before_the_server_is_told_from_slow_steps():
    found = document_of(serve(traffic(rate=1.0), network=0.2))

    assert abs(error_of(found, "tpot")["error"]) < 0.01
    assert reasons(found) == ["front_end"]
    assert "0.200 s or more" in found["advice"][0]["text"]


def test_prefix_caching_is_suspected_where_first_tokens_alone_are_sooner():
    hashes = BlockHashes(np.arange(0, 401 * 20, 20), np.tile(np.arange(20), 400), 16)
    trace = Trace(np.arange(400) * 1.0, np.full(400, 330), np.full(400, 30), block_hashes=hashes)
    caching = replace(ENGINE, config=replace(ENGINE.config, enable_prefix_caching=True))
    log = serve(trace, caching)

    found = document_of(log)
    without_hashes = document_of(replace(log, block_hashes=None))

    assert error_of(found, "ttft")["error"] > 0.5
    assert reasons(found) == reasons(without_hashes) == ["prefix_caching"]
    assert "has no --enable-prefix-caching" in found["advice"][0]["text"]
    assert "does not say which prompts share" in without_hashes["advice"][0]["text"]
    mended = document_of(log, engine=caching)
    assert mended["advice"] == []
    assert not any("prefixes are unknown" in line for line in mended["warnings"])


def test_other_seats_show_in_the_time_in_the_queue():
    few = replace(ENGINE, config=replace(ENGINE.config, max_num_seqs=4))
    log = serve(traffic(rate=6.5), few)

    found = document_of(log)

    assert "queue" in reasons(found)
    assert "--max-num-seqs" in found["advice"][-1]["text"]
    assert reasons(document_of(log, engine=few)) == []


def test_the_policy_of_the_server_is_the_one_to_simulate():
    log = serve(traffic(rate=16.0), policy="sjf")

    assert abs(error_of(document_of(log, policy="sjf"))["error"]) < 1e-12
    assert abs(error_of(document_of(log))["error"]) > 0.2


def test_requests_of_a_session_come_when_the_log_says():
    trace = traffic(200)
    half = trace.arrival_time / 2  # so that any guess of a think time is wrong
    log = replace(serve(trace), session=np.zeros(200), think_time=np.where(half > 1, half, 0.1))

    document = document_of(log)

    assert error_of(document)["error"] == pytest.approx(0, abs=1e-12)


def test_settings_that_step_times_do_not_explain_are_not_blamed_on_traffic():
    few = replace(ENGINE, config=replace(ENGINE.config, max_num_seqs=4))

    found = document_of(serve(traffic(rate=4.0), few))

    assert abs(math.log(found["scale"]["factor"])) < math.log(1.1)
    assert reasons(found)[0] == "no_one_factor"
    assert "look at --policy and --engine-args" in found["advice"][0]["text"]


def test_loads_are_thirds_by_rate_and_hold_errors_of_their_own():
    log = serve(traffic(900, 2.0, bursts=True))
    slow = np.arange(900) // 300 == 1
    factor = np.where(slow, 2.0, 1.0)
    times = {name: getattr(log.measured, name) * factor for name in ("ttft", "e2el")}
    log = replace(log, measured=clean_measured(log.output_len, **times)[0])

    found = document_of(log)

    assert [load["load"] for load in found["loads"]] == ["all", "low", "middle", "high"]
    assert sum(load["num_requests"] for load in found["loads"][1:]) == 900
    rates = [(load["rate_low"], load["rate_high"]) for load in found["loads"][1:]]
    assert rates == sorted(rates)
    assert error_of(found, load="high")["error"] == pytest.approx(-0.5, abs=0.02)
    assert error_of(found, load="low")["error"] == pytest.approx(0, abs=1e-9)
    assert "By load, mean TTFT is" in " ".join(found["answer"]["sentences"])


def test_an_even_log_has_one_load():
    trace = Trace(np.arange(400) * 0.5, np.full(400, 50), np.full(400, 9))

    assert [load["load"] for load in document_of(serve(trace))["loads"]] == ["all"]


def test_requests_that_come_at_once_have_no_rate_and_are_checked_all_the_same():
    trace = Trace(np.zeros(200), np.full(200, 50), np.full(200, 9))

    found = document_of(serve(trace, scale=2.0))

    assert found["loads"][0]["rate_high"] is None
    assert found["scale"]["factor"] == pytest.approx(2, rel=0.01)


def test_three_requests_are_too_few_and_it_says_so():
    found = document_of(serve(traffic(3), noise=0.1), within=0.9)

    assert found["answer"]["sentences"] == [
        found["answer"]["sentences"][0],
    ]
    assert found["answer"]["sentences"][0].startswith("Only 3 requests with measured latencies")
    assert all(row["low"] is None for row in found["errors"])
    assert error_of(found, "ttft", "mean")["error"] is not None
    assert error_of(found, "ttft", "p90")["error"] is None
    assert found["answer"]["met"] is False
    assert "too few to show" in found["answer"]["failed"][0]


def test_one_request_is_no_reason_to_fail():
    found = document_of(serve(traffic(1)))

    assert found["answer"]["sentences"][0].startswith("Only 1 request with")
    assert found["correlations"]["ttft"] is None


def test_a_claim_holds_only_if_the_whole_interval_does():
    log = serve(traffic(400), noise=0.3)
    row = error_of(document_of(log))
    edge = max(abs(row["low"]), abs(row["high"]))
    assert edge > abs(row["error"])

    inside = document_of(log, within=edge * 3)["answer"]
    outside = document_of(log, within=(abs(row["error"]) + edge) / 2)["answer"]

    assert inside == {**inside, "met": True, "failed": []}
    assert outside["met"] is False
    assert any("mean TTFT is" in line for line in outside["failed"])
    assert document_of(log)["answer"]["met"] is None


def test_several_logs_each_begin_idle_and_from_eight_on_are_the_units():
    logs = [serve(traffic(40, 8.0, seed)) for seed in range(8)]

    found = document_of(logs)
    alone = [simulate(log, engine=ENGINE).requests for log in logs]

    expected = np.concatenate([rows.first_token_ts - rows.arrival_time for rows in alone]).mean()
    assert error_of(found)["simulated"] == pytest.approx(expected)
    assert found["config"]["unit"] == "log"
    assert found["config"]["num_units"] == 8
    assert error_of(found)["low"] is not None
    few = document_of(logs[:3])["config"]
    assert few["unit"].startswith("block of about 20 consecutive")
    assert few["num_units"] == 6


def test_requests_without_a_value_are_simulated_but_not_compared():
    log = serve(traffic(400, 8.0))
    times = {name: getattr(log.measured, name).copy() for name in ("ttft", "e2el")}
    for values in times.values():
        values[::2] = math.nan
    holes = replace(log, measured=clean_measured(log.output_len, **times)[0])

    row = error_of(document_of(holes))

    assert row["num_requests"] == 200
    assert row["error"] == pytest.approx(0, abs=1e-12)


def test_answers_that_this_engine_would_cut_are_not_compared():
    short = replace(ENGINE, config=EngineConfig(max_model_len=910, num_gpu_blocks=4000))
    log = serve(traffic(400))

    checked = check(log, engine=short)

    cut = checked.document["logs"][0]["num_truncated"]
    assert cut > 0
    assert error_of(checked.document)["num_requests"] == 400 - cut
    assert any("answers would be cut" in line for line in checked.document["warnings"])
    assert checked.requests.num_rows == 400


def test_what_a_log_cannot_tell_is_said():
    log = serve(traffic(200))
    e2el_only = replace(
        log, measured=clean_measured(log.output_len, e2el=log.measured.e2el)[0]
    ).with_origin(reader="litellm", dropped={"failed request": 7, "call that generates no text": 2})

    warnings = " / ".join(document_of(e2el_only)["warnings"])

    assert "the network and HTTP are in TTFT and E2EL" in warnings
    assert "shared prefixes are unknown" in warnings
    assert "7 requests failed" in warnings
    assert "the log says nothing of TTFT" in warnings
    assert "idle when a log begins" in warnings
    assert document_of(e2el_only)["scale"]["latency"] == "e2el"


def test_only_the_time_in_the_queue_is_checked_where_there_is_nothing_else():
    log = serve(traffic(400, 8.0))
    only = replace(
        log, measured=clean_measured(log.output_len, queued_time=log.measured.queued_time)[0]
    )

    found = document_of(only, within=0.5)

    assert found["scale"] is None
    assert "time in the queue right" in found["answer"]["sentences"][0]
    assert found["answer"]["failed"] == ["the log has neither TTFT nor TPOT nor E2EL"]


def test_the_same_log_gives_the_same_document():
    log = serve(traffic(300), noise=0.2)

    assert document_of(log) == document_of(log)
    assert document_of(log) != document_of(log, seed=1)


def test_a_log_without_latencies_is_refused_with_the_formats_that_have_them():
    with pytest.raises(TraceError, match=r"server.log says when .* AIPerf, GuideLLM .* ttft and e"):
        check([serve(traffic(30)), traffic(30)], engine=ENGINE)
    with pytest.raises(TraceError, match="no log was given"):
        check([])


@pytest.mark.parametrize("within", [0, -1, 10, math.nan, math.inf])
def test_a_claim_that_makes_no_sense_is_refused(within):
    with pytest.raises(ConfigError, match="within must be a share"):
        check(serve(traffic(30)), engine=ENGINE, within=within)


def test_a_log_of_which_nothing_can_be_compared_is_refused():
    tiny = replace(ENGINE, config=EngineConfig(max_model_len=60, num_gpu_blocks=400))
    trace = Trace([0.0, 1.0], [50, 50], [30, 30])
    times = clean_measured(trace.output_len, e2el=np.array([1.0, 2.0]))[0]

    with pytest.raises(TraceError, match="can run as they did on this engine"):
        check(replace(trace, measured=times), engine=tiny)

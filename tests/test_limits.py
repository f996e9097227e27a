"""Limits for a user's own CI: what can be written, what is refused, when one is broken."""

from math import nan

import pytest

from queuesmith.errors import ConfigError
from queuesmith.limits import Limit

POLICIES = ["fcfs", "sjf", "aged_sjf(SECONDS_PER_TOKEN=0.01)"]
LOADS = ["knee", "1.2"]


def make_rows(**values):
    """Build rows of ttft_p99: ``fcfs=[at knee, at 1.2]``."""
    return [
        (policy, load, {"ttft_p99": value, "slo_attainment": value})
        for policy, both in values.items()
        for load, value in zip(LOADS, both, strict=True)
    ]


ROWS = make_rows(fcfs=[1.0, 2.0], sjf=[1.2, 1.0])


def broken(text, rows=ROWS, watched=("sjf",)):
    return Limit.parse(text, POLICIES, LOADS).broken(rows, watched)


@pytest.mark.parametrize(
    ("text", "factor", "policy", "load"),
    [
        ("ttft_p99 > 1.05*fcfs", 1.05, "fcfs", ""),
        ("ttft_p99>1.05*fcfs@knee", 1.05, "fcfs", "knee"),
        ("  ttft_p99  >=  2 * fcfs  @  1.2  ", 2.0, "fcfs", "1.2"),
        ("ttft_p99 < fcfs", 1.0, "fcfs", ""),
        ("ttft_p99 <= .5", 0.5, "", ""),
        ("ttft_p99 > 1e-3 @ knee", 1e-3, "", "knee"),
        ("ttft_p99 > 2.*sjf", 2.0, "sjf", ""),
        ("ttft_p99 > 2*aged_sjf(SECONDS_PER_TOKEN=0.01)", 2.0, POLICIES[2], ""),
    ],
)
def test_a_limit_is_a_metric_an_operator_and_what_it_is_compared_with(text, factor, policy, load):
    limit = Limit.parse(text, POLICIES, LOADS)

    assert (limit.metric, limit.factor, limit.policy, limit.load) == (
        "ttft_p99",
        factor,
        policy,
        load,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft_p99",
        "ttft_p99 >",
        "ttft_p99 > 1.05*",
        "ttft_p99 = 1",
        "ttft_p99 == 1",
        "ttft_p99 > *fcfs",
        "> 1.05*fcfs",
        "ttft_p99 > 1 @",
        "ttft_p99 > 1 @ knee @ 1.2",
        "1 < ttft_p99",
    ],
)
def test_what_has_another_form_is_refused_with_examples(text):
    with pytest.raises(ConfigError) as raised:
        Limit.parse(text, POLICIES, LOADS)

    assert repr(text) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft_p98 > 1", "no metric. Did you mean 'ttft_p99'?"),
        ("ttft_p99 > 1.05*fcsf", "no policy in this comparison. Did you mean 'fcfs'?"),
        ("ttft_p99 > sfj", "no policy in this comparison. Did you mean 'sjf'?"),
        ("ttft_p99 > 1 @ kne", "no load in this comparison. Did you mean 'knee'?"),
        ("ttft_p99 > 1 @ heavy", "no load in this comparison. Known: knee, 1.2"),
        ("ttft_p99 > -1", "names '-1', which is no policy"),
        ("ttft_p99 > 5s", "names '5s', which is no policy"),
    ],
)
def test_a_name_that_is_not_compared_is_refused_with_a_suggestion(text, message):
    with pytest.raises(ConfigError) as raised:
        Limit.parse(text, POLICIES, LOADS)

    assert message in str(raised.value)


def test_a_limit_is_broken_where_its_condition_holds():
    (sentence,) = broken("ttft_p99 > 1.05*fcfs")

    assert sentence == "sjf at knee: ttft_p99 1.2 > 1.05 (ttft_p99 > 1.05*fcfs)"


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("ttft_p99 > 1.2", []),
        ("ttft_p99 >= 1.2", ["knee"]),
        ("ttft_p99 < 1.2", ["1.2"]),
        ("ttft_p99 <= 1.2", ["knee", "1.2"]),
        ("ttft_p99 > fcfs", ["knee"]),
        ("ttft_p99 < fcfs", ["1.2"]),
        ("ttft_p99 > 0 @ 1.2", ["1.2"]),
    ],
)
def test_every_load_is_looked_at_unless_one_is_named(text, loads):
    assert [sentence.split(":")[0] for sentence in broken(text)] == [f"sjf at {x}" for x in loads]


def test_only_the_watched_policies_must_keep_it():
    assert broken("ttft_p99 > 0", watched=["fcfs"]) == [
        "fcfs at knee: ttft_p99 1 > 0 (ttft_p99 > 0)",
        "fcfs at 1.2: ttft_p99 2 > 0 (ttft_p99 > 0)",
    ]
    assert broken("ttft_p99 > 0", watched=[]) == []


def test_a_policy_is_not_compared_with_itself():
    assert broken("ttft_p99 >= fcfs", watched=["fcfs"]) == []


@pytest.mark.parametrize(
    "rows",
    [
        make_rows(fcfs=[1.0, 1.0], sjf=[nan, 0.5]),
        make_rows(fcfs=[nan, 1.0], sjf=[0.5, 0.5]),
    ],
)
def test_what_cannot_be_checked_has_not_been_kept(rows):
    (sentence,) = broken("ttft_p99 > 1.05*fcfs", rows)

    assert sentence == (
        "sjf at knee: ttft_p99 > 1.05*fcfs cannot be checked, ttft_p99 is undefined"
    )

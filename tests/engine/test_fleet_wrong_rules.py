"""Deliberately wrong rules of the fleet: the comparison of kernel and reference sees each."""

import sys
import types
from pathlib import Path

import pytest
import test_fleet
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import queuesmith.engine.reference.fleet as right_reference
from queuesmith.engine.fleet import Fleet
from queuesmith.errors import EngineError
from queuesmith.policies import get_policy
from queuesmith.routers import get_router

#: What a rule gets wrong, the right text, the wrong text.
WRONG_RULES = [
    ("ties go to the highest", "keys.index(min(keys))",
     "max(k for k, key in enumerate(keys) if key == min(keys))"),
    ("no number is the best number", "math.inf if math.isnan(key) else key",
     "-math.inf if math.isnan(key) else key"),
    ("who is on the way does not wait", "len(engine.waiting) + len(on_the_way)",
     "len(engine.waiting)"),
    ("who is on the way brings no tokens",
     "waiting_tokens + sum(r.view.num_prompt_tokens for r in on_the_way)", "waiting_tokens"),
    ("the router hears of a step when it begins",
     "                    replica.engine.begin()\n                else:\n"
     "                    replica.engine.end()\n",
     "                    replica.engine.begin()\n"
     "                    replica.engine.end()\n                else:\n"
     "                    pass\n"),
    ("a step begins before the request that comes then",
     "GIVES_UP, ENDS, ARRIVES, BEGINS", "GIVES_UP, ENDS, BEGINS, ARRIVES"),
    ("the order of all is that of the first", "self.ranks[row]", "self.ranks[0]"),
    ("nothing is seen as cached", "len(engine.find_hits(request))", "0"),
    ("when it was last sent to is forgotten", "        chosen.last_sent_ts = now\n", ""),
    ("nobody waits for an answer", "if row not in turns:", "if True:"),
    ("users think from when they were served first",
     "self.follow(row, self.requests[row].finished_ts)",
     "self.follow(row, self.requests[row].scheduled_ts)"),
    ("who gives up never asks again",
     "(self.requests[row].abort_time, GIVES_UP, row)", "(math.inf, GIVES_UP, row)"),
    ("a turn comes after the horizon", "if arrival < self.horizon:", "if True:"),
    ("a turn gives up when the trace says",
     "request.abort_time = max(request.abort_time + delay, now)", "pass"),
]  # fmt: skip


def wrong_fleet(right, wrong):
    """Return `simulate_reference_fleet` with one rule changed."""
    source = Path(right_reference.__file__).read_text()
    assert source.count(right) == 1, f"the rule is written otherwise now; look for {right!r}"
    changed = types.ModuleType("wrong_reference_fleet")
    sys.modules[changed.__name__] = changed  # dataclasses look their module up
    exec(compile(source.replace(right, wrong), changed.__name__, "exec"), changed.__dict__)
    return changed.simulate_reference_fleet


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # the first case will do
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(
    case=test_fleet.cases(closed=True),
    router=st.sampled_from([test_fleet.READS_ALL, "least_loaded", "prefix_affinity"]),
    num_replicas=st.integers(2, 3),
)
def check_random_fleets(case, router, num_replicas):
    fleet = Fleet(num_replicas, get_router(router))
    test_fleet.assert_same_as_reference(case, get_policy("fcfs"), fleet)


@pytest.mark.parametrize(
    ("what", "right", "wrong"), WRONG_RULES, ids=[rule[0] for rule in WRONG_RULES]
)
def test_a_wrong_rule_is_caught(what, right, wrong, monkeypatch):
    monkeypatch.setattr(test_fleet, "simulate_reference_fleet", wrong_fleet(right, wrong))

    # A fleet that is wrong may also trip over itself.
    with pytest.raises((AssertionError, EngineError, KeyError, IndexError, ValueError)):
        check_random_fleets()


def test_the_right_rules_are_not_caught(monkeypatch):
    same = wrong_fleet("keys.index(min(keys))", "keys.index(min(keys))")
    monkeypatch.setattr(test_fleet, "simulate_reference_fleet", same)

    check_random_fleets()

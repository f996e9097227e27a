"""The simulator takes vLLM's decisions: its own scheduler, driven step by step, takes the same."""

import dataclasses
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

import numpy as np
import real_scheduler as real
from differential import (
    HOOKS,
    OWN,
    POLICIES,
    STEP_TIME,
    Mismatch,
    Tally,
    draw_config,
    draw_trace,
    follow,
    run_case,
)

import queuesmith.engine.reference.block_pool
import queuesmith.engine.reference.engine
from queuesmith.deploy.plugin import check_deployable
from queuesmith.engine import prepare, simulate_reference
from queuesmith.errors import EngineError, PolicyError
from queuesmith.policies import get_policy
from queuesmith.request import ENGINE_FIELDS, REQUEST_FIELDS

pytestmark = pytest.mark.vllm

STEPS = 100_000
#: So that every run of the tests draws the same cases; the benchmark draws others.
FIRST_SEED = 1_000_000


@pytest.fixture(scope="module")
def tally():
    """Compare cases, one policy after another, until enough steps are compared."""
    tally = Tally()
    seed = FIRST_SEED
    while tally.steps < STEPS or tally.cases < 3 * len(POLICIES):
        run_case(seed, POLICIES[seed % len(POLICIES)], tally)
        seed += 1
    return tally


def test_every_step_is_the_same(tally):
    print(tally)
    assert tally.steps >= STEPS


def test_every_policy_was_compared(tally):
    assert set(tally.by_policy) == {Path(name).stem for name in POLICIES}


def test_what_is_hard_happened_often(tally):
    assert tally.preemptions > 2000
    assert tally.displacements > 500
    assert tally.stopped_early > 500
    assert tally.cached_tokens > 10_000
    assert 0.2 * tally.steps < tally.async_steps < 0.8 * tally.steps
    assert tally.aborted > 200
    assert tally.rejected > 200


REFERENCE, POOL = queuesmith.engine.reference.engine, queuesmith.engine.reference.block_pool

#: What a rule gets wrong, a policy that shows it, the module, the right text, the wrong text.
WRONG_RULES = [
    ("watermark in an empty engine", "stock fcfs", REFERENCE,
     "self.config.watermark_blocks if self.running else 0", "self.config.watermark_blocks"),
    ("no reserve for the whole sequence", "stock fcfs", REFERENCE,
     "request.num_tokens if self.config.scheduler_reserve_full_isl else cached + new",
     "cached + new"),
    ("admission in a step that preempted", "stock fcfs", REFERENCE,
     "not out_of_blocks\n            and candidates", "candidates"),
    ("threshold for a lone request", "stock fcfs", REFERENCE,
     "threshold == 0 or (num_present <= 1 and not self.config.limits_lone_prefill)",
     "threshold == 0"),
    ("budget not refunded", "stock priority", REFERENCE,
     "budget += self.charge(tokens.pop(victim.row))", "del tokens[victim.row]"),
    ("the later of two equal victims", "stock priority", REFERENCE,
     "max(self.running, key", "max(reversed(self.running), key"),
    ("no null block", "stock fcfs", REFERENCE,
     "BlockPool(self.config.num_gpu_blocks)", "BlockPool(self.config.num_gpu_blocks + 1)"),
    ("a hit on the whole prompt", "stock fcfs", REFERENCE,
     "most = (request.num_tokens - 1) //", "most = request.num_tokens //"),
    ("hits among the free blocks are free", "stock fcfs", REFERENCE,
     "if blocks + idle_hits + watermark >", "if blocks + watermark >"),
    ("held requests give up their seat", str(HOOKS / "all_hooks.py"), REFERENCE,
     "len(self.running) + len(held) < self.config.seats", "len(self.running) < self.config.seats"),
    ("the displaced are admitted again at once", "las", REFERENCE,
     "aside.append(victim)", "candidates.append(victim)"),
    ("displaced before a token", "las", REFERENCE,
     "and r.view.num_output_tokens > r.output_at_admission", ""),
    ("the held stay behind the others", "slai", REFERENCE,
     "sorted(self.running + held, key=lambda r: r.admission)", "self.running + held"),
    ("NaN before all others", str(OWN / "raw_prediction.py"), REFERENCE,
     "math.inf if math.isnan(value) else value", "-math.inf if math.isnan(value) else value"),
    ("a returning client is not lifted", "weighted_fair", REFERENCE,
     "max(own, least)", "own"),
    ("an output token weighs one", "weighted_fair", REFERENCE,
     "self.client_counter.get(request.client, 0.0) + 2.0",
     "self.client_counter.get(request.client, 0.0) + 1.0"),
    ("prefill left is the prompt", "sjf", REFERENCE,
     "request.view.num_uncached_tokens = request.num_tokens - cached",
     "request.view.num_uncached_tokens = request.num_tokens"),
    ("the last token by max_tokens is not foreseen", "stock fcfs", REFERENCE,
     "self.placeholders > 0 and reach >=", "self.placeholders > 99 and reach >="),
    ("resumed with a token under way", "stock fcfs", REFERENCE,
     "request.stale_tokens = request.tokens_under_way", "request.stale_tokens = 0"),
    ("placeholders outlive a preemption", "stock fcfs", REFERENCE,
     "request.placeholders = 0\n", "pass\n"),
    ("an ending request is displaced", "las", REFERENCE,
     "and not r.is_ending", ""),
    ("output is cached when scheduled", "stock fcfs", REFERENCE,
     "min(computed, request.num_tokens)", "computed"),
    ("the state after the step before", "stock fcfs", REFERENCE,
     "step, self.under_way = self.under_way, step", "step, self.under_way = step, None"),
    ("whoever gives up goes on waiting", "stock fcfs", REFERENCE,
     "(self.running if request in self.running else self.waiting).remove(request)",
     "self.running = [r for r in self.running if r is not request]"),
    ("the aborted keep their blocks", "stock fcfs", REFERENCE,
     "self.release(request)\n        request.aborted_ts", "request.aborted_ts"),
    ("who came at the end of a step is not met", "stock fcfs", REFERENCE,
     "and not r.finished_ts <= now", "and not r.finished_ts < math.inf"),
    ("a prompt counts until its end", "stock fcfs", REFERENCE,
     "if not r.first_token_ts <= now]", "]"),
    ("one request more than the limit", "stock fcfs", REFERENCE,
     "len(unfinished) + 1 > most_reqs", "len(unfinished) > most_reqs"),
    ("the limit of tokens may be met", "stock fcfs", REFERENCE,
     "num_tokens >= most_tokens", "num_tokens > most_tokens"),
    ("priorities do not order", "stock priority", REFERENCE,
     "policy = in_vllm_order(policy, config.scheduling_policy)", ""),
    ("each step counts as one prefill token", "hrrn", REFERENCE,
     "self.num_prefill_tokens += step.num_prefill_tokens", "self.num_prefill_tokens += 1"),
]  # fmt: skip

UNLIMITED = {
    "max_num_active_seqs": None,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
}

#: Asynchronous, and short of blocks.
CRAMPED = {
    **UNLIMITED,
    "async_scheduling": True,
    "max_num_seqs": 16,
    "num_gpu_blocks": 72,
    "block_size": 16,
    "scheduler_reserve_full_isl": False,
}

#: Settings under which some of them show soon.
SETTINGS = {
    "watermark in an empty engine": {"watermark": 0.4, "num_gpu_blocks": 80, "block_size": 16},
    "budget not refunded": {
        "max_num_seqs": 64,
        "max_num_active_seqs": None,
        "max_num_batched_tokens": 128,
        "max_num_scheduled_tokens": None,
        "enable_chunked_prefill": True,
        "num_gpu_blocks": 72,
        "block_size": 16,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.0,
    },
    "a hit on the whole prompt": {
        "enable_prefix_caching": True,
        "num_gpu_blocks": 400,
        "block_size": 16,
    },
    "the held stay behind the others": {
        "max_num_seqs": 16,
        "max_num_active_seqs": None,
        "num_gpu_blocks": 72,
        "block_size": 16,
    },
    "the last token by max_tokens is not foreseen": {"async_scheduling": True},
    "resumed with a token under way": CRAMPED,
    "placeholders outlive a preemption": CRAMPED,
    "an ending request is displaced": {"async_scheduling": True, "max_num_seqs": 4},
    "output is cached when scheduled": {**CRAMPED, "enable_prefix_caching": True},
    "the state after the step before": {"async_scheduling": True},
    "whoever gives up goes on waiting": {
        **UNLIMITED,
        "max_num_seqs": 64,
        "num_gpu_blocks": 800,
        "block_size": 16,
    },
    "who came at the end of a step is not met": {"max_num_queued_reqs": 12},
    "a prompt counts until its end": {"max_num_queued_tokens": 1000},
    "one request more than the limit": {"max_num_queued_reqs": 12},
    "the limit of tokens may be met": {"max_num_queued_tokens": 0},
    "hits among the free blocks are free": {
        "enable_prefix_caching": True,
        "num_gpu_blocks": 72,
        "block_size": 16,
    },
}


def wrong_engine(module, right, wrong):
    """Return `simulate_reference` with one rule changed."""
    source = Path(module.__file__).read_text()
    assert source.count(right) == 1, f"the rule is written otherwise now; look for {right!r}"
    changed = types.ModuleType("wrong_reference")
    sys.modules[changed.__name__] = changed  # dataclasses look their module up
    exec(compile(source.replace(right, wrong), "wrong_reference", "exec"), changed.__dict__)
    changed.MAX_EMPTY_STEPS = 200  # a wrong rule may leave the engine standing
    return changed.simulate_reference


@pytest.mark.parametrize(
    ("what", "name", "module", "right", "wrong"),
    WRONG_RULES,
    ids=[rule[0] for rule in WRONG_RULES],
)
def test_a_wrong_rule_is_caught(what, name, module, right, wrong):
    reference = wrong_engine(module, right, wrong)

    for seed in range(30):
        try:
            run_case(seed, name, Tally(), reference=reference, **SETTINGS.get(what, {}))
        except (Mismatch, EngineError, KeyError, IndexError):  # it may also trip over itself
            return
    pytest.fail("not caught in 30 cases")


def test_a_policy_that_turns_requests_away_is_refused():
    with pytest.raises(PolicyError, match="max-num-queued-reqs"):
        check_deployable(get_policy(HOOKS / "rejects.py"), None)


def test_every_field_that_a_policy_reads_is_that_of_the_simulator():
    """All fields of both rows, whenever the plug-in asks; the simulator asks at least as often."""
    reads_all = frozenset(
        [f"request.{name}" for name in REQUEST_FIELDS]
        + [f"engine.{name}" for name in ENGINE_FIELDS]
    )
    seen = []

    def spy(hook):
        def asked(request, engine):
            fields = [getattr(request, name) for name in REQUEST_FIELDS]
            fields += [getattr(engine, name) for name in ENGINE_FIELDS]
            seen.append((hook.__name__, *map(repr, map(float, fields))))
            return hook(request, engine)

        return asked

    plain = get_policy(str(HOOKS / "all_hooks.py"))
    spied = dataclasses.replace(
        plain,
        reads=dict.fromkeys(plain.reads, reads_all),
        **{name: spy(hook) for name, hook in plain.hooks.items()},
    )
    compared = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        config, trace = draw_config(rng).override(UNLIMITED), draw_trace(rng)
        predicted = rng.choice([1.0, 30.0, np.nan], len(trace))
        workload = prepare(trace, config, predicted)
        engine = simulate_reference(workload, spied, config, STEP_TIME)
        in_simulator = set(seen)
        seen.clear()
        scheduler = real.make_scheduler(
            config,
            spied,
            prefix_caching=config.enable_prefix_caching,
            async_scheduling=config.async_scheduling,
        )
        follow("", scheduler, workload, plain, engine.steps, Tally(), config.async_scheduling)

        assert set(seen) <= in_simulator
        compared += len(seen)
        seen.clear()
    assert compared > 1000

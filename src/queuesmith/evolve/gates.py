"""The gates that need nothing but windows: G0 to G3, G5 and G6.

``docs/background/gates.md`` tells what each of them is for. A gate that could not be run has not
been passed.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from queuesmith.errors import CandidateError, PolicyError
from queuesmith.evolve.bench import (
    DRAWS,
    Bench,
    Difference,
    Measured,
    configuration_rows,
    difference,
    score_draws,
    standings,
    violations,
)
from queuesmith.evolve.form import check_form
from queuesmith.evolve.gate import Gate, finite, make_gate, not_run
from queuesmith.evolve.sandbox import Cell, Sandbox, SimulationJob
from queuesmith.evolve.stress import differs_from_fcfs, idle_windows, largest_wait, stress_windows
from queuesmith.policies import Policy
from queuesmith.score import MARGIN, MIN_WINDOWS, improvement
from queuesmith.testing import check_policy

#: What a policy is held against: every single policy that could be deployed. ``aged_sjf`` has one
#: number that must fit the load, so it is taken from 1 ms to 0.1 s per token of the prompt.
CLASSICS = (
    *(f"aged_sjf(SECONDS_PER_TOKEN={value})" for value in (0.001, 0.003, 0.01, 0.03, 0.1)),
    "sjf",
    "residual_sjf",
    "sjf_aging",
    "las",
    "hrrn",
    "edf",
    "llf",
    "spjf",
    "srpt",
    "mlfq",
    "uniboost",
    "estimated_service_time_first",
    "fit_first",
    "weighted_fair",
)


def form(text: str) -> Gate:
    """G0: the text is within the allow-list of candidates."""
    try:
        check_form(text)
    except CandidateError as error:
        return make_gate("G0", False, str(error), line=error.line)
    return make_gate("G0", True, "the text is within what a candidate may say", num_bytes=len(text))


def behaviour(policy: Policy, bench: Bench) -> Gate:
    """G1: it ends, does the same again, starves nobody, and is FCFS where nobody queues.

    Until it is known to end it runs in child processes, within the configuration's limits.
    """
    config, limits = bench.config, bench.config.sandbox
    engine = config.engine.config, config.engine.step_time
    stress = stress_windows(*engine, config.output_length)
    idle = idle_windows(*engine, config.output_length)
    job = SimulationJob(tuple(Cell(window.workload, *engine) for window in [*stress, *idle]))
    with Sandbox(
        job,
        workers=1,
        cpu_seconds=limits.cpu_seconds,
        memory_mib=limits.memory_mib,
        wall_seconds=limits.wall_seconds,
    ) as sandbox:
        first, again = sandbox.run([policy.source, policy.source])
    for outcome in (first, again):
        if outcome.status != "ok":
            reason = f"{outcome.status} on the stress windows: {outcome.reason}"
            return make_gate("G1", False, reason, status=outcome.status)
    if first.behaviour != again.behaviour:
        return make_gate("G1", False, "two runs of the same windows differ", runs=[first.behaviour])
    try:
        checks = check_policy(policy).checks
    except PolicyError as error:
        return make_gate("G1", False, str(error), behaviour=first.behaviour)
    waits = [largest_wait(window, policy, *engine) for window in stress]
    busy = [window.name for window in idle if differs_from_fcfs(window, policy, *engine)]
    worst = max(waits, key=lambda wait: wait.ratio)
    saw = {
        "behaviour": first.behaviour,
        "checks": list(checks),
        "waits": [{**asdict(wait), "ratio": wait.ratio} for wait in waits],
        "idle_windows": {window.name: window.name not in busy for window in idle},
    }
    if worst.starves:
        sentence = (
            f"somebody waits {worst.ratio:.3g} times as long as anybody under fcfs, more than 2 "
            f"times ({worst.window})"
        )
        return make_gate("G1", False, sentence, **saw)
    if busy:
        sentence = f"it decides otherwise than fcfs where nobody queues ({', '.join(busy)})"
        return make_gate("G1", False, sentence, **saw)
    sentence = (
        f"it ends, does the same again and compiled, and nobody waits longer than "
        f"{worst.ratio:.3g} times fcfs's longest wait; on an idle engine it is fcfs"
    )
    return make_gate("G1", True, sentence, **saw)


def tuning(policy: Policy, bench: Bench) -> Gate:
    """G2: it beats FCFS where the search has looked."""
    fcfs = bench.fcfs("tuning")
    [mine] = bench.measure([policy], "tuning")
    beside = Difference.of(score_draws(mine.samples, fcfs.samples))
    word = "beats" if beside.sure else "does not surely beat"
    return make_gate(
        "G2",
        beside.sure,
        f"score {beside} {word} fcfs (0) on tuning windows",
        **_evidence("tuning", bench, mine, fcfs, beside),
    )


def validation(policy: Policy, bench: Bench, classics: Sequence[Policy]) -> Gate:
    """G3: no tail violation, and better than the best single classic by more than the margin."""
    fcfs, mine, best, table = _beside_classics(policy, bench, "validation", classics)
    return _better_than_classics("G3", "validation", bench, policy, (fcfs, mine, best), table)


def physics(policy: Policy, bench: Bench, classics: Sequence[Policy]) -> Gate:
    """G5: under other step times it still beats FCFS, and whom it beat on validation windows.

    A configuration whose mean turns from surely better to surely worse is a reversal, too.
    """
    second = bench.config.second_engine
    if second is None:
        return not_run("G5", "the configuration names no second_engine")
    _, _, best, _ = _beside_classics(policy, bench, "validation", classics)
    fcfs = bench.fcfs("validation", second)
    mine, rival = bench.measure([policy, best.policy], "validation", second)
    beside = Difference.of(score_draws(mine.samples, fcfs.samples))
    less = difference(mine, rival, fcfs)
    before = _changes(policy, bench)
    after = _changes(policy, bench, second)
    turned = [
        f"{key.source} at {key.load}"
        for key in before
        if before[key].mean_low > 0 and after[key].mean_high < 0 and after[key].mean < -MARGIN
    ]
    tails = violations(mine, fcfs)
    saw = _evidence("validation", bench, mine, fcfs, beside, second) | {
        "engine": second.name,
        "best_classic": best.policy.name,
        "less_best_classic": asdict(less),
        "reversed": turned,
    }
    told = (
        f"on {second.name} it scores {beside}, less {best.policy.name}'s {less}, with {len(tails)} "
        "tail violation(s)"
    )
    if turned:
        return make_gate("G5", False, f"it turns against requests of {turned[0]}; {told}", **saw)
    passed = beside.sure and less.value > 0
    return make_gate("G5", passed, told if passed else f"the sign does not hold: {told}", **saw)


def held_out(policy: Policy, bench: Bench, classics: Sequence[Policy]) -> Gate:
    """G6: the claim of G3 on windows nobody has seen, and no mean worse than FCFS's.

    `bench` must have been unlocked by an opening.
    """
    fcfs, mine, best, table = _beside_classics(policy, bench, "held_out", classics)
    found = _better_than_classics("G6", "held_out", bench, policy, (fcfs, mine, best), table)
    worse = [
        f"{row['source']} at {row['load']}"
        for row in found.saw["configurations"]
        if row["mean_change"] > MARGIN
    ]
    if found.passed and worse:
        sentence = f"mean TTFT is worse than fcfs's in {len(worse)}: {worse[0]}; {found.sentence}"
        return make_gate("G6", False, sentence, **found.saw)
    return found


def _beside_classics(
    policy: Policy, bench: Bench, part: str, classics: Sequence[Policy]
) -> tuple[Measured, Measured, Measured, list[dict[str, Any]]]:
    """Measure FCFS, a policy, and the best classic by total score, FCFS among them."""
    fcfs = bench.fcfs(part)
    [mine] = bench.measure([policy], part)
    others = [one for one in bench.measure(classics, part) if one.policy.sha256 != policy.sha256]
    table = standings([fcfs, *others], fcfs)
    by_hash = {one.policy.sha256: one for one in [fcfs, *others]}
    return fcfs, mine, by_hash[table[0]["policy_sha256"]], table


def _better_than_classics(
    gate: str,
    part: str,
    bench: Bench,
    policy: Policy,
    measured: tuple[Measured, Measured, Measured],
    table: list[dict[str, Any]],
) -> Gate:
    fcfs, mine, best = measured
    beside = Difference.of(score_draws(mine.samples, fcfs.samples))
    less = difference(mine, best, fcfs)
    tails = violations(mine, fcfs)
    margin = MARGIN * len(mine.samples)
    saw = _evidence(part, bench, mine, fcfs, beside) | {
        "best_classic": best.policy.name,
        "less_best_classic": asdict(less),
        "margin": margin,
        "standings": sorted(
            [*table, *standings([mine], fcfs)], key=lambda row: -finite(row["score"])
        ),
    }
    few = {name: num for name, num in bench.num_windows(part).items() if 0 < num < MIN_WINDOWS}
    told = f"score {beside}, less the best classic's ({best.policy.name}) {less}"
    if few:
        name, num = next(iter(few.items()))
        sentence = f"{num} windows of {name} are fewer than the {MIN_WINDOWS} it takes; {told}"
        return make_gate(gate, False, sentence, **saw)
    if tails:
        sentence = f"{len(tails)} tail violation(s): {tails[0]}; {told}"
        return make_gate(gate, False, sentence, **saw)
    passed = beside.sure and less.sure and less.value > margin
    word = "no tail violation" if passed else f"not surely better, by more than {margin:.2g}"
    return make_gate(gate, passed, f"{word}: {told}", **saw)


def _evidence(
    part: str, bench: Bench, mine: Measured, fcfs: Measured, beside: Difference, engine: Any = None
) -> dict[str, Any]:
    """Return what every gate that measures shows."""
    return {
        "windows": [window.sha256 for window in bench.load(part)],
        "engine": (engine or bench.config.engine).name,
        "score": asdict(beside),
        "tail_violations": violations(mine, fcfs),
        "configurations": configuration_rows(mine, fcfs, bench.part(part, engine)),
    }


def _changes(policy: Policy, bench: Bench, engine: Any = None) -> dict[Any, Any]:
    fcfs = bench.fcfs("validation", engine)
    [mine] = bench.measure([policy], "validation", engine)
    return {
        key: improvement(sample, fcfs.samples[key], draws=DRAWS)
        for key, sample in mine.samples.items()
    }

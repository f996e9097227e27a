"""The gates that need nothing but windows: G0 to G3, G5 and G6.

``docs/background/gates.md`` tells what each of them is for. A gate that could not be run has not
been passed.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from queuesmith.engine.presets.step_time import Preset
from queuesmith.errors import CandidateError
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.judge import MIN_WINDOWS
from queuesmith.evolve.gates.gate import Gate, make_gate, not_run
from queuesmith.evolve.gates.measurements import (
    Bench,
    Measured,
    configuration_rows,
    difference,
    standing_order,
    standings,
)
from queuesmith.evolve.gates.runs import read_run
from queuesmith.evolve.gates.stress import (
    differs_from,
    idle_windows,
    largest_wait,
    run_fcfs,
    stress_windows,
)
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.sandbox.sandbox import Cell
from queuesmith.evolve.scoring.standing import Difference
from queuesmith.policies import Policy

#: What a policy is held against: every single policy that could be deployed. ``aged_sjf`` has one
#: number that must fit the load, so it is taken from 1 ms to 0.1 s per token of the prompt.
CLASSICS = (
    *(f"aged_sjf(SECONDS_PER_TOKEN={value})" for value in (0.001, 0.003, 0.01, 0.03, 0.1)),
    *("sjf", "residual_sjf", "sjf_aging", "las", "hrrn", "edf", "llf", "spjf", "srpt", "mlfq"),
    *("uniboost", "estimated_service_time_first", "fit_first", "weighted_fair"),
)


def form(text: str) -> Gate:
    """G0: the text is within the allow-list of candidates."""
    try:
        check_form(text)
    except CandidateError as error:
        return make_gate("G0", False, str(error), line=error.line)
    return make_gate("G0", True, "the text is within what a candidate may say", num_bytes=len(text))


def behaviour(policy: Policy, bench: Bench) -> Gate:
    """G1: it ends, does the same again, starves nobody, and is FCFS where nobody queues."""
    config = bench.config
    engine = config.engine.config, config.engine.step_time
    stress = stress_windows(*engine, config.output_length)
    idle = idle_windows(*engine, config.output_length)
    everything = [*stress, *idle]
    cells = tuple(Cell(window.workload, *engine) for window in everything)
    first, again = bench.fenced(cells).run([policy.source, policy.source])
    for outcome in (first, again):
        if outcome.status != "ok":
            reason = f"{outcome.status} on the stress windows: {outcome.reason}"
            return make_gate("G1", False, reason, status=outcome.status)
    if first.behaviour != again.behaviour:
        return make_gate("G1", False, "two runs of the same windows differ", runs=[first.behaviour])
    asked = bench.fenced(cells).ask(policy.source, "checks")
    if asked.status != "ok":
        reason = asked.reason if asked.status == "fault" else f"{asked.status}: {asked.reason}"
        return make_gate("G1", False, reason, behaviour=first.behaviour)
    checks = json.loads(asked.told)
    runs = {
        window.name: (read_run(values, window.workload, policy.name), run_fcfs(window, *engine))
        for window, values in zip(everything, first.values, strict=True)
    }
    waits = [largest_wait(window, *runs[window.name]) for window in stress]
    busy = [window.name for window in idle if differs_from(*runs[window.name])]
    worst = max(waits, key=lambda wait: wait.ratio)
    saw = {
        "behaviour": first.behaviour,
        "checks": checks,
        "waits": [{**asdict(wait), "ratio": wait.ratio} for wait in waits],
        "idle_windows": {window.name: window.name not in busy for window in idle},
    }
    sentence = (
        f"it ends, does the same again and compiled, and nobody waits longer than "
        f"{worst.ratio:.3g} times fcfs's longest wait; on an idle engine it is fcfs"
    )
    if worst.starves:
        sentence = (
            f"somebody waits {worst.ratio:.3g} times as long as anybody under fcfs, more than 2 "
            f"times ({worst.window})"
        )
    elif busy:
        sentence = f"it decides otherwise than fcfs where nobody queues ({', '.join(busy)})"
    return make_gate("G1", not worst.starves and not busy, sentence, **saw)


def tuning(policy: Policy, bench: Bench) -> Gate:
    """G2: it beats FCFS where the search has looked."""
    mine = bench.candidate(policy, "tuning")
    gain = Difference.of(mine.beside.gain)
    word = "beats" if gain.sure else "does not surely beat"
    return make_gate(
        "G2",
        gain.sure,
        f"gain {gain} {word} fcfs (0) on tuning windows",
        **_evidence("tuning", bench, mine, gain),
    )


def validation(policy: Policy, bench: Bench, classics: Sequence[Policy]) -> Gate:
    """G3: no guard broken, and better than the best classic that breaks none, by the margin."""
    mine, best, table = _beside_classics(policy, bench, "validation", classics)
    return _better_than_classics("G3", "validation", bench, mine, best, table)


def physics(policy: Policy, bench: Bench, classics: Sequence[Policy]) -> Gate:
    """G5: under other step times it still beats FCFS, and whom it beat; no guard breaks.

    A configuration whose goal turns from surely better to surely worse is a reversal, too.
    """
    second = bench.config.second_engine
    if second is None:
        return not_run("G5", "the configuration names no second_engine")
    before, best, _ = _beside_classics(policy, bench, "validation", classics)
    mine = bench.candidate(policy, "validation", second)
    rival = bench.measure([best.policy], "validation", second)[0]
    gain, beyond = Difference.of(mine.beside.gain), difference(mine, rival)
    turned = _reversed(before, mine)
    saw = _evidence("validation", bench, mine, gain, second) | {
        "best_classic": best.policy.name,
        "less_best_classic": asdict(beyond),
        "reversed": turned,
    }
    told = f"on {second.name} it gains {gain}, less {best.policy.name}'s {beyond}"
    if turned:
        return make_gate("G5", False, f"it turns against requests of {turned[0]}; {told}", **saw)
    if not mine.beside.clean:
        return make_gate("G5", False, f"{_broken(mine)}; {told}", **saw)
    passed = gain.sure and beyond.value > 0
    return make_gate("G5", passed, told if passed else f"the sign does not hold: {told}", **saw)


def held_out(policy: Policy, bench: Bench, classics: Sequence[Policy]) -> Gate:
    """G6: the claim of G3 on windows nobody has seen, and no goal worse than FCFS's.

    `bench` must have been unlocked by an opening.
    """
    mine, best, table = _beside_classics(policy, bench, "held_out", classics)
    found = _better_than_classics("G6", "held_out", bench, mine, best, table)
    worse = [
        f"{row['source']} at {row['load']}"
        for row in found.saw["configurations"]
        if row["goal_worse"] > MARGIN
    ]
    if found.passed and worse:
        label = bench.config.goal.statistic.label
        sentence = f"{label} is worse than fcfs's in {len(worse)}: {worse[0]}; {found.sentence}"
        return make_gate("G6", False, sentence, **found.saw)
    return found


def _beside_classics(
    policy: Policy, bench: Bench, part: str, classics: Sequence[Policy]
) -> tuple[Measured, Measured, list[dict[str, Any]]]:
    """Measure a policy, and the best of FCFS and those classics that break no guard."""
    mine = bench.candidate(policy, part)
    others = [one for one in bench.measure(classics, part) if one.policy.sha256 != policy.sha256]
    everyone = [bench.fcfs(part), *others]
    table = standings(everyone)  # FCFS breaks none, so that the first one does not either
    by_hash = {one.policy.sha256: one for one in everyone}
    return mine, by_hash[table[0]["policy_sha256"]], table


def _better_than_classics(
    gate: str, part: str, bench: Bench, mine: Measured, best: Measured, table: list[dict[str, Any]]
) -> Gate:
    gain, beyond = Difference.of(mine.beside.gain), difference(mine, best)
    saw = _evidence(part, bench, mine, gain) | {
        "best_classic": best.policy.name,
        "less_best_classic": asdict(beyond),
        "margin": MARGIN,
        "standings": sorted([*table, *standings([mine])], key=standing_order),
    }
    few = {name: num for name, num in bench.num_windows(part).items() if 0 < num < MIN_WINDOWS}
    told = f"gain {gain}, less the best classic's ({best.policy.name}) {beyond}"
    if few:
        name, num = next(iter(few.items()))
        sentence = f"{num} windows of {name} are fewer than the {MIN_WINDOWS} it takes; {told}"
        return make_gate(gate, False, sentence, **saw)
    if not mine.beside.clean:
        return make_gate(gate, False, f"{_broken(mine)}; {told}", **saw)
    passed = gain.sure and beyond.sure and beyond.value > MARGIN
    word = "no guard broken" if passed else f"not surely better, by more than {MARGIN:.2g}"
    return make_gate(gate, passed, f"{word}: {told}", **saw)


def _broken(mine: Measured) -> str:
    reasons = mine.beside.reasons
    return f"{len(reasons)} guard(s) broken: {reasons[0]}"


def _evidence(
    part: str, bench: Bench, mine: Measured, gain: Difference, engine: Preset | None = None
) -> dict[str, Any]:
    """Return what every gate that measures shows."""
    return {
        "windows": [window.sha256 for window in bench.load(part)],
        "engine": (engine or bench.config.engine).name,
        "goal": bench.config.goal.name,
        "score": asdict(gain),
        "broken_guards": mine.beside.reasons,
        "configurations": configuration_rows(mine, bench.fcfs(part, engine)),
    }


def _reversed(before: Measured, after: Measured) -> list[str]:
    """Name the configurations in which the goal was surely better and is surely worse."""
    statistic = before.beside.goal.statistic
    found = []
    for key, one in before.beside.configurations.items():
        first = one.changes[statistic.name]
        then = after.beside.configurations[key].changes[statistic.name]
        lower = statistic.better == "lower"
        was_better = statistic.worse(first.high if lower else first.low) < 0
        is_worse = statistic.worse(then.low if lower else then.high) > 0
        if was_better and is_worse and statistic.worse(then.change) > MARGIN:
            found.append(f"{key.source} at {key.load}")
    return found

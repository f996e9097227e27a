"""The answer of a comparison in sentences, and who wins for which goal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queuesmith import numbers
from queuesmith.comparison.rows import LoadRow
from queuesmith.evaluation.describe import describe_load, describe_value, named
from queuesmith.evaluation.evaluate import OWN, Evaluation, Offered
from queuesmith.evaluation.goals import GOALS, MARGIN, Goal
from queuesmith.evaluation.judge import MIN_WINDOWS, REFERENCE, Change, Standing
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.evaluation.winner import HELD_SHARE, Winner, winner
from queuesmith.numbers import listed
from queuesmith.traces.trace import Trace

#: A service whose SLO fewer requests meet is said to miss it.
SLO_TARGET = 0.99


@dataclass(frozen=True)
class Answer:
    """Which policy to run.

    Attributes
    ----------
    policy : str
        The reference where nothing is surely better.
    tied : tuple of str
        Policies that would do as well.
    undecided : tuple of str
        Policies that gain as much or more and come close to a guard; see `Winner`.
    loads : tuple of str
        Where it is surely better.
    by_load : mapping of str to (str or None)
        The policy to run at one load alone; None for the reference.
    goals : tuple of Winner
        Who wins for each goal that is defined.
    traffic : str
        What the engine carries, the trace's own rate, and what each load comes to.
    sentences : tuple of str
        The first names the policy and where it holds.
    """

    policy: str
    tied: tuple[str, ...]
    undecided: tuple[str, ...]
    loads: tuple[str, ...]
    by_load: Mapping[str, str | None]
    goals: tuple[Winner, ...]
    traffic: str
    sentences: tuple[str, ...]


def answer(
    standings: Sequence[Standing],
    rows: Sequence[LoadRow],
    evaluation: Evaluation,
    trace: Trace,
    goal: Goal,
    step: float,
    chosen: Mapping[str, str],
    others: Sequence[Standing] = (),
) -> Answer:
    """Name the policy to run, and say in sentences why, where and how surely.

    Parameters
    ----------
    standings : sequence of Standing
        As `judge` returns them.
    rows : sequence of LoadRow
    evaluation : Evaluation
    trace : Trace
    goal : Goal
    step : float
        Seconds of the shortest step: a load at which FCFS queues for less is idle.
    chosen : mapping of str to str
        By policy, how its parameter was chosen.
    others : sequence of Standing, optional
        Values of parameters that were not chosen.
    """
    found = winner(standings, goal, others=others)
    best = next(one for one in standings if one.policy.name == found.policy)
    loads = {load.name: load for load in evaluation.loads}
    base = {row.load: row for row in rows if row.policy == REFERENCE}
    better = tuple(
        load for load in loads if found.policy != REFERENCE and best.better_at(goal, load)
    )
    idle = [load for load in loads if base[load].metrics["queued_time_mean"] < step]
    by_load = {}
    for load in loads:
        name = winner(standings, goal, [load]).policy
        by_load[load] = None if name == REFERENCE or load in idle else name
    goals = tuple(
        winner(standings, each, others=others)
        for each in GOALS.values()
        if math.isfinite(standings[0].gain[each.name].change)
    )
    sentences = [_headline(best, found, goal, loads, better)]
    if chosen.get(best.policy.name):
        sentences.append(f"{best.policy.name}: {chosen[best.policy.name]}.")
    if found.policy != REFERENCE:
        sentences += [_costs(best, loads[load]) for load in better]
        same = [load for load in loads if load not in better]
        if same:
            sentences.append(f"At {listed(same)} it is not surely better.")
    sentences += _undecided(standings, others, found)
    sentences += _why_not(standings, best, found, goal)
    sentences += _at_one_load(standings, goal, by_load, best)
    missed = [
        f"{load} ({numbers.share(row.metrics['slo_attainment'])} met)"
        for load, row in base.items()
        if row.metrics["slo_attainment"] < SLO_TARGET
    ]
    if missed:
        sentences.append(f"{REFERENCE} already misses its SLO at {listed(missed)}.")
    if idle:
        sentences.append(
            f"At {listed(idle)} {REFERENCE} queues for less than one step, so no order can matter."
        )
    num_windows = base[next(iter(loads))].wins + base[next(iter(loads))].ties
    if num_windows < MIN_WINDOWS:
        plural = "s" if num_windows > 1 else ""
        sentences.append(
            f"Only {num_windows} window{plural} of requests: a hint, not evidence, which takes "
            f"{MIN_WINDOWS} and more."
        )
    if trace.origin.kind == "modelled":
        sentences.append("The traffic is modelled: confirm this on a trace of your own.")
    sentences.append(other_goals(goals))
    return Answer(
        policy=found.policy,
        tied=found.tied,
        undecided=found.undecided,
        loads=better,
        by_load=by_load,
        goals=goals,
        traffic=_traffic(evaluation, trace),
        sentences=tuple(sentences),
    )


def _headline(
    best: Standing,
    found: Winner,
    goal: Goal,
    loads: Mapping[str, Offered],
    better: Sequence[str],
) -> str:
    label = goal.statistic.label
    if found.policy == REFERENCE:
        where = "at the trace's own rate and at every other load" if OWN.name in loads else ""
        return (
            f"Stay with {REFERENCE}: {where or 'at every load'} no order surely improves {label} "
            "without breaking a guard."
        )
    tied = f" ({listed(list(found.tied))} would do as well)" if found.tied else ""
    changes = {load: best.loads[load].changes[goal.statistic.name] for load in better}
    said = [f"{_change(goal, changes[load])} at {load}" for load in better]
    if OWN.name in loads and OWN.name not in better:
        return (
            f"At the trace's own rate no order is surely better than {REFERENCE}. At "
            f"{listed(list(better))} run {best.policy.name}{tied}: {label} {listed(said)}; no "
            "guard broken."
        )
    return f"Run {best.policy.name}{tied}: {label} {listed(said)}; no guard broken."


def _traffic(evaluation: Evaluation, trace: Trace) -> str:
    own = evaluation.own
    tokens = float(trace.prompt_len.mean()), float(trace.output_len.mean())
    return (
        f"This engine carries {numbers.number(own.rate / own.rho)} requests/s of this traffic "
        f"under {REFERENCE}; the trace's own rate is {numbers.number(own.rate)} requests/s (rho "
        f"{own.rho:.2f}; {own.rate * tokens[0]:,.0f} prompt and {own.rate * tokens[1]:,.0f} output "
        f"tokens/s). Loads: {', '.join(map(describe_load, evaluation.loads))}."
    )


#: What a sentence about one load tells, in this order.
_TOLD = ("ttft_mean", "ttft_p99", "e2el_mean", "tpot_p99", "output_throughput", "slo_attainment")


def _costs(best: Standing, load: Offered) -> str:
    """Say what a policy does to all that an operator watches at one load."""
    parts = []
    for name in _TOLD:
        change = best.loads[load.name].changes[name]
        if not math.isfinite(change.change):
            continue
        statistic = STATISTICS[name]
        by = (
            numbers.change(change.change)
            if statistic.relative
            else f"{numbers.points(change.change)}"
        )
        parts.append(f"{statistic.label} {by} to {describe_value(name, change.value)}")
    return f"At {load.name}: {', '.join(parts)}."


def _undecided(
    standings: Sequence[Standing], others: Sequence[Standing], found: Winner
) -> list[str]:
    """Name what gains as much as the winner and is neither surely safe nor surely not."""
    by_name = {one.policy.name: one for one in (*standings, *others)}
    told = []
    for name in found.undecided[:2]:
        one = by_name[name]
        share = f"guards hold in {one.held_share(list(one.loads)):.0%} of draws of windows"
        chosen = "" if one in standings else ", not the value that other windows chose"
        told.append(f"{name} ({share}{chosen})")
    if not told:
        return []
    if len(found.undecided) > 2:
        told.append(f"{len(found.undecided) - 2} more")
    gains = "gains" if len(told) == 1 else "gain"
    return [f"Undecided: {listed(told)} {gains} as much or more; more windows decide."]


def _why_not(standings: Sequence[Standing], best: Standing, found: Winner, goal: Goal) -> list[str]:
    """Say what keeps the policies with a larger gain from being the answer: the two best."""
    others = sorted(
        (
            one
            for one in standings
            if one.worth(goal) > max(best.worth(goal), MARGIN)
            and one.policy.name not in found.undecided
        ),
        key=lambda one: -one.worth(goal),
    )
    sentences = []
    for one in others[:2]:
        gain = f"{one.policy.name} has more gain ({_change(goal, one.gain[goal.name])})"
        if one.kind == "oracle":
            sentences.append(f"{gain} but knows exact output lengths, which no server does.")
        elif one.kind == "bundle":
            sentences.append(
                f"{gain} but brings its own engine settings; compare it with those settings for "
                "all."
            )
        elif one.broken:
            sentences.append(f"{gain} but breaks guards: {named(one.broken)}.")
        elif one.held_share(list(one.loads)) < HELD_SHARE:
            share = one.held_share(list(one.loads))
            sentences.append(
                f"{gain}, but its guards hold in only {share:.0%} of draws of windows."
            )
        else:
            sentences.append(f"{gain}, but not surely at any load.")
    if len(others) > 2:
        sentences.append(
            f"{len(others) - 2} more have a larger gain and break guards or come too close; the "
            "leaderboard says which."
        )
    return sentences


def _change(goal: Goal, change: Change) -> str:
    form = numbers.change if goal.statistic.relative else numbers.points
    text = form(change.change)
    if math.isfinite(change.low) and math.isfinite(change.high):
        text += f" [{form(change.low)} to {form(change.high)}]"
    return text


def _at_one_load(
    standings: Sequence[Standing],
    goal: Goal,
    by_load: Mapping[str, str | None],
    best: Standing,
) -> list[str]:
    sentences = []
    for load, name in by_load.items():
        if name is None or name == best.policy.name:
            continue
        one = next(one for one in standings if one.policy.name == name)
        change = one.loads[load].changes[goal.statistic.name]
        sentences.append(
            f"If you only run at {load}, {name}: {goal.statistic.label} {_change(goal, change)}."
        )
    return sentences


def other_goals(goals: Sequence[Winner]) -> str:
    """Say who wins for which goal, and whether that is the same for all.

    Examples
    --------
    >>> nothing = Change(0.0, 0.0, 0.0, 0.0, 0.0)
    >>> other_goals([Winner("ttft", "sjf", (), nothing), Winner("tpot", "fcfs", (), nothing)])
    'By goal: sjf for ttft; fcfs for tpot.'
    """
    by_policy: dict[str, list[str]] = {}
    for one in goals:
        by_policy.setdefault(one.policy, []).append(one.goal)
    if len(by_policy) == 1:
        return f"The answer is the same for all goals: {listed([one.goal for one in goals])}."
    told = [f"{policy} for {listed(names)}" for policy, names in by_policy.items()]
    return f"By goal: {'; '.join(told)}."

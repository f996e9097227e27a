"""What a comparison found: rows, who wins for which goal, and the answer in sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queuesmith import numbers
from queuesmith.config import EngineConfig
from queuesmith.evaluation.evaluate import OWN, Evaluation, Offered
from queuesmith.evaluation.goals import GOALS, MARGIN, Goal
from queuesmith.evaluation.judge import (
    HELD_SHARE,
    MIN_WINDOWS,
    REFERENCE,
    BrokenGuard,
    Change,
    Standing,
    Winner,
    winner,
)
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.metrics import METRICS, censored_quantiles
from queuesmith.policies import Policy, get_policy
from queuesmith.traces.trace import Trace

#: Metrics of a load that add up over windows; the others are averaged where they are not pooled.
_SUMS = ("num_preemptions", "num_unfinished", "num_requests", "num_dropped", "num_steps")
#: A service whose SLO fewer requests meet is said to miss it.
SLO_TARGET = 0.99
#: Guards in the order in which a sentence names them: what costs everybody comes first.
_WORST_FIRST = (
    "served",
    "output_throughput",
    "e2el_mean",
    "slo_attainment",
    "ttft_p99",
    "ttft_max",
    "ttft_p999",
)


@dataclass(frozen=True)
class LeaderboardRow:
    """One policy over all loads.

    Attributes
    ----------
    rank : int or None
        Among the policies that may be recommended; None for the others, which stand below.
    policy, summary, kind : str
        Kind is policy, bundle (own engine settings) or oracle (knows what no server does).
    eligible : bool
    gains : mapping of str to Change
        By goal, the mean change over loads.
    wins, ties, losses : int
        Windows of all loads.
    broken : tuple of BrokenGuard
    chosen : str
        How a parameter was chosen; empty when nothing was.
    """

    rank: int | None
    policy: str
    summary: str
    kind: str
    eligible: bool
    gains: Mapping[str, Change]
    wins: int
    ties: int
    losses: int
    broken: tuple[BrokenGuard, ...]
    chosen: str = ""


@dataclass(frozen=True)
class LoadRow:
    """One policy at one load.

    Attributes
    ----------
    policy, load : str
    rho, rate : float
        Offered rate over capacity, and in requests/s.
    metrics : mapping of str to float
        Every one of `METRICS`: TTFT, TPOT, E2EL, ITL and rates pooled over windows, counts added
        up, others averaged. A window without a value leaves the mean without one.
    changes : mapping of str to Change
        Against the reference, by statistic.
    broken : tuple of str
        Names of the guards that are broken here.
    wins, ties, losses : int
        Windows, by the goal.
    p_value : float
        Two-sided sign test over windows, adjusted over loads (Holm).
    """

    policy: str
    load: str
    rho: float
    rate: float
    metrics: Mapping[str, float]
    changes: Mapping[str, Change]
    broken: tuple[str, ...]
    wins: int
    ties: int
    losses: int
    p_value: float


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


def leaderboard(
    standings: Sequence[Standing], goal: Goal, chosen: Mapping[str, str]
) -> list[LeaderboardRow]:
    """Rank the policies that may be recommended by the goal; the others follow without a rank."""
    rows: list[LeaderboardRow] = []
    for place, one in enumerate(standings, start=1):
        rank: int | None = place if one.eligible else None
        if rows and one.eligible and rows[-1].gains[goal.name] == one.gain[goal.name]:
            rank = rows[-1].rank
        each = list(one.loads.values())
        rows.append(
            LeaderboardRow(
                rank=rank,
                policy=one.policy.name,
                summary=one.policy.summary,
                kind=one.kind,
                eligible=one.eligible,
                gains=one.gain,
                wins=sum(row.wins for row in each),
                ties=sum(row.ties for row in each),
                losses=sum(row.losses for row in each),
                broken=tuple(sorted(one.broken, key=_severity)),
                chosen=chosen.get(one.policy.name, ""),
            )
        )
    return rows


def load_rows(standings: Sequence[Standing], evaluation: Evaluation) -> list[LoadRow]:
    """Return one row per policy and load."""
    names = evaluation.cells["policy"].to_numpy()
    regions = evaluation.cells["load"].to_numpy()
    columns = {name: evaluation.cells[name].to_numpy() for name in METRICS}
    rows = []
    for load in evaluation.loads:
        for one in standings:
            mine = (names == one.policy.name) & (regions == load.name)
            metrics = {
                name: float(values[mine].sum() if name in _SUMS else values[mine].mean())
                for name, values in columns.items()
            }
            samples = evaluation.samples[one.policy.name, load.name]
            for latency in ("ttft", "e2el"):
                times = getattr(samples, latency)
                if times is not None:
                    levels = censored_quantiles(times, [0.5, 0.9, 1.0])
                    metrics |= dict(zip((f"{latency}_p50", f"{latency}_p90"), levels, strict=False))
                    if f"{latency}_max" in metrics:
                        metrics[f"{latency}_max"] = levels[2]
            beside = one.loads[load.name]
            metrics |= {
                name: change.value
                for name, change in beside.changes.items()
                if name in metrics and not name.endswith("_max")
            }
            rows.append(
                LoadRow(
                    policy=one.policy.name,
                    load=load.name,
                    rho=load.rho,
                    rate=load.rate,
                    metrics=metrics,
                    changes=beside.changes,
                    broken=tuple(broken.guard for broken in beside.broken),
                    wins=beside.wins,
                    ties=beside.ties,
                    losses=beside.losses,
                    p_value=beside.p_value,
                )
            )
    return rows


def answer(
    standings: Sequence[Standing],
    rows: Sequence[LoadRow],
    evaluation: Evaluation,
    trace: Trace,
    goal: Goal,
    step: float,
    chosen: Mapping[str, str],
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
    """
    found = winner(standings, goal)
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
        winner(standings, each)
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
            sentences.append(f"At {_listed(same)} it is not surely better.")
    sentences += _undecided(standings, found)
    sentences += _why_not(standings, best, found, goal)
    sentences += _at_one_load(standings, goal, by_load, best)
    missed = [
        f"{load} ({numbers.share(row.metrics['slo_attainment'])} met)"
        for load, row in base.items()
        if row.metrics["slo_attainment"] < SLO_TARGET
    ]
    if missed:
        sentences.append(f"{REFERENCE} already misses its SLO at {_listed(missed)}.")
    if idle:
        sentences.append(
            f"At {_listed(idle)} {REFERENCE} queues for less than one step, so no order can matter."
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
    tied = f" ({_listed(list(found.tied))} would do as well)" if found.tied else ""
    changes = {load: best.loads[load].changes[goal.statistic.name] for load in better}
    said = [f"{_change(goal, changes[load])} at {load}" for load in better]
    if OWN.name in loads and OWN.name not in better:
        return (
            f"At the trace's own rate no order is surely better than {REFERENCE}. At "
            f"{_listed(list(better))} run {best.policy.name}{tied}: {label} {_listed(said)}; no "
            "guard broken."
        )
    return f"Run {best.policy.name}{tied}: {label} {_listed(said)}; no guard broken."


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


def _undecided(standings: Sequence[Standing], found: Winner) -> list[str]:
    """Name what gains as much as the winner and is neither surely safe nor surely not."""
    shares = {one.policy.name: one.held_share(list(one.loads)) for one in standings}
    told = [f"{name} ({shares[name]:.0%})" for name in found.undecided]
    if not told:
        return []
    gains = "gains" if len(told) == 1 else "gain"
    return [
        f"Undecided: {_listed(told)} {gains} as much or more and would be named if guards held in "
        f"at least {HELD_SHARE:.0%} of draws of windows."
    ]


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


def _severity(broken: BrokenGuard) -> tuple[int, str]:
    place = _WORST_FIRST.index(broken.guard) if broken.guard in _WORST_FIRST else len(_WORST_FIRST)
    return place, broken.load


def named(broken: Sequence[BrokenGuard]) -> str:
    """Name the worst case of each guard, the gravest guards first; at most four."""
    worst: dict[str, BrokenGuard] = {}
    for one in sorted(broken, key=lambda each: -each.excess):
        worst.setdefault(one.guard, one)
    ordered = sorted(worst.values(), key=_severity)
    told = [describe_broken(one) for one in ordered[:4]]
    if len(ordered) > 4:
        told.append(f"{len(ordered) - 4} more")
    return "; ".join(told)


def describe_broken(one: BrokenGuard) -> str:
    """Say which statistic went from what to what, at which load."""
    before, after = (
        describe_value(one.guard, value) for value in (one.change.reference, one.change.value)
    )
    if before.partition(" ")[2] == after.partition(" ")[2]:
        before = before.partition(" ")[0]
    return f"{one.label} {before} -> {after} at {one.load}"


def describe_value(name: str, value: float) -> str:
    """Return a statistic's value with its unit."""
    statistic = STATISTICS.get(name)
    unit = "s" if statistic is None else statistic.unit
    if unit == "share":
        return numbers.share(value)
    if unit == "s" and abs(value) < 1:
        return f"{numbers.number(value, 1000)} ms"
    return f"{numbers.number(value)} {'times' if unit == 'x' else unit}"


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
        return f"The answer is the same for all goals: {_listed([one.goal for one in goals])}."
    told = [f"{policy} for {_listed(names)}" for policy, names in by_policy.items()]
    return f"By goal: {'; '.join(told)}."


def describe_load(load: Offered) -> str:
    """Return a load as name, rho and requests/s."""
    return f"{load.name} (rho {load.rho:.2f}, {numbers.number(load.rate)}/s)"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def warnings(
    policies: Sequence[Policy],
    config: EngineConfig,
    trace: Trace,
    evaluation: Evaluation,
    num_windows: int,
    asked_windows: int,
    window_len: int,
) -> list[str]:
    """Say what limits the answer, beginning with what limits it most."""
    found = []
    if num_windows < MIN_WINDOWS:
        limit = (
            "there is no interval and nothing can be recommended"
            if num_windows == 1
            else f"sign tests need {MIN_WINDOWS}, and intervals over so few are rough"
        )
        found.append(f"only {num_windows} windows of {window_len} requests: {limit}")
    elif num_windows < asked_windows:
        found.append(
            f"the trace has room for {num_windows} windows of {window_len} requests, not the "
            f"{asked_windows} asked for"
        )
    if window_len < 1000:
        found.append(
            f"windows of {window_len} requests hold {window_len / 100:g} beyond their p99; use "
            "1000 and more to judge tails"
        )
    if trace.block_hashes is not None and not config.enable_prefix_caching:
        found.append(
            "the trace knows which prompts begin alike, but prefix caching is off: "
            '--engine-args "--enable-prefix-caching" turns it on, as vLLM has it'
        )
    if config.scheduling_policy == "priority" and get_policy("fcfs") in policies:
        found.append(
            "fcfs is vLLM as it runs with --scheduling-policy priority: the lower priority first, "
            "then in order of arrival"
        )
    if evaluation.num_dropped:
        found.append(
            f"{evaluation.num_dropped} requests can never run on this engine (longer than "
            "max_model_len or the KV cache) and were left out for every policy"
        )
    if evaluation.num_truncated:
        found.append(
            f"{evaluation.num_truncated} outputs were cut where the context window or the "
            "client's max_tokens ends them"
        )
    fair = [policy.name for policy in policies if policy.reads_field("request.client_tokens")]
    if trace.client is None and fair:
        found.append(
            f"the trace names no clients for {_listed(fair)} to be fair to: each request is a "
            "client of its own"
        )
    return found

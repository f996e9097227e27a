"""An A/B measurement as text: sentences, and the cells of its tables."""

from collections.abc import Sequence

from queuesmith import numbers
from queuesmith.deploy.ab import STOCK
from queuesmith.deploy.verdict import LoadVerdict, Measurement
from queuesmith.evaluation.describe import describe_broken
from queuesmith.evaluation.goals import Guard
from queuesmith.evaluation.judge import Change
from queuesmith.evaluation.statistics import STATISTICS

VERDICTS = {
    "better": "is better than stock vLLM",
    "mixed": "is better in some numbers and worse in others than stock vLLM",
    "worse": "is worse than stock vLLM",
    "same": "is as good as stock vLLM",
    "unsure": "differs from stock vLLM, and it may be chance",
    "withheld": "cannot be judged against stock vLLM",
}
#: Statistics that a sentence names of each kind.
_MOST_NAMED = 4


def sentences(measurement: Measurement, row: LoadVerdict) -> list[str]:
    """Say what was found at one load: the verdict first, then what to know about it."""
    policy, goal = measurement.config["candidate"], measurement.goal.statistic
    where = describe_load(row)
    first = f"{where}: {policy} {VERDICTS[row.verdict]}"
    change = row.changes.get(goal.name)
    if row.verdict == "mixed":
        costs = [one for one in row.worse if one == goal.name]
        worse = [*_changes(row, costs), *map(describe_broken, row.broken)]
        first += f": better in {_few(_changes(row, row.better))}; worse in {_few(worse)}"
    elif row.verdict == "worse":
        own = [_said(goal.name, change)] if change and goal.name in row.worse else []
        first += f": {_few([*own, *map(describe_broken, row.broken)])}"
    elif change:
        first += f": {_said(goal.name, change)}"
    found = [f"{first}."]
    if row.verdict == "better":
        others = [name for name in row.better if name != goal.name]
        if others:
            found.append(f"{row.load}: also better: {_few(_changes(row, others))}.")
    within = [
        name
        for name in row.worse
        if name != goal.name and name not in {one.guard for one in row.broken}
    ]
    if within and row.verdict != "withheld":
        found.append(
            f"{row.load}: worse, but by no more than is allowed: {_few(_changes(row, within))}."
        )
    if row.reason:
        found.append(f"{row.load}: {row.reason}.")
    simulated = [
        f"{arm} {numbers.number(state.simulated_ttft_mean)} s (measured {numbers.number(ttft)} s)"
        for (arm, state), ttft in zip(row.arms.items(), _mean_ttft(row), strict=True)
        if state.simulated_ttft_mean == state.simulated_ttft_mean
    ]
    if simulated:
        found.append(f"{row.load}: mean TTFT as simulated: {', '.join(simulated)}.")
    return found


def _mean_ttft(row: LoadVerdict) -> list[float | None]:
    change = row.changes.get("ttft_mean")
    return [None, None] if change is None else [change.reference, change.value]


def describe_load(row: LoadVerdict) -> str:
    """Return a load as name, rho where it is known, and requests/s."""
    rho = f"rho {row.rho:.2f}, " if row.rho == row.rho else ""
    return f"{row.load} ({rho}{numbers.number(row.rate)}/s)"


def _changes(row: LoadVerdict, names: Sequence[str]) -> list[str]:
    return [_said(name, row.changes[name], brief=True) for name in names]


def _few(parts: Sequence[str]) -> str:
    told = ", ".join(parts[:_MOST_NAMED])
    left = len(parts) - _MOST_NAMED
    return f"{told} and {left} more" if left > 0 else told


def _said(name: str, change: Change, *, brief: bool = False) -> str:
    ends = "" if brief else _interval(name, change)
    return f"{STATISTICS[name].label} {_change(name, change)}" + (f" [{ends}]" if ends else "")


def _change(name: str, change: Change) -> str:
    form = numbers.change if STATISTICS[name].relative else numbers.points
    return form(change.change)


def _interval(name: str, change: Change) -> str:
    if change.low != change.low or change.high != change.high:
        return ""
    if STATISTICS[name].relative:
        return numbers.interval(change.low, change.high)
    return f"{numbers.points(change.low).removesuffix(' points')} to {numbers.points(change.high)}"


def _value(name: str, value: float) -> str:
    if STATISTICS[name].unit == "share":
        return numbers.share(value)
    return numbers.number(value, 1000 if name.startswith(("tpot", "itl")) else 1)


def _label(name: str) -> str:
    if name == "output_throughput":
        return "output tokens/s"
    unit = {"s": ", s", "requests/s": ", /s"}.get(STATISTICS[name].unit, "")
    return STATISTICS[name].label + (", ms" if name.startswith(("tpot", "itl")) else unit)


def metric_rows(measurement: Measurement, row: LoadVerdict) -> list[tuple[str, ...]]:
    """Return the table of a load as text: one line per statistic, and per broken class guard.

    Columns: statistic; stock; policy; change; its 95 % interval; what is allowed; and better, worse
    or broken, where that is sure.
    """
    margins = {guard.name: guard for guard in measurement.guards}
    broken = {one.guard for one in row.broken}
    rows: list[tuple[str, ...]] = []
    for name, change in row.changes.items():
        mark = "broken" if name in broken else ""
        mark = mark or ("better" if name in row.better else "worse" if name in row.worse else "")
        rows.append(
            (
                _label(name),
                _value(name, change.reference),
                _value(name, change.value),
                _change(name, change),
                _interval(name, change),
                _allowed(margins[name]) if name in margins else "",
                mark,
            )
        )
    rows += [
        (
            f"{one.label}, s",
            numbers.number(one.change.reference),
            numbers.number(one.change.value),
            numbers.change(one.change.change),
            numbers.interval(one.change.low, one.change.high),
            _allowed(margins[one.guard]),
            "broken",
        )
        for one in row.broken
        if one.guard not in row.changes
    ]
    return rows


def _allowed(guard: Guard) -> str:
    statistic = STATISTICS.get(guard.name)
    sign = -1 if statistic is not None and statistic.better == "higher" else 1
    if statistic is not None and not statistic.relative:
        return numbers.points(sign * guard.margin)
    return numbers.change(sign * guard.margin)


def metric_heads(policy: str) -> tuple[str, ...]:
    """Return the headings of `metric_rows`."""
    return ("", STOCK, policy, "change", "95 % interval", "allowed", "")


#: Heading, field of `ArmRun` and factor of each number of a run.
_RUN_COLUMNS = (
    ("mean TTFT s", "ttft_mean", 1),
    ("p99 TTFT s", "ttft_p99", 1),
    ("mean TPOT ms", "tpot_mean", 1000),
    ("mean E2EL s", "e2el_mean", 1),
    ("out tokens/s", "output_throughput", 1),
    ("step ms", "ms_per_step", 1),
)
RUN_HEADS = ("load", "window repeat", "arm", *(name for name, _, _ in _RUN_COLUMNS), "failed")


def run_rows(measurement: Measurement) -> list[tuple[str, ...]]:
    """Return the table of runs as text, under `RUN_HEADS`."""
    return [
        (
            run.load,
            f"{run.window}-{run.repeat}",
            arm,
            *(numbers.number(getattr(one, name), scale) for _, name, scale in _RUN_COLUMNS),
            numbers.count(one.num_failed),
        )
        for run in measurement.outcome.runs
        for arm, one in run.arms.items()
    ]

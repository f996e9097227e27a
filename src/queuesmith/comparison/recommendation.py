"""One answer for an operator: what to run on this traffic, at its own rate, or nothing."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from queuesmith import numbers
from queuesmith.checking import Check, check, corrected_preset
from queuesmith.comparison.compare import DEFAULT_SLO, DEFAULT_WINDOWS, Comparison, compare
from queuesmith.config import Slo
from queuesmith.engine.presets.step_time import Preset
from queuesmith.evaluation.goals import DEFAULT_GOAL, GUARDS, LEAST_FOR_P999, MARGIN
from queuesmith.evaluation.judge import REFERENCE, Change
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.traces.trace import Trace

SCHEMA = "queuesmith.recommend/1"
#: Windows that a short log is cut into, so that there is an interval at all.
_NUM_WINDOWS = 16


@dataclass(frozen=True)
class Cost:
    """One statistic under the recommended policy.

    Attributes
    ----------
    name, label, unit : str
    change : Change
        Against the server as it is.
    """

    name: str
    label: str
    unit: str
    change: Change


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to run.

    Attributes
    ----------
    policy : str
        The reference: stay as you are.
    sentences : tuple of str
        The answer, then whether the simulator holds on this log.
    costs : tuple of Cost
        Everything that an operator watches, under the policy; empty for the reference.
    command : str
        Tries the policy on a server without ordering anything by it; empty for the reference.
    comparison : Comparison
    checked : Check or None
        None where the log has no latencies.
    preset : Preset
        The engine that was simulated, corrected where the log told how.
    """

    policy: str
    sentences: tuple[str, ...]
    costs: tuple[Cost, ...]
    command: str
    comparison: Comparison
    checked: Check | None
    preset: Preset


def recommend(
    trace: Trace,
    preset: Preset,
    *,
    engine_args: str = "",
    slo: Slo | None = DEFAULT_SLO,
    goal: str = DEFAULT_GOAL,
    seed: int = 0,
    num_workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    notes: Sequence[str] = (),
) -> Recommendation:
    """Check the simulator against a log and say what to run at the log's own rate.

    Parameters
    ----------
    trace : Trace
        With measured latencies the simulator is checked first, and its step times corrected where
        one factor explains the difference.
    preset : Preset
    engine_args : str
        The user's own, for the command at the end.
    slo : Slo, optional
    goal : str
        See :data:`queuesmith.evaluation.goals.GOALS`.
    seed : int
        Of windows, predictions and bootstrap.
    num_workers : int, optional
    progress : callable, optional
        Called with the number of finished runs and of all runs.
    notes : sequence of str
        Further warnings.

    Raises
    ------
    QueuesmithError
        If an argument makes no sense, or the trace cannot be run.
    """
    checked, said = None, "The log has no latencies, so the simulator was not checked against it."
    if trace.measured is not None:
        checked = check(trace, REFERENCE, engine=preset, seed=seed)
        preset, said = _corrected(checked, preset)
    window_len = max(min(1000, len(trace) // _NUM_WINDOWS), 50)
    num_requests = min(DEFAULT_WINDOWS, len(trace) // window_len) * window_len
    # Nothing may get worse beyond a tie, whatever margins a comparison allows.
    guards = [
        f"{guard.name}={min(guard.margin, MARGIN)}"
        for guard in GUARDS
        if guard.name != "ttft_p999" or num_requests >= LEAST_FOR_P999
    ]
    comparison = compare(
        trace,
        loads="own",
        engine=preset,
        slo=slo,
        goal=goal,
        guards=guards,
        window_len=window_len,
        seed=seed,
        num_workers=num_workers,
        progress=progress,
        notes=notes,
    )
    policy = comparison.answer.policy
    label = comparison.goal.statistic.label
    if policy == REFERENCE:
        first = (
            f"Stay as you are: at this log's own rate no other order surely improves {label} "
            "without making anything else worse."
        )
        return Recommendation(policy, (first, said), (), "", comparison, checked, preset)
    row = next(row for row in comparison.loads if row.policy == policy)
    costs = tuple(
        Cost(name, one.label, one.unit, row.changes[name])
        for name, one in STATISTICS.items()
        if row.changes[name].value == row.changes[name].value
    )
    change = row.changes[comparison.goal.statistic.name]
    form = numbers.change if comparison.goal.statistic.relative else numbers.points
    first = (
        f"Try {policy}: at this log's own rate {label} {form(change.change)} "
        f"[{form(change.low)} to {form(change.high)}], and nothing else that an operator watches "
        "gets surely worse."
    )
    command = serve_command(engine_args, policy)
    return Recommendation(policy, (first, said), costs, command, comparison, checked, preset)


def _corrected(checked: Check, preset: Preset) -> tuple[Preset, str]:
    """Return the engine to go on with, and a sentence about how well it fits."""
    document = checked.document
    verdict = str(document["answer"]["sentences"][0])
    corrected = corrected_preset(checked, preset)
    if corrected is not None:
        return corrected, (
            f"{verdict} Step times were multiplied by {document['scale']['factor']:.2f}, which "
            "explains the difference."
        )
    told = "".join(f" {each['text'][0].upper()}{each['text'][1:]}." for each in document["advice"])
    return preset, f"{verdict}{told}"


def serve_command(engine_args: str, policy: str) -> str:
    """Return the command that tries a policy on a server without ordering anything by it.

    Examples
    --------
    >>> serve_command("vllm serve org/model --max-num-seqs 64", "sjf")
    'queuesmith serve org/model --max-num-seqs 64 --policy sjf --shadow'
    >>> serve_command("--max-num-seqs 64", "sjf")
    'queuesmith serve MODEL --max-num-seqs 64 --policy sjf --shadow'
    """
    words = shlex.split(engine_args)
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    if not words or words[0].startswith("-"):
        words = ["MODEL", *words]
    return shlex.join(["queuesmith", "serve", *words, "--policy", policy, "--shadow"])


def to_json(found: Recommendation) -> dict[str, object]:
    """Return what ``--json`` prints, less what the comparison's and the check's documents say."""
    return {
        "schema": SCHEMA,
        "policy": found.policy,
        "sentences": list(found.sentences),
        "costs": [asdict(cost) for cost in found.costs],
        "command": found.command,
        "engine": found.preset.name,
        "step_time": asdict(found.preset.step_time),
        "comparison": found.comparison.to_json(),
        "check": None if found.checked is None else found.checked.document,
    }

"""Gate G4: what a search has found beside what random search finds with as many evaluations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.evolve.candidate import text_sha256
from queuesmith.evolve.gates.gate import Gate, finite, make_gate, not_run
from queuesmith.evolve.gates.measurements import Bench
from queuesmith.evolve.scoring.standing import Difference
from queuesmith.policies import Policy
from queuesmith.stats.intervals import Draws

#: Seeds of search and control that it takes.
MIN_SEEDS = 5


@dataclass(frozen=True)
class Pair:
    """What search and control found with one seed, and how many evaluations each has used.

    `search` and `control` are texts, empty where nobody survived, which counts as FCFS.
    """

    seed: int
    search: str
    control: str
    search_evaluations: int
    control_evaluations: int


def control(
    policy: Policy, bench: Bench, pairs: Sequence[Pair], load: Callable[[str, str], Policy]
) -> Gate:
    """G4: better than random search with as many evaluations, on validation windows.

    Notes
    -----
    The policy is held against the mean gain of the controls; and if the search found it, so is the
    mean gain of what the search found with the same seeds, since one lucky seed of five proves
    little. What breaks a guard would not be run, and counts as FCFS. A draw takes windows, and
    seeds, with replacement.
    """
    if not pairs:
        return not_run("G4", "there is no run with a control; judge the folder of a run")
    rows = [
        asdict(pair) | {"search": text_sha256(pair.search), "control": text_sha256(pair.control)}
        for pair in pairs
    ]
    short = [pair.seed for pair in pairs if pair.control_evaluations < pair.search_evaluations]
    mine = bench.candidate(policy, "validation").beside.gain

    def draws(text: str, name: str) -> NDArray[np.float64]:
        fcfs = bench.fcfs("validation")
        found = bench.candidate(load(name, text), "validation") if text else fcfs
        beside = found.beside
        return beside.gain.values if beside.clean else np.zeros_like(beside.gain.values)

    controls = np.array([draws(pair.control, f"control_{pair.seed}") for pair in pairs])
    against = {"policy": _over_seeds(mine.values - controls, mine.num_units)}
    searched = [pair.search for pair in pairs]
    if policy.source in searched:
        found = np.array([draws(pair.search, f"search_{pair.seed}") for pair in pairs])
        against["search"] = _over_seeds(found - controls, mine.num_units)
    saw = {
        "seeds": rows,
        "control_scores": controls[:, 0].tolist(),
        "score": mine.estimate,
        **{f"{name}_less_control": asdict(value) for name, value in against.items()},
    }
    told = "; ".join(f"{name} less control {value}" for name, value in against.items())
    if len(pairs) < MIN_SEEDS:
        sentence = f"{len(pairs)} seed(s) of the {MIN_SEEDS} that it takes ({told})"
        return make_gate("G4", False, sentence, **saw)
    if short:
        sentence = f"the control had fewer evaluations than the search with seed(s) {short}"
        return make_gate("G4", False, sentence, **saw)
    passed = all(value.sure for value in against.values())
    word = "better" if passed else "not surely better"
    sentence = f"{word} than random search with as many evaluations: {told}"
    return make_gate("G4", passed, sentence, **saw)


def _over_seeds(differences: NDArray[np.float64], num_windows: int) -> Difference:
    """Average over seeds; each draw of windows takes seeds with replacement as well."""
    num_seeds, columns = differences.shape
    rng = np.random.default_rng(0)
    taken = rng.integers(0, num_seeds, (columns - 1, num_seeds))
    drawn = differences[taken, np.arange(1, columns)[:, None]].mean(axis=1)
    values = np.concatenate([[differences[:, 0].mean()], drawn])
    return Difference.of(Draws(values, num_windows))


def compete(texts: Mapping[int, Policy], bench: Bench) -> list[dict[str, Any]]:
    """Rank what the seeds found: those that break no guard first, then by gain on validation."""
    measured = [bench.candidate(each, "validation") for each in texts.values()]
    rows = []
    for seed, one in zip(texts, measured, strict=True):
        rows.append(
            {"seed": seed, "policy_sha256": one.policy.sha256}
            | asdict(Difference.of(one.beside.gain))
            | {"broken_guards": len(one.beside.broken)}
        )
    return sorted(
        rows, key=lambda row: (row["broken_guards"] > 0, -finite(row["value"]), row["seed"])
    )

"""Policies on all windows and loads of a run, part by part; and how one stands beside another.

Held-out windows are served only once their opening is in the ledger.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from queuesmith.backends import Backend
from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import CompiledPolicy, compile_policy
from queuesmith.engine.step_time import Preset
from queuesmith.evolve.config import EvolveConfig
from queuesmith.evolve.ledger import HeldOut, Opening
from queuesmith.evolve.tuning import REFERENCE, Traffic, prepare_traffic
from queuesmith.metrics import queued_time, ttft
from queuesmith.policies import Policy, get_policy
from queuesmith.score import (
    MARGIN,
    Configuration,
    Sample,
    improvement,
    load_tests,
    ratio_to,
    score,
    tail_violation,
    term_columns,
)
from queuesmith.stats import (
    bootstrap_weights,
    interval,
    pooled_mean_draws,
    pooled_quantile_draws,
)
from queuesmith.window_sets import WindowSet
from queuesmith.windows import Window

#: Of every interval.
DRAWS = 10_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """What a policy did in every configuration of a part.

    Attributes
    ----------
    policy : Policy
    samples : mapping of Configuration to Sample
    queued, step : mapping of Configuration to float
        Mean queued time of a request and mean length of a step, s.
    """

    policy: Policy
    samples: Mapping[Configuration, Sample]
    queued: Mapping[Configuration, float]
    step: Mapping[Configuration, float]


@dataclass(frozen=True, eq=False)
class Part:
    """Prepared windows of one part on one engine."""

    traffic: Traffic
    prompt_len: Mapping[Configuration, NDArray[np.int64]]


class Bench:
    """The windows of a run, on its engine and on the second one; nothing is run twice.

    Parameters
    ----------
    config : EvolveConfig
    window_set : WindowSet
        With its folder, as `queuesmith.evolve.traffic.freeze_windows` returns it.
    workers : int, optional
        Threads; all cores when left out. The numbers are the same for any choice.
    progress : callable, optional
        Called with what is being measured.
    """

    def __init__(
        self,
        config: EvolveConfig,
        window_set: WindowSet,
        *,
        workers: int | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.config, self.window_set = config, window_set
        self._workers = Backend.choose("threading", workers).num_workers
        self._progress = progress
        self._windows: dict[str, list[Window]] = {}
        self._parts: dict[tuple[str, str], Part] = {}
        self._measured: dict[tuple[str, str, str], Measured] = {}
        self._opened = ""

    @property
    def sources(self) -> dict[str, str]:
        """Whether each source is real or modelled traffic."""
        return {
            source.file: "modelled" if source.file.endswith("@model") else "real"
            for source in self.window_set.sources
        }

    def load(self, part: str) -> list[Window]:
        """Read the windows of a part, and run nothing on them.

        Raises
        ------
        QueuesmithError
            If the set has none, or a source is missing or changed.
        """
        if part not in self._windows:
            self._windows[part] = self.window_set.windows(part)
        return self._windows[part]

    def unlock(self, opening: Opening) -> None:
        """Let the held-out windows be run on, for which the opening is in a ledger."""
        self._opened = str(opening.entry["windows_sha256"])

    def num_windows(self, part: str) -> dict[str, int]:
        """Count the windows of each source in a part."""
        return {source.file: len(source.parts.get(part, ())) for source in self.window_set.sources}

    def part(self, part: str, engine: Preset | None = None) -> Part:
        """Prepare a part on an engine, the run's own when none is given."""
        if part == "held_out" and self._opened != HeldOut.of(self.window_set).sha256:
            raise RuntimeError("held-out windows are run only after their opening was written down")
        preset = engine or self.config.engine
        key = part, preset.name
        if key not in self._parts:
            names = [
                source.file
                for source in self.window_set.sources
                for _ in source.parts.get(part, ())
            ]
            traffic = prepare_traffic(
                self.load(part),
                names,
                self.config.loads,
                config=preset.config,
                step_time=preset.step_time,
                output_length=self.config.output_length,
                seed=self.config.windows.seed,
            )
            prompts: dict[Configuration, list[NDArray[np.int64]]] = {}
            for configuration, index in _cells(traffic):
                prompts.setdefault(configuration, []).append(
                    traffic.workloads[index].trace.prompt_len
                )
            self._parts[key] = Part(
                traffic, {each: np.concatenate(of) for each, of in prompts.items()}
            )
        return self._parts[key]

    def measure(
        self, policies: Sequence[Policy], part: str, engine: Preset | None = None
    ) -> list[Measured]:
        """Run policies that are trusted to end, in this process; in the order given."""
        preset = engine or self.config.engine
        traffic = self.part(part, engine).traffic
        cells = _cells(traffic)
        for policy in policies:
            key = part, preset.name, policy.sha256
            if key in self._measured:
                continue
            self._progress(f"{policy.name} on {part.replace('_', '-')} windows, {preset.name}")
            compiled = compile_policy(policy)
            runs = Parallel(n_jobs=self._workers, backend="threading")(
                delayed(_run)(traffic, compiled, index) for _, index in cells
            )
            self._measured[key] = _pool(policy, cells, traffic, runs)
        # The same text may be measured under two names.
        found = [self._measured[part, preset.name, policy.sha256] for policy in policies]
        return [replace(one, policy=policy) for one, policy in zip(found, policies, strict=True)]

    def fcfs(self, part: str, engine: Preset | None = None) -> Measured:
        """Measure what everybody is held against."""
        return self.measure([get_policy(REFERENCE)], part, engine)[0]


def _cells(traffic: Traffic) -> list[tuple[Configuration, int]]:
    """Return the configuration and the workload of each cell, window by window in each."""
    cells = [
        (Configuration(traffic.sources[cell.window], cell.load), cell.window, index)
        for index, cell in enumerate(traffic.cells)
    ]
    place = {key: number for number, key in enumerate(dict.fromkeys(key for key, _, _ in cells))}
    cells.sort(key=lambda one: (place[one[0]], one[1]))
    return [(key, index) for key, _, index in cells]


def _run(traffic: Traffic, compiled: CompiledPolicy, index: int) -> tuple[Floats, float, float]:
    result = simulate_workload(
        traffic.workloads[index], compiled, traffic.config, traffic.step_time
    )
    step = result.end_time / max(result.num_steps, 1)
    return ttft(result), float(queued_time(result).mean()), step


def _pool(
    policy: Policy,
    cells: Sequence[tuple[Configuration, int]],
    traffic: Traffic,
    runs: Sequence[tuple[Floats, float, float]],
) -> Measured:
    grouped: dict[Configuration, list[tuple[int, tuple[Floats, float, float]]]] = {}
    for (configuration, index), run in zip(cells, runs, strict=True):
        grouped.setdefault(configuration, []).append((traffic.cells[index].window, run))
    return Measured(
        policy,
        {
            key: Sample(
                np.concatenate([run[0] for _, run in of]),
                np.repeat([window for window, _ in of], [len(run[0]) for _, run in of]),
            )
            for key, of in grouped.items()
        },
        {key: float(np.mean([run[1] for _, run in of])) for key, of in grouped.items()},
        {key: float(np.mean([run[2] for _, run in of])) for key, of in grouped.items()},
    )


def score_draws(
    policy: Mapping[Configuration, Sample], reference: Mapping[Configuration, Sample], seed: int = 0
) -> Floats:
    """Score a policy, then score it again in every bootstrap draw of windows.

    Returns
    -------
    (1 + draws,) float64
        The first is the score. Draws are those of `queuesmith.score.score`, the same ones for every
        policy, so that the difference of two rows is paired. Without draws where a source has a
        single window.
    """
    windows = {key.source: np.unique(sample.window) for key, sample in policy.items()}
    draws = DRAWS if min(map(len, windows.values())) > 1 else 0
    weights = {}
    for source, numbers in windows.items():
        rng = np.random.default_rng([seed, zlib.crc32(source.encode())])
        drawn = bootstrap_weights(len(numbers), draws, rng)
        weights[source] = np.vstack([np.ones((1, len(numbers)), np.int64), drawn])
    total = np.zeros(1 + draws)
    for key, mine in policy.items():
        of = [
            (sample.ttft, np.searchsorted(windows[key.source], sample.window), weights[key.source])
            for sample in (mine, reference[key])
        ]
        mean = ratio_to(*(pooled_mean_draws(*each) for each in of))
        p99 = ratio_to(*(pooled_quantile_draws(*each, 0.99) for each in of))
        with np.errstate(invalid="ignore"):  # one term endlessly good, another endlessly bad: NaN
            total += term_columns(mean, p99)[-1]
    return total


@dataclass(frozen=True)
class Difference:
    """A score less another one, with the 95 % interval over windows; above 0 is better."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Floats) -> "Difference":
        """Read it from an estimate and its draws."""
        return cls(float(draws[0]), *interval(draws[1:]))

    @property
    def sure(self) -> bool:
        """Whether it is above 0, and its interval too; not when the interval is unknown."""
        return self.value > 0 and self.low > 0

    def __str__(self) -> str:
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def difference(one: Measured, other: Measured, fcfs: Measured) -> Difference:
    """Return how much better one policy scores than another on the same windows."""
    with np.errstate(invalid="ignore"):
        draws = score_draws(one.samples, fcfs.samples) - score_draws(other.samples, fcfs.samples)
    return Difference.of(draws)


def standings(measured: Sequence[Measured], fcfs: Measured) -> list[dict[str, Any]]:
    """Return one row for each policy, best score first: total score and tail violations."""
    rows = []
    for one in measured:
        scored = score(one.samples, fcfs.samples, draws=DRAWS)
        rows.append(
            {
                "policy": one.policy.name,
                "policy_sha256": one.policy.sha256,
                "score": scored.value,
                "low": scored.low,
                "high": scored.high,
                "tail_violations": len(violations(one, fcfs)),
                "mean_worse": sum(
                    bool(term.mean_gain < -np.log1p(MARGIN)) for term in scored.terms.values()
                ),
                "num_configurations": len(scored.terms),
            }
        )
    return sorted(rows, key=lambda row: (-np.nan_to_num(row["score"], nan=-np.inf), row["policy"]))


def violations(one: Measured, fcfs: Measured) -> list[str]:
    """Say which tails a policy violates, and how."""
    tails = {
        key: tail_violation(sample, fcfs.samples[key], draws=DRAWS)
        for key, sample in one.samples.items()
    }
    return [
        f"{key.source} at {key.load}: {tail.reason}" for key, tail in tails.items() if tail.violated
    ]


def configuration_rows(one: Measured, fcfs: Measured, part: Part) -> list[dict[str, Any]]:
    """Return one row for each configuration: changes of TTFT with intervals, tails, who pays.

    Changes are relative to FCFS; below 0 is sooner.
    """
    tests = load_tests(one.samples, fcfs.samples)
    rows = []
    for key, mine in one.samples.items():
        base = fcfs.samples[key]
        gain = improvement(mine, base, draws=DRAWS)
        tail = tail_violation(mine, base, draws=DRAWS)
        test = tests[key]
        rows.append(
            {
                "source": key.source,
                "load": key.load,
                "num_windows": len(np.unique(mine.window)),
                "num_requests": len(mine.ttft),
                "idle": fcfs.queued[key] < fcfs.step[key],
                "ttft_mean": float(mine.ttft.mean()),
                "ttft_mean_fcfs": float(base.ttft.mean()),
                # Subtracted from 0, so that no change is 0 and not minus 0.
                "mean_change": 0.0 - gain.mean,
                "mean_change_low": 0.0 - gain.mean_high,
                "mean_change_high": 0.0 - gain.mean_low,
                "p99_change": 0.0 - gain.p99,
                "p99_change_low": 0.0 - gain.p99_high,
                "p99_change_high": 0.0 - gain.p99_low,
                "p999_ratio": tail.p999_ratio,
                "max_ratio": tail.max_ratio,
                "tail_violated": tail.violated,
                "tail_reason": tail.reason,
                "wins": test.wins,
                "ties": test.ties,
                "losses": test.losses,
                "p_value": test.p_holm,
                **_who_pays(mine.ttft, base.ttft, part.prompt_len[key]),
            }
        )
    return rows


_QUARTERS = ("shortest", "second", "third", "longest")


def _who_pays(mine: Floats, base: Floats, prompt_len: NDArray[np.int64]) -> dict[str, Any]:
    """Compare the mean TTFT of each quarter of the requests by prompt length; name the worst off.

    `worse_share` is the share of requests that wait longer by more than 1 % of FCFS's mean.
    """
    order = np.argsort(prompt_len, kind="stable")
    worst, pays = MARGIN, ""
    for name, rows in zip(_QUARTERS, np.array_split(order, 4), strict=True):
        if not len(rows) or not base[rows].mean() > 0:
            continue
        change = float(mine[rows].mean() / base[rows].mean() - 1)
        if change > worst:
            shortest, longest = int(prompt_len[rows].min()), int(prompt_len[rows].max())
            worst, pays = change, f"{name} quarter of prompts ({shortest:,} to {longest:,} tokens)"
    with np.errstate(invalid="ignore"):
        worse = float(np.mean(mine - base > MARGIN * base.mean()))
    return {"pays": pays, "pays_change": worst if pays else 0.0, "worse_share": worse}

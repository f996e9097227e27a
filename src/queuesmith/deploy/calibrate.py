"""Step times of a real engine: drive it, and fit the formula to its steps.

`drive` replays a grid of bursts against a vLLM server that records its steps, and then two
stretches of mixed traffic, of which the second is kept from the fit, to say how far off it is on
steps that it has not seen. `fit_step_time` is robust: a step that the machine was late for hardly
counts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.deploy.replay import Served, Server, replay
from queuesmith.deploy.steps import StepWork
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.workload import Workload, prepare
from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import Load, scale_to_load
from queuesmith.traces.trace import Trace

REGIMES = ("decode", "prefill", "mixed")
#: A block of so many steps in a row goes to one side of a split, since neighbours are alike.
BLOCK = 50
#: Fewer steps than this say too little to fit eight numbers.
MIN_STEPS = 200
#: Relative error from which a step counts as an accident of the machine rather than as a fact.
ACCIDENT = 0.1
#: A step that took so many times what was expected was an accident for certain.
ACCIDENTAL = 3.0
#: Steps of the same work that say how well the machine repeats itself.
MIN_REPEATS = 10
_COEFFICIENTS = ("a", "b1", "b2", "c", "d", "e", "f")


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of an engine.

    Attributes
    ----------
    work : (num_steps, 4) float64
        Columns as in `StepWork`.
    seconds : (num_steps,) float64
    """

    work: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> "Steps":
        """Take steps from a record, less those in which nothing was computed."""
        rows = [
            ([float(record[name]) for name in StepWork._fields], float(record["seconds"]))
            for record in records
            if record["num_prefill_tokens"] or record["num_decodes"]
        ]
        work = np.array([row for row, _ in rows]).reshape(-1, len(StepWork._fields))
        return cls(work, np.array([seconds for _, seconds in rows]))

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, keep: NDArray[np.bool_]) -> "Steps":
        """Return some of the steps."""
        return Steps(self.work[keep], self.seconds[keep])

    def join(self, other: "Steps") -> "Steps":
        """Return these steps and then others."""
        return Steps(
            np.concatenate([self.work, other.work]), np.concatenate([self.seconds, other.seconds])
        )

    @property
    def regime(self) -> NDArray[np.int64]:
        """For each step its place in `REGIMES`."""
        prefill, decode = self.work[:, 0] > 0, self.work[:, 1] > 0
        return np.where(prefill & decode, 2, np.where(prefill, 1, 0))


def split(steps: Steps) -> tuple[Steps, Steps]:
    """Return four blocks in five for the fit, and the fifth, which it does not see."""
    fifth = np.arange(len(steps)) // BLOCK % 5 == 4
    return steps.take(~fifth), steps.take(fifth)


def fit_step_time(steps: Steps, provenance: str) -> StepTime:
    """Fit the coefficients of `StepTime` to measured steps.

    Raises
    ------
    ConfigError
        If there are too few steps.

    Notes
    -----
    For each of some values of `t0` the formula is linear in its coefficients, none negative; they
    minimise the sum of ``soft_l1`` of the relative errors, which grows like their square for small
    errors and like their size for large ones. The best `t0` is kept; where it hardly helps (less
    than 1 % of the loss) there is no bend at all. Steps are late more often than early, so such a
    fit lies below their mean, of which queues are made: in the end all coefficients are multiplied
    so that the formula's seconds add up to those measured, over all steps but accidents.
    """
    from scipy.optimize import least_squares  # half a second that no other command should pay

    if len(steps) < MIN_STEPS:
        raise ConfigError(
            f"{len(steps):,} steps are too few to fit step times to; record at least {MIN_STEPS:,}"
        )

    def fit(t0: float) -> tuple[float, NDArray[np.float64]]:
        columns = _columns(steps.work, t0) / steps.seconds[:, None]
        size = columns.max(axis=0)  # so that all unknowns are of one size
        size[size == 0] = np.inf  # a coefficient that no step shows stays 0
        start = np.full(columns.shape[1], 1.0 / columns.shape[1])
        found = least_squares(
            lambda x: (columns / size) @ x - 1.0,
            start,
            jac=lambda x: columns / size,
            bounds=(0.0, np.inf),
            loss="soft_l1",
            f_scale=ACCIDENT,
            max_nfev=200,
        )
        return float(found.cost), found.x / size

    best_cost, best = fit(0.0)
    best_t0 = 0.0
    straight = best_cost
    total = steps.work[:, 0] + steps.work[:, 1]
    for t0 in 2.0 ** np.arange(2, 14):
        # A bend needs steps on both sides of it.
        if min((total <= t0).sum(), (total > t0).sum()) < MIN_STEPS // 10:
            continue
        cost, found = fit(float(t0))
        if cost < min(best_cost, 0.99 * straight):
            best_cost, best, best_t0 = cost, found, float(t0)
    for _ in range(3):  # what is an accident depends on what is expected
        expected = _columns(steps.work, best_t0) @ best
        usual = steps.seconds < ACCIDENTAL * expected
        best = best * (steps.seconds[usual].sum() / expected[usual].sum())
    values = dict(zip(_COEFFICIENTS, best.tolist(), strict=True))
    # A step always takes some time; what is below a microsecond was not measured.
    values["a"] = max(values["a"], 1e-6)
    return StepTime(**values, t0=best_t0, provenance=provenance)


def _columns(work: NDArray[np.float64], t0: float) -> NDArray[np.float64]:
    """Return what each coefficient is multiplied with, in the order of `_COEFFICIENTS`."""
    prefill, decodes, kv_tokens, attention = work.T
    total = prefill + decodes
    return np.column_stack(
        [
            np.ones(len(work)),
            np.minimum(total, t0),
            np.maximum(total - t0, 0.0),
            decodes,
            kv_tokens,
            attention,
            prefill > 0,
        ]
    )


def expected_seconds(step_time: StepTime, steps: Steps) -> NDArray[np.float64]:
    """Return what the formula expects of each step."""
    coefficients = np.array([getattr(step_time, name) for name in _COEFFICIENTS])
    coefficients[0] += step_time.host_overhead
    expected: NDArray[np.float64] = _columns(steps.work, step_time.t0) @ coefficients
    return expected


def errors(step_time: StepTime, steps: Steps) -> dict[str, dict[str, float]]:
    """Return how far off the formula is, over all steps and by regime.

    Returns
    -------
    dict of str to dict
        ``num_steps``; ``mean``, ``p50`` and ``p90`` of the absolute relative error; ``total``, by
        which share the formula is off on the sum of all seconds, which is what queues are made of.
    """
    expected = expected_seconds(step_time, steps)
    found = {}
    for place, name in enumerate(("all", *REGIMES)):
        mine = np.full(len(steps), True) if place == 0 else steps.regime == place - 1
        if not mine.any():
            continue
        relative = np.abs(expected[mine] / steps.seconds[mine] - 1)
        found[name] = {
            "num_steps": int(mine.sum()),
            "mean": float(relative.mean()),
            "p50": float(np.quantile(relative, 0.5)),
            "p90": float(np.quantile(relative, 0.9)),
            "total": float(expected[mine].sum() / steps.seconds[mine].sum() - 1),
        }
    return found


def repeatability(steps: Steps) -> float:
    """Return how far the machine is off itself: no formula can have a smaller mean error.

    Steps of pure decode are put into groups of as many decodes and KV within a tenth; it is the
    mean absolute relative difference to the median of the group, NaN where no group is large
    enough.
    """
    decodes = steps.take(steps.regime == 0)
    size = np.floor(np.log(np.maximum(decodes.work[:, 2], 1.0)) / np.log(1.1))
    _, group = np.unique(np.column_stack([decodes.work[:, 1], size]), axis=0, return_inverse=True)
    group = group.reshape(-1)
    differences = []
    for number in np.flatnonzero(np.bincount(group) >= MIN_REPEATS):
        seconds = decodes.seconds[group == number]
        differences.append(np.abs(seconds / np.median(seconds) - 1))
    return float(np.concatenate(differences).mean()) if differences else math.nan


# Driving an engine.


def grid(config: EngineConfig) -> list[Workload]:
    """Return bursts that show every part of the formula: batches by context, and long prompts."""
    longest = min(config.max_model_len, config.kv_tokens)
    batches = sorted({min(n, config.seats) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)})
    bursts = []
    for context in (16, 128, 512, 2048):
        for batch in batches:
            # All of them at once, and no more prefill than some ten budgets.
            fits = (context + 32) * batch <= config.kv_tokens and context + 32 < longest
            if fits and context * batch <= 10 * max(config.token_budget, 2048):
                bursts.append(([context] * batch, [24] * batch))
    for length in (8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        if length + 4 < longest:
            bursts += [([length], [2])] * 4
    return [_burst(prompts, outputs, config) for prompts, outputs in bursts]


def _burst(prompts: list[int], outputs: list[int], config: EngineConfig) -> Workload:
    trace = Trace(np.zeros(len(prompts)), prompts, outputs)
    return prepare(trace, config, np.full(len(trace), np.nan))


def mixed_traffic(
    config: EngineConfig, step_time: StepTime, seconds: float, rho: float, seed: int
) -> Workload:
    """Return traffic that lasts about so long: short prompts and some long ones, Poisson."""
    rng = np.random.default_rng(seed)
    longest = min(config.max_model_len, config.kv_tokens) // 2
    num_requests = 2000
    prompts = np.exp(rng.normal(math.log(120), 1.1, num_requests))
    outputs = np.exp(rng.normal(math.log(48), 0.8, num_requests))
    trace = Trace(
        np.cumsum(rng.exponential(size=num_requests)),
        np.clip(np.rint(prompts), 4, longest),
        np.clip(np.rint(outputs), 2, longest),
    )
    trace = scale_to_load(trace, Load("", rho), config, step_time)
    start = trace.arrival_time[0]
    keep = max(int(np.searchsorted(trace.arrival_time, start + seconds)), 20)
    trace = trace.take(slice(0, keep))
    return prepare(trace, config, np.full(len(trace), np.nan))


@dataclass(frozen=True, eq=False)
class Driven:
    """What driving an engine gave.

    Attributes
    ----------
    fitted, unseen : Steps
        Of the grid and the first stretch of mixed traffic; of the second.
    replayed : Workload
        The second stretch.
    served : list of Served
        How it went.
    """

    fitted: Steps
    unseen: Steps
    replayed: Workload
    served: list[Served]


def drive(
    server: Server,
    model: str,
    config: EngineConfig,
    read: Callable[[], Sequence[Mapping[str, Any]]],
    *,
    seconds: float = 30.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Driven:
    """Drive an idle server and collect its steps.

    Parameters
    ----------
    server : Server
    model : str
    config : EngineConfig
        Of the server, as its record says.
    read : callable
        Returns all steps recorded so far.
    seconds : float
        Of each stretch of mixed traffic.
    seed : int
    progress : callable, optional
        Called with the number of replays done and of all.

    Raises
    ------
    ConfigError
        If a request fails: such an engine is not measured.
    """
    bursts = grid(config)
    num_replays = len(bursts) + 3

    def send(number: int, workload: Workload) -> list[Served]:
        served = replay(server, model, workload, seed=(seed << 12) + number)
        wrong = [one for one in served if one.error]
        if wrong:
            raise ConfigError(
                f"the server failed {len(wrong)} of {len(served)} requests while it was driven: "
                f"{wrong[0].error}"
            )
        if progress is not None:
            progress(number + 1, num_replays)
        return served

    send(0, _burst([64] * 4, [16] * 4, config))  # whatever is slow only once
    first = len(read())
    for number, workload in enumerate(bursts, start=1):
        send(number, workload)
    steps = Steps.of(read()[first:])
    rough = fit_step_time(steps, "the grid alone")
    # The grid shows every part; traffic is what counts, and where most steps will lie.
    send(num_replays - 2, mixed_traffic(config, rough, seconds, 0.9, 2 * seed))
    num_fitted = len(read())
    replayed = mixed_traffic(config, rough, seconds, 1.1, 2 * seed + 1)
    served = send(num_replays - 1, replayed)
    records = read()
    return Driven(
        Steps.of(records[first:num_fitted]), Steps.of(records[num_fitted:]), replayed, served
    )

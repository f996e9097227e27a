"""Traffic made to break policies, and traffic that leaves nothing to decide.

Stress windows ask whether anybody is forgotten: bursts, a stream of one kind that never ends while
some of the other kind wait, far more than the engine carries, one huge prompt among thousands of
small ones. Idle windows ask whether a policy keeps its hands off an engine on which, under FCFS, no
two requests wait at the same time. All of them are made for an engine, with its own capacity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine import Workload, prepare, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.isolated_latency import e2el_alone
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.result import Result
from queuesmith.evaluation.evaluate import DEADLINE_FACTOR, capacity
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.metrics import e2el, ttft
from queuesmith.policies import get_policy
from queuesmith.traces.trace import Trace
from queuesmith.windows.predictions import OutputLengthKnowledge

#: What no request may exceed: this many times FCFS's largest, on the same window.
LARGEST_WAIT = 2.0
SEED = 7

Ints = NDArray[np.int64]
_Arrange = Callable[[np.random.Generator, int], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class StressWindow:
    """A window with a name, as an engine runs it."""

    name: str
    workload: Workload


@dataclass(frozen=True)
class Wait:
    """The largest waits of one stress window, in seconds."""

    window: str
    #: ttft, e2el: largest time to the first token, and to the last: who is displaced again and
    #: again waits after its first token.
    ttft: float
    e2el: float
    ttft_fcfs: float
    e2el_fcfs: float

    @property
    def ratio(self) -> float:
        """The worse of the two beside FCFS; NaN counts as endless."""
        ratios = [self.ttft / self.ttft_fcfs, self.e2el / self.e2el_fcfs]
        return max(np.inf if np.isnan(ratio) else ratio for ratio in ratios)

    @property
    def starves(self) -> bool:
        """Whether somebody waits too long."""
        return self.ratio > LARGEST_WAIT


def stress_windows(
    config: EngineConfig,
    step_time: StepTime,
    output_length: OutputLengthKnowledge,
    seed: int = SEED,
) -> list[StressWindow]:
    """Make the windows on which nobody may be forgotten.

    Parameters
    ----------
    config, step_time
        The engine; prompts are as long as its context and its KV cache allow, at most 32,000.
    """
    longest = max(2, min(32_000, config.max_model_len // 2, config.kv_tokens // 2))
    # A share of the longest, so that every engine has short and long ones.
    short, long, huge = max(1, longest // 200), max(2, longest // 8), longest

    def made(name: str, prompts: Ints, rho: float, arrange: _Arrange = _steadily) -> StressWindow:
        rng = np.random.default_rng([seed, len(name), len(prompts)])
        outputs = np.minimum(rng.geometric(1 / 20, len(prompts)), max(1, longest // 2))
        arrivals = arrange(rng, len(prompts))
        trace = Trace(arrivals, prompts, outputs)
        seconds = len(prompts) / (rho * capacity(trace, config, step_time))
        trace = Trace(
            arrivals * seconds,
            prompts,
            outputs,
            deadline=arrivals * seconds
            + DEADLINE_FACTOR * e2el_alone(prompts, outputs, config, step_time),
            client=rng.integers(0, 8, len(prompts)),
        )
        return StressWindow(name, prepare(trace, config, output_length.predict(trace, seed)))

    def stream(num: int, usual: int, few: int, *rows: int) -> Ints:
        """Return prompts of one length, but for some rows."""
        prompts = np.full(num, usual, np.int64)
        prompts[list(rows)] = few
        return prompts

    rng = np.random.default_rng(seed)
    mixed = np.exp(rng.uniform(np.log(short), np.log(longest / 2), 600)).astype(np.int64)
    # What streams past must be more than the engine carries without the few, or they get through.
    return [
        made("all at once", mixed, 50.0),
        made("bursts", mixed, 0.9, _in_bursts),
        made("three times too much", mixed, 3.0),
        made(
            "long ones in a stream of short ones",
            stream(4_000, short, long, *range(400, 4_000, 400)),
            1.2,
        ),
        made(
            "short ones in a stream of long ones",
            stream(600, long, short, *range(60, 600, 60)),
            1.2,
        ),
        made("one huge prompt among thousands of short ones", stream(4_000, short, huge, 400), 1.2),
        made("short ones, and one huge prompt at last", stream(600, short, huge, 599), 1.5),
        made("half short, half long", stream(800, long, short, *range(0, 800, 2)), 1.2, _in_bursts),
    ]


def idle_windows(
    config: EngineConfig,
    step_time: StepTime,
    output_length: OutputLengthKnowledge,
    seed: int = SEED,
) -> list[StressWindow]:
    """Make windows in which no two requests ever wait at the same time under FCFS.

    The first has one request at a time. In the others requests run side by side, but each arrives
    when those before it have had their first token.
    """
    longest = max(2, min(8_000, config.max_model_len // 2, config.kv_tokens // 64))
    fcfs = compile_policy(get_policy("fcfs"))
    made = []
    for place, (name, spread) in enumerate(
        [("one at a time", None), ("side by side", 1.5), ("side by side, close", 1.05)]
    ):
        rng = np.random.default_rng([seed, place])
        prompts = np.exp(rng.uniform(0.0, np.log(longest), 200)).astype(np.int64)
        outputs = np.minimum(rng.geometric(1 / 30, 200), longest)
        alone = e2el_alone(prompts, outputs, config, step_time)
        # Grow the gaps until FCFS shows that nobody meets anybody in the queue.
        first = e2el_alone(prompts, np.ones(200), config, step_time)
        gaps = (alone if spread is None else spread * first) * rng.uniform(1.0, 1.5, 200)
        while True:
            arrivals = np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
            trace = Trace(arrivals, prompts, outputs, deadline=arrivals + DEADLINE_FACTOR * alone)
            workload = prepare(trace, config, output_length.predict(trace, seed))
            result = simulate_workload(workload, fcfs, config, step_time)
            meets = result.requests.first_token_ts[:-1] > result.requests.arrival_time[1:]
            if not meets.any() and result.num_preemptions == 0:
                break
            gaps[:-1] = np.where(meets, gaps[:-1] * 1.5, gaps[:-1])
            if result.num_preemptions:
                gaps *= 1.5
        made.append(StressWindow(name, workload))
    return made


def run_fcfs(window: StressWindow, config: EngineConfig, step_time: StepTime) -> Result:
    """Serve a window first come, first served."""
    fcfs = compile_policy(get_policy(REFERENCE))
    return simulate_workload(window.workload, fcfs, config, step_time)


def largest_wait(window: StressWindow, mine: Result, fcfs: Result) -> Wait:
    """Return the largest waits of a run of a window beside FCFS's."""
    return Wait(window.name, *(float(of(run).max()) for run in (mine, fcfs) for of in (ttft, e2el)))


def differs_from(mine: Result, fcfs: Result) -> bool:
    """Tell whether anybody is served at another time than in the other run."""
    same = all(
        np.array_equal(mine.requests[name], fcfs.requests[name])
        for name in ("scheduled_ts", "first_token_ts", "last_token_ts", "num_preemptions")
    )
    return not same or mine.num_steps != fcfs.num_steps


def _steadily(rng: np.random.Generator, num: int) -> NDArray[np.float64]:
    """Arrive with exponential gaps, from 0 to 1."""
    times = np.cumsum(rng.exponential(1.0, num))
    return np.asarray((times - times[0]) / (times[-1] - times[0]))


def _in_bursts(rng: np.random.Generator, num: int) -> NDArray[np.float64]:
    """Arrive in six bursts, each within a hundredth of the time to the next."""
    times = np.sort(rng.integers(0, 6, num) / 6 + rng.uniform(0.0, 0.01 / 6, num))
    return np.asarray((times - times[0]) / (times[-1] - times[0]))

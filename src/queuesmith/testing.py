"""The suite that any policy must pass, ours or a user's: ``check_policy("./mine.py")``.

It asks every hook about rows at the edges of what an engine can show it, and demands that the
answers are numbers, repeatable, and the same bits compiled as in plain Python; then it runs small
windows through the compiled and the reference engine, which must decide the same.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from queuesmith.config import EngineConfig
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.policies import Policy, get_policy
from queuesmith.request import ENGINE_DTYPE, REQUEST_DTYPE, SHARED_FIELDS
from queuesmith.traces.trace import Trace

#: Random rows asked about, besides the edges.
NUM_RANDOM_ROWS = 600

#: Windows of so many requests go through both engines.
NUM_WINDOWS = 12
NUM_REQUESTS = 24

_FLAGS = ("admit", "hold", "reject")
#: ENGINE settings that the small engine of these windows does not take over, as they would make it
#: a large one, or one that no request fits.
_SIZES = (
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_model_len",
    "num_gpu_blocks",
    "block_size",
    "watermark",
)
#: The most it takes of others, so that they still decide something there.
_MOST = {"max_num_seqs": 24, "max_num_active_seqs": 24, "long_prefill_token_threshold": 24}

# What an engine can show a policy. Lengths go up to what a trace may hold; times may be those of a
# simulated clock, which starts near 0, or a wall clock. Averages start at 1.0 and are of positive
# samples, so rates, step times and times to first token are never 0; queues and their means can be.
_TOKENS = (1, 2, 15, 16, 17, 1000, 131_072, 100_000_000)
_TIMES = (0.0, 1e-6, 0.05, 1.0, 3600.0, 1e6)
_REQUEST_EDGES: dict[str, tuple[float, ...]] = {
    "arrival_time": (0.0, -5.0, 0.001, 12.5, 1e6, 1.8e9),
    "num_prompt_tokens": _TOKENS,
    "num_output_tokens": (0, *_TOKENS),
    "num_preemptions": (0, 1, 1000),
    "max_tokens": _TOKENS,
    "priority": (0, 1, -1, 2**31 - 1, -(2**31)),
    "predicted_output_tokens": (math.nan, 0.0, 1.0, 37.5, 1000.0, 1e8),
    "client_tokens": (0.0, 1.0, 1e6, 1e15),
    "prefill_tokens_since_arrival": (0, 1, 8192, 10**12),
}
_ENGINE_EDGES: dict[str, tuple[float, ...]] = {
    "num_waiting": (1, 2, 100, 1_000_000),
    "num_running": (0, 1, 64, 1024),
    "max_num_seqs": (1, 64, 1024),
    "token_budget": (1, 512, 8192, 131_072),
    "kv_usage": (0.0, 0.5, 0.65, 0.999, 1.0),
    "free_kv_tokens": (0, 16, 1000, 432_000, 10**9),
    "waiting_tokens": (1, 1000, 10**12),
    "mean_waiting_tokens": (1.0, 812.5, 1e8),
    "mean_wait": _TIMES,
    "oldest_wait": _TIMES,
    "step_time": (1e-5, 0.02, 1.0, 100.0),
    "token_rate": (1e-2, 1.0, 12_000.0, 1e8),
    "recent_ttft": (1e-5, 0.3, 1.0, 1e5),
    "arrival_rate": (1e-6, 1.0, 50.0, 1e9),
    "mean_prompt_tokens": (1.0, 900.0, 1e8),
    "backlog_time": _TIMES,
    "peak_backlog_time": _TIMES,
}


@dataclass(frozen=True)
class PolicyReport:
    """What was checked, and what a user should know although it is allowed.

    Attributes
    ----------
    policy : Policy
    checks : tuple of str
        One sentence for each check that passed.
    notes : tuple of str
        One sentence for each thing to know, such as that long prompts may starve.
    """

    policy: Policy
    checks: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.policy.name}: keeps the contract"]
        lines += [f"  checked: {check}" for check in self.checks]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Rows:
    """Pairs of rows: what a hook may be asked about."""

    requests: np.recarray
    engines: np.recarray

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.requests, self.engines, strict=True)


def check_policy(policy: Policy | str | PathLike[str], *, seed: int = 0) -> PolicyReport:
    """Check that a policy keeps the contract.

    Parameters
    ----------
    policy : Policy, str or path
        What `queuesmith.policies.get_policy` understands.
    seed : int
        Of the random rows.

    Returns
    -------
    PolicyReport

    Raises
    ------
    PolicyError
        At the first breach; the message names the hook and the rows.

    Examples
    --------
    >>> print(check_policy("sjf").notes[0])
    may starve requests with a longer prompt: newer ones pass them however long they have waited
    """
    policy = get_policy(policy)  # which makes the static check
    checks = ["the file is within the policy language"]
    rng = np.random.default_rng(seed)
    waiting, running = _reachable_rows(rng, "waiting"), _reachable_rows(rng, "running")
    asked = {
        "waiting_key": [waiting, running] if policy.preemptive else [waiting],
        "victim_key": [running],
        "admit": [waiting],
        "hold": [running],
        "reject": [_reachable_rows(rng, "arriving")] if policy.reject else [],
    }
    answers = {
        name: [_ask_plain(policy, name, hook, rows) for rows in asked[name]]
        for name, hook in policy.hooks.items()
    }
    num_rows = sum(len(rows) for found in answers.values() for rows in found)
    checks.append(f"plain Python gives a number, twice the same, on {num_rows:,} rows")
    _compare_compiled(policy, asked, answers)
    checks.append("compiled, it gives the same bits on those rows and leaves them unchanged")
    if policy.static:
        _check_static(policy, waiting)
        checks.append("its key does not change while a request waits")
    num_steps, num_preemptions = _compare_engines(policy, rng)
    checks.append(
        f"the compiled engine and the reference engine decide the same, jumping or not, on "
        f"{num_steps:,} steps with {num_preemptions:,} preemptions"
    )
    return PolicyReport(policy, tuple(checks), tuple(_notes(policy)))


def _ask_plain(
    policy: Policy, name: str, hook: Callable[[Any, Any], Any], rows: _Rows
) -> list[float]:
    """Ask a hook in plain Python; return its answers as floats."""
    answers = []
    for request_row, engine_row in rows:
        request, engine = _plain(request_row), _plain(engine_row)
        before = str(request), str(engine)
        try:
            answer, again = hook(request, engine), hook(request, engine)
            value = float(answer)
        except Exception as error:
            raise PolicyError(
                f"{policy.name}: {name} raises {type(error).__name__} ({error}) for "
                f"{_describe(policy, name, request, engine)}; guard against that value"
            ) from error
        wanted = (bool,) if name in _FLAGS else (bool, int, float)
        if type(answer) not in wanted:
            kind = "True or False" if name in _FLAGS else "a number"
            raise PolicyError(
                f"{policy.name}: {name} must return {kind}, got {answer!r} for "
                f"{_describe(policy, name, request, engine)}"
            )
        if (str(request), str(engine)) != before or not _same(value, float(again)):
            raise PolicyError(
                f"{policy.name}: {name} must be a pure function, but asking it twice about the "
                f"same rows gave {answer!r} and {again!r}, or changed them"
            )
        answers.append(value)
    return answers


def _compare_compiled(
    policy: Policy, asked: dict[str, list[_Rows]], answers: dict[str, list[list[float]]]
) -> None:
    # numba takes a second to import, which users of `queuesmith.policies` need not pay.
    from queuesmith.engine.compile import compile_policy

    compiled = compile_policy(policy)
    for name, expected in answers.items():
        hook = getattr(compiled, name)
        for rows, plain in zip(asked[name], expected, strict=True):
            before = rows.requests.tobytes(), rows.engines.tobytes()
            for (request, engine), value in zip(rows, plain, strict=True):
                try:
                    answer = float(hook(request, engine))
                except Exception as error:
                    raise PolicyError(
                        f"{policy.name}: compiled, {name} raises {type(error).__name__} ({error}) "
                        f"for {_describe(policy, name, request, engine)}"
                    ) from error
                if not _same(answer, value):
                    raise PolicyError(
                        f"{policy.name}: {name} gives {value!r} in plain Python and {answer!r} "
                        f"compiled for {_describe(policy, name, request, engine)}; please "
                        "report this with the file"
                    )
            if (rows.requests.tobytes(), rows.engines.tobytes()) != before:
                raise PolicyError(f"{policy.name}: compiled, {name} changes the rows it is given")


def _check_static(policy: Policy, rows: _Rows) -> None:
    """Ask about the same waiting request when others have been served meanwhile."""
    for request_row, engine_row, other in zip(
        rows.requests, rows.engines, np.roll(rows.engines, 1), strict=True
    ):
        request, engine, later = _plain(request_row), _plain(engine_row), _plain(other)
        first = float(policy.waiting_key(request, engine))
        for name in SHARED_FIELDS:
            setattr(request, name, getattr(request, name) + 1)
        if not _same(first, float(policy.waiting_key(request, later))):
            raise PolicyError(
                f"{policy.name}: waiting_key changes while a request waits, although it was found "
                "to read nothing that changes; please report this with the file"
            )


def _compare_engines(policy: Policy, rng: np.random.Generator) -> tuple[int, int]:
    """Run small windows, crowded enough to preempt, through both engines; count what was seen."""
    from queuesmith.engine import prepare, simulate_reference, simulate_workload
    from queuesmith.engine.compile import compile_policy
    from queuesmith.engine.presets.step_time import StepTime
    from queuesmith.engine.reference.agreement import first_difference

    step_time = StepTime(a=0.01, b2=1e-4, c=1e-4, d=1e-6)
    compiled = compile_policy(policy)
    num_steps = num_preemptions = 0
    for window in range(NUM_WINDOWS):
        trace = Trace(
            np.cumsum(rng.choice([0.0, 0.01, 0.05], NUM_REQUESTS)),
            prompt_len=rng.integers(1, 60, NUM_REQUESTS),
            output_len=rng.integers(1, 20, NUM_REQUESTS),
            client=rng.integers(-1, 3, NUM_REQUESTS),
            priority=rng.integers(0, 3, NUM_REQUESTS),
            deadline=rng.choice([0.5, 5.0, math.inf], NUM_REQUESTS),
        )
        config = EngineConfig(
            max_num_seqs=8,
            max_num_batched_tokens=128,
            num_gpu_blocks=int(rng.integers(24, 60)),
            block_size=4,
            max_model_len=80,
        )
        config = config.override(_fitting(policy.engine))
        workload = prepare(trace, config, rng.choice([2.0, 9.0, math.nan], NUM_REQUESTS))
        result = simulate_workload(workload, compiled, config, step_time, record=True)
        jumped = simulate_workload(workload, compiled, config, step_time)
        difference = first_difference(
            result, simulate_reference(workload, policy, config, step_time)
        )
        if not difference and jumped.requests.tobytes() != result.requests.tobytes():
            difference = "jumping over decodes changes what requests experience"
        if difference:
            raise PolicyError(
                f"{policy.name}: the compiled and the reference engine differ in window {window} "
                f"({difference}); please report this with the file"
            )
        num_steps += result.num_steps
        num_preemptions += result.num_preemptions
    return num_steps, num_preemptions


def _fitting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a bundle as an engine of a few requests can have them."""
    return {
        name: min(value, _MOST[name]) if name in _MOST and isinstance(value, int) else value
        for name, value in settings.items()
        if name not in _SIZES
    }


def _notes(policy: Policy) -> Iterator[str]:
    """Tell what is allowed but worth knowing."""
    passed_over = _starved(policy)
    if passed_over:
        yield (
            f"may starve requests {', '.join(passed_over)}: newer ones pass them however long "
            "they have waited"
        )
    if policy.oracle:
        yield "cannot be deployed: it is told the exact output length"
    if policy.preemptive:
        yield "displaces running requests, whose tokens are then computed again"
    if policy.engine:
        settings = ", ".join(f"{name}={value!r}" for name, value in policy.engine.items())
        yield f"a bundle: it also sets {settings}"
        fitting = _fitting(policy.engine)
        if other := [name for name, value in policy.engine.items() if fitting.get(name) != value]:
            yield f"the small engines that were compared do not have its {', '.join(other)}"
        try:
            EngineConfig().override(policy.engine)
        except ConfigError as error:
            yield f"ENGINE does not fit the default settings: {error}"


_WAIT = 1e6  # s: eleven days
_DEADLINE = _WAIT + 60.0  # s: of the requests that just came
_DISADVANTAGES: dict[str, dict[str, float]] = {
    "with a longer prompt": {"num_prompt_tokens": 64_000, "num_uncached_tokens": 64_000},
    "with a shorter prompt": {"num_prompt_tokens": 2, "num_uncached_tokens": 2},
    "with a longer predicted output": {"predicted_output_tokens": 5000.0},
    "of lower priority": {"priority": 9},
    "of clients that were served more": {"client_tokens": 1e9},
    "without a deadline": {"deadline": math.inf},
    "past their deadline": {"deadline": 60.0},
}
_BUSY_ENGINE = {
    "now": _WAIT, "num_waiting": 10, "num_running": 20, "max_num_seqs": 64, "token_budget": 8192,
    "kv_usage": 0.5, "free_kv_tokens": 200_000, "waiting_tokens": 10_000,
    "mean_waiting_tokens": 1000.0, "mean_wait": 1.0, "oldest_wait": _WAIT, "step_time": 0.02,
    "token_rate": 10_000.0, "recent_ttft": 1.0, "arrival_rate": 10.0,
    "mean_prompt_tokens": 1000.0, "backlog_time": 1.0, "peak_backlog_time": 5.0,
}  # fmt: skip
_USUAL_REQUEST = {
    "num_prompt_tokens": 1000, "num_computed_tokens": 0, "num_output_tokens": 0,
    "num_preemptions": 0, "max_tokens": 4096, "priority": 0, "num_uncached_tokens": 1000,
    "predicted_output_tokens": 100.0, "deadline": math.inf, "client_tokens": 100.0,
}  # fmt: skip


def _starved(policy: Policy) -> list[str]:
    """Describe the requests that wait eleven days and still lose to one that just came."""
    engine = SimpleNamespace(**_BUSY_ENGINE)

    def key(arrival_time: float, **unusual: float) -> float:
        fields = {**_USUAL_REQUEST, **unusual}
        fields["prefill_tokens_since_arrival"] = int(
            (_WAIT - arrival_time) * _BUSY_ENGINE["token_rate"]
        )
        request = SimpleNamespace(arrival_time=arrival_time, last_token_ts=arrival_time, **fields)
        return _order(policy.waiting_key(request, engine))

    new_arrivals = [_WAIT - 0.37 * step for step in range(16)]
    if any(key(0.0) > key(arrival) for arrival in new_arrivals):
        return ["like all others"]
    found = []
    for what, unusual in _DISADVANTAGES.items():
        usual = {"deadline": _DEADLINE} if "deadline" in unusual else {}
        if key(0.0, **unusual) > key(_WAIT, **usual):
            found.append(what)
    return found


def _order(key: float) -> float:
    return math.inf if math.isnan(key) else float(key)


def _reachable_rows(
    rng: np.random.Generator, state: Literal["arriving", "waiting", "running"]
) -> _Rows:
    """Draw rows at the edges of every field, in combinations that an engine can reach."""
    is_running = state == "running"
    edges = [(name, value) for name, values in _REQUEST_EDGES.items() for value in values]
    engine_edges = [(name, value) for name, values in _ENGINE_EDGES.items() for value in values]
    total = NUM_RANDOM_ROWS + len(edges) + len(engine_edges)
    requests = np.recarray(total, REQUEST_DTYPE)
    engines = np.recarray(total, ENGINE_DTYPE)
    for rows, drawn in ((requests, _REQUEST_EDGES), (engines, _ENGINE_EDGES)):
        for name, values in drawn.items():
            rows[name] = rng.choice(np.array(values), total)
    # Each edge at least once, whatever was drawn.
    for row, (name, value) in enumerate(edges):
        requests[name][row] = value
    for row, (name, value) in enumerate(engine_edges, len(edges)):
        engines[name][row] = value

    if state != "waiting":
        engines.num_waiting[::3] = 0
    if is_running:
        engines.num_running = np.maximum(engines.num_running, 1)
    if state == "arriving":
        requests.num_output_tokens = requests.num_preemptions = 0
        requests.prefill_tokens_since_arrival = 0
    nobody = engines.num_waiting == 0
    for name in ("waiting_tokens", "mean_waiting_tokens", "mean_wait", "oldest_wait"):
        engines[name][nobody] = 0
    engines.backlog_time[nobody] = 0.0
    engines.num_running = np.minimum(engines.num_running, engines.max_num_seqs)
    engines.free_kv_tokens[engines.kv_usage == 1.0] = 0
    engines.oldest_wait = np.maximum(engines.oldest_wait, engines.mean_wait)
    engines.peak_backlog_time = np.maximum(engines.peak_backlog_time, engines.backlog_time)
    age = rng.choice(np.array(_TIMES), total)
    engines.now = requests.arrival_time + age

    tokens = requests.num_prompt_tokens + requests.num_output_tokens
    requests.num_uncached_tokens = rng.choice(np.array([0.0, 0.3, 1.0]), total) * tokens
    requests.num_uncached_tokens = np.clip(requests.num_uncached_tokens, 1, tokens)
    decoding = requests.num_output_tokens > 0
    progress = (rng.choice(np.array([0.0, 0.5, 1.0]), total) * (tokens - 1)).astype(np.int64)
    # One token is missing in decode; none while it is under way (asynchronous scheduling).
    decoded = tokens - (rng.random(total) < 0.8)
    requests.num_computed_tokens = np.where(decoding, decoded, progress) if is_running else 0
    if not is_running:  # only a preemption brings a request with output back to `waiting`
        requests.num_preemptions[decoding] = np.maximum(requests.num_preemptions[decoding], 1)
    since = rng.choice(np.array([0.0, 0.5, 1.0]), total) * age
    last = np.clip(engines.now - since, requests.arrival_time, engines.now)
    requests.last_token_ts = np.where(decoding, last, requests.arrival_time)
    offset = rng.choice(np.array([-100.0, -1e-3, 0.0, 0.25, 60.0, math.inf]), total)
    requests.deadline = engines.now + offset
    return _Rows(requests, engines)


def _plain(row: Any) -> SimpleNamespace:
    """Return a row of Python floats and ints, as the reference engine shows it."""
    return SimpleNamespace(**dict(zip(row.dtype.names, row.item(), strict=True)))


def _describe(policy: Policy, name: str, request: Any, engine: Any) -> str:
    """Name the values a hook read."""
    rows = {"request": request, "engine": engine}
    read = sorted(policy.reads[name])
    if not read:
        return "any request"
    values = ((field, getattr(rows[field.split(".")[0]], field.split(".")[1])) for field in read)
    return ", ".join(f"{field}={value:g}" for field, value in values)


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))

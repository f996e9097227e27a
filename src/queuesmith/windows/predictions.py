"""What a policy may know of output lengths before they are produced: nothing, a guess, or all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import ConfigError
from queuesmith.traces.trace import MAX_TOKENS, Trace

#: Of the log of the prediction: a coefficient of variation of 20 %.
DEFAULT_SIGMA = 0.198


@dataclass(frozen=True)
class OutputLengthKnowledge:
    """What stands in ``predicted_output_tokens`` of the row that a policy sees.

    Attributes
    ----------
    kind : {"none", "noisy", "exact"}
    sigma : float
        Standard deviation of the log of a noisy prediction around the log of the truth.

    Raises
    ------
    ConfigError
        If `kind` is none of these or `sigma` is not a number of at least 0.

    Notes
    -----
    A noisy prediction is ``round(output_len * exp(sigma * z))`` with standard normal ``z``, at
    least 1: as often too long as too short (its median is the truth; its mean is larger). With
    ``sigma = sqrt(log(1 + c**2))`` the prediction's coefficient of variation is ``c``; the
    default is c = 0.20, as in LSSP.

    References
    ----------
    Vahidi, "How Portable Are LLM-Serving Scheduler Rankings Across Workloads, Operating Regions,
    and Metrics?", 2026 (LSSP).

    Examples
    --------
    >>> OutputLengthKnowledge.parse("noisy:0.5")
    OutputLengthKnowledge(kind='noisy', sigma=0.5)
    """

    kind: Literal["none", "noisy", "exact"] = "noisy"
    sigma: float = DEFAULT_SIGMA

    def __post_init__(self) -> None:
        if self.kind not in ("none", "noisy", "exact"):
            raise ConfigError(
                f"output lengths can be known as none, noisy or exact, got {self.kind!r}"
            )
        if not 0 <= self.sigma < math.inf:
            raise ConfigError(f"sigma must be a number of at least 0, got {self.sigma}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``none``, ``exact``, ``noisy`` or ``noisy:SIGMA``.

        Raises
        ------
        ConfigError
            If the text is anything else.
        """
        if text == "none":
            return cls("none")
        if text == "exact":
            return cls("exact")
        if text == "noisy":
            return cls("noisy")
        kind, colon, number = text.partition(":")
        try:
            sigma = float(number)
        except ValueError:
            sigma = math.nan
        if kind == "noisy" and colon and not math.isnan(sigma):
            return cls("noisy", sigma)
        raise ConfigError(
            "what is known of output lengths must be none, exact, noisy or noisy:SIGMA such as "
            f"noisy:0.5, got {text!r}"
        )

    def predict(self, trace: Trace, seed: int | Sequence[int]) -> NDArray[np.float64]:
        """Return what is predicted for each request of a trace.

        Parameters
        ----------
        trace : Trace
        seed : int or sequence of int
            Of the noise; all of it is drawn at once in order of arrival, so every policy
            is told the same.

        Returns
        -------
        (num_requests,) float64
            Tokens; NaN when nothing is known.
        """
        if self.kind == "none":
            return np.full(len(trace), np.nan)
        if self.kind == "exact":
            return trace.output_len.astype(np.float64)
        noise = np.random.default_rng(seed).standard_normal(len(trace))
        with np.errstate(over="ignore"):
            guess = np.rint(trace.output_len * np.exp(self.sigma * noise))
        return np.asarray(np.clip(guess, 1, MAX_TOKENS))

    def describe(self) -> str:
        """Say in one sentence what a policy may know."""
        if self.kind == "none":
            return "Policies know nothing of output lengths."
        if self.kind == "exact":
            return "Policies know every output length exactly, which no service can."
        spread = math.sqrt(math.expm1(self.sigma**2)) if self.sigma < 5 else math.inf
        return (
            f"Policies see predicted output lengths with log-normal noise of {spread:.0%} "
            f"(sigma {self.sigma:g})."
        )

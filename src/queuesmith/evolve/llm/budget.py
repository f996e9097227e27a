"""What a language model may still cost: hard caps, asked before each call for the worst case."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from queuesmith.errors import ConfigError

#: Budgets of a run that bound what a model costs; a run needs one of them.
CAPS = ("llm_calls", "llm_tokens", "llm_money")
#: Tokens that chat templates put around the messages, and then some.
_TEMPLATE = 64


@dataclass(frozen=True)
class Prices:
    """Money per million tokens, read and written; 0 for a model of one's own."""

    input: float = 0.0
    output: float = 0.0

    def cost(self, prompt_tokens: float, answer_tokens: float) -> float:
        """Return the money that tokens cost."""
        return (prompt_tokens * self.input + answer_tokens * self.output) / 1e6


@dataclass(frozen=True)
class Usage:
    """What has been used: requests sent, tokens read and written, and money."""

    calls: int = 0
    tokens: int = 0
    money: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.calls + other.calls, self.tokens + other.tokens, self.money + other.money)

    def as_meta(self) -> dict[str, float]:
        """Return it by the names of a run's budgets."""
        return {"llm_calls": self.calls, "llm_tokens": self.tokens, "llm_money": self.money}


def most_tokens(text: str) -> int:
    """Return a number of tokens that a prompt cannot exceed: one for each byte.

    Tokenizers that fall back to bytes, as all current ones do, never need more. It is about four
    times what English and code take, so a budget is left unspent by less than one worst call.
    """
    return len(text.encode("utf-8", "replace")) + _TEMPLATE


class Budget:
    """What is left, while calls are made.

    Parameters
    ----------
    left : mapping of str to float
        Of each budget in force: `CAPS` and ``wall_seconds``, which starts to run here.
    """

    def __init__(self, left: Mapping[str, float], prices: Prices) -> None:
        caps = {name: float(left[name]) for name in CAPS if name in left}
        if not caps:
            raise ConfigError(
                "the proposer llm needs a cap on what it may cost: set llm_calls, llm_tokens or "
                "llm_money under [budget]"
            )
        if "llm_money" in caps and not (prices.input or prices.output):
            raise ConfigError(
                "llm_money caps nothing while the model has no price: set input_price and "
                "output_price (per million tokens) of the proposer llm, or cap llm_tokens"
            )
        self._caps, self.prices = caps, prices
        self._ends = time.monotonic() + left.get("wall_seconds", math.inf)
        self.used = Usage()

    @property
    def seconds(self) -> float:
        """Seconds left; +inf without a cap."""
        return self._ends - time.monotonic()

    def worst(self, prompt: str, answer_tokens: int) -> Usage:
        """Return the most that one request with a prompt and an answer can cost."""
        tokens = most_tokens(prompt)
        return Usage(1, tokens + answer_tokens, self.prices.cost(tokens, answer_tokens))

    def refuses(self, worst: Usage) -> str:
        """Say which cap forbids a request that may cost so much; empty if none does."""
        after = (self.used + worst).as_meta()
        for name, cap in self._caps.items():
            if after[name] > cap:
                return f"{name}: {cap - self.used.as_meta()[name]:g} left"
        return "wall_seconds: none left" if self.seconds <= 0 else ""

    def spend(self, usage: Usage) -> None:
        """Take something off what is left."""
        self.used += usage

    def settle(self, reserved: Usage, usage: Usage) -> None:
        """Put what was really used in the place of what was spent for it beforehand."""
        self.used = Usage(
            self.used.calls - reserved.calls + usage.calls,
            self.used.tokens - reserved.tokens + usage.tokens,
            max(self.used.money - reserved.money + usage.money, 0.0),
        )

    def left(self) -> dict[str, float]:
        """Return what is left of each cap."""
        used = self.used.as_meta()
        left = {name: max(cap - used[name], 0.0) for name, cap in self._caps.items()}
        if self._ends < math.inf:
            left["wall_seconds"] = max(self.seconds, 0.0)
        return left

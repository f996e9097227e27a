"""Where questions go: options of a configuration, and what the environment says.

The endpoint is told by the configuration or by the environment, a key by the environment alone:

* ``QUEUESMITH_LLM_BASE_URL`` and ``QUEUESMITH_LLM_MODEL`` where the configuration names none;
* ``QUEUESMITH_LLM_API_KEY``, else ``OPENAI_API_KEY``, sent to the endpoint that the environment
  names, or to OpenAI's own. One that is named by a configuration gets none: a configuration may be
  a stranger's.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from queuesmith.errors import ConfigError
from queuesmith.evolve.fields import number, read_table

URL_VARIABLE = "QUEUESMITH_LLM_BASE_URL"
MODEL_VARIABLE = "QUEUESMITH_LLM_MODEL"
KEY_VARIABLES = ("QUEUESMITH_LLM_API_KEY", "OPENAI_API_KEY")
OPENAI_URL = "https://api.openai.com/v1"


@dataclass(frozen=True)
class Options:
    """What a configuration may say under ``options``."""

    #: base_url, model: the environment's when empty.
    base_url: str = ""
    model: str = ""
    #: input_price, output_price: per million tokens, in the currency of the budget's `llm_money`.
    input_price: float = number(0.0, least=0, most=1e6)
    output_price: float = number(0.0, least=0, most=1e6)
    #: answer_tokens, prompt_tokens: most tokens of an answer, and about the most of a question.
    answer_tokens: int = number(4_000, least=16, most=1_000_000)
    prompt_tokens: int = number(6_000, least=2_500, most=1_000_000)
    #: Share of questions that ask for changes to the parent instead of a whole file.
    changes: float = number(0.3, least=0, most=1)
    temperature: float | None = number(None, least=0, most=10)  # the model's own when left out
    #: What the endpoint calls `answer_tokens`: ``max_tokens``, or ``max_completion_tokens``.
    limit_field: str = "max_tokens"
    call_seconds: float = number(120.0, least=0.01, most=3_600)  # deadline of one request
    attempts: int = number(4, least=1, most=20)  # requests for one question at most
    #: Wait before the second attempt, on average; doubled before each further one.
    backoff_seconds: float = number(2.0, least=0, most=60)
    at_once: int = number(1, least=1, most=64)  # questions under way at the same time


@dataclass(frozen=True)
class Endpoint:
    """Where questions go, and how patiently."""

    base_url: str  # up to and without ``/chat/completions``
    model: str
    key: str  # never part of a text, error or representation that leaves this package
    options: Options

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r}, {self.model!r})"

    @property
    def host(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self.base_url).netloc


def find_endpoint(given: Mapping[str, Any]) -> Endpoint:
    """Check options, and find out where to ask whom, and with which key."""
    options = read_table("proposer llm", given, Options)
    if options.limit_field not in ("max_tokens", "max_completion_tokens"):
        raise ConfigError(
            "proposer llm: limit_field must be max_tokens or max_completion_tokens, got "
            f"{options.limit_field!r:.40}"
        )
    named = os.environ.get(URL_VARIABLE, "").strip()
    base_url = (options.base_url or named or OPENAI_URL).rstrip("/")
    _check_url(base_url)
    model = options.model or os.environ.get(MODEL_VARIABLE, "").strip()
    if not model:
        raise ConfigError(
            'proposer llm needs a model: options = { model = "..." }, or the environment variable '
            f"{MODEL_VARIABLE}"
        )
    key = ""
    if base_url in (named.rstrip("/"), OPENAI_URL):
        variable, key = _key()
        if not key and base_url == OPENAI_URL:
            raise ConfigError(
                f"proposer llm needs a key: set {' or '.join(KEY_VARIABLES)}, or set "
                f"{URL_VARIABLE} to an endpoint of your own"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(f"{variable} is not a key: it has blanks or signs that no key has")
    return Endpoint(base_url, model, key, options)


def _key() -> tuple[str, str]:
    for variable in KEY_VARIABLES:
        if key := os.environ.get(variable, "").strip():
            return variable, key
    return KEY_VARIABLES[0], ""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good, parts = False, urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "proposer llm: the endpoint's URL must hold no user or password; set "
            f"{KEY_VARIABLES[0]} to the key instead"
        )
    if not good or parts.query or parts.fragment:
        raise ConfigError(
            "proposer llm: base_url must look like http://localhost:8000/v1, got "
            f"{url.split('?')[0]!r:.80}"
        )

"""The proposer `llm`: policies by a language model behind any OpenAI-compatible endpoint.

It asks for one policy a question, shows where the parent won and lost, and hands back every answer
as a proposal, those without a policy in them too, so that the archive holds what was paid for.

The endpoint is told by the configuration or by the environment, a key by the environment alone:

* ``QUEUESMITH_LLM_BASE_URL`` and ``QUEUESMITH_LLM_MODEL`` where the configuration names none;
* ``QUEUESMITH_LLM_API_KEY``, else ``OPENAI_API_KEY``, sent to the endpoint that the environment
  names, or to OpenAI's own. One that is named by a configuration gets none: a configuration may be
  a stranger's.
"""

import ast
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from queuesmith.errors import ConfigError
from queuesmith.evolve.candidate import Candidate, Proposal
from queuesmith.evolve.llm.answers import find_policies
from queuesmith.evolve.llm.budget import Budget, Prices, Usage
from queuesmith.evolve.llm.call import Endpoint, ask, import_openai
from queuesmith.evolve.llm.prompt import Briefing, Prompt, about_tokens, system_text, write_prompt
from queuesmith.evolve.llm.reply import Reply
from queuesmith.policies import get_policy

URL_VARIABLE = "QUEUESMITH_LLM_BASE_URL"
MODEL_VARIABLE = "QUEUESMITH_LLM_MODEL"
KEY_VARIABLES = ("QUEUESMITH_LLM_API_KEY", "OPENAI_API_KEY")
OPENAI_URL = "https://api.openai.com/v1"
#: Policies to start from when there is no parent.
CLASSICS = ("fcfs", "sjf", "aged_sjf", "hrrn", "las")
#: Questions in a row without an answer after which nothing more is asked.
MAX_FAILURES = 3


@dataclass(frozen=True)
class Options:
    """What a configuration may say under ``options``."""

    #: base_url, model: the environment's when empty.
    base_url: str = ""
    model: str = ""
    #: input_price, output_price: per million tokens, in the currency of the budget's `llm_money`.
    input_price: float = 0.0
    output_price: float = 0.0
    #: answer_tokens, prompt_tokens: most tokens of an answer, and about the most of a question.
    answer_tokens: int = 4_000
    prompt_tokens: int = 6_000
    #: Share of questions that ask for changes to the parent instead of a whole file.
    changes: float = 0.3
    temperature: float | None = None  # the model's own when left out
    #: What the endpoint calls `answer_tokens`: ``max_tokens``, or ``max_completion_tokens``.
    limit_field: str = "max_tokens"
    call_seconds: float = 120.0  # deadline of one request
    attempts: int = 4  # requests for one question at most
    backoff_seconds: float = 2.0  # wait before the second attempt; doubled before each further one
    at_once: int = 1  # questions under way at the same time


#: Least and most of each number.
_LIMITS: dict[str, tuple[float, float]] = {
    "input_price": (0.0, 1e6),
    "output_price": (0.0, 1e6),
    "answer_tokens": (16, 1_000_000),
    "prompt_tokens": (2_500, 1_000_000),
    "changes": (0.0, 1.0),
    "temperature": (0.0, 10.0),
    "call_seconds": (0.01, 3_600.0),
    "attempts": (1, 20),
    "backoff_seconds": (0.0, 60.0),
    "at_once": (1, 64),
}
#: Names of all options.
OPTIONS = tuple(item.name for item in dataclasses.fields(Options))


class Llm:
    """Asks a language model for policies.

    Parameters
    ----------
    **options
        Fields of `Options`.

    Attributes
    ----------
    left : dict of str to float
        What may still be spent: ``llm_calls``, ``llm_tokens``, ``llm_money`` (one of them must be
        there) and ``wall_seconds``. Set before `propose`, which takes off what it spends.
    briefing : Briefing
        What the archive knows of parents and classics; set before `propose`.
    batch : int
        Proposals worth asking for at a time: what is asked for in one call of `propose` is lost
        together if the process dies in it.
    """

    name = "llm"

    def __init__(self, **options: Any) -> None:
        self.options = _checked(options)
        self.endpoint = _endpoint(self.options)
        self.prices = Prices(self.options.input_price, self.options.output_price)
        self.left: dict[str, float] = {}
        self.briefing = Briefing()
        self.batch = self.options.at_once
        self._failures = 0
        self._gave_up = ""
        import_openai()

    def propose(
        self, parents: Sequence[Candidate], count: int, rng: np.random.Generator
    ) -> list[Proposal]:
        """Ask for `count` policies; fewer come back when a budget ends.

        Each answer is a proposal at least, with ``prompt``, ``answer``, ``model``, ``tokens``,
        ``cost``, ``problem``, ``attempts`` and ``usage`` in its `meta`; one without a policy has a
        comment for a text, which says why. Further policies of an answer are handed on while fewer
        than `count` were found.
        """
        if self._gave_up:
            raise ConfigError(self._gave_up)
        budget = Budget(self.left, self.prices)
        questions = [self._question(parents, rng) for _ in range(count)]
        prompts = [question.prompt for question in questions]
        replies = ask(self.endpoint, prompts, budget, at_once=self.options.at_once)
        self.left = budget.left()
        asked = [pair for pair in zip(questions, replies, strict=True) if pair[1].asked]
        for _, reply in asked:
            self._count(reply)
        if asked and all(reply.hopeless and not reply.usage.tokens for _, reply in asked):
            raise ConfigError(self._gave_up)  # nothing was paid for, so that nothing is lost
        answered = [self._proposals(*pair) for pair in asked]
        spare = count - sum(1 for proposals in answered if proposals[0].meta["found"])
        kept: list[Proposal] = []
        for first, *others in answered:
            kept += [first, *others[:spare]]
            spare -= len(others[:spare])
        return kept

    def estimate(self, count: int) -> dict[str, float]:
        """Return what `count` proposals cost at most when every question is answered at once."""
        tokens = self.options.prompt_tokens, self.options.answer_tokens
        money = count * self.prices.cost(*tokens)
        return Usage(count, count * sum(tokens), money).as_meta()

    def _question(self, parents: Sequence[Candidate], rng: np.random.Generator) -> "_Question":
        """Choose what to improve and what to show beside it."""
        changes = bool(rng.random() < self.options.changes)
        order = [parents[int(place)] for place in rng.permutation(len(parents))]
        classic = CLASSICS[int(rng.integers(len(CLASSICS)))]
        for place, parent in enumerate(order):
            other = order[place + 1] if place + 1 < len(order) else None
            prompt = self._prompt(parent.text, parent, other, changes)
            if prompt is not None:
                return _Question(prompt, parent.text, (parent.number,))
        text = get_policy(classic).source
        prompt = self._prompt(text, None, None, changes)
        if prompt is None:  # the classics are short; what is left is the contract
            least = about_tokens(system_text(Briefing().aim)) + 800
            raise ConfigError(
                f"proposer llm: prompt_tokens must be at least {least} "
                f"to hold the contract and a policy, got {self.options.prompt_tokens}"
            )
        return _Question(prompt, text, ())

    def _prompt(
        self, text: str, parent: Candidate | None, other: Candidate | None, changes: bool
    ) -> Prompt | None:
        return write_prompt(
            text,
            parent,
            other,
            self.briefing,
            changes=changes,
            most_tokens=self.options.prompt_tokens,
        )

    def _proposals(self, question: "_Question", reply: Reply) -> list[Proposal]:
        """Make proposals of a reply: its policies, or a comment that says why there is none."""
        found = find_policies(reply.text, question.text) if not reply.problem else None
        problem = reply.problem or (found.problem if found else "")
        if problem and reply.finish == "length":
            problem += "; it was cut off at its limit of tokens"
        meta = {
            "prompt": question.prompt.text,
            "answer": reply.text,
            "model": reply.model or self.endpoint.model,
            "tokens": list(reply.tokens) if reply.tokens else None,
            "cost": reply.usage.money,
            "problem": problem,
            "attempts": list(reply.attempts),
            "found": len(found.texts) if found else 0,
            "usage": reply.usage.as_meta(),
        }
        if not found or not found.texts:
            kind = "answer" if reply.problem else "policy"
            text = f"# no {kind}: {problem.encode('ascii', 'replace').decode()}\n"
            return [Proposal(text, self.name, question.parents, text[2:-1], meta=meta)]
        rest = {"model": meta["model"], "same_answer": True}  # paid for, and kept, with the first
        return [
            Proposal(text, self.name, question.parents, _note(text), meta=rest if place else meta)
            for place, text in enumerate(found.texts)
        ]

    def _count(self, reply: Reply) -> None:
        """Give up when asking on would only cost time or money."""
        self._failures = self._failures + 1 if reply.problem else 0
        if reply.hopeless or self._failures >= MAX_FAILURES:
            often = "" if reply.hopeless else f" {self._failures} questions in a row"
            self._gave_up = (
                f"the endpoint {self.endpoint.host} does not answer{often}: {reply.problem}; check "
                f"{URL_VARIABLE}, the model {self.endpoint.model!r} and the key, then go on with "
                "`queuesmith evolve resume`"
            )


@dataclass(frozen=True)
class _Question:
    prompt: Prompt
    text: str
    parents: tuple[int, ...]


def _note(text: str) -> str:
    """Return what a policy says of itself, the first line of its docstring."""
    try:
        said = ast.get_docstring(ast.parse(text)) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        said = ""
    return " ".join(said.partition("\n")[0].split())[:120] or "written by a model"


def _checked(options: Mapping[str, Any]) -> Options:
    """Check options by name, kind and size."""
    known = {item.name: item for item in dataclasses.fields(Options)}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"proposer llm has no option {name!r}; it has {', '.join(known)}")
        if name in _LIMITS:
            least, most = _LIMITS[name]
            whole = known[name].type is int
            kinds = (int,) if whole else (int, float)
            if type(value) not in kinds or not least <= value <= most:
                raise ConfigError(
                    f"proposer llm: {name} must be a {'whole ' if whole else ''}number from "
                    f"{least:g} to {most:g}, got {value!r:.40}"
                )
        elif not isinstance(value, str):
            raise ConfigError(f"proposer llm: {name} must be text, got {value!r:.40}")
    checked = Options(**options)
    if checked.limit_field not in ("max_tokens", "max_completion_tokens"):
        raise ConfigError(
            "proposer llm: limit_field must be max_tokens or max_completion_tokens, got "
            f"{checked.limit_field!r:.40}"
        )
    return checked


def _endpoint(options: Options) -> Endpoint:
    """Find out where to ask whom, and with which key."""
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
    return Endpoint(
        base_url=base_url,
        model=model,
        key=key,
        call_seconds=float(options.call_seconds),
        attempts=options.attempts,
        backoff_seconds=float(options.backoff_seconds),
        answer_tokens=options.answer_tokens,
        limit_field=options.limit_field,
        temperature=options.temperature,
    )


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

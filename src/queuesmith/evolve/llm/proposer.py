"""The proposer `llm`: policies by a language model behind any OpenAI-compatible endpoint.

It asks for one policy a question, shows where the parent won and lost, and hands back every answer
as a proposal, those without a policy in them too, so that the archive holds what was paid for.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from queuesmith.errors import ConfigError
from queuesmith.evolve.candidate import Candidate, Proposal
from queuesmith.evolve.llm.answers import find_policies
from queuesmith.evolve.llm.budget import Budget, Prices, Usage
from queuesmith.evolve.llm.call import ask, import_openai
from queuesmith.evolve.llm.endpoint import URL_VARIABLE, find_endpoint
from queuesmith.evolve.llm.prompt import Briefing, Prompt, about_tokens, system_text, write_prompt
from queuesmith.evolve.llm.reply import Reply
from queuesmith.policies import get_policy

#: Policies to start from when there is no parent.
CLASSICS = ("fcfs", "sjf", "aged_sjf", "hrrn", "las")
#: Questions in a row without an answer after which nothing more is asked.
MAX_FAILURES = 3


class Llm:
    """Asks a language model for policies.

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
        self.endpoint = find_endpoint(options)
        self.options = self.endpoint.options
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
        write = partial(
            write_prompt, self.briefing, changes=changes, most_tokens=self.options.prompt_tokens
        )
        for parent, other in zip_longest(order, order[1:]):
            prompt = write(parent.text, parent, other)
            if prompt is not None:
                return _Question(prompt, parent.text, (parent.number,))
        text = get_policy(classic).source
        prompt = write(text)
        if prompt is None:  # the classics are short; what is left is the contract
            least = about_tokens(system_text(Briefing().aim)) + 800
            raise ConfigError(
                f"proposer llm: prompt_tokens must be at least {least} "
                f"to hold the contract and a policy, got {self.options.prompt_tokens}"
            )
        return _Question(prompt, text, ())

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

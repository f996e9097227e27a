"""What a language model has answered: the policy files in it, or one sentence on why there is none.

Models wrap code in fences or in prose, answer with several versions, with a change to the parent
instead of a file, or with nothing of use. Nothing is executed here, and nothing is trusted: what
is found is only text, which passes the check of its form like any candidate's.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from queuesmith.evolve.sandbox.allow_list import MAX_BYTES

#: Characters of an answer that are looked at, and policy files that are taken from one.
MAX_ANSWER = 200_000
MAX_CANDIDATES = 8
#: Lines of code in prose without fences, and changes in one answer.
_MAX_LINES = 400
_MAX_CHANGES = 50

_FENCE = re.compile(r"[ \t]{0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^`]*")
_PYTHON = ("", "python", "py", "python3")
_DIFFS = ("diff", "patch")
_HOOK = re.compile(r"^def waiting_key\b", re.MULTILINE)
_SEARCH = re.compile(r"<{5,9} ?SEARCH\b.*")
_DIVIDER = re.compile(r"={5,9}\s*")
_REPLACE = re.compile(r">{5,9} ?REPLACE\b.*")
_HUNK = re.compile(r"^@@(?: -(?P<line>\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@)?.*$")
_CODE = re.compile(r'def |[A-Z][A-Z_0-9]* *=|import math\b|"""|#')
#: What models type in comments where plain ASCII is asked for.
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201b", "'"),
        **dict.fromkeys("\u201c\u201d", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        "\u00a0": " ",
        "\u00d7": "x",
        "\u2026": "...",
        "\u2192": "->",
        "\u2248": "~",
        "\u2264": "<=",
        "\u2265": ">=",
    }
)


@dataclass(frozen=True)
class Found:
    """Policy files of an answer, in its order; `problem` says why there are none."""

    texts: tuple[str, ...]
    problem: str = ""


def find_policies(answer: str, parent: str = "") -> Found:
    r"""Find the policy files of an answer.

    Parameters
    ----------
    answer : str
        Whole files in fences or in prose; or changes of `parent`: search/replace blocks
        (``<<<<<<< SEARCH``, ``=======``, ``>>>>>>> REPLACE``) or a unified diff.

    Notes
    -----
    Takes time in proportion to the answer, of which no more than `MAX_ANSWER` characters are read.

    Examples
    --------
    >>> found = find_policies("Sure!\n```python\ndef waiting_key(request, engine):\n    return 1\n")
    >>> found.texts
    ('def waiting_key(request, engine):\n    return 1\n',)
    >>> find_policies("I would rather not.").problem
    'there is no code in the answer'
    """
    answer = _clean(answer[:MAX_ANSWER])
    if not answer.strip():
        return Found((), "the answer is empty")
    try:
        texts = list(_changed(answer, parent))
    except _DoesNotFit as error:
        return Found((), str(error))
    blocks = list(_blocks(answer))
    if not texts:
        texts = [text for language, text in blocks if language in _PYTHON and _HOOK.search(text)]
    if not texts and not blocks:
        texts = list(_in_prose(answer))
    known = {parent.strip()}
    fresh: list[str] = []
    for text in texts:
        if text.strip() not in known:
            known.add(text.strip())
            fresh.append(text.strip("\n") + "\n")
    if fresh:
        return Found(tuple(fresh[:MAX_CANDIDATES]))
    if texts:
        return Found((), "the answer repeats the policy that it was to improve")
    return Found((), _why_none(answer, [language for language, _ in blocks]))


class _DoesNotFit(Exception):
    """A change that cannot be made to the parent."""


def _clean(answer: str) -> str:
    answer = answer.replace("\r\n", "\n").replace("\r", "\n").translate(_PLAIN)
    _, thought, rest = answer.rpartition("</think>")
    return rest if thought else answer  # a draft inside a thought is not the answer


def _blocks(answer: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of fenced blocks; the last one may have no end."""
    fence, language, inside = "", "", list[str]()
    for line in answer.split("\n"):
        found = _FENCE.fullmatch(line)
        if not fence and found:
            fence, language, inside = found["fence"], found["language"].lower(), []
        elif fence and found and found["fence"].startswith(fence) and not found["language"]:
            yield language, "\n".join(inside)
            fence = ""
        elif fence:
            inside.append(line)
    if fence and any(line.strip() for line in inside):
        yield language, "\n".join(inside)


def _in_prose(answer: str) -> Iterator[str]:
    """Yield the code of an answer without fences: from its first line of code to its last."""
    if not _HOOK.search(answer):
        return
    lines = answer.split("\n")
    first = next((at for at, line in enumerate(lines) if _CODE.match(line)), 0)
    hook = next(at for at, line in enumerate(lines) if _HOOK.match(line))
    first = max(first, hook - _MAX_LINES)
    for start in dict.fromkeys((first, hook)):
        end = hook + 1
        for at in range(hook + 1, min(len(lines), hook + _MAX_LINES)):
            if lines[at].strip():
                if not (lines[at].startswith((" ", "\t")) or _CODE.match(lines[at])):
                    break
                end = at + 1
        text = "\n".join(lines[start:end])
        if len(text) <= MAX_BYTES and _parses(text):
            yield text
            return


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _changed(answer: str, parent: str) -> Iterator[str]:
    """Yield the parent with all the changes of an answer, if it holds changes."""
    changes = list(_searches(answer)) or list(_hunks(answer))
    if not changes:
        return
    if not parent:
        raise _DoesNotFit("the answer is a change, and there is no parent to change")
    if len(changes) > _MAX_CHANGES:
        raise _DoesNotFit(f"the answer has {len(changes)} changes, more than {_MAX_CHANGES}")
    lines = parent.rstrip("\n").split("\n")
    for old, new, line in changes:
        lines = _replace(lines, _lines(old), _lines(new), line)
        if sum(map(len, lines)) > MAX_ANSWER:
            raise _DoesNotFit(f"the changes make more than {MAX_ANSWER:,} characters")
    yield "\n".join(lines)


def _searches(answer: str) -> Iterator[tuple[str, str, int]]:
    """Yield what is sought, what replaces it, and 0 for no line number, for each block."""
    old: list[str] = []
    new: list[str] = []
    side: list[str] | None = None
    for row in answer.split("\n"):
        if _SEARCH.fullmatch(row):
            old, new = [], []
            side = old
        elif side is old and side is not None and _DIVIDER.fullmatch(row):
            side = new
        elif side is new and side is not None and _REPLACE.fullmatch(row):
            yield "\n".join(old), "\n".join(new), 0
            side = None
        elif side is not None:
            side.append(row)


def _hunks(answer: str) -> Iterator[tuple[str, str, int]]:
    """Yield old lines, new lines and the number of the first, for each hunk of unified diffs."""
    texts = [text for language, text in _blocks(answer) if language in _DIFFS]
    if not texts and re.search(r"^@@ -\d", answer, re.MULTILINE):
        texts = [answer]
    for text in texts:
        old: list[str] = []
        new: list[str] = []
        line, within = 0, False
        for row in [*text.split("\n"), "@@"]:
            header = _HUNK.fullmatch(row)
            if header or (within and row.startswith(("--- ", "+++ ", "```", "diff "))):
                if old != new:
                    yield "\n".join(old), "\n".join(new), line
                old, new, within = [], [], bool(header)
                line = int((header and header["line"]) or 0)
            elif within and row.startswith("-"):
                old.append(row[1:])
            elif within and row.startswith("+"):
                new.append(row[1:])
            elif within and not row.startswith("\\"):
                old.append(row[1:])
                new.append(row[1:])


def _lines(text: str) -> list[str]:
    return text.strip("\n").split("\n") if text.strip("\n") else []


def _replace(lines: list[str], old: list[str], new: list[str], line: int) -> list[str]:
    """Put `new` in the place of `old`, which is there once, or nearest to a line number."""
    if not any(row.strip() for row in old):
        raise _DoesNotFit("a change does not say which lines of the parent it replaces")
    bare = [row.rstrip() for row in lines]
    sought = [row.rstrip() for row in old]
    places = [at for at in range(len(bare) - len(old) + 1) if bare[at : at + len(old)] == sought]
    if not places:
        raise _DoesNotFit(f"a change replaces lines that the parent does not have: {old[0]!a:.80}")
    if len(places) > 1 and not line:
        raise _DoesNotFit(f"a change fits {len(places)} places of the parent: {old[0]!a:.80}")
    at = min(places, key=lambda place: abs(place + 1 - line))
    return [*lines[:at], *new, *lines[at + len(old) :]]


def _why_none(answer: str, languages: list[str]) -> str:
    if any(language not in _PYTHON for language in languages) and not _HOOK.search(answer):
        other = next(language for language in languages if language not in _PYTHON)
        return f"the code of the answer is not Python but {other:.20}"
    if languages or _CODE.match(answer.strip()) or "def " in answer:
        return "no code of the answer defines waiting_key(request, engine) at its margin"
    return "there is no code in the answer"

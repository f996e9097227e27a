"""Gate G0, form: which text may be compiled as a candidate.

A candidate is the text of a policy file by whomever, a program included. The policy language of
:mod:`queuesmith.policies` says what the text may do; this says the rest, which matters when nobody
has read it: it is short, shallow and plain ASCII, it has no loops, it brings no engine settings,
and it does not ask for true output lengths. Nothing of the text is executed here.
"""

import ast
import io
import re
import tokenize
import warnings
from contextlib import suppress

from queuesmith.errors import CandidateError, PolicyError
from queuesmith.policies.syntax import CheckedFile, check_syntax

MAX_BYTES = 16_000
#: Names, numbers, operators and line ends: bounds the work of the parser, and its recursion.
MAX_TOKENS = 2_500
#: Brackets inside brackets, for which a parser may try exponentially many readings.
MAX_BRACKETS = 16
#: Characters of one name or number.
MAX_WORD = 60
#: Nodes of the syntax tree, and nodes inside nodes.
MAX_NODES = 3_000
MAX_DEPTH = 50
MAX_FUNCTIONS = 8

_FILE = "candidate"
_REFUSAL = re.compile(rf"{_FILE}(?::(?P<line>\d+))?: (?P<reason>.*)", re.DOTALL)
_ENCODING = re.compile(r"[ \t\f]*#.*?coding[:=]")  # as in PEP 263
_FSTRING = re.compile(r"[a-z]*[ft]", re.IGNORECASE)
_FSTRING_START = getattr(tokenize, "FSTRING_START", None)  # a token of its own from Python 3.12


def check_form(text: str) -> None:
    r"""Check the text of a candidate; takes milliseconds whatever the text is.

    Raises
    ------
    CandidateError
        At the first thing that a candidate may not have.

    Notes
    -----
    Not for two threads at once: the parser's warnings are turned into refusals, and Python keeps
    its warning filters once per process.

    Examples
    --------
    >>> check_form("def waiting_key(request, engine):\n    return request.arrival_time\n")
    >>> check_form("w = 0.5\n")
    Traceback (most recent call last):
        ...
    queuesmith.errors.CandidateError: line 1: `w`: constants are UPPER_CASE; write W = ...
    """
    if not isinstance(text, str):
        raise CandidateError(f"a candidate is text, got {type(text).__name__}")
    _check_characters(text)
    _check_tokens(text)
    try:
        checked = check_syntax(text, _FILE)
    except PolicyError as error:
        found = _REFUSAL.fullmatch(str(error))
        if found is None:
            raise CandidateError(str(error)) from None
        line = found["line"]
        raise CandidateError(found["reason"], int(line) if line else None) from None
    _check_tree(checked)


def _check_characters(text: str) -> None:
    """Allow what everyone reads the same way: no look-alikes, no invisible or reordering marks."""
    if len(text) > MAX_BYTES:
        raise CandidateError(
            f"{len(text):,} characters, more than the {MAX_BYTES:,} of a candidate; write less"
        )
    lines = text.split("\n")
    for number, line in enumerate(lines[:2], start=1):
        if _ENCODING.match(line):  # a file so marked would be read as other text than was checked
            raise CandidateError("a comment that sets an encoding; delete it", number)
    for number, line in enumerate(lines, start=1):
        for character in line:
            if not " " <= character <= "~":
                raise CandidateError(
                    f"the character {character!a}; write plain ASCII, indented with blanks, "
                    "in comments as well",
                    number,
                )


def _check_tokens(text: str) -> None:
    """Bound what the parser is given, by its tokens.

    What is wrong in a way that stops the tokenizer is left to the parser, which words it better.
    """
    num_tokens = depth = 0
    with warnings.catch_warnings(), suppress(tokenize.TokenError, SyntaxError):
        warnings.simplefilter("ignore")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.start[0]
            num_tokens += token.type not in (tokenize.COMMENT, tokenize.NL)
            if num_tokens > MAX_TOKENS:
                raise CandidateError(
                    f"more than the {MAX_TOKENS:,} names, numbers and signs of a candidate; "
                    "write less",
                    line,
                )
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
                if depth > MAX_BRACKETS:
                    raise CandidateError(
                        f"brackets nested more than {MAX_BRACKETS} deep; name the parts on lines "
                        "of their own",
                        line,
                    )
            elif token.type in (tokenize.NAME, tokenize.NUMBER):
                _check_word(token.string, line)
            elif token.type == _FSTRING_START or (
                token.type == tokenize.STRING and _FSTRING.match(token.string)
            ):
                raise CandidateError("text has no use in a policy; delete it", line)


def _check_word(word: str, line: int) -> None:
    if len(word) > MAX_WORD:
        raise CandidateError(
            f"`{word[:20]}...` has {len(word):,} characters, more than the {MAX_WORD} of a name "
            "or number; shorten it",
            line,
        )
    if word.startswith("__"):
        raise CandidateError(f"`{word}`: no name may begin with two underscores; rename it", line)


def _check_tree(checked: CheckedFile) -> None:
    """Refuse what a policy may have, but a candidate may not."""
    if checked.engine:
        raise CandidateError("ENGINE: a candidate is judged on the engine it is given; delete it")
    if "ORACLE" in checked.constants:
        raise CandidateError("ORACLE: a candidate is never told true output lengths; delete it")
    if "reject" in checked.functions:
        raise CandidateError("reject: a candidate serves all requests it is judged by; delete it")
    if len(checked.functions) > MAX_FUNCTIONS:
        raise CandidateError(
            f"{len(checked.functions)} functions, more than the {MAX_FUNCTIONS} of a candidate; "
            "merge some"
        )
    num_nodes = 0
    layer: list[ast.AST] = [checked.tree]
    for _ in range(MAX_DEPTH):
        num_nodes += len(layer)
        for node in layer:
            if isinstance(node, ast.For):
                raise CandidateError("a loop; write its rounds out, or do without", node.lineno)
        layer = [child for node in layer for child in ast.iter_child_nodes(node)]
    if layer:
        raise CandidateError(
            f"nested more than {MAX_DEPTH} deep; name the parts on lines of their own",
            getattr(layer[0], "lineno", None),
        )
    if num_nodes > MAX_NODES:
        raise CandidateError(
            f"{num_nodes:,} parts in its syntax tree, more than the {MAX_NODES:,} of a candidate; "
            "write less"
        )

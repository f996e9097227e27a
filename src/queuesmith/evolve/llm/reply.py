"""What an OpenAI-compatible endpoint has sent: an answer, or why it is none.

None of it is trusted: whatever has another form than it should is a failure with one printable
line, and a key that is repeated in it is taken out.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from queuesmith.evolve.llm.answers import MAX_ANSWER
from queuesmith.evolve.llm.budget import Usage

#: Statuses that may pass, and those that no other question will change.
_PASSING = (408, 409, 425, 429)
_HOPELESS = (401, 402, 403, 404, 405, 407, 410)
#: Tokens above which a count is not believed.
_MOST_TOKENS = 100_000_000
_NOTHING = Usage()


@dataclass(frozen=True)
class Reply:
    """What came of one question."""

    text: str = ""  # the answer; empty when there is none
    problem: str = ""  # why there is none, in one line; empty when there is one
    usage: Usage = _NOTHING  # of all its attempts
    model: str = ""  # which model says that it has answered
    tokens: tuple[int, int] | None = None  # of prompt and answer, as the endpoint counts
    finish: str = ""  # ``length`` for an answer that was cut off
    attempts: tuple[str, ...] = ()  # what came of each attempt
    hopeless: bool = False  # asking anything else would end the same way

    @property
    def asked(self) -> bool:
        """Whether the endpoint was asked at all, a budget permitting."""
        return bool(self.attempts)


@dataclass(eq=False)
class Failure(Exception):
    """An attempt without an answer."""

    what: str
    again: bool  # another attempt may go better
    billed: bool = False  # it may have cost something
    hopeless: bool = False
    wait: float = 0.0  # seconds that the endpoint asks for


class Refused(Exception):
    """A response with another status than success, its body read up to a limit."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


def refusal(key: str, refused: Refused) -> Failure:
    """Say what an error status means for further attempts."""
    status = refused.status
    text = refused.body.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        said = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, TypeError, LookupError, RecursionError):
        said = text
    spent = "insufficient_quota" in text  # a 429 that no patience helps
    return Failure(
        f"status {status}" + (f", {_line(key, said)}" if said.strip() else ""),
        again=(status in _PASSING or status >= 500) and not spent,
        hopeless=status in _HOPELESS or status < 400 or spent,
        wait=_retry_after(refused.headers),
    )


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds to wait that a response asks for; 0 when it does not say."""
    named = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = named.get(name, "")
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, TypeError, OverflowError):
                continue
        if math.isfinite(seconds) and seconds > 0:
            return seconds
    return 0.0


def read_answer(key: str, body: bytes) -> Reply:
    """Read the body of an answer; raise `Failure` if it is none."""
    text = body.decode("utf-8", "replace")
    try:
        document = _stream(text) if text.startswith("data:") else json.loads(text)
        choice = document["choices"][0]
        message = choice["message"]
        content = message.get("content")
        if isinstance(content, list):  # in parts
            content = "".join(str(part.get("text", "")) for part in content)
        content = content or message.get("refusal") or ""
        if not isinstance(content, str):
            raise TypeError(content)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise Failure(
            f"the body is no chat completion: {_line(key, text, 80) or 'it is empty'}",
            again=True,
            billed=True,
        ) from None
    return Reply(
        text=_storable(_without(key, content)[:MAX_ANSWER]),
        model=_line(key, str(document.get("model") or ""), 100),
        tokens=_tokens(document.get("usage")),
        finish=_line(key, str(choice.get("finish_reason") or ""), 40),
    )


def _stream(text: str) -> dict[str, Any]:
    """Put together what was streamed though nobody had asked for it."""
    parts, last = list[str](), dict[str, Any]()
    usage, finish = None, None
    for line in text.splitlines():
        if not line.startswith("data:") or line[5:].strip() in ("", "[DONE]"):
            continue
        last = json.loads(line[5:])
        usage = last.get("usage") or usage
        for choice in last["choices"][:1]:
            parts.append(choice["delta"].get("content") or "")
            finish = choice.get("finish_reason") or finish
    if not last:
        raise ValueError(text)
    choice = {"message": {"content": "".join(parts)}, "finish_reason": finish}
    return {"choices": [choice], "model": last.get("model"), "usage": usage}


def _tokens(usage: Any) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer; None when they are not to be believed."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    prompt, answer = (count if type(count) is int else -1 for count in counts)
    believed = 0 < prompt <= _MOST_TOKENS and 0 <= answer <= _MOST_TOKENS
    return (prompt, answer) if believed else None  # a question without tokens is none, too


def _storable(text: str) -> str:
    """Replace what SQLite and UTF-8 do not hold: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _line(key: str, text: str, most: int = 200) -> str:
    """Make one printable line of whatever an endpoint says, the key taken out of it first."""
    text = _storable(_without(key, text)[: 10 * most])
    shown = "".join(sign if sign.isprintable() else " " for sign in text)
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else f"{shown[:most]}..."


def said(key: str, error: BaseException) -> str:
    """Name an error and what it says, or rather its cause, in one line."""
    cause = error.__cause__ or error
    return _line(key, f"{type(cause).__name__}: {cause}".rstrip(": "))


def _without(key: str, text: str) -> str:
    """Take a key out of a text that repeats it."""
    return text.replace(key, "[key]") if key else text

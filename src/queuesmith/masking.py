"""Keys and passwords of a command line, masked before it is shown or kept."""

import re
from collections.abc import Sequence

MASK = "***"

_SECRET_OPTION = re.compile(r"--(api[-_]k\w*|[\w.-]*(key|token|secret|password))$", re.IGNORECASE)
_SECRET_FIELD = re.compile(
    r"""(["']?[\w-]*(?:key|token|secret|password)["']?\s*[:=]\s*["'])[^"']*""", re.IGNORECASE
)
#: How the keys of well-known services begin.
_SECRET_VALUE = re.compile(r"\b(sk-|hf_|ghp_|github_pat_|xox[abp]-|AKIA|eyJ)[\w.-]{8,}")


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with every value that is or looks like a key masked.

    >>> masked(["--api-key", "one", "two", "--port", "80", "--hf-token=abc"])
    ['--api-key', '***', '***', '--port', '80', '--hf-token=***']
    """
    shown: list[str] = []
    is_secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            is_secret = bool(_SECRET_OPTION.match(name))
            shown.append(f"{name}={MASK}" if is_secret and equals else masked_text(word))
        else:
            shown.append(MASK if is_secret else masked_text(word))
    return shown


def masked_text(text: str) -> str:
    """Return text, such as JSON or the options of another program, with keys masked."""
    if " --" in text or (text.startswith("--") and " " in text):
        text = "".join(_masked_parts(re.split(r"(\s+)", text)))
    return _SECRET_VALUE.sub(MASK, _SECRET_FIELD.sub(rf"\g<1>{MASK}", text))


def _masked_parts(parts: Sequence[str]) -> list[str]:
    """Mask every second part; the others are the space between."""
    words = masked(parts[::2])
    return [words[place // 2] if place % 2 == 0 else part for place, part in enumerate(parts)]

"""Texts that should not be run, by family; each says what has to stop it.

A family is a ``.txt`` file here or a function of `generated`. In a file, ``%%`` begins a text:

* ``%%`` alone: statements, taken once at the top level of a file and once inside a hook;
* ``%% top``, ``%% hook``, ``%% expression``: in that place only;
* ``%% whole``: a file as it stands.

The first lines tell what the family is about, the outcomes that may stop it, and whether its texts
are also executed unread in a contained process (``raw: yes``), where they may have to fail.
``FOLDER`` stands for a folder that is watched.
"""

from dataclasses import dataclass
from pathlib import Path

from . import generated

KEY = "\n\ndef waiting_key(request, engine):\n    return request.arrival_time\n"
HOOK = "import math\n\nSIZES = (1, 2, 4)\n\n\ndef waiting_key(request, engine):\n{body}\n"


@dataclass(frozen=True)
class Hostile:
    """One text."""

    family: str
    number: int
    text: str
    stopped_by: frozenset[str]
    raw: str = "no"

    def __str__(self) -> str:
        return f"{self.family}-{self.number}"


def corpus() -> list[Hostile]:
    """Return every text of every family."""
    found = []
    for file in sorted(Path(__file__).parent.glob("*.txt")):
        found += _read(file)
    for family, texts in sorted(generated.FAMILIES.items()):
        stopped_by = frozenset(generated.STOPPED_BY.get(family, ("form",)))
        found += [Hostile(family, number, text, stopped_by) for number, text in enumerate(texts())]
    return found


def _read(file: Path) -> list[Hostile]:
    head, *parts = file.read_text(encoding="utf-8").split("\n%%")
    told = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    stopped_by = frozenset(told["stopped by"].split(", "))
    texts = []
    for part in parts:
        place, _, body = part.partition("\n")
        body = body.rstrip("\n")
        indented = "\n".join(f"    {line}" for line in body.split("\n"))
        written = {
            "top": body + KEY,
            "hook": HOOK.format(body=f"{indented}\n    return request.arrival_time"),
            "expression": HOOK.format(body=f"    return {body}"),
            "whole": f"{body}\n",
        }
        places = [place.strip()] if place.strip() else ["top", "hook"]
        texts += [written[name] for name in places]
    return [
        Hostile(file.stem, number, text, stopped_by, told.get("raw", "no"))
        for number, text in enumerate(texts)
    ]

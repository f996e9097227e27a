"""All options of ``vllm serve`` and what becomes of each here; `vllm_options.csv` is the table."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

from queuesmith.errors import ConfigError

#: Whose options the table lists.
VLLM_VERSION = "0.32.0"


@dataclass(frozen=True)
class VllmOption:
    """One option, and what is said when it is given.

    Attributes
    ----------
    name : str
        Without the two dashes.
    also : tuple of str
        Its other names, with their dashes.
    takes : {"switch", "flag", "value", "values", "optional"}
        A switch has a ``--no-`` form, a flag has none, a value may be left out where optional.
    kind : {"followed", "preset", "not simulated", "no effect", "gone"}
        Followed; fixed by the engine preset (how long a step takes, how much KV fits); with an
        effect that is not simulated; without effect on scheduling; or no longer an option of vLLM.
    unless : tuple of str
        Values with which there is nothing to say.
    words : str
        What it does, or what is said about it.
    """

    name: str
    also: tuple[str, ...]
    takes: Literal["switch", "flag", "value", "values", "optional"]
    kind: Literal["followed", "preset", "not simulated", "no effect", "gone"]
    unless: tuple[str, ...]
    words: str


@cache
def vllm_options() -> Mapping[str, VllmOption]:
    """Return every option by name, in the order of ``vllm serve --help``, then those gone."""
    table = files("queuesmith.engine.presets") / "vllm_options.csv"
    text = table.read_text(encoding="utf-8")
    options = [
        VllmOption(
            name=row["option"],
            also=tuple(row["also"].split()),
            takes=row["takes"],  # type: ignore[arg-type]
            kind=row["kind"],  # type: ignore[arg-type]
            unless=tuple(row["unless"].split("|")) if row["unless"] else (),
            words=row["words"],
        )
        for row in csv.DictReader(text.splitlines())
    ]
    return {option.name: option for option in options}


@cache
def _by_spelling() -> Mapping[str, VllmOption]:
    return {
        spelling: option
        for option in vllm_options().values()
        for spelling in (f"--{option.name}", *option.also)
    }


def find_option(spelling: str) -> tuple[VllmOption | None, bool]:
    """Return the option of that spelling, and whether it is switched off by ``--no-``.

    As in vLLM, underscores are dashes and the beginning of a name will do when it is one's alone.
    None for what is no option of vLLM.

    Raises
    ------
    ConfigError
        If the beginning fits several options, or the name is nearly that of one.

    Examples
    --------
    >>> find_option("--device_memory_utilization")[0].name
    'gpu-memory-utilization'
    >>> find_option("--max-num-b")[0].name
    'max-num-batched-tokens'
    """
    known = _by_spelling()
    spelling = spelling.replace("_", "-")
    if spelling in known:
        return known[spelling], False
    if not spelling.startswith("--"):
        return None, False
    positive = "--" + spelling.removeprefix("--no-")
    if spelling.startswith("--no-") and positive in known and known[positive].takes == "switch":
        return known[positive], True
    fitting = [
        name
        for name, option in known.items()
        if len(spelling) > 2 and name.startswith(spelling) and option.kind != "gone"
    ]
    if len(fitting) == 1:
        return known[fitting[0]], False
    if fitting:
        raise ConfigError(
            f"--engine-args: {spelling} may be {', '.join(sorted(fitting)[:6])}; write it out"
        )
    if close := get_close_matches(spelling, known, n=1, cutoff=0.85):
        raise ConfigError(
            f"--engine-args: vLLM {VLLM_VERSION} has no {spelling}. Did you mean {close[0]}?"
        )
    return None, False

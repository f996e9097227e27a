"""Proposers by name, with the options that a configuration gives them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from queuesmith.errors import ConfigError, PolicyError, did_you_mean
from queuesmith.evolve.candidate import Proposer
from queuesmith.evolve.config import EvolveConfig, Share
from queuesmith.evolve.files import Files
from queuesmith.evolve.gp.program import Program
from queuesmith.evolve.gp.proposer import Gp
from queuesmith.evolve.gp.random_search import RandomSearch
from queuesmith.evolve.gp.terminals import TERMS
from queuesmith.evolve.gp.variation import Space
from queuesmith.evolve.llm.proposer import OPTIONS as LLM_OPTIONS
from queuesmith.evolve.llm.proposer import Llm
from queuesmith.traces.source import one_line

CONTROL = "random"
_KNOWLEDGE = ("deadlines", "predictions")
_SPACE = ("knowledge", "victims")


def make_proposer(share: Share) -> Proposer:
    """Make a proposer."""
    if share.name not in _MAKERS:
        raise ConfigError(
            f"there is no proposer {share.name!r}.{did_you_mean(share.name, _MAKERS)} Known: "
            f"{', '.join(_MAKERS)}"
        )
    make, known = _MAKERS[share.name]
    for name in share.options:
        if name not in known:
            raise ConfigError(
                f"proposer {share.name} has no option {name!r}.{did_you_mean(name, known)} It has: "
                f"{', '.join(known)}"
            )
    try:
        return make(share.options)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"proposer {share.name}: {error}") from None


def make_control(config: EvolveConfig) -> Proposer:
    """Make the control of a run: random search over the programs that its `gp` searches."""
    options: Mapping[str, Any] = {}
    for share in config.proposers:
        if share.name == "gp":
            options = {name: share.options[name] for name in _SPACE if name in share.options}
    return make_proposer(Share(CONTROL, options=options))


def _gp(options: Mapping[str, Any]) -> Proposer:
    plain = {name: value for name, value in options.items() if name not in _SPACE}
    for name in ("tuned_share", "fresh_share"):
        value = plain.get(name, 0.0)
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ConfigError(f"proposer gp: {name} must be from 0 to 1, got {value!r:.40}")
    space = _space(options)
    return Gp(space=space, **plain | {"start": _start(plain.get("start", []), space)})


def _start(texts: Any, space: Space) -> tuple[Program, ...]:
    """Read the programs that a search is given to start from."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"proposer gp: start must be an array of genomes as JSON texts, got {texts!r:.60}"
        )
    programs = []
    for text in texts:
        try:
            program = Program.from_json(json.loads(text))
        except (ValueError, RecursionError, PolicyError) as error:
            raise ConfigError(f"proposer gp: start: {one_line(error)} in {text:.60}") from None
        unknown = {
            node.name
            for hook, tree in program.trees.items()
            for node in tree.walk()
            if node.name in TERMS and node.name not in space.terms(hook)
        }
        if unknown or (program.victim_key is not None and not space.victims):
            what = ", ".join(sorted(unknown)) or "victim_key"
            raise ConfigError(f"proposer gp: start: {what} is not among what this search may use")
        programs.append(program)
    return tuple(programs)


def _random(options: Mapping[str, Any]) -> Proposer:
    return RandomSearch(space=_space(options))


def _files(options: Mapping[str, Any]) -> Proposer:
    folder = options.get("folder")
    if not isinstance(folder, str):
        raise ConfigError('proposer files needs a folder: options = { folder = "candidates" }')
    return Files(folder)


def _space(options: Mapping[str, Any]) -> Space:
    space = Space()
    if "knowledge" in options:
        knowledge = options["knowledge"]
        if not isinstance(knowledge, list) or any(item not in _KNOWLEDGE for item in knowledge):
            raise ConfigError(
                f"knowledge must be an array of some of {', '.join(_KNOWLEDGE)}, got "
                f"{knowledge!r:.60}"
            )
        space = replace(space, knowledge=tuple(knowledge))
    if "victims" in options:
        if not isinstance(options["victims"], bool):
            raise ConfigError(f"victims must be true or false, got {options['victims']!r:.40}")
        space = replace(space, victims=options["victims"])
    return space


#: How each is made, and the options it takes.
_MAKERS: dict[str, tuple[Callable[[Mapping[str, Any]], Proposer], tuple[str, ...]]] = {
    "gp": (_gp, ("constants", "tuned_share", "fresh_share", "start", *_SPACE)),
    CONTROL: (_random, _SPACE),
    "files": (_files, ("folder",)),
    "llm": (lambda options: Llm(**options), LLM_OPTIONS),
}

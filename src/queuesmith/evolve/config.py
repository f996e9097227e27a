"""What a run is told: traffic, engines, proposers, budgets. One TOML file, every field checked."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from queuesmith.config import Slo
from queuesmith.documents import parse_toml, read_file
from queuesmith.engine.presets.step_time import Preset, get_preset
from queuesmith.errors import ConfigError, did_you_mean
from queuesmith.evaluation.evaluate import Load, parse_loads
from queuesmith.evaluation.goals import DEFAULT_GOAL, Goal, Guard, get_goal, parse_guards
from queuesmith.evolve.fields import check_names, number, read_table
from queuesmith.traces.columns.source import one_line
from queuesmith.windows.frozen import PARTS
from queuesmith.windows.predictions import OutputLengthKnowledge

SCHEMA = 1
MAX_BYTES = 100_000
#: What a run uses up beside evaluations: CPU seconds are the candidates', wall seconds those in
#: which the run's process was there.
CURRENCIES = ("wall_seconds", "cpu_seconds", "llm_calls", "llm_tokens", "llm_money")

#: The limits of `queuesmith compare`, unless a configuration has others.
USUAL_SLO: Mapping[str, float] = MappingProxyType({"ttft": 1.0, "tpot": 0.05})

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Source:
    """Where requests come from."""

    file: str  # under ``$QUEUESMITH_TRACES``, or ``NAME@model``
    #: ``NAME@model`` to use where the file is missing; what it makes is called modelled.
    stand_in: str = ""
    num_requests: int = number(0, least=0)  # to draw from a model; 0 for the model's own choice
    #: num_windows, window_len: in each part; 0 for those of ``[windows]``.
    num_windows: int = number(0, least=0)
    window_len: int = number(0, least=0)
    #: Those it is cut into; all three when left out. With ``["held_out"]`` alone it is traffic of a
    #: kind that nothing was bred on.
    parts: tuple[str, ...] = ()

    def entry(self, folder: Path | None) -> dict[str, Any]:
        """Return what `WindowSet.freeze` reads: the file if it is there, else the stand-in."""
        there = folder is not None and os.path.isfile(folder / self.file)
        name = self.file if there or not self.stand_in else self.stand_in
        entry: dict[str, Any] = {"file": name}
        if name.endswith("@model") and self.num_requests:
            entry["num_requests"] = self.num_requests
        return entry


@dataclass(frozen=True)
class Windows:
    """How the traffic is cut; each part of a source comes from a period of its own."""

    #: num_windows, window_len: in each part of each source, and requests in each.
    num_windows: int = number(8, least=1, most=1_000)
    window_len: int = number(800, least=2, most=1_000_000)
    #: Tuning windows of each source that a generation is scored on; the next one takes others.
    per_generation: int = number(4, least=1)
    #: Cut so many tuning windows and keep those `num_windows` on which different classics win; 0 to
    #: keep what is cut.
    picked_from: int = number(0, least=0, most=1_000)
    seed: int = number(0, least=0)
    #: tuning, validation, held_out: shares of each source, in order of time.
    tuning: float = number(PARTS["tuning"], least=0.01, most=1)
    validation: float = number(PARTS["validation"], least=0.01, most=1)
    held_out: float = number(PARTS["held_out"], least=0.01, most=1)

    @property
    def parts(self) -> dict[str, float]:
        """Share of each part."""
        return {part: getattr(self, part) for part in PARTS}

    def parts_of(self, source: Source) -> dict[str, float]:
        """Share of each part that a source is cut into; all of it where it says which."""
        if not source.parts:
            return self.parts
        whole = sum(self.parts[part] for part in source.parts)
        return {part: share / whole for part, share in self.parts.items() if part in source.parts}


@dataclass(frozen=True)
class Search:
    """How the search goes on."""

    generations: int = number(20, least=1, most=1_000_000)
    #: Candidates that each of search and control tries in a generation, over all islands.
    children: int = number(40, least=1, most=100_000)
    islands: int = number(2, least=1, most=100)  # populations that breed apart
    #: A candidate leaves its island once so many others beat it: no larger, no lower in score, no
    #: less clean of broken guards.
    depth: int = number(6, least=1, most=1_000)
    #: Candidates of an island that a proposer may breed from in a generation.
    parents: int = number(12, least=1, most=1_000)
    #: Generations between two visits of each island's best to the next; 0 for never.
    migrate_every: int = number(5, least=0)
    #: Stop a candidate once it is certain to be beaten; who survives does not change.
    stop_early: bool = True
    #: Policies scored beside the search, for reference.
    classics: tuple[str, ...] = ("sjf", "aged_sjf", "residual_sjf", "hrrn", "las", "edf")


@dataclass(frozen=True)
class Budget:
    """What a run may use up; 0 is no limit. Evaluations are those of the search in each seed.

    The control gets as many evaluations as the search; `llm_money` is in the currency in which the
    proposer's prices are given.
    """

    evaluations: int = number(0, least=0)
    wall_seconds: float = number(0.0, least=0)
    cpu_seconds: float = number(0.0, least=0)
    llm_calls: int = number(0, least=0)
    llm_tokens: int = number(0, least=0)
    llm_money: float = number(0.0, least=0)


@dataclass(frozen=True)
class Limits:
    """What one candidate may use up in its child process."""

    cpu_seconds: int = number(20, least=1, most=3_600)
    wall_seconds: float = number(120.0, least=0.1, most=36_000)
    memory_mib: int = number(512, least=64, most=1_000_000)


@dataclass(frozen=True)
class Share:
    """A proposer and its share of the candidates; `options` are its own, and it checks them."""

    name: str
    share: float = number(1.0, least=0.0, most=1.0)
    options: Mapping[str, Any] = field(default_factory=lambda: _NONE)


@dataclass(frozen=True)
class EvolveConfig:
    """A whole run; `text` is the TOML it was read from.

    `set_file` is a window set to use instead of sources. `second_engine` is for the gate that asks
    whether a gain survives other step times; the loop itself never runs it. `goal` is what is bred
    for, `guards` what must not get worse than FCFS's on the way.
    """

    name: str
    text: str
    seeds: tuple[int, ...]
    sources: tuple[Source, ...]
    set_file: str
    windows: Windows
    loads: tuple[Load, ...]
    engine: Preset
    second_engine: Preset | None
    output_length: OutputLengthKnowledge
    slo: Slo | None
    goal: Goal
    guards: tuple[Guard, ...]
    search: Search
    proposers: tuple[Share, ...]
    budget: Budget
    sandbox: Limits

    @property
    def sha256(self) -> str:
        """Hash of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def evaluations(self) -> int:
        """Evaluations of the search in each seed, as far as known beforehand."""
        planned = self.search.generations * self.search.children
        return min(planned, self.budget.evaluations) if self.budget.evaluations else planned


def config_names() -> list[str]:
    """Names of the configurations that come with the package."""
    folder = files("queuesmith.evolve") / "configs"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml"))


def read_config(spec: str) -> EvolveConfig:
    """Read a configuration by the name of a packaged one or by path."""
    if spec in config_names():
        text = (files("queuesmith.evolve") / "configs" / f"{spec}.toml").read_text("utf-8")
        return parse_config(text, spec)
    path = Path(spec)
    if path.suffix != ".toml" and not path.exists():
        raise ConfigError(
            f"there is no configuration {spec!r}.{did_you_mean(spec, config_names())} Give a .toml "
            f"file or one of {', '.join(config_names())}"
        )
    try:
        content = read_file(path, MAX_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {spec!r}; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{spec} cannot be read: {one_line(error)}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path.name} is larger than the {MAX_BYTES:,} bytes of a configuration")
    return parse_config(text, path.name)


def with_seeds(config: EvolveConfig, seeds: Sequence[int]) -> EvolveConfig:
    """Return a configuration with other seeds, in its text as well."""
    chosen = _seeds("--seed", list(seeds))
    pattern = re.compile(r"^seeds\s*=\s*\[[^\]]*\]", re.MULTILINE)
    line = f"seeds = {list(chosen)}"
    text = pattern.sub(line, config.text, count=1)
    if not pattern.search(config.text):
        text = f"{line}\n{text}"
    changed = parse_config(text, config.name)
    if changed.seeds != chosen:
        raise ConfigError("--seed cannot be written into this configuration; edit its seeds")
    return changed


@dataclass(frozen=True)
class _Document:
    """The file as it is written; tables are read by what they are about."""

    schema: int = SCHEMA
    name: str = ""
    seeds: list[int] = field(default_factory=lambda: [0])
    loads: list[str] = field(default_factory=lambda: ["busy", "overload"])
    engine: str = "llama-3.1-8b/h100_sxm"
    second_engine: str = ""
    output_length: str = "noisy"
    slo: Mapping[str, Any] = field(default_factory=lambda: USUAL_SLO)
    goal: str = DEFAULT_GOAL
    guards: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    window_set: str = ""
    source: list[Any] = field(default_factory=list)
    windows: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    search: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    budget: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    sandbox: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    proposer: list[Any] = field(default_factory=list)


def parse_config(text: str, where: str) -> EvolveConfig:
    """Read a configuration from TOML text; `where` is its name in messages."""
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not TOML: {one_line(error)}") from None
    found = read_table(where, table, _Document)
    if found.schema != SCHEMA:
        raise ConfigError(
            f"{where}: schema must be {SCHEMA}, got {found.schema}; use the version of queuesmith "
            "that it was written for"
        )
    sources = tuple(read_table(f"{where}: source", one, Source) for one in found.source)
    if bool(sources) == bool(found.window_set):
        raise ConfigError(
            f"{where} needs traffic: either [[source]] tables, each with a file, or window_set, a "
            "file of frozen windows"
        )
    try:
        slo = _slo(where, found.slo)
        proposers = (read_table(f"{where}: proposer", one, Share) for one in found.proposer)
        config = EvolveConfig(
            name=found.name or where.removesuffix(".toml"),
            text=text,
            seeds=_seeds(where, found.seeds),
            sources=sources,
            set_file=found.window_set,
            windows=read_table(f"{where}: windows", found.windows, Windows),
            loads=tuple(parse_loads(found.loads)),
            engine=get_preset(found.engine),
            second_engine=get_preset(found.second_engine) if found.second_engine else None,
            output_length=OutputLengthKnowledge.parse(found.output_length),
            slo=slo,
            goal=get_goal(found.goal, slo),
            guards=parse_guards([f"{name}={_margin(one)}" for name, one in found.guards.items()]),
            search=read_table(f"{where}: search", found.search, Search),
            proposers=tuple(proposers) or (Share("gp"),),
            budget=read_table(f"{where}: budget", found.budget, Budget),
            sandbox=read_table(f"{where}: sandbox", found.sandbox, Limits),
        )
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(where) else f"{where}: {message}") from None
    if found.engine == found.second_engine:
        raise ConfigError(
            f"{where}: second_engine is the engine itself ({found.engine}), which would prove "
            "nothing; name another one or leave it out"
        )
    for contradiction in _contradictions(config):
        raise ConfigError(f"{where}: {contradiction}")
    return config


def _slo(where: str, limits: Mapping[str, Any]) -> Slo | None:
    """Read limits in seconds; none is no SLO."""
    check_names(f"{where}: slo", limits, [one.name for one in fields(Slo)])
    return Slo(**limits) if limits else None


def _margin(value: Any) -> Any:
    """Write a margin as an option has it; what is no number is refused under its name."""
    return "off" if value is False else repr(value) if isinstance(value, bool) else value


def _contradictions(config: EvolveConfig) -> Iterator[str]:
    """Yield what makes no sense together."""
    windows = config.windows
    if (total := sum(windows.parts.values())) > 1 + 1e-9:
        yield f"windows: tuning, validation and held_out must add up to 1 at most, got {total:g}"
    for source in config.sources:
        for part in source.parts:
            if part not in PARTS or source.parts.count(part) > 1:
                shown = ", ".join(source.parts)
                yield f"source: parts must be different ones of {', '.join(PARTS)}, got {shown}"
        if source.stand_in and not source.stand_in.endswith("@model"):
            yield (
                "source: stand_in must be a model such as azure_2023_conv@model, got "
                f"{source.stand_in!r}"
            )
        if "tuning" not in windows.parts_of(source):
            continue
        number_of = f"the number of windows ({source.num_windows or windows.num_windows})"
        if windows.per_generation > (source.num_windows or windows.num_windows):
            yield (
                f"windows: per_generation ({windows.per_generation}) must not be above {number_of} "
                f"of {source.file}"
            )
        if 0 < windows.picked_from < (source.num_windows or windows.num_windows):
            yield (
                f"windows: picked_from ({windows.picked_from}) must be 0 or at least {number_of} "
                f"of {source.file}"
            )
    for part in PARTS if config.sources else ():
        if not any(part in windows.parts_of(source) for source in config.sources):
            yield f"source: no source has windows for {part}; give one to it"
    names = [share.name for share in config.proposers]
    if "random" in names or len(set(names)) < len(names):
        yield (
            "proposers must be given once each, and random is always the control beside them, got "
            f"{', '.join(names)}"
        )
    budget = config.budget
    if "llm" in names and not (budget.llm_calls or budget.llm_tokens or budget.llm_money):
        yield (
            "the proposer llm needs a cap on what it may cost: set llm_calls, llm_tokens or "
            "llm_money under [budget]"
        )
    if abs((total := sum(share.share for share in config.proposers)) - 1) > 1e-9:
        yield f"the shares of proposers must add up to 1, got {total:g}"


def _seeds(where: str, seeds: Sequence[Any]) -> tuple[int, ...]:
    good = all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds)
    if not seeds or not good or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"{where}: seeds must be different whole numbers from 0 up, at least one, got "
            f"{list(seeds)!r:.60}"
        )
    return tuple(seeds)

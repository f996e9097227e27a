"""What a run is told: traffic, engines, proposers, budgets. One TOML file, every field checked."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from queuesmith.config import Slo
from queuesmith.documents import parse_toml, read_file
from queuesmith.engine.step_time import Preset, get_preset
from queuesmith.errors import ConfigError, did_you_mean
from queuesmith.evaluation.evaluate import Load, parse_loads
from queuesmith.evaluation.goals import DEFAULT_GOAL, Goal, Guard, get_goal, parse_guards
from queuesmith.output_length import OutputLengthKnowledge
from queuesmith.traces.source import one_line
from queuesmith.window_sets import PARTS

SCHEMA = 1
MAX_BYTES = 100_000
#: What a run uses up beside evaluations: CPU seconds are the candidates', wall seconds those in
#: which the run's process was there.
CURRENCIES = ("wall_seconds", "cpu_seconds", "llm_calls", "llm_tokens", "llm_money")

#: The limits of `queuesmith compare`, unless a configuration has others.
USUAL_SLO: Mapping[str, float] = MappingProxyType({"ttft": 1.0, "tpot": 0.05})

_Section = TypeVar("_Section")
_NONE: Mapping[str, Any] = MappingProxyType({})


def _number(default: Any = MISSING, *, least: float, most: float = float("inf")) -> Any:
    """Declare a number of a section with its limits."""
    limits = {"least": least, "most": most}
    return field(metadata=limits) if default is MISSING else field(default=default, metadata=limits)


@dataclass(frozen=True)
class Source:
    """Where requests come from."""

    file: str  # under ``$QUEUESMITH_TRACES``, or ``NAME@model``
    #: ``NAME@model`` to use where the file is missing; what it makes is called modelled.
    stand_in: str = ""
    num_requests: int = _number(0, least=0)  # to draw from a model; 0 for the model's own choice
    #: num_windows, window_len: in each part; 0 for those of ``[windows]``.
    num_windows: int = _number(0, least=0)
    window_len: int = _number(0, least=0)
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
    num_windows: int = _number(8, least=1, most=1_000)
    window_len: int = _number(800, least=2, most=1_000_000)
    #: Tuning windows of each source that a generation is scored on; the next one takes others.
    per_generation: int = _number(4, least=1)
    #: Cut so many tuning windows and keep those `num_windows` on which different classics win; 0 to
    #: keep what is cut.
    picked_from: int = _number(0, least=0, most=1_000)
    seed: int = _number(0, least=0)
    #: tuning, validation, held_out: shares of each source, in order of time.
    tuning: float = _number(PARTS["tuning"], least=0.01, most=1)
    validation: float = _number(PARTS["validation"], least=0.01, most=1)
    held_out: float = _number(PARTS["held_out"], least=0.01, most=1)

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

    generations: int = _number(20, least=1, most=1_000_000)
    #: Candidates that each of search and control tries in a generation, over all islands.
    children: int = _number(40, least=1, most=100_000)
    islands: int = _number(2, least=1, most=100)  # populations that breed apart
    #: A candidate leaves its island once so many others beat it: no larger, no lower in score, no
    #: less clean of broken guards.
    depth: int = _number(6, least=1, most=1_000)
    #: Candidates of an island that a proposer may breed from in a generation.
    parents: int = _number(12, least=1, most=1_000)
    #: Generations between two visits of each island's best to the next; 0 for never.
    migrate_every: int = _number(5, least=0)
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

    evaluations: int = _number(0, least=0)
    wall_seconds: float = _number(0.0, least=0)
    cpu_seconds: float = _number(0.0, least=0)
    llm_calls: int = _number(0, least=0)
    llm_tokens: int = _number(0, least=0)
    llm_money: float = _number(0.0, least=0)


@dataclass(frozen=True)
class Limits:
    """What one candidate may use up in its child process."""

    cpu_seconds: int = _number(20, least=1, most=3_600)
    wall_seconds: float = _number(120.0, least=0.1, most=36_000)
    memory_mib: int = _number(512, least=64, most=1_000_000)


@dataclass(frozen=True)
class Share:
    """A proposer and its share of the candidates; `options` are its own, and it checks them."""

    name: str
    share: float = _number(1.0, least=0.0, most=1.0)
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


_TOP = {
    "schema": int,
    "name": str,
    "seeds": list,
    "loads": list,
    "engine": str,
    "second_engine": str,
    "output_length": str,
    "slo": dict,
    "goal": str,
    "guards": dict,
    "window_set": str,
    "source": list,
    "windows": dict,
    "search": dict,
    "budget": dict,
    "sandbox": dict,
    "proposer": list,
}
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "an array",
    dict: "a table",
}


def parse_config(text: str, where: str) -> EvolveConfig:
    """Read a configuration from TOML text; `where` is its name in messages."""
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not TOML: {one_line(error)}") from None
    _known(where, document, _TOP)
    for key, value in document.items():
        _typed(where, key, value, _TOP[key])
    if document.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(
            f"{where}: schema must be {SCHEMA}, got {document['schema']}; use the version of "
            "queuesmith that it was written for"
        )
    sources = tuple(_tables(where, document, "source", Source))
    set_file = document.get("window_set", "")
    if bool(sources) == bool(set_file):
        raise ConfigError(
            f"{where} needs traffic: either [[source]] tables, each with a file, or window_set, a "
            "file of frozen windows"
        )
    engine = document.get("engine", "llama-3.1-8b/h100_sxm")
    second = document.get("second_engine", "")
    try:
        slo = _slo(where, document.get("slo", USUAL_SLO))
        config = EvolveConfig(
            name=document.get("name", where.removesuffix(".toml")),
            text=text,
            seeds=_seeds(where, document.get("seeds", [0])),
            sources=sources,
            set_file=set_file,
            windows=_section(f"{where}: windows", document.get("windows", {}), Windows),
            loads=tuple(parse_loads(document.get("loads", ["busy", "overload"]))),
            engine=get_preset(engine),
            second_engine=get_preset(second) if second else None,
            output_length=OutputLengthKnowledge.parse(document.get("output_length", "noisy")),
            slo=slo,
            goal=get_goal(document.get("goal", DEFAULT_GOAL), slo),
            guards=parse_guards(
                [f"{name}={_margin(value)}" for name, value in document.get("guards", {}).items()]
            ),
            search=_section(f"{where}: search", document.get("search", {}), Search),
            proposers=tuple(_tables(where, document, "proposer", Share)) or (Share("gp"),),
            budget=_section(f"{where}: budget", document.get("budget", {}), Budget),
            sandbox=_section(f"{where}: sandbox", document.get("sandbox", {}), Limits),
        )
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(where) else f"{where}: {message}") from None
    _check_together(where, config, engine, second)
    return config


def _slo(where: str, limits: Mapping[str, Any]) -> Slo | None:
    """Read limits in seconds; none is no SLO."""
    _known(f"{where}: slo", limits, {field.name: field for field in fields(Slo)})
    return Slo(**limits) if limits else None


def _margin(value: Any) -> Any:
    """Write a margin as an option has it; what is no number is refused under its name."""
    return "off" if value is False else repr(value) if isinstance(value, bool) else value


def _check_together(where: str, config: EvolveConfig, engine: str, second: str) -> None:
    """Refuse values that make no sense together."""
    windows = config.windows
    if engine == second:
        raise ConfigError(
            f"{where}: second_engine is the engine itself ({engine}), which would prove nothing; "
            "name another one or leave it out"
        )
    if sum(windows.parts.values()) > 1 + 1e-9:
        raise ConfigError(
            f"{where}: windows: tuning, validation and held_out must add up to 1 at most, got "
            f"{sum(windows.parts.values()):g}"
        )
    for source in config.sources:
        for part in source.parts:
            if part not in PARTS or source.parts.count(part) > 1:
                raise ConfigError(
                    f"{where}: source: parts must be different ones of {', '.join(PARTS)}, got "
                    f"{', '.join(source.parts)}"
                )
        if source.stand_in and not source.stand_in.endswith("@model"):
            raise ConfigError(
                f"{where}: source: stand_in must be a model such as azure_2023_conv@model, got "
                f"{source.stand_in!r}"
            )
        if "tuning" not in windows.parts_of(source):
            continue
        per_source = source.num_windows or windows.num_windows
        if windows.per_generation > per_source:
            raise ConfigError(
                f"{where}: windows: per_generation ({windows.per_generation}) must not be above "
                f"the number of windows ({per_source}) of {source.file}"
            )
        if windows.picked_from and windows.picked_from < per_source:
            raise ConfigError(
                f"{where}: windows: picked_from ({windows.picked_from}) must be 0 or at least the "
                f"number of windows ({per_source}) of {source.file}"
            )
    for part in PARTS if config.sources else ():
        if not any(part in windows.parts_of(source) for source in config.sources):
            raise ConfigError(f"{where}: source: no source has windows for {part}; give one to it")
    names = [share.name for share in config.proposers]
    if "random" in names or len(set(names)) < len(names):
        raise ConfigError(
            f"{where}: proposers must be given once each, and random is always the control beside "
            f"them, got {', '.join(names)}"
        )
    capped = config.budget.llm_calls or config.budget.llm_tokens or config.budget.llm_money
    if "llm" in names and not capped:
        raise ConfigError(
            f"{where}: the proposer llm needs a cap on what it may cost: set llm_calls, llm_tokens "
            "or llm_money under [budget]"
        )
    total = sum(share.share for share in config.proposers)
    if abs(total - 1) > 1e-9:
        raise ConfigError(f"{where}: the shares of proposers must add up to 1, got {total:g}")


def _tables(
    where: str, document: Mapping[str, Any], key: str, kind: type[_Section]
) -> list[_Section]:
    return [_section(f"{where}: {key}", table, kind) for table in document.get(key, [])]


def _section(where: str, table: Any, kind: type[_Section]) -> _Section:
    """Read a table into a dataclass: names, types, limits."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table, got {table!r:.60}")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    _known(where, table, known)
    values = {}
    for name, value in table.items():
        declared = known[name]
        if declared.type == tuple[str, ...]:
            _typed(where, name, value, list)
            if not all(isinstance(item, str) for item in value):
                raise ConfigError(f"{where}: {name} must be an array of names, got {value!r:.60}")
            value = tuple(value)
        elif isinstance(declared.type, type):
            _typed(where, name, value, declared.type)
        else:
            _typed(where, name, value, dict)
        limits = declared.metadata
        if limits and not limits["least"] <= value <= limits["most"]:
            raise ConfigError(
                f"{where}: {name} must be at least {limits['least']:g}"
                + (f" and at most {limits['most']:g}" if limits["most"] < float("inf") else "")
                + f", got {value!r}"
            )
        values[name] = float(value) if declared.type is float else value
    for name, declared in known.items():
        required = declared.default is MISSING and declared.default_factory is MISSING
        if required and not values.get(name):
            raise ConfigError(f"{where}: {name} is missing; every such table needs it")
    return kind(**values)


def _known(where: str, table: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(
                f"{where} has no field {name!r}.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}"
            )


def _typed(where: str, name: str, value: Any, kind: type) -> None:
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right:
        raise ConfigError(f"{where}: {name} must be {_WORDS[kind]}, got {value!r:.60}")


def _seeds(where: str, seeds: Sequence[Any]) -> tuple[int, ...]:
    good = all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds)
    if not seeds or not good or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"{where}: seeds must be different whole numbers from 0 up, at least one, got "
            f"{list(seeds)!r:.60}"
        )
    return tuple(seeds)

"""The text of a design, checked: each mistake is one line that says what would be right."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from queuesmith.config import Slo
from queuesmith.documents import read_file
from queuesmith.engine.presets.step_time import Preset, get_preset
from queuesmith.errors import ConfigError, QueuesmithError, TraceError, did_you_mean
from queuesmith.evaluation.evaluate import Load, parse_loads
from queuesmith.metrics import METRICS
from queuesmith.policies import Policy, get_policy
from queuesmith.study.inputs import Source
from queuesmith.traces.synthetic import load_model
from queuesmith.windows.predictions import OutputLengthKnowledge

#: The slot engine of LSSP, which has policies, loads and metrics of its own.
SLOTS = "lssp_slots"
ENGINES = ("queuesmith", SLOTS)

_NUMBER = (int, float)
_Kinds = Mapping[str, type | tuple[type, ...]]
_KEYS: _Kinds = {
    "name": str,
    "title": str,
    "engine": str,
    "policies": list,
    "loads": list,
    "multipliers": dict,
    "engines": list,
    "engine_settings": dict,
    "window_len": int,
    "num_windows": int,
    "sources": list,
    "output_length": str,
    "sensitivity": dict,
    "slo": dict,
    "metrics": list,
    "reference": str,
    "seed": int,
}
_SOURCE_KEYS: _Kinds = {
    "name": str,
    "file": str,
    "files": list,
    "model": str,
    "num_windows": int,
    "share": _NUMBER,
}
_SENSITIVITY_KEYS: _Kinds = {"predictions": list, "engines": list, "loads": list, "policies": list}
_SLO_KEYS: _Kinds = {"ttft": _NUMBER, "tpot": _NUMBER, "e2el": _NUMBER}
_WORDS = {str: "text", int: "a whole number", list: "a list", dict: "a table"}
_MOST = 10_000_000


@dataclass(frozen=True)
class Sensitivity:
    """What is run again with other predictions of output lengths."""

    predictions: tuple[OutputLengthKnowledge, ...]
    engines: tuple[str, ...]
    loads: tuple[str, ...]
    policies: tuple[str, ...]


def design_names() -> list[str]:
    """List the designs in the package."""
    folder = resources.files("queuesmith.study") / "designs"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def knowledge_name(knowledge: OutputLengthKnowledge) -> str:
    """Name what is known of output lengths as rows do: ``none``, ``noisy:0.198``, ``exact``."""
    noisy = knowledge.kind == "noisy"
    return f"noisy:{knowledge.sigma:g}" if noisy else knowledge.kind


def read_text(design: str) -> tuple[str, str, Path]:
    """Return the text of a design, what to call it in messages, and the folder of its files."""
    if design.endswith(".toml"):
        path = Path(design)
        try:
            return read_file(path).decode("utf-8"), path.name, path.resolve().parent
        except FileNotFoundError:
            raise ConfigError(f"there is no design {design!r}; check the path") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"the design {design!r} cannot be read: {reason}") from None
    known = design_names()
    if design not in known:
        raise ConfigError(
            f"there is no design {design!r}.{did_you_mean(design, known)} Known: "
            f"{', '.join(known)}; a design of your own is given by its path, such as ./my.toml"
        )
    text = (resources.files("queuesmith.study") / "designs" / f"{design}.toml").read_text("utf-8")
    return text, f"design {design}", Path()


class DesignFile:
    """The values of a design's file, called `where` in messages; all that is asked is checked."""

    def __init__(self, where: str, table: Mapping[str, Any]) -> None:
        self.where = where
        self._table = table
        self._check_keys(where, table, _KEYS)

    def text(self, key: str, default: str = "") -> str:
        """Return a text that is not empty."""
        return self._text(self.where, self._table, key, default)

    def number(self, key: str, default: int, *, least: int = 0) -> int:
        """Return a whole number."""
        return self._number(self.where, self._table, key, default, least)

    def name(self) -> str:
        """Return the design's name, which folders are called by."""
        name = self.text("name")
        if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
            raise self._error(f"name must be letters, digits, - and _, got {name!r}")
        return name

    def engine(self) -> Literal["queuesmith", "lssp_slots"]:
        """Return which simulator runs the design."""
        engine: Any = self._table.get("engine", "queuesmith")
        if engine not in ENGINES:
            raise self._error(
                f"engine must be {' or '.join(ENGINES)}, got {engine!r}."
                f"{did_you_mean(engine, ENGINES)} Step times are named under engines"
            )
        return engine  # type: ignore[no-any-return]

    def policies(self, folder: Path, known: Mapping[str, Policy]) -> tuple[Policy, ...]:
        """Load the policies, all different, files from beside the design first."""
        loaded = []
        for spec in self._names(self.where, self._table, "policies"):
            inside = folder / spec
            path = str(inside) if spec.endswith(".py") and os.path.exists(inside) else spec
            policy = known.get(spec) or get_policy(path)
            if policy.oracle:
                raise self._error(
                    f"policy {policy.name!r} is told exact output lengths, so that no service "
                    'could run it; use a sensitivity with predictions = ["exact"] instead'
                )
            loaded.append(policy)
        self._check_twice(self.where, "policy", [policy.name for policy in loaded])
        return tuple(loaded)

    def panel(self) -> tuple[str, ...]:
        """Return the names of policies of the slot engine."""
        from queuesmith.study.lssp_panel import NAMES

        names = self._names(self.where, self._table, "policies")
        self._check_known(self.where, "policy of the slot engine", names, NAMES)
        return names

    def loads(self) -> tuple[Load, ...]:
        """Return the loads, all different."""
        for load in self._table.get("loads", []):
            if isinstance(load, bool) or not isinstance(load, str | int | float):
                raise self._error(f"loads must be names or numbers, got {load!r:.80} in it")
        try:
            return tuple(parse_loads(self._table.get("loads", [])))
        except ConfigError as error:
            raise self._error(str(error)) from None

    def multipliers(self) -> dict[str, float]:
        """Return the multiples of the reference rate, all different."""
        multipliers = self._table.get("multipliers", {})
        if not multipliers:
            raise self._error(
                "the slot engine needs multipliers of the reference rate, such as { LOW = 0.5 }"
            )
        for name, factor in multipliers.items():
            if isinstance(factor, bool) or not isinstance(factor, _NUMBER):
                raise self._error(f"multiplier {name} must be a number, got {factor!r:.80}")
            if not 0 < factor < math.inf:
                raise self._error(f"multiplier {name} must be above 0, got {factor}")
        if len(set(multipliers.values())) < len(multipliers):
            raise self._error("two multipliers are equal; leave one out")
        return {name: float(factor) for name, factor in multipliers.items()}

    def engines(self) -> tuple[Preset, ...]:
        """Return the engines, all different."""
        names = self._names(self.where, self._table, "engines")
        settings = self.engine_settings()
        self._check_known(f"{self.where}: engine_settings", "engine", settings, names)
        try:
            return tuple(_with_settings(get_preset(name), settings.get(name, {})) for name in names)
        except ConfigError as error:
            raise self._error(str(error)) from None

    def engine_settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings that replace a preset's own, by engine."""
        table: dict[str, dict[str, Any]] = self._table.get("engine_settings", {})
        for name, settings in table.items():
            if not isinstance(settings, dict):
                raise self._error(
                    f"engine_settings of {name} must be a table, got {settings!r:.80}"
                )
        return table

    def refuse_what_is_not_of(self, engine: str) -> None:
        """Refuse what contradicts the simulator that runs the design."""
        if "loads" in self._table and "multipliers" in self._table:
            raise self._error(
                "loads and multipliers contradict each other: a load is a share of capacity or a "
                "multiple of the reference rate; keep one"
            )
        if engine == SLOTS:
            for key in ("loads", "engines", "engine_settings", "sensitivity"):
                if key in self._table:
                    raise self._error(f"engine = {SLOTS!r} has no {key}; leave it out")
        elif "multipliers" in self._table:
            raise self._error(
                f"multipliers of the reference rate are for engine = {SLOTS!r}; give loads"
            )

    def sources(self) -> tuple[Source, ...]:
        """Return the sources, all different."""
        num_windows = self.number("num_windows", 8, least=1)
        sources = []
        for entry in self._table.get("sources", []):
            named = entry.get("name") if isinstance(entry, Mapping) else None
            inside = f"{self.where}: source {named!r}" if named else f"{self.where}: a source"
            self._check_keys(inside, entry, _SOURCE_KEYS)
            if "file" in entry and "files" in entry:
                raise ConfigError(f"{inside} has both file and files; keep one")
            files = [entry["file"]] if "file" in entry else entry.get("files", [])
            for file in files:
                if not isinstance(file, str) or not file.strip():
                    raise ConfigError(f"{inside}: files must be a list of names, got {file!r:.80}")
            model = entry.get("model", "")
            if not files and not model:
                raise ConfigError(f"{inside} has neither file nor model; name one")
            if model:
                _check_model(inside, model)
            share = float(entry.get("share", 1.0))
            if not 0 < share <= 1 or (share < 1 and (model or self.engine() == SLOTS)):
                raise ConfigError(
                    f"{inside}: share thins a file to a part of its requests, above 0 and at most "
                    f"1, for engine = 'queuesmith' and without a model; got {share:g}"
                )
            sources.append(
                Source(
                    self._text(inside, entry, "name"),
                    tuple(files),
                    model,
                    self._number(inside, entry, "num_windows", num_windows, 1),
                    share,
                )
            )
        if not sources:
            raise self._error("sources are missing; add [[sources]] with a name and a file")
        self._check_twice(self.where, "source", [source.name for source in sources])
        return tuple(sources)

    def output_length(self) -> OutputLengthKnowledge:
        """Return what policies know of output lengths."""
        return self._knowledge(self.where, self.text("output_length", "noisy"))

    def slo(self) -> Slo:
        """Return the limits of goodput and attainment."""
        limits = self._table.get("slo", {"ttft": 1.0, "tpot": 0.05})
        self._check_keys(f"{self.where}: slo", limits, _SLO_KEYS)
        try:
            return Slo(**limits)
        except ConfigError as error:
            raise self._error(f"slo: {error}") from None

    def metrics(self, engine: str) -> tuple[str, ...]:
        """Return the metrics to analyse."""
        known = {name: metric.better for name, metric in METRICS.items()}
        if engine == SLOTS:
            from queuesmith.study.lssp import METRICS as OF_SLOTS

            known |= {name: metric.better for name, metric in OF_SLOTS.items()}
        names = self._names(self.where, self._table, "metrics")
        self._check_known(self.where, "metric", names, known)
        for name in names:
            if known[name] is None:
                raise self._error(f"{name} says nothing of which policy is better; leave it out")
        return names

    def reference(self, policies: Sequence[str]) -> str:
        """Return the policy that the others are held against."""
        name = self.text("reference", "fcfs")
        if name not in policies:
            raise self._error(
                f"the reference {name!r} is not among the policies.{did_you_mean(name, policies)} "
                "Add it or name another"
            )
        return name

    def sensitivity(
        self,
        *,
        engines: Sequence[str],
        loads: Sequence[str],
        policies: Sequence[str],
        reference: str,
    ) -> Sensitivity | None:
        """Return what is run with other predictions: a part of the design."""
        own = self._table.get("sensitivity")
        if own is None:
            return None
        inside = f"{self.where}: sensitivity"
        self._check_keys(inside, own, _SENSITIVITY_KEYS)
        predictions = [
            self._knowledge(inside, text) for text in self._names(inside, own, "predictions")
        ]
        self._check_twice(inside, "prediction", [knowledge_name(one) for one in predictions])
        chosen: dict[str, tuple[str, ...]] = {}
        for key, known in (("engines", engines), ("loads", loads), ("policies", policies)):
            chosen[key] = self._names(inside, own, key)
            self._check_known(inside, f"entry in the design's {key}", chosen[key], known)
        if reference not in chosen["policies"]:
            raise ConfigError(f"{inside}: add the reference {reference!r} to its policies")
        return Sensitivity(tuple(predictions), **chosen)

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{self.where}: {message}")

    @staticmethod
    def _check_keys(where: str, table: Any, known: _Kinds) -> None:
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where} must be a table, got {table!r:.80}")
        for key, value in table.items():
            if key not in known:
                raise ConfigError(
                    f"{where}: there is no key {key!r}.{did_you_mean(key, known)} "
                    f"Known: {', '.join(known)}"
                )
            kind = known[key]
            if isinstance(value, bool) or not isinstance(value, kind):
                wanted = "a number" if isinstance(kind, tuple) else _WORDS[kind]
                raise ConfigError(f"{where}: {key} must be {wanted}, got {value!r:.80}")

    @staticmethod
    def _text(where: str, table: Mapping[str, Any], key: str, default: str = "") -> str:
        value: str = table.get(key, default)
        if not value.strip():
            raise ConfigError(f"{where}: {key} is missing or empty; give a text")
        return value

    @staticmethod
    def _number(where: str, table: Mapping[str, Any], key: str, default: int, least: int) -> int:
        value: int = table.get(key, default)
        if not least <= value <= _MOST:
            raise ConfigError(f"{where}: {key} must be from {least} to {_MOST:,}, got {value}")
        return value

    @classmethod
    def _names(cls, where: str, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        """Read a list of names, none of them twice."""
        values = table.get(key, [])
        if not values:
            raise ConfigError(f"{where}: {key} is missing or empty; name at least one")
        for value in values:
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{where}: {key} must be a list of names, got {value!r:.80}")
        cls._check_twice(where, f"{key}:", values)
        return tuple(values)

    @staticmethod
    def _check_twice(where: str, what: str, names: Sequence[str]) -> None:
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{where}: {what} {name!r} is given twice; leave one out")

    @staticmethod
    def _check_known(where: str, what: str, names: Iterable[str], known: Iterable[str]) -> None:
        known = list(known)
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"{where}: there is no {what} {name!r}.{did_you_mean(name, known)} "
                    f"Known: {', '.join(known)}"
                )

    @staticmethod
    def _knowledge(where: str, text: str) -> OutputLengthKnowledge:
        try:
            return OutputLengthKnowledge.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


def _with_settings(preset: Preset, settings: Mapping[str, Any]) -> Preset:
    if not settings:
        return preset
    config = dict(settings)
    seconds = config.pop("host_overhead", preset.step_time.host_overhead)
    return replace(
        preset,
        config=preset.config.override(config),
        step_time=preset.step_time.with_host_overhead(seconds),
        settings_source="the design's",
    )


def _check_model(where: str, model: str) -> None:
    if not model.endswith("@model"):
        raise ConfigError(f"{where}: model must be NAME@model, got {model!r}")
    try:
        load_model(model.removesuffix("@model"))
    except QueuesmithError as error:
        raise TraceError(f"{where}: {error}") from None

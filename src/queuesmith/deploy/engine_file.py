"""An engine that was measured, as a TOML file: `calibrate` and `check` write it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from queuesmith.config import EngineConfig
from queuesmith.documents import parse_toml, read_file
from queuesmith.engine.presets.step_time import Preset, StepTime
from queuesmith.errors import ConfigError
from queuesmith.traces.columns.source import one_line

SCHEMA = "queuesmith.engine/1"


def config_of(header: Mapping[str, Any]) -> EngineConfig:
    """Return the settings that a record begins with.

    Raises
    ------
    ConfigError
        If it has none.
    """
    settings = header.get("engine")
    if not isinstance(settings, Mapping):
        raise ConfigError("the record does not say with which settings the engine ran")
    return EngineConfig().override({**settings, "enable_prefix_caching": False})


def preset_toml(preset: Preset, fit: Mapping[str, Any]) -> str:
    """Return a preset as TOML that `read_preset` reads; `fit` says how good it is."""
    step_time = asdict(preset.step_time)
    lines = [
        "# Use it with --engine FILE.",
        f"schema = {_toml(SCHEMA)}",
        f"name = {_toml(preset.name)}",
        f"title = {_toml(preset.title)}",
        "",
        "[step_time]  # seconds; see queuesmith.engine.presets.step_time.StepTime",
        *(f"{name} = {_toml(value)}" for name, value in step_time.items()),
        "",
        "[engine]",
        *(
            f"{name} = {_toml(value)}"
            for name, value in asdict(preset.config).items()
            if value is not None
        ),
        "",
        "[fit]  # relative errors, over all steps and by regime",
    ]
    for name, value in fit.items():
        if value is not None and not isinstance(value, Mapping):
            lines.append(f"{name} = {_toml(value)}")
    for name, value in fit.items():
        if isinstance(value, Mapping):
            for regime, numbers in value.items():
                lines += ["", f"[fit.{name}.{regime}]"]
                lines += [f"{key} = {_toml(number)}" for key, number in numbers.items()]
    return "\n".join(lines) + "\n"


def read_preset(path: Path) -> Preset:
    """Read a preset that `calibrate` has written.

    Raises
    ------
    ConfigError
        If the file cannot be read or is none.
    """
    try:
        data = parse_toml(read_file(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"engine file {path} cannot be read: {error.strerror}; write one with "
            "`queuesmith calibrate`"
        ) from None
    except ValueError as error:
        raise ConfigError(f"engine file {path} is not TOML: {one_line(error)}") from None
    step_time, engine = data.get("step_time"), data.get("engine")
    if data.get("schema") != SCHEMA or not isinstance(step_time, dict | None):
        raise ConfigError(
            f"engine file {path} must have schema = {SCHEMA!r}, as `queuesmith calibrate` writes "
            f"it, got {data.get('schema')!r}"
        )
    if not isinstance(step_time, dict) or not isinstance(engine, dict):
        raise ConfigError(f"engine file {path} needs the tables [step_time] and [engine]")
    known = [field.name for field in fields(StepTime)]
    unknown = [name for name in step_time if name not in known]
    if unknown or "a" not in step_time:
        what = f"an unknown {unknown[0]!r}" if unknown else "no 'a'"
        raise ConfigError(f"[step_time] of {path} has {what}; known: {', '.join(known)}")
    try:
        return Preset(
            str(data.get("name", path.stem)),
            str(data.get("title", path.stem)),
            StepTime(**step_time),
            EngineConfig().override(engine),
        )
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"engine file {path}: {error}") from None


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)

"""Tables of a configuration read into dataclasses: names, types and limits of every field."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar, get_origin

from queuesmith.errors import ConfigError, did_you_mean

_Table = TypeVar("_Table")
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "an array",
    dict: "a table",
}


def number(default: Any = MISSING, *, least: float, most: float = float("inf")) -> Any:
    """Declare a number with its limits."""
    limits = {"least": least, "most": most}
    return field(metadata=limits) if default is MISSING else field(default=default, metadata=limits)


def read_table(where: str, table: Any, kind: type[_Table]) -> _Table:
    """Read a table into a dataclass; `where` is its name in messages."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, got {table!r:.60}")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    check_names(where, table, known)
    values = {}
    for name, value in table.items():
        declared = known[name]
        if declared.type == tuple[str, ...]:
            _check_type(where, name, value, list)
            if not all(isinstance(item, str) for item in value):
                raise ConfigError(f"{where}: {name} must be an array of names, got {value!r:.60}")
            value = tuple(value)
        elif declared.type == float | None:
            _check_type(where, name, value, float)
        else:
            _check_type(where, name, value, _builtin(declared.type))
        limits = declared.metadata
        if limits and not limits["least"] <= value <= limits["most"]:
            most = f" and at most {limits['most']:g}" if limits["most"] < float("inf") else ""
            raise ConfigError(
                f"{where}: {name} must be at least {limits['least']:g}{most}, got {value!r}"
            )
        values[name] = float(value) if declared.type is float else value
    for name, declared in known.items():
        required = declared.default is MISSING and declared.default_factory is MISSING
        if required and not values.get(name):
            raise ConfigError(f"{where}: {name} is missing; every such table needs it")
    return kind(**values)


def _builtin(annotation: Any) -> type:
    """Return what TOML makes of a field of this type."""
    kind = get_origin(annotation) or annotation
    return kind if kind in _WORDS else dict


def check_names(where: str, table: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that do not exist."""
    for name in table:
        if name not in known:
            raise ConfigError(
                f"{where} has no field {name!r}.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}"
            )


def _check_type(where: str, name: str, value: Any, kind: type) -> None:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ConfigError(f"{where}: {name} must be {_WORDS[kind]}, got {value!r:.60}")

"""Workload models as TOML text: written by the fit, read and checked before anything is drawn.

A model of one client has its tables ``[arrivals]``, ``[drift]``, ``[lengths]``, ``[sessions]`` at
the top; a model of several has them under each ``[[client]]``.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.documents import parse_toml, printable
from queuesmith.errors import TraceError
from queuesmith.traces.models.client import HOURS, Client, Drift
from queuesmith.traces.models.sessions import Sessions
from queuesmith.traces.trace import MAX_TOKENS


def parse_clients(text: str) -> tuple[str, tuple[Client, ...], dict[str, Any]]:
    """Read a model's name, its clients, and what they were fitted to.

    Raises
    ------
    TraceError
        If the text is not a workload model, or its numbers make no sense.
    """
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise TraceError(f"a workload model must be TOML, but: {error}") from None
    name = printable(_Table("the model", values).get("name", str))
    fit = _Table(name, values).get("fit", dict)
    source = fit.get("source", "")
    if not isinstance(source, str) and not (
        isinstance(source, list) and all(isinstance(one, str) for one in source)
    ):
        raise TraceError(
            f"model {name} [fit]: source must be text, got {source!r:.60}; fit it again"
        )
    parts = values.get("client", [values])
    if not isinstance(parts, list) or not parts:
        raise TraceError(f"model {name}: [[client]] must be given at least once")
    clients = tuple(_parse_client(name, part) for part in parts)
    if len(clients) > 1 and any(client.sessions for client in clients):
        raise TraceError(f"model {name}: only a model of one client can have sessions")
    return name, clients, fit


class _Table:
    """A table of a model, whose complaints say where they are."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def get(self, key: str, kind: type) -> Any:
        if not isinstance(self.values.get(key), kind):
            raise self.error(f"{key} must be a {kind.__name__}, got {self.values.get(key)!r:.60}")
        return self.values[key]

    def table(self, key: str) -> "_Table":
        return _Table(f"{self.where} [{key}]", self.get(key, dict))

    def number(self, key: str, low: float, high: float = np.inf) -> float:
        value: Any = self.values.get(key)
        if type(value) not in (int, float) or not low <= float(value) <= high:
            raise self.error(f"{key} must be a number from {low:g} to {high:g}, got {value!r:.60}")
        return float(value)

    def array(self, key: str, length: int | None = None, *, low: float = 0) -> NDArray[np.float64]:
        try:
            array = np.array(self.values.get(key), np.float64)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        if array.ndim != 1 or not np.isfinite(array).all() or (array < low).any():
            raise self.error(f"{key} must be a list of finite numbers of at least {low:g}")
        if length is not None and len(array) != length:
            raise self.error(f"{key} must have {length} numbers, got {len(array)}")
        return array

    def levels(self, key: str) -> NDArray[np.float64]:
        levels = self.array(key)
        if len(levels) < 2 or (np.diff(levels) <= 0).any() or levels[0] != 0 or levels[-1] != 1:
            raise self.error(f"{key} must rise from 0 to 1")
        return levels

    def quantiles(self, key: str, length: int, *, low: float = 1) -> NDArray[np.float64]:
        table = self.array(key, length, low=low)
        if (np.diff(table) < 0).any() or table[-1] > MAX_TOKENS:
            raise self.error(f"{key} must not decrease, and be at most {MAX_TOKENS:,}")
        return table

    def error(self, text: str) -> TraceError:
        return TraceError(f"model {self.where}: {text}; fit it again")


def _parse_client(model: str, values: object) -> Client:
    if not isinstance(values, dict):
        raise TraceError(f"model {model}: a client must be a table")
    client = _Table(model, values)
    name = str(client.get("name", str))
    arrivals, lengths = client.table("arrivals"), client.table("lengths")
    drift = client.table("drift") if "drift" in values else _Table(model, {})
    time_scales = arrivals.array("time_scales", low=1e-3)
    levels = lengths.levels("levels")
    gaps = {}
    if "gap_levels" in arrivals.values:
        gap_levels = arrivals.levels("gap_levels")
        gaps = {
            "gap_levels": gap_levels,
            "gaps": arrivals.quantiles("gaps", len(gap_levels), low=1e-9),
        }
    hourly = arrivals.array("hourly", HOURS) if "hourly" in arrivals.values else None
    if hourly is not None and not hourly.any():
        raise arrivals.error("hourly must not be all 0")
    return Client(
        name=name,
        rate=arrivals.number("rate", 1e-9, 1e9),
        gap_shape=1.0 if gaps else arrivals.number("gap_shape", 1e-3, 1e3),
        time_scales=time_scales,
        log_rate_variance=arrivals.array("log_rate_variance", len(time_scales)),
        hourly=hourly,
        levels=levels,
        prompt_len=lengths.quantiles("prompt_len", len(levels)),
        output_len=lengths.quantiles("output_len", len(levels)),
        copula=_parse_copula(lengths) if "copula" in lengths.values else None,
        prompt_drift=_parse_drift(drift, "prompt"),
        output_drift=_parse_drift(drift, "output"),
        sessions=_parse_sessions(client.table("sessions")) if "sessions" in values else None,
        **gaps,
    )


def _parse_copula(lengths: _Table) -> NDArray[np.float64]:
    try:
        copula = np.array(lengths.values["copula"], np.float64)
    except (TypeError, ValueError):
        copula = np.zeros(0)
    square = copula.ndim == 2 and copula.shape[0] == copula.shape[1]
    if not square or not np.isfinite(copula).all() or (copula < 0).any():
        raise lengths.error("copula must be a square of finite numbers of at least 0")
    if not (copula.sum(axis=0) > 0).all():
        raise lengths.error("copula must have no column without weight")
    return copula


def _parse_drift(drift: _Table, length: str) -> Drift:
    if length not in drift.values:
        return Drift()
    table = drift.table(length)
    parsed = Drift(
        table.number("share", 0, 1),
        table.number("num_requests", 1e-3),
        table.number("with_rate", -1, 1),
    )
    if parsed.share + parsed.with_rate**2 > 1:
        raise table.error("share + with_rate**2 must be at most 1")
    return parsed


def _parse_sessions(table: _Table) -> Sessions:
    next_turn, levels = table.array("next_turn"), table.levels("levels")
    if not len(next_turn) or (next_turn >= 1).any():
        raise table.error("next_turn must be probabilities below 1")
    return Sessions(
        next_turn=next_turn,
        levels=levels,
        think_time=table.quantiles("think_time", len(levels), low=0),
        growth=table.quantiles("growth", len(levels), low=-MAX_TOKENS),
        output_len=table.quantiles("output_len", len(levels)),
        block_size=int(table.number("block_size", 1, 1 << 20)),
        num_common_blocks=int(table.number("num_common_blocks", 0, 1 << 20)),
    )


def format_clients(name: str, clients: Iterable[Client], fit: Mapping[str, Any]) -> str:
    """Write a model as TOML text."""
    clients = tuple(clients)
    parts = [
        f"# Workload model {name}: numbers fitted to a trace, no rows of it.",
        "# Made by the command below; queuesmith.traces.synthetic says what they mean.",
        f'name = "{name}"',
        "",
        "[fit]",
        *(f"{key} = {_toml(value)}" for key, value in fit.items()),
        "",
    ]
    for client in clients:
        if len(clients) > 1:
            parts += ["[[client]]", f'name = "{client.name}"', ""]
        parts += _format_client(client, "client." if len(clients) > 1 else "")
    return "\n".join(parts)


def _format_client(client: Client, prefix: str) -> list[str]:
    parts = [f"[{prefix}arrivals]", f"rate = {client.rate}  # requests/s"]
    if client.gaps is None or client.gap_levels is None:
        parts.append(f"gap_shape = {client.gap_shape}")
    else:
        parts.append(f"gap_levels = {_array(client.gap_levels)}")
        parts.append(f"gaps = {_array(client.gaps)}  # in units of their mean")
    parts.append(f"time_scales = {_array(client.time_scales)}  # s")
    parts.append(f"log_rate_variance = {_array(client.log_rate_variance)}")
    if client.hourly is not None:
        parts.append(f"hourly = {_array(client.hourly)}  # of the day, in units of the mean")
    if (client.prompt_drift, client.output_drift) != (Drift(), Drift()):
        parts += ["", f"[{prefix}drift]"]
        parts += [
            f"{name} = {{ share = {drift.share}, num_requests = {drift.num_requests}, "
            f"with_rate = {drift.with_rate} }}"
            for name, drift in (("prompt", client.prompt_drift), ("output", client.output_drift))
        ]
    parts += [
        "",
        f"[{prefix}lengths]",
        f"levels = {_array(client.levels)}",
        f"prompt_len = {_array(client.prompt_len)}  # tokens",
        f"output_len = {_array(client.output_len)}  # tokens",
    ]
    if client.copula is not None:
        parts += [
            "# rows: prompt rank, columns: output rank, low to high; requests in each cell",
            "copula = [",
            *(f"  {_array(row)}," for row in client.copula),
            "]",
        ]
    if client.sessions is not None:
        sessions = client.sessions
        parts += [
            "",
            f"[{prefix}sessions]",
            f"next_turn = {_array(sessions.next_turn)}  # probability, by turn",
            f"levels = {_array(sessions.levels)}",
            f"think_time = {_array(sessions.think_time)}  # s",
            f"growth = {_array(sessions.growth)}  # tokens",
            f"output_len = {_array(sessions.output_len)}  # tokens, of later turns",
            f"block_size = {sessions.block_size}  # tokens",
            f"num_common_blocks = {sessions.num_common_blocks}",
        ]
    return [*parts, ""]


def _toml(value: object) -> str:
    # A JSON string is a TOML string, and a JSON list of them a TOML array.
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


def _array(values: Iterable[float]) -> str:
    """Write numbers in TOML, broken into lines of at most 100 characters."""
    words = [str(int(value)) if value == int(value) else repr(float(value)) for value in values]
    line = "[" + ", ".join(words) + "]"
    if len(line) <= 90:
        return line
    lines = [" "]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > 98:
            lines.append(" ")
        lines[-1] += f" {word},"
    return "\n".join(["[", *lines, "]"])

"""A study that takes a second: two sources, two loads, three policies, windows of 30 requests."""

from pathlib import Path

import numpy as np
import pytest

from queuesmith.study.design import Design

TABLE = {
    "name": "small",
    "title": "A small study",
    "policies": ["fcfs", "sjf", "spjf"],
    "loads": ["busy", "heavy"],
    "engines": ["llama-3.1-8b/a100_sxm"],
    "window_len": 30,
    "num_windows": 2,
    "metrics": ["ttft_mean", "anwg"],
    "sources": [
        {"name": "logged", "file": "log.csv"},
        {"name": "drawn", "model": "azure_2023_conv@model"},
    ],
}


def to_toml(value, key=None):
    """Write a value of a design as TOML; only what designs are made of."""
    if isinstance(value, dict):
        inside = ", ".join(f"{name} = {to_toml(item)}" for name, item in value.items())
        return "{ " + inside + " }"
    if isinstance(value, list):
        return "[" + ", ".join(to_toml(item) for item in value) + "]"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else _scalar(value)


def _scalar(value):
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _write_log(path: Path, num_requests=80, seed=0) -> Path:
    """Write a trace of requests that differ in length."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(size=num_requests))
    rows = zip(
        arrivals, rng.integers(1, 900, num_requests), rng.integers(1, 60, num_requests), strict=True
    )
    lines = ["arrival_time,prompt_len,output_len", *(f"{a:.6f},{p},{o}" for a, p, o in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def write_log():
    """Return the writer of a small trace."""
    return _write_log


@pytest.fixture
def write_design(tmp_path, monkeypatch):
    """Write the small design, with some of its values replaced or (None) left out."""
    monkeypatch.delenv("QUEUESMITH_TRACES", raising=False)
    _write_log(tmp_path / "log.csv")

    def write_design(**changes):
        table = {key: value for key, value in {**TABLE, **changes}.items() if value is not None}
        path = tmp_path / "small.toml"
        path.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in table.items()))
        return path

    return write_design


@pytest.fixture
def small(write_design):
    """Return the small design, perhaps with some of its values replaced."""

    def small(**changes):
        return Design.load(write_design(**changes))

    return small

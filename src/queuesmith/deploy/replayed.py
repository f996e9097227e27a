"""What `queuesmith ab` measured, as logs: each run of an arm is a log of its own.

A run keeps what became of each request and not what was asked for, so the trace that was replayed
is needed; hashes tell that it is the same.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from queuesmith.config import EngineConfig
from queuesmith.engine import can_run
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, get_preset
from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces.measured import clean_measured
from queuesmith.traces.trace import Origin, Trace
from queuesmith.windows import Window

READER = "ab"
_RUN = re.compile(r"(?P<cell>.+)-w(?P<window>\d+)-r(?P<repeat>\d+)-(?P<arm>.+)\.json")


def is_replay(folder: Path) -> bool:
    """Tell whether a path is a folder that `queuesmith ab` wrote."""
    return (folder / "runs").is_dir()


def read_replay(folder: Path, requests: Trace | Sequence[Window], arm: str) -> list[Trace]:
    """Read all runs of one arm.

    Parameters
    ----------
    folder : Path
        The ``--output`` of `queuesmith ab`.
    requests : Trace or sequence of Window
        What was replayed, as `queuesmith ab` was given it.
    arm : str
        ``stock`` or the name of the policy.

    Returns
    -------
    list of Trace
        With measured latencies, by the client's clock and from when requests were due.

    Raises
    ------
    TraceError
        If the folder is incomplete or damaged, has no run of that arm, or `requests` is something
        else than what was replayed.
    """
    config = _read(folder / "ab.json").get("config")
    if not isinstance(config, Mapping) or not isinstance(config.get("windows"), list):
        raise TraceError(f"{folder / 'ab.json'} does not say which windows were replayed")
    arms = set()
    logs = []
    for path in sorted((folder / "runs").glob("*.json")):
        named = _RUN.fullmatch(path.name)
        if named is None:
            continue
        arms.add(named["arm"])
        if named["arm"] == arm:
            replayed = _replayed(folder, config, int(named["window"]), requests)
            logs.append(_log(path, replayed))
    if not logs:
        there = f"there are runs of {', '.join(sorted(arms))}" if arms else "there are no runs"
        raise TraceError(f"{folder} has no run of {arm!r}; {there}: choose one with --policy")
    return logs


def _replayed(
    folder: Path, config: Mapping[str, Any], index: int, requests: Trace | Sequence[Window]
) -> Trace:
    """Return the requests of a window that could run in both arms, as the run numbers them."""
    try:
        [told] = [one for one in config["windows"] if one["window"] == index]
        start, sha256 = int(told["start_row"]), str(told["sha256"])
        # Without --engine `ab` knows no engine, and leaves out what the default one cannot run.
        settings = config["engine"] or asdict(get_preset(DEFAULT_PRESET).config)
        engine = EngineConfig().override(settings)
        own = engine.override(config["policy_engine"])
        if isinstance(requests, Trace):
            length = int(config["window_len"])
            window: Trace | None = Window.of(requests, index, start, start + length).trace
        else:
            window = next((one.trace for one in requests if one.index == index), None)
    except (KeyError, TypeError, ValueError, ConfigError):
        raise TraceError(f"{folder / 'ab.json'} does not describe window {index}") from None
    if window is None or window.sha256 != sha256:
        raise TraceError(
            f"window {index} of {folder} was not cut from this trace; give the --trace (and "
            "--num-requests, --columns, --unit) that `queuesmith ab` was given"
        )
    kept: Trace = window.take(np.flatnonzero(can_run(window, engine) & can_run(window, own)))
    return kept


def _log(path: Path, replayed: Trace) -> Trace:
    """Return a run as a trace; requests that failed are left out and counted."""
    try:
        sent = _read(path)["served"]
        served = [one for one in sent if one["error"] == "" and one["num_output_tokens"] >= 1]
        failed = len(sent) - len(served)
        rows = np.array([one["row"] for one in served], np.int64)
        arrivals = _numbers(served, "arrival_time")
        if (
            not len(rows)
            or rows.min() < 0
            or rows.max() >= len(replayed)
            or np.isnan(arrivals).any()
        ):
            raise ValueError
        output_len = np.array([one["num_output_tokens"] for one in served], np.int64)
        order = np.argsort(arrivals, kind="stable")
        measured, notes = clean_measured(
            output_len[order],
            ttft=(_numbers(served, "first_token_ts") - arrivals)[order],
            e2el=(_numbers(served, "last_token_ts") - arrivals)[order],
        )
        return Trace(
            arrivals[order],
            replayed.prompt_len[rows[order]],
            output_len[order],
            measured=measured,
            origin=Origin(
                source=f"{path.parent.parent.name}/{path.stem}",
                reader=READER,
                dropped={"failed request": failed} if failed else {},
                notes=notes,
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise TraceError(
            f"{path} is no run of `queuesmith ab` on these requests; measure it again"
        ) from None


def _numbers(
    served: Sequence[Mapping[str, Any]], name: str
) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([math.nan if one[name] is None else one[name] for one in served], np.float64)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(
            f"there is no {path.name} in {path.parent}; let `queuesmith ab` end first"
        ) from None
    except (OSError, ValueError, RecursionError):
        raise TraceError(f"{path} cannot be read; measure it again") from None
    if not isinstance(document, dict):
        raise TraceError(f"{path} holds no JSON object; measure it again")
    return document

"""The windows of a study: real ones first, and modelled ones where a source has too few.

What is real and what is modelled is never mixed up: every window says which it is, and every source
says what it was cut from and why it needed its model.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from queuesmith.errors import NotOneTrace, TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.catalog import TRACES_VARIABLE, catalogue, resolve
from queuesmith.traces.describe import count_cv, gap_cv
from queuesmith.traces.statistics import rank_correlation
from queuesmith.traces.trace import Trace
from queuesmith.windows import UNKNOWN_ROW, Window, cut_windows, thin
from queuesmith.windows.tables import read_windows

Kind = Literal["real", "modelled"]
KINDS: tuple[Kind, ...] = ("real", "modelled")


@dataclass(frozen=True)
class Source:
    """One source of a design, as the design names it.

    `files` are names of the catalogue, or files beside the design or under ``$QUEUESMITH_TRACES``,
    of which the first at hand is used, thinned to a `share` of its sessions and requests; the
    workload model `model` tops the source up, if there is one.
    """

    name: str
    files: tuple[str, ...]
    model: str
    num_windows: int
    share: float = 1.0


@dataclass(frozen=True)
class StudyWindow:
    """A window, with its kind and where it begins in its source: from 0 to 1, NaN when unknown."""

    source: str
    window: Window
    kind: Kind
    position: float

    @property
    def sha256(self) -> str:
        """Of its rows and of what is predicted of them, if that was published."""
        predicted = self.window.predicted_output_tokens
        published = b"" if predicted is None else predicted.tobytes()
        return hashlib.sha256(self.window.sha256.encode() + published).hexdigest()


@dataclass(frozen=True)
class SourceInputs:
    """The windows of one source, real ones first, and where they come from.

    `file` is what real ones were cut from, `model_version` of the model that the others were drawn
    from, each empty when there are none; `notes` say why a source is modelled.
    """

    source: Source
    windows: tuple[StudyWindow, ...]
    file: str = ""
    file_sha256: str = ""
    model_version: str = ""
    notes: tuple[str, ...] = ()

    def num(self, kind: Kind) -> int:
        """Count windows of a kind."""
        return sum(window.kind == kind for window in self.windows)


def read_inputs(source: Source, *, window_len: int, seed: int, folder: Path) -> SourceInputs:
    """Cut and draw the windows of a source.

    Parameters
    ----------
    window_len : int
        Requests in each window; a table of windows keeps its own.
    seed : int
        Of the places of real windows and of the draws.
    folder : Path
        Of the design, where files are looked for first.

    Raises
    ------
    TraceError
        If a file at hand cannot be read, or there are too few windows and no model.
    """
    path, notes = _find(source, folder)
    seed = source_seed(source.name, seed)
    real: list[StudyWindow] = []
    file = file_sha256 = ""
    if path is not None:
        windows, num_rows = _read_real(path, source, window_len, seed)
        real = [
            StudyWindow(source.name, window, "real", _position(window, num_rows))
            for window in windows
        ]
        file, file_sha256 = path.name, windows[0].trace.origin.sha256 if windows else ""
        notes += list(windows[0].trace.origin.notes) if windows else []
        if len(real) < source.num_windows:
            notes.append(
                f"{path.name} has {len(real)} of {source.num_windows} windows of "
                f"{window_len:,} requests"
            )
    missing = range(len(real), source.num_windows)
    if missing and not source.model:
        raise TraceError(
            f"source {source.name!r} has {len(real)} of its {source.num_windows} windows: "
            f"{notes[-1]}; name a model to draw the others from, or ask for fewer"
        )
    modelled = [_draw(source, index, window_len, seed) for index in missing]
    version = modelled[0].window.trace.origin.reader if modelled else ""
    return SourceInputs(source, (*real, *modelled), file, file_sha256, version, tuple(notes))


def source_seed(name: str, seed: int) -> int:
    """Return a seed of the source's own, whatever stands beside it in a design."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:4], "big")


def _find(source: Source, folder: Path) -> tuple[Path | None, list[str]]:
    """Find the first file that is at hand; say why there is none."""
    if not source.files:
        return None, ["no file is named, so that all windows are modelled"]
    reasons = []
    for name in source.files:
        if name in catalogue():
            try:
                return resolve(name), []
            except TraceError as error:
                reasons.append(str(error))
            continue
        public = os.environ.get(TRACES_VARIABLE)
        folders = [folder, *([Path(os.path.expanduser(public))] if public else [])]
        for inside in folders:
            if os.path.isfile(inside / name):  # says no to a name that no file can have
                return inside / name, []
        if public and "/" not in name:
            below = (path for path in folders[-1].rglob("*") if path.name == name)
            found = sorted(path for path in below if path.is_file())
            if found:
                return found[0], []
        where = f"nor below {public}" if public else f"and {TRACES_VARIABLE} names no folder"
        reasons.append(f"{name} is not beside the design {where}")
    return None, ["; ".join(reasons)]


def _read_real(
    path: Path, source: Source, window_len: int, seed: int
) -> tuple[list[Window], int | None]:
    """Return at most the windows asked for, and the rows of the whole; None where unknown."""
    try:
        trace = load_trace(path)
    except NotOneTrace:
        if source.share < 1:
            raise TraceError(
                f"source {source.name!r}: {path.name} is a table of windows, which cannot be "
                "thinned; leave out share, or name a trace"
            ) from None
        return read_windows(path)[: source.num_windows], None
    trace = thin(trace, source.share, seed)
    if len(trace) < window_len:
        return [], len(trace)
    windows = cut_windows(trace, num_windows=source.num_windows, window_len=window_len, seed=seed)
    return windows, len(trace)


def _position(window: Window, num_rows: int | None) -> float:
    if num_rows is None or window.start_row == UNKNOWN_ROW:
        return float("nan")
    return window.start_row / num_rows


def _draw(source: Source, index: int, window_len: int, seed: int) -> StudyWindow:
    """Draw one window with a seed of its own, so that no two share an hour or a conversation."""
    trace = load_trace(source.model, num_requests=window_len, seed=seed + index)
    window = replace(Window.of(trace, index, 0, len(trace)), start_row=UNKNOWN_ROW)
    return StudyWindow(source.name, window, "modelled", float("nan"))


def describe_window(entry: StudyWindow) -> dict[str, Any]:
    """Return the row of a window in the study's table of windows, measured at its own rate."""
    window = entry.window
    trace = window.trace
    return {
        "source": entry.source,
        "window": window.index,
        "kind": entry.kind,
        "start_row": window.start_row,
        "position": entry.position,
        "num_requests": len(trace),
        "sha256": entry.sha256,
        "lambda_ref": _float(window.lambda_ref),
        **features(trace),
    }


def features(trace: Trace) -> dict[str, float]:
    """Measure what tells workloads apart; NaN for what a trace is too short for.

    Coefficients of variation of gaps, and of counts in bins of 1 s, percentiles (tokens) and
    coefficients of variation of both lengths, their rank correlation, and the share of requests of
    the client with the most.
    """
    lengths: dict[str, float] = {}
    for name, tokens in (("prompt", trace.prompt_len), ("output", trace.output_len)):
        p50, p99 = np.percentile(tokens, (50, 99)).tolist()
        spread = float(tokens.std() / tokens.mean())
        lengths |= {f"{name}_p50": p50, f"{name}_p99": p99, f"{name}_cv": spread}
    share = float("nan")
    if trace.client is not None and (trace.client >= 0).any():
        share = float(np.unique_counts(trace.client[trace.client >= 0]).counts.max() / len(trace))
    return {
        "gap_cv": _float(gap_cv(trace)),
        "count_cv_1s": _float(count_cv(trace, 1.0)),
        **lengths,
        "rank_corr": rank_correlation(trace.prompt_len, trace.output_len),
        "share_one_client": share,
    }


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)

"""LSSP's windows: all 120 where the traces they were cut from are at hand, else the 30 published.

LSSP cut 40 windows of 200 requests from each of three traces: ten for a pilot, each at a random row
of a tenth of the rows past an offset; then thirty more in the same way from what was left. Its
repository names files, offsets, seeds and the rows where they begin, which `window_rows` computes
again. Ten windows of each source (w10 to w19) were published with their requests.

References
----------
https://github.com/SoroushVahidi/llm-serving-scheduler-robustness-benchmark, MIT.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.study.inputs import Source, SourceInputs, StudyWindow
from queuesmith.traces import load_trace
from queuesmith.traces.catalog import catalogue, find_file, traces_folder
from queuesmith.traces.trace import Trace
from queuesmith.windows import UNKNOWN_ROW, Window
from queuesmith.windows.tables import read_windows

WINDOW_LEN = 200
NUM_PILOT = 10
NUM_FURTHER = 30
NUM_WINDOWS = NUM_PILOT + NUM_FURTHER
#: From the seed of a source's pilot windows to that of its further ones.
_FURTHER_SEED = 1_000_000

#: LSSP's noise on predictions: the coefficient of variation, and what it clips to, tokens.
PREDICTION_ERROR = 0.20
MAX_PREDICTION = 4096
_SEED = 900_000


@dataclass(frozen=True)
class Recipe:
    """How LSSP cut the windows of a source.

    From the trace `trace` of the catalogue, of `num_rows` usable rows as LSSP counted them, past
    the first `offset`; `start` is the first row's time in us since 1970, -1 where it has no date.
    """

    trace: str
    num_rows: int
    offset: int
    seed: int
    start: int = -1


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "azure_llm_2024": Recipe(
            "azure_2024_conv", 27_303_999, 200_000, 20_260_902, 1_715_472_000_001_163
        ),
        "bailian_qwen": Recipe("bailian_trace_b", 172_800, 50_000, 20_260_903),
        "burstgpt": Recipe("burstgpt_without_fails_2", 3_784_213, 500_000, 20_260_901),
    }
)

#: When the published Azure windows (w10 to w19) begin, microseconds since 1970.
_AZURE_STARTS = (
    1_715_507_634_246_458,
    1_715_521_727_049_439,
    1_715_562_120_043_455,
    1_715_567_893_749_309,
    1_715_597_258_538_702,
    1_715_608_699_783_870,
    1_715_627_394_796_013,
    1_715_638_653_149_259,
    1_715_653_712_656_260,
    1_715_671_806_449_621,
)


def read_slot_inputs(
    sources: Sequence[Source], folder: Path | None = None
) -> tuple[SourceInputs, ...]:
    """Return the windows of each source, and what they come from, in order of time.

    A file is the catalogue's name of the trace that LSSP cut the source from, or a table of
    windows; it is looked for in `folder`, or ``$QUEUESMITH_TRACES``, and everything below.

    Raises
    ------
    TraceError
        If a source has no file at hand, or one is not what LSSP had.
    """
    return tuple(_read_source(source, folder or traces_folder()) for source in sources)


def _read_source(source: Source, folder: Path) -> SourceInputs:
    for file in source.files:
        if file in catalogue():
            path = find_file(file, folder=folder)
            if path is not None:
                return _cut_again(source, file, path)
        else:
            found = sorted(one for one in folder.rglob(file) if one.is_file())
            if found:
                return _read_published(source, found[0])
    raise TraceError(
        f"source {source.name!r}: {' and '.join(source.files) or 'no file'} cannot be found in "
        f"{folder}; set QUEUESMITH_TRACES to the folder with LSSP's windows or with the trace they "
        "were cut from"
    )


def _read_published(source: Source, path: Path) -> SourceInputs:
    rows = dict(window_rows(RECIPES[source.name])) if source.name in RECIPES else {}
    windows = read_windows(path)
    windows.sort(key=lambda window: rows.get(window.name, UNKNOWN_ROW))
    entries = []
    for index, window in enumerate(windows[: source.num_windows]):
        row = rows.get(window.name, UNKNOWN_ROW)
        trace = window.trace
        number = window_number(window.name)
        if source.name == "azure_llm_2024" and 0 <= number - NUM_PILOT < len(_AZURE_STARTS):
            trace = _as_dated(trace, _AZURE_STARTS[number - NUM_PILOT])
        window = replace(window, trace=trace, index=index, start_row=row, sha256=trace.sha256)
        entries.append(_entry(source.name, window))
    note = f"{len(entries)} windows as published with their requests, of the {NUM_WINDOWS} of LSSP"
    origin = entries[0].window.trace.origin
    return SourceInputs(source, tuple(entries), path.name, origin.sha256, notes=(note,))


def _cut_again(source: Source, name: str, path: Path) -> SourceInputs:
    recipe = RECIPES.get(source.name)
    if recipe is None or recipe.trace != name:
        known = ", ".join(f"{key} from {value.trace}" for key, value in RECIPES.items())
        raise TraceError(f"source {source.name!r}: LSSP cut no windows from {name}; it cut {known}")
    trace = load_trace(path)
    if len(trace) != recipe.num_rows:
        raise TraceError(
            f"{path.name} has {len(trace):,} usable rows where LSSP counted {recipe.num_rows:,}, "
            "so its windows cannot be found again; name the published windows instead"
        )
    entries = []
    for index, (window_name, row) in enumerate(window_rows(recipe)[: source.num_windows]):
        start = recipe.start + round(float(trace.arrival_time[row]) * 1e6)
        window = Window.of(trace, index, row, row + WINDOW_LEN, window_name)
        own = window.trace if recipe.start < 0 else _as_dated(window.trace, start)
        window = replace(
            window,
            trace=own,
            sha256=own.sha256,
            predicted_output_tokens=predict(own.output_len, window_name).astype(np.float64),
        )
        entries.append(_entry(source.name, window))
    note = f"cut again from {path.name} by LSSP's recipe"
    return SourceInputs(source, tuple(entries), path.name, trace.origin.sha256, notes=(note,))


def _entry(source: str, window: Window) -> StudyWindow:
    known = source in RECIPES and window.start_row != UNKNOWN_ROW
    position = window.start_row / RECIPES[source].num_rows if known else math.nan
    return StudyWindow(source, window, "real", position)


def _as_dated(trace: Trace, start: int) -> Trace:
    """Give arrivals the rounding that LSSP gave them.

    It held instants as seconds since 1970, which double precision tells apart by 0.24 us. At the
    knee some arrival lies on the edge of a step by definition, so that decides results.
    """
    since_1970 = (start + np.rint(trace.arrival_time * 1e6)) / 1e6
    return replace(trace, arrival_time=since_1970 - since_1970[0])


def window_rows(recipe: Recipe) -> list[tuple[str, int]]:
    """Return LSSP's windows of a source, by name, with the row where each begins, by row."""
    name = next(key for key, value in RECIPES.items() if value == recipe)
    rng = np.random.default_rng(recipe.seed)
    past = recipe.num_rows - recipe.offset
    pilot = [recipe.offset + row for row in _draw_rows(past, NUM_PILOT, rng)]
    # What is left is numbered through; a window may not reach over a gap.
    edges = [recipe.offset, *(edge for row in pilot for edge in (row, row + WINDOW_LEN))]
    edges.append(recipe.num_rows)
    free = [
        (begin, end)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
        if end - begin >= WINDOW_LEN
    ]
    rng = np.random.default_rng(recipe.seed + _FURTHER_SEED)
    further = []
    for row in _draw_rows(sum(end - begin for begin, end in free), NUM_FURTHER, rng):
        for begin, end in free:
            if row < end - begin:
                further.append(min(begin + row, end - WINDOW_LEN))
                break
            row -= end - begin
    named = [(f"{name}_stage0_w{number:02d}", row) for number, row in enumerate(pilot)]
    named += [
        (f"{name}_pilot_v2_w{NUM_PILOT + number:02d}", row) for number, row in enumerate(further)
    ]
    return sorted(named, key=lambda one: one[1])


def _draw_rows(num_rows: int, num_windows: int, rng: np.random.Generator) -> list[int]:
    """Draw a row for a window in each of equal parts of the rows; the last takes the rest."""
    part = num_rows // num_windows
    rows = []
    for index in range(num_windows):
        begin = index * part
        end = begin + part if index < num_windows - 1 else num_rows
        rows.append(int(rng.integers(begin, end - WINDOW_LEN + 1)))
    return rows


def window_number(name: str) -> int:
    """Return the number after the last "w" of a window's name."""
    digits = name.rpartition("w")[2]
    if not digits.isascii() or not digits.isdigit():
        raise TraceError(
            f"window {name!r} has no number after a w, as in burstgpt_pilot_v2_w10, which LSSP's "
            "predictions are seeded by; rename it"
        )
    return int(digits)


def predict(output_len: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """Return LSSP's predictions of output lengths, tokens.

    The number of the window is part of the seed, so that w10 of all sources share their noise.
    """
    rng = np.random.default_rng(_SEED + window_number(name))
    sigma = math.sqrt(math.log(1 + PREDICTION_ERROR**2))
    noise = rng.lognormal(0.0, sigma, len(output_len))
    return np.clip(np.round(output_len * noise), 1, MAX_PREDICTION).astype(np.int64)

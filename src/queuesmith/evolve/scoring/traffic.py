"""Which windows a run sees: frozen in a file, the tuning ones so that classics differ on them.

Windows are cut blind. Of the tuning windows, and of those only, the run may keep the ones on which
different classics win: a search that is trained where one classic always wins learns that classic.
"""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from queuesmith.engine.presets.step_time import Preset
from queuesmith.errors import ConfigError
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.evolve.config import EvolveConfig, Source
from queuesmith.evolve.scoring.cells import Cell
from queuesmith.evolve.scoring.scale import Scale, Traffic, make_scale, prepare_traffic
from queuesmith.policies import get_policy
from queuesmith.windows import Window
from queuesmith.windows.frozen import FOLDER_VARIABLE, WindowSet

WINDOWS_FILE = "windows.toml"


@dataclass(frozen=True)
class WhoWins:
    """Scores of classics on every cell alone, FCFS (0 everywhere) among them."""

    scores: Mapping[str, Mapping[Cell, float]]

    def winners(self, cell: Cell) -> list[str]:
        """Return the best of a cell, and whoever is within the margin of it; best first."""
        ranked = sorted(self.scores, key=lambda name: -self.scores[name][cell])
        best = self.scores[ranked[0]][cell]
        return [name for name in ranked if self.scores[name][cell] >= best - MARGIN]

    def wins(self, cells: Sequence[Cell]) -> dict[str, float]:
        """Count the cells that each classic wins; a cell with several winners is split."""
        counts = dict.fromkeys(self.scores, 0.0)
        for cell in cells:
            winners = self.winners(cell)
            for name in winners:
                counts[name] += 1 / len(winners)
        return counts


def who_wins(traffic: Traffic, classics: Sequence[str], scale: Scale) -> WhoWins:
    """Score classics per (window, load)."""
    names = dict.fromkeys([REFERENCE, *classics])
    return WhoWins({name: scale.cell_scores(traffic.measure(get_policy(name))) for name in names})


def pick_windows(table: WhoWins, windows: Sequence[int], count: int) -> list[int]:
    """Choose windows on which wins are spread over as many classics as can be.

    Notes
    -----
    Greedy on the sum of the square roots of each classic's wins, which another win of whoever has
    few raises most; being submodular, that sum is at least 63 % of the best choice's.
    """
    cells: dict[int, list[Cell]] = {window: [] for window in windows}
    for cell in next(iter(table.scores.values())):
        if cell.window in cells:
            cells[cell.window].append(cell)
    chosen: list[int] = []

    def spread(window: int) -> float:
        taken = [cell for one in [*chosen, window] for cell in cells[one]]
        return float(np.sqrt(list(table.wins(taken).values())).sum())

    while len(chosen) < min(count, len(windows)):
        left = [window for window in windows if window not in chosen]
        chosen.append(max(left, key=lambda window: (round(spread(window), 9), -window)))
    return sorted(chosen)


def freeze_windows(config: EvolveConfig, folder: Path) -> WindowSet:
    """Cut the windows of a run, write them to its folder, and read them back."""
    path = folder / WINDOWS_FILE
    if config.set_file:
        given = WindowSet.load(config.set_file)
        path.write_bytes(Path(config.set_file).read_bytes())
        return replace(WindowSet.load(path), folder=given.folder)
    documents = [_freeze(config, source, place) for place, source in enumerate(config.sources)]
    if config.windows.picked_from:
        _write(path, config, [wide for _, wide in documents])
        keep = _pick(config, WindowSet.load(path))
        for (document, wide), kept in zip(documents, keep, strict=True):
            if not kept:
                continue
            rows = wide["tuning"]["windows"]
            document["tuning"] = _part([rows[place] for place in kept])
    _write(path, config, [document for document, _ in documents])
    return WindowSet.load(path)


def _freeze(
    config: EvolveConfig, source: Source, place: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Freeze one source: as it will be, and with all the tuning windows to pick from."""
    public = os.environ.get(FOLDER_VARIABLE)
    folder = Path(public) if public else None
    windows = config.windows

    def freeze(parts: Mapping[str, float], num_windows: int) -> dict[str, Any]:
        text = WindowSet.freeze(
            config.name,
            [source.entry(folder)],
            parts=parts,
            num_windows=num_windows,
            window_len=source.window_len or windows.window_len,
            seed=windows.seed + 1_000 * place,
            folder=folder,
        )
        document: dict[str, Any] = tomllib.loads(text)["source"][0]
        return document

    parts = windows.parts_of(source)
    document = freeze(parts, source.num_windows or windows.num_windows)
    wide = document
    if windows.picked_from and "tuning" in parts:
        wide = freeze({"tuning": parts["tuning"]}, windows.picked_from)
    return document, wide


def _pick(config: EvolveConfig, window_set: WindowSet) -> list[list[int]]:
    """Return which tuning windows to keep, for each source by place."""
    traffic = tuning_traffic(config, window_set)
    scale = make_scale(traffic, config.goal, config.guards)
    table = who_wins(traffic, config.search.classics, scale)
    keep, first = [], 0
    for source, frozen in zip(config.sources, window_set.sources, strict=True):
        numbers = list(range(first, first + len(frozen.parts.get("tuning", ()))))
        count = source.num_windows or config.windows.num_windows
        keep.append([window - first for window in pick_windows(table, numbers, count)])
        first += len(numbers)
    return keep


def run_windows(folder: Path, run: Mapping[str, str]) -> WindowSet:
    """Read the windows that a run began with."""
    windows = WindowSet.load(folder / WINDOWS_FILE)
    if windows.sha256 != run["windows_sha256"]:
        raise ConfigError(
            f"{folder / WINDOWS_FILE} is not the one that the run began with; restore it, or begin "
            "another run"
        )
    return replace(windows, folder=Path(run["windows_folder"]))


def kind_of(file: str) -> str:
    """Say whether a source is real or modelled traffic."""
    return "modelled" if file.endswith("@model") else "real"


def tuning_traffic(config: EvolveConfig, window_set: WindowSet) -> Traffic:
    """Prepare the tuning windows of a set on the engine of a run; nothing else is read of it."""
    windows = window_set.windows("tuning")
    return part_traffic(config, window_set, "tuning", windows, config.engine)


def part_traffic(
    config: EvolveConfig, window_set: WindowSet, part: str, windows: list[Window], engine: Preset
) -> Traffic:
    """Prepare the windows of a part on an engine."""
    names = [source.file for source in window_set.sources for _ in source.parts.get(part, ())]
    return prepare_traffic(
        windows,
        names,
        config.loads,
        config=engine.config,
        step_time=engine.step_time,
        output_length=config.output_length,
        slo=config.slo,
        seed=config.windows.seed,
    )


def _part(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    follow = len(windows) > 1 and all(
        after["start_row"] == before["start_row"] + before["num_requests"]
        for before, after in pairwise(windows)
    )
    return {"adjoin": follow, "windows": list(windows)}


def _write(path: Path, config: EvolveConfig, sources: Sequence[Mapping[str, Any]]) -> None:
    """Write a window set, in the form of `WindowSet.freeze`."""
    lines = [
        "# Windows frozen by queuesmith.evolve; it runs on exactly these bytes.",
        "schema = 1",
        f"name = {json.dumps(config.name)}",
        f"seed = {config.windows.seed}",
    ]
    for source in sources:
        lines += ["", "[[source]]"]
        plain = {key: value for key, value in source.items() if not isinstance(value, dict)}
        lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
        for part in ("tuning", "validation", "held_out"):
            if part in source:
                lines += [f"[source.{part}]", f"adjoin = {json.dumps(source[part]['adjoin'])}"]
                lines += ["windows = ["]
                lines += [
                    "  { "
                    + ", ".join(f"{key} = {json.dumps(value)}" for key, value in window.items())
                    + " },"
                    for window in source[part]["windows"]
                ]
                lines += ["]"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

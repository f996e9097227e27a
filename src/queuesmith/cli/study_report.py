"""``queuesmith study report`` and ``study advise``: what a study says, and what it says to you."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from queuesmith.cli.options import TrafficOptions, load_windows
from queuesmith.cli.output import (
    check_file,
    check_place,
    command_line,
    make_folder,
    reader_may_leave,
    write_whole,
)
from queuesmith.errors import TraceError

if TYPE_CHECKING:
    from rich.console import Console

    from queuesmith.windows import Window

Json = Annotated[bool, Parameter(name="--json", negative=())]

#: The summary that came with the package, in place of the folder of a study.
PACKAGED = "packaged"
#: Windows of a trace that are measured; their median says what the trace is like.
_NUM_WINDOWS = 20


def report(
    folder: Path,
    *,
    output: Path | None = None,
    summary: Path | None = None,
    json_: Json = False,
) -> None:
    """Write the atlas of a study: a page, tables, and what it shows.

    Writes atlas.html, atlas.json and the tables behind them (CSV, long ones Parquet) to a folder.

    Parameters
    ----------
    folder
        Of a study that `queuesmith study run` has finished.
    output
        Folder to write to; the study's own when left out.
    summary
        Also write the small summary that `queuesmith study advise` reads, to this file.
    json_
        Print atlas.json instead.
    """
    from rich.console import Console

    from queuesmith.report.atlas import write_atlas
    from queuesmith.study.atlas import abridge, make_atlas, write_tables
    from queuesmith.study.run import Study
    from queuesmith.study.summary import save_summary

    target = output or folder
    check_place(target, "--output")
    if summary is not None:
        check_file(summary, "--summary")
    command = command_line()
    study = Study.load(folder)
    atlas = make_atlas(study, command=command)

    target = make_folder(target, study.sha256)
    text = json.dumps(abridge(atlas), indent=1) + "\n"
    write_whole(target / "atlas.json", lambda path: path.write_text(text, encoding="utf-8"))
    found = write_tables(atlas, target)
    page = write_whole(target / "atlas.html", lambda path: write_atlas(atlas, path))
    if summary is not None:
        write_whole(summary, lambda path: save_summary(atlas["summary"], path))
    with reader_may_leave():
        if json_:
            print(text, end="")
        else:
            _print_facts(atlas, Console(highlight=False, markup=False))
    print(f"page: {page}; {len(found)} tables beside it", file=sys.stderr)
    if summary is not None:
        print(f"summary: {summary}", file=sys.stderr)


def advise(
    *,
    trace: str,
    metric: str = "ttft_mean",
    study: str = PACKAGED,
    load: str = "0.9",
    engine: str | None = None,
    seed: int = 0,
    json_: Json = False,
    traffic: TrafficOptions | None = None,
) -> None:
    """Place your own trace on the map of a study; name the policy to try first.

    Where such advice was wrong more often than right, or the traffic is unlike all of the study's,
    there is none, but the `queuesmith compare` that measures it.

    Parameters
    ----------
    trace
        A file, a name from `queuesmith traces list`, or NAME@model for modelled traffic.
    metric
        What is to be good: ttft_mean, ttft_p99, e2el_mean, slo_attainment, ...
    study
        Folder of a study of your own, or a summary that `study report --summary` wrote; the study
        that came with the package when left out.
    load
        Offered rate over what the engine can carry, or the name of a load of the study.
    engine
        Of the study, such as h100_sxm; its first one with a GPU when left out.
    seed
        Of windows, and of the draw from a model.
    json_
        Print one JSON document instead of sentences.
    """
    from queuesmith.study.advise import advise as place_on_map
    from queuesmith.study.inputs import features

    known = _read_summary(study)
    requests, _ = load_windows(trace, traffic or TrafficOptions(), seed, None)
    if isinstance(requests, list):
        windows = requests
    else:
        from queuesmith.windows import cut_windows

        windows = cut_windows(
            requests, num_windows=_NUM_WINDOWS, window_len=known["window_len"], seed=seed
        )
    measured = [features(window.trace) for window in windows]
    advice = place_on_map(
        known,
        {name: [one[name] for one in measured] for name in measured[0]},
        metric=metric,
        load=load,
        engine=engine,
        trace=trace,
    )
    advice["traffic"] |= _described(windows, known["window_len"])
    with reader_may_leave():
        if json_:
            print(json.dumps(advice, indent=1))
        else:
            for sentence in advice["sentences"]:
                print(sentence)
    for note in advice["traffic"]["notes"]:
        print(f"note: {note}", file=sys.stderr)


def _read_summary(study: str) -> dict[str, Any]:
    from queuesmith.study.summary import load_summary

    if study == PACKAGED:
        return load_summary()
    path = Path(study)
    if path.is_dir():
        from queuesmith.study.run import Study
        from queuesmith.study.summary import summarize_study

        return summarize_study(Study.load(path))
    return load_summary(path)


def _described(windows: "list[Window]", window_len: int) -> dict[str, Any]:
    """Say what was measured, and what is wanting about it."""
    from queuesmith.evaluation.judge import MIN_WINDOWS

    lengths = [len(window.trace) for window in windows]
    origin = windows[0].trace.origin
    if min(lengths) < 3:
        raise TraceError(
            f"{origin.source} has windows of {min(lengths)} requests, which have no gaps to "
            "measure; give a longer trace"
        )
    notes = []
    if min(lengths) < window_len:
        notes.append(
            f"windows of {min(lengths):,} requests were measured, and those of the study have "
            f"{window_len:,}: tails and bursts are not quite comparable"
        )
    if len(windows) < MIN_WINDOWS:
        how_many = "one window" if len(windows) == 1 else f"{len(windows)} windows"
        notes.append(f"only {how_many}, so a rough picture of the traffic")
    return {
        "source": origin.source,
        "kind": origin.kind,
        "num_windows": len(windows),
        "num_requests": sum(lengths),
        "notes": notes,
    }


def _print_facts(atlas: Mapping[str, Any], console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    from queuesmith.study.facts import CARRY_HEADS, carry_lines
    from queuesmith.study.words import metric_words

    headline, *answers = atlas["answers"]
    console.print(Text(headline["text"], "bold"))
    metric = atlas["summary"]["metrics"][0]
    if lines := carry_lines(atlas["carry_over"], metric):
        table = Table(box=None, pad_edge=False, title=metric_words(metric))
        for place, head in enumerate(CARRY_HEADS):
            table.add_column(head, no_wrap=place == 0, justify="right" if place else "left")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for answer in answers:
        console.print(Text(f"- {answer['text']}"))
    for warning in atlas["warnings"]:
        console.print(Text(f"! {warning}", "yellow"))

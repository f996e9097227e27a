"""A run of evolution as one HTML file that opens offline: what it found, and how much to trust it.

:func:`write_evolution` shows the document of :func:`queuesmith.evolve.diagnosis.evolution.tell`
and nothing that is not in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from queuesmith.evolve.page import tables
from queuesmith.evolve.page.dots import frontier_figure, population_figure
from queuesmith.evolve.page.figures import heat_figure, lineage_figure, progress_figure
from queuesmith.evolve.page.text import headline, name_of, nearest_words, sentences
from queuesmith.report.atlas_tables import plain_table
from queuesmith.report.frame import (
    fact_list,
    figure_card,
    prose,
    render_page,
    warning_box,
    write_page,
)
from queuesmith.report.parts import RHO, Figure

Section = tuple[str, str, str, str]


def write_evolution(document: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a run as one HTML file that needs nothing else."""
    return write_page(render_evolution(document), path)


def render_evolution(document: Mapping[str, Any]) -> str:
    """Return the page as text; equal arguments give equal bytes."""
    figures, sections = _sections(document)
    command = document["command"]
    return render_page(
        "evolution",
        subject=document["run"]["name"],
        verb="evolve",
        script="atlas.js",
        badges=_badges(document["run"]),
        headline=prose(headline(document)),
        sentences="".join(f"<li>{prose(one)}</li>" for one in sentences(document)),
        run_name=escape(document["run"]["name"]),
        facts=_facts(document),
        warnings=warning_box(document["warnings"]),
        contents="".join(
            f'<a href="#{name}">{escape(title)}</a>' for name, title, _, _ in sections
        ),
        sections="".join(
            f'<h2 id="{name}">{escape(title)}</h2><p>{prose(lead)}</p>{body}'
            for name, title, lead, body in sections
        ),
        command=f"<pre><code>{escape(command)}</code></pre>" if command else "",
        version=document["version"],
        data=document,
        drawing=_drawing(document, figures),
    )


def _sections(document: Mapping[str, Any]) -> tuple[list[Figure], list[Section]]:
    """Return the figures, and the sections in the order in which they are read."""
    found = [
        _progress(document),
        _leaderboard(document),
        _diagnosis(document),
        _tried(document),
        _policy(document),
        _lineage(document),
        _gates(document),
        _spent(document),
    ]
    figures = [figure for some, _ in found for figure in some]
    return figures, [section for _, section in found if section is not None]


Found = tuple[list[Figure], Section | None]


def _progress(document: Mapping[str, Any]) -> Found:
    diagnosis = document["diagnosis"]
    # A diagnosis knows more classics, and asks whether chance may have done a violation.
    classics = [
        {"policy": row["policy"], "score": row["score"], "clean": not row["broken_guards"]}
        for row in (diagnosis["parts"]["tuning"]["leaderboard"][1:] if diagnosis else ())
    ] or document["run"]["classics"]
    figure = progress_figure(document["generations"], classics)
    lead = "Search and control have the same windows, selection and number of evaluations."
    return [figure], ("progress", "Progress", lead, figure_card(figure))


def _leaderboard(document: Mapping[str, Any]) -> Found:
    diagnosis = document["diagnosis"]
    boards = []
    if diagnosis:
        for part, values in diagnosis["parts"].items():
            table = tables.leaderboard_table(
                values["leaderboard"], name_of(document), f"board-{part}"
            )
            boards.append(f"<div><h3>{escape(part.capitalize())} windows</h3>{table}</div>")
    if held_out := _held_out(document["judgement"]):
        judged = document["judgement"]["policy"]["name"]
        table = tables.leaderboard_table(held_out, judged, "board-held-out")
        boards.append(f"<div><h3>Held-out windows <small>opened once</small></h3>{table}</div>")
    if not boards:
        return [], None
    lead = (
        "Gain in the goal, the mean over all configurations (source x load), and guards broken in "
        "them. The search has looked at tuning windows, which prove nothing."
    )
    body = f'<div class="tables">{"".join(boards)}</div>'
    return [], ("leaderboard", "Leaderboard with the classics", lead, body)


def _held_out(judgement: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """Return the standings that gate G6 saw."""
    for gate in judgement["gates"] if judgement else ():
        if gate.get("gate") == "G6":
            mine = judgement["policy"].get("sha256") if judgement else None
            return [
                {**row, "kind": "candidate"} if row.get("policy_sha256") == mine else row
                for row in (gate.get("saw") or {}).get("standings", ())
            ]
    return ()


def _diagnosis(document: Mapping[str, Any]) -> Found:
    diagnosis = document["diagnosis"]
    if not diagnosis:
        return [], None
    name = name_of(document)
    figure = heat_figure(diagnosis, name)
    suggested = "".join(
        f'<li class="{escape(one["kind"])}">{prose(one["text"])}</li>'
        for one in diagnosis["suggestions"]
    )
    control = '<div class="control" data-control="part"></div>'
    body = (
        f'<ul class="answers" id="suggestions">{suggested}</ul>'
        + figure_card(figure)
        + '<div class="tables"><div><h3>Which classic wins how often</h3>'
        f"{tables.wins_table(diagnosis)}</div><div>{control}{tables.lost_table(diagnosis)}</div></div>"
        "<h3>Who paid <small>mean TTFT beside fcfs, and p99 below; quarters of the requests"
        f"</small></h3>{control}{tables.payers_table(diagnosis)}"
        "<h3>What the nearest classic would have done</h3>"
        f"<p>{prose(nearest_words(diagnosis))}</p>"
        f"{control}{tables.nearest_table(diagnosis, name)}"
    )
    lead = "Measured anew on tuning and validation windows; held-out windows stay closed."
    return [figure], ("diagnosis", "Diagnosis", lead, body)


def _tried(document: Mapping[str, Any]) -> Found:
    columns = document["population"]
    champion = document["champion"]
    found = [population_figure(columns, champion["candidate"] if champion else None)]
    diagnosis = document["diagnosis"]
    board = diagnosis["parts"]["tuning"]["leaderboard"] if diagnosis else []
    if board or any(value is not None for value in columns["mean_ratio"]):
        found.append(frontier_figure(columns, board, name_of(document)))
    lead = "Every candidate that was scored is a dot, whatever became of it."
    body = "".join(figure_card(figure) for figure in found)
    return found, ("tried", "What was tried, and what can be had", lead, body)


def _policy(document: Mapping[str, Any]) -> Found:
    champion = document["champion"]
    if not champion:
        return [], None
    body = (
        f"<pre><code>{escape(champion['text'])}</code></pre>"
        f"{tables.situations_table(champion['situations'])}"
    )
    lead = "The policy file, and the place at which it admits requests of each kind."
    return [], ("policy", "The policy, and what it does", lead, body)


def _lineage(document: Mapping[str, Any]) -> Found:
    lineage = document["lineage"]
    if not lineage:
        return [], None
    figure = lineage_figure(lineage["nodes"])
    lead = f"{len(lineage['nodes'])} candidates led to it. Below, the main line step by step."
    return [figure], ("lineage", "Lineage", lead, figure_card(figure) + tables.diffs(lineage))


def _gates(document: Mapping[str, Any]) -> Found:
    judgement, others = document["judgement"], document["judgements"]
    if not others:
        return [], None
    lead = "What was judged is not the policy of this page."
    if judgement:
        lead = f"{judgement['policy'].get('name')}: {judgement.get('verdict')}"
    rows = [[str(one["policy"]), str(one["verdict"])] for one in others]
    body = tables.gates_table(judgement) if judgement else ""
    body += "<h3>All that was judged of this run</h3>"
    body += plain_table(["policy", "verdict"], rows, "judged", words=(0, 1))
    return [], ("gates", "Gates", lead, body)


def _spent(document: Mapping[str, Any]) -> Found:
    budget = tables.budget_table(document["run"], document["budget"])
    body = f'<div class="tables"><div>{budget}</div></div>'
    body += tables.verdicts_table(document["verdicts"])
    lead = f"How the run ended: {document['run']['stopped'] or 'it has not'}."
    return [], ("spent", "Budget and verdicts", lead, body)


def _drawing(document: Mapping[str, Any], figures: Iterable[Figure]) -> dict[str, Any]:
    """Return what the page's script needs to draw."""
    diagnosis = document["diagnosis"]
    parts = list(diagnosis["parts"]) if diagnosis else ["tuning"]
    return {
        "choices": [
            {
                "name": "part",
                "label": "windows",
                "first": parts[0],
                "options": [{"name": part, "label": part} for part in parts],
            }
        ],
        "figures": [
            {"name": figure.name, "columns": figure.columns, "panels": figure.panels}
            for figure in figures
        ],
    }


def _badges(run: Mapping[str, Any]) -> str:
    kinds = sorted({source["kind"] for source in run["windows"]["sources"]}, reverse=True)
    return " ".join(
        f'<span class="badge {escape(kind)}">{escape(kind)} traffic</span>' for kind in kinds
    )


def _facts(document: Mapping[str, Any]) -> str:
    """Return what was run, as a short list."""
    run = document["run"]
    windows = "; ".join(
        f"{source['file']} ({source['kind']}): "
        + ", ".join(
            f"{source[part]} {part.replace('_', '-')}"
            for part in ("tuning", "validation", "held_out")
            if part in source
        )
        for source in run["windows"]["sources"]
    )
    evaluations = ", ".join(f"{name} {num:,}" for name, num in run["evaluations"].items())
    facts = {
        "Windows": windows,
        "Loads": ", ".join(f"{load['name']} ({RHO} {load['rho']:g})" for load in run["loads"]),
        "Engine": run["engine"],
        "Known of output length": run["output_length"],
        "Seeds": ", ".join(str(row["seed"]) for row in run["seeds"]),
        "Evaluations": evaluations,
        "Windows' SHA-256": run["windows"]["sha256"][:16] + "…",
        "Configuration's SHA-256": run["config_sha256"][:16] + "…",
    }
    return fact_list(facts)

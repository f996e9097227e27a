"""A study as one HTML file that opens offline: answers first, then the maps they come from.

:func:`write_atlas` shows the document of :func:`queuesmith.study.atlas.make_atlas` and nothing
that is not in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from queuesmith.report.atlas_cards import reversal_cards
from queuesmith.report.atlas_figures import (
    agreement_figure,
    ranks_figure,
    sample_figure,
    variance_figure,
)
from queuesmith.report.atlas_sensitivity import (
    agreement_table,
    class_tables,
    published_tables,
    sensitivity_tables,
)
from queuesmith.report.atlas_tables import winners_table
from queuesmith.report.frame import (
    fact_list,
    figure_card,
    prose,
    render_page,
    warning_box,
    write_page,
)
from queuesmith.report.parts import RHO, Figure
from queuesmith.study.summary import main_engine, main_load
from queuesmith.study.words import engine_words, metric_words, windows_words


def write_atlas(document: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a study as one HTML file that needs nothing else.

    Parameters
    ----------
    document : mapping
        Of schema ``queuesmith.atlas/1``.
    path : Path
        Where to write; folders are made, an existing file is replaced.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    return write_page(render_atlas(document), path)


def render_atlas(document: Mapping[str, Any]) -> str:
    """Return the page as text; equal arguments give equal bytes."""
    study, summary = document["study"], document["summary"]
    figures, sections = _sections(document)
    headline, *answers = document["answers"]
    return render_page(
        "atlas",
        subject=study["name"],
        verb="study",
        script="atlas.js",
        heading=escape(study["title"]),
        badges=_badges(study["num_windows"]),
        headline=prose(headline["text"]),
        map=sections[0][3],
        lead=prose(sections[0][2]),
        answers=_answers(answers),
        facts=_facts(document),
        warnings=warning_box(document["warnings"]),
        contents="".join(
            f'<a href="#{name}">{escape(title)}</a>'
            for name, title in [
                ("who-wins", "Who wins where"),
                ("answers", "In sentences"),
                *((name, title) for name, title, _, _ in sections[1:]),
            ]
        ),
        sections="".join(
            f'<h2 id="{name}">{escape(title)}</h2><p>{prose(lead)}</p>{body}'
            for name, title, lead, body in sections[1:]
        ),
        command=f"<pre><code>{escape(document['command'])}</code></pre>",
        tables=", ".join(f"<code>{escape(name)}</code>" for name in document["tables"].values()),
        version=study["version"],
        data={name: document[name] for name in ("schema", "study", "answers")},
        drawing=_drawing(summary, figures),
    )


Section = tuple[str, str, str, str]


def _sections(document: Mapping[str, Any]) -> tuple[list[Figure], list[Section]]:
    """Return the figures, and the sections in the order in which they are read."""
    summary, analysis = document["summary"], document["analysis"]
    order = {
        "source": list(summary["sources"]),
        "load": [load["name"] for load in summary["loads"]],
        "engine": summary["engines"],
        "metric": summary["metrics"],
    }
    agreement = agreement_figure([*analysis["agreement"], *analysis["metric_agreement"]], order)
    samples = sample_figure(
        analysis["sample_complexity"], order["source"], analysis["options"]["recovered"]
    )
    variance = variance_figure(analysis["variance"])
    ranks = ranks_figure(analysis["mean_ranks"])
    reference = summary["reference"]
    sections = [
        (
            "who-wins",
            "Who wins where",
            "The best policy of each cell by its mean over windows, of those that only change "
            f"order, with all that tie with it; below, its change against {reference} and the "
            "windows in which it is among the best. Pale: not surely better. Dashed: some windows "
            "were modelled. Point at a cell for the interval.",
            _control("metric") + _control("engine") + winners_table(summary),
        ),
        (
            "carries",
            "How far a ranking carries",
            "The same policies in the same order? Between two kinds of traffic, two loads, two "
            "engines (what the step times change), and two metrics of the same runs.",
            figure_card(agreement)
            + "<details><summary>Over all conditions, by metric</summary>"
            + agreement_table(analysis["agreement_by_metric"])
            + "</details>",
        ),
        (
            "reversals",
            "Reversals",
            "Two policies that change places between two conditions, by a margin that matters and "
            "surely on both sides. Everything below that is counted, and is no reversal.",
            class_tables(analysis["reversal_counts"], analysis["reversals"])
            + reversal_cards(analysis["reversals"]),
        ),
        (
            "windows",
            "How many windows are enough",
            "How surely a smaller study would have come to the same answer.",
            figure_card(samples),
        ),
        (
            "parts",
            "What makes the difference",
            f"The variance of log ratios to {reference}, by what they hang on, and mean ranks.",
            figure_card(variance) + figure_card(ranks),
        ),
        (
            "sensitivity",
            "What else it hangs on",
            "Whether another month, other deadlines, better predictions or another choice of "
            "sources and policies would have given other answers.",
            sensitivity_tables(analysis),
        ),
    ]
    if document["findings"]:
        sections.insert(
            1,
            (
                "published",
                "Against what was published",
                "Vahidi (NJIT 2026) ranked policies on these sources in a simpler engine; which of "
                "its findings hold in these runs, and its numbers beside ours. "
                "docs/background/lssp.md explains the differences.",
                published_tables(document["findings"], document["published"]),
            ),
        )
    return [agreement, samples, variance, ranks], sections


def _control(name: str) -> str:
    return f'<div class="control" data-control="{name}"></div>'


def _drawing(summary: Mapping[str, Any], figures: Iterable[Figure]) -> dict[str, Any]:
    """Return what the page's script needs to draw."""
    engine = main_engine(summary)
    load = main_load(summary)["name"]

    def choice(name: str, options: Sequence[tuple[str, str]], first: str) -> dict[str, Any]:
        return {
            "name": name,
            "label": name,
            "first": first,
            "options": [{"name": key, "label": label} for key, label in options],
        }

    return {
        "choices": [
            choice("engine", [(one, engine_words(one)) for one in summary["engines"]], engine),
            choice(
                "metric",
                [(one, metric_words(one)) for one in summary["metrics"]],
                summary["metrics"][0],
            ),
            choice(
                "load",
                [(one["name"], _load_label(one)) for one in summary["loads"]],
                load,
            ),
            choice(
                "source", [(one, one) for one in summary["sources"]], next(iter(summary["sources"]))
            ),
        ],
        "figures": [
            {"name": figure.name, "columns": figure.columns, "panels": figure.panels}
            for figure in figures
        ],
    }


def _load_label(load: Mapping[str, Any]) -> str:
    if load["rho"] is not None:
        return f"{load['name']} ({RHO} {load['rho']:g})"
    return f"{load['name']} ({load['multiplier']:g}x)" if load["multiplier"] else load["name"]


def _badges(num_windows: Mapping[str, int]) -> str:
    return " ".join(
        f'<span class="badge {kind}">{num_windows[kind]:,} {kind} windows</span>'
        for kind in ("real", "modelled")
        if num_windows[kind]
    )


_SURELY = ("windows", "time", "deadlines", "predictions")


def _answers(answers: Sequence[Mapping[str, str]]) -> str:
    """Return the answers by what they are about; further metrics are folded away."""
    by_metric: dict[str, list[str]] = {}
    for answer in answers:
        if answer["topic"] == "source":
            by_metric.setdefault(answer["metric"], []).append(answer["text"])
    others = [answer for answer in answers if answer["topic"] != "source"]
    first, *more = by_metric.items() if by_metric else [("", [])]
    where = _listed("What to use where", first[1]) + "".join(
        f"<details><summary>The same for {escape(metric_words(metric))}</summary>"
        f"{_listed('', texts)}</details>"
        for metric, texts in more
    )
    parts = [where]
    for title, wanted in (("How far it carries over", False), ("How surely", True)):
        texts = [one["text"] for one in others if (one["topic"] in _SURELY) == wanted]
        parts.append(_listed(title, texts))
    return '<div class="said">' + "".join(f"<div>{part}</div>" for part in parts if part) + "</div>"


def _listed(title: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    head = f'<h2 class="small">{escape(title)}</h2>' if title else ""
    return f'{head}<ul class="answers">{items}</ul>'


def _facts(document: Mapping[str, Any]) -> str:
    """Return what was studied, as a short list."""
    study, summary = document["study"], document["summary"]
    kinds = {"bundle": " (bundle)", "oracle": " (oracle)"}
    policies = ", ".join(name + kinds.get(kind, "") for name, kind in summary["policies"].items())
    sources = "; ".join(
        f"{one['name']}: {windows_words(one['real'], one['modelled'])}" for one in study["sources"]
    )
    facts = {
        "Policies": f"{len(summary['policies'])}: {policies}",
        "Sources": sources,
        "Loads": ", ".join(_load_label(load) for load in summary["loads"]),
        "Engines": ", ".join(summary["engines"]),
        "Metrics": ", ".join(metric_words(metric) for metric in summary["metrics"]),
        "Runs": f"{study['num_runs']:,} of {summary['window_len']:,} requests each",
        "Known of output length": summary["prediction"],
        "SHA-256": study["sha256"][:16] + "…",
    }
    return fact_list(facts)

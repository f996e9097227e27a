"""A study as one HTML file that opens offline: the map of who wins first, then the rest."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from queuesmith.report.atlas_figures import agreement_figure, sample_figure, variance_figure
from queuesmith.report.atlas_sums import (
    carry_table,
    published_tables,
    reversal_tables,
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
from queuesmith.study.words import engine_words, metric_words, scopes, windows_words, within


def write_atlas(document: Mapping[str, Any], path: Path) -> Path:
    """Write the document of `queuesmith.study.atlas.make_atlas` as a page."""
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
        map=_control("metric") + _control("engine") + winners_table(summary),
        reference=escape(summary["reference"]),
        carry=carry_table(document["carry_over"]),
        answers="".join(f"<li>{prose(one['text'])}</li>" for one in answers),
        facts=_facts(document),
        warnings=warning_box(document["warnings"]),
        contents="".join(
            f'<a href="#{name}">{escape(title)}</a>'
            for name, title in [
                ("who-wins", "Who wins where"),
                ("carry", "What carries over"),
                *((name, title) for name, title, _, _ in sections),
            ]
        ),
        sections="".join(
            f'<h2 id="{name}">{escape(title)}</h2><p>{prose(lead)}</p>{body}'
            for name, title, lead, body in sections
        ),
        command=f"<pre><code>{escape(document['command'])}</code></pre>",
        tables=", ".join(f"<code>{escape(name)}</code>" for name in document["tables"].values()),
        version=study["version"],
        data={name: document[name] for name in ("schema", "study", "answers", "carry_over")},
        drawing=_drawing(summary, figures),
    )


Section = tuple[str, str, str, str]


def _sections(document: Mapping[str, Any]) -> tuple[list[Figure], list[Section]]:
    """Return the figures, and the sections after the map, in the order in which they are read."""
    summary, analysis = document["summary"], document["analysis"]
    order = {
        "source": list(summary["sources"]),
        "load": [load["name"] for load in summary["loads"]],
        "engine": summary["engines"],
        "metric": summary["metrics"],
    }
    (scope, engines), *apart = scopes(summary["engines"]).items()
    agreement = agreement_figure([*analysis["agreement"], *analysis["metric_agreement"]], order)
    samples = sample_figure(
        analysis["sample_complexity"], order["source"], analysis["options"]["recovered"]
    )
    variance = variance_figure([row for row in analysis["variance"] if row["scope"] == scope])
    reversals = [row for row in analysis["reversals"] if within(row, engines)]
    sections = [
        (
            "orders",
            "How far orders agree",
            "",
            figure_card(agreement),
        ),
        (
            "reversals",
            "Reversals",
            f"Two policies that change places between two conditions ({scope}), the strongest of "
            "each metric in turn. Sure: the margin is above 10 % and the interval excludes 0 on "
            "both sides, and the sign test passes Benjamini-Hochberg at 0.05.",
            reversal_tables(reversals),
        ),
        ("windows", "How many windows are enough", "", figure_card(samples)),
        ("parts", "What gains depend on", f"Engines: {scope}.", figure_card(variance)),
        (
            "sensitivity",
            "What else rankings depend on",
            f"Engines: {scope}; all loads and metrics.",
            sensitivity_tables(analysis, scope, engines)
            + "".join(
                f"<details><summary>The same {escape(name)}</summary>"
                f"{sensitivity_tables(analysis, name, of)}</details>"
                for name, of in apart
            ),
        ),
    ]
    if document["findings"]:
        published = (
            "published",
            "Against what was published",
            "Vahidi (NJIT 2026) on these sources in a simpler engine; docs/background/lssp.md "
            "explains the differences.",
            published_tables(document["findings"], document["published"]),
        )
        sections.insert(0, published)
    return [agreement, samples, variance], sections


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

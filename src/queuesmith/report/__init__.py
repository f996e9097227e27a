"""What a comparison looks like: one HTML file that opens offline, and a terminal table."""

from html import escape
from pathlib import Path

from queuesmith._version import __version__
from queuesmith.comparison.compare import Comparison
from queuesmith.evaluation.describe import describe_load
from queuesmith.evaluation.evaluate import Offered
from queuesmith.report.figures import build_figures
from queuesmith.report.frame import (
    KIND_NOTES,
    command_block,
    draw,
    fact_list,
    figure_cards,
    points,
    prose,
    render_page,
    warning_box,
    write_page,
)
from queuesmith.report.parts import policy_styles
from queuesmith.report.tables import (
    first_group,
    goals_table,
    leaderboard_table,
    loads_tables,
    settings_table,
)
from queuesmith.report.text import print_comparison, shown_load

__all__ = ["print_comparison", "render_html", "write_html"]


def write_html(comparison: Comparison, path: Path) -> Path:
    """Write the report of a comparison as one HTML file that needs nothing else.

    Parameters
    ----------
    comparison : Comparison
    path : Path
        Where to write; folders are made, an existing file is replaced.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    return write_page(render_html(comparison), path)


def render_html(comparison: Comparison) -> str:
    """Return the report as text; equal arguments give equal bytes."""
    answer, config, origin = comparison.answer, comparison.config, comparison.origin
    styles = policy_styles(
        {row.policy: row.kind for row in comparison.leaderboard}, config["reference"], answer.policy
    )
    loads = {
        row.load: describe_load(Offered(row.load, row.rho, row.rate)) for row in comparison.loads
    }
    figures = build_figures(comparison, styles)
    settings = {name: value for name, value in config.items() if name != "command"}
    return render_page(
        "compare",
        subject=origin["source"],
        verb="compare",
        kind=escape(origin["kind"]),
        kind_note=KIND_NOTES.get(origin["kind"], ""),
        traffic=prose(answer.traffic),
        answer=prose(answer.sentences[0]),
        goals=goals_table(comparison),
        more=points(answer.sentences[1:-1]),  # the last one stands below the goals
        facts=_facts(comparison),
        warnings=warning_box(comparison.warnings),
        reference=escape(config["reference"]),
        statistic=escape(comparison.goal.statistic.label),
        leaderboard=leaderboard_table(comparison, styles),
        loads=loads_tables(comparison, styles, loads),
        figures=figure_cards(figures),
        settings=settings_table({"trace": origin, **settings, "queuesmith": __version__}),
        command=command_block(config.get("command")),
        version=__version__,
        data=comparison.to_json(),
        drawing={
            **draw(
                figures,
                styles,
                loads,
                reference=config["reference"],
                answer=answer.policy,
                load=shown_load(comparison),
            ),
            "metrics": first_group(comparison),
        },
    )


def _facts(comparison: Comparison) -> str:
    """Return what was compared, on what, as a short list."""
    origin, config = comparison.origin, comparison.config
    dropped = sum(origin["dropped"].values())
    requests = f"{origin['num_requests']:,}"
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in origin["dropped"].items())
        requests += f" ({dropped:,} left out: {reasons})"
    limits = [f"{name} {limit:g} s" for name, limit in (config["slo"] or {}).items() if limit]
    facts = {
        "Traffic": f"{origin['source']} ({origin['kind']}; {origin['reader']})",
        "Requests": requests,
        "Notes on the trace": "; ".join(origin["notes"]),
        "Engine": f"{config['preset']} ({config['provenance']})",
        "Replicas": f"{config['replicas']}, router {config['router']}" if config["router"] else "",
        "Sessions": "later turns wait for answers; loads scale first arrivals"
        if config["closed_loop"]
        else "",
        "Measured on": f"{config['num_windows']} windows of {config['window_len']:,} requests",
        "SLO": ", ".join(limits),
        "Known of output length": config["output_length"],
        "Policies": f"{len(config['policies'])}, against {config['reference']}",
        "Seed": str(config["seed"]),
        "SHA-256": (origin["sha256"] or comparison.trace.sha256)[:16] + "…",
    }
    return fact_list(facts)

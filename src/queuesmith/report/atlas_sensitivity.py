"""The tables of an atlas that say what else the answers hang on."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import fmean, median
from typing import Any

from queuesmith import numbers
from queuesmith.report.atlas_tables import plain_table
from queuesmith.study.published_findings import region_table
from queuesmith.study.words import engine_words, loss_words, metric_words

Row = Mapping[str, Any]

_AXES = {"source": "sources", "load": "loads", "engine": "engines", "metric": "metrics"}
_CLASSES = ("supported", "unsupported", "microscopic", "stable", "undefined")
#: Below this a split by time agrees less than random splits do.
_LEVEL = 0.05


def class_tables(counts: Sequence[Row], records: Sequence[Row]) -> str:
    """Return how many pairs of policies are of each class of reversal, by axis, and by metric.

    Beside the supported ones stand those whose p-value, adjusted for the number of pairs looked
    at, is below 5 % as well.
    """
    axes = [axis for axis in _AXES if any(row["axis"] == axis for row in counts)]
    heads = ("between two", "supported", "p < 0.05 too", *_CLASSES[1:], "distinct")
    adjusted = Counter(
        (one["axis"], one["metric"])
        for one in records
        if one["class"] == "supported"
        and one["p_adjusted"] is not None
        and one["p_adjusted"] < _LEVEL
    )

    def line(name: str, rows: Sequence[Row]) -> list[str]:
        words = ("supported", *_CLASSES[1:], "distinct")
        sums = [sum(row[word] for row in rows) for word in words]
        sums.insert(1, sum(adjusted[row["axis"], row["metric"]] for row in rows))
        return [name, *(f"{value:,}" for value in sums)]

    total = [line(_AXES[axis], [row for row in counts if row["axis"] == axis]) for axis in axes]
    by_metric = [
        line(f"{_AXES[row['axis']]}, {metric_words(row['metric'])}", [row])
        for axis in axes
        for row in counts
        if row["axis"] == axis
    ]
    return (
        plain_table(heads, total, "classes")
        + "<details><summary>By metric</summary>"
        + plain_table(heads, by_metric, "classes-by-metric")
        + "</details>"
    )


def agreement_table(rows: Sequence[Row]) -> str:
    """Return mean and least tau-b, and what becomes of the winner, by axis and metric."""
    lines = [
        [
            f"{_AXES[row['axis']]}, {metric_words(row['metric'])}",
            numbers.score(row["mean_tau_b"]),
            numbers.score(row["least_tau_b"]),
            numbers.share(row["winner_lost"]),
            f"{row['num_comparisons'] - row['num_all_tied']:,}",
        ]
        for row in rows
    ]
    heads = ("between two", "mean tau-b", "least", "winner lost", "comparisons")
    return plain_table(heads, lines, "agreement-by-metric")


def sensitivity_tables(analysis: Mapping[str, Any]) -> str:
    """Return one table, with a heading that asks the question, for each sensitivity."""
    tables = [
        (
            "Does the winner elsewhere win here?",
            "The best policy of the other sources, pooled, tried on each source in turn, over all "
            "loads, engines and metrics.",
            _left_out_sources(analysis["leave_one_source_out"]),
        ),
        (
            "Does time matter?",
            "Rankings of the early and the late third of each source's real windows, against "
            f"random thirds. Differs: the share of comparisons with p below {_LEVEL:g}.",
            _temporal(analysis["temporal"]),
        ),
        (
            "Do deadlines matter?",
            "Rankings by ANWG, against those if every deadline left so many times the time.",
            _deadlines(analysis["slo_sensitivity"]),
        ),
        (
            "Do predictions matter?",
            "Rankings with other knowledge of output lengths, against the study's own, among the "
            "policies that were run with both.",
            _predictions(analysis["prediction_sensitivity"]["agreement"]),
        ),
        (
            "What do predictions do to each policy?",
            "Its mean with other knowledge over its mean with the study's own: the median over "
            "sources and loads, and the extremes.",
            _effects(analysis["prediction_sensitivity"]["effect"]),
        ),
        (
            "Does the choice of policies matter?",
            "The policy without which agreement between sources would change most.",
            _left_out_policies(analysis["leave_one_policy_out"]),
        ),
        (
            "Do metrics agree on the winner?",
            "Pairs of metrics whose best policies have none in common, and conditions in which no "
            "policy is among the best on every metric.",
            _metrics(analysis["disagreement"]),
        ),
        (
            "Many sources or many windows?",
            "Agreement with the ranking of the whole study, for as many windows of one source, or "
            "spread over all of them.",
            _spread(analysis["spread"]),
        ),
        (
            "Do sources agree?",
            "Kendall's W over sources: 1 when all rank alike, 0 when they have nothing in common. "
            "Mean and least over engines and loads.",
            _concordance(analysis["concordance"]),
        ),
    ]
    return (
        '<div class="tables">'
        + "".join(
            f"<section><h3>{escape(title)}</h3><p>{escape(lead)}</p>{table}</section>"
            for title, lead, table in tables
        )
        + "</div>"
    )


def published_tables(findings: Sequence[Row], rows: Sequence[Row]) -> str:
    """Return which published findings hold, and the published numbers beside ours."""
    words = {True: "yes", False: "no", None: "cannot be told"}
    held = plain_table(
        ("finding", "by", "holds here", "numbers"),
        [
            [one["finding"], metric_words(one["metric"]), words[one["survives"]], one["text"]]
            for one in findings
        ],
        "findings",
        words=range(4),
    )
    if not rows:
        return held
    lines = [
        [row["what"], *(numbers.number(row[name]) for name in ("published", "ours", "difference"))]
        for row in rows
        if row["ours"] is not None
    ]
    missing = len(rows) - len(lines)
    note = f"<p>{missing:,} more have no counterpart in these runs.</p>" if missing else ""
    heads = ("what", "published", "here", "difference")
    return (
        f"{held}<h3>Agreement of sources by ANWG (tau-b), published / here</h3>"
        + plain_table(*region_table(rows), "published-regions")
        + f"<details><summary>All {len(lines):,} numbers that both have</summary>"
        + plain_table(heads, lines, "published-table")
        + f"{note}</details>"
    )


def _left_out_sources(rows: Sequence[Row]) -> str:
    lines = []
    for source, mine in _by(rows, lambda row: row["source"]).items():
        known = [row for row in mine if row["regret"] is not None]
        if not known:
            continue
        worst = max(known, key=lambda row: row["regret"])
        where = (
            f"{worst['winner']}, {metric_words(worst['metric'])}, {worst['load']}, "
            f"{engine_words(worst['engine'])}"
        )
        lines.append(
            [
                source,
                f"{sum(bool(row['holds']) for row in known)} of {len(known)}",
                loss_words(median(row["regret"] for row in known)),
                f"{loss_words(worst['regret'])}: {where}",
            ]
        )
    heads = ("source", "holds", "median regret", "worst")
    return plain_table(heads, lines, "left-out-sources", words=(0, 3))


def _temporal(rows: Sequence[Row]) -> str:
    lines = []
    apart = [row for row in rows if (row["a"], row["b"]) == ("early", "late")]
    for source, mine in _by(apart, lambda row: row["source"]).items():
        known = [row for row in mine if row["tau_b"] is not None and row["p"] is not None]
        if known:
            lines.append(
                [
                    source,
                    numbers.score(fmean(row["tau_b"] for row in known)),
                    numbers.score(fmean(row["tau_b_random"] for row in known)),
                    numbers.share(fmean(row["p"] < _LEVEL for row in known)),
                    f"{known[0]['num_windows']}",
                ]
            )
    heads = ("source", "tau-b", "of random thirds", "differs", "windows")
    return plain_table(heads, lines, "temporal")


def _deadlines(rows: Sequence[Row]) -> str:
    named = {"anwg_slack_0.5": "0.5", "anwg_slack_2": "2", "anwg_slack_4": "4"}
    lines = []
    for name, mine in _by(rows, lambda row: row["b"]).items():
        lines.append([f"{named.get(name, name)} times", *_tau_and_top(mine)])
    return plain_table(("time left", "mean tau-b", "least", "winner kept"), lines, "deadlines")


def _predictions(rows: Sequence[Row]) -> str:
    lines = [[name, *_tau_and_top(mine)] for name, mine in _by(rows, lambda row: row["b"]).items()]
    return plain_table(("knowledge", "mean tau-b", "least", "winner kept"), lines, "predictions")


def _tau_and_top(rows: Sequence[Row]) -> list[str]:
    tau = [row["tau_b"] for row in rows if row["tau_b"] is not None]
    top = [row["top_1"] > 0 for row in rows if row["top_1"] is not None]
    return [
        numbers.score(fmean(tau) if tau else None),
        numbers.score(min(tau) if tau else None),
        numbers.share(fmean(top) if top else None),
    ]


def _effects(rows: Sequence[Row]) -> str:
    """Return the first metric's ratios; the table beside the page has all."""
    first = rows[0]["metric"] if rows else ""
    lines = []
    mine = [row for row in rows if row["metric"] == first and row["ratio"] is not None]
    for (policy, prediction), members in _by(
        mine, lambda row: (row["policy"], row["prediction"])
    ).items():
        ratios = [row["ratio"] - 1 for row in members]
        lines.append(
            [f"{policy}, {prediction}", numbers.change(median(ratios))]
            + [numbers.change(edge(ratios)) for edge in (min, max)]
        )
    heads = (f"policy, knowledge ({metric_words(first)})" if first else "", "median", "from", "to")
    return plain_table(heads, lines, "effects")


def _left_out_policies(rows: Sequence[Row]) -> str:
    lines = []
    for metric, mine in _by(rows, lambda row: row["metric"]).items():
        known = [row for row in mine if row["change"] is not None]
        if not known:
            continue
        most = max(known, key=lambda row: abs(row["change"]))
        lines.append(
            [
                metric_words(metric),
                most["policy"],
                numbers.score(most["mean_tau_b"] - most["change"]),
                numbers.score(most["mean_tau_b"]),
                f"{most['supported']:,} of {most['supported_all']:,}",
            ]
        )
    heads = ("metric", "without", "tau-b with", "without", "reversals left")
    return plain_table(heads, lines, "left-out-policies", words=(0, 1))


def _metrics(disagreement: Mapping[str, Any]) -> str:
    def line(name: str, row: Row) -> list[str]:
        shares = [numbers.share(row[key]) for key in ("pairs_apart", "no_common_winner")]
        return [name, *shares, f"{row['num_conditions']:,}"]

    lines = [line("all", disagreement["total"])]
    lines += [line(row["load"], row) for row in disagreement["by_load"]]
    heads = ("load", "pairs apart", "no common winner", "conditions")
    return plain_table(heads, lines, "metric-disagreement")


def _spread(rows: Sequence[Row]) -> str:
    lines = []
    for metric, mine in _by(rows, lambda row: row["metric"]).items():
        shares = [
            [row[name] for row in mine if row[name] is not None]
            for name in ("concentrated", "spread")
        ]
        if all(shares):
            lines.append([metric_words(metric), *(numbers.score(fmean(one)) for one in shares)])
    budget = f" ({rows[0]['budget']} windows)" if rows else ""
    return plain_table((f"metric{budget}", "one source", "all sources"), lines, "spread")


def _concordance(rows: Sequence[Row]) -> str:
    lines = []
    for metric, mine in _by(rows, lambda row: row["metric"]).items():
        known = [row["w"] for row in mine if row["w"] is not None]
        if known:
            lines.append([metric_words(metric), f"{fmean(known):.2f}", f"{min(known):.2f}"])
    return plain_table(("metric", "mean W", "least"), lines, "concordance")


def _by(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups

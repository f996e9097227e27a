"""The tables of an atlas that sum up: what carries over, reversals, and what else answers hang on.

Each is made of rows of engines with a GPU alone; what is summed with toy engines stands apart.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean, median
from typing import Any

from queuesmith import numbers
from queuesmith.report.atlas_tables import plain_table, when
from queuesmith.study.facts import AXES, CARRY_HEADS, carry_lines
from queuesmith.study.published_findings import region_table
from queuesmith.study.sensitivity import LEVEL
from queuesmith.study.words import engine_words, listed, loss_words, metric_words, within

Row = Mapping[str, Any]

#: Reversals of each axis on the page; a table beside it has every one.
NUM_REVERSALS = 8


def carry_table(rows: Sequence[Row]) -> str:
    """Return how often the best policy stays the best, a table for each metric to choose."""
    return "".join(
        f"<div{when(metric=metric)}>"
        + plain_table(CARRY_HEADS, carry_lines(rows, metric), f"carry-{metric}")
        + "</div>"
        for metric in dict.fromkeys(row["metric"] for row in rows)
    )


def strongest(records: Iterable[Row], axis: str, limit: int = NUM_REVERSALS) -> list[Row]:
    """Return the sure reversals of an axis to show: the strongest of each metric in turn.

    A reversal is as strong as its smaller margin. Each pair of policies stands once for each
    metric, where its reversal is strongest.
    """
    chosen: dict[str, dict[frozenset[str], Row]] = {}
    for record in records:
        if record["axis"] == axis and record["sure"]:
            pairs = chosen.setdefault(record["metric"], {})
            pair = frozenset((record["policy_a"], record["policy_b"]))
            if pair not in pairs or _strength(record) > _strength(pairs[pair]):
                pairs[pair] = record
    turns = zip_longest(
        *(sorted(pairs.values(), key=_strength, reverse=True) for pairs in chosen.values())
    )
    return [record for turn in turns for record in turn if record is not None][:limit]


def _strength(record: Row) -> float:
    margins = [record[side]["margin"] for side in ("in_a", "in_b")]
    return min(margins) if None not in margins else 0.0


def reversal_tables(records: Sequence[Row]) -> str:
    """Return the strongest sure reversals, by what differs between their two conditions."""
    heads = ("between", "where", "metric", "wins in the first", "wins in the second", "p")
    parts = []
    for axis, plural in AXES.items():
        mine = [record for record in records if record["axis"] == axis]
        sure = sum(record["sure"] for record in mine)
        unsure = sum(record["class"] == "supported" for record in mine) - sure
        parts.append(
            f"<h3>Between {plural} <small>{sure:,} sure, {unsure:,} not sure</small></h3>"
            + plain_table(
                heads, list(map(_line, strongest(mine, axis))), f"reversals-{axis}", range(5)
            )
        )
    return "".join(parts)


def _line(record: Row) -> list[str]:
    def words(axis: str, name: str) -> str:
        return engine_words(name) if axis == "engine" else name

    axis = record["axis"]
    return [
        listed([words(axis, record[side]) for side in "ab"]),
        ", ".join(words(key, record[key]) for key in AXES if record[key] is not None),
        metric_words(record["metric"]),
        *(_side(record, side) for side in "ab"),
        numbers.p_value(record["p_adjusted"]),
    ]


def _side(record: Row, side: str) -> str:
    """Say who wins in one condition, by how much, and in how many windows."""
    one = record[f"in_{side}"]
    wins, windows = one[f"wins_{side}"], one["num_windows"]
    return f"{record[f'policy_{side}']} by {loss_words(one['margin'])}, {wins}/{windows} windows"


def sensitivity_tables(analysis: Mapping[str, Any], scope: str, engines: frozenset[str]) -> str:
    """Return one table for each sensitivity, over some engines."""

    def rows(name: str) -> list[Row]:
        return [row for row in analysis[name] if within(row, engines)]

    others = [
        row for row in analysis["prediction_sensitivity"]["agreement"] if within(row, engines)
    ]
    apart = next(one for one in analysis["disagreement"] if one["scope"] == scope)
    early = [row for row in rows("temporal") if (row["a"], row["b"]) == ("early", "late")]
    agreement = ("mean tau-b", "least", "winner kept")
    tables = [
        (
            "Best policy of the other sources, on the one left out",
            ("source", "best", "median loss", "largest"),
            _by(rows("leave_one_source_out"), "source", _left_out),
        ),
        (
            "Early against late third of the real windows",
            ("source", "tau-b", "of random thirds", f"p < {LEVEL:g}"),
            _by(early, "source", _temporal),
        ),
        (
            "Deadlines that leave more or less time, by ANWG",
            ("time left", *agreement),
            _by(rows("slo_sensitivity"), "b", _tau_and_top),
        ),
        (
            "Other knowledge of output lengths",
            ("knowledge", *agreement),
            _by(others, "b", _tau_and_top),
        ),
        (
            "Two metrics without a best policy in common",
            ("load", "pairs of metrics", "none best on all"),
            [
                [one.get("load", "all"), *map(numbers.share, _shares(one))]
                for one in (apart["total"], *apart["by_load"])
            ],
        ),
        (
            "tau-b with the whole study, of as many windows from one or from all sources",
            ("metric", "one source", "all sources"),
            _by(rows("spread"), "metric", _means("concentrated", "spread")),
        ),
        (
            "Kendall's W over sources",
            ("metric", "mean W"),
            _by(rows("concordance"), "metric", _means("w")),
        ),
    ]
    body = "".join(
        f"<section><h3>{title}</h3>{plain_table(heads, lines, '')}</section>"
        for title, heads, lines in tables
    )
    return f'<div class="tables">{body}</div>'


def _by(
    rows: Iterable[Row], key: str, cells: Callable[[list[Row]], list[str] | None]
) -> list[list[str]]:
    """Return a line for each group of rows that has anything to say."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    lines = [(name, cells(mine)) for name, mine in groups.items()]
    words = {name: metric_words(name) if key == "metric" else name for name in groups}
    return [[words[name].replace("anwg_slack_", "x "), *line] for name, line in lines if line]


def _shares(row: Row) -> list[float | None]:
    return [row["pairs_apart"], row["no_common_winner"]]


def _left_out(rows: list[Row]) -> list[str] | None:
    known = [row for row in rows if row["regret"] is not None]
    if not known:
        return None
    losses = [row["regret"] for row in known]
    held = sum(bool(row["holds"]) for row in known)
    return [f"{held} of {len(known)}", *map(loss_words, (median(losses), max(losses)))]


def _temporal(rows: list[Row]) -> list[str] | None:
    known = [row for row in rows if row["tau_b"] is not None and row["p"] is not None]
    if not known:
        return None
    means = [fmean(row[name] for row in known) for name in ("tau_b", "tau_b_random")]
    differs = numbers.share(fmean(row["p"] < LEVEL for row in known))
    return [*map(numbers.score, means), differs]


def _tau_and_top(rows: list[Row]) -> list[str]:
    tau = [row["tau_b"] for row in rows if row["tau_b"] is not None]
    top = [row["top_1"] > 0 for row in rows if row["top_1"] is not None]
    return [
        *(numbers.score(of(tau) if tau else None) for of in (fmean, min)),
        numbers.share(fmean(top) if top else None),
    ]


def _means(*names: str) -> Callable[[list[Row]], list[str] | None]:
    def cells(rows: list[Row]) -> list[str] | None:
        columns = [[row[name] for row in rows if row[name] is not None] for name in names]
        return [numbers.score(fmean(one)) for one in columns] if all(columns) else None

    return cells


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
    return f"{held}<h3>Agreement of sources by ANWG (tau-b), published / here</h3>" + plain_table(
        *region_table(rows), "published-regions"
    )

"""The figures: what they draw is what was measured, and plotly accepts it."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from compared import LOADS

from queuesmith.evaluation.goals import GOALS
from queuesmith.evaluation.judge import Change
from queuesmith.report.figures import (
    MAX_POINTS,
    build_figures,
    changes,
    request_by_request,
    ttft_distribution,
    who_pays,
)
from queuesmith.report.parts import (
    COLORS,
    REFERENCE_COLOR,
    length_bins,
    length_ticks,
    policy_line,
    policy_styles,
)
from queuesmith.report.traffic.workload import workload
from queuesmith.traces.trace import Trace


def resolve(value, columns):
    """Put columns in their places, as the page's script does."""
    if isinstance(value, dict):
        if "column" in value:
            return columns[value["column"]]
        return {key: resolve(inner, columns) for key, inner in value.items()}
    return value


def traces(figure, panel, **meta):
    """Return the traces of a panel that show one policy or one load."""
    return [
        resolve(trace, figure.columns)
        for trace in figure.panels[panel]["data"]
        if meta.items() <= trace.get("meta", {}).items()
    ]


def one(figure, panel, **meta):
    (trace,) = traces(figure, panel, **meta)
    return trace


def styles_of(comparison, answer=None):
    kinds = {row.policy: row.kind for row in comparison.leaderboard}
    return policy_styles(kinds, "fcfs", answer or comparison.answer.policy)


@pytest.fixture(scope="module")
def styles(comparison):
    return styles_of(comparison)


@pytest.fixture(scope="module")
def figures(comparison, styles):
    return build_figures(comparison, styles)


def test_plotly_accepts_every_figure(figures):
    for figure in figures:
        for panel in figure.panels:
            data = [resolve(trace, figure.columns) for trace in panel["data"]]
            go.Figure({"data": data, "layout": panel["layout"]})
    with pytest.raises(ValueError, match="colour"):
        go.Figure({"data": [{"type": "scatter", "line": {"colour": "red"}}]})


def test_every_panel_has_a_title_and_named_axes(figures):
    assert len({figure.name for figure in figures}) == len(figures) == 5
    for figure in figures:
        assert figure.title
        assert len(figure.caption) > 80
        for panel in figure.panels:
            assert panel["layout"]["title"]["text"]
            assert panel["layout"]["xaxis"]["title"]["text"]
            axis = panel["layout"]["yaxis"]  # policies need no name
            assert axis.get("type") == "category" or axis["title"]["text"]
            assert panel["data"]


def test_a_policy_looks_the_same_in_every_figure(figures, styles):
    looks = {style.policy: (style.color, style.dash) for style in styles}
    seen = set()
    for figure in figures:
        for panel in figure.panels:
            for trace in panel["data"]:
                policy = trace.get("meta", {}).get("policy")
                if policy and "line" in trace:
                    assert (trace["line"]["color"], trace["line"]["dash"]) == looks[policy]
                    seen.add(policy)
    assert seen == set(looks)
    assert looks["fcfs"] == (REFERENCE_COLOR, "solid")


def test_no_two_of_many_policies_look_alike(large_comparison):
    looks = [(style.color, style.dash) for style in styles_of(large_comparison)]

    assert len(set(looks)) == len(looks) == 25
    assert {color for color, _ in looks} == {*COLORS, REFERENCE_COLOR}


def luminance(color):
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    r, g, b = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("color", [*COLORS, REFERENCE_COLOR])
def test_lines_are_seen_on_white_and_on_the_dark_page(color):
    assert 1.05 / (luminance(color) + 0.05) >= 3
    assert (luminance(color) + 0.05) / (luminance("#1c2026") + 0.05) >= 3


def test_what_is_shown_at_first_differs_in_colour_alone(large_comparison):
    last = large_comparison.leaderboard[-1].policy
    colors = [style.color for style in styles_of(large_comparison, last) if style.shown]

    assert len(set(colors)) == len(colors) == 7


def test_few_policies_are_drawn_at_first_and_the_answer_is_one(large_comparison):
    shown = [style.policy for style in styles_of(large_comparison) if style.shown]

    assert {"fcfs", "srpt_oracle", "sjf_aging"} <= set(shown)
    assert len(shown) <= 7


def test_the_reference_lies_below_the_others_and_the_answer_above(figures):
    for panel in (panel for figure in figures[:3] for panel in figure.panels):
        policies = [trace.get("meta", {}).get("policy", "fcfs") for trace in panel["data"]]
        answers = policies.count("sjf_aging")
        assert set(policies[-answers:]) == {"sjf_aging"}
        assert set(policies[: policies.count("fcfs")]) <= {"fcfs"}


def test_the_answer_is_the_thickest(figures):
    lines = {
        trace["meta"]["policy"]: trace["line"]["width"] for trace in figures[1].panels[0]["data"]
    }

    assert lines.pop("sjf_aging") > max(lines.values())


def test_changes_are_drawn_with_their_intervals_hollow_where_a_guard_is_broken(comparison, styles):
    figure = changes(comparison, styles)
    for panel, name in enumerate(("ttft_mean", "ttft_p99")):
        for row in comparison.loads:
            if row.policy == "fcfs":
                assert not traces(figure, panel, policy="fcfs")
                continue
            trace, change = one(figure, panel, policy=row.policy, load=row.load), row.changes[name]
            (middle,), error = trace["x"], trace["error_x"]
            assert middle == pytest.approx(1 + change.change, rel=1e-3)
            assert middle + error["array"][0] == pytest.approx(1 + change.high, rel=5e-3)
            assert middle - error["arrayminus"][0] == pytest.approx(1 + change.low, rel=5e-3)
            assert ("open" in trace["marker"]["symbol"]) == bool(row.broken)
            assert trace["y"][0] in figure.panels[panel]["layout"]["yaxis"]["categoryarray"]


@pytest.mark.parametrize(("goal", "tail"), [("slo", "p99 TTFT"), ("e2el", "p99 E2EL")])
def test_the_first_panel_is_of_the_goal(comparison, styles, goal, tail):
    figure = changes(replace(comparison, goal=GOALS[goal]), styles)
    first, second = figure.panels

    row = next(row for row in comparison.loads if (row.policy, row.load) == ("sjf", "knee"))
    change = row.changes[GOALS[goal].statistic.name]
    even = 0 if goal == "slo" else 1
    (middle,) = one(figure, 0, policy="sjf", load="knee")["x"]
    assert middle == pytest.approx(even + change.change, rel=1e-3)
    assert first["layout"]["shapes"][0]["x0"] == even
    assert second["layout"]["title"]["text"].startswith(tail)


def test_an_undefined_change_leaves_a_gap(comparison, styles):
    none = Change(*[float("nan")] * 5)
    loads = tuple(
        replace(row, changes={**row.changes, "ttft_mean": none}) for row in comparison.loads
    )

    figure = changes(replace(comparison, loads=loads), styles)

    assert one(figure, 0, policy="sjf", load="knee")["x"] == [None]
    go.Figure(figure.panels[0])


def test_the_distribution_reaches_the_median_and_the_largest(comparison, styles):
    figure = ttft_distribution(comparison.samples, LOADS, styles)
    ttft = comparison.samples["sjf", "knee"].ttft

    body = one(figure, 0, policy="sjf", load="knee")
    tail = one(figure, 1, policy="sjf", load="knee")

    assert np.interp(0.5, body["y"], body["x"]) == pytest.approx(np.median(ttft), rel=0.03)
    assert tail["y"][-1] == pytest.approx(1 / len(ttft))
    assert ttft.max() * 0.5 < tail["x"][-1] <= ttft.max()
    assert len(body["x"]) <= 200
    assert np.all(np.diff(body["y"]) > 0)
    assert np.all(np.diff(body["x"]) >= 0)


def test_unfinished_requests_keep_the_distribution_below_one(comparison, styles):
    sample = comparison.samples["sjf", "knee"]
    lost = np.where(np.arange(len(sample.ttft)) % 4 == 0, np.nan, sample.ttft)
    samples = {**comparison.samples, ("sjf", "knee"): replace(sample, ttft=lost)}

    trace = one(ttft_distribution(samples, LOADS, styles), 0, policy="sjf", load="knee")

    reached = [y for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None]
    assert max(reached) == pytest.approx(0.75, abs=0.02)


def test_who_pays_compares_the_means_of_the_same_requests(comparison, styles):
    figure = who_pays(comparison.samples, LOADS, styles, "fcfs")
    sample, base = (comparison.samples[name, "heavy"] for name in ("sjf", "fcfs"))
    longest = sample.prompt_len > np.quantile(sample.prompt_len, 0.9, method="inverted_cdf")

    ratio = one(figure, 0, policy="sjf", load="heavy")["y"]

    assert len(ratio) == 10
    assert ratio[-1] == pytest.approx(
        sample.ttft[longest].mean() / base.ttft[longest].mean(), rel=1e-3
    )
    assert ratio[0] < 0.3 < 1 < ratio[-1]  # under SPJF the long prompts pay for the short
    assert not traces(figure, 0, policy="fcfs")
    assert one(figure, 1, policy="fcfs", load="heavy")["y"][0] > 1


@pytest.mark.parametrize(
    ("lengths", "labels"),
    [
        ([7] * 50, ["7"]),
        ([1, 2] * 50, ["1", "2"]),
        (range(1, 101), [f"{10 * k + 1}-{10 * k + 10}" for k in range(10)]),
        ([5], ["5"]),
    ],
)
def test_equal_lengths_share_a_bin(lengths, labels):
    lengths = np.array(lengths)
    bins, found = length_bins(lengths)

    assert found == labels
    assert set(bins) == set(range(len(labels)))
    assert all(len(set(bins[lengths == length])) == 1 for length in set(lengths))


def test_the_scatter_pairs_the_same_request(comparison, styles):
    figure = request_by_request(comparison.samples, LOADS, styles, "fcfs")
    trace = one(figure, 0, policy="las", load="knee")
    policy, base = (comparison.samples[name, "knee"] for name in ("las", "fcfs"))
    pairs = {
        (f"{x:.2e}", f"{y:.2e}", length)
        for x, y, length in zip(base.ttft, policy.ttft, base.prompt_len, strict=True)
    }

    drawn = {
        (f"{x:.2e}", f"{y:.2e}", int(length))
        for x, y, length in zip(trace["x"], trace["y"], trace["customdata"], strict=True)
    }

    assert len(drawn) > 900
    assert len(drawn - pairs) <= len(drawn) // 100  # 3 digits may round a tie the other way
    assert "all" in figure.caption


def test_the_scatter_draws_a_sample_of_many_and_says_so(large_comparison):
    styles = styles_of(large_comparison)
    loads = list(dict.fromkeys(row.load for row in large_comparison.loads))
    figures = [
        request_by_request(large_comparison.samples, loads, styles, "fcfs") for _ in range(2)
    ]

    num_points = len(one(figures[0], 0, policy="las", load="knee")["y"])
    assert 500 < num_points < 1600 <= MAX_POINTS
    assert f"{num_points:,} of 1,600, drawn at random with seed 0" in figures[0].caption
    assert figures[0] == figures[1]


def test_the_workload_keeps_every_request(comparison):
    trace = comparison.trace
    arrivals, lengths = (panel["data"] for panel in workload(trace).panels)

    minutes = np.diff(arrivals[0]["x"])
    assert np.sum(np.array(arrivals[0]["y"][:-1]) * minutes * 60) == pytest.approx(
        len(trace), rel=0.01
    )
    heat = np.array([[value or 0 for value in row] for row in lengths[0]["z"]])
    assert heat.sum() == pytest.approx(1, abs=0.01)
    assert heat.sum(axis=0) == pytest.approx(lengths[1]["y"], abs=1e-3)
    assert heat.sum(axis=1) == pytest.approx(lengths[2]["x"], abs=1e-3)


@pytest.mark.parametrize(
    "trace",
    [Trace([3.0], [10], [5]), Trace([0.0, 0.0], [1, 1], [1, 1]), Trace([], [], [])],
    ids=["one request", "all at once", "empty"],
)
def test_a_degenerate_trace_has_a_figure_too(trace):
    for panel in workload(trace).panels:
        go.Figure(panel)


def test_labels_are_text_to_plotly():
    style = policy_styles({"fcfs": "policy", "<b>a & b</b>": "policy"}, "fcfs", "fcfs")[1]

    assert policy_line(style)["name"] == "&lt;b&gt;a &amp; b&lt;/b&gt;"


@pytest.mark.parametrize("low", [0.0, 0.7, 2.2, 3.9])
@pytest.mark.parametrize("span", [0.6, 1.0, 2.5, 4.0])
def test_an_axis_of_lengths_has_several_ticks(low, span):
    ticks = length_ticks(low, low + span)

    assert 2 <= len(ticks["tickvals"]) <= 8
    for value, text in zip(ticks["tickvals"], ticks["ticktext"], strict=True):
        assert low - 1e-6 <= value <= low + span + 1e-6
        assert 10**value == pytest.approx(int(text.replace(",", "")), rel=1e-4)

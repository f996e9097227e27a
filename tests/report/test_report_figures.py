"""The figures: what they draw is what was measured, and plotly accepts it."""

import copy
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest

from queuesmith.report.figures import (
    MAX_POINTS,
    build_figures,
    change_by_load,
    request_by_request,
    ttft_distribution,
    who_pays,
)
from queuesmith.report.parts import COLORS, REFERENCE_COLOR, length_bins, policy_styles
from queuesmith.report.workload import workload
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


@pytest.fixture(scope="module")
def figures(comparison):
    return build_figures(*comparison)


@pytest.fixture(scope="module")
def styles(comparison):
    return policy_styles(comparison.document)


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
            assert panel["layout"]["yaxis"]["title"]["text"]
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
    looks = [(style.color, style.dash) for style in policy_styles(large_comparison.document)]

    assert len(set(looks)) == len(looks) == 26
    assert {color for color, _ in looks} == {*COLORS, REFERENCE_COLOR}


def test_what_is_shown_at_first_differs_in_colour_alone(large_comparison):
    document = copy.deepcopy(large_comparison.document)
    document["answer"]["policy"] = "ljf"  # the last of the board

    colors = [style.color for style in policy_styles(document) if style.shown]

    assert len(set(colors)) == len(colors) == 7


def test_the_reference_lies_below_the_others(figures):
    for panel in (panel for figure in figures[:3] for panel in figure.panels):
        policies = [trace.get("meta", {}).get("policy", "fcfs") for trace in panel["data"]]
        assert "fcfs" not in policies[policies.index("lcfs") :]


def test_few_policies_are_drawn_at_first_and_the_answer_is_one(large_comparison):
    shown = [style.policy for style in policy_styles(large_comparison.document) if style.shown]

    assert {"fcfs", "srpt_oracle", large_comparison.document["answer"]["policy"]} <= set(shown)
    assert len(shown) <= 7


def test_changes_are_drawn_as_ratios_with_their_intervals(comparison, styles):
    figure = change_by_load(comparison.document, styles)
    rows = [row for row in comparison.document["loads"] if row["policy"] == "spjf"]
    for panel, metric in enumerate(("mean_change", "p99_change")):
        trace = one(figure, panel, policy="spjf")
        for row, middle, up, down in zip(
            rows, trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"], strict=True
        ):
            assert middle == pytest.approx(1 + row[metric], rel=1e-3)
            assert middle + up == pytest.approx(1 + row[f"{metric}_high"], rel=2e-3)
            assert middle - down == pytest.approx(1 + row[f"{metric}_low"], rel=2e-3)


def test_an_undefined_change_leaves_a_gap(comparison):
    document = copy.deepcopy(comparison.document)
    for row in document["loads"]:
        if row["policy"] == "spjf" and row["load"] == "busy":
            row["mean_change"] = None

    figure = change_by_load(document, policy_styles(document))

    assert [value is None for value in one(figure, 0, policy="spjf")["y"]] == [False, True, False]


def test_the_distribution_reaches_the_median_and_the_largest(comparison, styles):
    figure = ttft_distribution(comparison.document, styles, comparison.samples)
    ttft = comparison.samples["spjf", "busy"].ttft

    body = one(figure, 0, policy="spjf", load="busy")
    tail = one(figure, 1, policy="spjf", load="busy")

    assert np.interp(0.5, body["y"], body["x"]) == pytest.approx(np.median(ttft), rel=0.03)
    assert tail["y"][-1] == pytest.approx(1 / len(ttft))
    assert ttft.max() * 0.5 < tail["x"][-1] <= ttft.max()
    assert len(body["x"]) <= 200
    assert np.all(np.diff(body["y"]) > 0)
    assert np.all(np.diff(body["x"]) >= 0)


def test_unfinished_requests_keep_the_distribution_below_one(comparison, styles):
    sample = comparison.samples["spjf", "busy"]
    lost = np.where(np.arange(len(sample.ttft)) % 4 == 0, np.nan, sample.ttft)
    samples = {**comparison.samples, ("spjf", "busy"): SimpleNamespace(ttft=lost)}

    trace = one(
        ttft_distribution(comparison.document, styles, samples), 0, policy="spjf", load="busy"
    )

    reached = [y for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None]
    assert max(reached) == pytest.approx(0.75, abs=0.02)


def test_who_pays_compares_the_means_of_the_same_requests(comparison, styles):
    figure = who_pays(comparison.document, styles, comparison.samples)
    sample, base = (comparison.samples[name, "overload"] for name in ("spjf", "fcfs"))
    longest = sample.prompt_len > np.quantile(sample.prompt_len, 0.9, method="inverted_cdf")

    ratio = one(figure, 0, policy="spjf", load="overload")["y"]

    assert len(ratio) == 10
    assert ratio[-1] == pytest.approx(
        sample.ttft[longest].mean() / base.ttft[longest].mean(), rel=1e-3
    )
    assert ratio[0] < 0.3 < 1 < ratio[-1]  # under SPJF the long prompts pay for the short
    assert not traces(figure, 0, policy="fcfs")
    assert one(figure, 1, policy="fcfs", load="overload")["y"][0] > 1


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
    figure = request_by_request(comparison.document, styles, comparison.samples)
    trace = one(figure, 0, policy="lcfs", load="busy")
    policy, base = (comparison.samples[name, "busy"] for name in ("lcfs", "fcfs"))
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
    styles = policy_styles(large_comparison.document)
    figures = [
        request_by_request(large_comparison.document, styles, large_comparison.samples)
        for _ in range(2)
    ]

    num_points = len(one(figures[0], 0, policy="lcfs", load="busy")["y"])
    assert 500 < num_points <= MAX_POINTS
    assert f"{num_points:,} of 4,000, drawn at random with seed 0" in figures[0].caption
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


def test_labels_are_text_to_plotly(comparison):
    document = copy.deepcopy(comparison.document)
    document["leaderboard"][0] |= {"policy": "<b>a & b</b>", "kind": "policy"}

    style = policy_styles(document)
    figure = change_by_load(document, style)

    assert one(figure, 0, policy="<b>a & b</b>")["name"] == "&lt;b&gt;a &amp; b&lt;/b&gt;"

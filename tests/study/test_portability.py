"""The analysis as a whole, and rank agreement, against truths written down and published tables."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from published_values import published_anwg
from small_runs import MAIN, make_runs, steady
from synthetic import FLAT, H100, synthetic_study

from queuesmith.errors import ConfigError
from queuesmith.stats.draws import block_weights, intervals, mean_draws
from queuesmith.study.agreement import same_metrics
from queuesmith.study.grid import make_grid
from queuesmith.study.portability import LSSP, Options, analyze, published_keys
from queuesmith.study.published import SOURCES, published

QUICK = Options(draws=400, subset_draws=100)


def rows_of(table, **wanted):
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


def only(table, **wanted):
    (row,) = rows_of(table, **wanted)
    return row


@pytest.fixture(scope="module")
def study():
    return synthetic_study()


@pytest.fixture(scope="module")
def analysis(study):
    return analyze(study.runs, study.windows, QUICK)


# Against what LSSP published


@pytest.fixture(scope="module")
def published_runs():
    """The ANWG of every window in the two regions for which LSSP published it."""
    rows = [
        {
            "engine": "lssp_slots",
            "source": source,
            "window": window,
            "kind": "real",
            "position": float("nan"),
            "load": region,
            "rho": float("nan"),
            "multiplier": multiplier,
            "prediction": MAIN,
            "policy": policy,
            "anwg": value,
        }
        for source in SOURCES
        for region, multiplier in (("KNEE", 1.0), ("HIGH_PRESSURE", 1.5))
        for window in range(40)
        for policy, value in published_anwg(f"{source}_w{window:02d}", region).items()
    ]
    return pa.Table.from_pylist(rows)


def test_lssps_tables_follow_from_its_windows(published_runs):
    """Its tau-b, top sets and every class of reversal, from the values of its 120 windows."""
    ours = published_keys(analyze(published_runs, None, replace(LSSP, metrics=("anwg",))))

    compared = {
        key: ours[key]
        for key in published()
        if key[0] in ("tau_b", "top_1", "top_3", "reversals", "reversals_stable")
        or key[0] == "reversals_microscopic"
        if key[1] in ("KNEE", "HIGH_PRESSURE")
    }
    assert len(compared) == 2 * 3 * 3 + 2 * 3
    for key, value in compared.items():
        assert value == pytest.approx(published()[key], abs=1e-9), key


def test_lssps_intervals_follow_from_its_windows(published_runs):
    """Its draws are not ours, so the bounds may be a step of tau-b apart."""
    ours = published_keys(analyze(published_runs, None, replace(LSSP, metrics=("anwg",))))

    for key, value in published().items():
        if key[0] in ("tau_b_low", "tau_b_high") and key[1] in ("KNEE", "HIGH_PRESSURE"):
            assert ours[key] == pytest.approx(value, abs=0.03), key


def test_lssps_sources_need_as_many_windows_for_the_winner_as_it_says(published_runs):
    ours = published_keys(analyze(published_runs, None, replace(LSSP, metrics=("anwg",))))

    for source, number in (("azure", 5), ("bailian", 5), ("burstgpt", 40)):
        assert ours["first_n_top_1", source] == number


# Rank agreement


def test_sources_that_are_alike_agree_and_others_do_not(analysis):
    where = {"axis": "source", "engine": H100, "load": "heavy", "metric": "ttft_mean"}
    alike = only(analysis["agreement"], a="chat", b="chat_too", **where)
    other = only(analysis["agreement"], a="chat", b="code", **where)

    assert alike["tau_b"] == 1.0
    assert alike["top_1"] == 1.0
    assert alike["low"] > 0.9
    assert other["tau_b"] == pytest.approx(0.8)  # one pair of ten is swapped
    assert other["top_1"] == 0.0
    assert alike["num_policies"] == 5
    assert not alike["hint"]


def test_tau_b_without_ties_is_scipys(study):
    exact = analyze(study.runs, study.windows, replace(QUICK, tie=0.0))
    means = {}
    for row in study.runs.to_pylist():
        key = row["source"], row["policy"]
        if (row["engine"], row["load"], row["prediction"]) == (H100, "knee", MAIN):
            means.setdefault(key, []).append(row["e2el_mean"])
    order = exact["policies"]
    x, y = ([np.mean(means[source, policy]) for policy in order] for source in ("chat", "batch"))
    where = {"axis": "source", "a": "chat", "b": "batch", "load": "knee", "engine": H100}
    found = only(exact["agreement"], metric="e2el_mean", **where)

    assert found["tau_b"] == pytest.approx(scipy.stats.kendalltau(x, y).statistic)


def test_physics_shows_in_pairs_of_engines(analysis):
    row = only(
        analysis["agreement"],
        axis="engine",
        a=H100,
        b=FLAT,
        load="heavy",
        source="chat",
        metric="ttft_mean",
    )

    assert row["engine"] is None
    assert row["tau_b"] == pytest.approx(0.8)
    assert row["reversals"]["supported"] == 1
    summary = only(analysis["agreement_summary"], axis="engine", a=H100, b=FLAT)
    mine = rows_of(analysis["agreement"], axis="engine")
    assert summary["num_comparisons"] == len(mine)
    known = [row["tau_b"] for row in mine if row["tau_b"] is not None]
    assert summary["mean_tau_b"] == pytest.approx(np.mean(known))
    assert summary["winner_lost"] == pytest.approx(np.mean([row["top_1"] == 0 for row in mine]))


def test_loads_are_compared_from_light_to_heavy(analysis):
    pairs = {(row["a"], row["b"]) for row in rows_of(analysis["agreement"], axis="load")}

    assert pairs == {("light", "knee"), ("light", "heavy"), ("knee", "heavy")}


def test_metrics_are_compared_within_a_condition(analysis):
    row = only(
        analysis["metric_agreement"],
        a="ttft_mean",
        b="ttft_p99",
        engine=H100,
        load="heavy",
        source="chat",
    )

    # spjf goes from second to fourth: past fcfs and lcfs.
    assert row["tau_b"] == pytest.approx(0.6)
    assert row["top_1"] == 1.0


def test_what_ties_everywhere_has_no_tau_b(analysis):
    rows = rows_of(analysis["agreement"], metric="tpot_mean", axis="source", load="heavy")

    assert {row["tau_b"] for row in rows} == {None}
    assert {row["low"] for row in rows} == {None}
    assert {row["top_1"] for row in rows} == {1.0}


def test_undefined_policies_are_left_out_and_counted():
    values = {("e", "knee", source): steady(1, 2, 3, 4) for source in ("one", "two")}
    values["e", "knee", "two"][2, 5] = np.nan  # one window is enough
    row = only(analyze(make_runs(values), None, QUICK)["agreement"], axis="source")

    assert row["num_policies"] == 3
    assert row["undefined_pairs"] == 3
    assert row["tau_b"] == 1.0


def test_a_best_policy_that_is_undefined_elsewhere_is_no_lost_winner():
    values = {("e", "knee", source): steady(1, 2, 3, 4) for source in ("one", "two")}
    values["e", "knee", "two"][0] = np.nan
    row = only(
        analyze(make_runs(values), None, replace(QUICK, reference="p1"))["agreement"], axis="source"
    )

    assert row["top_1"] == 1.0


def test_few_windows_are_called_a_hint():
    values = {("e", "knee", source): steady(1, 2, 3, num_windows=7) for source in ("one", "two")}
    found = analyze(make_runs(values), None, QUICK)

    for table in ("agreement", "who_wins", "sample_complexity", "leave_one_source_out"):
        assert all(row["hint"] for row in found[table]), table
    assert any("a hint" in note for note in found["notes"])


def test_an_interval_covers_the_true_order_about_as_often_as_it_says():
    """Two policies 0.1 apart, noise of 0.25: the sign of the pair, hence tau-b, is uncertain."""
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = {
            ("e", "knee", source): np.exp(
                np.array([[0.0], [0.1]]) + 0.25 * rng.normal(size=(2, 12))
            )
            for source in ("one", "two")
        }
        found = analyze(make_runs(values), None, Options(draws=300, subset_draws=5, seed=seed))
        row = only(found["agreement"], axis="source")
        covered += row["low"] is None or row["low"] <= 1.0 <= row["high"]

    assert covered / 60 > 0.9


def test_kendalls_w_is_1_where_all_sources_agree(analysis):
    values = {("e", "knee", source): steady(1, 2, 3) for source in ("one", "two", "three")}
    agreed = only(analyze(make_runs(values), None, QUICK)["concordance"])
    mixed = only(analysis["concordance"], engine=H100, load="heavy", metric="ttft_mean")

    assert (agreed["w"], agreed["num_sources"], agreed["num_policies"]) == (1.0, 3, 3)
    assert 0.3 < mixed["w"] < 0.95


# The same by construction


def test_metrics_that_are_one_are_counted_once():
    rng = np.random.default_rng(0)
    met = {("e", "knee", "one"): rng.random((4, 9))}
    late = {key: 1 - values for key, values in met.items()}
    per_window = {key: values * rng.random(9) for key, values in met.items()}
    other = {key: rng.random((4, 9)) for key in met}
    runs = make_runs(
        {
            "weighted_goodput": met,
            "slo_violation_rate": late,
            "request_throughput": per_window,
            "ttft_mean": other,
        }
    )
    metrics = ("weighted_goodput", "slo_violation_rate", "request_throughput", "ttft_mean")
    grid = make_grid(runs, None, metrics=metrics, prediction=MAIN)

    assert same_metrics(grid) == {
        "slo_violation_rate": "weighted_goodput",
        "request_throughput": "weighted_goodput",
    }
    found = analyze(runs, None, replace(QUICK, metrics=metrics))
    assert found["disagreement"][0]["metrics"] == ["weighted_goodput", "ttft_mean"]
    assert {(row["a"], row["b"]) for row in found["metric_agreement"]} == {
        ("weighted_goodput", "ttft_mean")
    }


def test_two_policies_make_no_two_metrics_one():
    """Any two numbers are a straight line of any other two."""
    rng = np.random.default_rng(1)
    runs = make_runs(
        {name: {("e", "knee", "one"): rng.random((2, 9))} for name in ("ttft_mean", "e2el_mean")}
    )
    grid = make_grid(runs, None, metrics=("ttft_mean", "e2el_mean"), prediction=MAIN)

    assert same_metrics(grid) == {}


# The document


def test_an_analysis_is_plain_json_and_the_same_each_time(study, analysis):
    text = json.dumps(analysis, allow_nan=False, sort_keys=True)
    shuffled = study.runs.take(np.random.default_rng(0).permutation(len(study.runs)))
    again = analyze(study.runs, study.windows, QUICK)

    assert json.dumps(again, allow_nan=False, sort_keys=True) == text
    other = analyze(shuffled, study.windows, QUICK)
    mine = only(other["who_wins"], engine=H100, load="knee", source="code", metric="ttft_mean")
    assert mine == only(
        analysis["who_wins"], engine=H100, load="knee", source="code", metric="ttft_mean"
    )


def test_sources_say_what_was_modelled(analysis):
    batch = only(analysis["sources"], source="batch")

    assert (batch["real"], batch["modelled"]) == (0, 10)
    assert any("modelled traffic" in note for note in analysis["notes"])


def test_windows_that_adjoin_are_drawn_in_blocks(study, analysis):
    start = [row["start_row"] + 5000 * row["window"] for row in study.windows.to_pylist()]
    place = study.windows.column_names.index("start_row")
    apart = study.windows.set_column(place, "start_row", pa.array(start))

    assert only(analysis["sources"], source="chat")["block_len"] == 2  # 10 ** (1/3)
    assert only(analysis["sources"], source="batch")["block_len"] == 1  # modelled
    other = analyze(study.runs, apart, QUICK)
    assert {one["block_len"] for one in other["sources"]} == {1}


def test_windows_a_few_requests_apart_adjoin_and_others_do_not():
    """As the 19 windows of Azure's chat hour do, which nearly fill it."""
    runs = make_runs({("e", "knee", "one"): steady(1, 2, num_windows=20)})

    def adjoins(gap):
        windows = [
            {"source": "one", "window": w, "kind": "real", "start_row": w * (1000 + gap)}
            | {"num_requests": 1000}
            for w in range(20)
        ]
        table = pa.Table.from_pylist(windows)
        grid = make_grid(runs, table, metrics=("ttft_mean",), prediction=MAIN)
        return bool(grid.adjoins[0])

    assert [adjoins(gap) for gap in (0, 20, 250, 251, -1)] == [True, True, True, False, False]


def test_blocks_widen_intervals_of_windows_that_are_like_their_neighbours():
    """Lag-1 autocorrelation 0.5, as measured of Azure's chat; without any the width stays."""
    rng = np.random.default_rng(1)

    def width(correlation, block):
        widths = []
        for _ in range(40):
            noise = rng.normal(size=27)
            for window in range(1, 27):
                noise[window] += correlation * noise[window - 1]
            weights = block_weights(27, block, 1000, rng)
            low, high = intervals(mean_draws(noise[None], weights))
            widths.append(float(high[0] - low[0]))
        return np.mean(widths)

    assert width(0.5, 3) > 1.1 * width(0.5, 1)
    assert width(0.0, 3) < 1.05 * width(0.0, 1)


def test_engines_with_a_gpu_are_summed_alone_and_apart():
    """The order is reversed on the toy engine: nothing of that is in the sums of GPUs."""
    l40s = "llama-3.1-8b/l40s"
    cells = {
        (engine, "knee", source): steady(*order)
        for engine, order in ((H100, (1, 2, 3)), (l40s, (1, 2, 3)), (FLAT, (3, 2, 1)))
        for source in ("one", "two")
    }
    found = analyze(make_runs(cells), None, QUICK)

    sums = {row["scope"]: row for row in found["agreement_by_metric"] if row["axis"] == "engine"}
    assert sums["GPUs"]["mean_tau_b"] == 1.0
    assert sums["with toys"]["mean_tau_b"] == pytest.approx(-1 / 3)
    counts = {row["scope"]: row for row in found["reversal_counts"] if row["axis"] == "engine"}
    assert (counts["GPUs"]["sure"], counts["with toys"]["sure"]) == (0, 12)
    shares = {row["scope"]: row["portable"] for row in found["variance"]}
    assert shares["GPUs"] == pytest.approx(1.0)
    assert shares["with toys"] < 0.9
    assert [row["scope"] for row in found["disagreement"]] == ["GPUs", "with toys"]


def test_unfinished_windows_are_left_out_and_told():
    values = {("e", "knee", source): steady(1, 2, 3) for source in ("one", "two")}
    runs = make_runs(values)
    gone = [
        row["source"] == "two" and row["window"] == 4 and row["policy"] == "p1"
        for row in runs.to_pylist()
    ]
    found = analyze(runs.filter(pa.array(np.logical_not(gone))), None, QUICK)

    assert only(found["sources"], source="two")["num_windows"] == 9
    assert found["notes"][0] == "1 windows of two lack runs and are left out."


def test_a_study_of_one_source_and_one_engine_still_says_who_wins():
    found = analyze(make_runs({("e", "knee", "one"): steady(3, 2, 1)}), None, QUICK)

    assert only(found["who_wins"])["best"] == ["p2"]
    assert found["agreement"] == []
    assert found["leave_one_source_out"] == []
    assert found["spread"] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda runs: runs.drop_columns("rho"), "no column 'rho'"),
        (lambda runs: runs.drop_columns("policy"), "no column 'policy'"),
        (lambda runs: pa.concat_tables([runs, runs.slice(0, 1)]), "twice on window 0 of 'one'"),
        (lambda runs: runs.slice(0, 0), "no runs"),
        (lambda runs: runs.drop_columns("ttft_mean"), "no metric to analyse"),
    ],
)
def test_a_table_that_is_no_studys_is_refused(change, message):
    runs = make_runs({("e", "knee", "one"): steady(3, 2, 1)})

    with pytest.raises(ConfigError, match=message) as refused:
        analyze(change(runs), None, QUICK)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(reference="fifo"), "'fifo' is not among the policies"),
        (Options(prediction="exact"), "no runs with prediction 'exact'"),
        (Options(metrics=("ttft_men",)), "Did you mean 'ttft_mean'"),
        (Options(metrics=("ttft_mean", "ttft_mean")), "given twice"),
        (Options(metrics=("rho",)), "nothing can be ranked by 'rho'"),
        (Options(leave_out=("fcfs",)), "'fcfs' is not among"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    runs = make_runs({("e", "knee", "one"): steady(3, 2, 1)})

    with pytest.raises(ConfigError, match=message):
        analyze(runs, None, options)

"""Advice on traffic whose truth is known: the synthetic study's sources, and what lies between."""

import json
from copy import deepcopy

import numpy as np
import pytest
from synthetic import (
    FLAT,
    H100,
    MAIN,
    POLICIES,
    TRAFFIC,
    Truth,
    synthetic_study,
    windows_like,
)

from queuesmith.errors import ConfigError
from queuesmith.study.advise import (
    UNSEEN_OF,
    advise,
    costs,
    expected,
    nearest_load,
    to_try,
)
from queuesmith.study.summary import (
    SCHEMA,
    best_set,
    load_summary,
    policy_kind,
    relative_change,
    save_summary,
    summarize_study,
    surely_better,
    surely_worse,
)

DRAWS = 500
#: A fifth of the way from chat to code.
BETWEEN = np.array(TRAFFIC["chat"]) ** 0.8 * np.array(TRAFFIC["code"]) ** 0.2


@pytest.fixture(scope="module")
def study():
    return synthetic_study()


@pytest.fixture(scope="module")
def summary(study):
    return summarize_study(study, draws=DRAWS)


def cell_of(summary, source, load="knee", engine=H100):
    return next(
        cell
        for cell in summary["cells"]
        if (cell["engine"], cell["load"], cell["source"]) == (engine, load, source)
    )


# What is summed up.


def test_a_summary_says_what_the_runs_say(study, summary):
    """Means, changes and counts of one cell, recomputed row by row."""
    rows = [
        row
        for row in study.runs.to_pylist()
        if (row["engine"], row["load"], row["source"], row["prediction"])
        == (H100, "knee", "code", MAIN)
    ]
    values = {
        name: [row["ttft_mean"] for row in rows if row["policy"] == name] for name in POLICIES
    }

    found = cell_of(summary, "code")["metrics"]["ttft_mean"]

    for row, name in enumerate(POLICIES):
        assert found["mean"][row] == pytest.approx(np.mean(values[name]), rel=1e-4)
        pairs = list(zip(values[name], values["fcfs"], strict=True))
        assert found["better"][row] == sum(a < 0.99 * b for a, b in pairs)
        assert found["worse"][row] == sum(b < 0.99 * a for a, b in pairs)
        best = [min(each) for each in zip(*values.values(), strict=True)]
        assert found["best"][row] == sum(
            value <= top / 0.99 for value, top in zip(values[name], best, strict=True)
        )


def test_intervals_cover_the_truth_and_are_paired(summary):
    """The windows' luck, 30 %, is common to all policies and does not widen the interval."""
    found = cell_of(summary, "chat")["metrics"]["ttft_mean"]
    row = POLICIES.index("hrrn")

    assert found["low"][row] < np.exp(-0.7) - 1 < found["high"][row]
    assert found["high"][row] - found["low"][row] < 0.05


def test_only_the_designs_own_prediction_is_summed_up(study, summary):
    without = study.runs.filter(
        np.array([one == MAIN for one in study.runs["prediction"].to_pylist()])
    )
    alone = deepcopy(study)
    alone.runs = without

    assert summary["prediction"] == MAIN
    assert summarize_study(alone, draws=DRAWS) == summary


def test_loads_are_in_order_and_idle_ones_are_known(summary):
    assert [load["name"] for load in summary["loads"]] == ["light", "knee", "heavy"]
    assert {cell["load"] for cell in summary["cells"] if cell["idle"]} == {"light"}


def test_every_cell_says_how_many_windows_were_real(summary):
    assert len(summary["cells"]) == 2 * 3 * 4
    for cell in summary["cells"]:
        modelled = cell["source"] == "batch"
        assert (cell["num_real"], cell["num_modelled"]) == ((0, 10) if modelled else (10, 0))


def test_an_undefined_value_takes_its_policy_out_of_that_metric_alone(study):
    table = study.runs.to_pydict()
    lost = next(
        row
        for row, key in enumerate(
            zip(table["engine"], table["load"], table["source"], table["policy"], strict=True)
        )
        if key == (H100, "knee", "chat", "hrrn") and table["prediction"][row] == MAIN
    )
    table["ttft_mean"][lost] = float("nan")
    damaged = deepcopy(study)
    damaged.runs = type(study.runs).from_pydict(table, schema=study.runs.schema)

    summary = summarize_study(damaged, draws=DRAWS)

    values = cell_of(summary, "chat")["metrics"]
    row = POLICIES.index("hrrn")
    assert values["ttft_mean"]["mean"][row] is None
    assert not surely_better(values["ttft_mean"], row, "ttft_mean")
    assert values["ttft_p99"]["mean"][row] is not None
    # spjf is next, and its tail breaks a guard.
    assert to_try(summary, cell_of(summary, "chat"), "ttft_mean")[0] == "fcfs"


def test_one_window_has_no_interval(study):
    summary = summarize_study(synthetic_study(Truth(num_windows=1)), draws=DRAWS)

    assert cell_of(summary, "chat")["metrics"]["ttft_mean"]["low"] == [None] * len(POLICIES)
    policy, alike, reason = to_try(summary, cell_of(summary, "chat"), "ttft_mean")
    assert (policy, alike, reason) == (
        "fcfs",
        [],
        "no policy is surely better than fcfs there without breaking a guard",
    )


def test_a_study_without_its_reference_is_refused(study):
    lone = deepcopy(study)
    lone.runs = study.runs.filter(
        np.array([name != "fcfs" for name in study.runs["policy"].to_pylist()])
    )

    with pytest.raises(ConfigError, match="no runs of its reference 'fcfs'"):
        summarize_study(lone, draws=DRAWS)


def test_a_study_without_runs_is_refused(study):
    empty = deepcopy(study)
    empty.runs = study.runs.slice(0, 0)

    with pytest.raises(ConfigError, match="holds no runs yet"):
        summarize_study(empty, draws=DRAWS)


def test_a_summary_comes_back_from_its_file(summary, tmp_path):
    save_summary(summary, tmp_path / "summary.json")

    assert load_summary(tmp_path / "summary.json") == summary
    lines = (tmp_path / "summary.json").read_text().splitlines()
    assert sum('"metrics":{' in line for line in lines) == len(summary["cells"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "there is no summary"),
        ("{", "cannot be read as a summary"),
        ("[]", "got 'list'"),
        ('{"schema": "queuesmith.compare/1"}', "got 'queuesmith.compare/1'"),
    ],
)
def test_what_is_no_summary_is_refused(text, complaint, tmp_path):
    path = tmp_path / "summary.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError, match=complaint):
        load_summary(path)


def test_kinds_of_policies_are_known():
    assert policy_kind("hrrn") == "policy"
    assert policy_kind("srpt_oracle") == "oracle"
    assert policy_kind("vllm_unchunked") == "bundle"
    assert policy_kind("of_somebody_else") == "unknown"


def test_higher_is_better_where_the_metric_says_so():
    cell = {"mean": [0.5, 0.8, 0.2], "low": [0.0, 0.5, -0.7], "high": [0.0, 0.7, -0.5]}

    assert best_set(cell["mean"], "slo_attainment") == [1]
    assert best_set(cell["mean"], "ttft_mean") == [2]
    assert surely_better(cell, 1, "slo_attainment")
    assert surely_worse(cell, 1, "ttft_mean")
    assert relative_change(cell, 1, 0) == pytest.approx(0.6)
    assert relative_change({"mean": [0.0, 0.8]}, 1, 0) is None


# What is advised.


def test_traffic_like_a_source_gets_what_is_best_there_without_breaking_a_guard(summary):
    """On code-like traffic spjf is best on the mean, but loses the tail."""
    chat = advise(summary, windows_like(*TRAFFIC["chat"]), metric="ttft_mean")
    code = advise(summary, windows_like(*TRAFFIC["code"]), metric="ttft_mean")

    assert (chat["nearest"], chat["place"], chat["policy"]) == ("chat", "near", "hrrn")
    assert (code["nearest"], code["place"], code["best_there"]) == ("code", "near", "hrrn")
    spjf = expected(summary, cell_of(summary, "code"), "spjf", "ttft_mean")
    assert spjf["broken"] == ["ttft_p99"]
    assert spjf["regret"] < 0  # it beats what may be recommended
    assert chat["expected"][0]["change"] == pytest.approx(np.exp(-0.7) - 1, abs=0.02)
    assert chat["expected"][0]["regret"] == 0


def test_what_a_policy_makes_surely_worse_is_told(summary):
    found = costs(summary, cell_of(summary, "code"), "spjf", "ttft_mean")

    assert [one["metric"] for one in found] == ["ttft_p99"]
    assert found[0]["change"] == pytest.approx(np.exp(0.5) - 1, abs=0.03)


def test_where_such_advice_was_wrong_more_often_than_right_there_is_none(summary):
    """Three of four sources advise each other wrongly once hrrn breaks a guard on the others."""
    bad = deepcopy(summary)
    row = POLICIES.index("hrrn")
    for source in ("chat_too", "code", "batch"):
        values = cell_of(bad, source)["metrics"]["e2el_mean"]
        values["mean"][row], values["low"][row], values["high"][row] = (
            1.5 * values["mean"][0],
            0.4,
            0.6,
        )
    between = windows_like(*BETWEEN)
    advice = advise(bad, between, metric="ttft_mean", load="knee", trace="my log.csv")

    assert advice["surely"] == "no"
    assert advice["policy"] is None
    assert advice["no_advice"].startswith("in this study such advice was right in ")
    assert advice["command"] == (
        f"queuesmith compare 'my log.csv' --engine {H100} --loads own,knee --goal ttft"
    )
    assert advice["sentences"][0].startswith("No advice on mean TTFT near the knee")
    assert advice["sentences"][-1] == f"Measure it: {advice['command']}"


@pytest.mark.parametrize(("metric", "given"), [("ttft_mean", False), ("e2el_mean", True)])
def test_the_packaged_study_gives_no_advice_where_it_was_wrong_on_traffic_it_had_not_seen(
    metric, given
):
    known = load_summary()
    middle = {
        name: np.median([one["features"][name]["middle"] for one in known["sources"].values()])
        for name in known["sources"]["burstgpt"]["features"]
    }
    windows = {
        name: [value if name == "rank_corr" else np.exp(value)] for name, value in middle.items()
    }
    advice = advise(known, windows, metric=metric)

    assert advice["place"] == "between"
    assert known["sha256"] == UNSEEN_OF
    assert (advice["policy"] is not None) == given
    if not given:
        assert "that the study has not seen such advice was right in" in advice["no_advice"]


def test_the_engine_decides(summary):
    traffic = windows_like(*TRAFFIC["chat"])

    assert advise(summary, traffic, metric="ttft_mean", engine="h100_sxm")["policy"] == "hrrn"
    # Where hrrn and spjf are swapped, spjf is best, and its tail breaks a guard.
    assert advise(summary, traffic, metric="ttft_mean", engine=FLAT)["best_there"] == "hrrn"


def test_where_nothing_queues_or_nothing_differs_one_stays_with_fcfs(summary):
    chat, batch = windows_like(*TRAFFIC["chat"]), windows_like(*TRAFFIC["batch"])

    light = advise(summary, chat, metric="ttft_mean", load="light")
    flat = advise(summary, chat, metric="tpot_mean")
    even = advise(summary, batch, metric="ttft_mean")

    assert (light["policy"], light["evidence"]) == ("fcfs", [])
    assert "no order can matter" in light["reason"]
    assert (flat["policy"], even["policy"]) == ("fcfs", "fcfs")
    assert "surely better" in even["reason"]


def test_far_from_all_sources_nothing_is_sure(summary):
    """A hundred times longer in everything: the nearest source is named, and not believed."""
    far = advise(summary, windows_like(*(100 * np.array(TRAFFIC["chat"]))), metric="ttft_mean")

    assert (far["place"], far["policy"]) == ("outside", None)
    assert max(map(abs, far["distances"][0]["by_feature"].values())) > far["farthest"]
    assert far["surely"] == "unknown"


@pytest.mark.parametrize(("factor", "place"), [(1, "near"), (4, "outside"), (12, "outside")])
def test_traffic_whose_lengths_were_changed_is_not_between(factor, place):
    """The packaged study, and its own chat with longer prompts and answers."""
    known = load_summary()
    longer = {
        name: one["middle"] + np.log(factor) * ("_p" in name)
        for name, one in known["sources"]["azure_2024_conv"]["features"].items()
    }
    windows = {
        name: [value if name == "rank_corr" else np.exp(value)] for name, value in longer.items()
    }

    assert advise(known, windows, metric="e2el_mean")["place"] == place


def test_between_sources_it_is_the_studys_own_record_that_counts(summary):
    """chat and chat_too advise each other well, batch is all alike."""
    between = advise(
        summary,
        windows_like(*BETWEEN),
        metric="ttft_mean",
    )

    assert between["place"] == "between"
    right = {one["source"]: one["right"] for one in between["evidence"]}
    assert right == {"chat": True, "chat_too": True, "code": True, "batch": True}
    assert {one["source"]: one["advised_from"] for one in between["evidence"]}["chat"] == "chat_too"
    # On code, hrrn is best of those that break no guard.
    assert between["surely"] == "likely"


def test_oracles_and_bundles_are_never_the_policy_to_try(summary):
    dressed = deepcopy(summary)
    dressed["policies"] |= {"hrrn": "oracle", "spjf": "bundle"}

    advice = advise(dressed, windows_like(*TRAFFIC["chat"]), metric="ttft_mean")

    assert advice["policy"] == "fcfs"
    assert advice["expected"][0]["regret"] == 0  # of what can be deployed, nothing is better


def test_ties_are_named(study):
    twin = synthetic_study(Truth(noise=0.0))
    table = twin.runs.to_pydict()
    # lcfs does exactly as hrrn does, and as fcfs in all else.
    fcfs = {
        key: {name: table[name][row] for name in table}
        for row, key in enumerate(_keys(table))
        if table["policy"][row] == "fcfs"
    }
    hrrn = {
        key: table["ttft_mean"][row]
        for row, key in enumerate(_keys(table))
        if table["policy"][row] == "hrrn"
    }
    for row, key in enumerate(_keys(table)):
        if table["policy"][row] == "lcfs":
            table["ttft_mean"][row] = hrrn[key]
            for metric in ("ttft_p99", "e2el_mean", "slo_attainment"):
                table[metric][row] = fcfs[key][metric]
    twin.runs = type(twin.runs).from_pydict(table, schema=twin.runs.schema)

    advice = advise(
        summarize_study(twin, draws=DRAWS), windows_like(*TRAFFIC["chat"]), metric="ttft_mean"
    )

    assert (advice["policy"], advice["alike"]) == ("hrrn", ["lcfs"])


def _keys(table):
    names = ("engine", "load", "source", "window", "prediction")
    return zip(*(table[name] for name in names), strict=True)


def test_of_policies_that_tie_the_safest_elsewhere_is_tried_first(summary):
    """spjf as good as hrrn on chat: on code it wins and hrrn loses, so that it is the safer."""
    tied = deepcopy(summary)
    for cell in tied["cells"]:
        del cell["metrics"]["ttft_p99"]  # which would break a guard
    cell_of(tied, "chat")["metrics"]["ttft_mean"] = {
        name: [*values[:2], values[1], *values[3:]]
        for name, values in cell_of(tied, "chat")["metrics"]["ttft_mean"].items()
    }
    chat, code, twin = (cell_of(tied, source) for source in ("chat", "code", "chat_too"))

    assert to_try(tied, chat, "ttft_mean")[:2] == ("hrrn", ["spjf"])
    assert to_try(tied, chat, "ttft_mean", [code])[:2] == ("spjf", ["hrrn"])
    assert to_try(tied, chat, "ttft_mean", [twin])[:2] == ("hrrn", ["spjf"])


def test_a_load_is_a_name_or_the_nearest_rho(summary):
    assert nearest_load(summary["loads"], "heavy")["name"] == "heavy"
    assert nearest_load(summary["loads"], 0.9)["name"] == "knee"
    assert nearest_load(summary["loads"], "1.4")["name"] == "heavy"
    assert nearest_load(summary["loads"], 0.1)["name"] == "light"


@pytest.mark.parametrize("load", ["kneee", "nan", -1, 0, "inf"])
def test_what_is_no_load_is_refused(summary, load):
    with pytest.raises(ConfigError, match="load must be one of light, knee, heavy, or a positive"):
        nearest_load(summary["loads"], load)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"metric": "tftt_mean"}, "no metric 'tftt_mean'. Did you mean 'ttft_mean'"),
        ({"engine": "h200"}, "no engine 'h200'"),
        ({"windows": {"gap_cv": [None]}}, "no feature that the study's sources have"),
    ],
)
def test_questions_that_the_study_cannot_answer_are_refused(summary, changes, complaint):
    asked = {"windows": windows_like(*TRAFFIC["chat"]), "metric": "ttft_mean"} | changes

    with pytest.raises(ConfigError, match=complaint):
        advise(summary, asked.pop("windows"), **asked)


def test_a_study_of_one_source_is_never_sure_beyond_it(study):
    lone = summarize_study(synthetic_study(Truth(sources=("chat",))), draws=DRAWS)

    there = advise(lone, windows_like(*TRAFFIC["chat"]), metric="ttft_mean")
    elsewhere = advise(lone, windows_like(*TRAFFIC["code"]), metric="ttft_mean")

    assert (there["place"], elsewhere["place"]) == ("near", "outside")
    assert there["evidence"] == []
    assert elsewhere["surely"] == "unknown"


def test_advice_is_plain_json_and_always_the_same(summary):
    first, second = (
        json.dumps(
            advise(summary, windows_like(*TRAFFIC["code"]), metric="e2el_mean", load="heavy"),
            allow_nan=False,
        )
        for _ in range(2)
    )

    assert first == second
    assert json.loads(first)["schema"] == "queuesmith.advise/3"
    assert SCHEMA == "queuesmith.study.summary/1"

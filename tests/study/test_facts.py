"""What is said of studies whose truth is known."""

import re
from copy import deepcopy

import pytest
from synthetic import FLAT, H100, TRAFFIC, Truth, synthetic_study, windows_like

from queuesmith.study.advise import advise
from queuesmith.study.atlas import make_atlas
from queuesmith.study.facts import CARRY_HEADS, best_of, carry_lines, carry_over, facts
from queuesmith.study.summary import main_engine, main_load
from queuesmith.study.words import is_toy, load_words, metric_words

DRAWS = 500


@pytest.fixture(scope="module")
def atlas():
    return make_atlas(synthetic_study(), draws=DRAWS)


@pytest.fixture
def summary(atlas):
    return deepcopy(atlas["summary"])


def cell_of(summary, source, load="knee", engine=H100):
    return next(
        cell
        for cell in summary["cells"]
        if (cell["engine"], cell["load"], cell["source"]) == (engine, load, source)
    )


def headline(atlas, summary):
    return facts(summary, atlas["analysis"])[0]["text"]


def test_the_headline_names_the_best_that_breaks_no_guard(atlas, summary):
    """On code spjf has the best mean and breaks the guard of p99 TTFT."""
    assert headline(atlas, summary) == (
        "Best mean TTFT without a broken guard, near the knee (rho 0.95) on H100: hrrn on chat, "
        "chat_too and code; none surely better than fcfs on batch."
    )
    assert best_of(summary, cell_of(summary, "code"), "ttft_mean") == ["hrrn"]


def test_where_nobody_wins_the_headline_says_so(atlas, summary):
    for cell in summary["cells"]:
        cell["idle"] = True

    assert headline(atlas, summary).endswith(
        "none surely better than fcfs on chat, chat_too, code and batch."
    )


def test_ties_count_for_whoever_wins_on_most_sources(atlas, summary):
    mean = cell_of(summary, "chat")["metrics"]["ttft_mean"]["mean"]
    mean[3], mean[1] = mean[1], mean[1] * 1.005  # lcfs is best, hrrn within 1 %
    for name in ("low", "high"):
        values = cell_of(summary, "chat")["metrics"]["ttft_mean"][name]
        values[3] = values[1]
    found = best_of(summary, cell_of(summary, "chat"), "ttft_mean")

    if "lcfs" in found:
        assert found == ["lcfs", "hrrn"]
    assert "hrrn on chat, chat_too and code" in headline(atlas, summary)


def test_a_bundle_is_never_named_the_best(atlas, summary):
    summary["policies"]["hrrn"] = "bundle"

    assert "hrrn" not in headline(atlas, summary)


def test_what_carries_over_is_counted_by_hand(atlas, summary):
    """chat, chat_too: hrrn; code: spjf, without a broken guard hrrn; batch: all but ljf tie."""
    keep = {("knee", source) for source in ("chat", "chat_too", "code")}
    summary["cells"] = [
        cell
        for cell in summary["cells"]
        if (cell["load"], cell["source"]) in keep and cell["engine"] == H100
    ]
    row = next(
        row
        for row in carry_over(summary, atlas["analysis"])
        if (row["axis"], row["metric"], row["scope"]) == ("source", "ttft_mean", "GPUs")
    )

    assert (row["num_pairs"], row["sets_meet"], row["same_best"], row["same_safe"]) == (3, 1, 1, 3)


def test_toys_are_told_apart_everywhere():
    """hrrn and spjf are swapped on constant_1ms alone, which makes all differences of engines."""
    l40s = "llama-3.1-8b/l40s"
    atlas = make_atlas(synthetic_study(Truth(engines=(H100, l40s, FLAT))), draws=DRAWS)
    rows = {
        row["scope"]: row
        for row in atlas["carry_over"]
        if (row["axis"], row["metric"]) == ("engine", "ttft_mean")
    }
    gpus, every = rows["GPUs"], rows["with toys"]

    assert gpus["sets_meet"] == gpus["num_pairs"]
    assert every["sets_meet"] < every["num_pairs"]
    assert gpus["mean_tau_b"] > every["mean_tau_b"]
    assert gpus["sure"] + gpus["not_sure"] == 0 < every["sure"] + every["not_sure"]
    for topic in ("metrics", "variance", "left_out"):
        (text,) = [one["text"] for one in atlas["answers"] if one["topic"] == topic]
        assert "GPUs" in text
        assert "with toys" in text
    lines = carry_lines(atlas["carry_over"], "ttft_mean")
    assert [line[0].partition(" (")[0] for line in lines] == [
        f"{axis}, {scope}"
        for scope in ("GPUs", "with toys")
        for axis in ("sources", "loads", "engines")
    ]
    assert {len(line) for line in lines} == {len(CARRY_HEADS)}


def test_a_toy_is_what_takes_the_same_time_for_every_step():
    assert [is_toy(name) for name in (FLAT, "lssp_slots", H100, "of_somebody_else")] == [
        *(True, True, False, False)
    ]


def test_what_is_told_first_is_a_gpu_near_saturation(summary):
    summary["engines"] = [FLAT, H100]

    assert main_engine(summary) == H100
    assert main_load(summary)["name"] == "knee"
    assert main_engine({"engines": [FLAT]}) == FLAT
    multiples = [
        {"name": name, "rho": None, "multiplier": value}
        for name, value in (("LOW", 0.5), ("KNEE", 1.0), ("OVERLOAD", 1.2))
    ]
    assert main_load({"loads": multiples})["name"] == "KNEE"
    assert load_words(multiples[0]) == "at LOW load (0.5 x lambda_ref)"


def test_every_fact_is_one_line_that_ends(atlas):
    for one in atlas["answers"]:
        assert re.fullmatch(r"[^\n]+[.)]", one["text"]), one
        assert not {"None", "nan"} & set(one["text"].split()), one


# What advice says.


def test_advice_begins_with_what_to_do(summary):
    likely = advise(summary, windows_like(*TRAFFIC["chat"]), metric="ttft_mean")["sentences"]
    far = [100 * value for value in TRAFFIC["chat"]]
    unknown = advise(summary, windows_like(*far), metric="ttft_mean")["sentences"]
    stay = advise(summary, windows_like(*TRAFFIC["batch"]), metric="ttft_mean")["sentences"]

    assert likely[0].startswith("Try hrrn first near the knee (rho 0.95) on H100: on the nearest")
    assert likely[0].endswith("among the best in 10 of 10 windows.")
    assert unknown[0].startswith("No advice on mean TTFT near the knee")
    assert unknown[0].endswith("your traffic is unlike all sources of the study.")
    assert "outside (yours has" in unknown[1]
    assert stay[0].startswith("Stay with fcfs near the knee")
    for sentences in (likely, unknown, stay):
        assert sentences[-1].startswith("Measure it: queuesmith compare TRACE --engine")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("ttft_mean", "mean TTFT"),
        ("itl_p99", "p99 ITL"),
        ("queued_time_max", "max queued time"),
        ("output_throughput", "output throughput"),
        ("jain", "jain"),
    ],
)
def test_metrics_have_names_for_people(metric, words):
    assert metric_words(metric) == words

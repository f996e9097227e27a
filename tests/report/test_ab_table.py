"""What ``queuesmith ab`` prints, in a terminal of 80 columns, and its page."""

import io
import re

import pytest
from rich.console import Console

from queuesmith.deploy.measured import ArmRun, RunRow
from queuesmith.deploy.verdict import ArmState, LoadVerdict, Measurement, Outcome
from queuesmith.evaluation.goals import GUARDS, get_goal
from queuesmith.evaluation.judge import BrokenGuard, Change
from queuesmith.report.ab import print_ab, render_ab

NAN = float("nan")
TTFT = Change(6.0, 12.345, -0.51, -0.6, -0.4)
TPOT = Change(0.0432, 0.0321, 0.346, 0.3, 0.4)
SLO = Change(0.973, 0.984, -0.011, -0.012, -0.01)


def measurement(candidate="sjf", num_failed=0, num_windows=1, repeats=1, **changes):
    def arm(failed):
        times = (12.345, 123.4, 0.0321, 0.05, 20.5, 234.5, 3456.7, 98.76, NAN, 0.001, 0.002)
        return ArmRun(1000, failed, 5000, *times, ())

    runs = tuple(
        RunRow("overload", 3.2, window, repeat, {"stock": arm(0), candidate: arm(num_failed)})
        for window in range(num_windows)
        for repeat in range(repeats)
    )
    row = {
        "load": "overload",
        "rho": 1.1,
        "rate": 3.2,
        "verdict": "mixed",
        "reason": "",
        "changes": {"ttft_mean": TTFT, "tpot_mean": TPOT, "slo_attainment": SLO},
        "better": ("ttft_mean",),
        "worse": ("tpot_mean", "slo_attainment"),
        "broken": (BrokenGuard("tpot_mean", "mean TPOT", "overload", TPOT, 0.246, True),),
        "num_windows": num_windows,
        "num_paired": 1000,
        "num_failed": num_failed,
        "num_pairs": 1,
        "num_uneven": 0,
        "machine_ratio": 1.0,
        "machine_margin": 0.1,
        "adjusted_for_work": True,
        "wins": 1,
        "ties": 0,
        "losses": 0,
        "p_value": NAN,
        "arms": {name: ArmState(98.7, NAN, 0.001, 0.002, NAN) for name in ("stock", candidate)},
    }
    config = {
        "reference": "stock",
        "candidate": candidate,
        "where": "two servers",
        "provenance": None,
        "output_length": "known",
        "loads": [{"name": "overload", "rho": 1.1, "rate": None}],
        "num_windows": num_windows,
        "window_len": 1000,
        "repeats": repeats,
        "seed": 0,
    }
    return Measurement(
        outcome=Outcome(runs, (LoadVerdict(**{**row, **changes}),), (), {}),
        goal=get_goal("ttft", None),
        guards=GUARDS,
        config=config,
        origin={"kind": "real", "source": "log.csv", "reader": "table"},
        warnings=("many were left out",),
    )


def printed(*arguments, full=False, **keywords):
    console = Console(file=io.StringIO(), width=80, markup=False)
    print_ab(measurement(*arguments, **keywords), console, full=full)
    return console.file.getvalue()


def words(*arguments, **keywords):
    return " ".join(printed(*arguments, **keywords).split())


def test_a_mixed_verdict_names_what_is_better_and_what_is_worse():
    text = words()

    assert "overload (rho 1.10, 3.20/s): sjf is better in some numbers and worse in others" in text
    assert "better in mean TTFT -51 %; worse in mean TPOT 32.1 -> 43.2 ms at overload." in text
    assert "no more than is allowed: SLO attainment -1.1 points." in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": "better", "broken": ()}, "is better than stock vLLM: mean TTFT -51 % [-60 %"),
        (
            {"verdict": "worse", "worse": ("ttft_mean",), "broken": ()},
            "is worse than stock vLLM: m",
        ),
        ({"verdict": "withheld", "changes": {}, "reason": "2 requests failed"}, "be judged"),
        (
            {"verdict": "withheld", "changes": {}, "reason": "2 requests failed"},
            "2 requests failed.",
        ),
        ({"rho": NAN}, "overload (3.20/s)"),
    ],
)
def test_each_verdict_is_one_sentence(changes, said):
    if not changes.get("changes", True):
        changes = {**changes, "better": (), "worse": (), "broken": ()}
    assert said in words(**changes)


@pytest.mark.parametrize("candidate", ["sjf", "weight", "a_policy_with_a_name_beyond_any_column"])
def test_every_statistic_is_a_line_and_nothing_is_cut(candidate):
    text = printed(candidate)

    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split() for line in text.splitlines()]
    expected = "mean TTFT, s 12.3 6.00 -51 % -60 % to -40 % better"
    assert expected.split() in lines
    guarded = "mean TPOT, ms 32.1 43.2 +35 % +30 % to +40 % broken"
    assert guarded.split() in lines
    share = "SLO attainment 98.4 % 97.3 % -1.1 points -1.2 to -1.0 points worse"
    assert share.split() in lines


@pytest.mark.parametrize("candidate", ["sjf", "a_policy_with_a_name_beyond_any_column"])
def test_every_run_is_printed_on_demand(candidate):
    assert "Every run" not in printed(candidate)
    text = printed(candidate, num_failed=3, full=True)

    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if "0-0 " in line]
    numbers = ["12.3", "123", "32.1", "20.5", "3,457", "98.8"]
    name = candidate if len(candidate) <= 10 else "policy"
    assert rows == [["0-0", "stock", *numbers, "0"], ["0-0", name, *numbers, "3"]]


def test_one_is_not_said_as_many():
    assert "1 window of 1,000, 1 repeat; seed 0" in words()
    assert "2 windows of 1,000, 3 repeats; seed 0" in words(num_windows=2, repeats=3)


def test_the_page_marks_the_cell_of_the_guard_that_is_broken():
    page = render_ab(measurement(candidate="<b>x</b>"))

    rows = page.split("<tr")
    [row] = [part for part in rows if ">mean TPOT, ms<" in part and "broken" in part]
    assert "+10&nbsp;%" in row  # what is allowed
    assert re.search(r'class="[^"]*bad[^"]*"[^>]*>broken<', row)
    assert "<b>x</b>" not in page.split("<script", 1)[0]
    assert "many were left out" in page

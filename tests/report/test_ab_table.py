"""What ``queuesmith ab`` prints, in a terminal of 80 columns."""

import io

import pytest
from rich.console import Console

from queuesmith.report.ab import print_ab


def document(candidate="sjf", num_failed=0, num_windows=1, repeats=1):
    arm = {"ttft_mean": 12.345, "ttft_p99": 123.4, "ms_per_step": 98.76, "num_failed": 0}
    runs = [
        {
            "load": "overload",
            "window": window,
            "repeat": repeat,
            "arms": {"stock": arm, candidate: arm | {"num_failed": num_failed}},
            "mean_change": -0.34,
            "p99_change": 1.634,
        }
        for window in range(num_windows)
        for repeat in range(repeats)
    ]
    loads = {
        "load": "overload",
        "verdict": "unsure",
        "mean_change": -0.34,
        "p99_change": 1.634,
        "reason": "",
        "arms": {name: {"simulated_ttft_mean": None} for name in ("stock", candidate)},
    }
    config = {
        "reference": "stock",
        "candidate": candidate,
        "where": "two servers",
        "num_windows": num_windows,
        "window_len": 1000,
        "repeats": repeats,
        "seed": 0,
    }
    return {
        "config": config,
        "origin": {"kind": "real", "source": "log.csv"},
        "loads": [loads],
        "runs": runs,
        "warnings": [],
    }


def printed(*arguments, **keywords):
    console = Console(file=io.StringIO(), width=80, markup=False)
    print_ab(document(*arguments, **keywords), console)
    return console.file.getvalue()


@pytest.mark.parametrize("candidate", ["sjf", "weight", "a_policy_with_a_name_beyond_any_column"])
@pytest.mark.parametrize("num_failed", [0, 3])
def test_no_heading_and_no_number_is_cut(candidate, num_failed):
    text = printed(candidate, num_failed)

    assert "…" not in text
    first, second = text.split("\n\n")[1].splitlines()[:2]
    assert first.split("  ")[0].strip() == "window-"
    assert first.count("mean s") == first.count("p99 s") == first.count(" ms") == 2
    arm = candidate if len(candidate) <= 6 else "policy"
    assert second.split().count("stock") == second.split().count(arm) == 3
    assert max(map(len, text.splitlines())) <= 80
    [row] = [line for line in text.splitlines() if line.startswith("  0-0")]
    expected = "0-0 12.3 12.3 -34 % 123 123 +163 % 98.8 98.8" + " 3" * bool(num_failed)
    assert row.split() == expected.split()


def test_failures_are_a_column_where_there_are_any():
    assert "failed" not in printed()
    assert "failed" in printed(num_failed=1)


def test_one_is_not_said_as_many():
    assert "1 window of 1,000, 1 repeat; seed 0" in " ".join(printed().split())
    many = " ".join(printed(num_windows=2, repeats=3).split())
    assert "2 windows of 1,000, 3 repeats; seed 0" in many

"""The comparison in a terminal."""

import copy
import io

import pytest
from rich.console import Console

from queuesmith import numbers
from queuesmith.report import print_comparison


def printed(document, width=100, **options):
    file = io.StringIO()
    print_comparison(document, Console(file=file, width=width, **options))
    return file.getvalue()


@pytest.mark.parametrize("width", [100, 80, 120])
def test_every_line_fits(comparison, width):
    text = printed(comparison.document, width)

    assert max(len(line) for line in text.splitlines()) <= width
    for policy in comparison.document["config"]["policies"]:
        assert text.count(policy) >= 1 + len(comparison.document["config"]["loads"])
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_the_answer_and_the_origin_come_first(comparison):
    lines = printed(comparison.document, 200).splitlines()

    assert lines[0].startswith("Run aged_sjf: its mean TTFT is lower")
    origin = lines[len(comparison.document["answer"]["sentences"])]
    assert origin.startswith("real traffic: AzureLLMInferenceTrace_conv.csv, 1,000 requests")
    assert "unmeasured" in origin


def test_numbers_are_those_of_the_document(comparison):
    text = printed(comparison.document)
    best = comparison.document["leaderboard"][0]
    spjf = next(
        row
        for row in comparison.document["loads"]
        if row["policy"] == "spjf" and row["load"] == "overload"
    )

    assert f"{best['score']:+.2f}" in text
    assert f"{best['score_low']:+.2f} to {best['score_high']:+.2f}" in text
    last = text[text.index("overload (rho 1.1)") :]
    line = next(line for line in last.splitlines() if line.startswith("  spjf"))
    assert f"{100 * spjf['mean_change']:+.0f} % [" in line
    assert numbers.number(spjf["ttft_mean"]) in line


def test_bundles_and_oracles_are_marked(comparison):
    text = printed(comparison.document)

    assert "srpt_oracle [oracle]" in text
    assert "small_steps [bundle]" in text


def test_without_a_terminal_there_are_no_colours(comparison):
    assert "\x1b" not in printed(comparison.document)
    assert "\x1b[" in printed(comparison.document, force_terminal=True, color_system="standard")


def test_names_cannot_steer_the_terminal(comparison):
    document = copy.deepcopy(comparison.document)
    for row in document["leaderboard"]:
        row["policy"] += "\x1b[2J[red]"
    for row in document["loads"]:
        row["policy"] += "\x1b[2J[red]"
    document["origin"]["source"] = "trace\x1b]0;x\x07.csv"
    document["warnings"] = ["[bold]not markup[/bold]\x1b[0m"]

    text = printed(document, 200)

    assert "\x1b" not in text
    assert "\x07" not in text
    assert "spjf?[2J[red]" in text
    assert "[bold]not markup[/bold]" in text


def test_undefined_numbers_are_dashes(comparison):
    document = copy.deepcopy(comparison.document)
    for row in document["loads"]:
        row.update({key: None for key in row if key not in ("policy", "load")})
    for row in document["leaderboard"]:
        row.update(score=None, score_low=None, score_high=None)
    for load in document["config"]["loads"]:
        load["rho"] = None

    text = printed(document)

    line = next(line for line in text.splitlines() if line.startswith("  spjf"))
    assert line.split() == ["spjf", "-", "-", "-", "-"]
    assert "SLO met" not in text


def test_an_ascii_terminal_can_print_it(comparison):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

    print_comparison(comparison.document, Console(file=file, width=100))
    file.flush()

    assert b"Run aged_sjf" in file.buffer.getvalue()


@pytest.mark.parametrize(
    ("values", "digits", "expected"),
    [
        ([0.123456, 98765.0, 0.0], 3, [0.123, 98800.0, 0.0]),
        ([float("nan"), float("inf"), -float("inf")], 3, [None, None, None]),
        ([-0.00012349, 1e-9, 1e9], 3, [-0.000123, 1e-9, 1e9]),
        ([], 3, []),
    ],
)
def test_compact_rounds_to_digits(values, digits, expected):
    assert numbers.compact(values, digits) == expected

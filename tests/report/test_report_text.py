"""The comparison in a terminal."""

import io
from dataclasses import replace

import pytest
from compared import LOADS, renamed
from rich.console import Console

from queuesmith import numbers
from queuesmith.report import print_comparison
from queuesmith.report.text import short


def printed(comparison, width=100, full=False, **options):
    file = io.StringIO()
    print_comparison(comparison, Console(file=file, width=width, **options), full=full)
    return file.getvalue()


@pytest.mark.parametrize("width", [100, 80, 120])
def test_every_line_fits_and_nothing_is_left_out_in_full(comparison, width):
    text = printed(comparison, width, full=True)

    assert max(len(line) for line in text.splitlines()) <= width
    for policy in comparison.config["policies"]:
        assert text.count(short(policy)[:14]) >= 1 + len(LOADS)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_traffic_and_answer_come_first_and_the_origin_follows_in_one_line(comparison):
    lines = printed(comparison, 2000).splitlines()

    assert lines[0] == comparison.answer.traffic
    assert lines[1 : 1 + len(comparison.answer.sentences)] == list(comparison.answer.sentences)
    origin = next(line for line in lines if line.startswith("real traffic"))
    assert "AzureLLMInferenceTrace_conv.csv, 1,600 requests (12 left out)" in origin
    assert "8 windows of 200" in origin


def test_numbers_are_those_of_the_load_where_the_answer_acts(comparison):
    text = printed(comparison)
    rows = {row.policy: row for row in comparison.loads if row.load == "knee"}

    assert "numbers at knee load" in text
    board = text[text.index("Leaderboard") :].splitlines()
    for leader in comparison.leaderboard[:5]:
        line = next(line for line in board if short(leader.policy) in line.split())
        assert numbers.change(leader.gains["ttft"].change) in line
        assert numbers.number(rows[leader.policy].metrics["ttft_mean"]) in line
    assert f"{len(comparison.leaderboard) - 5} more with --full" in text


def test_full_names_every_broken_guard(comparison):
    text = printed(comparison, 200, full=True)

    for row in comparison.leaderboard:
        assert (f"{row.policy} breaks:" in text) == bool(row.broken)


def test_bundles_and_oracles_are_marked(comparison):
    text = printed(comparison, 200, full=True)

    assert "srpt_oracle [oracle]" in text
    assert "vllm_unchunked [bundle]" in text


def test_without_a_terminal_there_are_no_colours(comparison):
    assert "\x1b" not in printed(comparison)
    assert "\x1b[" in printed(comparison, force_terminal=True, color_system="standard")


def test_names_cannot_steer_the_terminal(comparison):
    names = {name: f"{name}\x1b[2J[red]" for name in comparison.config["policies"]}
    evil = renamed(comparison, names, {name: name for name in LOADS})
    evil = replace(
        evil,
        origin=evil.origin | {"source": "trace\x1b]0;x\x07.csv"},
        warnings=("[bold]not markup[/bold]\x1b[0m",),
    )

    text = printed(evil, 200, full=True)

    assert "\x1b" not in text
    assert "\x07" not in text
    assert "sjf\\x1b[2J[red]" in text
    assert "[bold]not markup[/bold]" in text


def test_undefined_numbers_are_dashes(comparison):
    nothing = replace(
        comparison,
        loads=tuple(
            replace(
                row,
                metrics=row.metrics | {"ttft_p99": float("nan"), "slo_attainment": float("nan")}
                if row.policy == "sjf"
                else row.metrics | {"slo_attainment": float("nan")},
            )
            for row in comparison.loads
        ),
    )

    text = printed(nothing)

    line = next(line for line in text.splitlines() if " sjf " in line)
    assert line.split().count("-") == 2  # its rank, too
    assert "SLO" not in text[text.index("Leaderboard") : text.index("real traffic")]


def test_an_ascii_terminal_can_print_it(comparison):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

    print_comparison(comparison, Console(file=file, width=100))
    file.flush()

    assert b"run sjf_aging" in file.buffer.getvalue()


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

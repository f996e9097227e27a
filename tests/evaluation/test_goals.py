"""Goals and guards: what can be written, and what is refused in one line."""

import re
from pathlib import Path

import pytest

from queuesmith.config import Slo
from queuesmith.errors import ConfigError
from queuesmith.evaluation.goals import GOALS, GUARDS, get_goal, parse_guards


def test_every_goal_has_a_statistic_and_some_need_an_slo():
    assert {name for name, goal in GOALS.items() if goal.needs_slo} == {"slo", "goodput"}
    assert all(get_goal(name, Slo(ttft=1.0)).name == name for name in GOALS)


@pytest.mark.parametrize(
    ("name", "slo", "message"),
    [
        ("tfft", Slo(ttft=1.0), "there is no goal 'tfft'. Did you mean 'ttft'?"),
        ("slo", None, "the goal slo needs an SLO with at least one limit"),
        ("goodput", Slo(), "the goal goodput needs an SLO with at least one limit"),
    ],
)
def test_a_goal_that_cannot_be_is_refused(name, slo, message):
    with pytest.raises(ConfigError) as raised:
        get_goal(name, slo)

    assert message in str(raised.value)


def test_a_margin_is_changed_and_a_guard_switched_off():
    found = {guard.name: guard.margin for guard in parse_guards(["e2el_p99=0.5", "itl_p99=off"])}

    assert found["e2el_p99"] == 0.5
    assert "itl_p99" not in found
    assert len(found) == len(GUARDS) - 1


def test_a_file_of_guards_is_read(tmp_path):
    path = tmp_path / "guards.toml"
    path.write_text("ttft_p99 = 0.02\nclient_ttft = false\n")

    found = {guard.name: guard.margin for guard in parse_guards([str(path)])}

    assert found["ttft_p99"] == 0.02
    assert "client_ttft" not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e2el_p98=0.1", "there is no guard 'e2el_p98'. Did you mean 'e2el_p99'?"),
        ("e2el_p99", "must look like e2el_p99=0.2 or itl_p99=off"),
        ("e2el_p99=-1", "must be a share of at least 0 such as 0.05, or off, got '-1'"),
        ("e2el_p99=nan", "must be a share of at least 0"),
        ("e2el_p99=much", "must be a share of at least 0"),
        ("missing.toml", "guards cannot be read from missing.toml"),
    ],
)
def test_a_guard_that_makes_no_sense_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError) as raised:
        parse_guards([text])

    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_page_lists_every_guard_with_its_margin():
    page = Path(__file__).parents[2] / "docs" / "background" / "metrics.md"
    table = page.read_text("utf8").partition("## Goals and guards")[2]
    listed = {
        name: float(margin) / 100
        for names, margin in re.findall(
            r"^\| ((?:`\w+` ?)+) \| [^|]* \| ([\d.]+) (?:%|points?) \|", table, re.MULTILINE
        )
        for name in re.findall(r"`(\w+)`", names)
    }

    assert listed == {guard.name: pytest.approx(guard.margin) for guard in GUARDS}

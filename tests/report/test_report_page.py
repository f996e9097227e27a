"""The HTML report: complete, safe, small, and the same every time."""

import base64
import copy
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from compared import LOADS, make_trace, renamed

from queuesmith import numbers
from queuesmith.comparison.compare import compare
from queuesmith.errors import ConfigError
from queuesmith.evaluation.judge import Change
from queuesmith.metrics import METRICS
from queuesmith.report import render_html, write_html
from queuesmith.report.tables import METRIC_GROUPS
from queuesmith.report.text import short

EVIL = "</script><script>alert('x')</script><b>&\"'"


class Page(HTMLParser):
    """What a browser would find: elements, the text of scripts, and the cells of tables."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.scripts = []
        self.rows = {}
        self.text = ""
        self._tables = []
        self._inside = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        self._inside = tag
        if tag == "script":
            self.scripts.append([attrs, ""])
        if tag == "table":
            self._tables.append(attrs.get("id", "settings"))
            self.rows.setdefault(self._tables[-1], [])
        if tag == "tr":
            self.rows[self._tables[-1]].append([])
        if tag in ("td", "th"):
            self.rows[self._tables[-1]][-1].append("")

    def handle_endtag(self, tag):
        self._inside = None
        if tag == "table":
            self._tables.pop()

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1][1] += data
        elif self._inside != "style":
            self.text += data
            if self._tables and self.rows[self._tables[-1]]:
                self.rows[self._tables[-1]][-1][-1] += data

    def script(self, name):
        return next(text for attrs, text in self.scripts if attrs.get("id") == name)


@pytest.fixture(scope="module")
def html(comparison):
    return render_html(comparison)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def change_of(text):
    return text.replace("-", "\N{MINUS SIGN}").replace(" %", "\N{NO-BREAK SPACE}%")


def test_traffic_answer_and_goals_stand_first(page, comparison):
    text = page.text
    order = [
        text.index(f"This engine carries {numbers.number(comparison.config['capacity'])} requests"),
        text.index(change_of(comparison.answer.sentences[0][:60])),
        text.index("By goal: sjf_aging for ttft"),
        text.index("Leaderboard"),
    ]

    assert order == sorted(order)
    for fact in (
        "real traffic",
        "AzureLLMInferenceTrace_conv.csv",
        "8 windows of 200 requests",
        "2 rows were out of order",
        "1,600 (12 left out: 12 longer than max_model_len)",
        comparison.origin["sha256"][:16],
    ):
        assert text.index(fact) < order[-1]
    for row in comparison.loads:
        label = f"{row.load} (rho {row.rho:.2f}, {numbers.number(row.rate)}/s)"
        assert text.index(label) < order[-1]


def test_the_goals_say_who_wins_by_how_much_and_who_would_do_as_well(page, comparison):
    rows = page.rows["goals"][1:]

    assert len(rows) == len(comparison.answer.goals)
    for cells, one in zip(rows, comparison.answer.goals, strict=True):
        assert cells[1] == one.policy
        assert cells[3] == (", ".join(one.tied) or "\N{EN DASH}")
    assert rows[0][0] == "mean TTFT (asked for)"
    first = comparison.answer.goals[0].gain
    assert rows[0][2].startswith(change_of(numbers.change(first.change)))
    assert rows[-1][2] == "nothing is surely better"


def test_modelled_traffic_is_called_modelled(comparison):
    origin = comparison.origin | {"kind": "modelled"}

    text = Page(render_html(replace(comparison, origin=origin))).text

    assert "modelled traffic" in text
    assert "real traffic" not in text


def test_policies_that_break_guards_stand_below_without_a_rank_and_with_the_reason(
    page, comparison
):
    rows = list(page.rows["leaderboard"][1:])
    blocks = [place for place, cells in enumerate(rows) if len(cells) == 1]
    board = comparison.leaderboard
    num_eligible = sum(row.eligible for row in board)

    assert blocks == [0, num_eligible + 1]
    shown = [cells for cells in rows if len(cells) > 1]
    for cells, row in zip(shown, board, strict=True):
        assert cells[0].startswith(row.policy)
        assert cells[1] == ("\N{EN DASH}" if row.rank is None else str(row.rank))
        assert cells[2] == change_of(numbers.change(row.gains["ttft"].change))
        assert cells[4] == f"{row.wins} \N{EN DASH} {row.ties} \N{EN DASH} {row.losses}"
        assert ("none broken" in cells[5]) == (not row.broken)
        for broken in row.broken:
            assert f"{broken.label} " in cells[5]
        if row.kind != "policy":
            assert row.kind in cells[0]
        if row.chosen:
            assert row.chosen[1:] in cells[0]


def loads_rows(html):
    """Return, by (group, load, policy), the cells of the tables of loads, with their classes."""
    found = {}
    for group, part in re.findall(
        r'<div class="metrics" data-metrics="([^"]+)">(.*?)</div></div>', html, re.S
    ):
        for load, body in re.findall(r'<tbody data-load="([^"]+)">(.*?)</tbody>', part, re.S):
            for row in re.findall(r"<tr>(.*?)</tr>", body, re.S):
                policy = re.search(r'class="policy">([^<]*)<', row)[1]
                found[group, load, policy] = {
                    label: (classes, text)
                    for label, classes, text in re.findall(
                        r'<td data-label="([^"]+)" class="([^"]+)"[^>]*>(.*?)</td>', row
                    )
                }
    return found


def test_every_number_of_every_policy_and_load_is_there(html, comparison):
    found = loads_rows(html)

    assert set(found) == {
        (group, row.load, short(row.policy)) for group in METRIC_GROUPS for row in comparison.loads
    }
    for row in comparison.loads:
        cells = found["TTFT", row.load, short(row.policy)]
        assert cells["mean (s)"][1].startswith(numbers.number(row.metrics["ttft_mean"]))
    shown = {column.name for columns in METRIC_GROUPS.values() for column in columns}
    assert set(METRICS) <= shown
    assert {guard.name for guard in comparison.guards} <= shown


def test_the_cell_whose_guard_is_broken_is_marked_and_no_other(html, comparison):
    found = loads_rows(html)
    marked = {
        (load, policy, next(c.name for c in METRIC_GROUPS[group] if c.heading == label))
        for (group, load, policy), cells in found.items()
        for label, (classes, text) in cells.items()
        if "broken" in classes or "\N{BLACK UP-POINTING TRIANGLE}" in text
    }

    assert marked == {
        (row.load, short(row.policy), guard) for row in comparison.loads for guard in row.broken
    }
    assert len(marked) > 10


def test_a_broken_guard_of_a_class_has_a_cell_of_its_own(html, comparison):
    assert "priority class" not in html
    leader = next(row for row in comparison.leaderboard if row.policy == "las")
    one = replace(leader.broken[0], guard="priority_ttft", label="mean TTFT of priority 1")
    loads = tuple(
        replace(row, broken=("priority_ttft",))
        if (row.policy, row.load) == ("las", one.load)
        else row
        for row in comparison.loads
    )
    board = tuple(
        replace(row, broken=(one,)) if row.policy == "las" else row
        for row in comparison.leaderboard
    )

    found = loads_rows(render_html(replace(comparison, loads=loads, leaderboard=board)))

    classes, text = found["TTFT", one.load, "las"]["priority class"]
    assert "broken" in classes
    assert numbers.number(one.change.value) in text
    assert found["TTFT", one.load, "sjf"]["priority class"][1] == "&ndash;"


def without(comparison, *names):
    """Return the comparison with numbers that are undefined."""
    none = Change(*[float("nan")] * 5)
    return replace(
        comparison,
        loads=tuple(
            replace(
                row,
                metrics={
                    name: float("nan") if name in names else value
                    for name, value in row.metrics.items()
                },
                changes={
                    name: none if name in names else change for name, change in row.changes.items()
                },
                broken=tuple(name for name in row.broken if name not in names),
            )
            for row in comparison.loads
        ),
    )


def test_a_column_without_a_defined_value_is_left_out(html, comparison):
    assert 'data-label="goodput (/s)"' in html

    text = render_html(without(comparison, "goodput", "slo_attainment"))

    assert 'data-label="goodput (/s)"' not in text
    assert 'data-label="SLO met"' not in text


def test_undefined_numbers_are_dashes(comparison):
    """One window has no intervals, and nothing can be recommended."""
    alone = compare(
        make_trace(60), "fcfs,sjf", "2.0", num_windows=1, window_len=60, slo=None, num_workers=1
    )

    text = render_html(alone)

    assert "nan" not in Page(text).text.replace("\N{NO-BREAK SPACE}", " ").split()
    assert "Stay with fcfs" in text


def test_the_whole_result_is_in_the_page(page, comparison):
    assert json.loads(page.script("queuesmith-data")) == comparison.to_json()


def test_no_string_can_become_markup(page, comparison):
    """A policy, a file, a note: whoever names it does not write our page."""
    names = {name: f"{name}{EVIL}" for name in comparison.config["policies"]}
    evil = renamed(comparison, names, {name: f"{name}{EVIL}" for name in LOADS})
    config = {**evil.config, "engine": {EVIL: EVIL}}
    config |= dict.fromkeys(("preset", "provenance", "output_length", "command"), EVIL)
    origin = {**evil.origin, "source": EVIL, "reader": EVIL, "notes": [EVIL], "kind": EVIL}
    origin["dropped"] = {EVIL: 3}
    evil = replace(
        evil,
        config=config,
        origin=origin,
        warnings=(EVIL,),
        answer=replace(evil.answer, sentences=(EVIL, EVIL, EVIL), traffic=EVIL),
        leaderboard=tuple(
            replace(
                row,
                summary=EVIL,
                chosen=EVIL,
                broken=tuple(replace(one, label=EVIL) for one in row.broken),
            )
            for row in evil.leaderboard
        ),
    )

    found = Page(render_html(evil))

    def tags(page):
        return {tag for tag, _ in page.elements}

    assert len(found.scripts) == len(page.scripts)
    assert tags(found) <= tags(page)
    assert not any(key.startswith("on") for _, attrs in found.elements for key in attrs)
    assert json.loads(found.script("queuesmith-data")) == evil.to_json()
    assert "alert('x')" in found.text  # shown, as text


def test_the_page_reaches_for_nothing(page):
    for tag, attrs in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed") or attrs["href"] == "data:,"
        assert "src" not in attrs
    policy = next(
        attrs["content"]
        for _, attrs in page.elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert "'unsafe-eval'" not in policy


def test_only_the_scripts_of_this_page_may_run(page):
    policy = str(page.elements)
    code = [text for attrs, text in page.scripts if "type" not in attrs]

    assert len(code) == 2
    for text in code:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(re.findall("'sha256-", policy)) == 2


def test_equal_comparisons_are_equal_bytes(html, comparison):
    assert render_html(copy.copy(comparison)) == html


def test_the_largest_report_stays_small(large_comparison, tmp_path):
    path = write_html(large_comparison, tmp_path / "report.html")

    assert path.stat().st_size < 12e6


def test_the_report_makes_its_folder_and_replaces_its_file(comparison, html, tmp_path):
    path = tmp_path / "runs" / "today" / "report.html"

    assert write_html(comparison, path) == path
    assert write_html(comparison, path).read_text(encoding="utf-8") == html


def test_a_report_that_cannot_be_written_is_a_mistake_in_one_line(comparison, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be written to '.*'.*name another file"):
        write_html(comparison, tmp_path)


def test_unfinished_requests_and_missing_samples_do_not_stop_the_report(comparison):
    samples = dict(comparison.samples)
    some = samples["sjf", "knee"]
    lost = np.where(np.arange(len(some.ttft)) % 3 == 0, np.nan, some.ttft)
    samples["sjf", "knee"] = replace(some, ttft=lost, slowdown=lost)
    samples["las", "knee"] = replace(some, ttft=lost * np.nan, slowdown=lost * np.nan)
    del samples["vllm_unchunked", "knee"]

    assert "run sjf_aging" in render_html(replace(comparison, samples=samples))


def test_the_template_is_a_file_of_the_package():
    import queuesmith.report

    folder = Path(queuesmith.report.__file__).parent
    assert {"frame.html", "frame.css", "frame.js", "compare.html", "page.js"} <= {
        path.name for path in folder.iterdir()
    }

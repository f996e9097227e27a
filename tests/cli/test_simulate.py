"""``queuesmith simulate``: one run, its rows, its timeline."""

import json
import re
from pathlib import Path

import pytest
from pyarrow import csv, parquet

from queuesmith.engine.result import RESULT_DTYPE
from queuesmith.metrics import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compare_json.md"


def test_a_table_of_metrics_is_printed_and_nothing_is_written(run, log):
    ran = run("simulate", log, "--policy", "sjf")

    assert ran.code == 0
    assert "real traffic: log.csv; policy sjf; engine" in ran.out
    assert "ttft_mean" in ran.out
    assert ran.err == ""
    assert ran.created == set()


def test_json_prints_every_metric_and_nothing_else(run, log):
    document = json.loads(run("simulate", log, "--slo", "none", "--json").out)

    assert list(document["metrics"]) == list(METRICS)
    assert document["metrics"]["num_requests"] == 80
    assert document["metrics"]["goodput"] is None
    assert document["origin"]["kind"] == "real"


def test_the_page_names_every_key(run, log):
    document = json.loads(run("simulate", log, "--json").out)

    named = set(re.findall(r"`([^`]+)`", PAGE.read_text().partition("\n## simulate\n")[2]))
    assert {*document, *document["origin"]} <= named
    assert set(METRICS) <= set(re.findall(r"`([^`]+)`", PAGE.read_text()))


@pytest.mark.parametrize(("suffix", "read"), [(".csv", csv.read_csv), (".parquet", None)])
def test_a_row_per_request_is_written(run, log, tmp_path, suffix, read):
    ran = run("simulate", log, "--requests", f"rows{suffix}")

    assert ran.err == f"wrote rows{suffix}\n"
    assert ran.created == {f"rows{suffix}"}
    table = (read or parquet.read_table)(tmp_path / f"rows{suffix}")
    assert table.column_names == list(RESULT_DTYPE.names)
    assert table.num_rows == 80


def test_a_timeline_is_written_for_perfetto(run, log, tmp_path):
    ran = run("simulate", log, "--timeline", "line.json", "--requests", "rows.csv", "--json")

    assert ran.created == {"line.json", "rows.csv"}
    assert json.loads((tmp_path / "line.json").read_text())["traceEvents"]
    assert json.loads(ran.out)["schema"] == "queuesmith.simulate/1"


def test_rho_sets_the_load(run, log):
    light, heavy = (
        json.loads(run("simulate", log, "--rho", rho, "--json").out)["metrics"]
        for rho in ("0.1", "3")
    )

    assert heavy["queued_time_mean"] > 10 * light["queued_time_mean"]
    assert heavy["num_requests"] == light["num_requests"]


def test_a_horizon_leaves_requests_unfinished(run, log):
    metrics = json.loads(run("simulate", log, "--horizon", 20, "--json").out)["metrics"]

    assert 0 < metrics["num_unfinished"] < 80
    assert metrics["e2el_mean"] is None
    assert metrics["e2el_p99"] is None


def test_what_was_left_out_or_cut_is_a_warning(run, log):
    ran = run("simulate", log, "--engine-args", "--max-model-len 500", "--json")

    document = json.loads(ran.out)
    dropped = document["metrics"]["num_dropped"]
    assert f"{dropped} requests can never run on this engine" in document["warnings"][0]
    assert dropped == sum(100 + 37 * row % 900 >= 500 for row in range(80))


def test_requests_that_all_arrive_at_once_can_be_simulated(run, tmp_path):
    """They have no rate, so no load can be set, but a burst is a fine thing to look at."""
    lines = ["arrival_time,prompt_len,output_len", *["7,100,5"] * 30]
    (tmp_path / "burst.csv").write_text("\n".join(lines))

    assert json.loads(run("simulate", "burst.csv", "--json").out)["metrics"]["num_requests"] == 30


def test_one_request_can_be_simulated(run, tmp_path):
    (tmp_path / "one.csv").write_text("arrival_time,prompt_len,output_len\n7,100,5\n")

    metrics = json.loads(run("simulate", "one.csv", "--json").out)["metrics"]

    assert metrics["slowdown_max"] == pytest.approx(1.0)

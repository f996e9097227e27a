"""What runs say, and what speaks against believing them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from queuesmith.config import Slo
from queuesmith.deploy.ab import STOCK, Cell, Turn, plan
from queuesmith.deploy.arms import Run, busy_seconds
from queuesmith.deploy.measured import failure_lines
from queuesmith.deploy.replay import Served
from queuesmith.deploy.verdict import judge_runs
from queuesmith.evaluation.evaluate import Load
from queuesmith.evaluation.goals import GUARDS, get_goal, parse_guards
from queuesmith.windows import Window

LOAD = Load("overload", rho=1.1)


@pytest.fixture
def make_cells(make_workload):
    def make_cells(num_windows, num_requests=20, **columns):
        workload = make_workload(num_requests, **columns)
        return [
            Cell(
                LOAD,
                Window(workload.trace, index, 0, ""),
                workload,
                1.1,
                1.0,
                np.full(num_requests, 0.1),
            )
            for index in range(num_windows)
        ]

    return make_cells


def make_run(cell, ttft, *, tpot=0.05, late=0.0, step_ms=10.0, expected_ms=math.nan, errors=()):
    """A run in which every request waited so long (or as long as a list says)."""
    waits = np.broadcast_to(ttft, len(cell.workload.trace))
    served = [
        Served(row, t, t + late, t + wait, t + wait + 2 * tpot, 3, dict(errors).get(row, ""))
        for row, (t, wait) in enumerate(
            zip(cell.workload.trace.arrival_time.tolist(), waits.tolist(), strict=True)
        )
    ]
    return Run(served, 1000, step_ms, expected_ms)


def judge(cells, make, repeats=3, **options):
    """Judge runs made by ``make(cell, repeat, arm)``."""
    turns = plan(len(cells), [STOCK, "sjf"], repeats, seed=0)
    measured = [(turn, make(cells[turn.cell], turn.repeat, turn.arm)) for turn in turns]
    slo = options.pop("slo", None)
    options = {
        "goal": get_goal(options.pop("goal", "ttft"), slo),
        "guards": parse_guards(options.pop("guards", ())),
        "slo": slo,
        "margin": 0.1,
        "seed": 0,
        **options,
    }
    return judge_runs(measured, cells, "sjf", **options)


def test_a_policy_that_halves_ttft_in_eight_windows_is_better(make_cells):
    outcome = judge(make_cells(8), lambda cell, _, arm: make_run(cell, 2 if arm == STOCK else 1))

    [row] = outcome.loads
    assert (row.verdict, row.reason) == ("better", "")
    assert row.changes["ttft_mean"].change == pytest.approx(-0.5)
    assert row.changes["ttft_mean"].high == pytest.approx(-0.5)
    assert (row.wins, row.p_value) == (8, pytest.approx(2 / 2**8))


def test_repeats_of_a_window_are_not_counted_as_windows(make_cells):
    outcome = judge(
        make_cells(2), lambda cell, _, arm: make_run(cell, 2 if arm == STOCK else 1), repeats=50
    )

    [row] = outcome.loads
    assert (row.num_windows, row.wins) == (2, 2)
    assert math.isnan(row.p_value)
    assert row.reason == "a hint: 2 of the 8 windows a test needs"


def test_repeats_are_averaged(make_cells):
    """One repeat in which stock was lucky does not make it the winner of the window."""
    waits = {STOCK: [1.0, 5.0, 6.0], "sjf": [2.0, 2.0, 2.0]}
    outcome = judge(make_cells(1), lambda cell, repeat, arm: make_run(cell, waits[arm][repeat]))

    [row] = outcome.loads
    assert row.changes["ttft_mean"].reference == pytest.approx(4.0)
    assert row.changes["ttft_mean"].change == pytest.approx(-0.5)
    assert (row.wins, row.losses) == (1, 0)


def test_equal_arms_are_the_same(make_cells):
    outcome = judge(make_cells(8), lambda cell, _, arm: make_run(cell, 1.0))

    assert outcome.loads[0].verdict == "same"


def test_a_worse_policy_is_worse(make_cells):
    outcome = judge(make_cells(8), lambda cell, _, arm: make_run(cell, 1 if arm == STOCK else 2))

    assert outcome.loads[0].verdict == "worse"
    assert outcome.exit_status == 1


def test_windows_that_disagree_leave_it_unsure(make_cells):
    def make(cell, repeat, arm):
        lucky = cell.window.index % 2 == 0
        return make_run(cell, 1.0 if arm == STOCK else (0.5 if lucky else 1.8))

    off = [f"{guard.name}=off" for guard in GUARDS]
    outcome = judge(make_cells(8), make, guards=off)
    assert (outcome.loads[0].verdict, outcome.exit_status) == ("unsure", 0)


def test_a_longer_tail_makes_a_better_mean_a_mixed_result(make_cells):
    starving = np.r_[np.full(19, 0.1), 9.0]
    outcome = judge(
        make_cells(8), lambda cell, _, arm: make_run(cell, 2.0 if arm == STOCK else starving)
    )

    [row] = outcome.loads
    assert row.verdict == "mixed"
    assert "ttft_mean" in row.better
    assert "ttft_p99" in {one.guard for one in row.broken}
    assert outcome.exit_status == 1


def test_better_ttft_and_worse_tpot_is_mixed_and_all_of_it_is_measured(make_cells):
    slo = Slo(ttft=1.5, tpot=0.06)
    outcome = judge(
        make_cells(8),
        lambda cell, _, arm: make_run(
            cell, *((2.0,) if arm == STOCK else (1.0,)), tpot=0.05 if arm == STOCK else 0.075
        ),
        slo=slo,
    )

    [row] = outcome.loads
    assert (row.verdict, outcome.exit_status) == ("mixed", 1)
    assert {"ttft_mean", "e2el_mean"} <= set(row.better)
    assert {"tpot_mean", "tpot_p99"} <= {one.guard for one in row.broken}
    changes = row.changes
    assert changes["tpot_mean"].change == pytest.approx(0.5)
    assert changes["e2el_mean"].value == pytest.approx(1.15)
    # Stock misses the limit on TTFT, the policy that on TPOT.
    assert (changes["slo_attainment"].reference, changes["slo_attainment"].value) == (0, 0)
    # 20 requests of 3 tokens within 19 gaps of 10 ms, a wait and two more tokens.
    assert changes["output_throughput"].reference == pytest.approx(60 / (0.19 + 2.1))
    assert changes["slowdown_max"].value == pytest.approx(11.5)
    assert not {"itl_p99", "recompute_tax", "ttft_p999", "served"} & changes.keys()


def test_a_loss_within_a_guards_margin_is_no_verdict_and_another_margin_makes_it_one(make_cells):
    def make(cell, _, arm):
        return make_run(cell, 2.0 if arm == STOCK else 1.0, tpot=0.05 if arm == STOCK else 0.0525)

    [row] = judge(make_cells(8), make).loads
    assert (row.verdict, row.broken) == ("better", ())
    assert set(row.worse) == {"tpot_mean", "tpot_p99"}

    [strict] = judge(make_cells(8), make, guards=["tpot_mean=0.02"]).loads
    assert strict.verdict == "mixed"
    assert [one.guard for one in strict.broken] == ["tpot_mean"]


def test_another_goal_judges_by_another_number(make_cells):
    def make(cell, _, arm):
        return make_run(cell, 2.0 if arm == STOCK else 1.0, tpot=0.05)

    [row] = judge(make_cells(8), make, goal="tpot").loads
    assert row.verdict == "same"


def test_a_goal_that_no_request_has_gets_no_verdict(make_cells):
    def make(cell, _, arm):
        run = make_run(cell, 1.0)
        return replace(run, served=[replace(one, num_output_tokens=1) for one in run.served])

    outcome = judge(make_cells(8), make, goal="tpot")
    assert outcome.loads[0].verdict == "withheld"
    assert outcome.loads[0].reason == "no request has a mean TPOT"
    assert outcome.exit_status == 2


def test_a_class_that_pays_is_named(make_cells):
    def make(cell, _, arm):
        first = cell.workload.trace.priority == 0
        return make_run(cell, 1.0 if arm == STOCK else np.where(first, 1.5, 0.5))

    [row] = judge(make_cells(8, priority=np.arange(20) % 2), make).loads
    assert "mean TTFT of priority 0" in {one.label for one in row.broken}


@pytest.mark.parametrize(("step_ms", "withheld"), [(10.5, False), (12.0, True), (8.0, True)])
def test_no_verdict_when_the_machine_was_not_equally_fast(make_cells, step_ms, withheld):
    outcome = judge(
        make_cells(8),
        lambda cell, _, arm: make_run(
            cell, 2 if arm == STOCK else 1, step_ms=10 if arm == STOCK else step_ms
        ),
    )

    [row] = outcome.loads
    assert row.machine_ratio == pytest.approx(step_ms / 10)
    assert (row.verdict == "withheld") == withheld
    if withheld:
        assert "did not see the same machine" in row.reason


def test_a_pair_of_runs_on_an_uneven_machine_is_left_out_and_that_is_said(make_cells):
    """Something else ran beside stock for once, and its requests waited ten times as long."""

    def make(cell, repeat, arm):
        slowed = arm == STOCK and (cell.window.index, repeat) in {(3, 1), (5, 0)}
        return make_run(cell, 10.0 if slowed else 1.0, step_ms=30.0 if slowed else 10.0)

    outcome = judge(make_cells(8), make)

    [row] = outcome.loads
    assert (row.verdict, row.changes["ttft_mean"].change) == ("same", 0.0)
    assert (row.num_pairs, row.num_uneven, row.num_windows) == (24, 2, 8)
    assert row.reason.startswith("2 of 24 pairs of runs are left out")
    assert len(outcome.runs) == 24  # they are shown all the same


def test_no_verdict_when_most_pairs_of_runs_were_on_an_uneven_machine(make_cells):
    """Even where the arms were slowed in turn, so that both took as long in all."""

    def make(cell, repeat, arm):
        slowed = arm == (STOCK if cell.window.index % 2 else "sjf")
        return make_run(cell, 1.0 if arm == "sjf" else 2.0, step_ms=15.0 if slowed else 10.0)

    [row] = judge(make_cells(8), make).loads
    assert row.verdict == "withheld"
    assert row.reason.startswith("in 24 of 24 pairs of runs the arms did not see the same")


def test_larger_batches_are_not_taken_for_a_slower_machine(make_cells):
    """Where the step-time model says what the work should take, that is the measure."""
    outcome = judge(
        make_cells(8),
        lambda cell, _, arm: make_run(
            cell,
            2 if arm == STOCK else 1,
            step_ms=10 if arm == STOCK else 20,
            expected_ms=9 if arm == STOCK else 18,
        ),
    )

    [row] = outcome.loads
    assert row.machine_ratio == pytest.approx(1.0)
    assert row.verdict == "better"


def test_no_verdict_when_nobody_knows_how_fast_the_machine_was(make_cells):
    outcome = judge(make_cells(8), lambda cell, _, arm: make_run(cell, 1, step_ms=math.nan))

    assert outcome.loads[0].verdict == "withheld"
    assert "the speed of the machine is not known" in outcome.loads[0].reason


def test_no_verdict_when_the_client_was_late(make_cells):
    outcome = judge(
        make_cells(8), lambda cell, _, arm: make_run(cell, 2 if arm == STOCK else 1, late=0.5)
    )

    assert outcome.loads[0].verdict == "withheld"
    assert "500 ms at p99" in outcome.loads[0].reason


def test_failed_requests_are_listed_and_withhold_the_verdict(make_cells):
    def make(cell, repeat, arm):
        failed = arm == "sjf" and repeat == 1 and cell.window.index == 3
        errors = [(4, "HTTP 500: broken"), (5, "HTTP 500: broken")] if failed else []
        return make_run(cell, 2 if arm == STOCK else 1, errors=errors)

    outcome = judge(make_cells(8), make)

    [row] = outcome.loads
    assert (row.verdict, row.reason) == ("withheld", "2 requests failed")
    # What was measured is there all the same, over the requests that every run served.
    assert row.num_paired == 3 * (8 * 20 - 2)
    assert row.changes["ttft_mean"].change == pytest.approx(-0.5)
    assert [(one.window, one.repeat, one.row) for one in outcome.failures] == [
        (3, 1, 4),
        (3, 1, 5),
    ]
    assert failure_lines(outcome.failures) == ["sjf: 2 requests: HTTP 500: broken"]


def test_a_measurement_that_stopped_half_way_is_judged_as_far_as_it_went(make_cells):
    cells = make_cells(2)
    measured = [
        (Turn(0, 0, STOCK), make_run(cells[0], 2.0)),
        (Turn(0, 0, "sjf"), make_run(cells[0], 1.0)),
        (Turn(1, 0, STOCK), make_run(cells[1], 2.0)),
    ]
    outcome = judge_runs(
        measured,
        cells,
        "sjf",
        goal=get_goal("ttft", None),
        guards=(),
        slo=None,
        margin=0.1,
        seed=0,
    )

    assert [len(row.arms) for row in outcome.runs] == [2, 1]
    assert outcome.loads[0].num_windows == 1


def test_arms_take_turns_in_a_random_order_that_the_seed_decides():
    turns = plan(4, ["a", "b"], 3, seed=0)

    assert len(set(turns)) == 24
    assert turns == plan(4, ["a", "b"], 3, seed=0)
    assert turns != plan(4, ["a", "b"], 3, seed=1)
    # Each pair of turns is one cell under both arms, and neither arm always goes first.
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    assert all((x.cell, x.repeat) == (y.cell, y.repeat) for x, y in pairs)
    assert {x.arm for x, _ in pairs} == {"a", "b"}


def test_a_server_is_busy_while_any_request_is_there():
    served = [
        Served(0, 0, 0.0, 1.0, 2.0, 3),
        Served(1, 0, 1.0, 2.0, 4.0, 3),
        Served(2, 9, 9.0, 9.5, 10.0, 3),
        Served(3, 9, error="refused"),
    ]

    assert busy_seconds(served) == 5.0

"""Fitting step times: the truth is found, accidents are ignored, files are read with care."""

import numpy as np
import pytest

from queuesmith.config import EngineConfig
from queuesmith.deploy.arms import read_steps
from queuesmith.deploy.calibrate import (
    Steps,
    errors,
    fit_step_time,
    grid,
    mixed_traffic,
    repeatability,
    split,
)
from queuesmith.deploy.engine_file import config_of, preset_toml, read_preset
from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import Preset, StepTime
from queuesmith.errors import ConfigError
from queuesmith.policies import get_policy

TRUTH = StepTime(a=4e-3, b1=1e-5, b2=5e-5, t0=64, c=2e-5, d=3e-8, e=1e-9, f=5e-4)
HEADER = '{"vllm": "0.32.0", "engine": {"max_num_seqs": 64, "num_gpu_blocks": 900}}\n'
LINE = (
    '{"t": 1.0, "seconds": 0.01, "num_prefill_tokens": 5, "num_decodes": 1, '
    '"kv_tokens": 7, "attention": 12.5}\n'
)


@pytest.fixture(scope="module")
def steps():
    """Steps of all regimes that take exactly as long as the truth says."""
    rng = np.random.default_rng(0)
    prefill = np.where(rng.random(1000) < 0.4, rng.integers(1, 2048, 1000), 0)
    decodes = np.where(rng.random(1000) < 0.8, rng.integers(1, 64, 1000), (prefill == 0) * 1)
    kv_tokens = decodes * rng.integers(10, 4000, 1000)
    attention = prefill * rng.integers(10, 4000, 1000) / 2
    work = np.column_stack([prefill, decodes, kv_tokens, attention]).astype(float)
    return Steps(work, np.array([TRUTH.seconds(*row) for row in work]))


def test_the_truth_is_found_where_there_is_no_noise(steps):
    found = fit_step_time(steps, "test")

    assert found.t0 == 64
    for name in ("a", "b1", "b2", "c", "d", "e", "f"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.02), name


def test_a_step_in_ten_that_the_machine_was_late_for_hardly_counts(steps):
    rng = np.random.default_rng(1)
    late = rng.random(len(steps)) < 0.1
    noise = np.exp(rng.normal(0, 0.05, len(steps)))
    measured = Steps(steps.work, steps.seconds * noise * np.where(late, 8.0, 1.0))
    found = fit_step_time(measured, "test")

    assert errors(found, steps)["all"]["mean"] < 0.04


def test_the_seconds_of_skewed_steps_add_up(steps):
    """Late more often than early: most steps take less than the mean, but queues feel the mean."""
    rng = np.random.default_rng(2)
    delay = np.exp(rng.normal(0, 0.4, len(steps)))
    measured = Steps(steps.work, steps.seconds * delay)
    found = fit_step_time(measured, "test")

    assert abs(errors(found, measured)["all"]["total"]) < 0.02  # 0.08 without


def test_the_repeatability_is_the_least_error_of_any_formula(steps):
    rng = np.random.default_rng(3)
    work = np.tile([0.0, 8.0, 800.0, 0.0], (500, 1))
    seconds = 0.01 * (1 + rng.choice([-0.1, 0.0, 0.1], 500))

    assert repeatability(Steps(work, seconds)) == pytest.approx(0.1 * 2 / 3, abs=0.01)
    assert np.isnan(repeatability(Steps(work[:5], seconds[:5])))


def test_no_coefficient_is_negative_even_where_the_data_would_have_it(steps):
    falling = Steps(steps.work, 1.0 / (1 + steps.work[:, 0]) + 1e-3)
    found = fit_step_time(falling, "test")

    assert min(found.a, found.b1, found.b2, found.c, found.d, found.e, found.f) >= 0


def test_errors_are_told_by_regime_and_on_the_sum(steps):
    twice = Steps(steps.work, 2 * steps.seconds)
    found = errors(TRUTH, twice)

    assert set(found) == {"all", "decode", "prefill", "mixed"}
    assert sum(found[name]["num_steps"] for name in ("decode", "prefill", "mixed")) == len(steps)
    assert found["decode"]["mean"] == pytest.approx(0.5)
    assert found["all"]["total"] == pytest.approx(-0.5)


def test_the_steps_kept_from_the_fit_are_whole_blocks_and_no_others(steps):
    numbered = Steps(steps.work, np.arange(len(steps), dtype=float))
    fitted, unseen = (side.seconds.tolist() for side in split(numbered))

    assert unseen[:50] == list(range(200, 250))
    assert sorted(fitted + unseen) == list(range(len(steps)))
    assert len(unseen) == len(steps) // 5


def test_too_few_steps_are_refused(steps):
    few = steps.take(np.arange(len(steps)) < 50)
    with pytest.raises(ConfigError, match="50 steps are too few"):
        fit_step_time(few, "test")


def test_the_grid_fits_the_engine_and_shows_every_regime():
    config = EngineConfig(
        max_num_seqs=16, max_num_batched_tokens=512, num_gpu_blocks=200, max_model_len=3000
    )
    kinds = set()
    for workload in grid(config):
        result = simulate_workload(
            workload, compile_policy(get_policy("fcfs")), config, TRUTH, record=True
        )
        assert result.num_dropped == 0
        kinds.add(len(workload.trace))
    assert kinds == {1, 2, 4, 8, 16}


def test_mixed_traffic_lasts_as_long_as_asked():
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=512)
    workload = mixed_traffic(config, TRUTH, 20.0, 0.9, seed=0)

    assert 10 < workload.trace.duration <= 20
    other = mixed_traffic(config, TRUTH, 20.0, 0.9, seed=1)
    assert workload.trace.sha256 != other.trace.sha256


def test_a_preset_is_read_as_it_was_written(tmp_path, steps):
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=512, watermark=0.01)
    preset = Preset("tiny/box", 'A "tiny" model', TRUTH, config)
    path = tmp_path / "engine.toml"
    path.write_text(preset_toml(preset, {"num_fitted": 3, "fitted": errors(TRUTH, steps)}))

    assert read_preset(path) == preset


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml at all", "is not TOML"),
        ("a = 1", "must have schema = 'queuesmith.engine/1'"),
        ('schema = "queuesmith.engine/1"', "needs the tables"),
        ('schema = "queuesmith.engine/1"\n[step_time]\nb1 = 1\n[engine]', "has no 'a'"),
        ('schema = "queuesmith.engine/1"\n[step_time]\na = 1\nz = 2\n[engine]', "unknown 'z'"),
        ('schema = "queuesmith.engine/1"\n[step_time]\na = -1\n[engine]', "a must be a number"),
        ('schema = "queuesmith.engine/1"\n[step_time]\na = 1\n[engine]\nx = 1', "no engine settin"),
    ],
)
def test_a_file_that_is_no_preset_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "engine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        read_preset(path)
    assert "\n" not in str(refused.value)


def test_a_missing_file_says_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match="write one with `queuesmith calibrate`"):
        read_preset(tmp_path / "none.toml")


def test_a_record_is_read_with_its_settings(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(HEADER + LINE * 3)
    header, records = read_steps(path)

    assert config_of(header).max_num_seqs == 64
    assert Steps.of(records).work.tolist() == [[5, 1, 7, 12.5]] * 3


def test_a_record_of_a_server_that_was_killed_ends_in_half_a_line(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(HEADER + LINE * 2 + LINE[:20])

    assert len(read_steps(path)[1]) == 2


@pytest.mark.parametrize("line", ["[1]\n", "{}\n", "x\n", LINE.replace("0.01", "-1"), "null\n"])
def test_a_damaged_record_is_refused_with_the_line(tmp_path, line):
    path = tmp_path / "steps.jsonl"
    path.write_text(HEADER + line + LINE)
    with pytest.raises(ConfigError, match="is not a record of steps: line 2"):
        read_steps(path)

"""What a request takes on an idle engine is what the simulator takes for it alone."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queuesmith.config import EngineConfig
from queuesmith.engine import can_run, simulate
from queuesmith.engine.isolated_latency import e2el_alone, ttft_alone
from queuesmith.engine.presets.step_time import StepTime, get_preset, preset_names
from queuesmith.traces.trace import Trace

SECONDS = st.floats(0, 1e-2)


@st.composite
def configs(draw):
    chunked = draw(st.booleans())
    budget = draw(st.integers(1, 300)) if chunked else 700
    return EngineConfig(
        max_num_seqs=1,
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=draw(st.sampled_from([None, max(budget // 2, 1)]))
        if chunked
        else None,
        num_gpu_blocks=800 // 8 + 2,
        block_size=8,
        max_model_len=700,
        enable_chunked_prefill=chunked,
        watermark=draw(st.sampled_from([0.0, 0.5])),
        async_scheduling=draw(st.booleans()),
        instant_prefill=draw(st.booleans()),
    )


@settings(max_examples=200, deadline=None)
@given(
    prompt_len=st.integers(1, 650),
    output_len=st.integers(1, 60),
    config=configs(),
    coefficients=st.fixed_dictionaries(dict.fromkeys(("b1", "b2", "c", "d", "f"), SECONDS)),
    a=st.floats(1e-4, 0.1),
    e=st.floats(0, 1e-5),
    t0=st.floats(0, 400),
    host_overhead=SECONDS,
    policy=st.sampled_from(["fcfs", "srpt", "slai", "las"]),
)
def test_alone_is_what_the_simulator_says(
    prompt_len, output_len, config, coefficients, a, e, t0, host_overhead, policy
):
    step_time = StepTime(a=a, e=e, t0=t0, host_overhead=host_overhead, **coefficients)
    trace = Trace([0.0], [prompt_len], [output_len])
    assume(can_run(trace, config).all())

    request = simulate(trace, policy, config=config, step_time=step_time).requests[0]

    ttft = ttft_alone([prompt_len], config, step_time)
    e2el = e2el_alone([prompt_len], [request.output_len], config, step_time)
    assert ttft == pytest.approx([request.first_token_ts], rel=1e-9)
    assert e2el == pytest.approx([request.last_token_ts], rel=1e-9)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_agrees_on_a_whole_column(name):
    preset = get_preset(name)
    prompt_len = np.array([1, 17, 512, 2048, 2049, 8192, 9000])
    output_len = np.array([1, 2, 900, 33, 128, 1, 7])
    gaps = np.full(len(prompt_len), 1000.0)  # s: everybody is alone
    trace = Trace(np.cumsum(gaps), prompt_len, output_len)

    result = simulate(trace, engine=preset).requests

    alone = e2el_alone(prompt_len, output_len, preset.config, preset.step_time)
    np.testing.assert_allclose(result.last_token_ts - result.arrival_time, alone, rtol=1e-9)
    alone = ttft_alone(prompt_len, preset.config, preset.step_time)
    np.testing.assert_allclose(result.first_token_ts - result.arrival_time, alone, rtol=1e-9)


def test_a_prompt_of_two_chunks_by_hand():
    config = EngineConfig(max_num_seqs=1, max_num_batched_tokens=8)
    step_time = StepTime(a=1.0, b1=2.0, b2=4.0, t0=6, c=16.0, d=32.0, e=64.0, f=128.0)

    # 8 tokens, then 3 over 8: A = 8 * 4, then 3 * (8 + 1.5).
    ttft = (1 + 2 * 6 + 4 * 2 + 64 * 32 + 128) + (1 + 2 * 3 + 64 * 28.5 + 128)
    assert ttft_alone([11], config, step_time) == [ttft]
    # Two decodes over 11 and 12 tokens.
    assert e2el_alone([11], [3], config, step_time) == [ttft + 2 * (1 + 2 + 16) + 32 * (11 + 12)]


def test_a_predicted_length_need_not_be_whole():
    preset = get_preset("llama-3.1-8b/h100_sxm")
    low, middle, high = e2el_alone([100] * 3, [10, 10.5, 11], preset.config, preset.step_time)

    assert low < middle < high

"""What policies know of output lengths: nothing, a fair guess, or everything."""

import math

import numpy as np
import pytest

from queuesmith.errors import ConfigError
from queuesmith.traces import MAX_TOKENS, Trace
from queuesmith.windows.predictions import OutputLengthKnowledge


def make_trace(output_len):
    return Trace(np.arange(len(output_len)) * 1.0, np.full(len(output_len), 9), output_len)


LONG = make_trace(np.full(40_000, 1_000))


def test_nothing_is_nan_and_exact_is_the_truth():
    trace = make_trace([3, 1, 8])

    assert np.isnan(OutputLengthKnowledge("none").predict(trace, 0)).all()
    assert OutputLengthKnowledge("exact").predict(trace, 0).tolist() == [3.0, 1.0, 8.0]


def test_noise_is_right_in_the_median_and_as_wide_as_it_says():
    predicted = OutputLengthKnowledge("noisy").predict(LONG, 1)

    assert np.median(predicted) == pytest.approx(1_000, rel=0.01)
    assert np.log(predicted / 1_000).std() == pytest.approx(math.sqrt(math.log(1.04)), rel=0.02)
    assert predicted.std() / predicted.mean() == pytest.approx(0.20, abs=0.005)


def test_predictions_are_whole_tokens_of_at_least_one():
    predicted = OutputLengthKnowledge("noisy", 2.0).predict(make_trace([1] * 1_000), 0)

    assert (predicted >= 1).all()
    assert (predicted == np.round(predicted)).all()


def test_noise_follows_one_draw_in_order_of_arrival():
    trace = make_trace([500, 700, 900])
    noise = np.random.default_rng(7).standard_normal(3)

    predicted = OutputLengthKnowledge("noisy", 0.5).predict(trace, 7)

    assert predicted.tolist() == [
        round(length * math.exp(0.5 * z)) for length, z in zip([500, 700, 900], noise, strict=True)
    ]
    assert predicted.tolist() != OutputLengthKnowledge("noisy", 0.5).predict(trace, 8).tolist()


def test_no_noise_at_sigma_zero_and_no_overflow_at_a_huge_one():
    trace = make_trace([1, 5, 1_000])

    assert OutputLengthKnowledge("noisy", 0.0).predict(trace, 0).tolist() == [1, 5, 1_000]
    wild = OutputLengthKnowledge("noisy", 1e6).predict(trace, 0)
    assert ((wild == 1) | (wild == MAX_TOKENS)).all()


@pytest.mark.parametrize(
    ("text", "knowledge"),
    [
        ("none", OutputLengthKnowledge("none")),
        ("exact", OutputLengthKnowledge("exact")),
        ("noisy", OutputLengthKnowledge("noisy", 0.198)),
        ("noisy:0.5", OutputLengthKnowledge("noisy", 0.5)),
    ],
)
def test_what_the_command_line_may_say(text, knowledge):
    assert OutputLengthKnowledge.parse(text) == knowledge


@pytest.mark.parametrize(
    "text", ["", "perfect", "noisy:", "noisy:x", "noisy:-1", "noisy:nan", "noisy:inf", "exact:1"]
)
def test_what_it_may_not_say(text):
    with pytest.raises(ConfigError, match=r"none, exact, noisy or noisy:SIGMA|sigma must be"):
        OutputLengthKnowledge.parse(text)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="none, noisy or exact"):
        OutputLengthKnowledge("some")


def test_each_kind_describes_itself_in_its_own_words():
    sentences = [OutputLengthKnowledge(kind).describe() for kind in ("none", "noisy", "exact")]

    assert "nothing" in sentences[0]
    assert "20%" in sentences[1]
    assert "exactly" in sentences[2]
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)


def test_published_predictions_have_the_default_noise(traces_dir):
    """LSSP's frozen windows carry predictions drawn by the formula that the default follows."""
    path = traces_dir / "lssp_windows" / "bailian_qwen.csv"
    table = np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")
    long = table["output_tokens"] > 100  # where rounding to whole tokens is small beside the noise
    noise = np.log(table["predicted_output_tokens"][long] / table["output_tokens"][long])

    ours = OutputLengthKnowledge("noisy").predict(make_trace(table["output_tokens"][long]), 0)

    assert noise.std() == pytest.approx(0.198, rel=0.06)
    assert np.log(ours / table["output_tokens"][long]).std() == pytest.approx(noise.std(), rel=0.1)

"""What an operator sets reaches the plug-in, and mistakes are told in one line."""

import math

import pytest

from queuesmith.deploy.options import PluginOptions
from queuesmith.errors import ConfigError


def test_the_environment_is_read():
    options = PluginOptions.read(
        {
            "QUEUESMITH_POLICY": "sjf",
            "QUEUESMITH_SHADOW": "1",
            "QUEUESMITH_MAX_WAIT": "inf",
            "QUEUESMITH_MAX_FAULTS": "7",
        }
    )

    assert options == PluginOptions("sjf", shadow=True, max_wait=math.inf, max_faults=7)


def test_additional_config_has_the_last_word():
    options = PluginOptions.read(
        {"QUEUESMITH_POLICY": "sjf", "QUEUESMITH_MAX_WAIT": "5"},
        {"queuesmith": {"policy": "hrrn", "shadow": False}, "other": 1},
    )

    assert options == PluginOptions("hrrn", max_wait=5.0)


def test_what_is_written_to_the_environment_is_read_back():
    options = PluginOptions("mine.py", shadow=True, max_wait=2.5, record="a b.jsonl")

    assert PluginOptions.read(options.environment()) == options


@pytest.mark.parametrize(
    ("environment", "additional", "message"),
    [
        ({}, {}, "no policy is named: set QUEUESMITH_POLICY"),
        ({}, {"queuesmith": "sjf"}, "must be a mapping"),
        ({}, {"queuesmith": {"polic": "sjf"}}, "Did you mean 'policy'"),
        ({"SHADOW": "perhaps"}, {}, "shadow must be true or false, got 'perhaps'"),
        ({"MAX_WAIT": "-1"}, {}, "max_wait must be positive seconds"),
        ({"MAX_WAIT": "nan"}, {}, "max_wait must be a number"),
        ({"TIME_LIMIT": "fast"}, {}, "time_limit must be a number, got 'fast'"),
        ({"MAX_FAULTS": "1.5"}, {}, "max_faults must be a whole number"),
        ({"MAX_FAULTS": "0"}, {}, "max_faults must be at least 1"),
    ],
)
def test_mistakes_are_refused(environment, additional, message):
    variables = {f"QUEUESMITH_{name}": value for name, value in environment.items()}
    if environment:
        variables["QUEUESMITH_POLICY"] = "sjf"
    with pytest.raises(ConfigError) as caught:
        PluginOptions.read(variables, additional)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

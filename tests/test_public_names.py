"""What ``import queuesmith`` offers, and what it costs."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import public_api
import queuesmith
from queuesmith import errors
from queuesmith.errors import QueuesmithError, UnknownPolicy, did_you_mean


def test_all_is_sorted_and_every_name_is_there():
    assert queuesmith.__all__ == sorted(queuesmith.__all__)
    assert len(set(queuesmith.__all__)) == len(queuesmith.__all__)
    for name in queuesmith.__all__:
        assert getattr(queuesmith, name) is not None
    assert dir(queuesmith) == queuesmith.__all__


def test_names_are_those_of_their_modules():
    homes = queuesmith._HOME

    assert set(homes) == set(queuesmith.__all__) - {"__version__"}
    for name, module in homes.items():
        assert getattr(queuesmith, name) is getattr(importlib.import_module(module), name)


def test_every_public_name_has_a_docstring():
    for name in set(queuesmith.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(queuesmith, name))


def members_without_docstring(found):
    """Return the methods and properties of a class that say nothing about themselves."""
    return [
        member
        for member in public_api.members(found)
        if (value := inspect.getattr_static(found, member, None)) is not None
        and isinstance(value, property | classmethod | staticmethod | FunctionType)
        and not inspect.getdoc(value)
    ]


@pytest.mark.parametrize(
    "name", [name for name in queuesmith.__all__ if inspect.isclass(getattr(queuesmith, name))]
)
def test_every_method_of_a_public_class_has_a_docstring(name):
    assert members_without_docstring(getattr(queuesmith, name)) == []


def test_the_public_interface_is_the_one_written_down():
    """A name, parameter or default that changes is a change for users, and must be meant."""
    written = Path(public_api.__file__).with_suffix(".txt").read_text()

    assert public_api.described() == written, (
        "if this is meant, tell users in CHANGELOG.md and renew the list: "
        "python tests/public_api.py > tests/public_api.txt"
    )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'queuesmith' has no attribute 'simulat'"):
        _ = queuesmith.simulat


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev)\d+)?", queuesmith.__version__)


def modules_after(statement):
    """Return the names of all modules that a fresh interpreter has after a statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import queuesmith; dir(queuesmith)", {"numpy", "numba", "pyarrow", "scipy", "plotly"}),
        # What a serving process needs of a policy: no compiler.
        ("from queuesmith import Policy, get_policy; get_policy('sjf')", {"numba", "scipy"}),
        ("from queuesmith import EngineConfig, Slo", {"numpy", "numba", "pyarrow"}),
        ("from queuesmith import Trace, load_trace", {"numba", "plotly"}),
    ],
)
def test_importing_costs_no_more_than_it_must(statement, absent):
    loaded = modules_after(statement)

    assert "queuesmith" in loaded
    assert not loaded & absent


# Errors


def error_classes():
    return [
        found
        for _, found in inspect.getmembers(errors, inspect.isclass)
        if found.__module__ == errors.__name__
    ]


def test_every_error_is_in_the_tree_of_the_docstring():
    drawn = re.findall(r"^ *[*x+] (\w+) ", errors.__doc__, re.MULTILINE)

    assert sorted(drawn) == sorted(found.__name__ for found in error_classes())


def test_the_tree_is_drawn_as_the_classes_derive():
    parents = {}
    for mark, name in re.findall(r"^ *([*x+]) (\w+) ", errors.__doc__, re.MULTILINE):
        parents[mark] = name
        above = {"x": "*", "+": "x"}.get(mark)
        if above:
            assert issubclass(getattr(errors, name), getattr(errors, parents[above]))


def test_one_root_catches_all_and_built_in_parents_help():
    assert all(issubclass(found, QueuesmithError) for found in error_classes())
    assert issubclass(errors.TraceError, ValueError)
    assert issubclass(errors.PolicyError, ValueError)
    assert issubclass(errors.UnknownPolicy, LookupError)
    assert issubclass(errors.EngineError, RuntimeError)


def test_an_unknown_policy_keeps_what_was_asked_and_what_is_known():
    error = UnknownPolicy("sfj", ["sjf", "fcfs"])

    assert (error.name, error.known) == ("sfj", ["fcfs", "sjf"])
    assert "Did you mean 'sjf'?" in str(error)


def test_a_hint_is_given_only_for_what_is_close():
    assert did_you_mean("sfj", ["sjf", "fcfs"]) == " Did you mean 'sjf'?"
    assert did_you_mean("something else", ["sjf", "fcfs"]) == ""

"""Every example in a docstring runs, and gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

import queuesmith

BUILTIN = "queuesmith.policies.builtin."
MODULES = [
    module.name
    for module in pkgutil.walk_packages(queuesmith.__path__, "queuesmith.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    try:
        module = importlib.import_module(name)
    except ImportError:
        if not name.startswith(BUILTIN):
            raise
        pytest.skip("a policy is a file for the loader; this one cannot be imported as a module")

    assert doctest.testmod(module).failed == 0


def test_the_examples_are_found():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(f"queuesmith.{name}") for name in ("stats", "numbers")]

    assert all(sum(len(test.examples) for test in finder.find(module)) > 5 for module in modules)

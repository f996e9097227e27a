"""The examples: each prints exactly what the file beside it says.

``examples/NAME.py`` is run in an empty folder and compared with ``examples/NAME.out``; after an
intended change, renew with ``python examples/NAME.py > examples/NAME.out``.
"""

import difflib
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Packages that examples show, and that nothing else needs.
NEEDS = {"evolve_with_gepa": "gepa", "evolve_with_openevolve": "openevolve"}


def run_example(script: Path, folder: Path) -> str:
    """Return how the output of a script differs from the expected one; empty when it does not."""
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{script.name} exited with {done.returncode}:\n{done.stderr}"
    expected = script.with_suffix(".out").read_text()
    return "".join(
        difflib.unified_diff(
            expected.splitlines(keepends=True),
            done.stdout.splitlines(keepends=True),
            fromfile=f"{script.stem}.out",
            tofile="printed",
        )
    )


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda script: script.stem)
def test_an_example_prints_what_it_says(script, tmp_path):
    if package := NEEDS.get(script.stem):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    difference = run_example(script, tmp_path)

    assert not difference, "\n" + difference


def test_every_example_has_its_output_and_every_output_its_example():
    scripts = {script.stem for script in EXAMPLES.glob("*.py")}
    outputs = {output.stem for output in EXAMPLES.glob("*.out")}

    assert scripts, "there are no examples"
    assert scripts == outputs


def test_another_output_is_shown_line_by_line(tmp_path):
    script = tmp_path / "greet.py"
    script.write_text("print('one')\nprint('too')\n")
    script.with_suffix(".out").write_text("one\ntwo\n")

    difference = run_example(script, tmp_path)

    assert "-two\n+too\n" in difference


def test_an_example_that_fails_is_reported_with_its_error(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text("raise SystemExit('out of luck')\n")
    script.with_suffix(".out").write_text("")

    with pytest.raises(AssertionError, match="out of luck"):
        run_example(script, tmp_path)

"""Run a telling part of the tests with other Pythons and with other dependencies.

    python requirements/matrix.py [COMBINATION ...]

A combination is a Python and a choice of dependencies: `3.11-lowest` takes the lowest version of
each that pyproject.toml allows, `3.13-newest` the newest that pip finds, `3.12-pinned` those of
constraints.txt. Without arguments: lowest on the first Python supported, newest on each one found.

Each gets the built wheel and the dependency group `test` in an environment that is thrown away.
Needs a network, about 1 GB in the folder for temporary files and some minutes per combination.
Prints a table in Markdown; exits with 1 if anything failed.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
CHOICES = ["lowest", "newest", "pinned"]
SECONDS = 1800  # of one combination's tests

#: Fast files that touch every dependency: the compiled engine against the reference engine, the
#: readers, the statistics, whole commands, pages, the fence around candidates, and the extras.
TESTS = [
    "tests/backends/test_dask.py",
    "tests/backends/test_pools.py",
    "tests/backends/test_ray.py",
    "tests/engine/test_simulate.py",
    "tests/engine/test_step_rules.py",
    "tests/cli/test_compare.py",
    "tests/cli/test_main.py",
    "tests/cli/test_simulate.py",
    "tests/evolve/test_archive.py",
    "tests/evolve/test_llm.py",
    "tests/evolve/test_sandbox.py",
    "tests/evolve/test_scale.py",
    "tests/policies/test_policy.py",
    "tests/policies/test_syntax.py",
    "tests/report/test_report_figures.py",
    "tests/report/test_report_page.py",
    "tests/study/test_run.py",
    "tests/evaluation/test_evaluate.py",
    "tests/test_metrics.py",
    "tests/test_public_names.py",
    "tests/traces/test_formats.py",
    "tests/traces/test_own_formats.py",
    "tests/traces/test_readers.py",
]
#: Minutes of these files that say nothing of versions: much memory, many runs.
LEFT_OUT = [
    "tests/engine/test_simulate.py::test_a_million_requests_take_less_than_a_gibibyte",
    "tests/cli/test_compare.py::test_the_panel_is_compared_by_default_and_all_on_request",
]


def main(combinations: list[str]) -> int:
    """Run the combinations, print their table; 0 if nothing failed, 2 for an unknown one."""
    pythons = {version: path for version in PYTHONS if (path := find_python(version))}
    if not combinations:
        combinations = [f"{PYTHONS[0]}-lowest", *(f"{version}-newest" for version in pythons)]
    for combination in combinations:
        version, _, choice = combination.partition("-")
        if version not in pythons or choice not in CHOICES:
            known = ", ".join(f"{version}-{choice}" for version in pythons for choice in CHOICES)
            print(f"{combination!r} is none of the combinations at hand: {known}", file=sys.stderr)
            return 2
    columns = {}
    for combination in combinations:
        version, _, choice = combination.partition("-")
        print(f"{combination} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="queuesmith-matrix-") as folder:
            columns[combination] = test(pythons[version], choice, Path(folder))
    print(table(columns))
    return int(any(column["failed"] != "0" for column in columns.values()))


def find_python(version: str) -> str | None:
    """Return the path of a Python that runs, on the PATH or made by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        if path is not None and says_version(str(path)).startswith(f"{version}."):
            return str(path)
    return None


def says_version(python: str) -> str:
    """Return the version a Python prints; empty if it does not run."""
    program = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip()


def requirements() -> list[str]:
    """Return what the package and its tests require, as pyproject.toml says it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]


def lowest(requirement: str) -> str:
    """Turn ``name>=1.2`` into ``name==1.2``."""
    found = re.fullmatch(r"([\w.-]+(?:\[[\w,]+\])?)>=([\w.]+)", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} has no lowest version: write NAME>=VERSION")
    return "==".join(found.groups())


def test(python: str, choice: str, folder: Path) -> dict[str, str]:
    """Make one environment and run the tests in it; return versions and counts."""
    venv = install(python, choice, folder)
    report = folder / "tests.xml"
    pytest = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--junitxml={report}"]
    start = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):  # the other columns are not lost to it
        run(venv, *pytest, *TESTS, *(f"--deselect={name}" for name in LEFT_OUT), check=False)
    minutes = (time.monotonic() - start) / 60
    return {
        "Python": says_version(venv),
        **versions(venv),
        **counts(report),
        "minutes": f"{minutes:.1f}",
    }


def install(python: str, choice: str, folder: Path) -> str:
    """Build the wheel, install it and what the tests need; return the environment's Python."""
    venv = str(folder / "venv" / "bin" / "python")
    pip = [venv, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(python, "-m", "venv", str(folder / "venv"))
    run(*pip, "install", "--upgrade", "pip>=25.1")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in chosen(choice)))
    run(*pip, "install", "--constraint", str(constraints), str(wheel), *requirements())
    return venv


def run(*command: str, check: bool = True) -> None:
    """Run a command in the tree; what it prints is shown."""
    # The same examples of hypothesis in every column, and no trace of this run in the tree.
    environment = {**os.environ, "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS, check=check)


def chosen(choice: str) -> list[str]:
    """Return the constraints that make pip take the lowest, the pinned or the newest versions."""
    if choice == "lowest":
        return [lowest(line) for line in requirements()]
    return (ROOT / "constraints.txt").read_text().splitlines() if choice == "pinned" else []


def versions(python: str) -> dict[str, str]:
    """Return what is installed of what this package requires."""
    names = [re.split(r"[>\[]", line)[0] for line in requirements()]
    program = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    done = subprocess.run(
        [python, "-c", program, *names], capture_output=True, text=True, check=True
    )
    return dict(zip(names, done.stdout.split(), strict=True))


def counts(report: Path) -> dict[str, str]:
    """Read pytest's report; tests that were not even collected count as failed."""
    if not report.exists():  # pytest itself was killed, or ran out of time
        return {"passed": "0", "failed": "all", "skipped": "0"}
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, failures, errors, skipped = (
        int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return {
        "passed": str(total - failed - skipped),
        "failed": str(failed),
        "skipped": str(skipped),
    }


def table(columns: dict[str, dict[str, str]]) -> str:
    """Return a Markdown table with a column per combination."""
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(column[row] for column in columns.values())] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

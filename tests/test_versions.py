"""The versions that are promised were run: bounds, pins, script and table agree."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
RAN = ROOT / "docs" / "reference" / "versions.md"
COUNTS = {"passed", "failed", "skipped", "minutes"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def matrix():
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "requirements" / "matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ran() -> dict[str, dict[str, str]]:
    """Return the table of what was run: its columns by combination, in each the cells by row."""
    lines = [line for line in RAN.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next(number for number, row in enumerate(rows) if row[0] == "minutes")
    (_, *combinations), _, *body = rows[: end + 1]
    return {
        combination: {row[0]: row[column] for row in body}
        for column, combination in enumerate(combinations, start=1)
    }


def grouped(*groups: str) -> list[Requirement]:
    """Return what the package and the groups require, groups within groups included."""
    lines = list(PYPROJECT["project"]["dependencies"])
    waiting = list(groups)
    while waiting:
        for entry in PYPROJECT["dependency-groups"][waiting.pop()]:
            if isinstance(entry, str):
                lines.append(entry)
            else:
                waiting.append(entry["include-group"])
    return [Requirement(line) for line in lines]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_the_lowest_versions_that_are_allowed_were_run(matrix, ran):
    (lowest,) = [column for name, column in ran.items() if name.endswith("-lowest")]
    allowed = dict(matrix.lowest(line).split("==") for line in matrix.requirements())

    assert set(allowed) == set(lowest) - COUNTS - {"Python"}
    for name, version in allowed.items():
        assert Version(lowest[name]) == Version(version), name


def test_nothing_failed_in_the_table(ran):
    for column in ran.values():
        assert column["failed"] == "0"
        assert int(column["passed"]) > 20 * int(column["skipped"])


def test_every_python_that_is_claimed_was_run(ran):
    claimed = [
        line.removeprefix("Programming Language :: Python :: ")
        for line in PYPROJECT["project"]["classifiers"]
        if re.search(r":: Python :: 3\.\d+$", line)
    ]

    assert {f"{version}-newest" for version in claimed} <= set(ran)
    assert f"{min(claimed, key=Version)}-lowest" in ran
    assert all(column["Python"].startswith(name.partition("-")[0]) for name, column in ran.items())


def test_every_requirement_names_its_lowest_version(matrix):
    assert all(Version(matrix.lowest(line).split("==")[1]) for line in matrix.requirements())


def test_everything_that_is_required_is_pinned_within_its_bounds():
    pinned = pins()
    for requirement in grouped("test", "lint"):
        version = pinned[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, requirement


def test_no_pin_is_there_twice():
    lines = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    names = [canonicalize_name(name) for name in lines]

    assert sorted(names) == sorted(set(names))


def test_the_tests_of_the_matrix_are_there(matrix):
    assert [name for name in matrix.TESTS if not (ROOT / name).is_file()] == []


def test_what_the_matrix_leaves_out_is_there_to_be_left_out(matrix):
    for name in matrix.LEFT_OUT:
        file, _, function = name.partition("::")
        assert file in matrix.TESTS
        assert f"\ndef {function}(" in (ROOT / file).read_text()


def test_the_pythons_that_are_claimed_are_allowed_and_can_be_run(matrix):
    claimed = [
        line.removeprefix("Programming Language :: Python :: ")
        for line in PYPROJECT["project"]["classifiers"]
        if re.search(r":: Python :: 3\.\d+$", line)
    ]
    allowed = SpecifierSet(PYPROJECT["project"]["requires-python"])
    oldest = min(map(Version, claimed))

    assert set(claimed) <= set(matrix.PYTHONS)
    assert all(f"{version}.0" in allowed for version in matrix.PYTHONS)
    assert f"3.{oldest.minor - 1}.99" not in allowed


def test_a_requirement_without_a_lowest_version_is_refused(matrix):
    assert matrix.lowest("numpy>=2.1") == "numpy==2.1"
    with pytest.raises(ValueError, match="'numpy' has no lowest version"):
        matrix.lowest("numpy")


def test_the_table_has_a_column_for_each_combination(matrix):
    columns = {
        "3.11-lowest": {"Python": "3.11.7", "numpy": "2.1.0"},
        "3.12-newest": {"Python": "3.12.1", "numpy": "2.5.5"},
    }

    assert matrix.table(columns).splitlines() == [
        "|  | 3.11-lowest | 3.12-newest |",
        "| --- | --- | --- |",
        "| Python | 3.11.7 | 3.12.1 |",
        "| numpy | 2.1.0 | 2.5.5 |",
    ]


def test_tests_that_were_not_collected_count_as_failed(matrix, tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>'
    )

    assert matrix.counts(report) == {"passed": "3", "failed": "3", "skipped": "3"}


def test_tests_that_take_too_long_have_failed_and_cost_no_other_column(
    matrix, tmp_path, monkeypatch
):
    def hang(*command, check=True):
        raise subprocess.TimeoutExpired(command, matrix.SECONDS)

    monkeypatch.setattr(matrix, "install", lambda *_: "python")
    monkeypatch.setattr(matrix, "says_version", lambda _: "3.12.1")
    monkeypatch.setattr(matrix, "versions", lambda _: {"numpy": "2.5.5"})
    monkeypatch.setattr(matrix, "run", hang)
    column = matrix.test("python", "newest", tmp_path)

    assert (column["passed"], column["failed"], column["numpy"]) == ("0", "all", "2.5.5")


def test_a_run_that_left_no_report_has_failed(matrix, tmp_path):
    assert matrix.counts(tmp_path / "none.xml")["failed"] == "all"

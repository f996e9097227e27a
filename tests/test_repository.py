"""What holds for the repository as a whole: versions agree, and nothing foreign is committed."""

import re
import subprocess
from pathlib import Path

import pytest

import queuesmith._version

ROOT = Path(__file__).parents[1]
REPORT = re.compile(r"results/\w+/(\w+/)?\w+\.html")
MAX_BYTES = 1 << 20

# Paths that exist on one machine only. Built from parts, or this file would be found as well.
MACHINE_PATH = re.compile(rf"(?<![\w.\-/])/({'|'.join(('work', 'root', 'home', 'Users'))})/")
OUTSIDE = "../" + "shared"
#: The only file that may look outside: it finds the traces a test machine has.
LOOKS_OUTSIDE = {".ci/run"}


@pytest.fixture(scope="module")
def committed() -> list[str]:
    """Return the files git knows or would add, by their path in the repository."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def foreign_paths(name: str, text: str) -> list[str]:
    """Return the lines of a file that name a path of some machine."""
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line) or (OUTSIDE in line and name not in LOOKS_OUTSIDE)
    ]


def citation_fields() -> dict[str, str]:
    """Return the plain ``key: value`` lines at the top level of CITATION.cff."""
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    pairs = [line.split(":", 1) for line in lines if re.match(r"[\w-]+: *\S", line)]
    return {key: value.strip().strip('"') for key, value in pairs}


def test_the_change_log_has_this_version():
    released = re.sub(r"\.dev\d+$", "", queuesmith._version.__version__)
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)

    assert next(one for one in headings if one != "Unreleased") == released


def test_the_citation_is_of_this_version():
    fields = citation_fields()

    assert fields["cff-version"] == "1.2.0"
    assert fields["version"] == queuesmith._version.__version__
    assert fields["license"] == "Apache-2.0"


def test_no_file_is_large(committed):
    large = [
        name
        for name in committed
        # A report carries the plotly.js that draws it, 5 MB, so that it opens offline.
        if (ROOT / name).stat().st_size > (8_000_000 if REPORT.fullmatch(name) else MAX_BYTES)
    ]

    assert large == []


def test_no_file_names_a_path_of_some_machine(committed):
    found = []
    for name in committed:
        try:
            found += foreign_paths(name, (ROOT / name).read_text())
        except UnicodeDecodeError:
            continue  # not text

    assert found == []


@pytest.mark.parametrize(
    ("line", "is_foreign"),
    [
        ("open('/{}/trace.csv')".format("home/me"), True),
        ("cd /{}/main".format("work"), True),
        (f"ls {OUTSIDE}/traces", True),
        ("https://example.org/{}/index".format("home"), False),
        ("framework/{}/order".format("work"), False),
        ("~/traces", False),
    ],
)
def test_paths_of_a_machine_are_told_from_others(line, is_foreign):
    assert bool(foreign_paths("README.md", line)) == is_foreign


def test_only_the_ci_script_may_look_outside():
    line = f"ls {OUTSIDE}/traces"

    assert foreign_paths(".ci/run", line) == []
    assert foreign_paths("ci/run", line) != []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/background/design.md"])
def test_files_that_a_page_names_are_there(page):
    named = re.findall(
        r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|md))?|[a-z_]+\.py)`", (ROOT / page).read_text()
    )
    places = [ROOT, ROOT / "src" / "queuesmith"]

    assert len(named) > 10
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert missing in ([], ["mine.py"])  # the example's

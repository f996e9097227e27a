"""What a user installs: the archives that are published, and the package in a clean environment.

The source archive is built here, the wheel out of that archive, as `python -m build` does it, and
the wheel goes into an environment outside the tree. Nothing is downloaded: the environment finds
this package's dependencies where these tests find them.
"""

import email
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import queuesmith

ROOT = Path(__file__).parents[1]
VERSION = queuesmith.__version__
COMPILED = {".pyc", ".pyo", ".nbi", ".nbc"}

#: What a wheel without its data would still import without, by the code that reads it.
DATA = [
    "queuesmith/py.typed",
    "queuesmith/engine/presets/step_times.toml",
    "queuesmith/evolve/configs/quick.toml",
    "queuesmith/policies/builtin/sjf.py",
    "queuesmith/report/atlas.css",
    "queuesmith/report/compare.html",
    "queuesmith/report/frame.html",
    "queuesmith/report/frame.js",
    "queuesmith/report/page.js",
    "queuesmith/study/atlas_summary.json",
    "queuesmith/study/designs/lssp.toml",
    "queuesmith/study/published.toml",
    "queuesmith/traces/catalog.toml",
    "queuesmith/traces/models/azure_2023_conv.toml",
]

USER_PROGRAM = """
import queuesmith as qs

trace: qs.Trace = qs.load_trace("azure_2023_conv@model", num_requests=200)
result: qs.Result = qs.simulate(trace, policy=qs.get_policy("sjf"))
comparison: qs.Comparison = qs.compare(trace, policies=["fcfs", "sjf"])
names: list[str] = list(qs.policy_names())
limits = qs.Slo(ttft=1.0)
print(len(result.requests), comparison, names, limits, qs.__version__)
"""
#: One mistake a line, which the types must find.
WRONG_LINES = [
    'qs.simulate(qs.load_trace("a.csv"), policy=3)',
    'qs.Slo(ttft="one second")',
    'qs.load_trace("a.csv", num_request=200)',
    "qs.simulat",
    'text: str = qs.load_trace("a.csv")',
]


def build(target: str, tree: Path, folder: Path) -> None:
    """Build one archive of a source tree without isolation, hence without a network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder],
        cwd=tree,
        check=True,
        capture_output=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed; the dependency group `test` has it")
    folder = tmp_path_factory.mktemp("sdist")
    build("sdist", ROOT, folder)
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    with tarfile.open(sdist) as archive:
        archive.extractall(tree, filter="data")
    folder = tmp_path_factory.mktemp("wheel")
    build("wheel", tree / f"queuesmith-{VERSION}", folder)
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """Install the wheel into a fresh environment; return the folder with its programs."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed in this environment")
    venv = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=300)
    programs = venv / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
    subprocess.run(
        [*pip, programs / "python", "install", "--no-deps", "--no-index", "--quiet", wheel],
        check=True,
        timeout=300,
    )
    # Dependencies come from here. A .pth inside that folder, as an editable install has, is not
    # followed from a folder named by another .pth; the tests below check that.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    ours = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in ours))
    return programs


@pytest.fixture
def elsewhere(environment, tmp_path):
    """Return a function that runs one of the environment's programs, outside the source tree."""

    def run(program: str, *arguments: str, **more) -> subprocess.CompletedProcess[str]:
        # A home of its own: policies compiled before must not help.
        clean = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
        return subprocess.run(
            [environment / program, *arguments],
            cwd=tmp_path,
            env={**clean, "HOME": str(tmp_path), **more},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def source_files() -> set[str]:
    """Return the files of the package in the tree, without what Python and numba left there."""
    package = ROOT / "src" / "queuesmith"
    return {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in COMPILED
    }


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel):
    metadata = f"queuesmith-{VERSION}.dist-info"
    inside = {name for name in names_in(wheel) if PurePosixPath(name).parts[0] != metadata}

    assert inside == source_files()
    assert set(DATA) <= inside


def test_the_source_archive_has_what_a_build_needs_and_no_results(sdist):
    with tarfile.open(sdist) as archive:
        files = {member.name for member in archive.getmembers() if member.isfile()}
    top = f"queuesmith-{VERSION}/"

    assert {name.removeprefix(f"{top}src/") for name in files if "/src/" in name} == source_files()
    assert {name.removeprefix(top) for name in files if "/src/" not in name} == {
        ".gitignore",  # hatchling's, which reads it
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "constraints.txt",
        "pyproject.toml",
    }
    assert sdist.stat().st_size < 2_000_000


def test_the_metadata_is_that_of_pyproject(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        folder = f"queuesmith-{VERSION}.dist-info"
        fields = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        scripts = archive.read(f"{folder}/entry_points.txt").decode()
    required = [line for line in fields.get_all("Requires-Dist") if "extra ==" not in line]

    assert fields["Version"] == VERSION
    assert set(fields["Requires-Python"].split(",")) == set(project["requires-python"].split(","))
    assert sorted(required) == sorted(project["dependencies"])
    assert fields.get_all("Provides-Extra") == sorted(project["optional-dependencies"])
    assert fields["Description-Content-Type"] == "text/markdown"
    assert "queuesmith = queuesmith.cli:main" in scripts


def test_the_installed_package_is_not_the_tree(elsewhere, environment):
    done = elsewhere("python", "-c", "import queuesmith; print(queuesmith.__file__)")

    assert Path(done.stdout.strip()).is_relative_to(environment.parent), done.stderr


def test_the_installed_command_says_its_version(elsewhere):
    program = "from importlib.metadata import version; print(version('queuesmith'))"

    assert elsewhere("queuesmith", "--version").stdout == f"{VERSION}\n"
    assert elsewhere("python", "-c", program).stdout == f"{VERSION}\n"


def test_every_help_is_shown_where_it_is_installed(elsewhere):
    program = """
from queuesmith.cli import app, run

def show(app, path):
    print("HELP", *path, run([*path, "--help"]), flush=True)
    for name in app:
        if not name.startswith("-"):
            show(app[name], [*path, name])

show(app, [])
"""
    done = elsewhere("python", "-c", program)
    shown = re.findall(r"^HELP (.*)$", done.stdout, re.MULTILINE)

    assert done.returncode == 0, done.stderr
    assert len(shown) >= 20
    assert {"compare 0", "plan 0", "study run 0", "evolve judge 0", "traces fit 0"} <= set(shown)
    assert all(line.split()[-1] == "0" for line in shown)
    assert done.stdout.count("Usage: queuesmith") == len(shown)


def test_every_public_name_is_there_where_it_is_installed(elsewhere):
    program = "import queuesmith as qs; print(*(n for n in qs.__all__ if getattr(qs, n, None)))"

    assert elsewhere("python", "-c", program).stdout.split() == queuesmith.__all__


def test_the_packaged_data_is_read_where_it_is_installed(elsewhere):
    assert "azure_2023_conv@model" in elsewhere("queuesmith", "traces", "list").stdout
    assert "sjf" in elsewhere("queuesmith", "policies").stdout
    assert "lssp_fixed" in elsewhere("queuesmith", "study", "list").stdout
    advice = elsewhere("queuesmith", "study", "advise", "--trace", "azure_2023_conv@model")
    assert advice.returncode == 0, advice.stderr


def test_a_comparison_runs_where_it_is_installed(elsewhere, tmp_path):
    arguments = "compare azure_2023_conv@model --num-requests 2000 --windows 2 --loads heavy"
    arguments += " --policies fcfs,sjf --workers 1 --json --output out"

    done = elsewhere("queuesmith", *arguments.split())

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["version"] == VERSION
    (report,) = (tmp_path / "out").glob("*.html")
    assert report.stat().st_size > 1_000_000  # plotly.js is inside, so that it opens offline


def check_types(environment: Path, program: Path) -> list[str]:
    """Return what mypy finds in a program that uses the installed package."""
    pytest.importorskip("mypy", reason="mypy is not installed; the dependency group `lint` has it")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    done = subprocess.run(
        [*mypy, "--python-executable", environment / "python", program.name],
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_a_user_program_is_checked_against_the_types_of_the_package(environment, tmp_path):
    program = tmp_path / "program.py"
    wrong = [f"{line}  # wrong" for line in WRONG_LINES]
    program.write_text("\n".join([USER_PROGRAM, *wrong]) + "\n")

    found = check_types(environment, program)

    first = USER_PROGRAM.count("\n") + 2
    lines = {int(line.split(":")[1]) for line in found if ": error:" in line}
    assert lines == set(range(first, first + len(WRONG_LINES))), "\n".join(found)

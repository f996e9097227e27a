"""The documentation as a site: it builds without a warning, is whole, and needs no other host."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from rich.console import Console

import queuesmith
from queuesmith.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md"))
CLI_PAGE = DOCS / "reference" / "cli.md"
#: What a browser fetches by itself; a link that is clicked is another matter.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@dataclass
class Html:
    """What the checks need of a built page."""

    text: str
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    prose: str = ""
    num_formulas: int = 0


class Reader(HTMLParser):
    """Takes a page apart."""

    def __init__(self, page: Html):
        super().__init__()
        self.page, self.code = page, 0
        self.feed(page.text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.code += tag in ("code", "pre", "script", "style", "math")
        self.page.num_formulas += tag == "math"
        if values.get("id"):
            self.page.ids.add(values["id"])
        if tag == "a" and values.get("href"):
            self.page.links.append(values["href"])
        if values.get(FETCHED.get(tag, "")):
            self.page.fetched.append(values[FETCHED[tag]])

    def handle_endtag(self, tag):
        self.code -= tag in ("code", "pre", "script", "style", "math")

    def handle_data(self, data):
        if not self.code:
            self.page.prose += data


def read_html(text: str) -> Html:
    """Return what a page is made of."""
    page = Html(text)
    Reader(page)
    return page


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a folder that has mkdocs.yml, docs and src, as `make docs` does."""
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    environment = {"PYTHONPATH": str(folder / "docs" / "tools"), "PATH": "", "HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def sources(folder: Path) -> Path:
    """Copy what the site is made of, so that a test never writes into the repository."""
    if not find_spec("zensical"):
        pytest.skip("Zensical is not installed; `make docs` installs it")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src").symlink_to(ROOT / "src")
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = sources(tmp_path_factory.mktemp("site"))
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def html(built):
    """Every page of the site, by its path in it."""
    return {page.relative_to(built): read_html(page.read_text()) for page in built.rglob("*.html")}


def nav_files(nav) -> list[str]:
    """Return the files of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [file for entry in entries for file in nav_files(entry)]


def test_the_navigation_has_every_page_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]

    assert sorted(nav_files(nav)) == [page.as_posix() for page in PAGES]


def test_every_page_is_built(html):
    for page in PAGES:
        assert page.with_suffix(".html") in html
    assert len(html[Path("index.html")].prose) > 1000


def test_every_link_and_anchor_within_the_site_leads_somewhere(built, html):
    broken = []
    for path, page in html.items():
        if path.name == "404.html":
            continue  # is shown below any address
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (built / path.parent / unquote(parts.path)) if parts.path else built / path
            target = target.resolve()
            anchor = unquote(parts.fragment)
            if not target.is_file() or (
                anchor and anchor not in html[target.relative_to(built.resolve())].ids
            ):
                broken.append(f"{path}: {link}")

    assert sum(len(page.links) for page in html.values()) > 1000
    assert broken == []


def test_nothing_is_fetched_from_another_host(built, html):
    fetched = [
        f"{path}: {address}"
        for path, page in html.items()
        for address in page.fetched
        if urlsplit(address).netloc
    ]
    styles = [
        f"{style.name}: {address}"
        for style in built.rglob("*.css")
        for address in re.findall(r"url\(['\"]?((?:https?:)?//[^)]*)", style.read_text())
    ]

    assert fetched + styles == []


def test_formulas_are_drawn_by_the_browser_itself(html):
    for page in PAGES:
        source = (DOCS / page).read_text()
        source = re.sub(r"^```.*?^```|`[^`\n]*`", "", source, flags=re.DOTALL | re.MULTILINE)
        found = html[page.with_suffix(".html")]
        formulas = re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", source, flags=re.DOTALL)

        assert found.num_formulas == len(formulas), page
        assert not re.search(r"\\\(|\\\[|\\frac|\\sum", found.prose), page
    assert html[Path("background/metrics.html")].num_formulas > 30


def test_every_public_name_is_in_the_python_reference(html):
    page = html[Path("reference/python.html")]
    names = set(queuesmith.__all__) - {"__version__"}

    assert {name for name in names if f"queuesmith.{name}" not in page.ids} == set()
    assert not re.search(r":(func|mod|class):", page.prose)


def test_the_tools_of_the_site_are_not_on_it(built):
    assert not (built / "tools").exists()
    assert not list(built.rglob("*.py"))


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    folder = sources(tmp_path)
    shutil.rmtree(folder / "docs" / "guides")
    shutil.rmtree(folder / "docs" / "reference")
    for page in (folder / "docs").rglob("*.md"):
        page.write_text("# A page\n")
    (folder / "docs" / "index.md").write_text("# A page\n\n[a](none.md) [b](#none)\n")

    done = build(folder)

    assert done.returncode != 0
    assert "2 issues found" in done.stdout + done.stderr


# The command line


def leaves(command, name="queuesmith"):
    """Return every command that does something, by its full name."""
    below = {sub: command[sub] for sub in command if not sub.startswith("-")}
    if not below:
        return {name: command}
    return {k: v for sub, app in below.items() for k, v in leaves(app, f"{name} {sub}").items()}


def sections(markdown: str) -> dict[str, str]:
    """Return the text below each heading of a page."""
    parts = re.split(r"^#+ (.*)$", markdown, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_page_of_the_command_line_is_up_to_date():
    pinned = re.search(r"^cyclopts==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    if (installed := pytest.importorskip("cyclopts").__version__) != pinned:
        pytest.skip(f"written with cyclopts {pinned}; {installed} may word it otherwise")

    done = subprocess.run(
        [sys.executable, DOCS / "tools" / "cli_reference.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert CLI_PAGE.read_text() == done.stdout, (
        "renew it with `python docs/tools/cli_reference.py > docs/reference/cli.md`"
    )


def test_the_page_of_vllms_options_is_up_to_date():
    tool = DOCS / "tools" / "vllm_options.py"
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert (DOCS / "reference" / "vllm_options.md").read_text() == done.stdout, (
        "renew it with `python docs/tools/vllm_options.py > docs/reference/vllm_options.md`"
    )


def test_every_option_of_every_help_is_on_the_page_and_no_other(capsys):
    written = sections(CLI_PAGE.read_text())
    commands = leaves(app)

    assert len(commands) > 15
    for name in commands:
        app([*name.split()[1:], "--help"], console=Console(width=200), exit_on_error=False)
        printed = capsys.readouterr().out
        options = set(re.findall(r"(?<![\w`])--[a-z][a-z-]+", "\n".join(first_columns(printed))))
        on_page = re.findall(r"^\* `([^`]*)`", written[name], flags=re.MULTILINE)
        assert options - {"--help", "--version"} == {
            option for entry in on_page for option in re.findall(r"--[a-z][a-z-]+", entry)
        }, name


def first_columns(printed: str) -> list[str]:
    """Return the names of a help text: what stands left of the first wide gap of a line."""
    names = re.findall(r"^│ (?:\*|  )? {0,2}(?=\S)(.*?)(?: {2,}|│)", printed, flags=re.MULTILINE)
    return [name for name in names if name]


def test_every_command_takes_json():
    written = sections(CLI_PAGE.read_text())

    assert {name for name in leaves(app) if "--json" not in written[name]} == set()


# What pages claim of tests and figures


def test_tests_that_pages_name_are_there():
    pages = [DOCS / "background" / f"{name}.md" for name in ("promises", "proven")]
    named = {name for page in pages for name in re.findall(r"`(test_\w+)`", page.read_text())}
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", file.read_text(), flags=re.MULTILINE)
    }

    assert len(named) > 30
    assert named - defined == set()


def promising(page):
    """Return the sentences of a page with a word that promises, each on one line."""
    text = re.sub(r"^```.*?^```", "\n\n", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)", text)
    sentences = [
        sentence
        for block in blocks
        for sentence in re.split(r"(?<=[.?!:])(?:\*\*)?\s+|\s\|\s", " ".join(block.split()))
    ]
    return [each for each in sentences if re.search(r"\b(never|always|cannot|every)\b", each, re.I)]


def test_every_promise_is_on_the_page():
    page = (DOCS / "background" / "promises.md").read_text()
    table, _, others = page.partition("## Of the pages")[2].partition("## Other uses")
    rows = re.findall(r"^\| (\w+) \| (.+) \| (`test_.+) \|$", table, flags=re.MULTILINE)
    listed = {(name, words) for name, words, _ in rows}
    for line in others.partition("```text\n")[2].partition("```")[0].splitlines():
        name, _, words = line.partition(": ")
        listed.add((name, words))
    pages = [ROOT / "README.md", *sorted((DOCS / "guides").glob("*.md"))]
    sentences = [(page.stem, sentence) for page in pages for sentence in promising(page)]

    assert len(rows) >= 20
    missing = [
        f"{name}: {sentence}"
        for name, sentence in sentences
        if not any(name == where and words in sentence for where, words in listed)
    ]
    assert missing == []
    stale = [
        f"{where}: {words}"
        for where, words in listed
        if not any(name == where and words in sentence for name, sentence in sentences)
    ]
    assert stale == []


def test_figures_of_what_is_proven_are_those_of_the_results_and_the_tests():
    page = (DOCS / "background" / "proven.md").read_text()
    results = (ROOT / "results" / "README.md").read_text()
    test = (ROOT / "tests" / "vllm" / "test_vllm_differential.py").read_text()

    for figure in ("2,000,968", "170,073", "124,195", "37.2 ms"):
        assert figure in page
        assert figure in results
    assert "STEPS = 100_000" in test
    assert "at least 100,000" in page
    rules = test.partition("WRONG_RULES = [")[2].partition("]  # fmt: skip")[0]
    num_rules = len(re.findall(r"^    \(", rules, flags=re.MULTILINE))
    assert f"{num_rules} in all" in page
    assert "tally.preemptions > 2000" in test
    assert "tally.displacements > 500" in test


# The checks above are only as good as these.


def test_a_page_is_taken_apart():
    page = read_html(
        '<h1 id="top">A</h1> <a href="b.html#c">b</a><script src="//cdn.org/x.js"></script>'
        r"<p>and \(x\)</p><code>\(y\)</code><math><mi>z</mi></math>"
    )

    assert page.ids == {"top"}
    assert page.links == ["b.html#c"]
    assert page.fetched == ["//cdn.org/x.js"]
    assert page.num_formulas == 1
    assert r"\(x\)" in page.prose
    assert "y" not in page.prose


def test_names_of_a_help_text_are_told_from_what_is_said_of_them():
    printed = (
        "Usage: queuesmith x\n"
        "│ *  TRACE --trace   A file; see --columns.  │\n"
        "│    --loads STR     [default: light]        │\n"
        "│                    --not-a-name            │\n"
    )

    assert first_columns(printed) == ["TRACE --trace", "--loads STR"]

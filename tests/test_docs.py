"""The documentation: its code runs, its commands succeed, its links lead somewhere.

Every fenced block of README.md and docs/ is taken in the order of the page, in an empty folder:

* ``python`` runs, in one namespace per page;
* ``console`` has its lines that begin with ``$ queuesmith`` run, which must exit with 0; what a
  block shows after a command is what it prints, up to white space, and ``...`` was left out;
* any block with ``title="NAME"`` is written to that file instead, for what follows to use;
* all else (``text``, ``bash``, ``toml``, ...) is only shown.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Not run: README.ja.md has the code of README.md, and tests/test_readme.py says so.
ONLY_READ = [ROOT / "README.ja.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md"]

FENCE = re.compile(r"^(?P<fence>```+)(?P<language>\w*)(?P<rest>.*)$")
TITLE = re.compile(r'title="([^"]+)"')
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    line: int  # of its first line of content, from 1
    text: str


def read_blocks(markdown: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    blocks = []
    lines = iter(enumerate(markdown.splitlines(), start=1))
    for number, line in lines:
        fence = FENCE.match(line)
        if not fence:
            continue
        content = []
        for _, inside in lines:
            if inside.strip() == fence["fence"]:
                break
            content.append(inside)
        else:
            raise ValueError(f"the block of line {number} is never closed")
        title = TITLE.search(fence["rest"])
        blocks.append(
            Block(
                language=fence["language"],
                title=title[1] if title else None,
                line=number + 1,
                text="\n".join(content) + "\n",
            )
        )
    return blocks


def read_commands(block: Block) -> list[tuple[str, list[str]]]:
    """Return the `queuesmith` commands of a console block, each with what the block shows of it.

    Continued lines are joined. What is shown are stretches of text, white space taken as one space.
    """
    found: list[tuple[str, list[str]]] = []
    shown: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            shown = [[]]
            if line.startswith("$ queuesmith"):
                found.append((line[2:], shown))
        elif shown and line.strip() == "...":
            shown.append([])
        elif shown:
            shown[-1].append(line)
    return [
        (command, [text for lines in stretches if (text := squeeze("\n".join(lines)))])
        for command, stretches in found
    ]


def squeeze(text: str) -> str:
    """Return text with every run of white space as one space, as lines break where they may."""
    return " ".join(text.split())


def first_not_printed(stretches: list[str], printed: str) -> str | None:
    """Return the first stretch that was not printed, in this order; None when all were."""
    rest = squeeze(printed)
    for stretch in stretches:
        _, found, rest = rest.partition(stretch)
        if not found:
            return stretch
    return None


def run_page(page: Path, folder: Path) -> None:
    """Run the blocks of one page in a folder; raises what goes wrong, with its line."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for block in read_blocks(page.read_text()):
        if block.title is not None:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "python":
            # The empty lines make tracebacks name the line of the page.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(page), "exec"), namespace)
        elif block.language == "console":
            for command, shown in read_commands(block):
                done = subprocess.run(
                    command,
                    shell=True,  # as a reader would type it, with `>` and quotes
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=900,
                )
                assert done.returncode == 0, (
                    f"{page.name}, line {block.line}: `{command}` exited with {done.returncode}:\n"
                    f"{done.stderr or done.stdout}"
                )
                missing = first_not_printed(shown, done.stdout)
                assert missing is None, (
                    f"{page.name}, line {block.line}: `{command}` did not print {missing!r}, but:\n"
                    f"{done.stdout}"
                )


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files and headings that do not exist."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for link in LINK.finditer(prose):
        if re.match(r"\w+:", link["target"]):
            continue  # another site; not looked up
        path, _, anchor = link["target"].partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link["target"])
    return broken


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_and_commands_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES + ONLY_READ, ids=page_name)
def test_links_of_a_page_lead_somewhere(page):
    assert broken_links(page) == []


def test_every_page_is_reached_from_the_index():
    reached, to_read = {ROOT / "README.md"}, [ROOT / "docs" / "index.md"]
    while to_read:
        page = to_read.pop().resolve()
        if page in reached:
            continue
        reached.add(page)
        for link in LINK.finditer(page.read_text()):
            target = page.parent / link["target"].partition("#")[0]
            if target.suffix == ".md" and target.exists():
                to_read.append(target)

    assert [page_name(page) for page in PAGES if page not in reached] == []


# The checks above are only as good as these.


def write_page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_an_error_in_a_python_block_names_its_line(tmp_path):
    page = write_page(tmp_path, "# Page\n\n```python\nx = 1\n```\n\n```python\nx / 0\n```\n")

    with pytest.raises(ZeroDivisionError) as raised:
        run_page(page, tmp_path)

    assert raised.traceback[-1].lineno + 1 == 8


def test_a_failing_command_is_reported(tmp_path):
    page = write_page(tmp_path, "```console\n$ queuesmith no-such-verb\n```\n")

    with pytest.raises(AssertionError, match="no-such-verb"):
        run_page(page, tmp_path)


def test_a_titled_block_becomes_a_file_for_later_blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '```python title="answer.py"\nanswer = 1 / 0\n```\n'
    text += "```python\nfrom pathlib import Path\n"
    text += "assert Path('answer.py').read_text() == 'answer = 1 / 0\\n'\n```\n"

    run_page(write_page(tmp_path, text), tmp_path)


def test_continued_commands_are_joined_and_others_left_alone():
    block = Block("console", None, 1, "$ make test\n$ queuesmith compare \\\n    a.csv\noutput\n")

    [(command, shown)] = read_commands(block)
    assert shlex.split(command) == ["queuesmith", "compare", "a.csv"]
    assert shown == ["output"]


def test_what_a_block_shows_has_to_be_printed_and_in_its_order(tmp_path):
    shown = "$ queuesmith --help\nUsage: queuesmith\n   COMMAND\n...\n{} {}\n"
    good = shown.format("Start a vLLM server whose requests", "a policy orders.")
    bad = shown.format("Start a vLLM server whose requests", "nobody orders.")
    reversed_ = "$ queuesmith --help\nStart a vLLM server\n...\nUsage: queuesmith COMMAND\n"

    run_page(write_page(tmp_path, f"```console\n{good}```\n"), tmp_path)
    for text in (bad, reversed_):
        with pytest.raises(AssertionError, match="did not print"):
            run_page(write_page(tmp_path, f"```console\n{text}```\n"), tmp_path)


def test_broken_links_are_found_and_good_ones_are_not(tmp_path):
    (tmp_path / "other.md").write_text("# A heading, here\n")
    good = "[a](other.md) [b](other.md#a-heading-here) [c](https://example.org/x) [d](#page)"
    page = write_page(tmp_path, f"# Page\n{good}\n[e](none.md) [f](other.md#none)\n")

    assert broken_links(page) == ["none.md", "other.md#none"]


def test_a_block_that_is_never_closed_is_refused():
    with pytest.raises(ValueError, match="line 2"):
        read_blocks("text\n```python\nx = 1\n")

"""README: every figure has its source, and the Japanese edition says the same."""

import json
import re
from pathlib import Path

import pytest

from queuesmith.deploy.plugin import TESTED_VERSIONS
from queuesmith.policies import policy_names
from test_docs import LINK, read_blocks

ROOT = Path(__file__).parents[1]
ENGLISH, JAPANESE = ROOT / "README.md", ROOT / "README.ja.md"
RESULTS = ROOT / "results" / "README.md"

# Numbers of two digits and more that stand alone: no H100, no p99, no azure_2023.
FIGURE = re.compile(r"(?<![\w.,/])(?<!\w-)\d(?:[\d.,]*\d)(?![\w/])")


def figures(markdown: str) -> set[str]:
    """Return the figures of a text, without signs and units."""
    return set(FIGURE.findall(markdown))


def without_blocks(markdown: str) -> str:
    """Return the prose of a page, without code and without where its links lead."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`]*`", "", prose)
    return LINK.sub(lambda link: link[0].partition("](")[0], prose)


def facts() -> dict[str, str]:
    """Return figures that are no measurements: as README has them, and as the package does."""
    pyproject = (ROOT / "pyproject.toml").read_text()
    code = json.loads((ROOT / "results" / "compare_azure_2023_code.json").read_text())
    return {
        f"{len(policy_names())}": "policies that come along",
        **dict.fromkeys(TESTED_VERSIONS, "versions of vLLM"),
        re.search(r'requires-python = ">=([\d.]+)', pyproject)[1]: "the oldest Python",
        f"{code['origin']['num_requests']:,}": "requests of the trace that was run",
        "2023": "the year of that trace",
        "20": "per cent, of every preset: `provenance` says so with every result",
        "100": "a way to say a per cent",
        "200": "a way to say few",
    }


def commands(page: Path) -> list[str]:
    """Return the lines of all blocks of a page, without comments of the shell."""
    lines = []
    for block in read_blocks(page.read_text()):
        text = re.sub(r" +# .*$", "", block.text, flags=re.MULTILINE)
        lines += [f"{block.language} {block.title}", *text.splitlines()]
    return lines


def test_every_figure_is_listed_with_the_command_that_made_it():
    listed = figures(RESULTS.read_text()) | facts().keys()

    assert figures(without_blocks(ENGLISH.read_text())) - listed == set()


def test_what_a_preset_is_worth_is_what_its_provenance_says():
    code = json.loads((ROOT / "results" / "compare_azure_2023_code.json").read_text())

    assert "+-20 %" in code["config"]["provenance"]
    assert "±20 %" in ENGLISH.read_text()


def test_the_run_that_is_shown_is_the_one_in_the_results():
    answer = json.loads((ROOT / "results" / "compare_azure_2023_code.json").read_text())["answer"]
    [shown] = [
        block.text
        for block in read_blocks(ENGLISH.read_text())
        if "AzureLLMInferenceTrace_code" in block.text
    ]

    words = " ".join([answer["traffic"], *answer["sentences"]]).split()
    *first, rest = shown.split()[4:]
    assert rest == "..."
    assert len(first) > 80
    assert first == words[: len(first)]


# The Japanese edition


def test_the_japanese_edition_has_the_same_commands_and_code():
    assert commands(JAPANESE) == commands(ENGLISH)


def test_the_japanese_edition_has_the_same_sections():
    levels = [
        re.findall(r"^(#+) ", without_blocks(page.read_text()), flags=re.MULTILINE)
        for page in (ENGLISH, JAPANESE)
    ]

    assert levels[0] == levels[1]


def test_the_japanese_edition_has_the_same_links_and_pictures():
    links = [
        [link["target"] for link in LINK.finditer(page.read_text())] for page in (ENGLISH, JAPANESE)
    ]
    between = {"README.md", "README.ja.md"}

    assert sorted(set(links[0]) - between) == sorted(set(links[1]) - between)
    assert "README.ja.md" in links[0]
    assert "README.md" in links[1]


def test_the_japanese_edition_has_the_same_figures():
    assert figures(JAPANESE.read_text()) == figures(ENGLISH.read_text())


def test_the_japanese_edition_is_in_japanese():
    prose = without_blocks(JAPANESE.read_text())

    assert len(re.findall(r"[\u3040-\u30ff\u4e00-\u9fff]", prose)) > 0.4 * len(prose)


# The checks above are only as good as this.


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,224,014 requests in 4.6 s, 97 % of 12.", {"1,224,014", "4.6", "97", "12"}),
        ("±20 %, -18 % to +0.35 [0.5]", {"20", "18", "0.35", "0.5"}),
        ("p99 on H100, azure_2023_conv, V1, 3 of 4, Llama-3.1-8B", set()),
        ("Python 3.11 以降、8,819 件、24 % 短い。", {"3.11", "8,819", "24"}),
    ],
)
def test_figures_are_told_from_names(text, found):
    assert figures(text) == found

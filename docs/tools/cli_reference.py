"""The reference of the command line, made from the same declarations as its ``--help``.

Renew ``docs/reference/cli.md`` with ``python docs/tools/cli_reference.py > docs/reference/cli.md``;
a test says when that is due.
"""

import re

from queuesmith.cli import app

HEAD = """\
# The command line

Every command and option, made from what `--help` prints by `docs/tools/cli_reference.py`. All
commands take `--json`; [the JSON documents](compare_json.md) are described field by field. Exit
status: **0** the work was done, **1** the answer is no, **2** the input was wrong, with one line
that says how, **130** after Ctrl-C, **143** after SIGTERM, **70** a fault of queuesmith itself.
"""
# What cyclopts writes before the first command: a title, a table of contents, the list of commands.
FIRST_COMMAND = "\n## queuesmith "


def reference() -> str:
    """Return the page as Markdown."""
    whole = app.generate_docs(output_format="markdown", recursive=True)
    start = whole.index(FIRST_COMMAND)
    opening, commands = whole[:start], whole[start:]
    listed = opening[opening.index("* [`") :].strip()
    commands = commands.replace("```console", "```text")
    # A list directly below its caption is a list to GitHub only.
    commands = re.sub(r"\n\*\*(\w+)\*\*:\n+", r"\n**\1**\n\n", commands)
    lines = f"{HEAD}\n{listed}\n{commands}".splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


if __name__ == "__main__":
    print(reference(), end="")

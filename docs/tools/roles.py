"""Names that docstrings mark for Sphinx, as code: ``:func:`a.b``` becomes ```a.b```.

A Python-Markdown extension, named in mkdocs.yml.
"""

import re

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

ROLE = re.compile(r":(?:attr|class|func|meth|mod):`~?([^`]+)`")


class RolesPreprocessor(Preprocessor):
    """Takes the roles off before anything else is read."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of a page without roles."""
        return ROLE.sub(r"`\1`", "\n".join(lines)).split("\n")


class RolesExtension(Extension):
    """What mkdocs.yml names."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Run early, on plain text."""
        md.preprocessors.register(RolesPreprocessor(md), "roles", 100)


def makeExtension(**options: object) -> RolesExtension:
    """Return the extension, as Python-Markdown asks for it."""
    return RolesExtension(**options)

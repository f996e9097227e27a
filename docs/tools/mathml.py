"""Formulas of the documentation as MathML, which browsers draw without scripts, fonts or network.

A Python-Markdown extension, named in mkdocs.yml. ``pymdownx.arithmatex`` finds the formulas and
this turns what it found from LaTeX into MathML.
"""

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

# What arithmatex in its generic form puts around a formula: \(...\) in a line, \[...\] by itself.
FORMULA = re.compile(r"^\\([(\[])(.*)\\[)\]]$", re.DOTALL)


def to_mathml(found: str) -> str:
    r"""Return ``\(...\)`` or ``\[...\]`` as a ``<math>`` element; raises what is not LaTeX."""
    kind, latex = FORMULA.fullmatch(found.strip()).groups()
    return convert(html.unescape(latex).strip(), display="inline" if kind == "(" else "block")


class MathmlTreeprocessor(Treeprocessor):
    """Puts MathML where arithmatex has left LaTeX."""

    def run(self, root: ElementTree.Element) -> None:
        """Change the page in place; the markup is kept as it is by Markdown's own stash."""
        for element in root.iter():
            if element.get("class") == "arithmatex":
                element.text = self.md.htmlStash.store(to_mathml(element.text))


class MathmlExtension(Extension):
    """What mkdocs.yml names; after arithmatex."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Run last, when all formulas are found."""
        md.treeprocessors.register(MathmlTreeprocessor(md), "mathml", -10)


def makeExtension(**options: object) -> MathmlExtension:
    """Return the extension, as Python-Markdown asks for it."""
    return MathmlExtension(**options)

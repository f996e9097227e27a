"""A program written out as a policy file: named, commented, plain Python.

The text is what is evaluated, compiled, shipped and read; a program has no other way to act.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from queuesmith.evolve.gp.intervals import surely_at_least
from queuesmith.evolve.gp.program import LEAST_DIVISOR, Node, Program
from queuesmith.evolve.gp.terminals import QUANTITIES, TERMS, quantities_of

#: Most lines of a file, and characters of a line.
MAX_LINES = 60
WIDTH = 100
#: Longer expressions are broken up by variables.
_COMFORTABLE = 80
#: Names that say more than this say less.
_LONG_NAME = 28

_SUM, _PRODUCT, _SIGN, _ATOM = range(4)  # how tightly an expression holds together
_LEAST = f"{LEAST_DIVISOR:g}".replace("e-0", "e-")


def write(program: Program, *, summary: str = "", source: str = "", caution: str = "") -> str:
    """Write a program as the text of a policy file of at most ``MAX_LINES`` lines.

    Parameters
    ----------
    program : Program
        Best simplified before; every node is written out.
    summary, source, caution : str, optional
        Of the docstring; what can be said of any program when left out.

    Examples
    --------
    >>> print(write(Program(Node("relative_work"))).split('''\"\"\"''')[2].strip())
    def waiting_key(request, engine):
        # Prefill left, over the mean of all who wait.
        relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
        return relative_work
    """
    constants: dict[str, float] = {}
    hooks = [_Hook(tree, constants).lines(hook) for hook, tree in program.trees.items()]
    docstring = _docstring(
        summary or _summary(program),
        _knows(program),
        source or _SOURCE,
        caution or _caution(program),
    )
    body = "\n\n\n".join("\n".join(lines) for lines in hooks)
    parts = [docstring]
    if "math." in body:
        parts.append("import math")
    if constants:
        parts.append("\n".join(f"{name} = {value!r}" for name, value in constants.items()))
    text = "\n\n".join(parts) + "\n\n\n" + body + "\n"
    if text.count("\n") > MAX_LINES:
        text = re.sub(r"\n +#.*", "", text)  # the names say nearly as much
    return text


class _Hook:
    """Writes one tree as one function.

    Attributes
    ----------
    constants : dict of str to float
        Of the whole file; grows as they are met.
    """

    def __init__(self, tree: Node, constants: dict[str, float]) -> None:
        self.tree = _without_clips(tree)
        self.constants = constants
        self.variables: dict[Node, str] = {}
        self.names = set(TERMS) | set(QUANTITIES)

    def lines(self, hook: str) -> list[str]:
        terms = list(dict.fromkeys(node.name for node in self.tree.walk() if node.name in TERMS))
        lines = [f"def {hook}(request, engine):"]
        for name in quantities_of(terms):
            lines.append(_assignment(name, QUANTITIES[name]))
        for name in terms:
            lines.append(f"    # {TERMS[name].meaning}")
            lines.append(_assignment(name, TERMS[name].expression))
        repeated = Counter(node for node in self.tree.walk() if node.children)
        for node in reversed(list(self.tree.walk())):  # what is inside comes first
            if repeated[node] > 1 and node.size > 2 and node not in self.variables:
                lines += self.assign(node, 1)
        return lines + self.returned(self.tree, 1)

    def returned(self, tree: Node, indent: int) -> list[str]:
        """Return the lines that return the value of a tree."""
        if tree.name != "if" or tree in self.variables:
            lines, text = self.expression(tree, indent, _COMFORTABLE - 4 * indent - len("return "))
            return [*lines, f"{'    ' * indent}return {text}"]
        lines, test = self.comparison(tree, indent)
        lines.append(f"{'    ' * indent}if {test}:")
        # Names given in a branch are not there behind it.
        known = dict(self.variables)
        lines += self.returned_part(tree, 2, indent + 1)
        self.variables = known
        return lines + self.returned_part(tree, 3, indent)

    def returned_part(self, tree: Node, index: int, indent: int) -> list[str]:
        branch = tree.children[index]
        if branch.is_constant:
            return [f"{'    ' * indent}return {self.constant(branch, tree, index)}"]
        return self.returned(branch, indent)

    def comparison(self, tree: Node, indent: int) -> tuple[list[str], str]:
        """Write what an ``if`` compares; return the lines before it, and it."""
        lines, texts = [], []
        room = _COMFORTABLE - 4 * indent - len("if ")
        for index in range(2):
            before, text = self.expression(tree.children[index], indent, room // 2, tree, index)
            lines += before
            texts.append(text)
        if sum(map(len, texts)) > _COMFORTABLE - 4 * indent:
            longer = max(range(2), key=lambda index: len(texts[index]))
            lines += self.assign(tree.children[longer], indent)
            texts[longer] = self.variables[tree.children[longer]]
        if tree.children[0].is_constant:  # people put the number behind
            return lines, f"{texts[1]} < {texts[0]}"
        return lines, f"{texts[0]} > {texts[1]}"

    def expression(
        self, tree: Node, indent: int, room: int, parent: Node | None = None, index: int = 0
    ) -> tuple[list[str], str]:
        """Write a tree in `room` characters; return the lines its variables need, and itself."""
        lines: list[str] = []
        for node in reversed(list(self.visible(tree))):
            if node.name == "if" and node not in self.variables:
                lines += self.assign(node, indent)
        while True:
            text = self.text(tree, parent, index)[0]
            parts = [
                node
                for node in self.visible(tree)
                if node is not tree and node.children and node not in self.variables
            ]
            if len(text) <= room or not parts:
                return lines, text
            # What halves the tree best.
            half = max(tree.size / 2, 3)
            lines += self.assign(min(parts, key=lambda node: abs(node.size - half)), indent)

    def visible(self, tree: Node) -> Iterator[Node]:
        """Yield the nodes of a tree that are still written out in it."""
        yield tree
        if tree not in self.variables:
            for child in tree.children:
                yield from self.visible(child)

    def assign(self, node: Node, indent: int) -> list[str]:
        """Give a tree a name; return the lines that do so."""
        name = self.free_name(_name_of(node))
        room = _COMFORTABLE - 4 * indent - len(name)
        if node.name != "if":
            lines, text = self.expression(node, indent, room)
            self.variables[node] = name
            return [*lines, _assignment(name, text, indent)]
        lines, test = self.comparison(node, indent)
        texts = []
        for index in (2, 3):
            before, text = self.expression(node.children[index], indent, room - 4, node, index)
            lines += before
            texts.append(text)
        self.variables[node] = name
        text = f"{texts[0]} if {test} else {texts[1]}"
        if len(text) <= room:
            return [*lines, _assignment(name, text, indent)]
        margin = "    " * indent
        return [
            *lines,
            f"{margin}if {test}:",
            _assignment(name, texts[0], indent + 1),
            f"{margin}else:",
            _assignment(name, texts[1], indent + 1),
        ]

    def free_name(self, name: str) -> str:
        number, free = 1, name
        while free in self.names:
            number += 1
            free = f"{name}_{number}"
        self.names.add(free)
        return free

    def text(self, tree: Node, parent: Node | None, index: int) -> tuple[str, int]:
        """Write a tree as an expression; return it with how tightly it holds together."""
        if tree in self.variables:
            return self.variables[tree], _ATOM
        if tree.is_constant:
            text = self.constant(tree, parent, index)
            return text, _SIGN if text.startswith("-") else _ATOM
        if not tree.children:
            return tree.name, _ATOM
        match tree.name:
            case "add":
                return f"{self.part(tree, 0, _SUM)} + {self.part(tree, 1, _PRODUCT)}", _SUM
            case "sub":
                return f"{self.part(tree, 0, _SUM)} - {self.part(tree, 1, _PRODUCT)}", _SUM
            case "mul" if tree.children[0].is_constant and tree.children[0].value == -1.0:
                return f"-{self.part(tree, 1, _PRODUCT)}", _PRODUCT
            case "mul":
                return f"{self.part(tree, 0, _PRODUCT)} * {self.part(tree, 1, _SIGN)}", _PRODUCT
            case "div":
                divisor = self.part(tree, 1, _SIGN)
                if not surely_at_least(tree.children[1], LEAST_DIVISOR):
                    divisor = f"max({self.part(tree, 1, _SUM)}, {_LEAST})"
                return f"{self.part(tree, 0, _PRODUCT)} / {divisor}", _PRODUCT
            case "min" | "max":
                return f"{tree.name}({self.part(tree, 0)}, {self.part(tree, 1)})", _ATOM
            case "log1p" if surely_at_least(tree.children[0], 0.0):
                return f"math.log1p({self.part(tree, 0)})", _ATOM
            case "log1p":
                return f"math.log1p(max({self.part(tree, 0)}, 0.0))", _ATOM
        first, second, above, below = (self.part(tree, index, _SUM) for index in range(4))
        return f"({above} if {first} > {second} else {below})", _ATOM

    def part(self, tree: Node, index: int, least: int = _SUM) -> str:
        """Write an operand, in brackets when it holds together less tightly than it must."""
        text, holds = self.text(tree.children[index], tree, index)
        return text if holds >= least else f"({text})"

    def constant(self, node: Node, parent: Node | None, index: int) -> str:
        """Return the name of a constant, which says what it is for; 0 and 1 stay numbers."""
        if node.value in (0.0, 1.0, -1.0):
            return repr(node.value)
        wanted = _constant_name(parent, index)
        number, name = 1, wanted
        while self.constants.setdefault(name, node.value) != node.value:
            number += 1
            name = f"{wanted}_{number}"
        return name


def _without_clips(tree: Node) -> Node:
    """Return a tree with ``min(max(x, low), high)`` for every clip, which can be broken up."""
    children = tuple(map(_without_clips, tree.children))
    if tree.name == "clip":
        return Node("min", (Node("max", children[:2]), children[2]))
    return replace(tree, children=children)


def _assignment(name: str, text: str, indent: int = 1) -> str:
    return f"{'    ' * indent}{name} = {text}"


def _label(tree: Node) -> str:
    """Return what a tree is about: its only term, or nothing."""
    names = {node.name for node in tree.walk() if node.name in TERMS}
    return names.pop() if len(names) == 1 else ""


def _name_of(node: Node) -> str:
    """Return a name for the variable that holds a tree."""
    about = _label(node)
    left = about or _label(node.children[0])
    right = _label(node.children[1]) if len(node.children) > 1 else ""
    match node.name:
        case "mul" if node.children[0].is_constant:
            return f"weighted_{about}" if about else "weighted_sum"
        case "mul":
            return _both(left, "times", right) or "product"
        case "div":
            return _both(left, "per", right) or "quotient"
        case "log1p":
            return f"log_{about}" if about else "logarithm"
        case "min":
            return f"capped_{about}" if about else "smaller"
        case "max":
            return f"floored_{about}" if about else "larger"
        case "if":
            return "choice"
    return f"shifted_{about}" if about else ("total" if node.name == "add" else "difference")


def _both(left: str, word: str, right: str) -> str:
    name = f"{left}_{word}_{right}"
    return name if left and right and left != right and len(name) <= _LONG_NAME else ""


def _constant_name(parent: Node | None, index: int) -> str:
    """Return a name for a constant by what is done with it."""
    if parent is None:
        return "KEY"
    others = [child for place, child in enumerate(parent.children) if place != index]
    about = next((label for child in others[:2] if (label := _label(child))), "")
    role = {
        ("add", 0): "OFFSET", ("add", 1): "OFFSET", ("sub", 0): "OFFSET", ("sub", 1): "OFFSET",
        ("mul", 0): "WEIGHT", ("mul", 1): "WEIGHT", ("div", 0): "NUMERATOR", ("div", 1): "SCALE",
        ("min", 0): "CEILING", ("min", 1): "CEILING", ("max", 0): "FLOOR", ("max", 1): "FLOOR",
        ("log1p", 0): "KEY",
        ("if", 0): "LIMIT", ("if", 1): "LIMIT", ("if", 2): "KEY_ABOVE", ("if", 3): "KEY_BELOW",
    }[parent.name, index]  # fmt: skip
    return f"{about}_{role}".upper() if about else role


_SOURCE = "bred by `queuesmith evolve`; its proof sheet tells lineage and scores."


def _docstring(summary: str, knows: str, source: str, caution: str) -> str:
    lines = textwrap.wrap(summary, WIDTH - 3)
    sections = [""]
    for head, text in (("Knows:", knows), ("Source:", source), ("Caution:", caution)):
        sections += textwrap.wrap(
            text, WIDTH, initial_indent=f"{head:<9}", subsequent_indent=" " * 9
        )
    quotes = '"""'
    lines, sections = [[_plain(line) for line in part] for part in (lines, sections)]
    return "\n".join([quotes + lines[0], *lines[1:], *sections, quotes])


def _plain(line: str) -> str:
    """Return a line that cannot end the docstring, or mean something in it."""
    return line.replace("\\", "/").replace('"', "'")


def _summary(program: Program) -> str:
    """Say in a sentence what a program orders by."""
    shown = {hook: _said(tree) for hook, tree in program.trees.items()}
    if not shown["waiting_key"]:
        text = "First come, first served"
    else:
        text = f"Admits by {shown['waiting_key']}"
    if shown.get("victim_key"):
        text += f", preempts by {shown['victim_key']}"
    return text + "."


def _said(tree: Node) -> str:
    names = dict.fromkeys(node.name for node in tree.walk() if node.name in TERMS)
    words = [name.replace("_", " ").replace("kv", "KV") for name in names]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _knows(program: Program) -> str:
    names = [node.name for tree in program.trees.values() for node in tree.walk()]
    facts = [TERMS[name].knows.split(", ") for name in names if name in TERMS]
    known = list(dict.fromkeys(fact for part in facts for fact in part))
    return ", ".join(known or ["nothing of a request but its place"]) + "."


def _caution(program: Program) -> str:
    terms = [TERMS[node.name] for node in program.waiting_key.walk() if node.name in TERMS]
    grows = any("wait" in term.uses or "since_arrival" in term.expression for term in terms)
    if grows or program.waiting_key.is_constant:
        return "found by search on a few windows; compare it on your own traffic before use."
    return "nothing in it grows with the wait, so whoever is passed over may be so for ever."

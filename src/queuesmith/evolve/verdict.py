"""What is said of a candidate in the end, and how its size is counted."""

import ast

from queuesmith.evolve.archive.schema import Candidate, Verdict

#: Parts of a text that count as nodes of its program.
_COUNTED = (
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
    *(ast.Attribute, ast.Constant, ast.Call, ast.IfExp, ast.If),
)


def judge(child: Candidate, survives: bool, beaten: int, depth: int) -> Verdict:
    """Say in a sentence what became of a candidate."""
    if child.status == "duplicate":
        return Verdict("discard", child.sentence)
    if child.status not in ("ok", "stopped"):
        return Verdict("crash", f"{child.status}: {child.sentence}")
    tail = f"; {child.sentence}" if child.sentence else ""
    if child.status == "stopped":
        return Verdict(
            "discard",
            f"stopped early: at best {child.score:+.3f} with {child.size} nodes, and {depth} of "
            f"its island do better{tail}",
        )
    others = f"{beaten} of its island beat{'s' if beaten == 1 else ''} it"
    if survives:
        return Verdict("keep", f"{child.score:+.3f} with {child.size} nodes; {others}{tail}")
    return Verdict("discard", f"{child.score:+.3f} with {child.size} nodes; {others}{tail}")


def count_nodes(text: str) -> int:
    """Count the operations, names and numbers of a text whose proposer did not say."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    return sum(isinstance(node, _COUNTED) for node in ast.walk(tree))

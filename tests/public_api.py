"""Write down what `import queuesmith` promises: every name, its parameters and their defaults.

`python tests/public_api.py > tests/public_api.txt` renews the list that the tests hold it to. What
a change to it means for users belongs into CHANGELOG.md.
"""

import inspect
from collections.abc import Iterator

import queuesmith


def described() -> str:
    """Return one line for each public name, and one for each public member of a class."""
    return "".join(f"{line}\n" for name in queuesmith.__all__ for line in lines_of(name))


def lines_of(name: str) -> Iterator[str]:
    value = getattr(queuesmith, name)
    if not inspect.isclass(value):
        yield f"{name}{signature(value)}" if callable(value) else name
        return
    yield f"class {name}{'' if issubclass(value, Exception) else signature(value)}"
    for member in sorted(members(value)):
        found = inspect.getattr_static(value, member, None)
        if isinstance(found, classmethod | staticmethod):
            found = found.__func__
        yield f"    {member}{signature(found) if inspect.isroutine(found) else ''}"


def members(found: type) -> set[str]:
    """Return the public attributes that this package's code gives a class: fields and methods."""
    ours = [base for base in found.__mro__ if base.__module__.startswith("queuesmith")]
    names = {name for base in ours for name in (*vars(base), *inspect.get_annotations(base))}
    return {name for name in names if not name.startswith("_")}


def signature(value: object) -> str:
    """Return parameters and defaults; their types are checked elsewhere, by mypy."""
    found = inspect.signature(value)  # type: ignore[arg-type]
    bare = [
        parameter.replace(annotation=parameter.empty) for parameter in found.parameters.values()
    ]
    return str(inspect.Signature(bare))


if __name__ == "__main__":
    print(described(), end="")

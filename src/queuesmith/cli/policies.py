"""``queuesmith policies``: what there is, what it does, and whether a file keeps the contract."""

import json
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from queuesmith.documents import printable

if TYPE_CHECKING:
    from queuesmith.policies import Policy

SCHEMA = "queuesmith.policies/1"


def policies(
    name: str | None = None,
    *,
    check: Annotated[bool, Parameter(negative=())] = False,
    explain: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the policies, explain one, or check a file of your own.

    Parameters
    ----------
    name
        A policy to explain: a name or a file. All are listed when left out.
    check
        Run the conformance suite on it.
    explain
        Show in which order it would admit a small queue.
    json_
        Print one JSON document instead of text.
    """
    from rich.console import Console

    from queuesmith.errors import ConfigError
    from queuesmith.policies import get_policy, policy_names

    if explain and (name is None or json_):
        raise ConfigError("--explain prints the queue of one policy: policies NAME --explain")
    chosen = [get_policy(one) for one in ([name] if name else policy_names())]
    reports = {}
    if check:
        from queuesmith.testing import check_policy

        reports = {policy.name: check_policy(policy) for policy in chosen}
    if json_:
        rows = [_describe(policy) for policy in chosen]
        for row in rows:
            if check:
                row["checked"] = str(reports[row["name"]]).splitlines()
        print(json.dumps({"schema": SCHEMA, "policies": rows}, indent=1))
        return
    console = Console(highlight=False, markup=False)
    if name is None and not check:
        _list(chosen, console)
    elif check:
        for report in reports.values():
            console.print(str(report), markup=False)
    elif not explain:
        _explain(chosen[0], console)
    if explain:
        _show_queue(chosen[0], console)


def _describe(policy: "Policy") -> dict[str, Any]:
    return {
        "name": policy.name,
        "summary": policy.summary,
        "knows": policy.knows,
        "source": policy.origin,
        "caution": policy.caution,
        "parameters": dict(policy.parameters),
        "hooks": list(policy.hooks),
        "preemptive": policy.preemptive,
        "deployable": not policy.oracle,
        "engine": dict(policy.engine),
        "static": policy.static,
        "sha256": policy.sha256,
    }


def _kind(policy: "Policy") -> str:
    if policy.oracle:
        return "oracle, not deployable"
    return "bundle with engine settings" if policy.is_bundle else ""


def _list(chosen: list["Policy"], console: Any) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for policy in chosen:
        mark = f" [{_kind(policy)}]" if _kind(policy) else ""
        table.add_row(policy.name, f"{policy.summary}{mark}")
    console.print(table)
    console.print("\nqueuesmith policies NAME explains one; a file of your own is ./my_policy.py")


def _explain(policy: "Policy", console: Any) -> None:
    from rich.padding import Padding
    from rich.syntax import Syntax

    console.print(policy.name, style="bold", markup=False)
    for title, text in (
        ("", policy.summary),
        ("Knows", policy.knows),
        ("Source", policy.origin),
        ("Caution", policy.caution),
        ("Kind", _kind(policy)),
        ("Hooks", ", ".join(policy.hooks) + (", PREEMPTIVE" if policy.preemptive else "")),
        ("Parameters", ", ".join(f"{key}={value}" for key, value in policy.parameters.items())),
        ("Engine", ", ".join(f"{key}={value}" for key, value in policy.engine.items())),
        ("File", str(policy.path)),
    ):
        if text:
            console.print(f"{title}: {text}" if title else text, markup=False)
    console.print()
    source = "\n".join(map(printable, policy.source.expandtabs().split("\n")))
    console.print(Padding(Syntax(source, "python", background_color="default"), (0, 2)))


def _show_queue(policy: "Policy", console: Any) -> None:
    from rich.table import Table

    from queuesmith.policies.small_queue import small_queue

    table = Table(
        box=None,
        pad_edge=False,
        title=f"A queue of six under {policy.name}, in the order of admission (smallest key first)",
        title_justify="left",
        title_style="",
    )
    for column in ("", "waited", "prompt", "output predicted", "priority", "key"):
        table.add_column(column, justify="right")
    for place, asked in enumerate(small_queue(policy), 1):
        table.add_row(
            str(place) if asked.admitted else "kept back",
            f"{asked.wait:g} s",
            f"{asked.prompt:,}",
            f"{asked.predicted_output:,}",
            str(asked.priority),
            f"{asked.key:.6g}",
        )
    console.print(table)

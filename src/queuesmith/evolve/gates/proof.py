"""The proof sheet: all that a claim about a policy rests on, as JSON and to be read."""

import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from queuesmith import numbers
from queuesmith.evaluation.goals import GOALS, MARGIN, guard_label
from queuesmith.evolve.gates.gate import GATES
from queuesmith.evolve.gates.judge import Judgement

#: What the numbers may depend on, besides this package.
PACKAGES = ("numpy", "numba", "scipy")
#: Aims that no gate asks for; the sheet says how far they were met.
HEAVY_CHANGE = -0.35
TIMES_BEST_CLASSIC = 2.0


def proof(judgement: Judgement, command: str) -> dict[str, Any]:
    """Return the sheet of a policy that has looked at held-out windows."""
    document = judgement.document()
    gates = {gate["gate"]: gate for gate in document["gates"]}
    return {
        **document,
        "schema": "queuesmith.proof/1",
        "does": list(judgement.does),
        "aims": _aims(gates["G6"]["saw"]) if judgement.opened else [],
        "command": command,
        "versions": {
            "queuesmith": document["version"],
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
    }


def _aims(saw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Say how held-out windows stand beside what was aimed at."""
    rows, label = saw["configurations"], GOALS[saw["goal"]].statistic.label
    busy = [row for row in rows if not row["idle"]]
    idle = [row for row in rows if row["idle"]]
    # The last load of each source queues longest.
    heaviest = {
        source: min(
            (row for row in busy if row["source"] == source), key=lambda row: -row["ttft_mean_fcfs"]
        )
        for source in dict.fromkeys(row["source"] for row in busy)
    }
    score = saw["score"]["value"]
    best = next(row for row in saw["standings"] if row["policy"] == saw["best_classic"])
    changes = [row["mean_change"] for row in heaviest.values()]
    aims = [
        (
            f"{label} better than FCFS's or equal in every configuration",
            f"{sum(row['goal_worse'] <= MARGIN for row in rows)} of {len(rows)}",
            all(row["goal_worse"] <= MARGIN for row in rows),
        ),
        ("no guard broken", f"{len(saw['broken_guards'])} broken", not saw["broken_guards"]),
        (
            f"gain at least {TIMES_BEST_CLASSIC:g} times the best classic's",
            f"{numbers.score(score)} and {numbers.score(best['score'])} ({best['policy']})",
            score > 0 and score >= TIMES_BEST_CLASSIC * best["score"],
        ),
        (
            f"mean TTFT down {-HEAVY_CHANGE:.0%} or more where each source queues longest",
            ", ".join(numbers.change(change) for change in changes) or numbers.UNDEFINED,
            bool(changes) and max(changes) <= HEAVY_CHANGE,
        ),
        (
            f"within {MARGIN:.0%} of FCFS where it is idle",
            ", ".join(numbers.change(row["mean_change"]) for row in idle) or "none is idle",
            all(abs(row["mean_change"]) <= MARGIN for row in idle),
        ),
    ]
    return [{"aim": aim, "seen": seen, "met": bool(met)} for aim, seen, met in aims]


def plain(value: Any) -> Any:
    """Return what JSON can hold: numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def markdown(sheet: Mapping[str, Any]) -> str:
    """Write a proof sheet, after `plain`, to be read."""
    gates = {gate["gate"]: gate for gate in sheet["gates"]}
    parts = [
        f"# {sheet['policy']['name']}: {sheet['verdict']}",
        _traffic_line(sheet),
        *(["**The held-out windows had been opened before: SPENT.**"] if sheet["spent"] else []),
    ]
    if sheet["aims"]:
        met: Column = lambda row: "yes" if row["met"] else "no"  # noqa: E731
        columns: dict[str, Column] = {"aim": "aim", "seen": "seen", "met": met}
        parts += ["## Beside what was aimed at", _table(sheet["aims"], columns)]
    titles = {"G6": "Held-out windows", "G3": "Validation", "G5": "Other physics", "G2": "Tuning"}
    for gate, title in titles.items():
        saw = gates.get(gate, {}).get("saw", {})
        if "configurations" in saw:
            rows = saw["configurations"]
            parts += [f"## {title}", f"Engine {saw['engine']}.", _table(rows, _CONFIGURATION)]
            parts += [_GUARDS, _guards(rows)]
            if "standings" in saw:
                parts += [_table(saw["standings"], _STANDING)]
    lineage = ["It comes from no archive: there is no lineage."]
    if sheet["lineage"]:
        lineage = ["## Lineage", _table(sheet["lineage"], _ANCESTOR)]
    parts += [
        "## Gates",
        _table(sheet["gates"], _GATE),
        "## What it does",
        "Whom it would admit first, of requests of all kinds that wait at the same time.",
        _table(sheet["does"], _SITUATION),
        "## The policy",
        f"sha256 `{sheet['policy']['sha256']}`",
        _code(sheet["policy"]["text"].rstrip()),
        *lineage,
        "## Windows",
        f"Held-out set `{sheet['windows']['held_out_sha256']}`; rows and hashes of every window "
        "are in the JSON beside this sheet.",
        _table(sheet["windows"]["sources"], _SOURCE),
        "## Ledger",
        _table(sheet["ledger"], _ENTRY),
        "## Made by",
        _made_by(sheet),
    ]
    return "\n\n".join(parts) + "\n"


def _traffic_line(sheet: Mapping[str, Any]) -> str:
    kinds = {source["kind"] for source in sheet["windows"]["sources"]}
    traffic = "Traffic: " + " and ".join(sorted(kinds)) + "."
    real = next((one for one in sheet["gates"] if one["gate"] == "G7"), None)
    measured = (
        f"Real vLLM: {real['outcome']}, {real['sentence']}."
        if real
        else "Not measured in real vLLM (G7)."
    )
    return f"{traffic} Everything is simulated, on {sheet['config']['engine']}. {measured}"


#: What stands in a column: a field of the row, or what is made of the row.
Column = str | Callable[[Mapping[str, Any]], Any]


def _table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, Column]) -> str:
    def line(cells: Iterable[Any]) -> str:
        texts = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
        return "| " + " | ".join(texts) + " |"

    def cells(row: Mapping[str, Any]) -> Iterable[Any]:
        return (row[of] if isinstance(of, str) else of(row) for of in columns.values())

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, map(cells, rows))])


def _code(text: str) -> str:
    """Fence a text in, whatever it says."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{text}\n{fence}"


def _change(row: Mapping[str, Any], name: str) -> str:
    between = numbers.interval(row[f"{name}_change_low"], row[f"{name}_change_high"])
    return numbers.change(row[f"{name}_change"]) + (f" ({between})" if between else "")


def _pays(row: Mapping[str, Any]) -> str:
    return f"{row['pays']}: {numbers.change(row['pays_change'])}" if row["pays"] else "nobody"


_CONFIGURATION: Mapping[str, Column] = {
    "source": "source",
    "load": lambda row: row["load"] + (" (idle)" if row["idle"] else ""),
    "windows": lambda row: f"{row['num_windows']} x {row['num_requests'] // row['num_windows']:,}",
    "mean TTFT": lambda row: _change(row, "mean"),
    "p99 TTFT": lambda row: _change(row, "p99"),
    "won-tied-lost": lambda row: (
        f"{row['wins']}-{row['ties']}-{row['losses']}, p {numbers.p_value(row['p_value'])}"
    ),
    "who pays": _pays,
    "guards": lambda row: "; ".join(row["broken"]) or "none broken",
}
_STANDING: Mapping[str, Column] = {
    "policy": "policy",
    "gain": lambda row: numbers.score(row["score"]),
    "95 % interval": lambda row: f"{numbers.score(row['low'])} to {numbers.score(row['high'])}",
    "guards broken": "broken_guards",
    "goal worse in": lambda row: f"{row['worse']} of {row['num_configurations']}",
}
_SITUATION: Mapping[str, Column] = {
    "load": "load",
    "place": "place",
    "request": "request",
    "tokens": lambda row: f"{row['num_prompt_tokens']:,}",
    "has waited (s)": lambda row: numbers.number(row["wait"]),
    "by arrival": "place_by_arrival",
    "by prompt": "place_by_prompt",
}
_ANCESTOR: Mapping[str, Column] = {
    "candidate": "candidate",
    "seed": "seed",
    "generation": "generation",
    "by": "proposer",
    "bred from": lambda row: ", ".join(map(str, row["parents"])) or "-",
    "score then": lambda row: numbers.score(row["score"]),
    "how": "note",
}
_ENTRY: Mapping[str, Column] = {
    "entry": "number",
    "time": "time",
    "kind": "kind",
    "policy": lambda row: f"`{row['policy_sha256'][:16]}`",
    "spent before": lambda row: (
        "yes" if row.get("spent") else "no" if row["kind"] == "opened" else ""
    ),
    "sha256": lambda row: f"`{row['sha256'][:16]}`",
}
_SOURCE: Mapping[str, Column] = {
    "source": "file",
    "traffic": "kind",
    "tuning": lambda row: len(row["parts"].get("tuning", ())),
    "validation": lambda row: len(row["parts"].get("validation", ())),
    "held-out": lambda row: len(row["parts"].get("held_out", ())),
    "sha256": lambda row: f"`{row['sha256'][:16]}`",
}
_GATE: Mapping[str, Column] = {
    "gate": lambda row: f"{row['gate']} {row['name']}",
    "outcome": "outcome",
    "why": "sentence",
}


_GUARDS = "Every guard, as a change beside FCFS; in bold what is broken."


def _guards(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [{one["guard"]: one for one in row["guards"]} for row in rows]
    columns: dict[str, Column] = {"source": "source", "load": "load"}
    for name, one in {name: one for guards in found for name, one in guards.items()}.items():
        heading = f"{guard_label(name)} ({numbers.change(one['margin'])})"
        columns[heading] = partial(_guard, name)
    return _table(
        [{**row, "guards": guards} for row, guards in zip(rows, found, strict=True)], columns
    )


def _guard(name: str, row: Mapping[str, Any]) -> str:
    found = row["guards"].get(name)
    if found is None:
        return numbers.UNDEFINED
    text = numbers.change(found["change"])
    return f"**{text}**" if found["broken"] else text


def _made_by(sheet: Mapping[str, Any]) -> str:
    config = sheet["config"]
    lines = [f"`{sheet['command']}`", ""]
    versions = ", ".join(f"{name} {number}" for name, number in sheet["versions"].items())
    lines += [f"- {versions}", f"- configuration {config['name']}, sha256 `{config['sha256']}`"]
    lines += [f"- {config['output_length']}"]
    for seed, used in config["evaluations"].items():
        lines += [
            f"- seed {seed}: {used['search']:,} evaluations by the search, {used['control']:,} by "
            "random search"
        ]
    if config["used"]:
        used = ", ".join(
            f"{name} {numbers.number(value)}" for name, value in config["used"].items() if value
        )
        lines += [f"- the run has used: {used}"]
    lines += [f"- gates through {sheet['through']} of {', '.join(GATES)}"]
    return "\n".join(lines)

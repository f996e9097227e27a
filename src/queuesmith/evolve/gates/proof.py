"""The proof sheet: all that a claim about a policy rests on, as JSON and to be read."""

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from queuesmith import numbers
from queuesmith.evaluation.goals import GOALS, MARGIN, guard_label
from queuesmith.evolve.gates.gate import GATES
from queuesmith.evolve.gates.judge import Judgement
from queuesmith.window_sets import PARTS

#: What the numbers may depend on, besides this package.
PACKAGES = ("numpy", "numba", "scipy")
#: Aims that no gate asks for; the sheet says how far they were met.
HEAVY_CHANGE = -0.35
TIMES_BEST_CLASSIC = 2.0


def proof(judgement: Judgement, command: str) -> dict[str, Any]:
    """Return the sheet of a policy that has looked at held-out windows.

    Parameters
    ----------
    command : str
        That makes the sheet again.
    """
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
        parts += ["## Beside what was aimed at", _table(
            ("aim", "seen", "met"),
            ([one["aim"], one["seen"], "yes" if one["met"] else "no"] for one in sheet["aims"]),
        )]  # fmt: skip
    for gate, title in (("G6", "Held-out windows"), ("G3", "Validation"), ("G5", "Other physics"),
                        ("G2", "Tuning")):  # fmt: skip
        saw = gates.get(gate, {}).get("saw", {})
        if "configurations" in saw:
            parts += [f"## {title}", f"Engine {saw['engine']}.", _configurations(saw)]
            parts += [_GUARDS, _guards(saw["configurations"])]
            if "standings" in saw:
                parts += [_standings(saw["standings"])]
    parts += [
        "## Gates",
        _table(
            ("gate", "outcome", "why"),
            ([f"{one['gate']} {one['name']}", one["outcome"], one["sentence"]]
             for one in sheet["gates"]),
        ),
        "## What it does",
        "Whom it would admit first, of requests of all kinds that wait at the same time.",
        _does(sheet["does"]),
        "## The policy",
        f"sha256 `{sheet['policy']['sha256']}`",
        _code(sheet["policy"]["text"].rstrip()),
        *_lineage(sheet),
        "## Windows",
        f"Held-out set `{sheet['windows']['held_out_sha256']}`; rows and hashes of every window "
        "are in the JSON beside this sheet.",
        _table(
            ("source", "traffic", "tuning", "validation", "held-out", "sha256"),
            (
                [source["file"], source["kind"]]
                + [len(source["parts"].get(part, ())) for part in PARTS]
                + [f"`{source['sha256'][:16]}`"]
                for source in sheet["windows"]["sources"]
            ),
        ),
        "## Ledger",
        _ledger(sheet["ledger"]),
        "## Made by",
        _made_by(sheet),
    ]  # fmt: skip
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


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any]) -> str:
        texts = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
        return "| " + " | ".join(texts) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def _code(text: str) -> str:
    """Fence a text in, whatever it says."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{text}\n{fence}"


def _change(row: Mapping[str, Any], name: str) -> str:
    between = numbers.interval(row[f"{name}_change_low"], row[f"{name}_change_high"])
    return numbers.change(row[f"{name}_change"]) + (f" ({between})" if between else "")


def _configurations(saw: Mapping[str, Any]) -> str:
    rows = []
    for row in saw["configurations"]:
        pays = f"{row['pays']}: {numbers.change(row['pays_change'])}" if row["pays"] else "nobody"
        rows.append(
            [
                row["source"],
                row["load"] + (" (idle)" if row["idle"] else ""),
                f"{row['num_windows']} x {row['num_requests'] // row['num_windows']:,}",
                _change(row, "mean"),
                _change(row, "p99"),
                f"{row['wins']}-{row['ties']}-{row['losses']}, p {numbers.p_value(row['p_value'])}",
                pays,
                "; ".join(row["broken"]) or "none broken",
            ]
        )
    head = (
        "source",
        "load",
        "windows",
        "mean TTFT",
        "p99 TTFT",
        "won-tied-lost",
        "who pays",
        "guards",
    )
    return _table(head, rows)


_GUARDS = "Every guard, as a change beside FCFS; in bold what is broken."


def _guards(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(one["guard"] for row in rows for one in row["guards"]))
    lines = []
    for row in rows:
        found = {one["guard"]: one for one in row["guards"]}
        lines.append([row["source"], row["load"], *(_guard(found.get(name)) for name in names)])
    margins = {one["guard"]: one["margin"] for row in rows for one in row["guards"]}
    heads = [f"{guard_label(name)} ({numbers.change(margins[name])})" for name in names]
    return _table(("source", "load", *heads), lines)


def _guard(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return numbers.UNDEFINED
    text = numbers.change(row["change"])
    return f"**{text}**" if row["broken"] else text


def _standings(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ("policy", "gain", "95 % interval", "guards broken", "goal worse in"),
        (
            [
                row["policy"],
                numbers.score(row["score"]),
                f"{numbers.score(row['low'])} to {numbers.score(row['high'])}",
                row["broken_guards"],
                f"{row['worse']} of {row['num_configurations']}",
            ]
            for row in rows
        ),
    )


def _does(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ("load", "place", "request", "tokens", "has waited (s)", "by arrival", "by prompt"),
        (
            [row["load"], row["place"], row["request"], f"{row['num_prompt_tokens']:,}",
             numbers.number(row["wait"]), row["place_by_arrival"], row["place_by_prompt"]]
            for row in rows
        ),
    )  # fmt: skip


def _lineage(sheet: Mapping[str, Any]) -> list[str]:
    if not sheet["lineage"]:
        return ["It comes from no archive: there is no lineage."]
    return [
        "## Lineage",
        _table(
            ("candidate", "seed", "generation", "by", "bred from", "score then", "how"),
            (
                [
                    one["candidate"],
                    one["seed"],
                    one["generation"],
                    one["proposer"],
                    ", ".join(map(str, one["parents"])) or "-",
                    numbers.score(one["score"]),
                    one["note"],
                ]
                for one in sheet["lineage"]
            ),
        ),
    ]


def _ledger(entries: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ("entry", "time", "kind", "policy", "spent before", "sha256"),
        (
            [
                entry["number"],
                entry["time"],
                entry["kind"],
                f"`{entry['policy_sha256'][:16]}`",
                "yes" if entry.get("spent") else "no" if entry["kind"] == "opened" else "",
                f"`{entry['sha256'][:16]}`",
            ]
            for entry in entries
        ),
    )


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

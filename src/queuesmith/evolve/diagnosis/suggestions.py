"""What a diagnosis shows to be wanting: one sentence of numbers for each finding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queuesmith.evaluation.goals import MARGIN
from queuesmith.evolve.diagnosis.payers import worst_off
from queuesmith.evolve.gates.measurements import standing_order
from queuesmith.numbers import UNDEFINED, change, number, share

#: p99 TTFT over FCFS's from which half of the usual guard's margin is used up.
PENALISED = 1.025
#: Share of tuning cells that one classic may win before a search mostly learns that classic.
MONOCULTURE = 0.8
#: Difference of TTFTs, over FCFS's mean, below which two policies are as good as one.
ALIKE = 0.02
#: Sentences of one kind, the weightiest first.
MOST = 4

Row = Mapping[str, Any]


def suggest(diagnosis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Derive suggestions from a diagnosis.

    Returns
    -------
    list of dict
        ``kind``, ``text`` and ``numbers``, which the text was made of. Kinds in their order:
        ``guard`` (one is broken, or p99 TTFT near it), ``lost`` (a classic that breaks none is
        better), ``overfit`` (validation windows do not bear out the tuning ones), ``alike`` (it is
        a classic by another name), ``windows`` (one classic wins nearly all tuning windows),
        ``idle`` (nothing to win there) and ``good`` (nothing was found wanting).
    """
    kinds = (_guards, _losses, _overfit, _alike, _windows, _idle)
    found = [one for kind in kinds for one in kind(diagnosis)]
    if not any(one["kind"] in ("guard", "lost", "overfit") for one in found):
        found.insert(0, _overall(diagnosis))
    return found


def _say(kind: str, text: str, **numbers: Any) -> dict[str, Any]:
    return {"kind": kind, "text": text, "numbers": numbers}


def configurations(diagnosis: Mapping[str, Any]) -> list[tuple[str, Row]]:
    """Return each configuration once, with the part in which the candidate does worse."""
    worse: dict[tuple[str, str], tuple[str, Row]] = {}
    for name, part in diagnosis["parts"].items():
        for row in part["configurations"]:
            key = row["source"], row["load"]
            if key not in worse or _value(row) < _value(worse[key][1]):
                worse[key] = name, row
    return list(worse.values())


def _value(row: Row) -> float:
    return float("-inf") if row["score"] is None else float(row["score"])


def _where(part: str, row: Row) -> str:
    return f"on {row['source']} at {row['load']} ({part} windows)"


def _place(part: str, row: Row) -> dict[str, Any]:
    return {"part": part, "source": row["source"], "load": row["load"]}


def _guards(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say where a guard is broken or p99 TTFT is near it, who pays, who keeps them there."""
    worst: dict[tuple[str, str], tuple[bool, float, str, Row]] = {}
    for part, values in diagnosis["parts"].items():
        for row in values["configurations"]:
            ratio = 1 + (row["p99_change"] or 0.0)
            found = (not row["broken"], -ratio, part, row)
            if row["broken"] or ratio > PENALISED:
                key = row["source"], row["load"]
                worst[key] = min(worst.get(key, found), found, key=lambda one: one[:3])
    for _, less, part, row in sorted(worst.values(), key=lambda one: one[:3])[:MOST]:
        who, ratio = worst_off(row["paid"]), -less
        broken = f"Breaks {len(row['broken'])} guard(s) {_where(part, row)}: " + "; ".join(
            row["broken"]
        )
        near = f"Is near breaking a guard {_where(part, row)}: p99 TTFT is {ratio:.3f} x fcfs's"
        said = [broken if row["broken"] else near]
        longer = who["p99_change"] or 0.0
        if longer > MARGIN:
            said.append(
                f"At their own p99, {told(who)} wait {1 + longer:.2f} x as long as under fcfs"
            )
        keeps = [one for one in row["clean"] if one["policy"] != "fcfs" and _value(one) > MARGIN]
        if keeps:
            best = max(keeps, key=_value)
            said.append(
                f"{best['policy']} breaks none there and gains {best['score']:+.3f} "
                f"({signed(row['score'])} here)"
            )
        if ratio > PENALISED:
            said.append(
                f"Serving first whoever has waited about {number(row['ttft_p99_fcfs'])} s (fcfs's "
                "p99, as a share of the oldest wait or of the peak backlog) would limit it"
            )
        numbers = {"p99_ratio": ratio, "broken": list(row["broken"]), "who": dict(who)}
        yield _say("guard", ". ".join(said) + ".", **_place(part, row), **numbers)


def signed(value: float | None) -> str:
    """Return a score with its sign."""
    return UNDEFINED if value is None else f"{value:+.3f}"


def _losses(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say where a classic scores better, on whom it gains and at whose cost."""
    lost = []
    for part, row in configurations(diagnosis):
        best = row["best_classic"]
        if row["score"] is None or best["score"] is None or best["policy"] == "fcfs":
            continue
        if row["score"] < best["score"] - MARGIN:
            lost.append((row["score"] - best["score"], part, row))
    for less, part, row in sorted(lost, key=lambda one: one[:2])[:MOST]:
        best = row["best_classic"]
        mine, other = row["mean_change"], best["mean_ratio"] - 1
        means = f"mean TTFT beside fcfs {change(other)}, {change(mine)} here"
        text = (
            f"Loses to {best['policy']} {_where(part, row)}: {row['score']:+.3f} against "
            f"{best['score']:+.3f}; {means}{_from_whom(row) if other < mine - MARGIN else ''}."
        )
        numbers = {"to": best["policy"], "less": less, "mean_change": mine}
        yield _say("lost", text, **_place(part, row), **numbers, mean_change_of_classic=other)


def _from_whom(row: Row) -> str:
    """Say on which prompts the best classic gains over the candidate, and at whose cost."""
    pairs = list(zip(row["paid"]["prompt"], row["best_classic_paid"]["prompt"], strict=True))
    gaps = [(here["ttft_mean"] - there["ttft_mean"], here) for here, there in pairs]
    gap, who = max(gaps, key=lambda one: one[0])
    cost, payer = min(gaps, key=lambda one: one[0])
    text = f"; it gains most on {told(who)}: {number(gap)} s"
    if cost > -MARGIN * row["ttft_mean_fcfs"]:
        return f"{text}, at nobody's cost"
    return f"{text}, at the cost of {told(payer)}: {number(-cost)} s"


def _overfit(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say when validation windows do not bear out the tuning ones."""
    if not {"tuning", "validation"} <= set(diagnosis["parts"]):
        return
    boards = [diagnosis["parts"][part]["leaderboard"] for part in ("tuning", "validation")]
    (tuning, *_), (validation, *_) = boards
    if tuning["score"] is None or validation["score"] is None or validation["high"] is None:
        return
    fall = tuning["score"] - validation["score"]
    if fall <= MARGIN or tuning["score"] <= validation["high"]:
        return
    clean = [
        [row for row in board if row["kind"] == "classic" and not row["broken_guards"]]
        for board in boards
    ]
    best = [max(rows, key=_value)["score"] for rows in clean]
    yield _say(
        "overfit",
        f"Scores {tuning['score']:+.3f} on tuning windows and {validation['score']:+.3f} (up to "
        f"{validation['high']:+.3f}) on validation windows; the best classic {best[0]:+.3f} and "
        f"{best[1]:+.3f}. More windows for each generation, or fewer nodes, would fit less.",
        tuning=tuning["score"],
        validation=validation["score"],
        validation_high=validation["high"],
        best_classic=best,
    )


def _alike(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say when the candidate is a classic by another name."""
    nearest = diagnosis["nearest"]["times"][0]
    if nearest["difference"] < ALIKE:
        text = (
            f"Serves requests at nearly the times of {nearest['policy']}: they differ by "
            f"{share(nearest['difference'])} of fcfs's mean TTFT."
        )
        yield _say("alike", text, **nearest)


def _windows(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say when the tuning windows all teach the same."""
    wins = diagnosis["parts"].get("tuning", {}).get("wins", {})
    total = sum(wins.values())
    name, most = max(wins.items(), key=lambda one: one[1], default=("", 0.0))
    if most > MONOCULTURE * total:
        text = (
            f"{name} wins {number(most)} of {number(total)} tuning windows x loads: other sources "
            "or loads, or a larger windows.picked_from, would teach a search more than that policy."
        )
        yield _say("windows", text, policy=name, wins=most, cells=total)


def _idle(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say where order cannot matter."""
    rows = diagnosis["parts"].get("tuning", {}).get("configurations", ())
    idle = [f"{row['source']} at {row['load']}" for row in rows if row["idle"]]
    if idle:
        text = f"Nothing can be won where fcfs queues for less than one step: {', '.join(idle)}."
        yield _say("idle", text, configurations=idle)


def _overall(diagnosis: Mapping[str, Any]) -> dict[str, Any]:
    """Say who leads over all configurations together, or that nobody does but the candidate.

    No classic may be better by more than the margin in any one configuration, and one of them still
    be better over all of them together.
    """
    leaders = []
    for part, values in diagnosis["parts"].items():
        mine, *others = values["leaderboard"]
        best = min(others, key=standing_order)
        ahead = standing_order(best) < standing_order(mine)
        if ahead and signed(best["score"]) != signed(mine["score"]):
            leaders.append(
                f"{best['policy']} leads on {part} windows with {signed(best['score'])} against "
                f"{signed(mine['score'])}"
            )
    if leaders:
        return _say("lost", f"Over all configurations together {'; '.join(leaders)}.")
    rows = [row for _, row in configurations(diagnosis)]
    least = min(rows, key=_value)
    return _say(
        "good",
        f"Breaks no guard, and no classic that breaks none is better by more than {MARGIN:g} in "
        f"any of {len(rows)} configurations. Least is gained on {least['source']} at "
        f"{least['load']}: {signed(least['score'])}.",
        num_configurations=len(rows),
        least=least["score"],
    )


def told(who: Row) -> str:
    """Name a quarter of the requests and what it is made by.

    Examples
    --------
    >>> told({"who": "the longest prompts", "low": 4000.0, "high": 9100.0})
    'the longest prompts (4,000 to 9,100 tokens)'
    >>> told({"who": "in bursts", "low": 0.2, "high": 0.7})
    'requests in bursts (gaps of 0.200 to 0.700 x the mean)'
    """
    if "prompts" in who["who"]:
        return f"{who['who']} ({who['low']:,.0f} to {who['high']:,.0f} tokens)"
    low, high = (number(who[end]) for end in ("low", "high"))
    return f"requests {who['who']} (gaps of {low} to {high} x the mean)"


def lost_cells(part: Mapping[str, Any]) -> Sequence[Row]:
    """Return the windows x loads that the candidate lost to a classic, the largest loss first."""
    lost = [row for row in part["cells"] if row["lost"]]
    return sorted(lost, key=lambda row: row["score"] - row["best_classic"])

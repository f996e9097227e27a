"""What to try next, in words: every sentence comes from numbers of a diagnosis, which it names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queuesmith.evaluation.goals import MARGIN
from queuesmith.evolve.diagnosis.payers import worst_off
from queuesmith.numbers import change, number, share

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

    Parameters
    ----------
    diagnosis : mapping
        Of schema ``queuesmith.diagnosis/1``; `suggestions` is not looked at.

    Returns
    -------
    list of dict
        ``kind``, ``text`` and ``numbers``, which the text was made of. Kinds in their order:
        ``guard`` (one is broken, or p99 TTFT near it), ``lost`` (a classic that breaks none is
        better), ``overfit`` (validation
        windows do not bear out the tuning ones), ``alike`` (it is a classic by another name),
        ``windows`` (one classic wins nearly all tuning windows), ``idle`` (nothing to win there)
        and ``good`` (nothing was found wanting).
    """
    kinds = (_guards, _losses, _overfit, _alike, _windows, _idle)
    found = [one for kind in kinds for one in kind(diagnosis)]
    if not any(one["kind"] in ("guard", "lost", "overfit") for one in found):
        found.insert(0, _good(diagnosis))
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


def _guards(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say where a guard is broken or p99 TTFT is near it, who pays, who keeps them there."""
    lost = []
    for part in diagnosis["parts"]:
        for row in diagnosis["parts"][part]["configurations"]:
            ratio = 1 + (row["p99_change"] or 0.0)
            if row["broken"] or ratio > PENALISED:
                lost.append((not row["broken"], -ratio, part, row))
    told_of: set[tuple[str, str]] = set()
    for _, ratio, part, row in sorted(lost, key=lambda one: one[:3]):
        key = row["source"], row["load"]
        if key in told_of or len(told_of) == MOST:
            continue
        told_of.add(key)
        who = worst_off(row["paid"])
        where = _where(part, row)
        if row["broken"]:
            text = f"Breaks {len(row['broken'])} guard(s) {where}: {'; '.join(row['broken'])}"
        else:
            text = f"Is near breaking a guard {where}: p99 TTFT is {-ratio:.3f} x that of fcfs"
        worst = who["p99_change"] or 0.0
        if worst > MARGIN:
            text += (
                f". At their own p99, {told(who)} wait {1 + worst:.2f} x as long as under fcfs"
                f" ({number(who['ttft_p99'])} s for {number(who['ttft_p99_fcfs'])} s)"
            )
        others = [
            one
            for one in row["clean"]
            if one["policy"] != "fcfs" and (one["score"] or 0.0) > MARGIN
        ]
        if others:
            best = max(others, key=lambda one: one["score"])
            text += (
                f". {best['policy']} breaks none there and gains {best['score']:+.3f} "
                f"({_signed(row['score'])} here)"
            )
        if -ratio > PENALISED:
            text += (
                f". A bound that serves whoever has waited about {number(row['ttft_p99_fcfs'])} s "
                "first (fcfs's p99 there), put as a share of the oldest wait or of the peak "
                "backlog so that it follows the load, would limit what they pay"
            )
        yield _say(
            "guard",
            f"{text}.",
            part=part,
            source=row["source"],
            load=row["load"],
            p99_ratio=-ratio,
            broken=list(row["broken"]),
            who=dict(who),
        )


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{value:+.3f}"


def _losses(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say where a classic scores better, and with whom it does so."""
    lost = []
    for part, row in configurations(diagnosis):
        best = row["best_classic"]
        if row["score"] is None or best["score"] is None:
            continue
        if best["policy"] != "fcfs" and row["score"] < best["score"] - MARGIN:
            lost.append((row["score"] - best["score"], part, row))
    for less, part, row in sorted(lost, key=lambda one: one[:2])[:MOST]:
        best = row["best_classic"]
        text = (
            f"Loses to {best['policy']} {_where(part, row)}: {row['score']:+.3f} against "
            f"{best['score']:+.3f}"
        )
        mine, other = row["mean_change"], best["mean_ratio"] - 1
        if other < mine - MARGIN:
            text += (
                f". Its mean TTFT is {change(other)} beside fcfs ({change(mine)} here)"
                f"{_from_whom(row)}"
            )
        else:
            text += f". Its mean TTFT is no lower ({change(other)}, {change(mine)} here)"
        yield _say(
            "lost",
            f"{text}.",
            part=part,
            source=row["source"],
            load=row["load"],
            to=best["policy"],
            less=less,
            mean_change=mine,
            mean_change_of_classic=other,
        )


def _from_whom(row: Row) -> str:
    """Say on which prompts the best classic gains over the candidate, and at whose cost."""
    pairs = list(zip(row["paid"]["prompt"], row["best_classic_paid"]["prompt"], strict=True))
    gaps = [(here["ttft_mean"] - there["ttft_mean"], here) for here, there in pairs]
    gap, who = max(gaps, key=lambda one: one[0])
    text = f"; it gains most on {told(who)}, who wait {number(gap)} s less under it"
    cost, payer = min(gaps, key=lambda one: one[0])
    if cost > -MARGIN * row["ttft_mean_fcfs"]:
        return f"{text}, and no quarter of the prompts pays for it"
    return (
        f"{text}, at the cost of {told(payer)}, who wait {number(-cost)} s longer: here they are "
        f"protected more (p99 of all {1 + (row['p99_change'] or 0):.2f} x fcfs's, under it "
        f"{row['best_classic']['p99_ratio']:.2f} x)"
    )


def _overfit(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say when validation windows do not bear out the tuning ones."""
    if not {"tuning", "validation"} <= set(diagnosis["parts"]):
        return
    tuning, validation = (
        diagnosis["parts"][part]["leaderboard"][0] for part in ("tuning", "validation")
    )
    if tuning["score"] is None or validation["score"] is None or validation["high"] is None:
        return
    fall = tuning["score"] - validation["score"]
    if fall <= MARGIN or tuning["score"] <= validation["high"]:
        return
    best = [
        max(
            (
                row
                for row in diagnosis["parts"][part]["leaderboard"]
                if row["kind"] == "classic" and not row["broken_guards"]
            ),
            key=_value,
        )
        for part in ("tuning", "validation")
    ]
    yield _say(
        "overfit",
        f"Scores {tuning['score']:+.3f} on tuning windows, above the interval of validation "
        f"windows ({validation['score']:+.3f}, up to {validation['high']:+.3f}), while the best "
        f"classic goes from {best[0]['score']:+.3f} to {best[1]['score']:+.3f}: score each "
        "generation on more windows, or keep fewer nodes.",
        tuning=tuning["score"],
        validation=validation["score"],
        validation_high=validation["high"],
        best_classic=[row["score"] for row in best],
    )


def _alike(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say when the candidate is a classic by another name."""
    nearest = diagnosis["nearest"]["times"][0]
    if not nearest["difference"] < ALIKE:
        return
    yield _say(
        "alike",
        f"Serves requests at nearly the times of {nearest['policy']} (they differ by "
        f"{share(nearest['difference'])} of fcfs's mean TTFT): it is that policy in other words.",
        **nearest,
    )


def _windows(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say when the tuning windows all teach the same."""
    part = diagnosis["parts"].get("tuning")
    if part is None:
        return
    total = sum(part["wins"].values())
    name, wins = max(part["wins"].items(), key=lambda one: one[1])
    if wins <= MONOCULTURE * total:
        return
    yield _say(
        "windows",
        f"{name} wins {number(wins)} of {number(total)} tuning windows x loads, so a search "
        f"learns {name} there: add sources or loads, or raise windows.picked_from, until "
        "different classics win.",
        policy=name,
        wins=wins,
        cells=total,
    )


def _idle(diagnosis: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Say where order cannot matter."""
    idle = [
        f"{row['source']} at {row['load']}"
        for row in diagnosis["parts"].get("tuning", {}).get("configurations", ())
        if row["idle"]
    ]
    if idle:
        yield _say(
            "idle",
            f"Nothing can be won where fcfs queues for less than one step: {', '.join(idle)}. "
            "Heavier loads would teach a search more.",
            configurations=idle,
        )


def _good(diagnosis: Mapping[str, Any]) -> dict[str, Any]:
    rows = [row for _, row in configurations(diagnosis)]
    least = min(rows, key=_value)
    return _say(
        "good",
        f"No classic that breaks no guard is better by more than {MARGIN:g} in any of the "
        f"{len(rows)} configurations, and no guard is broken. Least is gained on "
        f"{least['source']} at {least['load']}: {_signed(least['score'])}.",
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

"""A plan in sentences, and what limits it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith import numbers
from queuesmith.evaluation.describe import named
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.judge import MIN_WINDOWS, REFERENCE
from queuesmith.traces.trace import Trace

LIMITS = ("ttft", "tpot", "e2el")
#: Requests that may miss the SLO, below which a capacity hangs on single requests.
_MIN_MISSES = 10
#: A window shorter than so many mean E2ELs is mostly ramp-up.
_MIN_TURNS = 5
#: From this ratio on, the longest TTFT is set beside FCFS's.
_MUCH_LONGER = 1.25
#: Share of requests that arrive together, above which that is worth a sentence.
_FEW_TOGETHER = 0.001

Row = Mapping[str, Any]


def answer(document: Mapping[str, Any]) -> dict[str, Any]:
    """Name the policy to run on each engine, and say in sentences what it carries and how surely.

    Returns
    -------
    dict
        `policies`: engine to the policy that carries most of those that only change order, can be
        deployed, break no guard, and carry more than FCFS beyond chance, beyond a tie and for
        traffic that lasts; without one, FCFS; None when an idle engine misses the SLO, or FCFS
        holds it at no rate and nothing better is sure. `traffic`, a sentence per engine on what it
        finishes and what comes already. `sentences`.
    """
    config = document["config"]
    several = len(config["engines"]) > 1
    chosen: dict[str, str | None] = {}
    sentences: list[str] = []
    traffic: list[str] = []
    for engine in config["engines"]:
        rows = [row for row in document["capacities"] if row["engine"] == engine["name"]]
        best, said = _engine_answer(rows, engine, config)
        chosen[engine["name"]] = best
        lead = f"{engine['name']}: " if several else ""
        traffic.append(lead + _traffic(rows, engine, config))
        sentences += [f"{engine['name']}: {sentence}" for sentence in said] if several else said
    if several:
        sentences.insert(0, _across(document["capacities"], chosen))
    if config["num_windows"] == 1:
        sentences.append("One window has no interval: this cannot say how surely.")
    elif config["num_windows"] < MIN_WINDOWS:
        sentences.append(
            f"Only {config['num_windows']} windows of requests: a hint, not evidence, which takes "
            f"{MIN_WINDOWS} and more."
        )
    if document["origin"]["kind"] == "modelled":
        sentences.append("The traffic is modelled: confirm this on a trace of your own.")
    return {"policies": chosen, "traffic": traffic, "sentences": sentences}


def _traffic(rows: Sequence[Row], engine: Row, config: Row) -> str:
    """Say what the engine finishes, what comes already, and how that fares under FCFS."""
    reference = next(row for row in rows if row["policy"] == REFERENCE)
    rate, met = engine["rate"], reference["at_own"]["attainment"]
    missed = "" if met >= config["attainment"] else ", so the SLO is missed already"
    return (
        f"This engine finishes {numbers.number(engine['carried'])} requests/s of this traffic "
        f"under {REFERENCE}; the trace's own rate is {numbers.number(rate)} requests/s (rho "
        f"{rate / engine['carried']:.2f}; {rate * config['prompt_tokens']:,.0f} prompt and "
        f"{rate * config['output_tokens']:,.0f} output tokens/s), at which "
        f"{numbers.share(met)} meet the SLO under {REFERENCE}{missed}."
    )


def _engine_answer(rows: Sequence[Row], engine: Row, config: Row) -> tuple[str | None, list[str]]:
    """Return the policy for one engine and the sentences about it."""
    reference = next(row for row in rows if row["policy"] == REFERENCE)
    if all(row["state"] in ("unreachable", "below") for row in rows):
        return None, [_nothing_holds(reference, engine, config)]
    able = [
        row
        for row in rows
        if row["kind"] == "policy" and row["lasting_ratio_low"] > 1 + MARGIN and not row["broken"]
    ]
    best = able[0] if able else reference
    if best["state"] in ("unreachable", "below"):
        why = "that may be chance"
        if rows[0]["kind"] != "policy":
            why = _apart(rows[0])
        elif rows[0]["broken"]:
            why = f"breaks guards: {named(rows[0]['broken'])}"
        sentences = [
            _nothing_holds(reference, engine, config),
            f"{rows[0]['policy']} holds it up to {_amount(rows[0])}, but {why}.",
            *_breaking(rows[1:]),
        ]
        return None, sentences
    fleeting = any(row["verdict"] == "more" and _beyond(row) for row in rows)
    sentences = [_carries(best, reference, config, fleeting)]
    if best["state"] == "found":
        sentences.append(_in_other_units(best, engine))
        if _beyond(best):
            sentences.append(_what_lasts(best, reference, config))
        sentences.append(_what_breaks(best, reference, config))
    alike = [
        row["policy"]
        for row in rows
        if row["kind"] == "policy" and row is not best and _close(row["rate"], best["rate"])
    ]
    if len(alike) == len([row for row in rows if row["kind"] == "policy"]) - 1 and alike:
        every = "Both" if len(alike) == 1 else f"All {len(alike) + 1}"
        sentences.append(f"{every} policies carry the same, within {MARGIN:.0%}.")
    elif alike:
        verb = "carries" if len(alike) == 1 else "carry"
        sentences.append(f"{_listed(alike)} {verb} as much, within {MARGIN:.0%}.")
    top = [row for row in rows[:1] if row["rate"] > best["rate"]]
    sentences += [_why_not(row, best) for row in top]
    sentences += _breaking([row for row in rows[1:] if row["rate"] > best["rate"]])
    last = rows[-1]
    if last["rate"] < best["rate"] * (1 - MARGIN):
        sentences.append(_breaks_first(last))
    sentences += [
        f"{row['policy']} meets the target again at {_listed_rates(row['regained'])} requests/s: "
        "its attainment does not fall steadily, and the capacity is below the first break."
        for row in rows
        if row["regained"]
    ]
    return best["policy"], sentences


def _carries(best: Row, reference: Row, config: Row, fleeting: bool) -> str:
    share = numbers.share(config["attainment"])
    if best["state"] == "above":
        lead = f"Stay with {REFERENCE}" if best is reference else f"Run {best['policy']}"
        return (
            f"{lead}: {share} of requests meet the SLO at every rate searched, up to "
            f"{numbers.number(best['held'])} requests/s, so there is no capacity to name."
        )
    if best is reference:
        others = (
            "what another order carries beyond that does not last"
            if fleeting
            else "no policy that only changes order surely carries more without breaking a guard"
        )
        return (
            f"Stay with {REFERENCE}: it carries {_rate(best)} with {share} of requests within the "
            f"SLO, and {others}."
        )
    gain = ""
    if math.isfinite(best["ratio"]):
        gain = f", {_ratio(best)} of what {REFERENCE} carries"
    elif reference["state"] in ("unreachable", "below"):
        gain = f", where {REFERENCE} holds it at no rate"
    return (
        f"Run {best['policy']}: it carries {_rate(best)} with {share} of requests within the SLO"
        f"{gain}."
    )


def _rate(row: Row) -> str:
    return f"{numbers.number(row['rate'])} requests/s{_ends(row, 'rate')}"


def _amount(row: Row) -> str:
    return "every rate searched" if row["state"] == "above" else _rate(row)


def _ratio(row: Row) -> str:
    ends = ""
    if not math.isnan(row["ratio_low"]):
        high = f"{row['ratio_high']:.2f}" if math.isfinite(row["ratio_high"]) else "more"
        ends = f" [{row['ratio_low']:.2f} to {high}]"
    return f"{row['ratio']:.2f} x{ends}"


def _ends(row: Row, name: str) -> str:
    """Return an interval; an end beyond the search is said to be that."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if math.isnan(low) or math.isnan(high):
        return ""
    top = numbers.number(high) if math.isfinite(high) else "beyond the search"
    return f" [{numbers.number(low) if low else 'below the search'} to {top}]"


def _in_other_units(best: Row, engine: Row) -> str:
    text = (
        f"That is rho {best['rho']:.2f}, and {numbers.number(best['multiple'])} times the traffic "
        f"as it is ({numbers.number(engine['rate'])} requests/s)"
    )
    if best["multiple"] < 1:
        return f"{text}: this engine does not carry it within the SLO."
    if 0 < best["multiple_low"] <= 1:
        return f"{text}; the interval includes less than what comes already."
    return f"{text}."


def _beyond(row: Row) -> bool:
    """Tell whether a capacity is above what the engine finishes when there is always work."""
    return bool(row["at_held"] and row["held"] > row["carried"])


def _what_lasts(best: Row, reference: Row, config: Row) -> str:
    text = (
        f"That is more than the engine finishes, and holds for windows of "
        f"{config['window_len']:,} requests: for traffic that lasts count on no more than "
        f"{numbers.number(best['carried'])} requests/s"
    )
    if best is reference or not math.isfinite(best["lasting_ratio"]):
        return f"{text}."
    return f"{text}, {best['lasting_ratio']:.2f} x of {REFERENCE}'s."


def _what_breaks(best: Row, reference: Row, config: Row) -> str:
    """Say which limit is missed just above the capacity, and how long the longest wait is."""
    edge = best["at_broke"]
    missed = edge["num_requests"] - edge["met"]
    by = [(edge[f"over_{name}"], name) for name in LIMITS if config["slo"][name] is not None]
    if edge["unserved"]:
        by.append((edge["unserved"], "unserved"))
    count, name = max(by, key=lambda pair: pair[0])
    what = "are given up by their clients"
    if name != "unserved":
        what = f"exceed {name} {config['slo'][name]:g} s"
    longest = best["at_held"]["ttft_max"]
    base = reference["at_held"]["ttft_max"] if reference["at_held"] else math.inf
    paid = ""
    if longest > _MUCH_LONGER * base:
        paid = (
            f", against {numbers.number(base)} s at {REFERENCE}'s: some of the gain is paid by the "
            f"{numbers.share(1 - config['attainment'])} that may miss"
        )
    return (
        f"What breaks first: {numbers.share(count / missed)} of the requests that miss just above "
        f"it {what}. Just below it the longest TTFT is {numbers.number(longest)} s{paid}."
    )


def _nothing_holds(reference: Row, engine: Row, config: Row) -> str:
    idle, target = reference["idle"], numbers.share(config["attainment"])
    limits = [
        f"{numbers.count(idle[f'over_{name}'])} exceed {name} {config['slo'][name]:g} s"
        for name in LIMITS
        if idle[f"over_{name}"]
    ]
    if reference["state"] == "unreachable":
        return (
            f"This SLO cannot be met at any rate: of {numbers.count(idle['num_requests'])} "
            f"requests, each alone on an idle engine, {_listed(limits)}, so at most "
            f"{numbers.share(idle['attainment'])} are within it, not {target}. Loosen that limit "
            "or take a faster engine."
        )
    lowest, together = reference["broke"], config["share_together"]
    bursts = (
        f" {numbers.share(together)} of requests arrive at the very instant of the one before, "
        "which no slower rate pulls apart."
        if together > _FEW_TOGETHER
        else ""
    )
    return (
        f"{REFERENCE} misses the target of {target} even at {numbers.number(lowest)} requests/s "
        f"(rho {lowest / engine['carried']:.3g}), the lowest rate searched, where "
        f"{numbers.share(reference['at_broke']['attainment'])} of requests meet the SLO; alone on "
        f"an idle engine {numbers.share(idle['attainment'])} would.{bursts}"
    )


def _breaks_first(row: Row) -> str:
    if row["state"] in ("unreachable", "below"):
        return f"{row['policy']} breaks first: it holds at no rate searched."
    return f"{row['policy']} breaks first, at {_rate(row)}."


def _apart(row: Row) -> str:
    if row["kind"] == "oracle":
        return "knows exact output lengths, which no server does"
    return "brings its own engine settings; compare it with those settings for all"


def _why_not(row: Row, best: Row) -> str:
    """Say what keeps a policy with a higher capacity from being the answer."""
    name = f"{row['policy']} carries {_amount(row)}"
    if row["kind"] != "policy":
        return f"{name} but {_apart(row)}."
    if row["broken"]:
        return f"{name}, {_ratio(row)} of {REFERENCE}'s, but breaks guards: {named(row['broken'])}."
    if _beyond(row) and row["verdict"] == "more":
        return (
            f"{name}, {_ratio(row)} of {REFERENCE}'s, but in short windows only: that is more than "
            f"the {numbers.number(row['carried'])} requests/s that the engine finishes."
        )
    if math.isnan(row["ratio_low"]):
        return f"{name}, but nothing says how surely that is more."
    if _close(row["rate"], best["rate"]):
        return f"{name}, which is a tie."
    return f"{name}, {_ratio(row)} of {REFERENCE}'s, which may be chance."


def _breaking(rows: Sequence[Row]) -> list[str]:
    """Name the others that would carry more and break guards."""
    broken = [row["policy"] for row in rows if row["broken"]]
    if not broken:
        return []
    verb = "breaks" if len(broken) == 1 else "break"
    return [f"{_listed(broken)} {verb} guards, too; the table says which."]


def _across(rows: Sequence[Row], chosen: Mapping[str, str | None]) -> str:
    """Set engines side by side, each under its own best policy."""
    picked = [row for row in rows if chosen.get(row["engine"]) == row["policy"]]
    if not picked:
        return "No engine holds the SLO at any rate searched."
    picked.sort(key=lambda row: -row["rate"])
    parts = [f"{row['engine']} carries {_amount(row)} under {row['policy']}" for row in picked]
    parts += [f"{engine} holds the SLO at no rate" for engine, name in chosen.items() if not name]
    return f"{_listed(parts)}."


def _close(one: float, other: float) -> bool:
    return one == other or abs(one / other - 1) <= MARGIN if other else False


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _listed_rates(rates: Sequence[float]) -> str:
    return _listed([numbers.number(rate) for rate in rates])


def warnings(document: Mapping[str, Any], trace: Trace, asked_windows: int) -> list[str]:
    """Say what limits the answer, beginning with what limits it most."""
    config, found = document["config"], []
    num_windows, window_len = config["num_windows"], config["window_len"]
    if num_windows < MIN_WINDOWS:
        limit = (
            "there is no interval and nothing can be recommended"
            if num_windows == 1
            else "intervals over so few are rough"
        )
        found.append(f"only {num_windows} windows of {window_len} requests: {limit}")
    elif num_windows < asked_windows:
        found.append(
            f"the trace has room for {num_windows} windows of {window_len} requests, not the "
            f"{asked_windows} asked for"
        )
    for engine in config["engines"]:
        lead = f"{engine['name']}: " if len(config["engines"]) > 1 else ""
        rows = [row for row in document["capacities"] if row["engine"] == engine["name"]]
        found += [lead + line for line in _engine_warnings(rows, engine, config)]
    if len({engine["num_dropped"] for engine in config["engines"]}) > 1:
        found.append(
            "engines did not serve the same requests, since some run only on some of them: their "
            "capacities are not of the same traffic"
        )
    if trace.abort_time is not None:
        found.append("requests whose client gave up count as missed, however long they waited")
    return found


def _engine_warnings(rows: Sequence[Row], engine: Row, config: Row) -> list[str]:
    found = []
    num_requests = rows[0]["idle"]["num_requests"]
    allowed = (1 - config["attainment"]) * num_requests
    if allowed < _MIN_MISSES:
        found.append(
            f"{numbers.share(config['attainment'])} of {num_requests:,} requests leaves "
            f"{allowed:.3g} that may miss: every capacity hangs on a few requests; use more or "
            "longer windows"
        )
    beyond = [row for row in rows if _beyond(row)]
    if beyond:
        found.append(
            f"the capacity of {_listed([row['policy'] for row in beyond])} is above the "
            f"{numbers.number(engine['carried'])} requests/s that the engine finishes: the queue "
            f"grows as long as such a rate lasts, and only windows as short as these "
            f"({config['window_len']:,} requests) are over before the SLO breaks; a longer "
            "--window-len would find less"
        )
    reference = next(row for row in rows if row["policy"] == REFERENCE)
    busy = reference["num_windows_overloaded"]
    if busy and reference not in beyond:
        found.append(
            f"at the capacity of {REFERENCE} {busy} of {config['num_windows']} windows bring more "
            "than the engine finishes: how much is late there depends on how long such a peak "
            "lasts, and a window ends after "
            f"{config['window_len']:,} requests"
        )
    if reference["at_held"]:
        seconds = config["window_len"] / reference["held"]
        turns = seconds / reference["at_held"]["e2el_mean"]
        if turns < _MIN_TURNS:
            found.append(
                f"at the capacity of {REFERENCE} a window lasts {numbers.number(seconds)} s, "
                f"{turns:.2g} times what a request takes: the engine is still filling up when it "
                "ends; use a longer --window-len"
            )
    if engine["num_dropped"]:
        found.append(
            f"{engine['num_dropped']} requests can never run on this engine (longer than "
            "max_model_len or the KV cache) and were left out for every policy"
        )
    if engine["num_truncated"]:
        found.append(
            f"{engine['num_truncated']} outputs were cut where the context window or the "
            "client's max_tokens ends them"
        )
    return found

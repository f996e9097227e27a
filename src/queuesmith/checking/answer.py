"""What a check says in sentences: how far to trust the simulator, what to correct, what is unknown.

Every sentence is made of numbers in the document of `queuesmith.checking.check`.
"""

import math
from collections.abc import Mapping
from typing import Any

from queuesmith import numbers

#: Means that are right within this share need no mending.
GOOD = 0.15
#: Beyond this share a simulated quantile says little.
POOR = 0.25
#: An error, or a factor on step time less 1, that is worth a word.
WORTH_SAYING = 0.10
#: The same where the log is too short for intervals.
MUCH = 0.5
#: Rank correlation of TTFT below which requests did not queue behind those that the log holds. In
#: simulations it is over 0.8 with 40 % of noise on every latency, and under that where half of the
#: traffic is missing of a server that is at least half busy.
IN_ORDER = 0.8
#: Time in the queue counts from this share of TTFT on, and is another from this error on.
QUEUES, OTHER_QUEUE = 0.05, 0.3
#: Readers of logs that were written where requests are sent or passed on.
CLIENT_SIDE = frozenset({"aiperf", "guidellm", "vllm_bench", "litellm", "access_log", "ab"})
#: Words in the reasons for which rows are left out of requests that were work all the same.
_WORK = ("failed", "errored", "cancelled", "aborted", "cut off", "without an answer")
_SHOWN = ("ttft", "tpot", "e2el")
_LABELS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL", "queued_time": "time in the queue"}

Document = Mapping[str, Any]


def verdict(document: Document) -> list[str]:
    """Return the answer: how far to trust the whole, then loads, tails and single requests."""
    means = [row for row in _means(document, "all") if row["latency"] in _SHOWN]
    if not means:
        means = _means(document, "all")
    compared = max((row["num_requests"] for row in means), default=0)
    listed = _listed([f"{_LABELS[row['latency']]} {_off(row)}" for row in means])
    if not any(_known(row["low"]) for row in means):
        return [
            f"Only {compared:,} request{'s' * (compared != 1)} with measured latencies: too few to "
            f"say how far to trust the simulator here (mean {listed}); give a log of several "
            "hundred, or several logs."
        ]
    worst = max(_worst(row) for row in means)
    if worst <= GOOD:
        first = f"Simulated latencies hold on this log within {_percent(worst)}: mean {listed}."
    elif worst <= 2 * GOOD:
        first = (
            f"Trust simulated latencies to about {_percent(worst)} on this server, no further: "
            f"mean {listed}."
        )
    else:
        first = (
            f"Do not quote simulated latencies for this server yet: mean {listed}. Correct "
            "the engine first."
        )
    return [
        first,
        *_by_load(document, means[0]["latency"]),
        *(_tails(document, means) if worst <= 2 * GOOD else []),
        *_single_requests(document),
    ]


def claim(document: Document) -> dict[str, Any]:
    """Return whether every mean of the whole log is right within what was claimed, and why not.

    Held only if the whole interval is within: what cannot be told is not claimed.
    """
    within = document["config"]["within"]
    if within is None:
        return {"met": None, "failed": []}
    failed = []
    for row in _means(document, "all"):
        if row["latency"] not in _SHOWN:
            continue
        if not _known(row["low"]):
            failed.append(
                f"mean {_LABELS[row['latency']]}: {row['num_requests']:,} requests are too few to "
                f"show that it is right within {_percent(within)}"
            )
        elif _worst(row) > within:
            failed.append(
                f"mean {_LABELS[row['latency']]} is {_off(row)}, not within {_percent(within)}"
            )
    if not any(row["latency"] in _SHOWN for row in _means(document, "all")):
        failed.append("the log has neither TTFT nor TPOT nor E2EL")
    return {"met": not failed, "failed": failed}


def advice(document: Document, offsets: Mapping[str, float]) -> list[dict[str, str]]:
    """Return what explains the errors and what to do, each with its `reason`.

    Parameters
    ----------
    document : mapping
    offsets : mapping of str to float
        By how many seconds measured TTFT is longer than simulated: `median`, and `p10`.
    """
    found: list[dict[str, str]] = []
    scale = document["scale"]
    errors = {
        row["latency"]: row["error"]
        for row in _means(document, "all")
        if row["latency"] in _SHOWN and _known(row["error"])
    }
    certain = any(_known(row["low"]) for row in _means(document, "all"))
    least = WORTH_SAYING if certain else MUCH
    tokens_fit = abs(errors.get("tpot", math.nan)) <= WORTH_SAYING
    first = errors.get("ttft", math.nan)
    if tokens_fit and first < -least and offsets["p10"] > 0:
        found.append(
            {
                "reason": "front_end",
                "text": "tokens come as fast as simulated, but first tokens later, half of them by "
                f"{numbers.number(offsets['median'])} s or more: network, HTTP and tokenising are "
                "in measured TTFT and not in simulated",
            }
        )
    elif tokens_fit and first > least and not _knows_prefixes(document):
        found.append(
            {
                "reason": "prefix_caching",
                "text": "tokens come as fast as simulated, but first tokens sooner: vLLM caches "
                "prefixes unless told not to, and here every prompt is computed whole, since "
                + (
                    "--engine-args has no --enable-prefix-caching"
                    if all(log["has_block_hashes"] for log in document["logs"])
                    else "the log does not say which prompts share a start"
                ),
            }
        )
    elif scale is not None and _explains(document, scale):
        if _is_off(scale, least):
            found.append({"reason": "step_time", "text": _step_time(scale)})
    elif scale is not None and max(map(abs, errors.values()), default=0.0) > max(GOOD, least):
        found.append({"reason": "no_one_factor", "text": _no_one_factor(scale)})
    if (text := _queue(document)) is not None:
        found.append({"reason": "queue", "text": text})
    return found


def limits(document: Document) -> list[str]:
    """Return what the logs cannot tell, so that nobody takes it for told."""
    logs = document["logs"]
    lines = []
    modelled = sum(log["kind"] == "modelled" for log in logs)
    if modelled:
        lines.append("the arrivals are modelled: nothing here was measured on a server")
    if any(log["reader"] in CLIENT_SIDE for log in logs):
        lines.append(
            "measured where requests are sent or passed on, so the network and HTTP are in TTFT "
            "and E2EL; the simulator has neither"
        )
    if not _knows_prefixes(document):
        lines.append(
            "shared prefixes are unknown: every prompt is computed whole in the simulation"
        )
    lost = sum(
        count
        for log in logs
        for reason, count in log["dropped"].items()
        if any(word in reason for word in _WORK)
    )
    if lost:
        lines.append(
            f"{lost:,} requests failed, were given up or cut off: work for the server that is not "
            "simulated"
        )
    for name, what in (
        ("num_dropped", "requests can never run on this engine and are left out"),
        ("num_truncated", "answers would be cut on this engine and are simulated, not compared"),
    ):
        count = sum(log[name] for log in logs)
        if count:
            lines.append(f"{count:,} {what}: is --engine-args right?")
    for name in _SHOWN:
        if not any(row["latency"] == name for row in _means(document, "all")):
            lines.append(f"the log says nothing of {_LABELS[name]}")
    lines.append("the simulated server is idle when a log begins; a real one may not have been")
    for log in logs:
        notes = [
            note
            for note in log["notes"]
            if "measured" in note or "whole" in note or "taken" in note
        ]
        lines += [f"{log['source']}: {note}" for note in [*notes, *log["notes"]] if note in notes]
    return list(dict.fromkeys(lines))


def _by_load(document: Document, latency: str) -> list[str]:
    parts = []
    for load in document["loads"][1:]:
        [row] = [row for row in _means(document, load["load"]) if row["latency"] == latency]
        if not _known(row["error"]):
            return []
        low, high = (numbers.number(load[name]) for name in ("rate_low", "rate_high"))
        parts.append(f"{_off(row)} at {low} to {high} requests/s")
    return [f"By load, mean {_LABELS[latency]} is {_listed(parts)}."] if parts else []


def _tails(document: Document, means: list[Mapping[str, Any]]) -> list[str]:
    """Say which high quantiles not to trust where the means may be, and which nobody can judge."""
    poor, unknown = [], []
    for mean in means:
        for statistic in ("p90", "p99"):
            [row] = [
                row
                for row in document["errors"]
                if (row["load"], row["latency"], row["statistic"])
                == ("all", mean["latency"], statistic)
            ]
            name = f"{statistic} {_LABELS[mean['latency']]}"
            if not _known(row["low"]):
                unknown.append(name)
            elif _worst(row) > POOR:
                poor.append(f"{name}: {_off(row)}")
    sentences = [f"Do not trust {', '.join(poor)}."] if poor else []
    if unknown:
        sentences.append(f"The log is too short to judge {_listed(unknown)}.")
    return sentences


def _single_requests(document: Document) -> list[str]:
    found = [
        f"{_LABELS[name]} {value:.2f}"
        for name, value in document["correlations"].items()
        if name in _SHOWN and _known(value)
    ]
    if not found:
        return []
    return [f"Request by request the rank correlation is {_listed(found)} (1 is the same order)."]


def _is_off(scale: Mapping[str, Any], least: float) -> bool:
    surely = not _known(scale["low"]) or not scale["low"] <= 1 <= scale["high"]
    return bool(surely and abs(math.log(scale["factor"])) > math.log(1 + least))


def _explains(document: Document, scale: Mapping[str, Any]) -> bool:
    """Tell whether a factor on step time leaves means right and first tokens in order."""
    after = scale["after"]
    means = [abs(error) for name, error in after["error"].items() if name in _SHOWN]
    order = after["correlation"].get("ttft", math.nan)
    measured = {row["latency"]: row["measured"] for row in _means(document, "all")}
    queues = measured.get("queued_time", 0.0) > QUEUES * measured.get("ttft", math.inf)
    other_queue = queues and abs(after["error"]["queued_time"]) > OTHER_QUEUE
    return not (scale["bound"] or max(means) > GOOD or order < IN_ORDER or other_queue)


def _step_time(scale: Mapping[str, Any]) -> str:
    return (
        f"steps on your server take {_factor(scale)} times the engine's, judged by "
        f"{_LABELS[scale['latency']]}, if the log holds all that it serves; with that the means "
        f"would be off by {_left(scale)}. engine.toml beside the report has these step times, for "
        "--engine of compare and plan; `queuesmith calibrate` measures yours exactly"
    )


def _no_one_factor(scale: Mapping[str, Any]) -> str:
    """Name what step times do not explain: another engine, more traffic, more servers."""
    if scale["bound"]:
        way = "longer" if scale["factor"] > 1 else "shorter"
        best = f"steps over {numbers.number(_times(scale))} times {way} would be needed"
    else:
        best = f"the best, {_factor(scale)} times the engine's, leaves {_left(scale)} on the means"
        order = scale["after"]["correlation"].get("ttft", math.nan)
        if order < IN_ORDER:
            best += f" and first tokens in another order (rank correlation {order:.2f})"
    if _times(scale) <= 1 + WORTH_SAYING:
        ways = "steps take as long as simulated on the whole: look at --policy and --engine-args"
    elif scale["factor"] > 1:
        ways = (
            "the log may hold only a part of the server's traffic (other clients, other models, "
            "failed requests): log all that one server serves, and give your own --engine and "
            "--engine-args"
        )
    else:
        ways = (
            "several servers may share this traffic, or prefixes be cached: check the log of one, "
            "and give your own --engine and --engine-args"
        )
    return (
        f"no one factor on step time explains the difference: {best}. {ways[0].upper()}{ways[1:]}"
    )


def _factor(scale: Mapping[str, Any]) -> str:
    ends = f" ({scale['low']:.2f} to {scale['high']:.2f})" if _known(scale["low"]) else ""
    return f"{scale['factor']:.2f}{ends}"


def _left(scale: Mapping[str, Any]) -> str:
    errors = scale["after"]["error"]
    shown = {name: errors[name] for name in errors if name in _SHOWN}
    return _listed([f"{_LABELS[name]} {numbers.change(shown[name])}" for name in shown])


def _queue(document: Document) -> str | None:
    scale = document["scale"]
    for row in _means(document, "all"):
        if row["latency"] != "queued_time" or not _known(row["error"]):
            continue
        # What longer steps explain needs no other settings.
        left = row["error"] if scale is None else scale["after"]["error"]["queued_time"]
        if abs(left) > 0.5 and abs(row["measured"] - row["simulated"]) > 0.02:
            return (
                f"requests waited {numbers.number(row['measured'])} s on your server and "
                f"{numbers.number(row['simulated'])} s in the simulation: give your own "
                "--engine-args (--max-num-seqs, --max-num-batched-tokens, "
                "--gpu-memory-utilization)"
            )
    return None


def _times(scale: Mapping[str, Any]) -> float:
    return float(max(scale["factor"], 1 / scale["factor"]))


def _knows_prefixes(document: Document) -> bool:
    """Tell whether prompts share in the simulation the starts that they shared on the server."""
    if all(log["reader"] == "ab" for log in document["logs"]):
        return True  # `queuesmith ab` gives each prompt a head of its own
    caching = document["config"]["engine"]["enable_prefix_caching"]
    return bool(caching and all(log["has_block_hashes"] for log in document["logs"]))


def _means(document: Document, load: str) -> list[Mapping[str, Any]]:
    return [row for row in document["errors"] if row["load"] == load and row["statistic"] == "mean"]


def _off(row: Mapping[str, Any]) -> str:
    """Return an error in words, with its interval."""
    error = row["error"]
    if not _known(error):
        return "unknown"
    word = "low" if error < 0 else "high"
    size = _percent(abs(error))
    text = "right" if size == "0 %" else f"{size} {word}"
    ends = numbers.interval(row["low"], row["high"]) if _known(row["low"]) else ""
    return f"{text} ({ends})" if ends else text


def _worst(row: Mapping[str, Any]) -> float:
    """Return the largest error that the interval allows."""
    return float(max(abs(value) for value in (row["error"], row["low"], row["high"])))


def _percent(value: float) -> str:
    return numbers.change(abs(value)).removeprefix("+")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)

"""The answer in sentences, and what limits it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith.evaluate import Evaluation
from queuesmith.leaderboard import REFERENCE, Standing
from queuesmith.score import MIN_WINDOWS
from queuesmith.traces.trace import Trace


def answer(
    judged: Sequence[Standing], rows: Sequence[Mapping[str, Any]], trace: Trace, step: float
) -> dict[str, Any]:
    """Name the policy to run, and say in sentences why and how surely.

    It is the best score among policies that change order alone, can be deployed, violate no tail
    and whose interval lies above 0; without one it is FCFS.
    """
    able = [
        one for one in judged if one.kind == "policy" and not one.violations and one.score.low > 0
    ]
    by_key = {(row["policy"], row["load"]): row for row in rows}
    loads = list(dict.fromkeys(row["load"] for row in rows))
    idle = [load for load in loads if by_key[REFERENCE, load]["queued_time_mean"] < step]
    sentences = []
    if able:
        best = able[0]
        sentences.append(f"Run {best.policy.name}: {_scored(best)}.")
        for load in loads:
            if load not in idle:
                sentences.append(_change_sentence(load, by_key[best.policy.name, load]))
        rivals = [one.policy.name for one in able[1:] if one.score.value >= best.score.low]
        if rivals:
            sentences.append(
                f"{_listed(rivals)} {'score' if len(rivals) > 1 else 'scores'} within its interval "
                "and would do as well."
            )
    else:
        best = next(one for one in judged if one.policy.name == REFERENCE)
        sentences.append(
            "Stay with fcfs: no other policy that only changes order scores above it beyond its "
            "uncertainty without hurting the tail."
        )
    for one in judged:
        if one.score.value > best.score.value and one is not best:
            sentences.append(_why_not(one))
            break
    if idle:
        sentences.append(
            f"At {_listed(idle)} load fcfs queues for less than one step, so no order can matter."
        )
    if trace.origin.kind == "modelled":
        sentences.append("The traffic is modelled: confirm this on a trace of your own.")
    return {"policy": best.policy.name, "sentences": sentences}


def _scored(one: Standing) -> str:
    return (
        f"score {one.score.value:+.2f} [{one.score.low:+.2f}, {one.score.high:+.2f}] against fcfs"
    )


def _change_sentence(load: str, row: Mapping[str, Any]) -> str:
    def change(name: str) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        interval = "" if math.isnan(low) else f" [{low:+.0%}, {high:+.0%}]"
        return f"{row[name]:+.0%}{interval}"

    return (
        f"At {load} load (rho {row['rho']:g}) mean TTFT {change('mean_change')} and p99 TTFT "
        f"{change('p99_change')}, to {row['ttft_mean']:.3g} s and {row['ttft_p99']:.3g} s."
    )


def _why_not(one: Standing) -> str:
    """Say what keeps a policy with a better score from being the answer."""
    name = f"{one.policy.name} scores more ({one.score.value:+.2f})"
    if one.kind == "oracle":
        return f"{name} but knows exact output lengths, which no server does."
    if one.kind == "bundle":
        return f"{name} but brings its own engine settings; compare it with those settings for all."
    if one.violations:
        return f"{name} but makes the unluckiest wait too long ({one.violations[0]})."
    return f"{name} but not beyond its uncertainty [{one.score.low:+.2f}, {one.score.high:+.2f}]."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def warnings(
    trace: Trace, evaluation: Evaluation, num_windows: int, asked_windows: int, window_len: int
) -> list[str]:
    """Say what limits the answer, beginning with what limits it most."""
    found = []
    if num_windows < MIN_WINDOWS:
        limit = (
            "there is no interval and nothing can be recommended"
            if num_windows == 1
            else f"sign tests need {MIN_WINDOWS}, and intervals over so few are rough"
        )
        found.append(f"only {num_windows} windows of {window_len} requests: {limit}")
    elif num_windows < asked_windows:
        found.append(
            f"the trace has room for {num_windows} windows of {window_len} requests, not the "
            f"{asked_windows} asked for"
        )
    if window_len < 1000:
        found.append(
            f"windows of {window_len} requests hold {window_len / 100:g} beyond their p99; use "
            "1000 and more to judge tails"
        )
    if evaluation.num_dropped:
        found.append(
            f"{evaluation.num_dropped} requests can never run on this engine (longer than "
            "max_model_len or the KV cache) and were left out for every policy"
        )
    if evaluation.num_truncated:
        found.append(
            f"{evaluation.num_truncated} outputs were cut where the context window or the "
            "client's max_tokens ends them"
        )
    if trace.client is None:
        found.append("the trace names no clients: each request is a client of its own")
    return found

"""The answer in sentences, and what limits it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith import numbers
from queuesmith.config import EngineConfig
from queuesmith.evaluate import Evaluation
from queuesmith.leaderboard import REFERENCE, Standing
from queuesmith.policies import Policy
from queuesmith.score import MARGIN, MIN_WINDOWS
from queuesmith.traces.trace import Trace


def answer(
    standings: Sequence[Standing], rows: Sequence[Mapping[str, Any]], trace: Trace, step: float
) -> dict[str, Any]:
    """Name the policy to run, and say in sentences why and how surely.

    Parameters
    ----------
    standings : sequence of Standing
        Best score first.
    rows : sequence of mapping
        One per policy and load, as in the document.
    trace : Trace
    step : float
        Seconds of the shortest step: a load at which FCFS queues for less is idle.

    Returns
    -------
    dict
        `policy`: the best score among policies that only change order, can be deployed, violate no
        tail, and beat FCFS beyond chance (the score is above 0 at a level that allows for having
        looked at so many policies) by something that matters (at some load the mean TTFT is more
        than 1 % lower, interval included); without one, FCFS. `by_load`: the same question asked
        of each load alone. `sentences`.
    """
    by_key = {(row["policy"], row["load"]): row for row in rows}
    loads = list(dict.fromkeys(row["load"] for row in rows))
    idle = [load for load in loads if by_key[REFERENCE, load]["queued_time_mean"] < step]
    able = [
        one
        for one in standings
        if one.kind == "policy"
        and not one.violations
        and one.lowest[""] > 0
        and any(_matters(one, load) for load in loads)
    ]
    by_load = {load: None if load in idle else _best_at(standings, load) for load in loads}
    if able:
        best = able[0]
        mine = [by_key[best.policy.name, load] for load in loads]
        gains = sorted(row["mean_change"] for row in mine if _matters(best, row["load"]))
        reach = " to ".join(dict.fromkeys(numbers.change(gain) for gain in (gains[-1], gains[0])))
        sentences = [
            f"Run {best.policy.name}: mean TTFT {reach} against {REFERENCE}, no tail violated.",
            f"Its score over all loads is {_scored(best)}; {REFERENCE} has 0.",
        ]
        same = [row for row in mine if _changes_nothing(row)]
        sentences += [_change_sentence(f"At {_load(row)}", row) for row in mine if row not in same]
        if same:
            sentences.append(
                f"At {_listed([_load(row) for row in same])} it changes mean and p99 TTFT by no "
                f"more than {MARGIN:.0%}."
            )
        rivals = [one.policy.name for one in able[1:] if one.score.value >= best.score.low]
        if rivals:
            sentences.append(
                f"{_listed(rivals)} {'score' if len(rivals) > 1 else 'scores'} within its interval "
                "and would do as well."
            )
    else:
        best = next(one for one in standings if one.policy.name == REFERENCE)
        sentences = [
            f"Stay with {REFERENCE}: over all loads no policy that only changes order is better "
            "beyond chance without making the unluckiest wait longer."
        ]
    sentences += [_why_not(one) for one in standings[:1] if one.score.value > best.score.value]
    for load, name in by_load.items():
        if name is not None and name != best.policy.name:
            row = by_key[name, load]
            sentences.append(_change_sentence(f"If you only run at {_load(row)}, {name}:", row))
    if idle:
        sentences.append(
            f"At {_listed(idle)} load {REFERENCE} queues for less than one step, so no order can "
            "matter."
        )
    num_windows = sum(by_key[REFERENCE, loads[0]][name] for name in ("wins", "ties", "losses"))
    if num_windows < MIN_WINDOWS:
        sentences.append(
            f"Only {num_windows} window{'s' if num_windows > 1 else ''} of requests: a hint, not "
            f"evidence, which takes {MIN_WINDOWS} and more."
        )
    if trace.origin.kind == "modelled":
        sentences.append("The traffic is modelled: confirm this on a trace of your own.")
    return {"policy": best.policy.name, "by_load": by_load, "sentences": sentences}


def _matters(one: Standing, load: str) -> bool:
    """Tell whether mean TTFT is lower than FCFS's by more than a tie, interval included."""
    return one.improvements[load].mean_low > MARGIN


def _changes_nothing(row: Mapping[str, Any]) -> bool:
    return bool(abs(row["mean_change"]) <= MARGIN and abs(row["p99_change"]) <= MARGIN)


def _best_at(standings: Sequence[Standing], load: str) -> str | None:
    """Return the policy to run at one load alone; None when that is FCFS."""
    able = [
        one
        for one in standings
        if one.kind == "policy"
        and not one.tails[load].violated
        and one.lowest[load] > 0
        and _matters(one, load)
    ]
    if not able:
        return None
    return max(able, key=lambda one: one.terms[load].value).policy.name


def _scored(one: Standing) -> str:
    return f"{one.score.value:+.2f} [{one.score.low:+.2f} to {one.score.high:+.2f}]"


def _load(row: Mapping[str, Any]) -> str:
    name, rho = row["load"], f"rho {row['rho']:g}"
    return rho if name == f"{row['rho']:g}" else f"{name} load ({rho})"


def _change_sentence(lead: str, row: Mapping[str, Any]) -> str:
    def change(name: str) -> str:
        ends = numbers.interval(row[f"{name}_low"], row[f"{name}_high"])
        return numbers.change(row[name]) + (f" [{ends}]" if ends else "")

    return (
        f"{lead} mean TTFT {change('mean_change')}, to {numbers.number(row['ttft_mean'])} s, and "
        f"p99 {change('p99_change')}, to {numbers.number(row['ttft_p99'])} s."
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
    if math.isnan(one.score.low):
        return f"{name}, but one window cannot say how surely."
    if one.score.low > 0 and one.lowest[""] <= 0:
        return (
            f"{name} [{one.score.low:+.2f} to {one.score.high:+.2f}], but the best of so many "
            "policies may do so by chance."
        )
    if one.score.low > 0:
        return f"{name}, but lowers mean TTFT by less than {MARGIN:.0%} at every load."
    return f"{name} but not beyond its uncertainty [{one.score.low:+.2f} to {one.score.high:+.2f}]."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def warnings(
    policies: Sequence[Policy],
    config: EngineConfig,
    trace: Trace,
    evaluation: Evaluation,
    num_windows: int,
    asked_windows: int,
    window_len: int,
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
    if trace.block_hashes is not None and not config.enable_prefix_caching:
        found.append(
            "the trace knows which prompts begin alike, but prefix caching is off: "
            '--engine-args "--enable-prefix-caching" turns it on, as vLLM has it'
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
    fair = [policy.name for policy in policies if policy.reads_field("request.client_tokens")]
    if trace.client is None and fair:
        found.append(
            f"the trace names no clients for {_listed(fair)} to be fair to: each request is a "
            "client of its own"
        )
    return found

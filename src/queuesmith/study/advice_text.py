"""Advice in sentences: what to try first, what it may cost, and how far to trust it."""

from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith import numbers
from queuesmith.study.words import (
    engine_words,
    listed,
    load_words,
    loss_words,
    metric_words,
    windows_words,
)

_PLACES = {
    "near": "as near to it as its own windows are to each other",
    "between": "no farther from it than the study's sources are from each other",
    "outside": "farther from it than any source of the study is from its nearest other",
}
_OVER = {"sources": "source", "loads": "load", "engines": "engine"}
_SURELY = {
    "likely": "likely to carry over",
    "unsure": "may carry over or not",
    "no": "does not carry over",
    "unknown": "unknown here",
}
#: Findings that are told; the document holds all.
_NUM_COSTS = 3
_NUM_WORSE = 3


def advice_sentences(advice: Mapping[str, Any]) -> list[str]:
    """Say what an advice of schema ``queuesmith.advise/2`` says, the most important first."""
    question, policy = advice["question"], advice["best_there"]
    reference, metric = advice["study"]["reference"], metric_words(question["metric"])
    here = advice["expected"][0]
    where = (
        f"{load_words({'name': question['load'], 'rho': question['rho'], 'multiplier': None})} on "
        f"{engine_words(question['engine'])}"
    )
    sentences = [_first(advice, metric, where)]
    if advice["no_advice"]:
        sentences.append(f"Measure it: {advice['command']}")
    elif advice["alike"]:
        sentences.append(f"As good on {metric} there: {listed(advice['alike'])}.")
    sentences.append(
        f"Your traffic is {advice['traffic']['words']}; of the study's sources "
        f"{advice['nearest']} ({windows_words(here['num_real'], here['num_modelled'])}) is "
        f"nearest, at a distance of {numbers.number(advice['distances'][0]['distance'])}, and you "
        f"are {_PLACES[advice['place']]}{_apart(advice)}."
    )
    if policy != reference and not advice["no_advice"]:
        sentences.append(_costs(advice, policy))
        elsewhere = _elsewhere(advice, metric, reference)
        if elsewhere:
            sentences.append(elsewhere)
    record = _record(advice)
    if record:
        sentences.append(record)
    if advice["no_advice"]:
        return sentences
    sentences += _findings(advice, metric, reference)
    sentences.append(f"Measure before you believe it: {advice['command']}")
    if here["num_modelled"]:
        sentences.append(
            f"{here['num_modelled']} of the {here['num_real'] + here['num_modelled']} windows of "
            f"{advice['nearest']} were modelled, not measured."
        )
    return sentences


def _first(advice: Mapping[str, Any], metric: str, where: str) -> str:
    policy, here = advice["policy"], advice["expected"][0]
    if policy is None:
        return f"No advice on {metric} {where}: {advice['no_advice']}."
    reference = advice["study"]["reference"]
    if policy == reference:
        return f"Stay with {policy} {where}: on the nearest source {advice['reason']}."
    num_windows = here["num_real"] + here["num_modelled"]
    change = numbers.change(here["change"])
    ends = numbers.interval(here["low"], here["high"])
    trust = {
        "unsure": " This may not carry over to you.",
        "unknown": " Whether that holds for you is unknown.",
    }.get(advice["surely"], "")
    return (
        f"Try {policy} first {where}: on the nearest source it changes {metric} by {change} "
        f"[{ends}] against {reference} and is among the best in {here['best']} of {num_windows} "
        f"windows."
        f"{trust}"
    )


def _apart(advice: Mapping[str, Any]) -> str:
    """Name what sets the traffic apart most, where that is more than one scale."""
    by_feature = advice["distances"][0]["by_feature"]
    most = sorted(by_feature, key=lambda name: -abs(by_feature[name]))[:2]
    words = [
        f"{name} {'higher' if by_feature[name] > 0 else 'lower'}"
        for name in most
        if abs(by_feature[name]) > 1
    ]
    return f" (yours has {listed(words)})" if words else ""


def _costs(advice: Mapping[str, Any], policy: str) -> str:
    if not advice["costs"]:
        return f"On that source {policy} makes no other metric of the study surely worse."
    worst = [
        f"{metric_words(one['metric'])} {numbers.change(one['change'])} "
        f"[{numbers.interval(one['low'], one['high'])}]"
        for one in advice["costs"][:_NUM_COSTS]
    ]
    return f"What it may cost: {listed(worst)}."


def _elsewhere(advice: Mapping[str, Any], metric: str, reference: str) -> str:
    """Say what the policy did on the other sources."""
    changes = [
        (one["change"], one["source"])
        for one in advice["expected"][1:]
        if not one["idle"] and one["change"] is not None
    ]
    if not changes:
        return ""
    low, high = min(changes), max(changes)
    if len(changes) == 1:
        return f"On {low[1]} it changed {metric} by {numbers.change(low[0])} against {reference}."
    return (
        f"On the other sources it changed {metric} by {numbers.change(low[0])} ({low[1]}) to "
        f"{numbers.change(high[0])} ({high[1]})."
    )


def _record(advice: Mapping[str, Any]) -> str:
    """Say what such advice would have been worth to the study's own sources."""
    evidence: Sequence[Mapping[str, Any]] = advice["evidence"]
    if not evidence:
        return ""
    right = sum(one["right"] for one in evidence)
    sentence = (
        f"Advised like this from its nearest other, each source of the study would have got one of "
        f"the best policies that break no guard in {right} of {len(evidence)} cases"
    )
    wrong = [one for one in evidence if not one["right"]]
    broke = [one["source"] for one in wrong if one["broken"]]
    if broke:
        sentence += f"; on {listed(broke)} it would have broken a guard"
    worst = max(wrong, key=lambda one: one["regret"], default=None)
    if worst is None or worst["regret"] <= 0:
        return f"{sentence}."
    return (
        f"{sentence}; the worst of it, {worst['policy']} on {worst['source']}, would have lost "
        f"{loss_words(worst['regret'])} against the best there."
    )


def _findings(advice: Mapping[str, Any], metric: str, reference: str) -> list[str]:
    found = []
    kinds = {"better": f"is better than {reference}", "best": "is among the best"}
    for finding, words in kinds.items():
        parts = [
            f"{one['holds']} of {one['of']} other {_OVER[one['over']]}"
            f"{'s' if one['of'] > 1 else ''} ({_SURELY[one['carries']]}"
            f"{'; not ' + listed(one['fails'], 'or') if one['fails'] else ''})"
            for one in advice["findings"]
            if one["finding"] == finding
        ]
        if parts:
            found.append(
                f"That {advice['best_there']} {words} on {metric} holds on {listed(parts)}."
            )
    avoid = [
        one
        for one in advice["findings"]
        if one["finding"] == "worse" and one["carries"] == "likely"
    ]
    if avoid:
        names = [one["policy"] for one in avoid[:_NUM_WORSE]]
        found.append(
            f"Likely to carry over: {listed(names)} {'are' if len(names) > 1 else 'is'} worse than "
            f"{reference} on {metric}."
        )
    return found

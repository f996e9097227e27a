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

_TRUST = {
    "unsure": " This may not carry over to you.",
    "unknown": " Whether that holds for you is unknown.",
}
#: Costs that are told; the document holds all.
_NUM_COSTS = 3


def advice_sentences(advice: Mapping[str, Any]) -> list[str]:
    """Say what an advice of schema ``queuesmith.advise/3`` says, the most important first."""
    here = advice["expected"][0]
    sentences = [_first(advice, here)]
    if advice["policy"] and advice["alike"]:
        sentences.append(f"As good there: {listed(advice['alike'])}.")
    sentences.append(
        f"Your traffic is {advice['traffic']['words']}. Nearest source of the study: "
        f"{advice['nearest']} ({windows_words(here['num_real'], here['num_modelled'])}), distance "
        f"{numbers.number(advice['distances'][0]['distance'])}: {advice['place']}{_apart(advice)}."
    )
    if advice["policy"] and advice["costs"]:
        worst = [
            f"{metric_words(one['metric'])} {numbers.change(one['change'])} "
            f"[{numbers.interval(one['low'], one['high'])}]"
            for one in advice["costs"][:_NUM_COSTS]
        ]
        sentences.append(f"It makes surely worse there: {listed(worst)}.")
    evidence: Sequence[Mapping[str, Any]] = advice["evidence"]
    if evidence:
        right = sum(one["right"] for one in evidence)
        worst_of = max(evidence, key=lambda one: one["regret"])
        largest = max(worst_of["regret"], 0.0)
        sentences.append(
            "Advised like this from its nearest other, a source of the study gets one of the best "
            f"policies that break no guard in {right} of {len(evidence)} cases; the largest loss "
            f"is {loss_words(largest)}."
        )
    sentences.append(f"Measure it: {advice['command']}")
    return sentences


def _first(advice: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    question, policy = advice["question"], advice["policy"]
    metric, reference = metric_words(question["metric"]), advice["study"]["reference"]
    load = {"name": question["load"], "rho": question["rho"], "multiplier": None}
    where = f"{load_words(load)} on {engine_words(question['engine'])}"
    if policy is None:
        return f"No advice on {metric} {where}: {advice['no_advice']}."
    if policy == reference:
        return f"Stay with {policy} {where}: on the nearest source {advice['reason']}."
    num_windows = here["num_real"] + here["num_modelled"]
    return (
        f"Try {policy} first {where}: on the nearest source it changes {metric} by "
        f"{numbers.change(here['change'])} [{numbers.interval(here['low'], here['high'])}] against "
        f"{reference} and is among the best in {here['best']} of {num_windows} windows."
        f"{_TRUST.get(advice['surely'], '')}"
    )


def _apart(advice: Mapping[str, Any]) -> str:
    """Name the features that lie too far from the nearest source's."""
    words = [
        f"{name} {'higher' if apart > 0 else 'lower'}"
        for name, apart in advice["distances"][0]["by_feature"].items()
        if abs(apart) > advice["farthest"]
    ]
    return f" (yours has {listed(words)})" if words else ""

"""How often `queuesmith study advise` is right on traffic that its study has not seen.

    python benchmarks/advice.py [--workers N]

Eight kinds of traffic, at two loads, by four metrics, on the study's own engine. Four are drawn
from models that came with the package and were in no study, or from a source of the study with
other lengths; four are real files, read from $QUEUESMITH_TRACES where it is set. Advice is right
when the policy breaks no guard and is within 1 % of the best that breaks none, both measured on
that traffic. It takes some minutes.
"""

import argparse
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from queuesmith.config import Slo
from queuesmith.evaluation.evaluate import Load, evaluate
from queuesmith.evaluation.goals import GUARDS, MARGIN, get_goal
from queuesmith.evaluation.judge import beside, draw_weights
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.policies import get_policy
from queuesmith.study.advise import advise
from queuesmith.study.design import Design
from queuesmith.study.inputs import features
from queuesmith.study.summary import deployable, load_summary, main_engine
from queuesmith.traces import load_trace
from queuesmith.windows import cut_windows
from queuesmith.windows.predictions import OutputLengthKnowledge

METRICS = ("ttft_mean", "ttft_p99", "e2el_mean", "slo_attainment")
LOADS = ("knee", "heavy")
NUM_WINDOWS, NUM_REQUESTS = 8, 12_000
MODELS = ("azure_2024_code@model", "servegen_m_small@model", "servegen_deepseek_r1@model")
FILES = (
    "azure2024_code_rows50k_75k.csv.gz",
    "azure2024_conv_rows50k_75k.csv.gz",
    "claudecode_kvct_full_first12h.csv.gz",
    "claudecode_kvct_uncached_first12h.csv.gz",
)
COLUMNS = {
    "arrival_time": "arrival_s",
    "prompt_len": "prompt_tokens",
    "output_len": "output_tokens",
}
SLO = Slo(ttft=1.0, tpot=0.05)


def traffics() -> dict[str, object]:
    """Return each kind of traffic by name."""
    found = {name: load_trace(name, num_requests=NUM_REQUESTS, seed=1) for name in MODELS}
    chat = load_trace("azure_2023_conv@model", num_requests=NUM_REQUESTS, seed=1)
    found["azure_2023_conv@model, prompts x 4"] = replace(chat, prompt_len=4 * chat.prompt_len)
    folder = os.environ.get("QUEUESMITH_TRACES")
    for name in FILES if folder else ():
        places = list(Path(folder).rglob(name))
        if places:
            found[name.partition(".")[0]] = load_trace(places[0], columns=COLUMNS)
    return found


def measured(trace, policies, preset, workers):
    """Return, by load and metric, each policy's value and whether it breaks a guard."""
    windows = cut_windows(trace, num_windows=NUM_WINDOWS, window_len=1000, seed=0)
    loads = [Load(name, rho) for name, rho in (("knee", 0.95), ("heavy", 1.5))]
    samples = evaluate(
        policies,
        windows,
        loads,
        config=preset.config,
        step_time=preset.step_time,
        output_length=OutputLengthKnowledge.parse("noisy"),
        slo=SLO,
        num_workers=workers,
    ).samples
    weights = draw_weights(len(windows), 0)
    found = {}
    for load in LOADS:
        for policy in policies:
            found[load, policy.name] = beside(
                samples[policy.name, load],
                samples["fcfs", load],
                load=load,
                goal=get_goal("ttft", SLO),
                guards=GUARDS,
                weights=weights,
            )
    return windows, found


def outcome(found, load, metric, policy):
    """Return right, guard (it broke one) or wrong, and the regret against the best allowed."""
    statistic = STATISTICS[metric]
    values = {
        name: one.changes[metric].value
        for (at, name), one in found.items()
        if at == load and not one.broken
    }
    best = (min if statistic.better == "lower" else max)(values.values())
    mine = found[load, policy].changes[metric].value
    regret = statistic.worse(mine - best) / best if best else 0.0
    if found[load, policy].broken:
        return "guard", regret
    return ("right" if regret <= MARGIN else "wrong"), regret


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int)
    workers = parser.parse_args().workers
    summary = load_summary()
    engine = main_engine(summary)
    preset = next(one for one in Design.load("atlas").engines if one.name == engine)
    policies = [get_policy(name) for name, kind in summary["policies"].items() if deployable(kind)]
    counts: dict[str, Counter[str]] = {metric: Counter() for metric in METRICS}
    print("traffic\tload\tmetric\tplace\tsurely\tbest on the nearest\tadvice\toutcome\tregret")
    for name, trace in traffics().items():
        windows, found = measured(trace, policies, preset, workers)
        rows = [features(window.trace) for window in windows]
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        for load in LOADS:
            for metric in METRICS:
                advice = advise(summary, columns, metric=metric, load=load)
                what, regret = outcome(found, load, metric, advice["best_there"])
                counts[metric][what] += 1
                counts[metric][f"{advice['place']}, {what}"] += 1
                if advice["policy"] is not None:
                    counts[metric][f"given, {what}"] += 1
                cells = (name, load, metric, advice["place"], advice["surely"])
                print(
                    *cells,
                    advice["best_there"],
                    advice["policy"],
                    what,
                    f"{regret:+.1%}",
                    sep="\t",
                    flush=True,
                )
    print("\nmetric\tright\tbreaks a guard\tright between\tgiven and right\tgiven")
    for metric, one in counts.items():
        total, between, given = (
            sum(one[f"{lead}{what}"] for what in ("right", "wrong", "guard"))
            for lead in ("", "between, ", "given, ")
        )
        print(
            metric,
            f"{one['right']}/{total}",
            one["guard"],
            f"{one['between, right']}/{between}",
            one["given, right"],
            given,
            sep="\t",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

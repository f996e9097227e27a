"""How often intervals of nominally 95 % cover the truth, by method and number of windows.

For each model of traffic many windows are served under FCFS and other policies. The change
over all of them is the truth; a user sees 8, 16 or 32 of them and gets an interval. Each method is
asked on the same choices of windows. Configurations whose true change is below 1 % are left out.

    python benchmarks/coverage.py
    python benchmarks/coverage.py --windows 100 --repeats 50  # a quick look
"""

import argparse
import json
import sys
from collections import defaultdict

import numpy as np

import queuesmith as qs
from queuesmith.config import Slo
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.evaluation.evaluate import evaluate, parse_loads
from queuesmith.evaluation.samples import Samples, Totals
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.policies import get_policy
from queuesmith.stats import bootstrap_weights, interval
from queuesmith.stats.intervals import Draws, combine
from queuesmith.windows import cut_windows
from queuesmith.windows.predictions import OutputLengthKnowledge

MODELS = ("azure_2023_conv", "azure_2023_code", "azure_2024_conv", "mooncake_conversation")
POLICIES = ("sjf", "sjf_aging", "hrrn")
ASKED = ("ttft_mean", "e2el_mean", "tpot_mean", "ttft_p99", "e2el_p99", "tpot_p99", "itl_p99")
METHODS = ("percentile", "bca", "t x bootstrap SE", "jackknife t", "bootstrap-t")


def main() -> int:
    """Print a table of coverage and write it as JSON to standard output with --json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--windows", type=int, default=400, help="windows of each model")
    parser.add_argument("--repeats", type=int, default=200, help="choices of windows")
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--load", default="knee")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    covered: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for model in MODELS:
        print(f"serving {options.windows} windows of {model}@model", file=sys.stderr)
        samples = serve(model, options)
        for policy in POLICIES:
            for key, share in ask(samples[policy], samples["fcfs"], options).items():
                covered[key].append(share)
    rows = [
        {
            "statistic": statistic,
            "method": method,
            "windows": size,
            "coverage": float(np.mean(shares)),
            "worst": float(np.min(shares)),
            "configurations": len(shares),
        }
        for (statistic, method, size), shares in covered.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    sizes = sorted({row["windows"] for row in rows})
    print(f"{'statistic':14}{'method':20}" + "".join(f"{size:>7} windows" for size in sizes))
    for statistic in dict.fromkeys(row["statistic"] for row in rows):
        for method in METHODS:
            cells = [
                f"{row['coverage']:.2f} ({row['worst']:.2f})"
                for size in sizes
                for row in rows
                if (row["statistic"], row["method"], row["windows"]) == (statistic, method, size)
            ]
            if cells:
                print(f"{statistic:14}{method:20}" + "".join(f"{cell:>15}" for cell in cells))
    return 0


def serve(model: str, options: argparse.Namespace) -> dict[str, Samples]:
    """Serve all windows of a model under each policy."""
    trace = qs.load_trace(f"{model}@model", num_requests=1000 * options.windows, seed=options.seed)
    preset = get_preset("llama-3.1-8b/h100_sxm")
    evaluation = evaluate(
        [get_policy(name) for name in ("fcfs", *POLICIES)],
        cut_windows(trace, num_windows=options.windows, window_len=1000),
        parse_loads(options.load),
        config=preset.config,
        step_time=preset.step_time,
        output_length=OutputLengthKnowledge.parse("noisy"),
        slo=Slo(ttft=1.0, tpot=0.05),
    )
    return {policy: samples for (policy, _), samples in evaluation.samples.items()}


def take(samples: Samples, windows: np.ndarray) -> Samples:
    """Return the requests of some windows, which are rows of `samples.windows`."""
    start = np.searchsorted(samples.window, samples.windows)
    end = np.append(start[1:], len(samples.window))
    rows = np.concatenate([np.arange(start[each], end[each]) for each in windows])
    assert samples.totals is not None
    totals = Totals(*(getattr(samples.totals, name)[windows] for name in Totals.__annotations__))
    columns = ("ttft", "slowdown", "prompt_len", "output_len", "window", "tpot", "e2el", "met")
    return Samples(*(getattr(samples, name)[rows] for name in columns), totals=totals)


def ask(mine: Samples, base: Samples, options: argparse.Namespace) -> dict:
    """Return the share of choices of windows whose interval holds the truth."""
    everything = np.ones((1, options.windows), np.int64)
    truth = {name: STATISTICS[name].contrast(mine, base, everything).estimate for name in ASKED}
    asked = [name for name in ASKED if abs(truth[name]) > 0.01]
    hits: dict[tuple[str, str, int], list[bool]] = defaultdict(list)
    rng = np.random.default_rng(options.seed)
    for size in (8, 16, 32):
        others = 1 - np.eye(size, dtype=np.int64)
        for _ in range(options.repeats):
            chosen = np.sort(rng.choice(options.windows, size, replace=False))
            part, reference = take(mine, chosen), take(base, chosen)
            weights = np.vstack(
                [
                    np.ones((1, size), np.int64),
                    bootstrap_weights(size, options.draws, rng),
                ]
            )
            for name in asked:
                statistic = STATISTICS[name]
                draws = statistic.contrast(part, reference, weights)
                left_out = statistic.contrast(part, reference, np.vstack([weights[:1], others]))
                for method, ends in intervals(draws, left_out.values[1:], size).items():
                    hits[name, method, size].append(bool(ends[0] <= truth[name] <= ends[1]))
    return {key: float(np.mean(found)) for key, found in hits.items()}


def intervals(draws: Draws, left_out: np.ndarray, size: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval by each method; `left_out` has one window less in each."""
    from scipy.stats import norm, t

    estimate = draws.estimate
    error = np.sqrt((size - 1) / size * ((left_out - left_out.mean()) ** 2).sum())
    half = t.ppf(0.975, size - 1) * error
    values = draws.values[1:]
    bias = norm.ppf(np.clip((values < estimate).mean(), 1e-3, 1 - 1e-3))
    gap = left_out.mean() - left_out
    spread = (gap**2).sum() ** 1.5
    skew = (gap**3).sum() / (6 * spread) if spread > 0 else 0.0
    ends = norm.cdf([bias + (bias + z) / (1 - skew * (bias + z)) for z in norm.ppf([0.025, 0.975])])
    low, high = np.quantile(values, ends)
    found = {
        "percentile": interval(values),
        "bca": (float(low), float(high)),
        "t x bootstrap SE": combine([draws]).interval(),
        "jackknife t": (estimate - half, estimate + half),
    }
    if draws.spread is not None:
        found["bootstrap-t"] = draws.interval()
    return found


if __name__ == "__main__":
    sys.exit(main())

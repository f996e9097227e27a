"""How well the workload models fit: the tables and pictures of docs/background/data.md.

    python benchmarks/goodness.py --traces FOLDER
    python benchmarks/goodness.py --traces FOLDER --images docs/background/img

FOLDER holds the files that the models were fitted to, at any depth; what is missing is skipped.
Pictures need a Chromium or Chrome.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from plotly.subplots import make_subplots

from queuesmith.engine.presets.step_time import DEFAULT_PRESET, get_preset
from queuesmith.evaluation.evaluate import evaluate, parse_loads
from queuesmith.policies import get_policy
from queuesmith.stats import kendall_tau_b
from queuesmith.traces import Trace, load_trace
from queuesmith.traces.fitting.sessions import spread_batches
from queuesmith.traces.fitting.windows import read_windows
from queuesmith.traces.statistics import rank_autocorrelation, rank_correlation, trace_statistics
from queuesmith.traces.synthetic import load_model
from queuesmith.windows import Window, cut_windows
from queuesmith.windows.predictions import OutputLengthKnowledge

SEEDS = range(20)
RANKING_SEEDS = range(5)
NUM_WINDOWS = 6
WINDOW_LEN = 1_000
#: Of the files of windows, those that the fits left out.
NUM_SHORT = 5
SHORT_LEN = 200
POLICIES = ("fcfs", "sjf", "aged_sjf", "spjf", "srpt", "hrrn", "las", "fit_first")
LOADS = ("busy", "overload")
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
WIDTH, HEIGHT = 900, 640


@dataclass(frozen=True)
class Source:
    """A model, with the file that it is held against."""

    model: str
    file: str
    what: str
    windows: bool = False  # the file holds windows of requests, of which the fit left every other
    batched: bool = False  # many requests come at one time
    pictured: bool = True
    ordered: bool = True  # lengths belong to the arrivals beside them


SOURCES = (
    Source("azure_2023_conv", "AzureLLMInferenceTrace_conv.csv", "the hour it was fitted to"),
    Source("azure_2023_code", "AzureLLMInferenceTrace_code.csv", "the hour it was fitted to"),
    Source(
        "azure_2024_conv",
        "AzureLLM2024_conv_first50k.csv",
        "the 34 minutes it was fitted to; real lengths are in no order in time",
        ordered=False,
    ),
    Source(
        "azure_2024_code",
        "AzureLLM2024_code_first50k.csv",
        "the 37 minutes it was fitted to; real lengths are in no order in time",
        ordered=False,
    ),
    Source(
        "mooncake_conversation",
        "conversation_trace.jsonl",
        "the hour it was fitted to; real times are spread over their batches of 3 s",
        batched=True,
    ),
    Source(
        "azure_2024_conv",
        "azure_llm_2024.csv",
        "five windows of 200 of the same week, fitted to none",
        windows=True,
        pictured=False,
    ),
    Source("burstgpt", "burstgpt.csv", "five windows of 200 that the fit left out", windows=True),
    Source(
        "qwen_bailian",
        "bailian_qwen.csv",
        "five windows of 200 that the fit left out",
        windows=True,
    ),
    Source(
        "servegen_m_small",
        "bailian_qwen.csv",
        "five windows of Bailian, fitted to none",
        windows=True,
    ),
    Source(
        "servegen_deepseek_r1",
        "bailian_qwen.csv",
        "five windows of Bailian, fitted to none",
        windows=True,
    ),
)


def window_statistics(windows: Sequence[Trace]) -> dict[str, float]:
    """Sum up windows too short for `trace_statistics`; requests are pooled, order stays within."""
    rates = [(len(window) - 1) / window.duration for window in windows]
    gaps = [np.diff(window.arrival_time) for window in windows]
    values = {
        "rate, requests/s": float(np.mean(rates)),
        "CV of rates of windows": float(np.std(rates) / np.mean(rates)),
        "CV of gaps in a window": float(np.mean([gap.std() / gap.mean() for gap in gaps])),
    }
    for name in ("prompt", "output"):
        tokens = np.concatenate([getattr(window, f"{name}_len") for window in windows])
        for percent in PERCENTILES:
            values[f"{name} p{percent}, tokens"] = float(np.percentile(tokens, percent))
    values["rank correlation of prompt and output"] = rank_correlation(
        np.concatenate([window.prompt_len for window in windows]),
        np.concatenate([window.output_len for window in windows]),
    )
    for name in ("prompt", "output"):
        values[f"{name} autocorrelation, lag 1"] = float(
            _mean([rank_autocorrelation(getattr(w, f"{name}_len"), 1) for w in windows])
        )
    return values


def cut(trace: Trace, num_windows: int, window_len: int) -> list[Trace]:
    windows = cut_windows(trace, num_windows=num_windows, window_len=window_len)
    return [window.trace for window in windows]


def draw_windows(source: Source, num_windows: int, window_len: int, seed: int) -> list[Trace]:
    """Draw each window by itself: draws begin anywhere, so together they are like any traffic."""
    model = load_model(source.model)
    return [model.sample(window_len, seed * num_windows + index) for index in range(num_windows)]


def rank_policies(windows: Sequence[Trace]) -> dict[str, list[float]]:
    """Return the mean TTFT of each policy over windows, by load."""
    preset = get_preset(DEFAULT_PRESET)
    result = evaluate(
        [get_policy(name) for name in POLICIES],
        [Window(window, index, 0, window.sha256) for index, window in enumerate(windows)],
        parse_loads(",".join(LOADS)),
        config=preset.config,
        step_time=preset.step_time,
        output_length=OutputLengthKnowledge("noisy"),
    )
    return {
        load: [float(np.nanmean(result.samples[policy, load].ttft)) for policy in POLICIES]
        for load in LOADS
    }


def _mean(values: Sequence[float]) -> float:
    """Mean of what is defined: a correlation with what never changes is not."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


@dataclass(frozen=True)
class Fit:
    """Statistics of real traffic, and of each draw from a model."""

    source: Source
    real: dict[str, float]
    drawn: list[dict[str, float]]

    def cell(self, name: str) -> str:
        """Real, then the mean of the draws and their range; bold when the real one is outside."""
        if not self.source.ordered and ("autocorrelation" in name or "and rate" in name):
            return ""
        value = self.real[name]
        values = [one[name] for one in self.drawn if not np.isnan(one[name])]
        digits = 0 if name.endswith("tokens") else 2
        real, mean, least, most = (
            f"{number:,.{digits}f}" for number in (value, _mean(values), min(values), max(values))
        )
        inside = min(values) <= value <= max(values) or real in (least, most)
        return f"{real if inside else f'**{real}**'} / {mean} ({least} to {most})"


def print_fits(fits: Sequence[Fit]) -> None:
    if not fits:
        return
    print("\n| statistic | " + " | ".join(f"`{fit.source.model}`" for fit in fits) + " |")
    print("|---|" + "---|" * len(fits))
    for name in fits[0].real:
        print(f"| {name} | " + " | ".join(fit.cell(name) for fit in fits) + " |")


@dataclass(frozen=True)
class Ranking:
    """How a ranking on modelled windows agrees with that on real ones, at one load."""

    model: str
    load: str
    real: float  # Kendall's tau-b of the real windows with other real ones
    modelled: list[float]  # of real and modelled windows, by seed
    chosen: list[str]  # the best policy on modelled windows, by seed
    best: str  # on real windows
    regret: float  # most that a chosen policy's mean TTFT on real windows is above the best's


def compare_rankings(
    source: Source, real: list[Trace], others: tuple[list[Trace], list[Trace]]
) -> list[Ranking]:
    """Rank policies on real and modelled windows, and on two sets of real ones."""
    ranked = rank_policies(real)
    halves = [rank_policies(windows) for windows in others]
    drawn = [rank_policies(_draw_like(source, real, seed)) for seed in RANKING_SEEDS]
    rankings = []
    for load in LOADS:
        chosen = [int(np.argmin(one[load])) for one in drawn]
        least = min(ranked[load])
        rankings.append(
            Ranking(
                model=source.model + (", windows" if source.windows else ""),
                load=load,
                real=kendall_tau_b(halves[0][load], halves[1][load]),
                modelled=[kendall_tau_b(ranked[load], one[load]) for one in drawn],
                chosen=[POLICIES[policy] for policy in chosen],
                best=POLICIES[ranked[load].index(least)],
                regret=max(ranked[load][policy] for policy in chosen) / least - 1,
            )
        )
    return rankings


def _draw_like(source: Source, real: list[Trace], seed: int) -> list[Trace]:
    if source.windows:
        return [join(draw_windows(source, NUM_SHORT, SHORT_LEN, seed))]
    return draw_windows(source, len(real), len(real[0]), seed)


def print_rankings(rankings: list[Ranking]) -> None:
    print(
        "\n| model | load | real with real | real with modelled | best on real "
        "| best on modelled | costs at most |"
    )
    print("|---|---|---:|---:|---|---|---:|")
    for one in rankings:
        taus = [tau for tau in one.modelled if not np.isnan(tau)]
        text = f"{np.mean(taus):.2f} ({min(taus):.2f} to {max(taus):.2f})" if taus else "tied"
        if 0 < len(taus) < len(one.modelled):
            text += f", {len(one.modelled) - len(taus)} of {len(one.modelled)} tied"
        real = "tied" if np.isnan(one.real) else f"{one.real:.2f}"
        chosen = ", ".join(dict.fromkeys(one.chosen))
        print(
            f"| {one.model} | {one.load} | {real} | {text} | {one.best} | {chosen} "
            f"| {one.regret:.1%} |"
        )


def draw_picture(source: Source, real: Trace, modelled: Trace, image: Path) -> None:
    """Put rate over time and joint lengths side by side, real in the left column."""
    figure = make_subplots(
        2,
        2,
        subplot_titles=[
            f"{kind}: {what}"
            for what in ("requests/s", "lengths, tokens")
            for kind in ("real", "modelled")
        ],
        shared_yaxes=True,
        vertical_spacing=0.16,
        horizontal_spacing=0.06,
    )
    longest = max(real.duration, modelled.duration)
    width = longest / 120
    edges = np.linspace(0, 5.2, 53)
    for column, trace in enumerate((real, modelled), 1):
        counts = np.bincount((trace.arrival_time / width).astype(int))[:-1]
        times = (np.arange(len(counts)) + 0.5) * width / 60
        figure.add_scatter(
            x=times, y=counts / width, mode="lines", line={"width": 1.3}, row=1, col=column
        )
        cells, _, _ = np.histogram2d(
            np.log10(trace.output_len), np.log10(trace.prompt_len), bins=[edges, edges]
        )
        figure.add_heatmap(
            x=edges[:-1],
            y=edges[:-1],
            z=np.where(cells > 0, np.log10(cells / len(trace) + 1e-9), np.nan),
            coloraxis="coloraxis",
            row=2,
            col=column,
        )
        figure.update_xaxes(title="minutes", range=[0, longest / 60], row=1, col=column)
        log_ticks = {
            "tickvals": [0, 1, 2, 3, 4, 5],
            "ticktext": ["1", "10", "100", "1k", "10k", "100k"],
        }
        figure.update_xaxes(title="prompt", range=[0, 5.2], row=2, col=column, **log_ticks)
        figure.update_yaxes(range=[0, 4.2], row=2, col=column, **log_ticks)
    figure.update_yaxes(title="output", row=2, col=1)
    figure.update_layout(
        template="plotly_white",
        title=f"{source.model}@model, beside {source.what}",
        showlegend=False,
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 60, "r": 20, "t": 80, "b": 50},
        coloraxis={"colorscale": "Blues", "showscale": False},
    )
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    if browser is None:
        raise SystemExit("pictures need chromium or google-chrome on the path")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        figure.write_html(page, include_plotlyjs=True, config={"staticPlot": True})
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--window-size={WIDTH + 16},{HEIGHT + 16}",
                "--virtual-time-budget=8000",
                f"--user-data-dir={folder}/profile",
                f"--screenshot={image.resolve()}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


def join(windows: Sequence[Trace]) -> Trace:
    """Put windows one after another; short ones cannot fill an engine alone."""
    starts = np.cumsum([0, *(window.duration for window in windows)])[:-1]
    return Trace(
        np.concatenate(
            [window.arrival_time + start for window, start in zip(windows, starts, strict=True)]
        ),
        np.concatenate([window.prompt_len for window in windows]),
        np.concatenate([window.output_len for window in windows]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, metavar="FOLDER")
    parser.add_argument("--images", type=Path, metavar="FOLDER")
    parser.add_argument("--model", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    if options.traces is None:
        print("give --traces FOLDER: there is nothing else to hold the models against")
        return
    fits, rankings = [], []
    for source in SOURCES:
        if options.model and source.model not in options.model:
            continue
        found = sorted(options.traces.rglob(source.file))
        if not found:
            print(f"{source.model}: no {source.file}")
            continue
        if source.windows:
            of_file = read_windows(found[0])
            seen, real = of_file[::2], of_file[1::2]
            drawn = [draw_windows(source, NUM_SHORT, SHORT_LEN, seed) for seed in SEEDS]
            fits.append(Fit(source, window_statistics(real), list(map(window_statistics, drawn))))
            rankings += compare_rankings(source, [join(real)], ([join(seen)], [join(real)]))
            pictured = join(real), join(drawn[0])
        else:
            whole = load_trace(found[0])
            if source.batched:
                whole = replace(whole, arrival_time=spread_batches(whole.arrival_time))
            model = load_model(source.model)
            drawn_whole = [model.sample(len(whole), seed) for seed in SEEDS]
            fits.append(
                Fit(source, trace_statistics(whole), list(map(trace_statistics, drawn_whole)))
            )
            real = cut(whole, NUM_WINDOWS, WINDOW_LEN)
            rankings += compare_rankings(source, real, (real[::2], real[1::2]))
            pictured = whole, drawn_whole[0]
        if options.images and source.pictured:
            options.images.mkdir(parents=True, exist_ok=True)
            draw_picture(source, *pictured, options.images / f"{source.model}.png")
    print_fits([fit for fit in fits if not fit.source.windows])
    print_fits([fit for fit in fits if fit.source.windows])
    if rankings:
        print_rankings(rankings)


if __name__ == "__main__":
    main()

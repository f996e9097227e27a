"""The constants of an analysis, and two sets of them: ours and the published study's."""

from dataclasses import dataclass

#: What is analysed when nothing else is said: no two of these are the same by construction.
METRICS = (
    "ttft_mean",
    "ttft_p99",
    "e2el_mean",
    "e2el_p99",
    "tpot_mean",
    "itl_p99",
    "anwg",
    "slo_attainment",
    "output_throughput",
    "slowdown_p99",
)

#: Fewer windows than this allow no more than a hint: seven out of seven is p = 0.016 at best, and
#: one window the other way already 0.125.
FEW = 8


@dataclass(frozen=True)
class Options:
    """What `queuesmith.study.portability.analyze` analyses, and by which rules.

    Attributes
    ----------
    metrics : tuple of str or None
        Those of `METRICS` that the runs have when None.
    reference : str
        Policy that others are measured against.
    prediction : str or None
        The design's own; the one with the most runs when None.
    leave_out : tuple of str
        Policies that are not ranked.
    draws : int
        Bootstrap draws of whole windows.
    level : float
        Of intervals.
    tie : float
        Two values are tied when they differ by no more than this share of the larger one.
    reversal_margin : float
        A reversal counts when on both sides the difference exceeds this share of the loser's value.
    reversal_floor : float or None
        The same, absolute, for metrics between 0 and 1 whose loser is at 0; undefined when None.
    subset_draws : int
        Subsets of windows for sample complexity.
    subset_sizes : tuple of int or None
        How many windows; a fixed ladder when None.
    recovered : float
        Share of subsets that must recover the order.
    names_break_ties : bool
        The best `k` are exactly `k`, ties broken by name, instead of all that are tied.
    plain_pooling : bool
        Sources are pooled by the mean of the metric, instead of its ratio to the reference.
    """

    metrics: tuple[str, ...] | None = None
    reference: str = "fcfs"
    prediction: str | None = None
    leave_out: tuple[str, ...] = ()
    draws: int = 10_000
    level: float = 0.95
    tie: float = 0.01
    reversal_margin: float = 0.10
    reversal_floor: float | None = 0.02
    subset_draws: int = 500
    subset_sizes: tuple[int, ...] | None = None
    recovered: float = 0.9
    names_break_ties: bool = False
    plain_pooling: bool = False
    seed: int = 0


#: Vahidi's rules (NJIT 2026), to compare with its published tables. Ties are exact there; the
#: 1e-9 lets two means of equal numbers stay equal when they were added up in another order.
LSSP = Options(
    metrics=(
        "anwg",
        "weighted_goodput",
        "slo_violation_rate",
        "completion_fraction",
        "e2el_mean",
        "e2el_p95",
        "ttft_mean",
        "ttft_p95",
        "request_throughput",
        "output_throughput",
    ),
    reference="fifo",
    leave_out=("vllm_style_token_budget", "scorpio_style_slo_guard"),
    draws=2000,
    tie=1e-9,
    reversal_floor=None,
    subset_sizes=(5, 10, 20, 30, 40),
    names_break_ties=True,
    plain_pooling=True,
    seed=12345,
)

"""What a comparison found, in rows: each policy over all loads, and at each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queuesmith.evaluation.describe import severity
from queuesmith.evaluation.evaluate import Evaluation
from queuesmith.evaluation.goals import Goal
from queuesmith.evaluation.judge import BrokenGuard, Change, Standing
from queuesmith.metrics import METRICS, censored_quantiles

#: Metrics of a load that add up over windows; the others are averaged where they are not pooled.
_SUMS = ("num_preemptions", "num_unfinished", "num_requests", "num_dropped", "num_steps")


@dataclass(frozen=True)
class LeaderboardRow:
    """One policy over all loads.

    Attributes
    ----------
    rank : int or None
        Among the policies that may be recommended; None for the others, which stand below.
    policy, summary, kind : str
        Kind is policy, bundle (own engine settings) or oracle (knows what no server does).
    eligible : bool
    gains : mapping of str to Change
        By goal, the mean change over loads.
    wins, ties, losses : int
        Windows of all loads.
    broken : tuple of BrokenGuard
    chosen : str
        How a parameter was chosen; empty when nothing was.
    """

    rank: int | None
    policy: str
    summary: str
    kind: str
    eligible: bool
    gains: Mapping[str, Change]
    wins: int
    ties: int
    losses: int
    broken: tuple[BrokenGuard, ...]
    chosen: str = ""


@dataclass(frozen=True)
class LoadRow:
    """One policy at one load.

    Attributes
    ----------
    policy, load : str
    rho, rate : float
        Offered rate over capacity, and in requests/s.
    metrics : mapping of str to float
        Every one of `METRICS`: TTFT, TPOT, E2EL, ITL and rates pooled over windows, counts added
        up, others averaged. A window without a value leaves the mean without one.
    changes : mapping of str to Change
        Against the reference, by statistic.
    broken : tuple of str
        Names of the guards that are broken here.
    wins, ties, losses : int
        Windows, by the goal.
    p_value : float
        Two-sided sign test over windows, adjusted over loads (Holm).
    """

    policy: str
    load: str
    rho: float
    rate: float
    metrics: Mapping[str, float]
    changes: Mapping[str, Change]
    broken: tuple[str, ...]
    wins: int
    ties: int
    losses: int
    p_value: float


def leaderboard(
    standings: Sequence[Standing], goal: Goal, chosen: Mapping[str, str]
) -> list[LeaderboardRow]:
    """Rank the policies that may be recommended by the goal; the others follow without a rank."""
    rows: list[LeaderboardRow] = []
    for place, one in enumerate(standings, start=1):
        rank: int | None = place if one.eligible else None
        if rows and one.eligible and rows[-1].gains[goal.name] == one.gain[goal.name]:
            rank = rows[-1].rank
        each = list(one.loads.values())
        rows.append(
            LeaderboardRow(
                rank=rank,
                policy=one.policy.name,
                summary=one.policy.summary,
                kind=one.kind,
                eligible=one.eligible,
                gains=one.gain,
                wins=sum(row.wins for row in each),
                ties=sum(row.ties for row in each),
                losses=sum(row.losses for row in each),
                broken=tuple(sorted(one.broken, key=severity)),
                chosen=chosen.get(one.policy.name, ""),
            )
        )
    return rows


def load_rows(standings: Sequence[Standing], evaluation: Evaluation) -> list[LoadRow]:
    """Return one row per policy and load."""
    names = evaluation.cells["policy"].to_numpy()
    regions = evaluation.cells["load"].to_numpy()
    columns = {name: evaluation.cells[name].to_numpy() for name in METRICS}
    rows = []
    for load in evaluation.loads:
        for one in standings:
            mine = (names == one.policy.name) & (regions == load.name)
            metrics = {
                name: float(values[mine].sum() if name in _SUMS else values[mine].mean())
                for name, values in columns.items()
            }
            samples = evaluation.samples[one.policy.name, load.name]
            for latency in ("ttft", "e2el"):
                times = getattr(samples, latency)
                if times is not None:
                    levels = censored_quantiles(times, [0.5, 0.9, 1.0])
                    metrics |= dict(zip((f"{latency}_p50", f"{latency}_p90"), levels, strict=False))
                    if f"{latency}_max" in metrics:
                        metrics[f"{latency}_max"] = levels[2]
            beside = one.loads[load.name]
            metrics |= {
                name: change.value
                for name, change in beside.changes.items()
                if name in metrics and not name.endswith("_max")
            }
            rows.append(
                LoadRow(
                    policy=one.policy.name,
                    load=load.name,
                    rho=load.rho,
                    rate=load.rate,
                    metrics=metrics,
                    changes=beside.changes,
                    broken=tuple(broken.guard for broken in beside.broken),
                    wins=beside.wins,
                    ties=beside.ties,
                    losses=beside.losses,
                    p_value=beside.p_value,
                )
            )
    return rows

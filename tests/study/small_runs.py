"""Runs tables written down by hand: no engine is run."""

import numpy as np
import pyarrow as pa

MAIN = "noisy:0.198"


def make_runs(values, *, policies=None, rho=None, prediction=MAIN, kind="real", **columns):
    """Return a runs table.

    Parameters
    ----------
    values : mapping of (engine, load, source) to (policies, windows) array, or of metric to such
        Of `ttft_mean` when no metric is named.
    policies : sequence of str, optional
        "fcfs", "p1", "p2", ... when left out.
    rho : mapping of str to float, optional
        Loads are in the order in which they come when left out.
    columns : mapping of (engine, load, source) to array
        Further columns, by name.
    """
    metrics = values if all(isinstance(key, str) for key in values) else {"ttft_mean": values}
    metrics = {**metrics, **columns}
    first = next(iter(metrics.values()))
    loads = list(dict.fromkeys(load for _, load, _ in first))
    rows = []
    for (engine, load, source), cell in first.items():
        num_policies, num_windows = np.shape(cell)
        names = policies or ["fcfs", *(f"p{number}" for number in range(1, num_policies))]
        for p, policy in enumerate(names):
            for window in range(num_windows):
                rows.append(
                    {
                        "engine": engine,
                        "source": source,
                        "window": window,
                        "kind": kind,
                        "position": (window + 0.5) / num_windows,
                        "load": load,
                        "rho": rho[load] if rho else 0.1 * (1 + loads.index(load)),
                        "multiplier": float("nan"),
                        "prediction": prediction,
                        "policy": policy,
                        **{
                            name: float(np.asarray(cells[engine, load, source])[p, window])
                            for name, cells in metrics.items()
                        },
                    }
                )
    return pa.Table.from_pylist(rows)


def steady(*means, num_windows=10, spread=0.0, seed=0):
    """(policies, windows) of values around each mean, with the same luck for all policies."""
    luck = np.exp(spread * np.random.default_rng(seed).normal(size=num_windows))
    return np.outer(means, luck)

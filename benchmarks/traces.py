"""How fast traces are read and drawn, and how well the workload model fits.

    python benchmarks/traces.py                        read and draw speeds
    python benchmarks/traces.py --fit FILE             the model's TOML, refitted
    python benchmarks/traces.py --goodness FILE        the table in docs/background/data.md

FILE is AzureLLMInferenceTrace_conv.csv, from github.com/Azure/AzurePublicDataset.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from queuesmith.traces import fit, load_trace
from queuesmith.traces.statistics import trace_statistics

MODEL = "azure_2023_conv"
NUM_ROWS = 1_000_000
SEEDS = range(40)


def make_table(num_rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    nanoseconds = np.cumsum(rng.integers(0, 10**8, num_rows))
    times = (np.datetime64("2024-01-01T00:00:00") + nanoseconds.astype("m8[ns]")).astype("M8[ns]")
    return pa.table(
        {
            "TIMESTAMP": pa.array(times),
            "ContextTokens": rng.integers(1, 5_000, num_rows),
            "GeneratedTokens": rng.integers(1, 500, num_rows),
        }
    )


def print_speeds() -> None:
    table = make_table(NUM_ROWS)
    plain = table.set_column(
        0,
        "arrival_time",
        pa.array(table["TIMESTAMP"].cast(pa.int64()).to_numpy() / 1e9 - 1_704_067_200),
    )
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: Path(folder, name)
            for name in ("azure.csv", "plain.csv", "plain.csv.gz", "plain.parquet", "plain.jsonl")
        }
        pa.csv.write_csv(table, files["azure.csv"])
        pa.csv.write_csv(plain, files["plain.csv"])
        with pa.output_stream(files["plain.csv.gz"], compression="gzip") as stream:
            pa.csv.write_csv(plain, stream)
        pa.parquet.write_table(plain, files["plain.parquet"])
        rows = zip(*(column.to_pylist() for column in plain.columns), strict=True)
        files["plain.jsonl"].write_text(
            "".join(
                f'{{"timestamp": {arrival}, "input_length": {prompt}, "output_length": {output}}}\n'
                for arrival, prompt, output in rows
            )
        )
        for name, path in files.items():
            started = time.perf_counter()
            trace = load_trace(path)
            print(f"read {name:<15}{len(trace):>10,} rows  {time.perf_counter() - started:5.2f} s")
    for num_requests in (10_000, NUM_ROWS):
        started = time.perf_counter()
        load_trace(f"{MODEL}@model", num_requests=num_requests)
        elapsed = time.perf_counter() - started
        print(f"draw {MODEL:<15}{num_requests:>10,} rows  {elapsed:5.2f} s")


def print_goodness(file: Path) -> None:
    real = trace_statistics(load_trace(file))
    num_requests = len(load_trace(file))
    drawn = [
        trace_statistics(load_trace(f"{MODEL}@model", num_requests=num_requests, seed=seed))
        for seed in SEEDS
    ]
    print(f"| statistic | real | modelled: mean of {len(drawn)} seeds | least | most |")
    print("|---|---:|---:|---:|---:|")
    for name, value in real.items():
        values = [one[name] for one in drawn]
        digits = 0 if name.endswith("tokens") else 3
        cells = (value, float(np.mean(values)), min(values), max(values))
        print(f"| {name} | " + " | ".join(f"{cell:,.{digits}f}" for cell in cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", type=Path, metavar="FILE")
    parser.add_argument("--goodness", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.fit:
        raise SystemExit(fit.main([str(options.fit), "--name", MODEL]))
    elif options.goodness:
        print_goodness(options.goodness)
    else:
        print_speeds()

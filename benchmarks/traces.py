"""How fast traces are read and drawn: ``python benchmarks/traces.py``."""

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from queuesmith.traces import load_trace
from queuesmith.traces.synthetic import model_names

NUM_ROWS = 1_000_000


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
    load_trace("azure_2023_conv@model", num_requests=1)  # what is compiled, is compiled once
    for name in model_names():
        for num_requests in (10_000, NUM_ROWS):
            started = time.perf_counter()
            load_trace(f"{name}@model", num_requests=num_requests)
            elapsed = time.perf_counter() - started
            print(f"draw {name:<22}{num_requests:>10,} rows  {elapsed:5.2f} s")


if __name__ == "__main__":
    print_speeds()

"""What may be written to an archive, within one transaction."""

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from queuesmith.evolve.archive.schema import Champion, Member, Verdict
from queuesmith.evolve.candidate import Generation, Proposal
from queuesmith.evolve.scoring.cells import Cell, CellResult, pooled


class Writer:
    """What may be written within one transaction of `Archive.write`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def set(self, key: str, value: str) -> None:
        """Note something on the run as a whole."""
        self._connection.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (key, value))

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Add to what has been used up."""
        self._connection.executemany(
            "UPDATE spent SET amount = amount + ? WHERE currency = ?",
            [(amount, currency) for currency, amount in amounts.items()],
        )

    def _insert(self, table: str, *rows: Mapping[str, Any]) -> int:
        """Add rows, or replace those with the same key; return the number of the last one."""
        for row in rows:
            places = ", ".join(f":{name}" for name in row)
            query = f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({places})"
            last = self._connection.execute(query, row).lastrowid
        return int(last or 0) if rows else 0

    def open_generation(self, of: Generation, windows: Sequence[int], rng: Sequence[int]) -> None:
        """Begin a generation."""
        shown = {"windows": json.dumps(list(windows)), "rng": json.dumps(list(rng))}
        self._insert("generations", of._asdict() | shown | {"calls": 0, "closed": 0})

    def called(self, of: Generation) -> None:
        """Count a call of a proposer, whose candidates are added in the same transaction."""
        query = "UPDATE generations SET calls = calls + 1 WHERE (seed, track, number) = (?, ?, ?)"
        self._connection.execute(query, of)

    def close_generation(self, of: Generation, members: Sequence[Member]) -> None:
        """End a generation: write its survivors, and drop what is kept of those it discarded."""
        query = "UPDATE generations SET closed = 1 WHERE (seed, track, number) = (?, ?, ?)"
        self._connection.execute(query, of)
        where = {"seed": of.seed, "track": of.track, "generation": of.number}
        rows = [
            where
            | vars(one)
            | {"window_scores": json.dumps(one.window_scores), "clean": int(one.clean)}
            for one in members
        ]
        self._insert("members", *rows)
        self._connection.execute(
            "UPDATE scores SET kept = NULL WHERE candidate IN (SELECT number FROM candidates "
            "WHERE (seed, track, generation) = (?, ?, ?) AND verdict != 'keep')",
            of,
        )

    def add(self, of: Generation, island: int, place: int, proposal: Proposal, **known: Any) -> int:
        """Add a candidate that is still to be scored; return its number.

        `known` are its size, text_sha256 and behaviour.
        """
        meta = dict(proposal.meta)
        texts = {name: str(meta.pop(name, "")) for name in ("prompt", "answer")}
        texts |= {"text": proposal.text, "note": proposal.note}
        row = {name: _utf8(text) for name, text in texts.items()} | {
            "seed": of.seed,
            "track": of.track,
            "generation": of.number,
            "island": island,
            "place": place,
            "proposer": proposal.proposer,
            "parents": json.dumps(proposal.parents),
            "meta": json.dumps(meta),
            "status": "pending",
            "verdict": "",
            "sentence": "",
        }
        return self._insert("candidates", row | known)

    def outcome(self, number: int, status: str, sentence: str = "", **found: Any) -> None:
        """Write what came of a candidate: of `found` score, window_scores, clean, cpu_seconds."""
        usual: dict[str, Any] = {
            "score": None,
            "window_scores": (),
            "clean": False,
            "cpu_seconds": 0.0,
        }
        row = usual | found | {"number": number, "status": status, "sentence": sentence}
        row |= {"window_scores": json.dumps(list(row["window_scores"])), "clean": int(row["clean"])}
        names = ", ".join(f"{name} = :{name}" for name in row if name != "number")
        self._connection.execute(f"UPDATE candidates SET {names} WHERE number = :number", row)

    def results(self, number: int, results: Mapping[Cell, CellResult]) -> None:
        """Write cells of a candidate."""
        if not results:
            return
        found = pooled([[one] for one in results.values()])
        shown = np.column_stack([found[name] for name in ("ttft_mean", "ttft_p99", "ttft_max")])
        self._connection.executemany(
            "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (number, *cell, one.num_requests, *values, one.pack())
                for (cell, one), values in zip(results.items(), shown.tolist(), strict=True)
            ],
        )

    def verdict(self, number: int, verdict: Verdict) -> None:
        """Write the verdict on a candidate."""
        self._connection.execute(
            "UPDATE candidates SET verdict = ?, sentence = ? WHERE number = ?",
            (verdict.verdict, verdict.sentence, number),
        )

    def champion(self, seed: int, track: str, champion: Champion) -> None:
        """Write who is best of a seed on all tuning windows, and which guards it breaks."""
        low, high = (None if math.isnan(end) else end for end in (champion.low, champion.high))
        reasons = json.dumps(list(champion.reasons))
        row = {"seed": seed, "track": track} | vars(champion)
        row |= {"low": low, "high": high, "clean": int(champion.clean), "reasons": reasons}
        self._insert("champions", row)


def _utf8(text: str) -> str:
    """Write out what UTF-8 cannot hold, such as halves of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

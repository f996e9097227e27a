"""What may be written to an archive, within one transaction."""

import json
import sqlite3
from collections.abc import Mapping, Sequence

import numpy as np

from queuesmith.evolve.archive.schema import Member, Verdict
from queuesmith.evolve.candidate import Proposal
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

    def open_generation(
        self, seed: int, track: str, number: int, windows: Sequence[int], rng: Sequence[int]
    ) -> None:
        """Begin a generation."""
        self._connection.execute(
            "INSERT INTO generations VALUES (?, ?, ?, ?, ?, 0, 0)",
            (seed, track, number, json.dumps(list(windows)), json.dumps(list(rng))),
        )

    def called(self, seed: int, track: str, number: int) -> None:
        """Count a call of a proposer, whose candidates are added in the same transaction."""
        self._connection.execute(
            "UPDATE generations SET calls = calls + 1 WHERE seed = ? AND track = ? AND number = ?",
            (seed, track, number),
        )

    def close_generation(
        self, seed: int, track: str, number: int, members: Sequence[Member]
    ) -> None:
        """End a generation: write its survivors, and drop what is kept of those it discarded."""
        self._connection.execute(
            "UPDATE generations SET closed = 1 WHERE seed = ? AND track = ? AND number = ?",
            (seed, track, number),
        )
        self._connection.executemany(
            "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *(seed, track, number, one.island, one.candidate, one.score),
                    *(json.dumps(one.window_scores), int(one.clean)),
                )
                for one in members
            ],
        )
        self._connection.execute(
            "UPDATE scores SET kept = NULL WHERE candidate IN (SELECT number FROM candidates "
            "WHERE seed = ? AND track = ? AND generation = ? AND verdict != 'keep')",
            (seed, track, number),
        )

    def add(
        self,
        seed: int,
        track: str,
        generation: int,
        island: int,
        proposal: Proposal,
        *,
        place: int,
        size: int,
        text_sha256: str,
        behaviour: str,
    ) -> int:
        """Add a candidate that is still to be scored; return its number."""
        meta = dict(proposal.meta)
        prompt, answer = str(meta.pop("prompt", "")), str(meta.pop("answer", ""))
        cursor = self._connection.execute(
            "INSERT INTO candidates (seed, track, generation, island, place, text, "
            "text_sha256, behaviour, proposer, parents, note, size, prompt, answer, meta, status, "
            "verdict, sentence) VALUES "
            "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', '', '')",
            (
                *(seed, track, generation, island, place, _utf8(proposal.text), text_sha256),
                *(behaviour, proposal.proposer, json.dumps(proposal.parents)),
                *(_utf8(proposal.note), size, _utf8(prompt), _utf8(answer), json.dumps(meta)),
            ),
        )
        return int(cursor.lastrowid or 0)

    def outcome(
        self,
        number: int,
        status: str,
        *,
        sentence: str = "",
        score: float | None = None,
        window_scores: Sequence[float] = (),
        clean: bool = False,
        cpu_seconds: float = 0.0,
    ) -> None:
        """Write what came of a candidate."""
        self._connection.execute(
            "UPDATE candidates SET status = ?, sentence = ?, score = ?, window_scores = ?, "
            "clean = ?, cpu_seconds = ? WHERE number = ?",
            (
                *(status, sentence, score, json.dumps(list(window_scores)), int(clean)),
                *(cpu_seconds, number),
            ),
        )

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

    def champion(
        self,
        seed: int,
        track: str,
        number: int,
        *,
        score: float,
        low: float | None,
        high: float | None,
        reasons: Sequence[str],
    ) -> None:
        """Write who is best of a seed on all tuning windows, and which guards it breaks."""
        self._connection.execute(
            "INSERT OR REPLACE INTO champions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (seed, track, number, score, low, high, int(not reasons), json.dumps(list(reasons))),
        )


def _utf8(text: str) -> str:
    """Write out what UTF-8 cannot hold, such as halves of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

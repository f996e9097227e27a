"""What an archive holds: its tables, and their rows as values."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queuesmith.evolve.candidate import Candidate, text_sha256

#: "qsev": tells our files from other programs'.
APPLICATION_ID = 0x71736576
SCHEMA = 2
#: Statuses of candidates that took no evaluation.
NOT_EVALUATED = ("duplicate", "form", "pending")

TABLES = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE generations (
  seed INTEGER NOT NULL, track TEXT NOT NULL, number INTEGER NOT NULL,
  windows TEXT NOT NULL,   -- JSON array: indices of the tuning windows it is scored on
  rng TEXT NOT NULL,       -- JSON array: the state of its generators is their entropy, this first
  calls INTEGER NOT NULL,  -- answers of proposers that are in the archive
  closed INTEGER NOT NULL, -- 1 once survivors are written
  PRIMARY KEY (seed, track, number)
) STRICT;
CREATE TABLE candidates (
  number INTEGER PRIMARY KEY,
  seed INTEGER NOT NULL, track TEXT NOT NULL, generation INTEGER NOT NULL, island INTEGER NOT NULL,
  place INTEGER NOT NULL,  -- in the generation's plan of islands and proposers
  text TEXT NOT NULL, text_sha256 TEXT NOT NULL, behaviour TEXT NOT NULL,
  proposer TEXT NOT NULL, parents TEXT NOT NULL, note TEXT NOT NULL, size INTEGER NOT NULL,
  prompt TEXT NOT NULL, answer TEXT NOT NULL, meta TEXT NOT NULL,
  status TEXT NOT NULL,    -- pending, ok, stopped, duplicate, or what went wrong
  score REAL,              -- on its generation's windows; of a stopped one the best it could reach
  window_scores TEXT,      -- JSON array
  clean INTEGER,           -- 0 if it breaks a guard on those windows
  cpu_seconds REAL NOT NULL DEFAULT 0,
  verdict TEXT NOT NULL,   -- empty until its generation closes; keep, discard or crash
  sentence TEXT NOT NULL
) STRICT;
CREATE INDEX candidates_by_generation ON candidates (seed, track, generation, status);
CREATE TABLE scores (
  candidate INTEGER NOT NULL, window INTEGER NOT NULL, load TEXT NOT NULL,
  num_requests INTEGER NOT NULL,
  mean REAL NOT NULL, p99 REAL NOT NULL, max REAL NOT NULL,  -- of TTFT, s
  kept BLOB,               -- `CellResult.pack`; dropped with a discarded candidate
  PRIMARY KEY (candidate, window, load)
) STRICT, WITHOUT ROWID;
CREATE TABLE members (
  seed INTEGER NOT NULL, track TEXT NOT NULL, generation INTEGER NOT NULL, island INTEGER NOT NULL,
  candidate INTEGER NOT NULL, score REAL NOT NULL, window_scores TEXT NOT NULL,
  clean INTEGER NOT NULL,
  PRIMARY KEY (seed, track, generation, island, candidate)
) STRICT, WITHOUT ROWID;
CREATE TABLE champions (
  seed INTEGER NOT NULL, track TEXT NOT NULL, candidate INTEGER NOT NULL,
  score REAL NOT NULL, low REAL, high REAL, clean INTEGER NOT NULL, reasons TEXT NOT NULL,
  PRIMARY KEY (seed, track)
) STRICT;
CREATE TABLE spent (currency TEXT PRIMARY KEY, amount REAL NOT NULL) STRICT;
"""


@dataclass(frozen=True)
class Member:
    """A candidate that survived a generation in one of the islands."""

    island: int
    candidate: int
    score: float
    window_scores: tuple[float, ...]
    clean: bool


@dataclass(frozen=True)
class Verdict:
    """What became of a candidate: keep, discard or crash, and a sentence on why."""

    verdict: str
    sentence: str


@dataclass(frozen=True)
class Champion:
    """The best candidate of a seed and track."""

    candidate: int
    #: score, low, high: the goal's gain over FCFS on all tuning windows, with its 95 % interval
    #: over windows.
    score: float
    low: float
    high: float
    reasons: tuple[str, ...]  # the guards it breaks; a champion with any is only the least bad

    @property
    def clean(self) -> bool:
        """Whether it breaks no guard."""
        return not self.reasons


#: Of a candidate, as `read_candidate` takes them.
COLUMNS = (
    *("number", "seed", "track", "generation", "island", "text", "behaviour", "proposer"),
    *("parents", "note", "size", "prompt", "answer", "meta", "status", "score", "window_scores"),
    *("clean", "verdict", "sentence", "text_sha256"),
)


def read_candidate(row: Sequence[Any]) -> Candidate:
    """Make a candidate of a row of `COLUMNS`; raises `ValueError` if its text was changed."""
    found = dict(zip(COLUMNS, row, strict=True))
    written, paid = found.pop("text_sha256"), {"prompt": found.pop("prompt")}
    paid["answer"] = found.pop("answer")
    # Texts whose form was refused may hold what UTF-8 cannot, and are kept written out.
    if found["status"] not in NOT_EVALUATED and text_sha256(found["text"]) != written:
        raise ValueError(f"the text of candidate {row[0]} is not the one that was written")
    return Candidate(
        **found
        | {
            "parents": tuple(json.loads(found["parents"])),
            "meta": json.loads(found["meta"]) | {name: text for name, text in paid.items() if text},
            "score": math.nan if found["score"] is None else found["score"],
            "window_scores": tuple(json.loads(found["window_scores"] or "[]")),
            "clean": bool(found["clean"]),
        }
    )

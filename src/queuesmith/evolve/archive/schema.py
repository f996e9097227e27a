"""What an archive holds: its tables, and their rows as values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queuesmith.evolve.candidate import text_sha256

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
class Candidate:
    """A row of the archive; `parents` are numbers, `window_scores` those of its generation."""

    number: int
    seed: int
    track: str
    generation: int
    island: int
    text: str
    behaviour: str
    proposer: str
    parents: tuple[int, ...]
    note: str
    size: int
    meta: Mapping[str, Any]
    status: str
    score: float | None
    window_scores: tuple[float, ...]
    clean: bool
    verdict: str
    sentence: str


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


#: Of a candidate, in the order in which `read_candidate` takes them.
COLUMNS = (
    "number, seed, track, generation, island, text, behaviour, proposer, parents, note, size, "
    "prompt, answer, meta, status, score, window_scores, clean, verdict, sentence, "
    "text_sha256"
)


def read_candidate(row: Sequence[Any]) -> Candidate:
    """Make a candidate of a row of `COLUMNS`; raises `ValueError` if its text was changed."""
    # Texts whose form was refused may hold what UTF-8 cannot, and are kept written out.
    if row[14] not in NOT_EVALUATED and text_sha256(row[5]) != row[20]:
        raise ValueError(f"the text of candidate {row[0]} is not the one that was written")
    prompt, answer, meta = row[11], row[12], json.loads(row[13])
    meta |= {"prompt": prompt} if prompt else {}
    meta |= {"answer": answer} if answer else {}
    number, seed, track, generation, island, text, behaviour, proposer = row[:8]
    return Candidate(
        number=number,
        seed=seed,
        track=track,
        generation=generation,
        island=island,
        text=text,
        behaviour=behaviour,
        proposer=proposer,
        parents=tuple(json.loads(row[8])),
        note=row[9],
        size=row[10],
        meta=meta,
        status=row[14],
        score=row[15],
        window_scores=tuple(json.loads(row[16] or "[]")),
        clean=bool(row[17]),
        verdict=row[18],
        sentence=row[19],
    )

"""The archive: everything a run has tried, in one SQLite file that survives being killed.

One process writes (a lock says so); others may read at any time. Each transaction is on disk when
it returns, so an answer that was paid for outlives a power cut, not only a killed process: that is
why ``synchronous`` is FULL, where NORMAL would do for kills. It costs one flush for each batch of
results.
"""

import fcntl
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from queuesmith.errors import ConfigError
from queuesmith.evolve.archive.schema import (
    APPLICATION_ID,
    COLUMNS,
    NOT_EVALUATED,
    SCHEMA,
    TABLES,
    Champion,
    Member,
    read_candidate,
)
from queuesmith.evolve.archive.writer import Writer
from queuesmith.evolve.candidate import Candidate, Generation
from queuesmith.evolve.config import CURRENCIES
from queuesmith.evolve.scoring.cells import Cell, CellResult
from queuesmith.traces.columns.source import one_line

FILE = "archive.sqlite"


class Archive:
    """The file, open for reading, or for writing by this process alone.

    Use `create`, `resume` or `read`; each is a context manager.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: Any = None) -> None:
        self._connection = connection
        self._path = path
        self._lock = lock

    @staticmethod
    def refuse_existing(folder: Path) -> None:
        """Raise `ConfigError` if a folder already holds an archive."""
        if (folder / FILE).exists():
            raise ConfigError(
                f"{folder} holds a run already; go on with `queuesmith evolve resume {folder}`, or "
                "name another folder with --output"
            )

    @classmethod
    def create(cls, folder: Path, run: Mapping[str, str]) -> Self:
        """Start an archive in a folder that has none."""
        cls.refuse_existing(folder)
        path = folder / FILE
        archive = cls._connected(path, "rwc", _lock(folder))
        with archive._guard(), archive._transaction() as connection:
            # One transaction: a file killed before it is complete is empty, which `resume` says.
            for statement in TABLES.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            connection.executemany("INSERT INTO run VALUES (?, ?)", run.items())
            connection.executemany(
                "INSERT INTO spent VALUES (?, 0)", [(name,) for name in CURRENCIES]
            )
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        return archive

    @classmethod
    def resume(cls, folder: Path) -> Self:
        """Open an archive to go on writing it."""
        return cls._open(folder, write=True)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Open an archive to read it, also while a run is writing it."""
        return cls._open(folder, write=False)

    @classmethod
    def _open(cls, folder: Path, *, write: bool) -> Self:
        path = folder / FILE
        if not path.is_file():
            raise ConfigError(
                f"there is no run in {folder} ({FILE} is missing); name the folder that "
                "`queuesmith evolve run` wrote"
            )
        archive = cls._connected(path, "rw", _lock(folder) if write else None)
        try:
            with archive._guard():
                archive._check()
        except BaseException:
            archive.close()
            raise
        return archive

    @classmethod
    def _connected(cls, path: Path, mode: str, lock: Any) -> Self:
        try:
            return cls(_connect(path, mode), path, lock)
        except BaseException:
            if lock is not None:
                lock.close()
            raise

    def _check(self) -> None:
        """Refuse what is not a whole archive of this version."""
        (kind,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (num_tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if kind == 0 and num_tables == 0:
            raise ConfigError(
                f"{self._path} is empty: its run was stopped before it began; delete the folder "
                "and run again"
            )
        if kind != APPLICATION_ID:
            raise ConfigError(
                f"{self._path} is a database of another program; name a folder that `queuesmith "
                "evolve run` wrote"
            )
        if version != SCHEMA:
            raise ConfigError(
                f"{self._path} has schema {version}, this version reads {SCHEMA}; use the version "
                "of queuesmith that wrote it"
            )
        (state,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)

    def close(self) -> None:
        """Close the file and let others write it."""
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn what SQLite says of a bad file or a full disk into one line."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "UTF-8" in str(error):  # with the whole text that is none
                raise _damaged(self._path, ValueError("a text in it is not UTF-8")) from None
            raise ConfigError(f"{self._path} cannot be used: {error}") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise _damaged(self._path, error) from None

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Turn values that are not what was written into one line."""
        try:
            yield
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise _damaged(self._path, error) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back already
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def write(self) -> Iterator[Writer]:
        """Write several things at once: all of them are on disk afterwards, or none is."""
        with self._guard(), self._transaction() as connection:
            yield Writer(connection)

    def rows(
        self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._guard():
            return self._connection.execute(query, values).fetchall()

    def run(self) -> dict[str, str]:
        """Return what is known of the run as a whole."""
        return _Known(self._path, self.rows("SELECT key, value FROM run"))

    def parse(self, text: str) -> Any:
        """Read what was written as JSON."""
        with self._decoding():
            return json.loads(text)

    def spent(self) -> dict[str, float]:
        """Return what has been used up, by currency."""
        return dict(self.rows("SELECT currency, amount FROM spent"))

    def _generation(self, of: Generation, column: str) -> int | None:
        query = f"SELECT {column} FROM generations WHERE (seed, track, number) = (?, ?, ?)"
        rows = self.rows(query, of)
        return int(rows[0][0]) if rows else None

    def is_closed(self, of: Generation) -> bool:
        """Tell whether a generation is complete."""
        return bool(self._generation(of, "closed"))

    def num_calls(self, of: Generation) -> int | None:
        """Return how many calls of proposers a generation has made; None if it has not begun."""
        return self._generation(of, "calls")

    def num_evaluated(
        self, seed: int | None = None, track: str | None = None, before: int | None = None
    ) -> int:
        """Count candidates that took an evaluation; all, or some, in generations before one."""
        query = (
            "SELECT count(*) FROM candidates WHERE (seed = :seed OR :seed IS NULL) AND "
            "(track = :track OR :track IS NULL) AND (generation < :before OR :before IS NULL) AND "
            f"status NOT IN {NOT_EVALUATED}"
        )
        given = {"seed": seed, "track": track, "before": before}
        return int(self.rows(query, given)[0][0])

    def best_score(self, seed: int, track: str) -> float | None:
        """Return the best score among the last survivors that violate no tail."""
        query = (
            "SELECT max(score) FROM members WHERE seed = :seed AND track = :track AND clean = 1 "
            "AND generation = "
            "(SELECT max(generation) FROM members WHERE seed = :seed AND track = :track)"
        )
        score: float | None = self.rows(query, {"seed": seed, "track": track})[0][0]
        return score

    def candidates(self, of: Generation | None = None) -> list[Candidate]:
        """Return candidates in the order of their numbers; all of them, or a generation's."""
        where = "(seed, track, generation) = (?, ?, ?)" if of else "1"
        query = f"SELECT {', '.join(COLUMNS)} FROM candidates WHERE {where} ORDER BY number"
        rows = self.rows(query, of or ())
        with self._decoding():
            return [read_candidate(row) for row in rows]

    def candidate(self, number: int) -> Candidate:
        """Return one candidate."""
        query = f"SELECT {', '.join(COLUMNS)} FROM candidates WHERE number = ?"
        rows = self.rows(query, (number,))
        if not rows:
            raise ConfigError(f"{self._path} has no candidate {number}")
        with self._decoding():
            return read_candidate(rows[0])

    def ancestors(self, number: int) -> list[Candidate]:
        """Return a candidate and all it was bred from, oldest first."""
        found: dict[int, Candidate] = {}
        waiting = [number]
        while waiting:
            one = self.candidate(waiting.pop())
            if one.number not in found:
                found[one.number] = one
                waiting += one.parents
        return [found[key] for key in sorted(found)]

    def champion(self, seed: int, track: str) -> Champion | None:
        """Return the best of a seed, once the run has named it."""
        rows = self.rows(
            "SELECT candidate, score, low, high, reasons FROM champions WHERE seed = ? AND "
            "track = ?",
            (seed, track),
        )
        if not rows:
            return None
        number, score, low, high, reasons = rows[0]
        low, high = (math.nan if end is None else end for end in (low, high))
        return Champion(number, score, low, high, tuple(self.parse(reasons)))

    def behaviours(self, seed: int, track: str) -> dict[str, int]:
        """Return the first candidate of each behaviour and of each text that was tried."""
        query = (
            "SELECT behaviour, text_sha256, number FROM candidates WHERE seed = ? AND track = ? "
            "ORDER BY number DESC"
        )
        first: dict[str, int] = {}
        for behaviour, text_sha256, number in self.rows(query, (seed, track)):
            first[text_sha256] = number
            if behaviour:
                first[behaviour] = number
        return first

    def members(self, of: Generation) -> list[Member]:
        """Return who survived a generation, island by island, best first."""
        query = (
            "SELECT island, candidate, score, window_scores, clean FROM members WHERE "
            "(seed, track, generation) = (?, ?, ?) ORDER BY island, score DESC, candidate"
        )
        rows = self.rows(query, of)
        with self._decoding():
            return [
                Member(island, number, score, tuple(json.loads(scores)), bool(clean))
                for island, number, score, scores, clean in rows
            ]

    def results(self, candidate: int) -> dict[Cell, CellResult]:
        """Return the cells of a candidate of which enough is kept."""
        query = "SELECT window, load, kept FROM scores WHERE candidate = ?"
        rows = self.rows(query, (candidate,))
        with self._decoding():
            return {
                Cell(window, load): CellResult.unpack(kept)
                for window, load, kept in rows
                if kept is not None
            }


class _Known(dict[str, str]):
    """What is known of a run; what is asked for without asking whether it is there must be."""

    def __init__(self, path: Path, rows: list[tuple[Any, ...]]) -> None:
        super().__init__(rows)
        self._path = path

    def __missing__(self, key: str) -> str:
        raise _damaged(self._path, KeyError(key))


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = None
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10)
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("PRAGMA synchronous = FULL")
        return connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.OperationalError):
            raise ConfigError(f"{path} cannot be opened: {error}") from None
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} is damaged or is no database ({one_line(error)}); restore a copy of it, or delete "
        "the folder and run again"
    )


def _lock(folder: Path) -> Any:
    """Hold the folder's lock; the system lets go of it when the process ends, however it ends."""
    lock = (folder / "archive.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(
            f"another process is writing the run in {folder}; wait for it or stop it"
        ) from None
    return lock

"""The file of claims: a job claims a recommendation when it starts, and reports its outcome."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from tuner.recommendation.evidence import Evidence
from tuner.service.claims import Balance, Claim, Drift, Outcome, Promised, has_drifted
from tuner.values.errors import ConfigError, StorageAway

_MAX_CLAIMS = 100_000  # the oldest are forgotten
_SCHEMA = """
CREATE TABLE IF NOT EXISTS claims (
    recommendation TEXT, job TEXT, study TEXT, applied INTEGER, claimed REAL,
    promised_s REAL, longest_s REAL, least_accuracy REAL, speedup REAL, confidence REAL,
    ended REAL, train_time_s REAL, test_accuracy REAL, kept INTEGER,
    PRIMARY KEY (recommendation, job)
);
CREATE INDEX IF NOT EXISTS claims_by_age ON claims (claimed);
CREATE TABLE IF NOT EXISTS drifts (
    study TEXT PRIMARY KEY, found REAL, how TEXT, recheck TEXT DEFAULT '', marked INTEGER DEFAULT 0
);
"""
_FORGET = """
DELETE FROM claims
WHERE claimed <= (SELECT claimed FROM claims ORDER BY claimed DESC LIMIT 1 OFFSET ?)
"""
_BALANCE = """
SELECT count(*) AS claimed,
    coalesce(sum(kept), 0) AS kept,
    coalesce(sum(1 - kept), 0) AS broken,
    coalesce(sum(ended IS NOT NULL AND train_time_s IS NULL), 0) AS failed,
    coalesce(sum(train_time_s IS NOT NULL AND NOT applied), 0) AS observed,
    coalesce(sum(iif(applied, promised_s * speedup - train_time_s, 0.0)), 0.0) AS saved_s,
    coalesce(sum(iif(applied, 0.0, train_time_s - promised_s)), 0.0) AS not_saved_s
FROM claims
"""


class UnknownClaim(ConfigError):
    """An outcome without a claim."""


class Contradiction(ConfigError):
    """A second outcome of the same job that says something else."""


class Promises:
    """All claims and their outcomes, in an SQLite file.

    Args:
        path: The file; its folder is created.

    Attributes:
        fault: Why it could not be read or written last time; empty if it could.
    """

    def __init__(self, path: Path) -> None:
        self.fault = ""
        self._path, self._lock = path, threading.Lock()
        self._opened: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._opened:
                self._opened.close()
            self._opened = None

    def claim(self, evidence: Evidence, job: str, *, applied: bool) -> tuple[Claim, bool]:
        """Record that a job takes a recommendation; return the claim, and whether it is new.

        Args:
            evidence: The recommended configuration.
            job: The client's own name of the job.
            applied: See ``Claim``.

        Raises:
            StorageAway: If it cannot be stored.
        """
        promised = Promised.by(evidence)
        made = (evidence.id, job, evidence.study, applied, time.time(), *astuple(promised))
        with self._open() as database:
            new = database.execute(
                "INSERT OR IGNORE INTO claims (recommendation, job, study, applied, claimed, "
                "promised_s, longest_s, least_accuracy, speedup, confidence) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                made,
            ).rowcount
            database.execute(_FORGET, (_MAX_CLAIMS,))
            return _claim_of(database, evidence.id, job), bool(new)

    def end(self, recommendation: str, job: str, outcome: Outcome) -> tuple[Claim, Drift | None]:
        """Record the outcome of a job; return its claim, and the drift of its study if any.

        The same outcome may be sent again.

        Raises:
            UnknownClaim: If the job claimed no such recommendation.
            Contradiction: If it has another outcome already.
            StorageAway: If it cannot be stored.
        """
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")  # another service may use the same file
            claim = _claim_of(database, recommendation, job)
            if claim.outcome and claim.outcome != outcome:
                raise Contradiction(
                    f"job {job} has already reported {claim.outcome}; an outcome cannot be changed"
                )
            if claim.outcome is None:
                judged = claim.applied and outcome.train_time_s is not None
                kept = not claim.promised.breach(outcome) if judged else None
                database.execute(
                    "UPDATE claims SET ended = ?, train_time_s = ?, test_accuracy = ?, kept = ? "
                    "WHERE recommendation = ? AND job = ?",
                    (time.time(), *astuple(outcome), kept, recommendation, job),
                )
                if kept is False:
                    _watch(database, claim, outcome)
            return _claim_of(database, recommendation, job), _drift_of(database, claim.study)

    def claims(self, recommendation: str, newest: int) -> list[Claim]:
        """Return the newest claims of a recommendation, the newest first."""
        with self._open() as database:
            rows = database.execute(
                "SELECT * FROM claims WHERE recommendation = ? ORDER BY claimed DESC LIMIT ?",
                (recommendation, newest),
            )
            return [_read(row) for row in rows]

    def balance(self, recommendation: str = "") -> Balance:
        """Return how well promises were kept: of one recommendation, or of all."""
        with self._open() as database:
            one = f"{_BALANCE} WHERE recommendation = ?", (recommendation,)
            rows = database.execute(*one) if recommendation else database.execute(_BALANCE)
            return Balance(**dict(rows.fetchone()))

    def drifts(self) -> list[Drift]:
        """Return all drift that was found, the newest first."""
        with self._open() as database:
            rows = database.execute("SELECT * FROM drifts ORDER BY found DESC")
            return [Drift(*row) for row in rows]

    def marked(self, drift: Drift) -> None:
        """Record that a drift is on record in MLflow.

        Raises:
            StorageAway: If it cannot be stored.
        """
        with self._open() as database:
            database.execute("UPDATE drifts SET marked = 1 WHERE study = ?", (drift.study,))

    def queued(self, drift: Drift, recheck: str) -> None:
        """Record the job that measures a study again.

        Raises:
            StorageAway: If it cannot be stored.
        """
        with self._open() as database:
            database.execute(
                "UPDATE drifts SET recheck = ? WHERE study = ?", (recheck, drift.study)
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the database in a transaction."""
        try:
            with self._lock, self._connection() as database:  # commits, or rolls back
                yield database
        except (sqlite3.Error, OSError) as error:
            self.fault = f"the claims of jobs cannot be read or written: {error}"
            raise StorageAway(self.fault) from error
        self.fault = ""

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            opened = sqlite3.connect(self._path, check_same_thread=False)
            try:
                opened.row_factory = sqlite3.Row
                opened.executescript(_SCHEMA)
            except BaseException:
                opened.close()
                raise
            self._opened = opened
        return self._opened


def _claim_of(database: sqlite3.Connection, recommendation: str, job: str) -> Claim:
    row = database.execute(
        "SELECT * FROM claims WHERE recommendation = ? AND job = ?", (recommendation, job)
    ).fetchone()
    if row is None:
        raise UnknownClaim(
            f"job {job} has not claimed recommendation {recommendation}; "
            f"POST /v1/recommendations/{recommendation}/claims when it starts"
        )
    return _read(row)


def _read(row: sqlite3.Row) -> Claim:
    came = Outcome(row["train_time_s"], row["test_accuracy"])
    return Claim(
        recommendation=row["recommendation"],
        job=row["job"],
        study=row["study"],
        applied=bool(row["applied"]),
        promised=Promised(
            row["promised_s"],
            row["longest_s"],
            row["least_accuracy"],
            row["speedup"],
            row["confidence"],
        ),
        claimed=row["claimed"],
        ended=row["ended"],
        outcome=came if row["ended"] else None,
        kept=None if row["kept"] is None else bool(row["kept"]),
    )


def _drift_of(database: sqlite3.Connection, study: str) -> Drift | None:
    row = database.execute("SELECT * FROM drifts WHERE study = ?", (study,)).fetchone()
    return Drift(*row) if row else None


def _watch(database: sqlite3.Connection, claim: Claim, outcome: Outcome) -> None:
    """Record drift of a claim's study if the outcomes, of which this one is the last, show it."""
    if _drift_of(database, claim.study):
        return
    rows = database.execute(
        "SELECT kept FROM claims WHERE recommendation = ? AND kept IS NOT NULL ORDER BY ended",
        (claim.recommendation,),
    )
    kept = [bool(row["kept"]) for row in rows]
    if not has_drifted(kept, claim.promised.confidence):
        return
    how = (
        f"{kept.count(False)} of {len(kept)} jobs broke the promise; the last one "
        f"{claim.promised.breach(outcome)}"
    )
    database.execute(
        "INSERT INTO drifts (study, found, how) VALUES (?, ?, ?)", (claim.study, time.time(), how)
    )

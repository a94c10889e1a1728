"""What jobs were promised, and what came of it: claims, outcomes, and drift.

A job *claims* a recommendation when it starts and reports its *outcome* when it ends. Its promise
is kept if it took no longer, and was no less accurate, than the promised intervals allow. Broken
promises in a row show *drift*: the evidence no longer describes what jobs do.

Drift is found by an e-detector, a CUSUM of bets against "promises are broken as seldom as their
confidence says" (Shin, Ramdas and Rinaldo 2023, doi:10.51387/23-NEJSDS51). It may look after each
outcome: without drift it takes ``FALSE_ALARM_AFTER`` outcomes or more on average until one is
found all the same, averaged over studies.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from tuner.recommendation.evidence import Evidence
from tuner.values.errors import ConfigError, StorageAway

FALSE_ALARM_AFTER = 1000.0
"""Outcomes, on average at least, until drift is found where there is none."""
_SUSPECTED = 0.5  # share of broken promises that the bets are on
_ROUNDED = 1 - 1e-9
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


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        train_time_s: Seconds of training; ``None`` if the job ended early, which says nothing
            about the promise.
        test_accuracy: Fraction 0–1; ``None`` if the job did not measure it.
    """

    train_time_s: float | None = None
    test_accuracy: float | None = None

    def __str__(self) -> str:
        """Return it in words."""
        if self.train_time_s is None:
            return "that it ended early"
        reached = self.test_accuracy
        return f"{self.train_time_s:g} s" + (f" and {reached:.2%}" if reached is not None else "")


@dataclass(frozen=True)
class Promised:
    """What one job is promised.

    Attributes:
        train_time_s: Predicted seconds of training.
        longest_s: Upper end of its interval; infinite if only one run was measured.
        least_accuracy: Lower end of the interval of its test accuracy, fraction 0–1.
        speedup: Of the default's training time by that of this configuration; 1 if unknown.
        confidence: Probability (fraction) that a job keeps both, at least.
    """

    train_time_s: float
    longest_s: float
    least_accuracy: float
    speedup: float
    confidence: float

    @classmethod
    def by(cls, evidence: Evidence) -> Promised:
        """Return what a verified configuration promises; raise ``ValueError`` if it is unclear."""
        time_s = evidence.job_time_s
        confidence = float(evidence.figures["confidence"])
        if not 0 < confidence < 1 or not math.isfinite(evidence.accuracy):
            raise ValueError(f"confidence {confidence}, test_accuracy {evidence.accuracy}")
        # both intervals are two-sided: their harmful sides have all that confidence leaves
        return cls(
            train_time_s=time_s.value,
            longest_s=time_s.high if time_s.high > time_s.value else math.inf,  # of a single run
            least_accuracy=evidence.job_accuracy.low,
            speedup=evidence.speedup.value if math.isfinite(evidence.speedup.value) else 1.0,
            confidence=confidence,
        )

    def breach(self, outcome: Outcome) -> str:
        """Return how an outcome breaks this promise, in words; empty if it keeps it."""
        found = []
        if outcome.train_time_s is not None and outcome.train_time_s > self.longest_s:
            found.append(
                f"trained for {outcome.train_time_s:.3g} s, promised were at most "
                f"{self.longest_s:.3g} s"
            )
        if outcome.test_accuracy is not None and outcome.test_accuracy < self.least_accuracy:
            found.append(
                f"reached {100 * outcome.test_accuracy:.2f} %, promised were at least "
                f"{100 * self.least_accuracy:.2f} %"
            )
        return "; ".join(found)


@dataclass(frozen=True)
class Claim:
    """A job that runs, or ran, with a recommendation or (``applied`` false) beside it.

    Attributes:
        recommendation: Its id.
        job: The client's own name of the job.
        study: Run id of the study that the recommendation rests on.
        applied: Whether the job took the configuration; else it kept its own (``mode=observe``).
        promised: What it was promised.
        claimed: Seconds since the epoch.
        ended: Seconds since the epoch; ``None`` before.
        outcome: What came of it; ``None`` before.
        kept: Whether the promise was kept; ``None`` if that cannot be told.
    """

    recommendation: str
    job: str
    study: str
    applied: bool
    promised: Promised
    claimed: float
    ended: float | None = None
    outcome: Outcome | None = None
    kept: bool | None = None

    @property
    def breach(self) -> str:
        """How the promise was broken, in words; empty if it was not."""
        return self.promised.breach(self.outcome) if self.outcome and self.kept is False else ""


@dataclass(frozen=True)
class Drift:
    """A study whose promises are no longer kept.

    Attributes:
        study: Its run id.
        found: Seconds since the epoch.
        how: In words.
        recheck: The job that measures it again, or why there is none; empty until that is known.
        marked: Whether that is on record in MLflow.
    """

    study: str
    found: float
    how: str
    recheck: str = ""
    marked: int = 0


@dataclass(frozen=True)
class Balance:
    """How well promises were kept.

    Attributes:
        claimed: Jobs that claimed a recommendation.
        kept, broken: Of those that applied it and ended.
        failed: Jobs that ended early.
        observed: Jobs that ended and only observed.
        saved_s: Seconds of training saved against the default, whose time is known from the study.
        not_saved_s: Seconds of training that the observing jobs would have saved.
    """

    claimed: int = 0
    kept: int = 0
    broken: int = 0
    failed: int = 0
    observed: int = 0
    saved_s: float = 0.0
    not_saved_s: float = 0.0


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


def has_drifted(kept: Sequence[bool], confidence: float) -> bool:
    """Return whether promises, kept or not in the order of the outcomes, ever showed drift.

    Args:
        kept: Whether each was kept.
        confidence: Probability (fraction) that one is kept while nothing has changed, at least.
    """
    seldom, wealth = 1 - confidence, 0.0
    if seldom >= _SUSPECTED:  # so little is promised that nothing breaks it
        return False
    for each in kept:
        bet = (1 - _SUSPECTED) / confidence if each else _SUSPECTED / seldom
        wealth = max(wealth, 1.0) * bet
        if wealth >= FALSE_ALARM_AFTER * _ROUNDED:
            return True
    return False

"""What jobs were promised, what came of it, and when that shows drift.

A promise is kept if a job took no longer, and was no less accurate, than the promised intervals
allow. Broken promises in a row show *drift*: the evidence no longer describes what jobs do.

Drift is found by an e-detector, a CUSUM of bets against "promises are broken as seldom as their
confidence says" (Shin, Ramdas and Rinaldo 2023, doi:10.51387/23-NEJSDS51). It may look after each
outcome: without drift it takes ``FALSE_ALARM_AFTER`` outcomes or more on average until one is
found all the same, averaged over studies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.recommendation.evidence import Evidence

FALSE_ALARM_AFTER = 1000.0
"""Outcomes, on average at least, until drift is found where there is none."""
_SUSPECTED = 0.5  # share of broken promises that the bets are on
_ROUNDED = 1 - 1e-9  # of the threshold, as products of bets are


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
                f"trained for {outcome.train_time_s:.6g} s, promised were at most "
                f"{self.longest_s:.6g} s"
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

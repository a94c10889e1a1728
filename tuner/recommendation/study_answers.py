"""The answers that one study proved, picked from its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.recommendation.evidence import Evidence
from tuner.values.verified import Role


@dataclass(frozen=True, slots=True)
class StudyAnswers:
    """The answers that one study proved; each is ``None`` if it is not proven.

    Attributes:
        no_loss: The fastest configuration that is faster than the default and loses nothing.
        runtime_only: The default's own params at the fastest runtime setting, if faster.
        most_accurate: The most accurate of those that are more accurate than the default.
    """

    no_loss: Evidence | None
    runtime_only: Evidence | None
    most_accurate: Evidence | None


def answers_among(evidence: Sequence[Evidence]) -> StudyAnswers:
    """Pick the answers among the points of one study, as ``verified.answers_of`` does."""
    runtimes = [each for each in evidence if each.is_faster_default]
    lossless = [*runtimes, *(each for each in evidence if each.is_faster and each.no_loss)]
    others = [each for each in evidence if not each.is_default]
    compared = [each for each in others if each.role != Role.RUNTIME_ONLY.value]
    better = [each for each in compared if each.is_best_of(len(compared))]
    return StudyAnswers(
        no_loss=max(lossless, key=lambda each: each.speedup.value, default=None),
        runtime_only=max(runtimes, key=lambda each: each.speedup.value, default=None),
        most_accurate=max(better, key=lambda each: each.accuracy, default=None),
    )

"""Trial 0: the default's own rate and convergence, by its first part or as a whole.

With a reference its first part is enough, if it converges as recorded. Without one the default is
trained to its end: at the fastest runtime setting where the search races these, else at its own.
Where there is no time for that, the default of the study is its first part, and all is compared
with that: what took the default so long to reach.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass

from tuner.convergence.references import Reference
from tuner.values.trial import Checkpoint, TrialResult, TrialStatus

_LEAST_COMPARED = 2  # looks of the first part, that a reference must be seen to hold at


@dataclass(frozen=True)
class KnownDefault:
    """What a study knows of its default.

    Attributes:
        result: Trial 0, its accuracies by the reference where there is one.
        accuracies: Test accuracies of its whole training, one a seed; empty without any.
        reference: How its training was recorded to go; ``None`` if it was not.
        words: Where its accuracy comes from, or why a reference was not used.
    """

    result: TrialResult
    accuracies: tuple[float, ...] = ()
    reference: Reference | None = None
    words: str = ""

    @property
    def whole(self) -> bool:
        """Whether the accuracy at the default's end is known."""
        return bool(self.accuracies)

    @property
    def part(self) -> str:
        """Which part of the default all is compared with, in words; empty for the whole."""
        return "" if self.whole or not self.result.usable else self.result.reason

    @property
    def recorded(self) -> list[TrialResult]:
        """The recorded trainings as results of their own, one a seed, for their curves."""
        result = self.result
        return [
            dataclasses.replace(
                result,
                checkpoints=tuple(
                    Checkpoint(look.iteration, 0.0, None, look.val_accuracy) for look in run.looks
                ),
            )
            for run in (self.reference.runs if self.reference else ())
        ]

    @property
    def deviation(self) -> float:
        """Of the test accuracies between seeds; 0 if one seed tells nothing of it."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def judge(
    result: TrialResult, reference: Reference | None, refusal: str, images: int
) -> KnownDefault:
    """What is known of the default after trial 0.

    Args:
        result: Trial 0, over its first part or as a whole.
        reference: One that may hold for it.
        refusal: Why there is none that may; empty if there is.
        images: Of the validation split.
    """
    if not result.usable:
        return KnownDefault(result)
    if reference is not None:
        refusal = reference.version_refusal(result.versions)
        seed = result.trial.seed
        common = len(reference.in_common(seed, result.checkpoints))
        if common < _LEAST_COMPARED:
            refusal = refusal or (
                f"it and the default's first part have {common} looks in common, and at least "
                f"{_LEAST_COMPARED} are needed"
            )
        refusal = refusal or reference.departure(seed, result.checkpoints, images)
        if not refusal:
            return with_reference(result, reference)
        refusal = f"the recorded reference is not used: {refusal}"
    if is_part(result):
        return KnownDefault(result, words=refusal)
    known = () if result.test_accuracy is None else (result.test_accuracy,)
    return KnownDefault(result, known, words=refusal)


def with_reference(result: TrialResult, reference: Reference) -> KnownDefault:
    """The default as a reference completes it, its own whole training counted where it is one."""
    own = [] if result.trial.projected or result.test_accuracy is None else [result.test_accuracy]
    fresh = [] if result.trial.seed in reference.seeds else own
    return KnownDefault(
        reference.completed(result),
        (*reference.test_accuracies, *fresh),
        reference,
        f"The default's accuracy is that of a {reference.words}: its own first part converges as "
        "recorded. Its time is that of its own rate on this machine.",
    )


def first_part(result: TrialResult) -> TrialResult:
    """The part of the default that was trained, as a training of its own."""
    measured = result.measurement
    assert measured is not None
    asked = int(result.trial.params["iterations"] or 1)
    factor = result.iterations / asked if result.trial.projected else 1.0
    params = {**result.trial.params, "iterations": result.iterations}
    return dataclasses.replace(
        result,
        trial=dataclasses.replace(result.trial, params=params, share=1.0),
        status=TrialStatus.COMPLETE,
        reason=f"the first {result.iterations:,} of {asked:,} iterations",
        measurement=dataclasses.replace(
            measured,
            train_time_s=measured.train_time_s * factor,
            cpu_user_s=measured.cpu_user_s * factor,
            cpu_system_s=measured.cpu_system_s * factor,
        ),
    )


def is_part(result: TrialResult) -> bool:
    """Whether a training ended before the default itself would have."""
    cut_short = result.status is TrialStatus.STOPPED and not result.ended_itself
    return result.trial.projected or cut_short

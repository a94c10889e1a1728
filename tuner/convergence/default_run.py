"""Trial 0: the default's own rate and convergence, over its first part or as a whole.

With a reference, the first part is enough if it converges as recorded. Without one, the default is
trained to its end: at the fastest runtime setting where the search races these, else at its own.
Where there is no time for that, the first part is the default of the study, and everything is
compared with it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.convergence.departures import departure, in_common
from tuner.convergence.references import Reference
from tuner.values.params import iterations_of
from tuner.values.trial import Checkpoint, TrialResult, TrialStatus

_MIN_COMPARED = 2  # looks of the first part at which a reference must hold


@dataclass(frozen=True)
class KnownDefault:
    """What a study knows of its default.

    Attributes:
        result: Trial 0; its accuracies are the reference's where there is one.
        accuracies: Test accuracies of its whole training, one per seed; empty without any.
        reference: The recorded convergence of its training; ``None`` without one.
        words: Where its accuracy comes from, or why a reference was not used.
    """

    result: TrialResult
    accuracies: tuple[float, ...] = ()
    reference: Reference | None = None
    words: str = ""

    @property
    def whole(self) -> bool:
        """Whether the default's final accuracy is known."""
        return bool(self.accuracies)

    @property
    def part(self) -> str:
        """The part of the default that all is compared with, in words; empty for the whole."""
        return "" if self.whole or not self.result.usable else self.result.reason

    @property
    def recorded(self) -> list[TrialResult]:
        """The recorded trainings as results of their own, one per seed, for their curves."""
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
        """Standard deviation of the test accuracies between seeds; 0 without two seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def judge(
    result: TrialResult,
    reference: Reference | None,
    refusal: str,
    images: int,
    again: Callable[[], TrialResult | None] = lambda: None,
) -> KnownDefault:
    """Return what is known of the default after trial 0.

    Args:
        result: Trial 0, over its first part or as a whole.
        reference: A reference that may hold for it.
        refusal: Why no reference may hold; empty if one may.
        images: Size of the validation split.
        again: Trains the first part once more, at the runtime setting of its seed's recording;
            ``None`` if that is no other setting.
    """
    if not result.usable:
        return KnownDefault(result)
    if reference is not None:
        seed, looks = result.trial.seed, result.checkpoints
        refusal = reference.version_refusal(result.versions)
        own_way = "" if refusal else _difference(looks, reference, seed, images)
        if own_way and not _is_due_to_setting(result, reference, images, again):
            refusal = own_way
        if not refusal:
            return with_reference(result, reference, own_way)
        refusal = f"the recorded reference is not used: {refusal}"
    if is_part(result):
        return KnownDefault(result, words=refusal)
    known = () if result.test_accuracy is None else (result.test_accuracy,)
    return KnownDefault(result, known, words=refusal)


def least_compared(reference: Reference, seed: int) -> int:
    """Return after how many iterations a training can be compared with its seed's recording."""
    return sorted(reference.looks_of(seed))[:_MIN_COMPARED][-1]


def _difference(looks: Sequence[Checkpoint], reference: Reference, seed: int, images: int) -> str:
    """Tell why looks at a training do not show that a reference holds; empty if they do."""
    common = len(in_common(reference, seed, looks))
    if common < _MIN_COMPARED:
        return (
            f"the default's first part has {common} of the recorded looks, and at least "
            f"{_MIN_COMPARED} are needed"
        )
    return departure(reference, seed, looks, images)


def _is_due_to_setting(
    result: TrialResult,
    reference: Reference,
    images: int,
    again: Callable[[], TrialResult | None],
) -> bool:
    """Return whether a first part does not follow the recording for its runtime setting alone.

    Rounding leads it elsewhere, so that its looks scatter around its seed's recording, or it is
    too slow to be compared. The same part trained again, at the runtime setting of the recording,
    then follows it.
    """
    seed = result.trial.seed
    if departure(reference, seed, result.checkpoints, images, elsewhere=True):
        return False
    repeated = again()
    if repeated is None or not repeated.usable:
        return False
    return not _difference(repeated.checkpoints, reference, seed, images)


def with_reference(result: TrialResult, reference: Reference, own_way: str = "") -> KnownDefault:
    """Complete the default from a reference.

    Its own training counts too, if it was whole and its seed is not recorded.

    Args:
        result: Trial 0, over its first part or as a whole.
        reference: The reference that holds for it.
        own_way: Why it did not follow the recording at its own runtime setting, as it did at that
            of the recording; empty if it did at both.
    """
    own = [] if result.trial.projected or result.test_accuracy is None else [result.test_accuracy]
    fresh = [] if result.trial.seed in reference.seeds else own
    at = " at the runtime setting of the recording" if own_way else ""
    otherwise = f" At the default's own it does not: {own_way}." if own_way else ""
    return KnownDefault(
        reference.completed(result),
        (*reference.test_accuracies, *fresh),
        reference,
        f"The default's {result.quality.name} is that of a {reference.words}, as the first part "
        f"of its training here matched the recording{at}.{otherwise} Its time comes from its rate "
        "on this machine.",
    )


def first_part(result: TrialResult) -> TrialResult:
    """Return the part of the default that was trained, as a training of its own."""
    measured = result.measurement
    assert measured is not None
    asked = iterations_of(result.trial.params)
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
    """Return whether a training ended before the default itself would have."""
    cut_short = result.status is TrialStatus.STOPPED and not result.ended_itself
    return result.trial.projected or cut_short

"""Departures: whether a training of the default goes as its reference says.

A run with a recorded seed has the same first weights and order of the data. So it follows that
seed's curve closely, and a shift much smaller than the spread between seeds is seen. At another
runtime setting rounding may lead it elsewhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tuner.convergence.references import Reference
from tuner.values.distributions import upper_quantile
from tuner.values.trial import Checkpoint

_MAX_COMPARED = 6  # looks of a first part that are compared, the latest ones
_MIN_SHIFT = 0.0025  # accuracy; rounding moves a run by less where it does not lead it elsewhere
_MIN_IMAGES = 3.0  # the same in images
_SHIFT_OF_SPREAD = 0.5  # the same as a part of the standard deviation between seeds
_STEEP = 0.02  # accuracy gained around a look, from which on another setting may be early or late
_BY_CHANCE = 0.01  # share of runs that rounding led elsewhere whose shift is called one
_OUTSIDE = 0.001  # share of runs converging as recorded that are outside the band at a look
_MIN_SPREAD = 0.001  # accuracy; a few seeds may happen to agree
_WIDE = 10.0  # standard deviations, where a single seed shows no spread


def in_common(reference: Reference, seed: int, looks: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the latest looks of a training at iterations that its seed was recorded at."""
    own = reference.looks_of(seed)
    return [each for each in looks if each.iteration in own][-_MAX_COMPARED:]


def departure(
    reference: Reference,
    seed: int,
    looks: Sequence[Checkpoint],
    images: int,
    *,
    elsewhere: bool = False,
) -> str:
    """Tell how a training of the default departs from the record; empty if it does not.

    Its looks must not be shifted as a whole from the curve of its seed, and each must lie in the
    band of all seeds. Without looks in common there is nothing to compare.

    Args:
        reference: The record.
        seed: A recorded seed.
        looks: Looks of the training's first part, on the validation split.
        images: Images that accuracy is measured on; a few of them are no shift.
        elsewhere: Whether rounding may lead it elsewhere. Then looks where the curve is steep do
            not count, as rounding decides how soon it rises, and the others are shifted only if
            that is significant against their scatter (t-test, 1 %).
    """
    quality, own = reference.quality, reference.looks_of(seed)
    common = in_common(reference, seed, looks)
    if not common:
        return ""
    compared = [
        each for each in common if not (elsewhere and _is_steep(reference, seed, each.iteration))
    ]
    if compared:
        shifts = [each.val_accuracy - own[each.iteration].val_accuracy for each in compared]
        shift = statistics.fmean(shifts)
        spread = statistics.fmean(_spread(reference, each.iteration) for each in compared)
        least = max(_MIN_SHIFT, _SHIFT_OF_SPREAD * spread, _MIN_IMAGES / images)
        if abs(shift) > max(least, _by_scatter(shifts) if elsewhere else 0.0):
            return (
                f"its validation {quality.name} is {quality.shown_gain(shift)} from the "
                f"recorded curve of seed {seed} over {len(compared)} looks until iteration "
                f"{compared[-1].iteration:,}"
            )
    for each in common:
        low, high = band(reference, each.iteration)
        if not low <= each.val_accuracy <= high:
            return (
                f"after {each.iteration:,} iterations its validation {quality.name} is "
                f"{quality.shown(each.val_accuracy)}, recorded were "
                f"{quality.shown_range(low, high)}"
            )
    return ""


def band(reference: Reference, iteration: int) -> tuple[float, float]:
    """Return where one more seed's validation accuracy lies in 99.9 of 100 cases."""
    values = _values(reference, iteration)
    count = len(values)
    quantile = upper_quantile(_OUTSIDE / 2, count - 1) if count > 1 else _WIDE
    half = quantile * max(_spread(reference, iteration), _MIN_SPREAD) * (1 + 1 / count) ** 0.5
    low, high = statistics.fmean(values) - half, statistics.fmean(values) + half
    if reference.quality.is_perplexity:  # a score may be below that of blind guessing
        return low, high
    return max(0.0, low), min(1.0, high)


def _is_steep(reference: Reference, seed: int, iteration: int) -> bool:
    """Return whether a seed's recorded accuracy still changes much around a look."""
    if reference.quality.is_perplexity:
        return False
    recorded = list(reference.looks_of(seed).values())
    place = [each.iteration for each in recorded].index(iteration)
    around = [each.val_accuracy for each in recorded[max(place - 1, 0) : place + 2]]
    return max(around) - min(around) > _STEEP


def _by_scatter(shifts: Sequence[float]) -> float:
    """Return how far from zero their own scatter may lead the mean of shifts; infinite for one."""
    count = len(shifts)
    if count < 2:
        return math.inf
    return upper_quantile(_BY_CHANCE / 2, count - 1) * statistics.stdev(shifts) / math.sqrt(count)


def _values(reference: Reference, iteration: int) -> list[float]:
    return [
        look.val_accuracy
        for run in reference.runs
        for look in run.looks
        if look.iteration == iteration
    ]


def _spread(reference: Reference, iteration: int) -> float:
    values = _values(reference, iteration)
    return statistics.stdev(values) if len(values) > 1 else 0.0

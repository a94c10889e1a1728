"""Early stopping: whether further training can pay, given a run's curve and its rivals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.values.quality import ACCURACY, Quality
from tuner.values.trial import Checkpoint

_FAR_BEHIND_ACCURACY = 0.01  # a trial leads nowhere if it is this far behind another one
_FAR_BEHIND_TIME = 0.6  # that took less than this fraction of its time
_MIN_POINTS = 4  # a slope from fewer says nothing
_MIN_PART = 1 / 8  # of a run; the slope of a shorter part tells nothing of its end
_SLOPES = 3  # the steepest of the last ones is assumed to continue
_OPTIMISM, _EXTRA = 1.25, 0.1  # factor on the slope, and addition to it
_SLACK = 0.001  # of accuracy: what adds less to the front adds nothing
_MIN_ERROR = 1e-4
_DOUBLING = 1.9  # of time; evaluations are not exactly a doubling apart
_MIN_S = 1e-9  # a clock may stand still between two looks
_STEPS = 16


def far_behind(
    checkpoints: Sequence[Checkpoint], rivals: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """Return seconds and accuracy of a rival clearly better in clearly less time, if any."""
    if not checkpoints:
        return None
    last = checkpoints[-1]
    for time_s, accuracy in rivals:
        ahead = accuracy - last.val_accuracy > _FAR_BEHIND_ACCURACY
        if ahead and time_s < _FAR_BEHIND_TIME * last.train_time_s:
            return time_s, accuracy
    return None


def can_extend(
    checkpoints: Sequence[Checkpoint],
    rivals: Sequence[tuple[float, float]],
    end_s: float,
    quality: Quality = ACCURACY,
) -> bool:
    """Return whether a run may still reach a point that none of ``rivals`` dominates.

    Errors fall as a power of time (learning curves: doi:10.1109/TPAMI.2022.3220744). The best case
    is 1.25 times the steepest of the latest slopes, each over about a doubling, plus 0.1.

    Args:
        checkpoints: Checkpoints of the run so far, in the order of training.
        rivals: Seconds of training and validation accuracy of the best trials so far.
        end_s: Training time at which the run will be over, seconds.
        quality: What the accuracies are scores of.
    """
    if not rivals or len(checkpoints) < _MIN_POINTS:
        return True
    last = checkpoints[-1]
    if last.train_time_s < _MIN_PART * end_s:
        return True
    if last.val_accuracy > _best_by(last.train_time_s, rivals) + _SLACK:
        return True
    slope = _OPTIMISM * max(0.0, *_slopes(checkpoints, quality)) + _EXTRA
    # a single evaluation may be far off
    recent_s = last.train_time_s / _DOUBLING
    late = [each for each in checkpoints if each.train_time_s > recent_s]
    reached = max(each.val_accuracy for each in [*late, *checkpoints[-2:]])
    error = max(quality.error(reached), _MIN_ERROR)
    now_s = max(last.train_time_s, _MIN_S)
    for step in range(1, _STEPS + 1):
        factor = max(end_s / now_s, 1.0) ** (step / _STEPS)
        accuracy = quality.score_of_error(error * factor**-slope)
        if accuracy > _best_by(now_s * factor, rivals) + _SLACK:
            return True
    return False


def _best_by(time_s: float, rivals: Sequence[tuple[float, float]]) -> float:
    return max((accuracy for rival_s, accuracy in rivals if rival_s <= time_s), default=0.0)


def _slopes(checkpoints: Sequence[Checkpoint], quality: Quality) -> list[float]:
    """Return falls of the log error per log time, each over about a doubling of time."""
    falls = []
    for place in range(max(2, len(checkpoints) - _SLOPES), len(checkpoints)):
        after = checkpoints[place]
        earlier = [
            each
            for each in checkpoints[: place - 1]
            if each.train_time_s <= after.train_time_s / _DOUBLING
        ]
        before = earlier[-1] if earlier else checkpoints[0]
        errors = [max(quality.error(each.val_accuracy), _MIN_ERROR) for each in (before, after)]
        times = [max(each.train_time_s, _MIN_S) for each in (before, after)]
        if times[1] > times[0]:
            falls.append(math.log(errors[0] / errors[1]) / math.log(times[1] / times[0]))
    return falls or [0.0]

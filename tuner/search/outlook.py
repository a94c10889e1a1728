"""What is to be reached to lose nothing, and how likely each known point is to be proven so.

Chosen is on the validation split, proven on the test split over fresh seeds. Between the two
stand the noise of a look, that the best of many looks is the luckiest (the curve model smooths
all looks together), the spread between seeds, and the planned test with its own power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tuner.search.curves import LEAST_ERROR, CurveModel, persistence_of
from tuner.search.places import AccuracyCube
from tuner.values.space import Range, SearchSpace
from tuner.values.trial import TrialResult
from tuner.verification.noninferiority import LookPlan

_Array = np.typing.NDArray[np.float64]
_OF_SAMPLING = 0.7  # usual spread between seeds by that of sampling the images
_BETWEEN_SPLITS = 0.15  # of a configuration's errors are its own, by ``references/`` of MNIST
_NEAR = 2.0  # times the default's error, beyond which no point has a chance
_QUANTILES = tuple(stats.norm.ppf((np.arange(7) + 0.5) / 7))


@dataclass(frozen=True)
class Target:
    """The default's end, as what loses nothing must reach it.

    Attributes:
        val_accuracy: Mean over the seeds, validation split.
        test_accuracy: The same on the test split.
        deviation: Between seeds, of the test accuracy; 0 if it is not known.
        test_images: Size of the test split.
        sure_s: Least training time that is sure to lose nothing, which is to be surpassed.
        images: That the default trains, with repetition.
        looks: Of the next candidate.
        margin: Loss that counts as none; 0 where a gain is to be proven.
        noise: Standard deviation of the logarithm of the error between seeds, of a look.
        val_images: Size of the validation split, at which that was looked at.
    """

    val_accuracy: float
    test_accuracy: float
    deviation: float
    test_images: int
    sure_s: float
    images: float
    looks: LookPlan
    margin: float
    noise: float = 0.0
    val_images: int = 0

    @property
    def _error(self) -> float:
        return max(1 - self.test_accuracy, 0.0) + LEAST_ERROR

    @property
    def _own_deviation(self) -> float:
        """Between the default's seeds; a few of them may happen to agree."""
        error = max(1 - self.test_accuracy, 1 / self.test_images)
        usual = _OF_SAMPLING * math.sqrt(error * (1 - error) / self.test_images)
        return math.hypot(self.deviation, usual) / math.sqrt(2) if self.deviation else usual

    @property
    def _candidate_deviation(self) -> float:
        """Between a candidate's seeds: what looks vary by on the way, its end varies by too.

        Trainings differ in some of the images, which averages out over a larger split.
        """
        split = math.sqrt(self.val_images / self.test_images) if self.val_images else 1.0
        return max(self._own_deviation, min(split, 1.0) * self.noise * self._error)

    @property
    def log_error(self) -> float:
        """Logarithm of the validation error at which no loss is proven every other time.

        Errors on the two splits are believed to differ by a factor that is the same for all.
        """
        runs = self.looks.default_runs[-1] - 1, self.looks.candidate_runs[-1] - 1
        squares = runs[0] * self._own_deviation**2 + runs[1] * self._candidate_deviation**2
        allowance = self.looks.allowance(self.margin, math.sqrt(squares / max(sum(runs), 1)))
        return self.default_log_error + math.log(max(1 + allowance / self._error, 1e-3))

    @property
    def default_log_error(self) -> float:
        """Logarithm of the default's own validation error, as the curve model has it."""
        return math.log(max(1 - self.val_accuracy, 0.0) + LEAST_ERROR)

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of the error that training says nothing of.

        Of the mean over the seeds that will verify a candidate, and over the default's; and of
        how a candidate's error on the one split differs from that on the other.
        """
        own = self._own_deviation**2 / self.looks.default_runs[-1]
        candidate = self._candidate_deviation**2 / self.looks.candidate_runs[-1]
        return math.hypot(math.sqrt(own + candidate) / self._error, self._between_splits)

    @property
    def _between_splits(self) -> float:
        """The same, of what a candidate's and the default's errors owe to the images of a split.

        But for what a candidate's owes to the validation split, which the curve model knows of.
        """
        if not self.val_images:
            return 0.0
        return math.hypot(
            self.own_of(self.val_images), math.sqrt(2) * self.own_of(self.test_images)
        )

    @property
    def by_test(self) -> float:
        """Error on the validation split by that on the test split."""
        return (1 - self.val_accuracy) / max(1 - self.test_accuracy, 1 / self.test_images)

    def own_of(self, images: int) -> float:
        """Standard deviation of the logarithm of an error that so many images cause."""
        error = max(1 - self.test_accuracy, 1 / self.test_images)
        return math.sqrt(_BETWEEN_SPLITS / (error * images)) if images else 0.0

    def is_near(self, point: TrialResult) -> bool:
        """Whether a point is accurate enough for its chance to be worth a thought."""
        error = 1 - (point.val_accuracy or 0.0)
        return error <= _NEAR * (1 - self.val_accuracy) + LEAST_ERROR

    def chances(self, mean: _Array, deviation: _Array) -> _Array:
        """Probability that no loss is proven of points so predicted, as logarithms of the error.

        Args:
            mean: Of any shape.
            deviation: Standard deviation of the prediction, of the same shape.
        """
        found: _Array = stats.norm.cdf((self.log_error - mean) / np.hypot(deviation, self.spread))
        return found


@dataclass(frozen=True)
class Aim:
    """What the search is after.

    Attributes:
        target: What is to be reached: no loss, or a gain.
        incumbent: What is to be expected of known points already: the logarithm of the speed-up
            over what is sure, or the fall of the logarithm of the error below the default's.
        accuracy: Whether the error is to fall, at whatever speed.
        most_images: That a trial may train.
        further: Trainings whose curves tell as much as those of trials: the default's recorded
            ones, and whole runs of verification.
    """

    target: Target
    incumbent: float = 0.0
    accuracy: bool = False
    most_images: float = math.inf
    further: tuple[TrialResult, ...] = ()

    def values(self, mean: _Array, deviation: _Array, times_s: _Array) -> _Array:
        """What each point is expected to be worth by itself, shape (n, k); see ``gains``."""
        if self.accuracy:
            return self.target.default_log_error - mean
        speedup = np.maximum(np.log(self.target.sure_s / times_s), 0.0)
        return self.target.chances(mean, deviation) * speedup

    def gains(self, mean: _Array, deviation: _Array, times_s: _Array) -> _Array:
        """What each candidate's curve may be expected to add to the incumbent.

        Args:
            mean: Of the logarithm of the error along each curve, shape (n, k).
            deviation: Its standard deviation, shape (n, k).
            times_s: Training time at each point, seconds, ascending, shape (n, k).

        Returns:
            By training up to each point, shape (n, k).
        """
        gains, certain = np.zeros(mean.shape), np.zeros(mean.shape)
        for quantile in _QUANTILES:
            # training tells of the curve, but nothing of the luck of the seeds that verify it
            value = self.values(mean + quantile * deviation, certain, times_s)
            best = np.maximum.accumulate(value, axis=1)
            gains += np.maximum(best - self.incumbent, 0.0) / len(_QUANTILES)
        return gains


class Outlook:
    """Tells of points how likely they are to be proven to lose nothing.

    Args:
        space: Of the study.
        seed: Of the model's fit.

    Attributes:
        persistence: How far a stop that is luckier than its neighbours is so for good, 0–1; see
            ``persistence_of``.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        iterations = space.params["iterations"]
        assert isinstance(iterations, Range)
        self._cube, self._model = AccuracyCube(space), CurveModel(int(iterations.high), seed)
        self._learnt = 0
        self.persistence = 0.0

    def learn(self, results: Sequence[TrialResult], target: Target) -> None:
        """Learn the curves of all that was trained, anew if there is more of it."""
        news = len(results) != self._learnt
        curves = self._cube.curves(results, target.by_test) if news else []
        if curves:
            self.persistence = persistence_of(curves)
            own = target.own_of(target.val_images)
            self._model.fit(curves, own, self.persistence)
            self._learnt = len(results)

    @property
    def noise(self) -> float:
        """Deviation between seeds at a stop, of the logarithm of the error; 0 if unknown."""
        return math.sqrt(1 - self.persistence) * self._model.noise if self._learnt else 0.0

    def chances(self, points: Sequence[TrialResult], target: Target) -> list[float]:
        """How likely each point is to be proven, 0–1; 0 while nothing is known."""
        near = [row for row, each in enumerate(points) if target.is_near(each)]
        found = np.zeros(len(points))
        if near and self._learnt:
            chosen = [points[row] for row in near]
            mean, deviation = self._predict(chosen)
            recorded = [row for row, each in enumerate(chosen) if each.trial.number == 0]
            for row in recorded:  # the default's own curve is known from several seeds as it is
                mean[row] = math.log(1 - (chosen[row].val_accuracy or 0.0) + LEAST_ERROR)
                deviation[row] = self.noise / math.sqrt(target.looks.default_runs[-1])
            found[near] = target.chances(mean, deviation)[:, 0]
        return [float(each) for each in found]

    def log_errors(self, points: Sequence[TrialResult]) -> list[float]:
        """Logarithm of each point's validation error, smoothed; none while nothing is known."""
        if not (points and self._learnt):
            return []
        mean, _ = self._predict(points)
        return [float(each) for each in mean[:, 0]]

    def _predict(self, points: Sequence[TrialResult]) -> tuple[_Array, _Array]:
        places = np.array([self._cube.place(each.params) for each in points])
        lengths = np.array([[float(each.params["iterations"] or 1)] for each in points])
        return self._model.predict(places, lengths, stops=True)

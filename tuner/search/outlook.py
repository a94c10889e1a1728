"""The accuracy that a point must reach to lose nothing, and how likely it is to be proven.

The search chooses points on the validation split; verification proves them on the test split over
fresh seeds. The two differ by the noise of a look, by selection (the best of many looks is the
luckiest; the curve model smooths all looks together, and few trainings are as good as they look),
by the spread between seeds, and by the power of the planned test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from tuner.search.curves import CurveModel, persistence_of
from tuner.search.places import AccuracyCube
from tuner.values.params import iterations_of
from tuner.values.quality import ACCURACY, MIN_ERROR, Quality
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialResult
from tuner.verification.noninferiority import LookPlan, usual_deviation
from tuner.verification.stops import with_stops

_Array = np.typing.NDArray[np.float64]
_BETWEEN_SPLITS = 0.15  # of a configuration's errors are its own, by MNIST's ``references/``
_NEAR = 2.0  # times the default's error; beyond it no point has a chance
# how far the logarithm of the error usually is above the default's, and its standard deviation: of
# all stops in ``benchmarks/tables`` that err at most 1.6 times as often; perplexities are few
_USUAL_RISE, _USUAL_SPREAD = 0.23, {"accuracy": 0.17, "perplexity": math.inf}
_ROUND = 1.25  # times a training's own time: it is side by side with another, after a set-up
_MIN_TIME_S = 1e-9
_QUANTILES = tuple(special.ndtri((np.arange(7) + 0.5) / 7))


@dataclass(frozen=True)
class Target:
    """The default's final accuracy, which a point must reach to lose nothing.

    Attributes:
        val_accuracy: Mean over the seeds, validation split.
        test_accuracy: The same on the test split.
        deviation: Standard deviation of the test accuracy between seeds; 0 if unknown.
        test_images: Size of the test split.
        sure_s: Shortest training time (s) already known to lose no accuracy; only
            faster candidates are of use.
        images: Images that the default trains on, repetitions included.
        looks: The planned looks at the next candidate.
        margin: Loss that counts as none; 0 where a gain must be proven.
        noise: Standard deviation of a look between seeds, of the logarithm of the error.
        val_images: Size of the validation split, on which ``noise`` was measured.
        quality: What the accuracies are scores of.
        proof_s: Seconds that are left for the candidate's runs.
        at_once: How many of them are side by side.
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
    quality: Quality = ACCURACY
    proof_s: float = math.inf
    at_once: int = 1

    @property
    def _slope(self) -> float:
        """By how much the logarithm of the error rises as the test accuracy falls."""
        return self.quality.slope(self.test_accuracy)

    @property
    def _own_deviation(self) -> float:
        """Standard deviation between the default's seeds; a few may agree by chance."""
        usual = usual_deviation(self.test_accuracy, self.test_images, self.quality)
        return math.hypot(self.deviation, usual) / math.sqrt(2) if self.deviation else usual

    @property
    def _candidate_deviation(self) -> float:
        """Standard deviation between a candidate's seeds: its end varies as its looks do.

        Trainings disagree on some of the images, which averages out over a larger split.
        """
        split = math.sqrt(self.val_images / self.test_images) if self.val_images else 1.0
        return max(self._own_deviation, min(split, 1.0) * self.noise / self._slope)

    @property
    def log_error(self) -> float:
        """Logarithm of the validation error at which no loss is proven half of the time.

        Errors on the two splits are assumed to differ by the same factor for all points.
        """
        deviations = self._candidate_deviation, self._own_deviation
        allowance = self.looks.allowance(self.margin, *deviations)
        rise = self.quality.log_error_rise(allowance, self.test_accuracy)
        return self.default_log_error + rise

    @property
    def default_log_error(self) -> float:
        """Logarithm of the default's own validation error, as the curve model defines it."""
        return self.quality.log_error(self.val_accuracy)

    @property
    def by_seeds(self) -> float:
        """Standard deviation of a proof's outcome between seeds, of the logarithm of the error.

        It is that of the difference of the means over the candidate's and the default's seeds.
        """
        own = self._own_deviation**2 / self.looks.default_runs[-1]
        candidate = self._candidate_deviation**2 / self.looks.candidate_runs[-1]
        return math.sqrt(own + candidate) * self._slope

    @property
    def between_splits(self) -> float:
        """Standard deviation, of the logarithm of the error, that the images of the splits cause.

        It covers the default on both splits and a candidate on the test split. The curve model
        covers a candidate on the validation split.
        """
        if not self.val_images:
            return 0.0
        return math.hypot(
            self.own_of(self.val_images), math.sqrt(2) * self.own_of(self.test_images)
        )

    @property
    def by_test(self) -> float:
        """Error on the validation split divided by that on the test split."""
        tested = max(self.quality.error(self.test_accuracy), 1 / self.test_images)
        return self.quality.error(self.val_accuracy) / tested

    def own_of(self, images: int) -> float:
        """Return the standard deviation of an error's logarithm due to so many images."""
        if not images:
            return 0.0
        if self.quality.is_perplexity:
            sampling = self.quality.sampling_deviation(self.test_accuracy, images)
            return math.sqrt(_BETWEEN_SPLITS) * sampling * self._slope
        error = max(1 - self.test_accuracy, 1 / self.test_images)
        return math.sqrt(_BETWEEN_SPLITS / (error * images))

    def is_near(self, point: TrialResult) -> bool:
        """Return whether a point may be accurate enough to have a chance."""
        if point.val_accuracy is None:  # nobody has looked
            return True
        error = self.quality.error(point.val_accuracy)
        return error <= _NEAR * self.quality.error(self.val_accuracy) + MIN_ERROR

    def rounds_in_time(self, times_s: _Array) -> _Array:
        """Return how many rounds of runs of these training times (s) there is time for."""
        rounds: _Array = self.proof_s / (_ROUND * np.maximum(times_s, _MIN_TIME_S))
        return rounds

    def _of_looks(self, rounds: _Array) -> tuple[_Array, _Array]:
        """Return ``log_error`` and ``by_seeds`` for the looks in so many rounds, at least one."""
        counts = self.looks.candidate_runs
        known = [replace(self, looks=self.looks.first(place + 1)) for place in range(len(counts))]
        runs = self.at_once * np.floor(rounds)
        last = np.clip(np.searchsorted(counts, runs, side="right") - 1, 0, len(counts) - 1)
        found = np.array([(each.log_error, each.by_seeds) for each in known])[last]
        return found[..., 0], found[..., 1]

    def chances(
        self, mean: _Array, deviation: _Array, rounds: _Array | float = math.inf
    ) -> _Array:
        """Return the probability that points so predicted are proven to lose nothing.

        Few trainings are as accurate as the default, so most that seem to be are not quite. The
        prediction is weighted with that prior knowledge (normal distributions, by Bayes' rule).

        Args:
            mean: Predicted logarithm of the error, of any shape.
            deviation: Standard deviation of the prediction, of the same shape.
            rounds: How many rounds of their runs there is time for, of the same shape.
        """
        log_error, by_seeds = self._of_looks(np.broadcast_to(rounds, mean.shape))
        unknown = deviation**2 + self.between_splits**2
        trust = 1 / (1 + unknown / _USUAL_SPREAD[self.quality.name] ** 2)
        likely = trust * mean + (1 - trust) * (self.default_log_error + _USUAL_RISE)
        error = np.sqrt(trust * unknown + by_seeds**2)
        found: _Array = special.ndtr((log_error - likely) / error)
        return found


@dataclass(frozen=True)
class Aim:
    """What the search looks for.

    Attributes:
        target: What to reach: no loss, or a gain.
        incumbent: What known points are already expected to be worth: the logarithm of the
            speed-up over what is sure, or how far the logarithm of the error is below the
            default's.
        accuracy: Whether to reduce the error, at whatever speed.
        max_images: Most images that a trial may train on.
        max_s: Longest training (s) that there would still be time to prove.
        further: Trainings whose curves tell as much as those of trials: the default's recorded
            ones, and whole runs of verification.
    """

    target: Target
    incumbent: float = 0.0
    accuracy: bool = False
    max_images: float = math.inf
    max_s: float = math.inf
    further: tuple[TrialResult, ...] = ()

    def values(self, mean: _Array, deviation: _Array, times_s: _Array) -> _Array:
        """Return the expected worth of each point by itself, shape (n, k); see ``gains``."""
        if self.accuracy:
            return self.target.default_log_error - mean
        speedup = np.maximum(np.log(self.target.sure_s / times_s), 0.0)
        # a trial takes about as long as a round of its proof
        rounds = self.target.rounds_in_time(times_s) - 1
        return with_stops(self.target.chances(mean, deviation, rounds), speedup, times_s)

    def gains(self, mean: _Array, deviation: _Array, times_s: _Array) -> _Array:
        """Return what each candidate's curve is expected to add to the incumbent.

        Args:
            mean: Mean of the logarithm of the error along each curve, shape (n, k).
            deviation: Its standard deviation, shape (n, k).
            times_s: Training time at each point, seconds, ascending, shape (n, k).

        Returns:
            Gains of training up to each point, shape (n, k).
        """
        gains, certain = np.zeros(mean.shape), np.zeros(mean.shape)
        for quantile in _QUANTILES:
            # training reveals the curve, but not the luck of the verification seeds
            value = self.values(mean + quantile * deviation, certain, times_s)
            best = np.maximum.accumulate(value, axis=1)
            gains += np.maximum(best - self.incumbent, 0.0) / len(_QUANTILES)
        return gains


class Outlook:
    """Estimates how likely points are to be proven to lose nothing.

    Args:
        space: Search space of the study.
        seed: Seed of the model's fit.

    Attributes:
        persistence: How far a stop that is luckier than its neighbours is so in every run, 0–1;
            see ``persistence_of``.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._cube = AccuracyCube(space)
        self._model = CurveModel(int(space.iterations.high), seed)
        self._results: Sequence[TrialResult] = ()
        self._learnt = 0
        self.persistence = 0.0

    def learn(self, results: Sequence[TrialResult], target: Target) -> None:
        """Learn the curves of all results; refit only if their number has changed."""
        news = len(results) != self._learnt
        self._results = results
        self._cube.admit(each.params for each in results)
        curves = self._cube.curves(results, target.by_test) if news else []
        if curves:
            self.persistence = persistence_of(curves)
            own = target.own_of(target.val_images)
            self._model.fit(curves, own, self.persistence)
            self._learnt = len(results)

    @property
    def noise(self) -> float:
        """Standard deviation between seeds at a stop, of the error's logarithm; 0 if unknown."""
        return math.sqrt(1 - self.persistence) * self._model.noise if self._learnt else 0.0

    def chances(self, points: Sequence[TrialResult], target: Target) -> list[float]:
        """Return how likely each point is to be proven, 0–1; 0 while nothing is known.

        What is near a training that diverged may diverge itself with another seed.
        """
        near = [row for row, each in enumerate(points) if target.is_near(each)]
        found = np.zeros(len(points))
        if near and self._learnt:
            chosen = [points[row] for row in near]
            mean, deviation = self._predict(chosen)
            recorded = [row for row, each in enumerate(chosen) if each.trial.number == 0]
            for row in recorded:  # several seeds show the default's own accuracy as it is
                mean[row] = target.quality.log_error(chosen[row].val_accuracy or 0.0)
                deviation[row] = self.noise / math.sqrt(target.looks.default_runs[-1])
            times_s = np.array([[each.metrics["train_time_s"]] for each in chosen])
            rounds = target.rounds_in_time(times_s)
            found[near] = target.chances(mean, deviation, rounds)[:, 0]
            places = np.array([self._cube.place(each.params) for each in chosen])
            found[near] *= self._cube.stability(places, self._results)
        return [float(each) for each in found]

    def log_errors(self, points: Sequence[TrialResult]) -> list[float]:
        """Return the logarithm of each point's validation error, smoothed; empty if unknown."""
        if not (points and self._learnt):
            return []
        mean, _ = self._predict(points)
        return [float(each) for each in mean[:, 0]]

    def _predict(self, points: Sequence[TrialResult]) -> tuple[_Array, _Array]:
        places = np.array([self._cube.place(each.params) for each in points])
        lengths = np.array([[float(iterations_of(each.params))] for each in points])
        return self._model.predict(places, lengths, stops=True)

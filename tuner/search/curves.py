"""A model of all learning curves, and what a run is expected to add to the front.

The logarithm of the error is a Gaussian process over the params that affect accuracy and the
logarithm of the iterations, learnt from every checkpoint of every run. A candidate is worth the
area that its predicted curve adds above the front, over the logarithms of time and of the error,
per second of training (expected improvement per second: doi:10.48550/arXiv.1206.2944; of a front:
doi:10.1109/TEVC.2005.859463).
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from tuner.values.quality import ACCURACY, Quality

_Array = np.typing.NDArray[np.float64]
_Flags = np.typing.NDArray[np.bool_]

_MAX_POINTS = 480  # the time of a fit grows with the cube of this
_REFIT = 1.25  # hyperparameters are refitted once there is this many times as much data
# bounds of a look's variance; few looks that happen to agree prove no less. Perplexities are told
# to a part of a percent, where accuracies are counts of a few errors
_NOISE = {"accuracy": (0.002, 0.1), "perplexity": (0.00002, 0.1)}
_FIRST_NOISE = {"accuracy": 0.015, "perplexity": 0.001}
_ALONG = (0.5, 1.5)  # length scales of the iterations, over which errors fall steadily
_SCALES = (0.2, 1.0)  # the same of the cube: two curves that agree do not make a param irrelevant
_QUANTILES = (-1.2816, -0.5244, 0.0, 0.5244, 1.2816)  # of the normal: 10, 30, 50, 70, 90 %
_TIMES = 48
_DEVIATION = 1.4826  # of a normal distribution, over the median of its absolute values
_MIN_VARIANCE = 1e-8  # of a prediction; rounding may take it below zero
_NAME = 1e-9  # distance from one name to the next
_PLACE, _STOP = 0, 1  # columns of points; see ``CurveModel._data``
_MIN_SEEDS, _LOOKS_COMPARED = 3, 9  # needed to estimate a persistence
_MAX_PERSISTENCE = 0.8
_BLIND = 40  # places at which the model is told that the first iteration still guesses


@functools.cache
def _shared_by_name() -> Any:
    """Define the kernel's class on first use: importing scikit-learn takes a second."""
    from sklearn.gaussian_process.kernels import Kernel, StationaryKernelMixin

    class SharedByName(StationaryKernelMixin, Kernel):  # type: ignore[misc]  # scikit-learn declares no types
        """A covariance that a point shares with all others of its name, and with no other point.

        Args:
            variance: Variance of what they share.
            column: Column of the points that holds the name, where 0 is no name.
        """

        def __init__(self, variance: float = 0.0, column: int = 0) -> None:
            self.variance, self.column = variance, column

        def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:  # noqa: N803 - scikit-learn's
            names, others = X[:, self.column], (X if Y is None else Y)[:, self.column]
            same = (names[:, None] == others[None, :]) & (names[:, None] != 0)
            found = self.variance * same
            return (found, np.empty((len(X), len(X), 0))) if eval_gradient else found

        def diag(self, X: Any) -> Any:  # noqa: N803 - scikit-learn's
            return self.variance * (X[:, self.column] != 0)

    return SharedByName


def shared_by_name(variance: float, column: int) -> Any:
    """Return a kernel for what all points of one name share, and no other point."""
    return _shared_by_name()(variance, column)


@dataclass(frozen=True)
class Curve:
    """The accuracy of one run as it trained.

    Attributes:
        place: Coordinates of its params in the unit cube, shape (d,).
        iterations: Iterations at the checkpoints, ascending, shape (k,).
        accuracy: Fractions 0–1, shape (k,).
        shares: Whether it was measured on the same images as other curves of this place.
        quality: What the accuracies are scores of.
    """

    place: tuple[float, ...]
    iterations: tuple[int, ...]
    accuracy: tuple[float, ...]
    shares: bool = True
    quality: Quality = ACCURACY

    @property
    def log_errors(self) -> list[float]:
        """Logarithms of the errors, shape (k,)."""
        return [self.quality.log_error(each) for each in self.accuracy]


class CurveModel:
    """Predicts curves at places where nothing was trained.

    Args:
        max_iterations: Iterations of the longest run, which scale their axis.
        seed: Seed of the fit.

    Attributes:
        noise: Usual distance of a look from its curve, as a standard deviation of the logarithm
            of the error; robust against single outliers.
    """

    noise = 0.0
    _names: Mapping[tuple[tuple[float, ...], int], float] = MappingProxyType({})

    def __init__(self, max_iterations: int, seed: int = 0) -> None:
        self._scale = math.log(max(max_iterations, 2))
        self._seed = seed
        self._kernel: object | None = None
        self._fitted_with, self._columns = 0, 0
        self._libraries: ThreadpoolController | None = None

    def fit(self, curves: Sequence[Curve], own: float = 0.0, persistence: float = 0.0) -> None:
        """Fit the model to all curves.

        Args:
            curves: All known curves.
            own: Standard deviation of the logarithm of the error by which all looks at one place
                are off together, because they use the same images. The best of many places is
                mostly the luckiest; predictions leave this out.
            persistence: Share of the variance of a look around its curve that any other look at
                the same stop shares, whatever its seed and images.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        points, targets = self._data(curves)
        if points.shape[1] != self._columns:  # a dimension was added
            self._kernel, self._columns = None, points.shape[1]
        afresh = self._kernel is None or len(points) >= _REFIT * self._fitted_with
        kernel = self._kernel
        if kernel is None:
            dimensions = points.shape[1] - 1
            # the first two columns are names, too close together to act as dimensions
            bounds = [*[_SCALES] * dimensions, _ALONG]
            smooth = Matern([*[0.5] * dimensions, 0.8], bounds, nu=2.5)
            figure = curves[0].quality.name
            noise = WhiteKernel(_FIRST_NOISE[figure], _NOISE[figure])
            kernel = ConstantKernel(1.0, (0.3, 5.0)) * smooth + noise
            if own:
                kernel += shared_by_name(own**2 / float(np.var(targets)), _PLACE)
        self._model = GaussianProcessRegressor(
            kernel,
            normalize_y=True,
            optimizer="fmin_l_bfgs_b" if afresh else None,
            random_state=self._seed,
        )
        with warnings.catch_warnings(), self._one_thread():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit(points, targets)
            if afresh:
                self._kernel, self._fitted_with = self._model.kernel_, len(points)
            if persistence:
                self._model.set_params(kernel=self._divided(persistence), optimizer=None)
                self._model.fit(points, targets)
            smooth_at = points[:-_BLIND].copy()
            smooth_at[:, _STOP] = 0.0
            apart = targets[:-_BLIND] - self._model.predict(smooth_at)
        self.noise = _DEVIATION * float(np.median(np.abs(apart)))

    def _data(self, curves: Sequence[Curve]) -> tuple[_Array, _Array]:
        """Return points, shape (n, d + 3), and logarithms of the error, shape (n,).

        A point consists of the name of its place, the name of its stop, the place itself, and the
        logarithm of the iterations. Every run begins by guessing, which the process must
        be told.
        """
        names = {curve.place: _NAME * number for number, curve in enumerate(curves, 1)}
        stops = {(curve.place, each) for curve in curves for each in curve.iterations}
        self._names = {stop: _NAME * number for number, stop in enumerate(sorted(stops), 1)}
        rows = [
            (
                names[curve.place] if curve.shares else 0.0,
                self._names[curve.place, iteration],
                *curve.place,
                math.log(iteration) / self._scale,
                log_error,
            )
            for curve in curves
            for iteration, log_error in zip(curve.iterations, curve.log_errors, strict=True)
        ]
        data = np.asarray(rows)
        if len(data) > _MAX_POINTS:
            kept = np.linspace(0, len(data) - 1, _MAX_POINTS).round().astype(int)
            data = data[kept]
        places = np.random.default_rng(self._seed).random((_BLIND, data.shape[1] - 4))
        none = np.zeros(_BLIND)
        guesses = np.full(_BLIND, curves[0].quality.first_log_error)
        blind = np.column_stack([none, none, places, none, guesses])
        data = np.concatenate([data, blind])
        return data[:, :-1], data[:, -1]

    @contextlib.contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Limit the numerical libraries to one thread.

        Matrices so small gain nothing from threads, which wait for each other when other processes
        run. The libraries are looked up once, as that takes longer than a prediction.
        """
        self._libraries = self._libraries or ThreadpoolController()
        with self._libraries.limit(limits=1):
            yield

    def _divided(self, persistence: float) -> Any:
        """Return the kernel with the noise of a look divided into what persists and the rest."""
        from sklearn.base import clone

        look = self._white_noise()
        kernel: Any = clone(self._model.kernel_)
        (name,) = (each for each in kernel.get_params() if each.endswith("noise_level"))
        kernel.set_params(**{name: (1 - persistence) * look})
        return kernel + shared_by_name(persistence * look, _STOP)

    def predict(
        self, places: _Array, iterations: _Array, *, stops: bool = False
    ) -> tuple[_Array, _Array]:
        """Predict curves at new places.

        Args:
            places: Shape (n, d).
            iterations: Shape (n, k).
            stops: Whether to include what persists at stops that were looked at.

        Returns:
            Mean and standard deviation of the logarithm of the error, each of shape (n, k). They
            are those of the curve itself; a look adds its noise.
        """
        count, length = iterations.shape
        names = np.zeros((count, length))
        if stops:
            for row, column in np.ndindex(names.shape):
                stop = tuple(map(float, places[row])), int(iterations[row, column])
                names[row, column] = self._names.get(stop, 0.0)
        points = np.concatenate(
            [
                np.zeros((count * length, 1)),
                names.reshape(-1, 1),
                np.repeat(places, length, axis=0),
                (np.log(iterations) / self._scale).reshape(-1, 1),
            ],
            axis=1,
        )
        with self._one_thread():
            mean, deviation = self._model.predict(points, return_std=True)
        look = self._white_noise() * self._model._y_train_std**2
        deviation = np.sqrt(np.maximum(deviation**2 - look, _MIN_VARIANCE))
        return mean.reshape(count, length), deviation.reshape(count, length)

    def _white_noise(self) -> float:
        """Return the variance of a look on the scale of the process."""
        parameters: Any = self._model.kernel_.get_params()
        return float(next(v for name, v in parameters.items() if name.endswith("noise_level")))


def merit(accuracy: float, quality: Quality = ACCURACY) -> float:
    """Return how far the logarithm of the error is below that of blind guessing.

    Halving the error counts the same wherever it begins, as it does to practitioners. On the plain
    scale of accuracy, a gain from 98 to 99 % would be worth nothing compared with one up to 90 %.
    """
    return quality.log_error(quality.blind_score) - quality.log_error(accuracy)


def _axis(times_s: _Array) -> _Array:
    return np.linspace(math.log(times_s.min()), math.log(times_s.max()), _TIMES)


def _steps(
    front: Sequence[tuple[float, float]], axis: _Array, least: float, quality: Quality
) -> _Array:
    """Return the best merit that the front has reached by each time of an axis."""
    known = np.full(axis.shape, merit(least, quality))
    for time_s, best in front:
        later = axis >= math.log(max(time_s, 1e-9))
        known[later] = np.maximum(known[later], merit(best, quality))
    return known


def front_gain(
    mean: _Array,
    deviation: _Array,
    times_s: _Array,
    front: Sequence[tuple[float, float]],
    *,
    seen: _Flags | None = None,
    min_accuracy: float = 0.0,
    quality: Quality = ACCURACY,
) -> _Array:
    """Return what each candidate's curve is expected to add to the front.

    Args:
        mean: Mean of the logarithm of the error along each curve, shape (n, k).
        deviation: Its standard deviation, shape (n, k).
        times_s: Training time at each point of the curves, seconds, ascending, shape (n, k).
        front: Training time and accuracy of the points to beat.
        seen: Whether accuracy is looked at there on the way, shape (n, k); by default everywhere.
        min_accuracy: Accuracy below which nothing is gained; that of blind guessing at least.
        quality: What the accuracies are scores of.

    Returns:
        Merit gained by training up to each point of the curve, shape (n, k). It is averaged over
        the logarithm of time, from the least to the greatest of ``times_s``.
    """
    logs, axis = np.log(times_s), _axis(times_s)
    known = _steps(front, axis, max(min_accuracy, quality.blind_score), quality)
    blind = quality.log_error(quality.blind_score)
    gains = np.zeros(mean.shape)
    reached = axis[None, None, :] >= logs[:, :, None]  # (n, k, t)
    for quantile in _QUANTILES:
        merits = blind - (mean + quantile * deviation)
        above = np.maximum(merits[:, :, None] - known, 0.0) * reached
        on_the_way = above if seen is None else above * seen[:, :, None]
        before = np.maximum.accumulate(on_the_way, axis=1)
        before[:, 1:], before[:, 0] = before[:, :-1].copy(), 0.0
        gains += np.maximum(before, above).mean(axis=2) / len(_QUANTILES)
    return gains


def look_deviations(curves: Sequence[Curve]) -> tuple[float, float]:
    """Estimate how far looks are from their curve: persistently at a stop, and between seeds.

    Where a framework reads the images in the order of a file, a stop comes after the same images
    with every seed, and the images learnt last count most. This shows where several seeds have
    looks at the same stops: their mean deviates from a smooth curve by more than the deviations of
    single seeds from their mean explain.

    Args:
        curves: All known curves; a place with a single curve tells nothing.

    Returns:
        Both standard deviations, of the logarithm of the error; zeros if unknown.
    """
    by_place: dict[tuple[float, ...], list[Curve]] = {}
    for each in curves:
        if len(each.iterations) > 1:
            by_place.setdefault(each.place, []).append(each)
    several = max(by_place.values(), key=len, default=[])
    common = sorted(set.intersection(*[set(each.iterations) for each in several] or [set()]))
    late = common[-_LOOKS_COMPARED:]
    if len(several) < _MIN_SEEDS or len(late) < _LOOKS_COMPARED:
        return 0.0, 0.0
    rows = [dict(zip(each.iterations, each.log_errors, strict=True)) for each in several]
    errors = np.array([[row[each] for each in late] for row in rows])
    logs, mean = np.log(late), errors.mean(axis=0)
    apart = mean - np.polyval(np.polyfit(logs, mean, 2), logs)
    by_seed = float(errors.var(axis=0, ddof=1).mean())
    lasting = float((apart**2).sum()) / (len(late) - 3) - by_seed / len(several)
    return math.sqrt(max(lasting, 0.0)), math.sqrt(by_seed)


def persistence_of(curves: Sequence[Curve]) -> float:
    """Return the share (0–0.8) of a look's variance around its curve that persists at its stop."""
    lasting, by_seed = look_deviations(curves)
    both = lasting**2 + by_seed**2
    return min(lasting**2 / both, _MAX_PERSISTENCE) if both else 0.0

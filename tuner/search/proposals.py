"""The choice of the next curve to train: the one that adds most to the front per second."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.search.curves import (
    CurveModel,
    front_gain,
)
from tuner.search.derived import Composition
from tuner.search.outlook import Aim
from tuner.search.places import AccuracyCube
from tuner.values.exchange import group_of, lossy
from tuner.values.quality import ACCURACY, Quality
from tuner.values.ranges import Range
from tuner.values.results import least_of_interest
from tuner.values.trial import Params, ParamValue, TrialResult

_CANDIDATES = 192
_NEARLY = 0.9  # of the worth; less would prolong trainings beyond what is of interest
_BESIDE = 0.25  # weight of the front's gain where there is an aim
_EARLY_LOOKS = 4  # from a quarter of the shortest training of interest on, see Trial.curve
_ROUNDING = 1e-6
_TURN = 0.5  # of the time limit, added to a trial's own cost: few more will follow it
_WORTH_A_START = 0.5  # of the greatest worth; a start point worth less waits
_Array = np.typing.NDArray[np.float64]
_Flags = np.typing.NDArray[np.bool_]
_Part = dict[str, ParamValue]
"""The params that accuracy depends on, without the iterations."""


@dataclass(frozen=True)
class Known:
    """The facts that a proposal is based on.

    Attributes:
        results: All results told so far.
        flying: Params of the trials under way.
        front: Training time (s) and accuracy of the points to beat.
        aim: What to look for first; ``None`` where only the front counts.
    """

    results: Sequence[TrialResult]
    flying: Sequence[Params]
    front: Sequence[tuple[float, float]]
    aim: Aim | None = None

    @property
    def trained(self) -> Sequence[TrialResult]:
        """All trainings whose curves are known."""
        return [*self.results, *(self.aim.further if self.aim else ())]

    @property
    def default(self) -> TrialResult | None:
        """Trial 0; ``None`` while it is not measured."""
        usable = (each for each in self.results if each.trial.is_default and each.usable)
        return next(usable, None)

    @property
    def quality(self) -> Quality:
        """What the accuracies are scores of."""
        return next((each.quality for each in self.results), ACCURACY)


@dataclass(frozen=True)
class _Candidates:
    """Curves that may be trained and fit in time, n of them with k points each.

    Attributes:
        parts: Params that accuracy depends on, one part per curve; the start points come first,
            and those of lossy exchanges last.
        lengths: Iterations worth training, one number per start point.
        paces: Seconds per iteration of the trial that would train it, shape (n,).
        fits: Whether a point is new and there is time for it, shape (n, k).
        seen: Whether accuracy is looked at there, shape (n, k).
        costs: Seconds of a run up to there, divided by its lanes, shape (n, k).
        times: Training times (s), capped at the longest of interest, shape (n, k).
    """

    parts: Sequence[_Part]
    lengths: Sequence[int]
    paces: _Array
    fits: _Flags
    seen: _Flags
    costs: _Array
    times: _Array


class Proposer:
    """Proposes what to train next.

    Args:
        composition: Composes the space with the map of its runtime settings, which grows.
        default: The framework's own default.
        seed: Seed of the model and, with ``stream``, of the candidates that are drawn.
        stream: Random stream; another one draws other candidates.

    Attributes:
        min_iterations: Iterations of the shortest training in the space.
    """

    def __init__(self, composition: Composition, default: Params, seed: int, stream: int) -> None:
        self._composition, self._space = composition, composition.space
        self._default = default
        self._random = np.random.default_rng([seed, stream])
        self._lanes, self._exact = 1, False
        iterations = self._space.params["iterations"]
        assert isinstance(iterations, Range)
        self.min_iterations, self._longest = int(iterations.low), int(iterations.high)
        self._cube = AccuracyCube(self._space)
        self._wished = [self._cube.part({**default, **each}) for each in self._space.start]
        # lengths of runs; each one's own checkpoints are among the shorter ones
        steps = int(2 * math.log2(iterations.high / iterations.low)) + 1
        lengths = np.floor(iterations.low * 2 ** (np.arange(steps) / 2) + _ROUNDING)
        self._grid = np.unique([*lengths, iterations.high])
        self._model = CurveModel(self._longest, seed)

    def propose(
        self, known: Known, limit_s: float, lanes: int = 1, *, exact: bool = False
    ) -> dict[str, ParamValue] | None:
        """Return the params worth most; ``None`` if nothing can be trained within ``limit_s``.

        Args:
            known: The facts to base it on.
            limit_s: Longest time that it may train, seconds.
            lanes: How many trials run at once; if several, each uses one core. A lossy exchange
                has all cores for itself.
            exact: Whether to propose none of a lossy exchange.
        """
        self._lanes, self._exact = lanes, exact
        limit_s = min(limit_s, self._limit("train_time_s", upper=True, default=math.inf))
        candidates = self._candidates(known, limit_s)
        if not candidates.fits.any():
            return None
        target = known.aim.target if known.aim else None
        curves = self._cube.curves(known.trained, target.by_test if target else 0.0)
        if not curves:
            row = int(np.argmax(candidates.fits.any(axis=1)))
            last = self._grid[candidates.fits[row]].max()
            return self._asked(candidates.parts[row], last)
        self._model.fit(curves, target.own_of(target.val_images) if target else 0.0)
        return self._best(known, candidates, limit_s)

    # -- candidates -----------------------------------------------------------------------------

    def _candidates(self, known: Known, limit_s: float) -> _Candidates:
        """Return start points, trained places and random ones; if none fits, a quicker one."""
        starts = self._starts()
        drawn = [self._cube.draw(self._random) for _ in range(_CANDIDATES)]
        again = [
            part
            for part in (self._cube.part(each.params) for each in known.results)
            if self._is_open(part)
        ]
        parts = [*(part for part, _ in starts), *again, *drawn]
        parts += self._lossy(parts)
        self._cube.admit((*parts, *(each.params for each in known.trained), *known.flying))
        paces = np.array([self._training_pace(each) for each in parts])
        if not (paces * self._grid[0] <= limit_s).any():
            parts = [self._quickest(drawn[0])]
            starts, paces = [], np.array([self._training_pace(parts[0])])
        rows = np.flatnonzero(paces * self._grid[0] <= limit_s)
        lasting = paces[rows, None] * self._grid
        fits = (lasting <= limit_s) & self._is_new(known, [parts[row] for row in rows])
        seen, costs = self._looks(known, lasting)
        lanes = np.array([self._lanes_of(parts[row]) for row in rows]).reshape(-1, 1)
        times = np.array([self.pace_s(parts[row]) for row in rows])[:, None] * self._grid
        # time beyond the default's does not make a front worth more
        default = known.default
        max_s = max(limit_s, default.metrics["train_time_s"] if default else 0.0)
        return _Candidates(
            parts=[parts[row] for row in rows],
            lengths=[starts[row][1] for row in rows if row < len(starts)],
            paces=paces[rows],
            fits=fits,
            seen=seen,
            costs=costs / lanes,
            times=np.minimum(times, max_s),
        )

    def _lossy(self, parts: Sequence[_Part]) -> list[_Part]:
        """Return exact ``parts`` with each lossy exchange that is worth trying instead."""
        if self._exact:
            return []
        exact = [each for each in parts if lossy(each) is None]
        kinds, settings = self._composition.runtimes.lossy_kinds, self._composition.settings
        return [
            {**part, **group_of(settings(batch, kind)[0])}
            for part in exact
            for batch in [int(part["batch_size"] or 1)]
            for kind in kinds(batch)
        ]

    def _is_open(self, part: _Part) -> bool:
        """Return whether a part is of the space, and its exchange exact or still worth trying."""
        kind, batch = lossy(part), int(part["batch_size"] or 1)
        if kind and (self._exact or kind not in self._composition.runtimes.lossy_kinds(batch)):
            return False
        return not self._space.refusal(self._asked(part, self.min_iterations))

    def _is_new(self, known: Known, parts: Sequence[_Part]) -> _Flags:
        """Return which lengths were not trained yet and have no more images than of interest.

        Args:
            known: The trainings so far, and the aim.
            parts: Params that accuracy depends on, of n candidates.

        Returns:
            Flags, shape (n, k).
        """
        done: dict[tuple[float, ...], int] = {}
        # a trial that was stopped would be stopped again
        asked = [each.trial.params for each in known.results]
        for params in (*asked, *known.flying):
            place = self._cube.place(params)
            done[place] = max(done.get(place, 0), int(params["iterations"] or 1))
        most = known.aim.max_images if known.aim else math.inf
        rows = [
            (self._grid > done.get(self._cube.place(each), 0))
            & (self._grid * int(each["batch_size"] or 1) <= most)
            for each in parts
        ]
        return np.array(rows, dtype=bool).reshape(len(parts), len(self._grid))

    def _quickest(self, part: _Part) -> _Part:
        """Return the part with the smallest or largest batch size, whichever iterates faster."""
        sizes = self._space.params["batch_size"]
        assert isinstance(sizes, Range)
        ends = [{**part, "batch_size": int(each)} for each in (sizes.low, sizes.high)]
        return min(ends, key=self.pace_s)

    def _starts(self) -> list[tuple[_Part, int]]:
        """Return the start points and the default, where they are members of the space.

        Each comes with the most iterations named for it, as a run passes all shorter ones.
        """
        found: dict[str, tuple[_Part, int]] = {}
        for point in (*self._space.start_points(self._default), self._default):
            part = self._cube.part(point)
            _, longest = found.get(str(part), (part, 0))
            found[str(part)] = part, max(longest, int(point["iterations"] or 1))
        return [
            (part, min(longest, self._longest))
            for part, longest in found.values()
            if self._is_open(part)
        ]

    def _looks(self, known: Known, times: _Array) -> tuple[_Flags, _Array]:
        """Return where workers look at the accuracy on their way along curves, and the cost.

        As in the worker, a look may not take longer than the training since the last look.

        Args:
            known: Results, which tell how long looks took so far.
            times: Training time up to the points of each curve, seconds, shape (n, k).

        Returns:
            Whether there is a look, and the seconds of a run up to there; both of shape (n, k).
        """
        runs = [
            each
            for each in known.results
            if each.measurement and each.trial.curve and not each.accuracy_from
        ]
        look_s = _median(
            (
                each.metrics["wall_time_s"]
                - each.metrics["train_time_s"]
                - each.metrics["setup_time_s"]
            )
            / max(len(each.checkpoints), 1)
            for each in runs
        )
        setup_s = _median(each.metrics["setup_time_s"] for each in runs)
        early = times[:, :1] / 2 ** (np.arange(_EARLY_LOOKS, 0, -1) / 2)
        whole = np.concatenate([early, times], axis=1)
        seen = np.zeros(whole.shape, dtype=bool)
        costs = np.zeros(whole.shape)
        looked, looks = np.full(len(times), -math.inf), np.zeros(len(times))
        for column in range(whole.shape[1]):
            costs[:, column] = whole[:, column] + setup_s + look_s * (looks + 1)
            seen[:, column] = whole[:, column] - looked >= look_s
            looked = np.where(seen[:, column], whole[:, column], looked)
            looks += seen[:, column]
        return seen[:, _EARLY_LOOKS:], costs[:, _EARLY_LOOKS:]

    def pace_s(self, part: Params) -> float:
        """Return the seconds per iteration at the fastest setting for this batch size."""
        batch = int(part["batch_size"] or 1)
        return self._composition.runtimes.pace_s(self._setting(part), batch)

    def _setting(self, part: Params) -> dict[str, ParamValue]:
        return self._composition.settings(int(part["batch_size"] or 1), lossy(part))[0]

    def _lanes_of(self, part: Params) -> int:
        return self._lanes if lossy(part) is None else 1

    def _training_setting(self, part: Params) -> dict[str, ParamValue]:
        """Return the setting of a trial: the fastest, or with several lanes that of one core."""
        if self._lanes_of(part) == 1:
            return self._setting(part)
        return self._composition.on_one_core(int(part["batch_size"] or 1))

    def _training_pace(self, part: Params) -> float:
        batch = int(part["batch_size"] or 1)
        return self._composition.runtimes.pace_s(self._training_setting(part), batch)

    def _asked(self, part: Params, iterations: float) -> dict[str, ParamValue]:
        return {**part, **self._training_setting(part), "iterations": int(iterations)}

    # -- their worth ----------------------------------------------------------------------------

    def _best(
        self, known: Known, candidates: _Candidates, limit_s: float
    ) -> dict[str, ParamValue]:
        """Return an untried start point, or else the candidate worth most per second.

        With an aim, a trial takes one of few turns, so it is not worth more just for being short.
        Then start points that the search space does not name must be worth it, too.
        """
        times, fits = candidates.times, candidates.fits
        places = np.array([self._cube.place(each) for each in candidates.parts])
        mean, deviation = self._model.predict(places, np.tile(self._grid, (len(places), 1)))
        least = self.min_accuracy(known)
        front = [*known.front, *self._expected(known)]
        gains = front_gain(
            mean,
            deviation,
            times,
            front,
            seen=candidates.seen,
            min_accuracy=least,
            quality=known.quality,
        )
        if known.aim is not None:
            # both are logarithmic: the front's of errors over time, the aim's of speed at no loss
            gains = _BESIDE * gains + known.aim.gains(mean, deviation, times)
        gains *= fits  # a longer run would be stopped
        gains *= self._cube.stability(places, known.results)[:, None]
        starts = self._untried_starts(known, candidates, places)
        if starts and known.aim is None:
            row = starts[0]
            most = limit_s / candidates.paces[row]
            length = max(self.min_iterations, min(candidates.lengths[row], most))
        else:
            worth = gains / (candidates.costs + (_TURN * limit_s if known.aim else 0.0))
            most_worth = worth.max(axis=1)
            row = int(np.argmax(most_worth))
            start = max(starts, key=lambda each: float(most_worth[each]), default=row)
            row = start if most_worth[start] >= _WORTH_A_START * most_worth[row] else row
            row = next((each for each in starts if candidates.parts[each] in self._wished), row)
            if not worth[row].any() and known.aim is not None:
                # nothing promises more than the known points: take what comes nearest to them
                values = known.aim.values(mean, deviation, times)
                stable = self._cube.stability(places, known.results)[:, None]
                worth = np.where(fits, (values - values[fits].min()) * stable, 0.0)
                row = int(np.argmax(worth.max(axis=1)))
            if not worth[row].any():  # nothing promises anything: take the cheapest
                row = int(np.argmin(np.where(fits, candidates.costs, math.inf).min(axis=1)))
            # a run that adds nothing is stopped early, but a short one cannot be prolonged
            wanted = fits[row] & (worth[row] >= _NEARLY * worth[row].max())
            length = self._grid[wanted].max() if worth[row].any() else self._grid[wanted].min()
        return self._asked(candidates.parts[row], length)

    def _untried_starts(self, known: Known, candidates: _Candidates, places: _Array) -> list[int]:
        """Return the rows of start points at whose places nothing was or is being trained."""
        tried = {self._cube.place(each.params) for each in known.results}
        tried |= {self._cube.place(each) for each in known.flying}
        rows = range(len(candidates.lengths))
        return [row for row in rows if tuple(places[row]) not in tried]

    def _expected(self, known: Known) -> list[tuple[float, float]]:
        """Return the training times and accuracies that running trials are predicted to add."""
        found: list[tuple[float, float]] = []
        for each in known.flying:
            grid = self._grid[self._grid <= int(each["iterations"] or 1)]
            mean, _ = self._model.predict(np.array([self._cube.place(each)]), grid[None, :])
            times = self.pace_s(each) * grid
            scores = [known.quality.score_of_log_error(each) for each in mean[0].tolist()]
            found += zip(times.tolist(), scores, strict=True)
        return found

    def min_accuracy(self, known: Known) -> float:
        """Return the accuracy below which nothing is of interest."""
        default, quality = known.default, known.quality
        own = 0.0 if default is None else default.val_accuracy or 0.0
        least = max(least_of_interest(own, quality), quality.blind_score)
        if not quality.is_perplexity:
            return self._limit("val_accuracy", upper=False, default=least)
        return quality.score(
            self._limit("val_perplexity", upper=True, default=quality.figure(least))
        )

    def _limit(self, metric: str, *, upper: bool, default: float) -> float:
        """Return the tightest of ``default`` and the limits that the constraints set."""
        limits = [
            each.limit
            for each in self._composition.constraints
            if each.objective.metric == metric and each.upper is upper
        ]
        closest = min if upper else max
        return closest([*limits, default])


def _median(values: Iterable[float]) -> float:
    known = [max(0.0, each) for each in values]
    return statistics.median(known) if known else 0.0

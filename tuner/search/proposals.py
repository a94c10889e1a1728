"""The choice of the next curve to train: the one that adds most to the front per second."""

from __future__ import annotations

import math

import numpy as np

from tuner.search.candidates import Candidates, CandidateSource, Known
from tuner.search.curves import CurveModel, front_gain
from tuner.search.derived import Composition
from tuner.search.outlook import Aim
from tuner.search.places import AccuracyCube
from tuner.values.params import Params, ParamValue, iterations_of
from tuner.values.results import least_of_interest

_NEARLY = 0.9  # of the worth; less would prolong trainings beyond what is of interest
_BESIDE = 0.25  # weight of the front's gain where there is an aim
_TURN = 0.5  # of the time limit, added to a trial's own cost: few more will follow it
_WITH_PROOF = 3.0  # times a trial's own cost, for it and the runs that prove what it finds
_Array = np.typing.NDArray[np.float64]
_Flags = np.typing.NDArray[np.bool_]


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
        self._composition, space = composition, composition.space
        self._cube = AccuracyCube(space)
        self._source = CandidateSource(composition, default, self._cube, [seed, stream])
        self._model = CurveModel(self._source.max_iterations, seed)
        self.min_iterations = self._source.min_iterations

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
        limit_s = min(limit_s, self._limit("train_time_s", upper=True, default=math.inf))
        candidates = self._source.candidates(known, limit_s, lanes, exact=exact)
        if not candidates.fits.any():
            return None
        target = known.aim.target if known.aim else None
        curves = self._cube.curves(known.trained, target.by_test if target else 0.0)
        if not curves:
            row = int(np.argmax(candidates.fits.any(axis=1)))
            last = candidates.grid[candidates.fits[row]].max()
            return candidates.members[row].params(last)
        self._model.fit(curves, target.own_of(target.val_images) if target else 0.0)
        if candidates.untried and known.aim is None:
            start = candidates.members[candidates.untried[0]]
            length = min(start.length, limit_s / start.pace_s)
            return start.params(max(self.min_iterations, length))
        return self._best(known, candidates, limit_s)

    def _best(self, known: Known, candidates: Candidates, limit_s: float) -> dict[str, ParamValue]:
        """Return the params of the candidate worth most per second, and as long as is worth it.

        With an aim, a trial takes one of few turns, so it is not worth more just for being short.
        But what it finds must also be proven. The proof does not count in the choice of a length,
        as it may end at any earlier stop.
        """
        places, fits = candidates.places, candidates.fits
        grids = np.tile(candidates.grid, (len(places), 1))
        mean, deviation = self._model.predict(places, grids)
        stable = self._cube.stability(places, known.results)[:, None]
        gains = self._gains(known, candidates, mean, deviation)
        gains *= fits  # a longer run would be stopped
        gains *= stable
        turn_s, with_proof = (_TURN * limit_s, _WITH_PROOF) if known.aim else (0.0, 1.0)
        lengths = gains / (candidates.costs + turn_s)
        worth = gains / (with_proof * candidates.costs + turn_s)
        start = self._start(candidates, worth.max(axis=1), known.aim)
        if start is not None:
            offered = candidates.worth_training(start)
            return candidates.members[start].params(
                self._length(candidates, offered, lengths[start])
            )
        row = int(np.argmax(worth.max(axis=1)))
        if not worth[row].any() and known.aim is not None:
            # nothing promises more than the known points: take what comes nearest to them
            values = known.aim.values(mean, deviation, candidates.times)
            lengths = worth = np.where(fits, (values - values[fits].min()) * stable, 0.0)
            row = int(np.argmax(worth.max(axis=1)))
        if not worth[row].any():  # nothing promises anything: take the cheapest
            row = int(np.argmin(np.where(fits, candidates.costs, math.inf).min(axis=1)))
            return candidates.members[row].params(candidates.grid[fits[row]].min())
        return candidates.members[row].params(self._length(candidates, fits[row], lengths[row]))

    @staticmethod
    def _length(candidates: Candidates, offered: _Flags, worth: _Array) -> float:
        """Return the iterations to train: the most that are worth about as much as any.

        A run that adds nothing is stopped early, but a short one cannot be prolonged.

        Args:
            candidates: The candidates.
            offered: Which points of the grid may be chosen, shape (k,).
            worth: What the candidate is worth at each of them, shape (k,).
        """
        return float(candidates.grid[offered & (worth >= _NEARLY * worth[offered].max())].max())

    def _start(self, candidates: Candidates, worth: _Array, aim: Aim | None) -> int | None:
        """Return the row of the start point to train next; ``None`` if there is none.

        Those that the search space names come first, whatever they promise. The others are left
        out if there is no time to train them far, or if the model expects nothing from them and
        they take too long; see ``goes_far`` and ``is_brief``.

        Args:
            candidates: The candidates.
            worth: Greatest worth of each of them, shape (n,).
            aim: What to look for first; ``None`` where only the front counts.
        """
        starts, sure_s = candidates.untried, aim.target.sure_s if aim else 0.0
        for each in starts:
            if candidates.members[each].part in self._source.wished:
                return each
        worthy = [
            each
            for each in starts
            if candidates.goes_far(each) and (worth[each] > 0 or candidates.is_brief(each, sure_s))
        ]
        return max(worthy, key=lambda each: float(worth[each]), default=None)

    def _gains(
        self, known: Known, candidates: Candidates, mean: _Array, deviation: _Array
    ) -> _Array:
        """Return what curves so predicted are expected to add to the front and to the aim."""
        gains = front_gain(
            mean,
            deviation,
            candidates.times,
            [*known.front, *self._expected(known, candidates.grid)],
            seen=candidates.seen,
            min_accuracy=self._min_accuracy(known),
            quality=known.quality,
        )
        if known.aim is None:
            return gains
        # both are logarithmic: the front's of errors over time, the aim's of speed at no loss
        return _BESIDE * gains + known.aim.gains(mean, deviation, candidates.times)

    def _expected(self, known: Known, grid: _Array) -> list[tuple[float, float]]:
        """Return the training times and accuracies that running trials are predicted to add."""
        found: list[tuple[float, float]] = []
        for each in known.flying:
            passed = grid[grid <= iterations_of(each)]
            mean, _ = self._model.predict(np.array([self._cube.place(each)]), passed[None, :])
            times = self._composition.pace_s(each) * passed
            scores = [known.quality.score_of_log_error(error) for error in mean[0].tolist()]
            found += zip(times.tolist(), scores, strict=True)
        return found

    def _min_accuracy(self, known: Known) -> float:
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

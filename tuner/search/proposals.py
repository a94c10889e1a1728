"""Which curve to train next: what adds most to the front for each second of training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.search.curves import (
    BLIND_ERROR,
    CurveModel,
    expected_accuracy,
    front_gain,
)
from tuner.search.derived import Composition
from tuner.search.outlook import Aim
from tuner.search.places import AccuracyCube
from tuner.values.results import least_of_interest
from tuner.values.space import Range
from tuner.values.trial import Params, ParamValue, TrialResult

_CANDIDATES = 192
_NEARLY = 0.7
_BESIDE = 0.25  # what the front counts beside the aim
_EARLY_LOOKS = 4  # from a quarter of the shortest training of interest on, see Trial.curve
_ROUNDING = 1e-6
_TURN = 0.5  # of the time left, that a trial costs beside its own: few more will follow it
_WORTH_A_START = 0.5  # of the greatest worth; a start point below it waits
_Array = np.typing.NDArray[np.float64]
_Flags = np.typing.NDArray[np.bool_]
_Part = dict[str, ParamValue]
"""What accuracy depends on, without the iterations."""


@dataclass(frozen=True)
class Known:
    """What a proposal is thought out from.

    Attributes:
        results: All that was told.
        flying: What is being trained.
        front: Training time (s) and accuracy of the points to be surpassed.
        aim: What is looked for first; ``None`` where the front is all.
    """

    results: Sequence[TrialResult]
    flying: Sequence[Params]
    front: Sequence[tuple[float, float]]
    aim: Aim | None = None

    @property
    def trained(self) -> Sequence[TrialResult]:
        """All whose curves are known."""
        return [*self.results, *(self.aim.further if self.aim else ())]

    @property
    def default(self) -> Mapping[str, float]:
        """Figures of trial 0; empty without."""
        usable = (each for each in self.results if each.trial.is_default and each.usable)
        return next((each.metrics for each in usable), {})


@dataclass(frozen=True)
class _Candidates:
    """Curves that may be trained, n of them with k points each; those that fit alone.

    Attributes:
        parts: Of their params.
        starts: How many of the first are start points.
        lengths: Iterations worth training of each start point.
        paces: Seconds an iteration of the trial that would train it, shape (n,).
        fits: Whether there is time for it, shape (n, k); the first point of each fits.
        seen: Whether accuracy is looked at there, shape (n, k).
        costs: Seconds of a run to there, shape (n, k).
        times: Training times (s), none beyond what is of interest, shape (n, k).
    """

    parts: Sequence[_Part]
    lengths: Sequence[int]
    paces: _Array
    fits: _Flags
    seen: _Flags
    costs: _Array
    times: _Array


class Proposer:
    """Thinks out what to train next.

    Args:
        composition: Of the space and of the map of its runtime settings, which grows.
        default: The framework's own.
        seed: Of the model, and with ``stream`` of the candidates that are drawn.
        stream: Another one draws other candidates.

    Attributes:
        shortest: Iterations of the shortest training that is a member of the space.
    """

    def __init__(self, composition: Composition, default: Params, seed: int, stream: int) -> None:
        self._composition, self._space = composition, composition.space
        self._default = default
        self._random = np.random.default_rng([seed, stream])
        self._lanes = 1
        iterations = self._space.params["iterations"]
        assert isinstance(iterations, Range)
        self.shortest, self._longest = int(iterations.low), int(iterations.high)
        self._cube = AccuracyCube(self._space)
        self._wished = [self._cube.part({**default, **each}) for each in self._space.start]
        # lengths of runs; each one's own checkpoints are among the shorter ones
        steps = int(2 * math.log2(iterations.high / iterations.low)) + 1
        lengths = np.floor(iterations.low * 2 ** (np.arange(steps) / 2) + _ROUNDING)
        self._grid = np.unique([*lengths, iterations.high])
        self._model = CurveModel(self._longest, seed)

    def propose(
        self, known: Known, limit_s: float, lanes: int = 1
    ) -> dict[str, ParamValue] | None:
        """Params of what is worth most, or ``None`` if nothing can be trained within ``limit_s``.

        Args:
            known: What it is thought out from.
            limit_s: Longest that it may train, seconds.
            lanes: Trials that run at once, each on one core, if it is more than one.
        """
        self._lanes = lanes
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
        """Start points, and others drawn at random; if none of them fits, the quickest of all."""
        starts = self._starts()
        drawn = [self._cube.draw(self._random) for _ in range(_CANDIDATES)]
        again = [
            part
            for part in (self._cube.part(each.params) for each in known.results)
            if not self._space.contains(self._asked(part, self.shortest))
        ]
        parts = [*(part for part, _ in starts), *again, *drawn]
        paces = np.array([self._training_pace(each) for each in parts])
        if not (paces * self._grid[0] <= limit_s).any():
            parts = [self._quickest(drawn[0])]
            starts, paces = [], np.array([self._training_pace(parts[0])])
        rows = np.flatnonzero(paces * self._grid[0] <= limit_s)
        lasting = paces[rows, None] * self._grid
        fits = (lasting <= limit_s) & self._is_new(known, [parts[row] for row in rows])
        seen, costs = self._looks(known, lasting)
        times = np.array([self.pace_s(parts[row]) for row in rows])[:, None] * self._grid
        # beyond the default's time a front is not worth more for being longer
        most_s = max(limit_s, known.default.get("train_time_s", 0.0))
        return _Candidates(
            parts=[parts[row] for row in rows],
            lengths=[starts[row][1] for row in rows if row < len(starts)],
            paces=paces[rows],
            fits=fits,
            seen=seen,
            costs=costs / self._lanes,
            times=np.minimum(times, most_s),
        )

    def _is_new(self, known: Known, parts: Sequence[_Part]) -> _Flags:
        """Which lengths were not trained yet, and are no more images than are of interest.

        Args:
            known: What was trained.
            parts: Of the params of n candidates.

        Returns:
            Shape (n, k); the shortest length is always among them.
        """
        done: dict[tuple[float, ...], int] = {}
        # what was stopped would be again
        asked = [each.trial.params for each in known.results]
        for params in (*asked, *known.flying):
            place = self._cube.place(params)
            done[place] = max(done.get(place, 0), int(params["iterations"] or 1))
        most = known.aim.most_images if known.aim else math.inf
        rows = [
            (self._grid > done.get(self._cube.place(each), 0))
            & (self._grid * int(each["batch_size"] or 1) <= most)
            for each in parts
        ]
        return np.array(rows, dtype=bool).reshape(len(parts), len(self._grid))

    def _quickest(self, part: _Part) -> _Part:
        """The same with the batch size that takes the least time an iteration."""
        sizes = self._space.params["batch_size"]
        assert isinstance(sizes, Range)
        ends = [{**part, "batch_size": int(each)} for each in (sizes.low, sizes.high)]
        return min(ends, key=self.pace_s)

    def _starts(self) -> list[tuple[_Part, int]]:
        """What is worth trying first, and the default, where they are members of the space.

        Each with the most iterations that are named with it: on its way it is all shorter runs.
        """
        found: dict[str, tuple[_Part, int]] = {}
        for point in (*self._space.start_points(self._default), self._default):
            part = self._cube.part(point)
            _, longest = found.get(str(part), (part, 0))
            found[str(part)] = part, max(longest, int(point["iterations"] or 1))
        return [
            (part, min(longest, self._longest))
            for part, longest in found.values()
            if not self._space.contains(self._asked(part, self.shortest))
        ]

    def _looks(self, known: Known, times: _Array) -> tuple[_Flags, _Array]:
        """Where workers look at the accuracy on their way along curves, and what runs cost.

        As workers do it, looking may not take longer than the training since the last look.

        Args:
            known: What looking took so far.
            times: For which a trial trains to the points of each curve, seconds, shape (n, k).

        Returns:
            Whether it is looked at, and the seconds of a run to there; both of shape (n, k).
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
        """Seconds an iteration at the fastest setting for this batch size."""
        batch = int(part["batch_size"] or 1)
        return self._composition.runtimes.pace_s(self._setting(part), batch)

    def _setting(self, part: Params) -> dict[str, ParamValue]:
        return self._composition.settings(int(part["batch_size"] or 1))[0]

    def _training_setting(self, part: Params) -> dict[str, ParamValue]:
        """What a trial trains at: the fastest setting, or that of one core where others run."""
        if self._lanes == 1:
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
        """Start points first, then what is worth most a second.

        Where there is an aim, a trial takes one of few turns: what is short is not worth more for
        being short alone. Start points that nobody wished for must then be worth it.
        """
        times, fits = candidates.times, candidates.fits
        places = np.array([self._cube.place(each) for each in candidates.parts])
        mean, deviation = self._model.predict(places, np.tile(self._grid, (len(places), 1)))
        least = self.least_accuracy(known)
        front = [*known.front, *self._expected(known)]
        gains = front_gain(
            mean, deviation, times, front, seen=candidates.seen, least_accuracy=least
        )
        if known.aim is not None:
            # both are logarithms: of speed at no loss, and of errors over that of time
            gains = _BESIDE * gains + known.aim.gains(mean, deviation, times)
        gains *= fits  # what is longer is stopped
        gains *= self._cube.stability(places, known.results)[:, None]
        starts = self._untried_starts(known, candidates, places)
        if starts and known.aim is None:
            row = starts[0]
            most = limit_s / candidates.paces[row]
            length = max(self.shortest, min(candidates.lengths[row], most))
        else:
            worth = gains / (candidates.costs + (_TURN * limit_s if known.aim else 0.0))
            most_worth = worth.max(axis=1)
            row = int(np.argmax(most_worth))
            start = max(starts, key=lambda each: float(most_worth[each]), default=row)
            row = start if most_worth[start] >= _WORTH_A_START * most_worth[row] else row
            row = next((each for each in starts if candidates.parts[each] in self._wished), row)
            if not worth[row].any() and known.aim is not None:
                # nothing promises more than is known: then what comes nearest to it
                values = known.aim.values(mean, deviation, times)
                stable = self._cube.stability(places, known.results)[:, None]
                worth = np.where(fits, (values - values[fits].min()) * stable, 0.0)
                row = int(np.argmax(worth.max(axis=1)))
            if not worth[row].any():  # nothing promises anything: then what costs least
                row = int(np.argmin(np.where(fits, candidates.costs, math.inf).min(axis=1)))
            # what adds nothing is stopped early, what was to be short cannot be prolonged
            wanted = fits[row] & (worth[row] >= _NEARLY * worth[row].max())
            length = self._grid[wanted].max() if worth[row].any() else self._grid[wanted].min()
        return self._asked(candidates.parts[row], length)

    def _untried_starts(self, known: Known, candidates: _Candidates, places: _Array) -> list[int]:
        """The start points at whose places nothing was trained, nor is."""
        tried = {self._cube.place(each.params) for each in known.results}
        tried |= {self._cube.place(each) for each in known.flying}
        rows = range(len(candidates.lengths))
        return [row for row in rows if tuple(places[row]) not in tried]

    def _expected(self, known: Known) -> list[tuple[float, float]]:
        """Training time and accuracy that running trials will add, if the model is right."""
        found: list[tuple[float, float]] = []
        for each in known.flying:
            grid = self._grid[self._grid <= int(each["iterations"] or 1)]
            mean, _ = self._model.predict(np.array([self._cube.place(each)]), grid[None, :])
            times = self.pace_s(each) * grid
            found += zip(times.tolist(), expected_accuracy(mean[0]).tolist(), strict=True)
        return found

    def least_accuracy(self, known: Known) -> float:
        """What is below it is of no interest to those who know the default."""
        least = least_of_interest(known.default.get("val_accuracy", 0.0))
        return self._limit("val_accuracy", upper=False, default=max(least, 1 - BLIND_ERROR))

    def _limit(self, metric: str, *, upper: bool, default: float) -> float:
        """The closest limit that the constraints set to a figure."""
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

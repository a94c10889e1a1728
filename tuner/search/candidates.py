"""The curves that may be trained next, and what it costs to train them up to each point."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.search.derived import Composition
from tuner.search.outlook import Aim
from tuner.search.places import AccuracyCube
from tuner.values.exchange import Lossy, group_of, lossy
from tuner.values.params import Params, ParamValue, batch_size_of, group_size, iterations_of
from tuner.values.quality import ACCURACY, Quality
from tuner.values.ranges import Range
from tuner.values.trial import TrialResult

_DRAWN = 192  # candidates at random, each time
_CHEAPER = 0.6  # of the seconds per image; so a larger batch is worth starting with
_FAR_ENOUGH = 0.5  # of the iterations that are worth training, for a start point to be tried
_EARLY_LOOKS = 4  # from a quarter of the shortest training of interest on, see Trial.curve
_ROUNDING = 1e-6
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
class Candidate:
    """One curve, and the trial that would train it.

    Attributes:
        part: Params that accuracy depends on.
        setting: Runtime setting of the trial.
        pace_s: Seconds per iteration of the trial.
        length: Iterations worth training, of a start point; 0 for all others.
    """

    part: _Part
    setting: dict[str, ParamValue]
    pace_s: float
    length: int = 0

    @property
    def batch_size(self) -> int:
        """Samples an iteration."""
        return batch_size_of(self.part)

    def params(self, iterations: float) -> dict[str, ParamValue]:
        """Return the params of the trial, for so many iterations."""
        return {**self.part, **self.setting, "iterations": int(iterations)}


@dataclass(frozen=True)
class Candidates:
    """Curves that may be trained and fit in time, n of them with k points each.

    Attributes:
        members: The n curves; the start points come first, and those of lossy exchanges last.
        places: Their coordinates in the cube, shape (n, d).
        untried: Rows of the start points that there is time for, and at whose places nothing was
            or is being trained.
        grid: Iterations at the points, ascending, shape (k,).
        fits: Whether a point is new and there is time for it, shape (n, k).
        seen: Whether accuracy is looked at there, shape (n, k).
        costs: Seconds of a run up to there, divided by its lanes, shape (n, k).
        times: Training times (s), capped at the longest of interest, shape (n, k).
    """

    members: Sequence[Candidate]
    places: _Array
    untried: Sequence[int]
    grid: _Array
    fits: _Flags
    seen: _Flags
    costs: _Array
    times: _Array

    def worth_training(self, row: int) -> _Flags:
        """Return the points up to which a start point may be trained, shape (k,).

        The last is the first that is as long as was named for it, as its whole use is to need
        less. If all that are in time are longer, it is the shortest of them.
        """
        fits = self.fits[row]
        named = max(self.members[row].length, self.grid[fits].min())
        found: _Flags = fits & np.concatenate([[True], self.grid[:-1] < named])
        return found

    def goes_far(self, row: int) -> bool:
        """Return whether a start point can be trained for half of what was named for it."""
        longest = self.grid[self.worth_training(row)].max()
        return bool(longest >= _FAR_ENOUGH * self.members[row].length)

    def is_brief(self, row: int, sure_s: float) -> bool:
        """Return whether a start point can be trained in less than ``sure_s``.

        That is the shortest training time (s) that is already known to lose no accuracy.
        """
        return bool(self.times[row, self.worth_training(row)].max() < sure_s)


class CandidateSource:
    """Makes the candidates for each proposal.

    Args:
        composition: Composes the space with the map of its runtime settings, which grows.
        default: The framework's own default.
        cube: The part of the space that accuracy depends on. It gets a dimension for each lossy
            exchange that a candidate trains with.
        seed: Seed of the candidates that are drawn.

    Attributes:
        min_iterations, max_iterations: Iterations of the shortest and the longest training in
            the space.
        wished: The parts of the start points that the space itself names.
    """

    def __init__(
        self, composition: Composition, default: Params, cube: AccuracyCube, seed: Sequence[int]
    ) -> None:
        self._composition, self._space = composition, composition.space
        self._default, self._cube = default, cube
        self._random = np.random.default_rng(seed)
        self.wished = [self._cube.part({**default, **each}) for each in self._space.start]
        iterations = self._space.iterations
        self.min_iterations, self.max_iterations = int(iterations.low), int(iterations.high)
        # lengths of runs; each one's own checkpoints are among the shorter ones
        steps = int(2 * math.log2(iterations.high / iterations.low)) + 1
        lengths = np.floor(iterations.low * 2 ** (np.arange(steps) / 2) + _ROUNDING)
        self._grid = np.unique([*lengths, iterations.high])

    def candidates(self, known: Known, limit_s: float, lanes: int, *, exact: bool) -> Candidates:
        """Return start points, trained places and random ones; if none fits, a quicker one.

        Args:
            known: The trainings so far, and the aim.
            limit_s: Longest time that a trial may train, seconds.
            lanes: How many trials run at once; one of a lossy exchange runs alone.
            exact: Whether to leave out lossy exchanges.
        """
        found = [
            each
            for each in self._familiar(known, lanes, exact=exact)
            if not self._space.refusal(each.params(self.min_iterations))
        ]
        drawn = [self._candidate(self._cube.draw(self._random), lanes) for _ in range(_DRAWN)]
        found += drawn
        found += [
            self._candidate(part, lanes)
            for each in found
            if lossy(each.part) is None
            for part in self._lossy(each, exact=exact)
        ]
        parts = [each.part for each in found]
        self._cube.admit((*parts, *(each.params for each in known.trained), *known.flying))
        members = self._in_time(found, limit_s)
        if not members:
            quickest = self._candidate(self._quickest(drawn[0].part), lanes)
            members = self._in_time([quickest], limit_s)
        return self._assess(members, known, limit_s, lanes)

    def _familiar(self, known: Known, lanes: int, *, exact: bool) -> Iterator[Candidate]:
        """Yield start points and trained places whose exchange is exact or still worth trying."""
        again = [(self._cube.part(each.params), 0) for each in known.results]
        for part, length in (*self._starts(), *again):
            kind = lossy(part)
            if kind is None or kind in self._kinds(batch_size_of(part), exact=exact):
                yield self._candidate(part, lanes, length)

    def _starts(self) -> list[tuple[_Part, int]]:
        """Return the start points and the default.

        Larger batches are among them if they are wished or make images cheaper. Each point
        comes with the most iterations named for it, as a run passes all shorter ones.
        """
        found: dict[str, tuple[_Part, int]] = {}
        starts = [
            each
            for each in self._space.start_points(self._default)
            if self._cube.part(each) in self.wished
            or batch_size_of(each) <= batch_size_of(self._default)
            or self._image_s(each) <= _CHEAPER * self._image_s(self._default)
        ]
        starts += self._for_groups()
        for point in (*starts, self._default):
            part = self._cube.part(point)
            _, longest = found.get(str(part), (part, 0))
            found[str(part)] = part, max(longest, iterations_of(point))
        return [(part, min(longest, self.max_iterations)) for part, longest in found.values()]

    def _for_groups(self) -> list[dict[str, ParamValue]]:
        """Return the start point of the largest group that is the fastest at its batch size."""
        for point in self._space.group_points(self._default):
            if group_size(self._composition.fastest(point)) == group_size(point):
                return [point]
        return []

    def _image_s(self, params: Params) -> float:
        """Return the seconds per image at the fastest setting."""
        return self._composition.pace_s(params) / batch_size_of(params)

    def _kinds(self, batch_size: int, *, exact: bool) -> list[Lossy]:
        """Return the lossy exchanges worth trying at a batch size."""
        return [] if exact else self._composition.runtimes.lossy_kinds(batch_size)

    def _lossy(self, candidate: Candidate, *, exact: bool) -> list[_Part]:
        """Return an exact candidate's part with each lossy exchange that is worth trying."""
        batch = candidate.batch_size
        return [
            {**candidate.part, **group_of(self._composition.settings(batch, kind)[0])}
            for kind in self._kinds(batch, exact=exact)
        ]

    def _candidate(self, part: _Part, lanes: int, length: int = 0) -> Candidate:
        """Return a candidate at the fastest setting, or with several lanes at that of one core."""
        batch = batch_size_of(part)
        beside = lanes > 1 and lossy(part) is None
        composed = self._composition
        if beside:
            setting = composed.on_one_core(batch)
            return Candidate(part, setting, composed.runtimes.beside_s(setting, batch), length)
        setting = composed.fastest(part)
        return Candidate(part, setting, composed.runtimes.pace_s(setting, batch), length)

    def _in_time(self, candidates: Sequence[Candidate], limit_s: float) -> list[Candidate]:
        return [each for each in candidates if each.pace_s * self._grid[0] <= limit_s]

    def _quickest(self, part: _Part) -> _Part:
        """Return the part with the smallest or largest batch size, whichever iterates faster."""
        sizes = self._space.params["batch_size"]
        assert isinstance(sizes, Range)
        ends = [{**part, "batch_size": int(each)} for each in (sizes.low, sizes.high)]
        return min(ends, key=self._composition.pace_s)

    def _assess(
        self, members: Sequence[Candidate], known: Known, limit_s: float, lanes: int
    ) -> Candidates:
        """Return candidates with their points: which are new, seen and in time, at what cost."""
        places = [self._cube.place(each.part) for each in members]
        done = self._done(known)
        lasting = _column(each.pace_s for each in members) * self._grid
        images = _column(each.batch_size for each in members) * self._grid
        new = self._grid > _column(done.get(each, 0) for each in places)
        fits = (lasting <= limit_s) & new
        if known.aim:
            fits &= (lasting <= known.aim.max_s) & (images <= known.aim.max_images)
        seen, costs = self._looks(known, lasting)
        times = _column(self._composition.pace_s(each.part) for each in members) * self._grid
        # time beyond the default's does not make a front worth more
        default = known.default
        max_s = max(limit_s, default.metrics["train_time_s"] if default else 0.0)
        return Candidates(
            members=members,
            places=np.array(places),
            untried=[
                row
                for row, each in enumerate(members)
                if each.length and places[row] not in done and fits[row].any()
            ],
            grid=self._grid,
            fits=fits,
            seen=seen,
            costs=costs / _column(1 if lossy(each.part) else lanes for each in members),
            times=np.minimum(times, max_s),
        )

    def _done(self, known: Known) -> Mapping[tuple[float, ...], int]:
        """Return the most iterations that were asked for at each place where anything was.

        A trial that was stopped early counts as the whole: it would be stopped again.
        """
        done: dict[tuple[float, ...], int] = {}
        for params in (*(each.trial.params for each in known.results), *known.flying):
            place = self._cube.place(params)
            done[place] = max(done.get(place, 0), iterations_of(params))
        return done

    @staticmethod
    def _looks(known: Known, times: _Array) -> tuple[_Flags, _Array]:
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


def _column(values: Iterable[float]) -> _Array:
    """Return one value per candidate, shape (n, 1)."""
    return np.array(list(values), dtype=float)[:, None]


def _median(values: Iterable[float]) -> float:
    known = [max(0.0, each) for each in values]
    return statistics.median(known) if known else 0.0

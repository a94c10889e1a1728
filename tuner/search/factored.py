"""``search=factored``: the race finds the runtime settings, so only accuracy is searched.

Each trial is a whole learning curve, trained with the fastest setting for its batch size. What to
train next is what adds most to the front for each second of training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna

from tuner.composition import Composition
from tuner.results import least_of_interest
from tuner.runtime_map import Probe, RuntimeMap
from tuner.search.curves import (
    BLIND_ERROR,
    Curve,
    CurveModel,
    expected_accuracy,
    front_area,
    front_gain,
    merit,
)
from tuner.search.joint import JointSearch
from tuner.search.places import AccuracyCube
from tuner.space import Choices, Range
from tuner.trial import Params, ParamValue, TrialResult, TrialStatus

_ORIGIN = "derived_from"
_CANDIDATES = 192
_NEARLY = 0.7
_EARLY_LOOKS = 4  # from a quarter of the shortest training of interest on, see Trial.curve
_ROUNDING = 1e-6
_FAULTS_OF_SETTING = (TrialStatus.INVALID, TrialStatus.CRASHED, TrialStatus.LEFT_PROCESSES)
_TRUST = 0.1  # gain for which promises are trusted before any was kept
_Array = np.typing.NDArray[np.float64]
_Flags = np.typing.NDArray[np.bool_]


class FactoredSearch(JointSearch):
    """Ask and tell over learning curves; see ``JointSearch`` for what is stored and how.

    Args:
        args, kwargs: Of ``JointSearch``.

    Attributes:
        shortest: Iterations of the shortest training that is a member of the space.

    Until it was told what the race found it can ask for the default alone.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._composition = self._compose_with(RuntimeMap())
        self._random = np.random.default_rng([self._seed, self._stream + len(self._study.trials)])
        iterations = self.space.params["iterations"]
        assert isinstance(iterations, Range)
        self.shortest = int(iterations.low)
        self._cube = AccuracyCube(self.space)
        # lengths of runs; each one's own checkpoints are among the shorter ones
        steps = int(2 * math.log2(iterations.high / iterations.low)) + 1
        self._grid = np.floor(iterations.low * 2 ** (np.arange(steps) / 2) + _ROUNDING)
        self._results: list[TrialResult] = []
        self._proposal: _Proposal | None = None
        self._flying: dict[int, _Proposal] = {}
        self._promised, self._gained = 0.0, 0.0
        origins = (each.user_attrs.get(_ORIGIN) for each in self._study.get_trials(deepcopy=False))
        self._stored = {each for each in origins if each}
        self._model = CurveModel(int(iterations.high), self._seed)

    def _first(self) -> list[Params]:
        """The default alone: start points follow with the fastest settings known by then."""
        return [self.default]

    def learn_runtimes(self, runtimes: RuntimeMap) -> None:
        """Learn what the race has found so far; all that was told is composed with it anew."""
        self._composition = self._compose_with(RuntimeMap(runtimes.probes))
        for each in self._results:
            self._learn_pace(each)
        self._proposal = None
        self.derived, self.front = [], []
        self._extend_front(self._results)
        for each in self._results:
            self._derive(each)

    def least_hope(self, limit_s: float) -> float:
        """How fast the race must be hoped to lower training times, to be worth more than a trial.

        In logarithms of time a second of racing, for a next trial that trains for at most about
        ``limit_s``. Infinite while a trial is left to be repeated.
        """
        if self._waiting():
            return math.inf
        proposal = self._propose(limit_s)
        if not proposal.height:
            return math.inf
        # what is promised best is promised too much; so far trials kept this part of it
        kept = (self._gained + _TRUST) / (self._promised + _TRUST)
        return kept * proposal.gain / proposal.cost_s / proposal.height

    def _compose_with(self, runtimes: RuntimeMap) -> Composition:
        return Composition(self.space, runtimes, self.objectives, self.constraints)

    def _ask(self, limit_s: float) -> tuple[int, dict[str, ParamValue]]:
        if not self._waiting():
            number = self._next_number()
            proposal = self._flying[number] = self._propose(limit_s)
            self._proposal = None
            self._enqueue(proposal.params, number)
        return super()._ask(limit_s)

    def _learn(self, result: TrialResult) -> None:
        before, proposal = self._front_points(), self._flying.pop(result.trial.number, None)
        super()._learn(result)
        self._results.append(result)
        self._learn_pace(result)
        self._derive(result)
        if proposal is not None and math.isfinite(proposal.gain):
            areas = [
                front_area(each, proposal.times_s, self._least_accuracy)
                for each in (before, self._front_points())
            ]
            self._promised += proposal.gain
            self._gained += max(0.0, areas[1] - areas[0])
        self._proposal = None

    def _learn_pace(self, result: TrialResult) -> None:
        """A run tells what its setting costs beside what probes promised, or that it fails."""
        known, measured = self._composition.runtimes, result.measurement
        setting = {name: result.params[name] for name in self.space.runtime}
        if result.status in _FAULTS_OF_SETTING:
            known.note_failure(setting)
        if not (known.probes and result.usable and measured and result.trial.curve):
            return
        if measured.train_time_s <= 0:  # a clock may stand still
            return
        known.add_run(
            Probe(
                setting,
                int(result.params["batch_size"] or 1),
                measured.train_time_s / max(result.iterations, 1),
                measured.peak_memory_bytes,
                measured.cores_used,
            )
        )

    def _front_points(self) -> list[tuple[float, float]]:
        """Training time and accuracy of what is to be surpassed."""
        return [
            (each.metrics["train_time_s"], each.metrics["val_accuracy"]) for each in self.front
        ]

    def _derive(self, result: TrialResult) -> None:
        """Learn from every checkpoint that a trial left, and let Optuna do so."""
        points = self._composition.points(result)
        self.derived += points
        self._extend_front(points)
        known = result.trial.name in self._stored or result.trial.number in self._foreign
        if not points or known:
            return
        self._stored.add(result.trial.name)
        for point in points:
            values = self._values(point)
            if values is not None:
                self._study.add_trial(
                    optuna.create_trial(
                        params=self.space.optuna_params(point.params),
                        distributions=self._distributions(point.params),
                        values=values,
                        user_attrs={_ORIGIN: result.trial.name},
                    )
                )

    def _distributions(self, params: Params) -> dict[str, optuna.distributions.BaseDistribution]:
        """What a sampler would have drawn ``params`` from."""
        found: dict[str, optuna.distributions.BaseDistribution] = {}
        for name, param in self.space.params.items():
            known_as = param.optuna_name(name, params)
            if known_as is None:
                continue
            if isinstance(param, Choices):
                found[known_as] = optuna.distributions.CategoricalDistribution(
                    param.values(params)
                )
            elif param.integer:
                found[known_as] = optuna.distributions.IntDistribution(
                    int(param.low), int(param.high), log=param.log
                )
            else:
                found[known_as] = optuna.distributions.FloatDistribution(
                    param.low, param.high, log=param.log
                )
        return found

    # -- what to train next ---------------------------------------------------------------------

    def _propose(self, limit_s: float) -> _Proposal:
        """What to train next; thought out once until something is learnt."""
        if self._proposal is None:
            most_s = self._limit("train_time_s", upper=True, default=math.inf)
            self._proposal = self._think(min(limit_s, most_s))
        return self._proposal

    def _think(self, limit_s: float) -> _Proposal:
        curves = [curve for each in self._results for curve in self._curve(each)]
        starts = self._starts()
        drawn = (self._cube.draw(self._random) for _ in range(_CANDIDATES))
        candidates = [*(params for params, _ in starts), *drawn]
        paces = np.array([self._pace(each) for each in candidates])
        times = paces[:, None] * self._grid
        seen, costs = self._looks(times)
        fits, times = times <= limit_s, np.minimum(times, max(limit_s, self._default_s))
        if not curves:
            last = self._grid[max(0, int(np.count_nonzero(fits[0])) - 1)]
            first = self._asked(candidates[0], last)
            return _Proposal(first, math.inf, 1.0, 1.0, times)
        self._model.fit(curves)
        places = np.array([self._cube.place(each) for each in candidates])
        mean, deviation = self._model.predict(places, np.tile(self._grid, (len(places), 1)))
        front, least = [*self._front_points(), *self._expected()], self._least_accuracy
        gains = front_gain(mean, deviation, times, front, seen=seen, least_accuracy=least)
        gains *= fits  # what is longer is stopped
        worth = gains / costs
        tried = {self._cube.place(each.params) for each in self._results}
        tried |= {self._cube.place(each.params) for each in self._flying.values()}
        untried = [row for row, place in enumerate(map(tuple, places)) if place not in tried]
        if untried and untried[0] < len(starts):
            row = untried[0]
            length = max(self.shortest, min(starts[row][1], limit_s / paces[row]))
        else:
            row = int(np.argmax(worth.max(axis=1)))
            # what adds nothing is stopped early, what was to be short cannot be prolonged
            wanted = fits[row] & (worth[row] >= _NEARLY * worth[row].max())
            length = self._grid[wanted].max(initial=self.shortest)
        column = max(0, int(np.count_nonzero(self._grid <= length)) - 1)
        reached = merit(max((accuracy for _, accuracy in front), default=least)) - merit(least)
        return _Proposal(
            params=self._asked(candidates[row], length),
            gain=float(gains[row, column]),
            cost_s=float(costs[row, column]),
            height=max(0.0, reached) / float(np.log(times.max() / times.min())),
            times_s=times,
        )

    def _expected(self) -> list[tuple[float, float]]:
        """Training time and accuracy that running trials will add, if the model is right."""
        found: list[tuple[float, float]] = []
        for each in self._flying.values():
            grid = self._grid[self._grid <= int(each.params["iterations"] or 1)]
            mean, _ = self._model.predict(np.array([self._cube.place(each.params)]), grid[None, :])
            times = self._pace(each.params) * grid
            found += zip(times.tolist(), expected_accuracy(mean[0]).tolist(), strict=True)
        return found

    def _looks(self, times: _Array) -> tuple[_Flags, _Array]:
        """Where workers look at the accuracy on their way along curves, and what runs cost.

        As workers do it, looking may not take longer than the training since the last look.

        Args:
            times: Training times at the points of each curve, seconds, shape (n, k).

        Returns:
            Whether it is looked at, and the seconds of a run to there; both of shape (n, k).
        """
        runs = [each for each in self._results if each.measurement and each.trial.curve]
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

    @property
    def _default_figures(self) -> Mapping[str, float]:
        """Those of trial 0; empty without."""
        usable = (each for each in self._results if each.trial.number == 0 and each.usable)
        return next((each.metrics for each in usable), {})

    @property
    def _default_s(self) -> float:
        """Beyond the default's time a front is not worth more for being longer."""
        return self._default_figures.get("train_time_s", 0.0)

    @property
    def _least_accuracy(self) -> float:
        """What is below it is of no interest to those who know the default."""
        least = least_of_interest(self._default_figures.get("val_accuracy", 0.0))
        return self._limit("val_accuracy", upper=False, default=max(least, 1 - BLIND_ERROR))

    def _limit(self, metric: str, *, upper: bool, default: float) -> float:
        """The closest limit that the constraints set to a figure."""
        limits = [
            each.limit
            for each in self.constraints
            if each.objective.metric == metric and each.upper is upper
        ]
        closest = min if upper else max
        return closest([*limits, default])

    def _starts(self) -> list[tuple[dict[str, ParamValue], int]]:
        """What is worth trying first, and the default, where they are members of the space.

        Each with the most iterations that are named with it: on its way it is all shorter runs.
        """
        found: dict[str, tuple[dict[str, ParamValue], int]] = {}
        for point in (*self.space.start_points(self.default), self.default):
            part = self._cube.part(point)
            _, longest = found.get(str(part), (part, 0))
            found[str(part)] = part, max(longest, int(point["iterations"] or 1))
        return [
            (part, longest)
            for part, longest in found.values()
            if not self.space.contains(self._asked(part, self.shortest))
        ]

    def _pace(self, learnt: Params) -> float:
        batch = int(learnt["batch_size"] or 1)
        return self._composition.runtimes.pace_s(self._setting(learnt), batch)

    def _setting(self, learnt: Params) -> dict[str, ParamValue]:
        return self._composition.settings(int(learnt["batch_size"] or 1))[0]

    def _asked(self, learnt: Params, iterations: float) -> dict[str, ParamValue]:
        return {**learnt, **self._setting(learnt), "iterations": int(iterations)}

    def _curve(self, result: TrialResult) -> list[Curve]:
        if result.status is TrialStatus.DIVERGED:  # however well it went before
            whole = (int(self._grid[0]), int(self._grid[-1]))
            return [Curve(self._cube.place(result.params), whole, (1 - BLIND_ERROR,) * 2)]
        points = [each for each in result.checkpoints if each.iteration > 0]
        if not points or not result.usable:
            return []
        return [
            Curve(
                self._cube.place(result.params),
                tuple(each.iteration for each in points),
                tuple(each.val_accuracy for each in points),
            )
        ]


@dataclass(frozen=True)
class _Proposal:
    """What to train next.

    Attributes:
        params: Of the trial.
        gain: What it is expected to add to the front, see ``front_gain``.
        cost_s: Seconds that it takes, what it takes beside training included.
        height: What is added if all that is known were faster, for each unit of the logarithm.
        times_s: Training times of all that was compared.
    """

    params: dict[str, ParamValue]
    gain: float
    cost_s: float
    height: float
    times_s: _Array


def _median(values: Iterable[float]) -> float:
    known = [max(0.0, each) for each in values]
    return statistics.median(known) if known else 0.0

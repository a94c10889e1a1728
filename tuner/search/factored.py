"""``search=factored``: runtime settings are known from the race, so only accuracy is searched.

Each trial is a whole learning curve, trained with the fastest setting for its batch size. What to
train next is what adds most to the front for each second of training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna

from tuner.composition import compose
from tuner.results import front_of
from tuner.runtime_map import RuntimeMap
from tuner.search.curves import Curve, CurveModel, front_gain
from tuner.search.joint import JointSearch
from tuner.space import Choices, Range
from tuner.trial import Params, ParamValue, TrialResult, TrialStatus

_CANDIDATES = 192
_CURVE_POINTS = 10
_NEARLY = 0.7
_SPAN = 300.0  # from the end of a curve to its first point of interest, a factor of time


class FactoredSearch(JointSearch):
    """Ask and tell over learning curves; see ``JointSearch`` for what is stored and how.

    Args:
        args: Of ``JointSearch``.
        runtimes: What the race finds; it may be empty until the default was told.
        kwargs: Of ``JointSearch``.
    """

    def __init__(self, *args: Any, runtimes: RuntimeMap, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runtimes = runtimes
        self._random = np.random.default_rng([self._seed, len(self._study.trials)])
        iterations = self.space.params["iterations"]
        assert isinstance(iterations, Range)
        self._iterations = iterations
        self._learnt = [
            name
            for name in self.space.params
            if name not in self.space.runtime and name != "iterations"
        ]
        self._results: list[TrialResult] = []
        self._model = CurveModel(int(iterations.high), self._seed)

    def _first(self) -> list[Params]:
        """The default alone: start points follow once the settings are raced, at the fastest."""
        return [self.default]

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Learn from the trials of an earlier session, which the storage knows already."""
        self._results = list(results)

    def ask(self, limit_s: float = math.inf) -> tuple[int, dict[str, ParamValue]]:
        """The next trial: its number and params; trained for at most about ``limit_s``."""
        if not self._waiting():
            self._enqueue(self._next_number(), self._propose(limit_s))
        return super().ask(limit_s)

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended, from every checkpoint that it left."""
        super().tell(result)
        self._results.append(result)
        for point in compose([result], self.space, self.runtimes):
            values = self._values(point)
            if values is not None:
                self._study.add_trial(
                    optuna.create_trial(
                        params=self.space.optuna_params(point.params),
                        distributions=self._distributions(point.params),
                        values=values,
                        user_attrs={"derived_from": result.trial.name},
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

    def _overhead_s(self) -> float:
        """Seconds that a run takes beside its training."""
        costs = [
            each.measurement.wall_time_s - each.measurement.train_time_s * each.trial.share
            for each in self._results
            if each.measurement
        ]
        return max(0.0, statistics.median(costs)) if costs else 0.0

    def _propose(self, limit_s: float) -> dict[str, ParamValue]:
        for learnt in self._starts():
            if not any(self._place(learnt) == self._place(each.params) for each in self._results):
                return self._asked(learnt, limit_s / self._pace(learnt))
        candidates = self._candidates()
        curves = [curve for each in self._results for curve in self._curve(each)]
        times = np.array([self._times(each, limit_s) for each in candidates])
        paces = np.array([self._pace(each) for each in candidates])
        iterations = times / paces[:, None]
        if not curves:
            return self._asked(candidates[0], float(iterations[0, -1]))
        self._model.fit(curves)
        places = np.array([self._place(each) for each in candidates])
        mean, deviation = self._model.predict(places, iterations)
        front = [
            (each.metrics["train_time_s"], each.metrics["val_accuracy"])
            for each in front_of(
                [*self._results, *compose(self._results, self.space, self.runtimes)],
                self.objectives,
            )
        ]
        worth = front_gain(mean, deviation, times, front) / (times + self._overhead_s())
        row = int(np.argmax(worth.max(axis=1)))
        # a run that adds nothing is stopped early, one that was to be short cannot be prolonged
        column = np.flatnonzero(worth[row] >= _NEARLY * worth[row].max())[-1]
        return self._asked(candidates[row], float(iterations[row, column]))

    def _candidates(self) -> list[dict[str, ParamValue]]:
        """Where a curve may begin: what is known to be good, and many random places."""
        drawn = [self.space.suggest(_Random(self._random)) for _ in range(_CANDIDATES)]
        return [*self._starts(), *map(self._learnt_part, drawn)]

    def _starts(self) -> list[dict[str, ParamValue]]:
        """What is worth trying first, and the default, where they are members of the space."""
        known = [*self.space.start_points(self.default), self.default]
        parts = {str(each): each for each in map(self._learnt_part, known)}
        return [each for each in parts.values() if not self.space.contains(self._asked(each, 1.0))]

    def _learnt_part(self, params: Params) -> dict[str, ParamValue]:
        return {name: params[name] for name in self._learnt}

    def _times(self, learnt: Params, limit_s: float) -> list[float]:
        """Training times along a curve, seconds, ascending."""
        pace = self._pace(learnt)
        most = min(limit_s, self._iterations.high * pace)
        least = min(max(most / _SPAN, self._iterations.low * pace), most / 2)
        return list(np.geomspace(least, most, _CURVE_POINTS))

    def _pace(self, learnt: Params) -> float:
        batch = int(learnt["batch_size"] or 1)
        return self.runtimes.iteration_s(self.runtimes.fastest(batch), batch).value

    def _asked(self, learnt: Params, iterations: float) -> dict[str, ParamValue]:
        low, high = self._iterations.low, self._iterations.high
        return {
            **learnt,
            **self.runtimes.fastest(int(learnt["batch_size"] or 1)),
            "iterations": int(min(max(iterations, low), high)),
        }

    def _curve(self, result: TrialResult) -> list[Curve]:
        points = [each for each in result.checkpoints if each.iteration > 0]
        if result.status is TrialStatus.DIVERGED and not points:
            return [Curve(self._place(result.params), (int(self._iterations.low),), (0.1,))]
        if not points or not (result.usable or result.status is TrialStatus.DIVERGED):
            return []
        return [
            Curve(
                self._place(result.params),
                tuple(each.iteration for each in points),
                tuple(each.val_accuracy for each in points),
            )
        ]

    def _place(self, params: Params) -> tuple[float, ...]:
        """Coordinates in the unit cube of the params that accuracy depends on."""
        return tuple(
            _coordinate(self.space.params[name], params[name], params) for name in self._learnt
        )


class _Random:
    """Draws params as a sampler's trial would."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def suggest_int(self, _name: str, low: int, high: int, *, log: bool = False) -> int:
        return round(self.suggest_float(_name, low, high, log=log))

    def suggest_float(self, _name: str, low: float, high: float, *, log: bool = False) -> float:
        if log:
            return math.exp(self._random.uniform(math.log(low), math.log(high)))
        return float(self._random.uniform(low, high))

    def suggest_categorical(self, _name: str, choices: Sequence[Any]) -> Any:
        return choices[int(self._random.integers(len(choices)))]


def _coordinate(param: Range | Choices, value: ParamValue, params: Params) -> float:
    if isinstance(param, Choices):
        values = param.values(params)
        return values.index(value) / max(len(values) - 1, 1)
    low, high, at = param.low, param.high, float(value or 0)
    if param.log:
        low, high, at = math.log(low), math.log(high), math.log(at)
    return (at - low) / ((high - low) or 1.0)

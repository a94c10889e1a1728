"""Derived points, which were never run: a checkpoint of one run at the pace of another setting.

Accuracy after a number of iterations depends on the training params. Time per iteration depends on
the runtime setting and the batch size. So every checkpoint of a run is a result of its own, with
the time of the fastest setting, or of one with fewer threads that is nearly as fast (and where
memory or CPU time count, of the most economical ones). Where the run's own time was measured, that
is its time by the ratio of the two settings' paces in the race. Such points are marked
``DERIVED`` until they are verified.

With a lossy exchange of gradients a group learns something else, so such a run is composed only
with settings of the same exchange and number of processes, and all others only with exact ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tuner.config.schema import Constraint
from tuner.values.exchange import Lossy, lossy
from tuner.values.params import Params, ParamValue, batch_size_of, group_size
from tuner.values.pareto import Direction, Objective, pareto_front
from tuner.values.runtime_map import RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialResult, TrialStatus

_MEMORY = {"avg_memory_bytes", "peak_memory_bytes"}
_MIN_GAIN = 1.2  # in trainings per second, from which on several run side by side
_CPU = {"cpu_user_s", "cpu_system_s"}
_WORTH_A_THREAD = 1.1  # speed-up that more threads must give to be worth it
_COST = Objective("cost", "cost", Direction.MINIMIZE)
_MAX_SETTINGS = 3  # per batch size; more would be hard to tell apart


@dataclass(frozen=True)
class Composition:
    """Composes the checkpoints of runs with the paces of the raced runtime settings.

    Attributes:
        space: The search space; points outside it are left out.
        runtimes: The map that the race measured.
        objectives: The study's objectives. Where memory or CPU time count, slower settings may be
            worth it.
        constraints: The study's constraints. Settings above their memory limit are avoided.
    """

    space: SearchSpace
    runtimes: RuntimeMap
    objectives: Sequence[Objective] = ()
    constraints: Sequence[Constraint] = ()

    def settings(self, batch_size: int, kind: Lossy | None = None) -> list[dict[str, ParamValue]]:
        """Return the settings worth using for this batch size, the fastest first.

        Args:
            batch_size: Samples an iteration.
            kind: The lossy exchange of all of them; ``None`` if theirs is exact.

        Raises:
            ValueError: If no such setting is known.
        """
        known = self.runtimes
        usable = known.settings_of(kind)
        metrics = {each.metric for each in self.objectives}
        limit = min(
            (
                each.limit / each.objective.scale
                for each in self.constraints
                if each.upper and each.objective.metric in _MEMORY
            ),
            default=math.inf,
        )
        allowed = [
            each
            for each in usable
            if limit == math.inf or known.peak_memory(each, batch_size) <= limit
        ] or [min(usable, key=lambda each: known.peak_memory(each, batch_size))]
        if not metrics & (_MEMORY | _CPU):
            return [self._thrifty(allowed, batch_size)]
        costs = [
            [
                known.pace_s(each, batch_size),
                known.peak_memory(each, batch_size) if metrics & _MEMORY else 0.0,
                known.pace_s(each, batch_size) * known.cores_used(each, batch_size)
                if metrics & _CPU
                else 0.0,
            ]
            for each in allowed
        ]
        front = pareto_front(costs, [_COST, _COST, _COST])
        return [allowed[index] for index in front[:_MAX_SETTINGS]]

    def fastest(self, params: Params) -> dict[str, ParamValue]:
        """Return the first of ``settings`` for the batch size and the exchange of ``params``."""
        return self.settings(batch_size_of(params), lossy(params))[0]

    def pace_s(self, params: Params) -> float:
        """Return the seconds per iteration that ``params`` take at their fastest setting."""
        return self.runtimes.pace_s(self.fastest(params), batch_size_of(params))

    def _thrifty(
        self, settings: Sequence[dict[str, ParamValue]], batch_size: int
    ) -> dict[str, ParamValue]:
        """Return the fastest setting, or one with fewer threads that is nearly as fast.

        Threads wait for each other whenever another process takes one of their cores, so a small
        lead in the race is lost in a long training.
        """
        sure_s = {
            index: self.runtimes.surely_s(each, batch_size) for index, each in enumerate(settings)
        }
        max_s = _WORTH_A_THREAD * min(sure_s.values())
        nearly = [index for index, time_s in sure_s.items() if time_s <= max_s]
        return settings[min(nearly, key=lambda index: (_threads(settings[index]), sure_s[index]))]

    def at_once(self, batch_size: int, cores: int) -> int:
        """Return how many trainings to run side by side, one per core, for their accuracy.

        Return 1 where one at a time on all cores is about as fast overall. Return 1 also where
        memory or CPU time count, which must be measured for one run alone.
        """
        metrics = {each.metric for each in self.objectives}
        metrics |= {each.objective.metric for each in self.constraints}
        if metrics & (_MEMORY | _CPU) or not self.runtimes.probes:
            return 1
        alone, best = self.on_one_core(batch_size), self.settings(batch_size)[0]
        if not alone:
            return 1
        paces_s = self.runtimes.pace_s(best, batch_size), self.runtimes.beside_s(alone, batch_size)
        return cores if cores * paces_s[0] / paces_s[1] >= _MIN_GAIN else 1

    def on_one_core(self, batch_size: int) -> dict[str, ParamValue]:
        """Return the fastest setting of one thread and process; empty where none was raced."""
        alone = [
            each for each in self.runtimes.settings if each.get("threads") == group_size(each) == 1
        ]
        return min(alone, key=lambda each: self.runtimes.surely_s(each, batch_size), default={})

    def points(self, result: TrialResult) -> list[TrialResult]:
        """Return the points derived from this run's checkpoints.

        The last checkpoint at the run's own setting is the run itself, and left out, unless it
        ran for its accuracy alone: then its own times are no measurement. Nothing is derived from
        an unusable run, or without a known setting. A default of which only the first part was
        trained may have fewer iterations than the space allows: what another runtime setting gains
        is of interest all the same.
        """
        if not self.runtimes.probes or not result.usable:
            return []
        return [each for each in self._points(result) if self._is_member(each, result)]

    def _is_member(self, point: TrialResult, result: TrialResult) -> bool:
        if result.trial.is_default and point.iterations == result.iterations:
            fewest = int(self.space.iterations.low)
            return not self.space.refusal({**point.params, "iterations": fewest})
        return not self.space.refusal(point.params)

    def _points(self, result: TrialResult) -> Iterator[TrialResult]:
        batch, kind = batch_size_of(result.params), lossy(result.params)
        own = {name: result.params[name] for name in self.space.runtime}
        timed = not result.trial.accuracy_only
        places = itertools.count(1)
        for setting in self.settings(batch, kind) if self.runtimes.settings_of(kind) else ():
            for index, point in enumerate(result.checkpoints):
                place = next(places)
                if timed and setting == own and point.iteration == result.iterations:
                    continue
                if timed and own in self.runtimes.probed:
                    # the machine may have been faster or slower than in the race
                    ratio = self._ratio(self.runtimes.pace_s, setting, result, batch)
                    time_s = ratio * point.train_time_s
                else:
                    time_s = point.iteration * self.runtimes.pace_s(setting, batch)
                yield self._point(result, place, index, setting, time_s)

    def _point(
        self,
        result: TrialResult,
        place: int,
        index: int,
        setting: dict[str, ParamValue],
        time_s: float,
    ) -> TrialResult:
        measured = result.measurement
        assert measured is not None
        batch = batch_size_of(result.params)
        point = result.checkpoints[index]
        pace_s = time_s / max(point.iteration, 1)
        memory = self._ratio(self.runtimes.peak_memory, setting, result, batch)
        cpu = self._ratio(self.runtimes.cores_used, setting, result, batch)
        cpu *= time_s / max(measured.train_time_s, 1e-9)
        trained_s = measured.train_time_s * result.trial.share
        return dataclasses.replace(
            result,
            trial=result.trial.derive(
                place, {**result.params, **setting, "iterations": point.iteration}
            ),
            status=TrialStatus.COMPLETE,
            reason=f"derived from {result.trial.name} after {point.iteration} iterations",
            iterations=point.iteration,
            val_accuracy=point.val_accuracy,
            test_accuracy=None,
            checkpoints=tuple(
                dataclasses.replace(each, train_time_s=each.iteration * pace_s)
                for each in result.checkpoints[: index + 1]
            ),
            measurement=dataclasses.replace(
                measured,
                train_time_s=time_s,
                wall_time_s=time_s + max(0.0, measured.wall_time_s - trained_s),
                cpu_user_s=measured.cpu_user_s * cpu,
                cpu_system_s=measured.cpu_system_s * cpu,
                avg_memory_bytes=round(measured.avg_memory_bytes * memory),
                peak_memory_bytes=round(measured.peak_memory_bytes * memory),
            ),
            discarded=(),
        )

    def _ratio(
        self,
        figure: Callable[[Params, int], float],
        setting: Params,
        result: TrialResult,
        batch: int,
    ) -> float:
        """Return a figure of ``setting`` divided by that of the run's own setting, or 1."""
        own = {name: result.params[name] for name in self.space.runtime}
        if own not in self.runtimes.probed:
            return 1.0
        before = figure(own, batch)
        return figure(setting, batch) / before if before else 1.0


def _threads(setting: Params) -> float:
    """Return a setting's threads; infinity where the library chooses, as it takes all cores."""
    threads = setting.get("threads")
    return threads * group_size(setting) if isinstance(threads, int) else math.inf

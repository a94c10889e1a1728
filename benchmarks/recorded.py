"""Recorded trainings: the true time and accuracy of any params, without any training.

The tables of ``benchmarks/tables`` were measured (``record.py``); what is asked between their
points is interpolated in logarithms.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
import statistics
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.config.catalogue import find_setting_file
from tuner.convergence.references import Accuracies, find_reference
from tuner.measure import cpu_flags
from tuner.search.curves import Curve, look_deviations
from tuner.values.params import Params, batch_size_of, iterations_of
from tuner.values.pareto import OBJECTIVES, hypervolume
from tuner.values.ranges import Choices, Range
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace

TABLES = Path(__file__).parent / "tables"
GOALS = (OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"])
FLOOR = 0.5  # accuracy, below which nothing adds to a hypervolume


def recorded_names() -> list[str]:
    """List what can be replayed, as framework-dataset."""
    return [
        f"{path.stem}-{dataset}"
        for path in sorted(TABLES.glob("*.json"))
        for dataset in json.loads(path.read_text(encoding="utf-8"))["curves"]
    ]


class Recorded:
    """A framework on a data set as it was recorded: answers instead of training."""

    def __init__(self, name: str) -> None:
        self.name = name
        framework, _, dataset = name.partition("-")
        table = json.loads((TABLES / f"{framework}.json").read_text(encoding="utf-8"))
        curves = table["curves"][dataset]
        self.default, self.model = dict(table["default"]), str(table["model"])
        self.cores = int(str(table["machine"].get("cores", "2")).split()[0])
        self.paces = RuntimeMap(
            PaceProbe(each["setting"], int(batch), seconds)
            for each in table["paces"]
            for batch, seconds in each["iteration_s"].items()
        )
        self.start_s = {json.dumps(each["setting"]): each["start_s"] for each in table["paces"]}
        self._grid = {
            (each["batch_size"], each["learning_rate"]): _smoothed(each["checkpoints"])
            for each in curves["runs"]
        }
        self.eval_s = self._evaluation_s(curves["runs"])
        reference = find_reference(framework, dataset, self.model)
        seeds = [_curve_of(run.looks) for run in reference.runs] if reference else []
        self.lasting = look_deviations(seeds)[0]
        self._default_curve = _mean_of(seeds)
        self.batches = sorted({batch for batch, _ in self._grid})
        self.rates = sorted({rate for _, rate in self._grid})
        self.longest_s = float(curves["seconds"])
        self.max_iterations = max(
            int(point[0]) for curve in self._grid.values() for point in curve
        )
        iterations = min(iterations_of(self.default), self.max_iterations)
        self.default["iterations"] = iterations
        self.space = self._space(table, dataset)
        self.min_iterations = int(self.space.iterations.low)

    def _space(self, table: dict[str, Any], dataset: str) -> SearchSpace:
        space = SearchSpace.load(
            find_setting_file("search_spaces", table["framework"]),
            cores=self.cores,
            cpu_flags=cpu_flags(), dataset=dataset, model=self.model,
        )  # fmt: skip
        # only what was recorded can be asked for
        settings = [each["setting"] for each in table["paces"]]
        params: dict[str, Range | Choices] = {
            name: param
            for name, param in space.params.items()
            if name in settings[0] or name not in space.runtime
        }
        for name in settings[0]:
            param = space.runtime[name]
            cases = {
                case: tuple(
                    value
                    for value in values
                    if any(
                        each[name] == value and (not param.given or str(each[param.given]) == case)
                        for each in settings
                    )
                )
                for case, values in param.cases.items()
            }
            params[name] = dataclasses.replace(param, cases=cases)
        for name in space.learns_by:  # of choices, curves were recorded with the default's alone
            if isinstance(choice := params[name], Choices):
                own = self.default.setdefault(name, choice.values({})[0])
                params[name] = dataclasses.replace(choice, cases={"": (own,)}, given="")
        params["iterations"] = dataclasses.replace(
            space.iterations, high=min(space.iterations.high, float(self.max_iterations))
        )
        # without what was offered only after the recording, such as a further kernel
        start = tuple(
            {
                name: value
                for name, value in each.items()
                if name in params and not params[name].refusal(value, {**self.default, **each})
            }
            for each in space.start
        )
        return dataclasses.replace(space, params=params, start=start)

    def _evaluation_s(self, runs: Sequence[dict[str, Any]]) -> float:
        """Seconds that looking at the accuracy once takes: what runs took beside all else."""
        start_s = statistics.median(self.start_s.values())
        looks: list[float] = [
            max(0.0, each["beside_s"] - start_s) / len(each["checkpoints"])
            for each in runs
            if each["checkpoints"] and each["beside_s"] is not None
        ]
        return statistics.median(looks)

    def setting(self, params: Params) -> dict[str, Any]:
        """Return the runtime part of some params."""
        return {name: params[name] for name in self.space.runtime}

    def pace(self, params: Params) -> float:
        """Seconds an iteration truly takes."""
        batch = batch_size_of(params)
        return self.paces.pace_s(self.setting(params), batch)

    def started_s(self, params: Params) -> float:
        """Seconds a cold worker takes beside its training."""
        return float(self.start_s[json.dumps(self.setting(params))])

    def accuracy(self, params: Params, iterations: float) -> float:
        """Return the true accuracy after some iterations, interpolated in logarithms.

        The default goes as its reference does, where there is one.
        """
        learnt = ("batch_size", "learning_rate")
        if self._default_curve and all(params[each] == self.default[each] for each in learnt):
            return 1 - self._error(self._default_curve, iterations)
        b_low, b_high, b_part = _between(self.batches, float(batch_size_of(params)))
        r_low, r_high, r_part = _between(self.rates, float(params["learning_rate"] or 1))
        log_error = 0.0
        for batch, b_weight in ((b_low, 1 - b_part), (b_high, b_part)):
            for rate, r_weight in ((r_low, 1 - r_part), (r_high, r_part)):
                if b_weight * r_weight:
                    error = self._error(self._grid[batch, rate], iterations)
                    log_error += b_weight * r_weight * math.log(error)
        stop = [params["batch_size"], params["learning_rate"], round(iterations)]
        chance = np.random.default_rng(zlib.crc32(repr(stop).encode()))
        return 1 - math.exp(log_error + self.lasting * chance.standard_normal())

    @staticmethod
    def _error(curve: Sequence[Sequence[float]], iterations: float) -> float:
        if not curve:
            return 0.9  # it diverged before anything was seen
        logs = [math.log(point[0]) for point in curve]
        errors = [max(1 - point[1], 1e-4) for point in curve]
        at = math.log(max(iterations, 1e-9))
        if at < logs[0]:  # from blind guessing at the first iteration
            part = max(at, 0.0) / max(logs[0], 1e-9)
            return math.exp(math.log(0.9) * (1 - part) + math.log(errors[0]) * part)
        return float(np.exp(np.interp(at, logs, np.log(errors))))

    def volume(self, points: Sequence[Params], alike: float = 1.0) -> float:
        """Return some params' true hypervolume; those outside the search space add nothing.

        Args:
            points: Params with their runtime settings.
            alike: Settings that take at most so many times as long as the fastest count as it.
        """
        rows = []
        for params in points:
            if self.space.refusal(params):
                continue
            iterations, batch = iterations_of(params), batch_size_of(params)
            pace, fastest = self.pace(params), self.paces.fastest(batch)
            best = self.paces.pace_s(fastest, batch)
            time_s = iterations * (best if pace <= alike * best else pace)
            rows.append((-math.log(1 - self.accuracy(params, iterations)), math.log(time_s)))
        return hypervolume(rows, (-math.log(1 - FLOOR), math.log(self.longest_s)), GOALS)

    @property
    def points(self) -> list[Params]:
        """Everything that was recorded, at the fastest settings."""
        return [
            {
                **self.default,
                **self.paces.fastest(batch),
                "batch_size": batch,
                "learning_rate": rate,
                "iterations": iterations,
            }
            for (batch, rate), curve in self._grid.items()
            for iterations in sorted({self.min_iterations, *(int(mark) for mark, _ in curve)})
        ]

    def reference(self) -> float:
        """Hypervolume of the front of everything that was recorded."""
        return self.volume(self.points)

    def truth(self, params: Params) -> tuple[float, float]:
        """Training time, seconds, and accuracy that some params truly have."""
        iterations = iterations_of(params)
        return iterations * self.pace(params), self.accuracy(params, iterations)

    def loses_nothing(self, params: Params, default: Params, margin: float) -> bool:
        """Check that some params truly lose at most a margin of a default's accuracy."""
        return self.truth(params)[1] >= self.truth(default)[1] - margin

    def fastest_s(self, default: Params, margin: float = 0.0) -> float:
        """Least true training time of what was recorded and loses no more than a margin, s."""
        batch = batch_size_of(default)
        found: list[Params] = [{**default, **self.paces.fastest(batch)}]
        found += [each for each in self.points if not self.space.refusal(each)]
        lossless = (each for each in found if self.loses_nothing(each, default, margin))
        return min(self.truth(each)[0] for each in lossless)


def _curve_of(looks: Sequence[Accuracies]) -> Curve:
    return Curve(
        (), tuple(each.iteration for each in looks), tuple(each.val_accuracy for each in looks)
    )


def _mean_of(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """Average several seeds' accuracy at the iterations they all looked at."""
    rows = [dict(zip(each.iterations, each.accuracy, strict=True)) for each in curves]
    common = set.intersection(*[set(row) for row in rows] or [set()])
    return [(each, statistics.fmean(row[each] for row in rows)) for each in sorted(common)]


def _smoothed(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Smooth a curve's noise: average the error of each look with its neighbours'."""
    errors = [math.log(max(1 - accuracy, 1e-4)) for _, accuracy in curve]
    found = []
    for index, (iteration, _) in enumerate(curve):
        near = errors[max(0, index - 1) : index + 2]
        found.append((iteration, 1 - math.exp(statistics.fmean([errors[index], *near]))))
    return found


def _between(values: Sequence[float], at: float) -> tuple[Any, Any, float]:
    """Return the two neighbours, and how far between them on a logarithmic axis."""
    if at <= values[0]:
        return values[0], values[0], 0.0
    if at >= values[-1]:
        return values[-1], values[-1], 0.0
    right = bisect.bisect_right(values, at)
    low, high = values[right - 1], values[right]
    return low, high, math.log(at / low) / math.log(high / low)

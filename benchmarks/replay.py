"""Recorded trainings as a machine of its own: searches run on it without any training.

The tables of ``benchmarks/tables`` were measured (``record.py``); what is asked between their
points is interpolated in logarithms. A search meets on this machine what it meets on a real one:
workers that take seconds to start, times and accuracies with noise, trials that are stopped.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import numpy as np

from tuner.continuation import can_extend, far_behind
from tuner.measure import cpu_flags
from tuner.pareto import OBJECTIVES, hypervolume
from tuner.protocol import checkpoint_grid, trained_iterations
from tuner.registry import find_setting_file
from tuner.runtime_map import Probe, RuntimeMap
from tuner.space import Choices, Range, SearchSpace
from tuner.trial import (
    Checkpoint,
    Measurement,
    Params,
    Trial,
    TrialKind,
    TrialResult,
    TrialStatus,
)

TABLES = Path(__file__).parent / "tables"
GOALS = (OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"])
FLOOR = 0.5
TIME_NOISE = 0.03
VALIDATION, TEST = 5000, 10_000  # images


def recorded_names() -> list[str]:
    """What can be replayed, as framework-dataset."""
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
        self.default = dict(table["default"])
        self.paces = RuntimeMap(
            Probe(each["setting"], int(batch), seconds)
            for each in table["paces"]
            for batch, seconds in each["iteration_s"].items()
        )
        self.start_s = {json.dumps(each["setting"]): each["start_s"] for each in table["paces"]}
        self._grid = {
            (each["batch_size"], each["learning_rate"]): each["checkpoints"]
            for each in curves["runs"]
        }
        self.eval_s = self._evaluation_s(curves["runs"])
        self.batches = sorted({batch for batch, _ in self._grid})
        self.rates = sorted({rate for _, rate in self._grid})
        self.longest_s = float(curves["seconds"])
        self.most_iterations = max(
            int(point[0]) for curve in self._grid.values() for point in curve
        )
        iterations = min(int(self.default["iterations"] or 1), self.most_iterations)
        self.default["iterations"] = iterations
        self.space = self._space(table, dataset)
        iterations_range = self.space.params["iterations"]
        assert isinstance(iterations_range, Range)
        self.shortest = int(iterations_range.low)

    def _space(self, table: dict[str, Any], dataset: str) -> SearchSpace:
        space = SearchSpace.load(
            find_setting_file("search_spaces", table["framework"]),
            cores=int(str(table["machine"].get("cores", "2")).split()[0]),
            cpu_flags=cpu_flags(), dataset=dataset, model="lenet",
        )  # fmt: skip
        # only what was recorded can be asked for
        settings = [each["setting"] for each in table["paces"]]
        params: dict[str, Range | Choices] = dict(space.params)
        for name, param in space.runtime.items():
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
        iterations = params["iterations"]
        assert isinstance(iterations, Range)
        params["iterations"] = dataclasses.replace(iterations, high=float(self.most_iterations))
        return dataclasses.replace(space, params=params)

    def _evaluation_s(self, runs: Sequence[dict[str, Any]]) -> float:
        """Seconds that looking at the accuracy once takes: what runs took beside all else."""
        start_s = statistics.median(self.start_s.values())
        looks = [
            max(0.0, each["beside_s"] - start_s) / len(each["checkpoints"])
            for each in runs
            if each["checkpoints"] and each["beside_s"] is not None
        ]
        return statistics.median(looks)

    def setting(self, params: Params) -> dict[str, Any]:
        """The runtime part of some params."""
        return {name: params[name] for name in self.space.runtime}

    def pace(self, params: Params) -> float:
        """Seconds an iteration truly takes."""
        batch = int(params["batch_size"] or 1)
        return self.paces.pace_s(self.setting(params), batch)

    def started_s(self, params: Params) -> float:
        """Seconds a cold worker takes beside its training."""
        return float(self.start_s[json.dumps(self.setting(params))])

    def accuracy(self, params: Params, iterations: float) -> float:
        """What truly is reached after some iterations: interpolated in logarithms."""
        b_low, b_high, b_part = _between(self.batches, float(params["batch_size"] or 1))
        r_low, r_high, r_part = _between(self.rates, float(params["learning_rate"] or 1))
        log_error = 0.0
        for batch, b_weight in ((b_low, 1 - b_part), (b_high, b_part)):
            for rate, r_weight in ((r_low, 1 - r_part), (r_high, r_part)):
                if b_weight * r_weight:
                    error = self._error(self._grid[batch, rate], iterations)
                    log_error += b_weight * r_weight * math.log(error)
        return 1 - math.exp(log_error)

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
        """True hypervolume of some params; those outside the search space count for nothing.

        Args:
            points: Params with their runtime settings.
            alike: Settings that take at most so many times as long as the fastest count as it.
        """
        rows = []
        for params in points:
            if self.space.contains(params):
                continue
            iterations, batch = int(params["iterations"] or 1), int(params["batch_size"] or 1)
            pace, fastest = self.pace(params), self.paces.fastest(batch)
            best = self.paces.pace_s(fastest, batch)
            time_s = iterations * (best if pace <= alike * best else pace)
            rows.append((-math.log(1 - self.accuracy(params, iterations)), math.log(time_s)))
        return hypervolume(rows, (-math.log(1 - FLOOR), math.log(self.longest_s)), GOALS)

    def reference(self) -> float:
        """Hypervolume of the front of everything that was recorded, at the fastest settings."""
        points: list[Params] = [
            {
                **self.default,
                **self.paces.fastest(batch),
                "batch_size": batch,
                "learning_rate": rate,
                "iterations": iterations,
            }
            for (batch, rate), curve in self._grid.items()
            for iterations in {self.shortest, *(int(mark) for mark, _ in curve)}
        ]
        return self.volume(points)


def _between(values: Sequence[float], at: float) -> tuple[Any, Any, float]:
    """The two neighbours on a logarithmic axis, and how far between them."""
    if at <= values[0]:
        return values[0], values[0], 0.0
    if at >= values[-1]:
        return values[-1], values[-1], 0.0
    right = bisect.bisect_right(values, at)
    low, high = values[right - 1], values[right]
    return low, high, math.log(at / low) / math.log(high / low)


class Replay:
    """A machine on which trials take no time but its own.

    Args:
        recorded: What it knows.
        seed: Of its noise.
    """

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self.recorded, self.now = recorded, 0.0
        self._kept: dict[str, Any] | None = None
        self._noise = np.random.default_rng(seed)

    @contextlib.contextmanager
    def session(self, params: Params) -> Iterator[Replay]:
        """A warm worker, as the race opens them."""
        self.now += self.recorded.started_s(params)
        yield self

    def run(self, trial: Trial, goes_on: GoesOn | None = None) -> TrialResult:
        """Train as the tuner's worker and watch would: probes, stops and checkpoints alike.

        Args:
            trial: What to train.
            goes_on: Asked at every checkpoint with all so far and the time at which the trial
                will be over; by default what the tuner's own watch would say.
        """
        params, began = trial.params, self.now
        asked = int(params["iterations"] or 1)
        pace = self.recorded.pace(params) * math.exp(self._noise.normal(0, TIME_NOISE))
        limit_s = trial.train_time_limit_s or math.inf
        if trial.kind is TrialKind.PROBE:
            done = max(1, min(asked, math.ceil(limit_s / pace)))
            self.now += done * pace
            return _result(trial, done, done * pace, ())
        setting = self.recorded.setting(params)
        cold = not trial.warm or setting != self._kept
        setup_s = self.recorded.started_s(params) if cold else 0.0
        self.now += setup_s
        self._kept = setting if trial.warm else None
        goes_on = goes_on or (lambda points, end_s: _watched(trial, points, end_s))
        points: list[Checkpoint] = []
        seen_s = 0.0
        for mark in checkpoint_grid(asked, trial.curve):
            over = mark * pace > limit_s
            done = max(1, int(limit_s / pace)) if over else mark
            # as workers do it: on the way, looking may not cost more than the training before it
            if (
                not over
                and mark < asked
                and done * pace - seen_s < self.recorded.eval_s * bool(points)
            ):
                continue
            seen_s = done * pace
            self.now += self.recorded.eval_s
            truth = self.recorded.accuracy(params, done)
            spread = math.sqrt(max(truth * (1 - truth), 1e-6) / VALIDATION)
            seen = min(1.0, max(0.0, truth + self._noise.normal(0, spread)))
            points.append(Checkpoint(done, done * pace, None, seen))
            if over or not goes_on(points, min(asked * pace, limit_s)):
                break
        self.now += points[-1].train_time_s
        spent = setup_s, self.now - began
        return _result(trial, points[-1].iteration, points[-1].train_time_s, points, spent)

    def verify(self, trial: Trial) -> TrialResult:
        """A cold run to the end of its share, with the test split if that is the whole."""
        done = trained_iterations(trial)
        pace = self.recorded.pace(trial.params) * math.exp(self._noise.normal(0, TIME_NOISE))
        truth = self.recorded.accuracy(trial.params, done)
        reached, test = (
            min(1.0, truth + self._noise.normal(0, math.sqrt(truth * (1 - truth) / images)))
            for images in (VALIDATION, TEST)
        )
        time_s = done * pace / trial.share
        spent = self.recorded.started_s(trial.params), done * pace
        self.now += sum(spent)
        result = _result(trial, done, time_s, [Checkpoint(done, time_s, None, reached)], spent)
        return dataclasses.replace(
            result, status=TrialStatus.COMPLETE, test_accuracy=test if trial.test else None
        )


GoesOn = Callable[[Sequence[Checkpoint], float], bool]


def _watched(trial: Trial, points: Sequence[Checkpoint], end_s: float) -> bool:
    if far_behind(points, trial.rivals):
        return False
    return not trial.curve or can_extend(points, trial.rivals, end_s)


def _result(
    trial: Trial,
    done: int,
    time_s: float,
    points: Sequence[Checkpoint],
    spent_s: tuple[float, float] = (0.0, 0.0),
) -> TrialResult:
    """What a worker would answer; ``spent_s`` is set-up and wall time."""
    whole = done == int(trial.params["iterations"] or 1)
    needed = [each for each in dataclasses.fields(Measurement) if each.default is MISSING]
    # all that has no default is a number
    measurement = Measurement(**{each.name: 0 for each in needed})  # type: ignore[arg-type]
    return TrialResult(
        trial=trial,
        status=TrialStatus.COMPLETE if whole else TrialStatus.STOPPED,
        iterations=done,
        val_accuracy=points[-1].val_accuracy if points else None,
        checkpoints=tuple(points),
        measurement=dataclasses.replace(
            measurement, train_time_s=time_s, setup_time_s=spent_s[0], wall_time_s=spent_s[1]
        ),
    )

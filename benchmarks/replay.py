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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import MISSING
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tuner.config.catalogue import find_setting_file
from tuner.convergence.references import Accuracies, find_reference
from tuner.measure import cpu_flags
from tuner.search.curves import Curve, look_deviations
from tuner.trials.protocol import marks_of, trained_iterations
from tuner.trials.stopping import can_extend, far_behind
from tuner.values.pareto import OBJECTIVES, hypervolume
from tuner.values.ranges import Choices, Range
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import (
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
LANE_SLOWDOWN = 1.25  # of trials that run side by side, as it was seen on two cores
SEED_NOISE = 0.5  # between seeds, by that of sampling the images: 0.2 to 0.6 in most references
SPLIT_NOISE = 0.15  # of a configuration's errors differ between the splits, by ``references/``
VALIDATION, TEST = 5000, 10_000  # images


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
        iterations = min(int(self.default["iterations"] or 1), self.max_iterations)
        self.default["iterations"] = iterations
        self.space = self._space(table, dataset)
        iterations_range = self.space.params["iterations"]
        assert isinstance(iterations_range, Range)
        self.min_iterations = int(iterations_range.low)

    def _space(self, table: dict[str, Any], dataset: str) -> SearchSpace:
        space = SearchSpace.load(
            find_setting_file("search_spaces", table["framework"]),
            cores=self.cores,
            cpu_flags=cpu_flags(), dataset=dataset, model=self.model,
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
        params["iterations"] = dataclasses.replace(
            iterations, high=min(iterations.high, float(self.max_iterations))
        )
        return dataclasses.replace(space, params=params)

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
        batch = int(params["batch_size"] or 1)
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
        b_low, b_high, b_part = _between(self.batches, float(params["batch_size"] or 1))
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
            iterations, batch = int(params["iterations"] or 1), int(params["batch_size"] or 1)
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
        iterations = int(params["iterations"] or 1)
        return iterations * self.pace(params), self.accuracy(params, iterations)

    def loses_nothing(self, params: Params, default: Params, margin: float) -> bool:
        """Check that some params truly lose at most a margin of a default's accuracy."""
        return self.truth(params)[1] >= self.truth(default)[1] - margin

    def fastest_s(self, default: Params, margin: float = 0.0) -> float:
        """Least true training time of what was recorded and loses no more than a margin, s."""
        batch = int(default["batch_size"] or 1)
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


class Replay:
    """A machine, and the executor on it, on which trials take no time but its own.

    A training with the same seed and params goes the same way again, at whatever runtime setting;
    times differ from run to run.

    Args:
        recorded: What it knows.
        seed: Of its noise.

    Attributes:
        now: Seconds that have passed on it.
        lanes: Trials that may run side by side for their accuracy alone. They run one after the
            other here, each in its share of the time.
    """

    slots = 1

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self.recorded, self.now = recorded, 0.0
        self.lanes = recorded.cores
        self._kept: dict[str, Any] | None = None
        self.seed, self._noise = seed, np.random.default_rng(seed)

    @contextlib.contextmanager
    def session(self, params: Params) -> Iterator[Replay]:
        """Open a warm worker, as the race does."""
        self.now += self.recorded.started_s(params)
        yield self

    def submit(self, trial: Trial) -> Future[TrialResult]:
        """Train at once; the time it takes has passed when this returns."""
        future: Future[TrialResult] = Future()
        future.set_result(self.run(trial))
        return future

    def cancel(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""

    def run(self, trial: Trial, goes_on: GoesOn | None = None) -> TrialResult:
        """Train as the tuner's worker and watch would: looks, stops and probes alike.

        Args:
            trial: What to train.
            goes_on: Asked at every checkpoint with all so far and the time at which the trial
                will be over; by default what the tuner's own watch would say.
        """
        began = self.now
        if trial.accuracy_only:
            result = self._alone(trial, goes_on)
            self.now = began + (self.now - began) * LANE_SLOWDOWN / self.lanes
            return result
        return self._alone(trial, goes_on)

    def _alone(self, trial: Trial, goes_on: GoesOn | None) -> TrialResult:
        began = self.now
        pace = self.recorded.pace(trial.params) * math.exp(self._noise.normal(0, TIME_NOISE))
        if trial.kind is TrialKind.PROBE:
            return self._probe(trial, pace)
        setup_s = self._start(trial)
        points = self._train(trial, pace, goes_on or (lambda *seen: _watched(trial, *seen)))
        done, train_s = points[-1].iteration, points[-1].train_time_s
        test_s = self.recorded.eval_s * TEST / VALIDATION
        self.now += train_s + (test_s if trial.test else 0.0)
        return _result(
            trial,
            done,
            train_s,
            checkpoints=tuple(points),
            val_accuracy=points[-1].val_accuracy,
            test_accuracy=self._accuracy(trial, done, TEST) if trial.test else None,
            measured={
                "setup_time_s": setup_s, "test_time_s": test_s, "wall_time_s": self.now - began
            },
        )  # fmt: skip

    def _probe(self, trial: Trial, pace: float) -> TrialResult:
        limit_s = trial.train_time_limit_s or math.inf
        done = max(1, min(trained_iterations(trial), math.ceil(min(limit_s / pace, 1e9))))
        self.now += done * pace
        return _result(trial, done, done * pace)

    def _start(self, trial: Trial) -> float:
        """Have a worker for a trial; returns the seconds that took."""
        setting = self.recorded.setting(trial.params)
        cold = not trial.warm or setting != self._kept
        self._kept = setting if trial.warm else None
        setup_s = self.recorded.started_s(trial.params) if cold else 0.0
        self.now += setup_s
        return setup_s

    def _train(self, trial: Trial, pace: float, goes_on: GoesOn) -> list[Checkpoint]:
        limit_s = trial.train_time_limit_s or math.inf
        every = trial.kind is TrialKind.REFERENCE
        asked = trained_iterations(trial)
        points: list[Checkpoint] = []
        seen_s = 0.0
        for mark in marks_of(trial):
            over = mark * pace > limit_s
            done = max(1, int(limit_s / pace)) if over else mark
            # as workers do it: on the way, looking may not cost more than the training before it
            cost_s = 0.0 if every or over or mark == asked else self.recorded.eval_s * bool(points)
            if done * pace - seen_s < cost_s:
                continue
            seen_s = done * pace
            test = self._accuracy(trial, done, TEST) if every else None
            self.now += self.recorded.eval_s * (1 + TEST / VALIDATION * every)
            seen = self._accuracy(trial, done, VALIDATION)
            points.append(Checkpoint(done, done * pace, None, seen, test))
            if over or not goes_on(points, min(asked * pace, limit_s)):
                break
        return points

    def _accuracy(self, trial: Trial, iterations: int, images: int) -> float:
        """Return the accuracy seen on a split of so many images: the truth plus seeded noise."""
        truth = self.recorded.accuracy(trial.params, iterations)
        spread = SEED_NOISE * math.sqrt(max(truth * (1 - truth), 1e-6) / images)
        learnt = [trial.params["batch_size"], trial.params["learning_rate"]]
        configuration = zlib.crc32(repr(learnt).encode())
        path = [self.seed, trial.seed, configuration, iterations, images]
        added = spread * np.random.default_rng(path).standard_normal()
        if images == VALIDATION:
            share = math.sqrt(SPLIT_NOISE * (1 / VALIDATION + 1 / TEST) * (1 - truth))
            added += share * np.random.default_rng([self.seed, configuration]).standard_normal()
        return float(min(1.0, max(0.0, truth + added)))


GoesOn = Callable[[Sequence[Checkpoint], float], bool]


def _watched(trial: Trial, points: Sequence[Checkpoint], end_s: float) -> bool:
    if trial.curve:
        return can_extend(points, trial.rivals, end_s)
    return far_behind(points, trial.rivals) is None


def _result(
    trial: Trial,
    done: int,
    time_s: float,
    measured: Mapping[str, float] = MappingProxyType({}),
    **seen: Any,
) -> TrialResult:
    """Return a worker's answer after so many iterations in so many seconds."""
    whole = done >= trained_iterations(trial)
    if trial.share < 1:  # projected to all of the iterations
        time_s *= int(trial.params["iterations"] or 1) / done
    needed = [each.name for each in dataclasses.fields(Measurement) if each.default is MISSING]
    # all that has no default is a number
    figures: Any = {**dict.fromkeys(needed, 0), "train_time_s": time_s, **measured}
    return TrialResult(
        trial=trial,
        status=TrialStatus.COMPLETE if whole else TrialStatus.STOPPED,
        reason="" if whole else f"stopped after {done} iterations",
        iterations=done,
        measurement=Measurement(**figures),
        **seen,
    )

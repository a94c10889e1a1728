"""A machine that replays recorded trainings: searches run on it without any training.

A search meets on this machine what it meets on a real one: workers that take seconds to start,
times and accuracies with noise, trials that are stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import MISSING
from types import MappingProxyType
from typing import Any

import numpy as np
from recorded import Recorded

from tuner.trials.protocol import marks_of, tests_every_mark, trained_iterations
from tuner.trials.stopping import can_extend, far_behind
from tuner.values.params import Params, iterations_of
from tuner.values.trial import Checkpoint, Measurement, Trial, TrialKind, TrialResult, TrialStatus

TIME_NOISE = 0.03
LANE_SLOWDOWN = 1.25  # of trials that run side by side, as it was seen on two cores
SEED_NOISE = 0.5  # between seeds, by that of sampling the images: 0.3 to 0.8 in most references
SPLIT_NOISE = 0.15  # of a configuration's errors differ between the splits, by ``references/``
VALIDATION, TEST = 5000, 10_000  # images


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
        every = tests_every_mark(trial)
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
        time_s *= iterations_of(trial.params) / done
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

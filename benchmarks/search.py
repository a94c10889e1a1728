"""How much machine time a search needs for the front: all strategies, side by side, in replay.

Each strategy searches the recorded tables of ``benchmarks/tables`` (``benchmarks/record.py`` made
them by real training): same space, same times, same noise, no training. What counts is the
machine time, workers' starts and the race included, until the true hypervolume of what was found
is 90, 95 and 99 % of that of the reference front, over many seeds.

Hypervolume is taken over accuracy and the logarithm of training time, above an accuracy of
``FLOOR`` and below the time of the longest recorded curve. Measured values carry noise (of the
validation sample, and ``TIME_NOISE`` of time), judged is the truth behind them. The framework's
default is known to all at no cost.

    python benchmarks/search.py [table ...] [--seeds 20] [--budget 1800] [--json]

``speedup_95`` is the machine time of the best other strategy by that of factored, to 95 %.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import dataclasses
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import numpy as np

from tuner.composition import compose
from tuner.config import SamplerConfig
from tuner.continuation import can_extend, far_behind
from tuner.measure import cpu_flags
from tuner.pareto import OBJECTIVES, hypervolume
from tuner.protocol import checkpoint_grid
from tuner.race import Race
from tuner.registry import find_setting_file
from tuner.results import front_of
from tuner.runtime_map import Probe, RuntimeMap
from tuner.search import FactoredSearch, JointSearch
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
GOALS = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"]]
FLOOR = 0.5
TIME_NOISE = 0.03
VALIDATION = 5000
SHARES = (0.90, 0.95, 0.99)
OTHERS = ("tpe", "nsga2", "random")


class Recorded:
    """A framework as it was recorded: answers instead of training."""

    def __init__(self, path: Path) -> None:
        table = json.loads(path.read_text(encoding="utf-8"))
        self.name = f"{table['framework']}-{table['dataset']}"
        self.default = dict(table["default"])
        self.paces = RuntimeMap(
            Probe(each["setting"], int(batch), seconds)
            for each in table["paces"]
            for batch, seconds in each["iteration_s"].items()
        )
        self.start_s = {json.dumps(each["setting"]): each["start_s"] for each in table["paces"]}
        self._grid = {
            (each["batch_size"], each["learning_rate"]): each["checkpoints"]
            for each in table["curves"]
        }
        self.batches = sorted({batch for batch, _ in self._grid})
        self.rates = sorted({rate for _, rate in self._grid})
        self.longest_s = float(table["seconds"])
        self.most_iterations = max(
            int(point[0]) for curve in self._grid.values() for point in curve
        )
        self.space = self._space(table)

    def _space(self, table: dict[str, Any]) -> SearchSpace:
        space = SearchSpace.load(
            find_setting_file("search_spaces", table["framework"]),
            cores=int(str(table["machine"].get("cores", "2")).split()[0]),
            cpu_flags=cpu_flags(), dataset=table["dataset"], model="lenet",
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

    def setting(self, params: Params) -> dict[str, Any]:
        """The runtime part of some params."""
        return {name: params[name] for name in self.space.runtime}

    def pace(self, params: Params) -> float:
        """Seconds an iteration truly takes."""
        batch = int(params["batch_size"] or 1)
        return self.paces.iteration_s(self.setting(params), batch).value

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
        errors = [max(1 - point[2], 1e-4) for point in curve]
        at = math.log(max(iterations, 1e-9))
        if at < logs[0]:  # from blind guessing at the first iteration
            part = max(at, 0.0) / max(logs[0], 1e-9)
            return math.exp(math.log(0.9) * (1 - part) + math.log(errors[0]) * part)
        return float(np.exp(np.interp(at, logs, np.log(errors))))

    def volume(self, points: Sequence[Params]) -> float:
        """True hypervolume of some params."""
        rows = []
        for params in points:
            iterations = int(params["iterations"] or 1)
            time_s = iterations * self.pace(params)
            rows.append((self.accuracy(params, iterations), math.log(time_s)))
        return hypervolume(rows, (FLOOR, math.log(self.longest_s)), GOALS)

    def reference(self) -> float:
        """Hypervolume of the front of everything that was recorded, at the fastest settings."""
        points = []
        for (batch, rate), curve in self._grid.items():
            setting = self.paces.fastest(batch)
            points += [
                {
                    **self.default, **setting, "batch_size": batch, "learning_rate": rate,
                    "iterations": int(iterations),
                }
                for iterations, _, _ in curve
            ]  # fmt: skip
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
        self._noise = np.random.default_rng(seed)

    @contextlib.contextmanager
    def session(self, params: Params) -> Iterator[Replay]:
        """A warm worker, as the race opens them."""
        self.now += self.recorded.started_s(params)
        yield self

    def run(self, trial: Trial) -> TrialResult:
        """Train as the tuner's worker and watch would: probes, stops and checkpoints alike."""
        params = trial.params
        asked = int(params["iterations"] or 1)
        pace = self.recorded.pace(params) * math.exp(self._noise.normal(0, TIME_NOISE))
        limit_s = trial.train_time_limit_s or math.inf
        if trial.kind is TrialKind.PROBE:
            done = max(1, min(asked, math.ceil(limit_s / pace)))
            self.now += done * pace
            return _result(trial, done, done * pace, ())
        self.now += self.recorded.started_s(params)
        points: list[Checkpoint] = []
        for mark in checkpoint_grid(asked, trial.curve):
            over = mark * pace > limit_s
            done = max(1, int(limit_s / pace)) if over else mark
            truth = self.recorded.accuracy(params, done)
            spread = math.sqrt(max(truth * (1 - truth), 1e-6) / VALIDATION)
            seen = min(1.0, max(0.0, truth + self._noise.normal(0, spread)))
            points.append(Checkpoint(done, done * pace, None, seen))
            if over or not self._goes_on(trial, points, min(asked * pace, limit_s)):
                break
        self.now += points[-1].train_time_s
        return _result(trial, points[-1].iteration, points[-1].train_time_s, tuple(points))

    @staticmethod
    def _goes_on(trial: Trial, points: Sequence[Checkpoint], end_s: float) -> bool:
        if far_behind(points, trial.rivals):
            return False
        return not trial.curve or can_extend(points, trial.rivals, end_s)


def _result(trial: Trial, done: int, time_s: float, points: tuple[Checkpoint, ...]) -> TrialResult:
    whole = done == int(trial.params["iterations"] or 1)
    needed = [each for each in dataclasses.fields(Measurement) if each.default is MISSING]
    # all that has no default is a number
    measurement = Measurement(**{each.name: 0 for each in needed})  # type: ignore[arg-type]
    return TrialResult(
        trial=trial,
        status=TrialStatus.COMPLETE if whole else TrialStatus.STOPPED,
        iterations=done,
        val_accuracy=points[-1].val_accuracy if points else None,
        checkpoints=points,
        measurement=dataclasses.replace(measurement, train_time_s=time_s),
    )


def search(
    recorded: Recorded, strategy: str, seed: int, budget_s: float, limit_s: float
) -> list[tuple[float, float]]:
    """Run one strategy. Returns machine time and true hypervolume after each of its trials."""
    machine = Replay(recorded, seed)
    runtimes = RuntimeMap()
    iterations = min(int(recorded.default["iterations"] or 1), recorded.most_iterations)
    default = {**recorded.default, "iterations": iterations}
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "storage": f"sqlite:///{folder}/search.db?timeout=60", "name": "replay",
            "default": default, "seed": seed,
            "sampler": SamplerConfig("random" if strategy == "factored" else strategy),
        }  # fmt: skip
        factored = strategy == "factored"
        chosen: JointSearch = (
            FactoredSearch(recorded.space, GOALS, [], runtimes=runtimes, **given)
            if factored
            else JointSearch(recorded.space, GOALS, [], **given)
        )
        results: list[TrialResult] = []
        anytime: list[tuple[float, float]] = []
        while machine.now < budget_s:
            number, params = chosen.ask(limit_s)
            points = [*results, *compose(results, recorded.space, runtimes)]
            rivals = tuple(
                (point.train_time_s, point.val_accuracy)
                for each in front_of(points, GOALS)
                for point in each.checkpoints
            )
            limit = None if number == 0 else limit_s
            trial = Trial(number, params, train_time_limit_s=limit, rivals=rivals, curve=factored)
            result = machine.run(trial)
            if number == 0:
                machine.now = 0.0
            chosen.tell(result)
            results.append(result)
            if number == 0 and factored:
                Race(
                    recorded.space, default, machine.session, budget_s=0.15 * budget_s,
                    clock=lambda: machine.now, known=runtimes,
                ).run()  # fmt: skip
            found = [*results, *compose(results, recorded.space, runtimes)]
            front = [each.params for each in front_of(found, GOALS)]
            anytime.append((machine.now, recorded.volume(front)))
    return anytime


def time_to(anytime: Sequence[tuple[float, float]], volume: float) -> float:
    """Machine time at which a volume was first reached, seconds; infinite if it never was."""
    return next((now for now, reached in anytime if reached >= volume), math.inf)


def compare(
    path: Path, seeds: int, budget_s: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """All strategies on one table."""
    recorded = Recorded(path)
    reference = recorded.reference()
    found: dict[str, Any] = {"name": recorded.name, "strategies": {}}
    for strategy in ("factored", *OTHERS):
        runs = [
            search(recorded, strategy, seed, budget_s, recorded.longest_s) for seed in range(seeds)
        ]
        figures: dict[str, Any] = {}
        for share in SHARES:
            times = [time_to(run, share * reference) for run in runs]
            quartiles = _quartiles(times)
            figures[f"{100 * share:.0f}"] = quartiles
        figures["final_share"] = statistics.median(run[-1][1] / reference for run in runs)
        found["strategies"][strategy] = figures
        tell(f"{recorded.name:24} {strategy:9} {_words(figures)}")
    for share in SHARES:
        key = f"{100 * share:.0f}"
        best = min(found["strategies"][each][key][1] for each in OTHERS)
        found[f"speedup_{key}"] = best / found["strategies"]["factored"][key][1]
    return found


def _quartiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.25, 0.5, 0.75)]


def _words(figures: dict[str, Any]) -> str:
    words = []
    for share in SHARES:
        low, median, high = figures[f"{100 * share:.0f}"]
        words.append(f"to {share:.0%}: {median:5.0f} s ({low:.0f}-{high:.0f})")
    return "  ".join([*words, f"at the end {figures['final_share']:.1%}"])


def main() -> None:
    """Compare; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, default=sorted(TABLES.glob("*.json")))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=1800.0, help="machine time a search, s")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.tables:
        parser.error(f"no table in {TABLES}; python benchmarks/record.py caffe records one")
    frameworks = [
        compare(path, given.seeds, given.budget, lambda line: print(line, file=sys.stderr))
        for path in given.tables
    ]
    if given.json:
        print(json.dumps({"frameworks": frameworks}))
        return
    for each in frameworks:
        print(
            f"{each['name']}: to 95 % in 1/{each['speedup_95']:.1f} of the time of the best other"
        )


if __name__ == "__main__":
    main()

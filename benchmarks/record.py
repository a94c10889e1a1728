"""Record how a framework really trains: a table from which searches are replayed without training.

Two parts. *Paces*: seconds an iteration for every runtime setting at three batch sizes, measured
in warm workers, and the seconds a cold worker takes to start. *Curves*: validation accuracy at
the checkpoints of one real run for each point of a grid of batch sizes and learning rates, trained
at the fastest setting for a stated time. What is recorded is what was measured: nothing is
smoothed, and a run that diverged is one.

    python benchmarks/record.py caffe [--dataset mnist] [--seconds 15] [--grid 6]

writes ``benchmarks/tables/<framework>-<dataset>.json``; an interrupted recording goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tuner.config import MeasureConfig
from tuner.datasets import load_dataset
from tuner.measure import cpu_flags, fingerprint, machine_facts, parse_cores, total_memory_bytes
from tuner.registry import (
    find_setting_file,
    load_dataset_config,
    load_framework,
    tuner_home,
    worker_script,
)
from tuner.runner import TrialSetup, WorkerSession, run_trial
from tuner.runtime_map import Probe, RuntimeMap
from tuner.runtimes import ensure_installed, find_runtime
from tuner.space import Choices, Range, SearchSpace
from tuner.study_folder import write_atomically
from tuner.trial import ParamValue, Trial, TrialKind, TrialResult

TABLES = Path(__file__).parent / "tables"
PROBE_S = 0.4
KILL_S = 600.0


def every_setting(space: SearchSpace) -> Iterator[dict[str, ParamValue]]:
    """All runtime settings of a space."""

    def extend(chosen: dict[str, ParamValue], rest: list[tuple[str, Choices]]) -> Iterator[Any]:
        if not rest:
            yield chosen
            return
        (name, param), *others = rest
        for value in param.values(chosen):
            yield from extend({**chosen, name: value}, others)

    yield from extend({}, list(space.runtime.items()))


class Recorder:
    """Measures, and keeps what was measured after every step.

    Args:
        framework: Its name.
        dataset: Name of the data set.
        seconds: Longest training of a curve.
        grid: Points of each axis of the curves.
        folder: For trials.
    """

    def __init__(
        self, framework: str, dataset: str, seconds: float, grid: int, folder: Path
    ) -> None:
        self.path = TABLES / f"{framework}-{dataset}.json"
        config = load_framework(framework)
        runtime = find_runtime(config)
        ensure_installed(runtime)
        cores = parse_cores("")
        self.space = SearchSpace.load(
            find_setting_file("search_spaces", framework),
            cores=len(cores), cpu_flags=cpu_flags(), dataset=dataset, model="lenet",
        )  # fmt: skip
        self.default = dict(self.space.default(dataset, "lenet").params)
        self.setup = TrialSetup(
            framework=config,
            runtime=runtime,
            dataset=load_dataset(load_dataset_config(dataset)),
            model="lenet",
            worker=worker_script(config, None),
            folder=folder,
            marker=f"record-{framework}",
            cores=cores,
            memory_limit_bytes=int(0.8 * total_memory_bytes()),
            measure=MeasureConfig(),
        )
        self.seconds, self.numbers = seconds, itertools.count(1)
        facts = machine_facts(cores)
        self.table: dict[str, Any] = {
            "framework": framework, "dataset": dataset, "model": "lenet", "default": self.default,
            "machine": facts, "fingerprint": fingerprint(facts, runtime.packages()),
            "seconds": seconds, "paces": [], "faults": [], "curves": [],
        }  # fmt: skip
        if self.path.exists():
            self.table = json.loads(self.path.read_text(encoding="utf-8"))
        self.batches = [int(each) for each in self._axis("batch_size", 3)]
        self.places = list(
            itertools.product(
                map(round, self._axis("batch_size", grid)), self._axis("learning_rate", grid)
            )
        )

    def _axis(self, name: str, points: int) -> list[float]:
        param = self.space.params[name]
        assert isinstance(param, Range)
        return [float(f"{each:.4g}") for each in np.geomspace(param.low, param.high, points)]

    def save(self) -> None:
        """Keep what was measured so far."""
        TABLES.mkdir(exist_ok=True)
        write_atomically(self.path, json.dumps(self.table, indent=None))

    def record_paces(self) -> None:
        """Every setting, in a worker of its own."""
        known = [each["setting"] for each in (*self.table["paces"], *self.table["faults"])]
        settings = [each for each in every_setting(self.space) if each not in known]
        for index, setting in enumerate(settings):
            print(f"pace {index + 1} of {len(settings)}: {setting}", flush=True)
            self._record_setting(setting)
            self.save()

    def _record_setting(self, setting: dict[str, ParamValue]) -> None:
        params = {**self.default, **setting}
        iteration_s: dict[str, float] = {}
        with WorkerSession(self.setup, params) as session:
            first = self._probe(session, params, int(self.default["batch_size"] or 1), 3)
            if not first.usable or first.measurement is None:
                fault = f"{first.status.value}: {first.reason}"
                self.table["faults"].append({"setting": setting, "reason": fault})
                return
            for batch in self.batches:
                warm = self._probe(session, params, batch, 3)
                iterations = max(3, round(PROBE_S / _pace(warm)))
                iteration_s[str(batch)] = _pace(self._probe(session, params, batch, iterations))
        start_s = first.measurement.wall_time_s - first.measurement.train_time_s
        self.table["paces"].append(
            {"setting": setting, "start_s": start_s, "iteration_s": iteration_s}
        )

    def _probe(
        self, session: WorkerSession, params: dict[str, ParamValue], batch: int, iterations: int
    ) -> TrialResult:
        return session.run(
            Trial(
                number=next(self.numbers),
                params={**params, "batch_size": batch, "iterations": iterations},
                kind=TrialKind.PROBE,
                train_time_limit_s=4 * PROBE_S,
                time_limit_s=KILL_S,
            )
        )

    def record_curves(self) -> None:
        """One real run a point of the grid, at the fastest setting for its batch size."""
        runtimes = RuntimeMap(
            Probe(each["setting"], int(batch), seconds)
            for each in self.table["paces"]
            for batch, seconds in each["iteration_s"].items()
        )
        known = {(each["batch_size"], each["learning_rate"]) for each in self.table["curves"]}
        places = [each for each in self.places if each not in known]
        most = self.space.params["iterations"]
        assert isinstance(most, Range)
        for index, (batch, rate) in enumerate(places):
            setting = runtimes.fastest(batch)
            pace = runtimes.iteration_s(setting, batch).value
            params = {
                **self.default, **setting, "batch_size": batch, "learning_rate": rate,
                "iterations": int(min(most.high, max(10, self.seconds / pace))),
            }  # fmt: skip
            result = run_trial(
                self.setup,
                Trial(next(self.numbers), params, curve=True, time_limit_s=KILL_S),
            )
            last = result.val_accuracy
            print(f"curve {index + 1} of {len(places)}: {batch} {rate} {last}", flush=True)
            self.table["curves"].append(
                {
                    "batch_size": batch,
                    "learning_rate": rate,
                    "status": result.status.value,
                    "checkpoints": [
                        [each.iteration, round(each.train_time_s, 4), each.val_accuracy]
                        for each in result.checkpoints
                    ],
                }
            )
            self.save()


def _pace(result: TrialResult) -> float:
    if result.measurement is None or not result.usable:
        raise SystemExit(f"a probe failed: {result.status.value}: {result.reason}")
    return result.measurement.train_time_s / max(result.iterations, 1)


def main() -> None:
    """Record; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("framework")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--seconds", type=float, default=15.0, help="longest training of a curve")
    parser.add_argument("--grid", type=int, default=6, help="points of each axis of the curves")
    given = parser.parse_args()
    home = tuner_home()
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=home, prefix="record-"))
        recorder = Recorder(
            given.framework, given.dataset, given.seconds, given.grid, Path(folder)
        )
        recorder.record_paces()
        recorder.record_curves()


if __name__ == "__main__":
    main()

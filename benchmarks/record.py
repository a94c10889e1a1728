"""Record how a framework really trains: a table from which searches are replayed without training.

Two parts. *Paces*: seconds an iteration for every runtime setting at three batch sizes, measured
in warm workers, and the seconds a cold worker takes beside its training; nothing else may run
meanwhile. *Curves*, of each data set: validation accuracy at the checkpoints of one real run for
each point of a grid of batch sizes and learning rates, as long as the default trains in images.
They run side by side, one a core, as only their accuracy counts. What is recorded is what was
measured: nothing is smoothed, and a run that diverged is one.

    python benchmarks/record.py caffe --paces
    python benchmarks/record.py caffe --curves mnist fashion_mnist [--images 1.0] [--grid 5]

writes ``benchmarks/tables/<framework>.json``; an interrupted recording goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
from workbench import MODEL, Workbench, workbench

from tuner.executors import LocalExecutor
from tuner.measure import fingerprint, machine_facts
from tuner.search.derived import Composition
from tuner.storage.study_folder import write_atomically
from tuner.trials.session import WorkerSession
from tuner.values.params import ParamValue, batch_size_of, iterations_of
from tuner.values.ranges import Choices, Range
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialKind, TrialResult

TABLES = Path(__file__).parent / "tables"
PROBE_S = 0.4
KILL_S = 3600.0
FIRST_LOOK = 40  # iterations; a quarter of it is looked at first


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
        bench: The same, made ready.
    """

    def __init__(self, framework: str, dataset: str, bench: Workbench) -> None:
        self.dataset, self.space, self.setup = dataset, bench.space, bench.setup
        self.default = dict(bench.default)
        self.path = TABLES / f"{framework}.json"
        self.numbers = itertools.count(1)
        facts = machine_facts(bench.setup.cores)
        self.table: dict[str, Any] = {
            "framework": framework, "model": MODEL, "default": self.default, "machine": facts,
            "fingerprint": fingerprint(facts, bench.setup.runtime.packages()),
            "paces": [], "faults": [], "curves": {},
        }  # fmt: skip
        if self.path.exists():
            self.table = json.loads(self.path.read_text(encoding="utf-8"))

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
        with WorkerSession(self.setup, self.default) as session:
            # the first start reads everything from the disk, which no later one does
            self._probe(session, self.default, batch_size_of(self.default), 3)
        for index, setting in enumerate(settings):
            print(f"pace {index + 1} of {len(settings)}: {setting}", flush=True)
            self._record_setting(setting)
            self.save()

    def _record_setting(self, setting: dict[str, ParamValue]) -> None:
        params = {**self.default, **setting}
        iteration_s: dict[str, float] = {}
        with WorkerSession(self.setup, params) as session:
            first = self._probe(session, params, batch_size_of(self.default), 3)
            if not first.usable or first.measurement is None:
                fault = f"{first.status.value}: {first.reason}"
                self.table["faults"].append({"setting": setting, "reason": fault})
                return
            for batch in map(int, self._axis("batch_size", 3)):
                warm = self._probe(session, params, batch, 3)
                iterations = max(3, round(PROBE_S / _pace(warm)))
                for _ in range(self.setup.measure.repeats + 1):
                    probe = self._probe(session, params, batch, iterations)
                    if probe.measurement and not probe.measurement.disturbed:
                        break
                iteration_s[str(batch)] = _pace(probe)
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

    def record_curves(self, images: float, grid: int) -> None:
        """One real run a point of the grid, at the fastest setting of one thread.

        Args:
            images: That each trains, by those of the default.
            grid: Points of each axis.
        """
        runtimes = RuntimeMap(
            PaceProbe(each["setting"], int(batch), iteration_s)
            for each in self.table["paces"]
            for batch, iteration_s in each["iteration_s"].items()
        )
        made = self.table["curves"].setdefault(self.dataset, {"seconds": 0.0, "runs": []})
        known = {(each["batch_size"], each["learning_rate"]) for each in made["runs"]}
        axes = map(round, self._axis("batch_size", grid)), self._axis("learning_rate", grid)
        places = [each for each in itertools.product(*axes) if each not in known]
        alone = Composition(self.space, runtimes)
        most = images * iterations_of(self.default) * batch_size_of(self.default)
        executor = LocalExecutor(self.setup)
        running: dict[Future[TrialResult], tuple[int, float]] = {}
        while places or running:
            while places and len(running) < len(self.setup.cores):
                batch, rate = places.pop(0)
                params = {
                    **self.default,
                    **alone.on_one_core(batch),
                    "batch_size": batch,
                    "learning_rate": rate,
                    "iterations": max(10, round(most / batch)),
                }
                trial = Trial(
                    next(self.numbers), params, curve=FIRST_LOOK, time_limit_s=KILL_S,
                    accuracy_only=True,
                )  # fmt: skip
                running[executor.submit(trial)] = batch, rate
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                batch, rate = running.pop(done)
                result = done.result()
                longest_s = result.iterations * runtimes.pace_s(runtimes.fastest(batch), batch)
                made["seconds"] = max(made["seconds"], longest_s)
                made["runs"].append(_curve(result, batch, rate))
                print(f"{batch} {rate}: {result.val_accuracy}, {len(places)} to go", flush=True)
                self.save()
        executor.close()


def _curve(result: TrialResult, batch: int, rate: float) -> dict[str, Any]:
    return {
        "batch_size": batch,
        "learning_rate": rate,
        "status": result.status.value,
        "beside_s": _beside_s(result),
        "checkpoints": [[each.iteration, each.val_accuracy] for each in result.checkpoints],
    }


def _beside_s(result: TrialResult) -> float | None:
    """Seconds of wall time that a run took beside training: set-up and evaluation."""
    measured = result.measurement
    return round(measured.wall_time_s - measured.train_time_s, 2) if measured else None


def _pace(result: TrialResult) -> float:
    if result.measurement is None or not result.usable:
        raise SystemExit(f"a probe failed: {result.status.value}: {result.reason}")
    return result.measurement.train_time_s / max(result.iterations, 1)


def main() -> None:
    """Record; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("framework")
    parser.add_argument("--paces", action="store_true", help="of every runtime setting")
    parser.add_argument("--curves", nargs="+", default=[], metavar="DATASET")
    parser.add_argument("--images", type=float, default=1.0, help="by those of the default")
    parser.add_argument("--grid", type=int, default=5, help="points of each axis of the curves")
    given = parser.parse_args()
    if given.paces:
        with workbench(given.framework, "mnist") as bench:
            Recorder(given.framework, "mnist", bench).record_paces()
    for dataset in given.curves:
        with workbench(given.framework, dataset) as bench:
            recorder = Recorder(given.framework, dataset, bench)
            if not recorder.table["paces"]:
                parser.error("no paces are recorded, which curves are trained at: --paces first")
            recorder.record_curves(given.images, given.grid)


if __name__ == "__main__":
    main()

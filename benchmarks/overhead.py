"""What the tuner itself costs: seconds a trial beside the training, monitor's and display's CPU.

Runs a study of 50 trials of the synthetic framework (about 10 ms of worker each), the monitor for
ten seconds over a process tree of its own, and the live display as long with full tables. Targets:
0.25 s a trial, 1 % of a core each.

    python benchmarks/overhead.py [--trials 50] [--search joint|factored] [--json]

``last_ten_to_tenth`` (with ``--trials 1000``; medians over ten trials) says whether the cost
of a trial stays flat; target: 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tuner.config.catalogue import load_dataset_config, load_framework
from tuner.config.schema import BudgetConfig, MeasureConfig, SearchConfig, TuneConfig, VerifyConfig
from tuner.measure import ResourceMonitor, parse_cores
from tuner.progress import StudyProgress, make_progress
from tuner.study.study import tune
from tuner.values.trial import Trial, TrialResult, TrialStatus

SYNTHETIC = Path(__file__).parent.parent / "tests" / "synthetic"
MONITORED_S = 10.0
_TOLD_S = 0.1  # between two events of a worker that the display is told of
_ENOUGH = 20  # trials, to compare the last ten with those about the tenth


class _Stopwatch(StudyProgress):
    """Notes when each trial was over, everything told and logged."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def trial_started(self, trial: object) -> None:  # noqa: ARG002 - only the moment counts
        """Note when a trial begins: the one before it is told and logged."""
        self.starts.append(time.perf_counter())


def trial_costs(trials: int, search: str) -> list[float]:
    """Wall seconds from each trial's start to the next one's, worker included."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUNER_HOME"] = f"{folder}/home"
        watch = _Stopwatch()
        tune(
            TuneConfig(
                framework=load_framework("synthetic", str(SYNTHETIC)),
                framework_path=str(SYNTHETIC),
                dataset=load_dataset_config("digits"),
                # the clock of its workers only reckons, so that probes must be short
                search=SearchConfig(search, probe_s=0.0005),
                budget=BudgetConfig(time_s=3600, trials=trials, trial_share=0.001),
                verify=VerifyConfig(finalists=0),
                measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
                tracking_uri=f"sqlite:///{folder}/mlflow.db",
                output=folder,
            ),
            watch,
        )
    return [late - early for early, late in zip(watch.starts, watch.starts[1:], strict=False)]


def monitor_cost_pct() -> float:
    """CPU of the monitor's thread, % of a core, over a worker of 400 MB and two threads."""
    busy = (
        "import threading, time; hog = bytearray(b'x' * (400 << 20)); "
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); time.sleep(60)"
    )
    worker = subprocess.Popen([sys.executable, "-c", busy])
    try:
        time.sleep(1.0)
        monitor = ResourceMonitor(worker.pid, parse_cores(""), MeasureConfig().sample_interval_s)
        begin = time.process_time()
        monitor.start()
        monitor.begin_training()
        time.sleep(MONITORED_S)
        monitor.end_training()
        monitor.finish()
        return 100 * (time.process_time() - begin) / MONITORED_S
    finally:
        worker.kill()
        worker.wait()


def display_cost_pct() -> float:
    """CPU of the live display, % of a core, with full tables and a trial that reports often."""
    trials = [
        TrialResult(
            Trial(number, {"batch_size": 64, "learning_rate": 0.01, "iterations": 1000}),
            TrialStatus.COMPLETE,
            val_accuracy=0.9 + number / 1000,
        )
        for number in range(16)
    ]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=120)
        with make_progress("live", console=console) as progress:
            for each in trials:
                progress.trial_finished(each, trials)
            begin, until = time.process_time(), time.monotonic() + MONITORED_S
            while time.monotonic() < until:
                progress.trial_progress(trials[0].trial, 10, 0.1)
                time.sleep(_TOLD_S)
            return 100 * (time.process_time() - begin) / MONITORED_S


def main() -> None:
    """Measure and print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--search", default="joint", choices=["joint", "factored"])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    costs = trial_costs(arguments.trials, arguments.search)
    tenth = max(1, len(costs) // 10)
    figures = {
        "trials": arguments.trials,
        "search": arguments.search,
        "seconds_a_trial_mean": round(statistics.fmean(costs), 4),
        "seconds_a_trial_median": round(statistics.median(costs), 4),
        "seconds_a_trial_max": round(max(costs), 4),
        "last_tenth_to_first_tenth": round(
            statistics.median(costs[-tenth:]) / statistics.median(costs[1 : tenth + 1]), 3
        ),
        "monitor_pct_of_a_core": round(monitor_cost_pct(), 3),
        "display_pct_of_a_core": round(display_cost_pct(), 3),
    }
    if len(costs) > _ENOUGH:
        tens = statistics.median(costs[-10:]) / statistics.median(costs[5:15])
        figures["last_ten_to_tenth"] = round(tens, 3)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()

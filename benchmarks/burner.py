"""Whether a busy neighbour misleads a study: the same study quietly, and beside a CPU burner.

The burner takes one core from the study's beginning to its end. Afterwards nothing runs but the
two settings that the two races crowned, in turns at the default's batch size: beside each other
they tell how much slower the burner's winner really is. ``times_the_budget`` says how much longer
than asked a study takes; target beside a burner: 1.5.

    python benchmarks/burner.py caffe-mnist [--budget 300] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from workbench import Workbench, fresh_study, workbench

from tuner.trials.session import WorkerSession
from tuner.values.params import Params, ParamValue, batch_size_of
from tuner.values.results import StudyResult
from tuner.values.trial import Trial, TrialKind

ROUNDS = 9
PROBE_S = 0.5
KILL_S = 120.0


@contextlib.contextmanager
def burner() -> Iterator[None]:
    """Burn one core meanwhile."""
    core = max(os.sched_getaffinity(0))
    burn = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-S", "-c", burn]) as process:
        try:
            yield
        finally:
            process.kill()


def winner(found: StudyResult, default: Params) -> dict[str, ParamValue]:
    """Return the setting that a study's race crowned at the default's batch size."""
    assert found.runtimes is not None
    return found.runtimes.fastest(batch_size_of(default))


def slower(bench: Workbench, quiet: Params, burnt: Params) -> float:
    """Return an iteration's time with ``burnt`` over ``quiet``: median of turns side by side."""
    ratios = []
    with contextlib.ExitStack() as stack:
        workers = [
            (params, stack.enter_context(WorkerSession(bench.setup, params)))
            for params in ({**bench.default, **quiet}, {**bench.default, **burnt})
        ]
        for turn in range(ROUNDS):
            paces = [
                _pace(worker, {**params, "iterations": 10**6}, 2 * turn + place + 1)
                for place, (params, worker) in enumerate(workers)
            ]
            if turn:  # the first warms them up
                ratios.append(paces[1] / paces[0])
    return statistics.median(ratios)


def _pace(worker: WorkerSession, params: Params, number: int) -> float:
    trial = Trial(number, params, TrialKind.PROBE, train_time_limit_s=PROBE_S, time_limit_s=KILL_S)
    result = worker.run(trial)
    assert result.measurement is not None
    return result.measurement.train_time_s / result.iterations


def _figures(found: StudyResult, default: Params, budget_s: float) -> dict[str, Any]:
    assert found.runtimes is not None
    return {
        "winner": " ".join(map(str, winner(found, default).values())),
        "settings": len(found.runtimes.settings),
        "disturbed_probes": found.runtimes.disturbed,
        "discarded_measurements": found.discarded,
        "trials": len(found.trials),
        "times_the_budget": round(found.elapsed_s / budget_s, 2),
        "verified": [
            f"{each.verdict}: {each.against_default.speedup.value:.1f} times as fast, "
            f"{100 * each.against_default.accuracy_gain.value:+.2f} points"
            for each in found.verified
            if each.against_default
        ],
    }


def main() -> None:
    """Compare; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", metavar="framework-dataset")
    parser.add_argument("--budget", type=float, default=300.0, help="of each study, s")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    quiet = fresh_study(given.name, given.budget)
    with burner():
        burnt = fresh_study(given.name, given.budget)
    framework, _, dataset = given.name.partition("-")
    with workbench(framework, dataset) as bench:
        default = bench.default
        settings = [winner(each, default) for each in (quiet, burnt)]
        factor = 1.0 if settings[0] == settings[1] else slower(bench, *settings)
    figures = {
        "quiet": _figures(quiet, default, given.budget),
        "burnt": _figures(burnt, default, given.budget),
        "winner_slower_by": round(factor, 3),
    }
    if given.json:
        print(json.dumps(figures))
        return
    for name, each in figures.items():
        print(f"{name}: {each}")


if __name__ == "__main__":
    main()

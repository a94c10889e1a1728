"""How busy a study keeps a cluster: simulated nodes on this machine, and trials that only sleep.

Every node is a raylet of its own with one CPU, as in Ray's own tests. Efficiency is the time that
trials slept, by the time from the first trial after the default to the last, on all nodes. What is
lost is what the driver takes to ask, tell and log, what Ray and the worker's start take, and the
end, when nodes have nothing left to do. Target: 90 % on 16 nodes.

    python benchmarks/scaling.py [--nodes 16] [--rounds 8] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import ray
from ray.cluster_utils import Cluster
from workbench import empty_home

from tuner.config.catalogue import load_dataset_config, load_framework
from tuner.config.schema import (
    BudgetConfig,
    ExecutorConfig,
    MeasureConfig,
    SearchConfig,
    TuneConfig,
    VerifyConfig,
)
from tuner.progress import StudyProgress
from tuner.study.study import tune
from tuner.values.trial import Trial, TrialResult

SYNTHETIC = Path(__file__).parent.parent / "tests" / "synthetic"
SLEEP_S = 10.0  # of the synthetic framework's param fault=rest
_HOUR_S = 3600.0


class _Span(StudyProgress):
    """From the first trial after the default to the end of the last."""

    def __init__(self) -> None:
        self.start = self.end = 0.0

    def trial_started(self, trial: Trial) -> None:
        if trial.number and not self.start:
            self.start = time.monotonic()

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:  # noqa: ARG002 - only the moment counts
        self.end = time.monotonic()
        if result.trial.number and not result.usable:
            raise SystemExit(f"{result.trial.name}: {result.status.value} {result.reason}")


def efficiency(nodes: int, rounds: int) -> float:
    """Fraction of the nodes' time that trials slept in, for so many trials a node."""
    trials = nodes * rounds
    framework = dataclasses.replace(
        load_framework("synthetic", str(SYNTHETIC)), stall_limit_s=6 * SLEEP_S
    )
    span = _Span()
    with (
        tempfile.TemporaryDirectory() as home,
        empty_home(Path(home)),
        mock.patch.dict(os.environ, {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}),
    ):
        cluster = Cluster()
        for number in range(nodes):  # each with a home of its own: they share cores, asleep
            cluster.add_node(num_cpus=1, env_vars={"TUNER_HOME": f"{home}/node-{number}"})
        try:
            tune(
                TuneConfig(
                    framework=framework,
                    framework_path=str(SYNTHETIC),
                    dataset=load_dataset_config("digits"),
                    search=SearchConfig("joint", warm_start=False),
                    search_space={"fault": {"type": "categorical", "choices": ["rest"]}},
                    budget=BudgetConfig(time_s=_HOUR_S, trials=trials + 1),
                    executor=ExecutorConfig("ray", cores_per_trial=1, address=cluster.address),
                    verify=VerifyConfig(finalists=0),
                    measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
                    output=str(home),
                ),
                span,
            )
        finally:
            ray.shutdown()
            cluster.shutdown()  # type: ignore[no-untyped-call]  # Ray declares no types
    return trials * SLEEP_S / (nodes * (span.end - span.start))


def main() -> int:
    """Print the efficiency."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8, help="trials a node")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    share = efficiency(given.nodes, given.rounds)
    if given.json:
        print(json.dumps({"nodes": given.nodes, "rounds": given.rounds, "efficiency": share}))
    else:
        print(f"{given.nodes} nodes, {given.rounds} trials each: {100 * share:.1f} % busy")
    return 0


if __name__ == "__main__":
    sys.exit(main())

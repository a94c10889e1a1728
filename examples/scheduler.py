"""A DLaaS scheduler as a client of the service: jobs in, configurations out, each then run.

Ten jobs with limits of their own ask for a configuration, train with it in the framework's own
runtime on this machine, one after the other, and compare the time with what was promised:

    python -m tuner serve &
    python examples/scheduler.py [http://127.0.0.1:8765] [dataset=mnist] [framework_path=folder]
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import requests

from tuner import train


@dataclass(frozen=True)
class Job:
    """What a user of the provider hands in: a name, and the limits that the job is under."""

    name: str
    limits: dict[str, Any]


JOBS = (
    Job("as fast as possible, nothing lost", {}),  # against the framework's own default
    Job("nine of ten right", {"min_accuracy": 0.9, "max_accuracy_loss": "none"}),
    Job("nineteen of twenty", {"min_accuracy": 0.95, "max_accuracy_loss": "none"}),
    Job("as accurate as possible", {"objective": "accuracy"}),
    Job("accurate within a minute", {"objective": "accuracy", "max_train_time_s": 60}),
    Job("accurate within ten seconds", {"objective": "accuracy", "max_train_time_s": 10}),
    Job("on little memory", {"objective": "memory_mb"}),
    Job("little memory, a point may go", {"objective": "memory_mb", "max_accuracy_loss": 0.01}),
    Job("on a small host", {"max_memory_mb": 4000}),
    Job("on this many CPUs", {"cores": len(os.sched_getaffinity(0))}),
)

CLOCK_S = 1e-6  # clocks tell no less apart


def ask(service: str, question: dict[str, Any]) -> dict[str, Any]:
    """Ask which configuration a job should run with."""
    token = os.environ.get("TUNER_SERVICE_TOKEN")
    reply = requests.get(
        f"{service}/v1/recommendations",
        params=question,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=10,
    )
    answer: dict[str, Any] = reply.json()
    return answer


def main(words: list[str]) -> int:
    """Schedule all jobs. Returns how many were off by more than one in ten."""
    service = next((word for word in words if "=" not in word), "http://127.0.0.1:8765")
    given = dict(word.split("=", 1) for word in words if "=" in word)
    dataset = given.setdefault("dataset", "mnist")
    kept = 0
    for job in JOBS:
        answer = ask(service, {"dataset": dataset, **job.limits})
        if "params" not in answer:  # it says in words which limit binds
            print(f"{job.name}: {answer['detail']}")
            continue
        result = train(
            framework=answer["framework"], model=answer["model"], params=answer["params"], **given
        )
        promised = answer["promised"]["train_time_s"]
        time_s = result.metrics["train_time_s"]
        as_said = promised["low"] - CLOCK_S <= time_s <= promised["high"] + CLOCK_S
        kept += as_said
        print(
            f"{job.name}: {answer['framework']} took {time_s:.3g} s, "
            f"{'as promised' if as_said else 'NOT AS PROMISED'} "
            f"({promised['low']:.3g}-{promised['high']:.3g} s), "
            f"{result.metrics['test_accuracy']:.2%} ({answer['assurance']})"
        )
    print(f"{kept} of {len(JOBS)} jobs took the time that was promised")
    return int(kept < 0.9 * len(JOBS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A scheduler of deep learning as a service: a client that runs jobs as the service recommends.

Each of ten jobs asks for a configuration under its own limits, claims it, trains with it in the
framework's own runtime on this machine, and reports how it went. The service says whether the
promise was kept. The jobs run one after the other:

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


def call(method: str, url: str, **sent: Any) -> dict[str, Any]:
    """Send a request to the service; return its answer."""
    token = os.environ.get("TUNER_SERVICE_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer: dict[str, Any] = requests.request(
        method, url, headers=headers, timeout=10, **sent
    ).json()
    return answer


def main(words: list[str]) -> int:
    """Schedule all jobs. Returns how many were off by more than one in ten."""
    service = next((word for word in words if "=" not in word), "http://127.0.0.1:8765")
    given = dict(word.split("=", 1) for word in words if "=" in word)
    dataset = given.setdefault("dataset", "mnist")
    kept = 0
    for number, job in enumerate(JOBS):
        place = f"{service}/v1/recommendations"
        answer = call("GET", place, params={"dataset": dataset, **job.limits})
        if "params" not in answer:  # it says in words which limit binds
            print(f"{job.name}: {answer['detail']}")
            continue
        place, named = f"{place}/{answer['id']}", {"job": f"scheduler-{os.getpid()}-{number}"}
        call("POST", f"{place}/claims", json={**named, "applied": True})
        result = train(
            framework=answer["framework"], model=answer["model"], params=answer["params"], **given
        )
        seen = {name: result.metrics[name] for name in ("train_time_s", "test_accuracy")}
        said = call("POST", f"{place}/outcomes", json={**named, **seen})
        kept += bool(said.get("kept"))
        verdict = said.get("detail") or said["breach"] or "as promised"
        print(
            f"{job.name}: {answer['framework']} took {seen['train_time_s']:.3g} s and reached "
            f"{seen['test_accuracy']:.2%}, {verdict} "
            f"({answer['assurance']})"
        )
    print(f"{kept} of {len(JOBS)} jobs kept what was promised")
    return int(kept < 0.9 * len(JOBS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

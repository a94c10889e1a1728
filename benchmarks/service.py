"""How long a recommendation takes with much on record and many who ask.

Stores studies with 10,000 trials in an MLflow of its own (kept with ``--store``), starts the
service on it and asks from this process, on connections that stay open, at a constant rate: what
comes late is counted from when it was due, so that a service that stands still cannot hide it.
Targets: 99 % within 20 ms at 500 questions a second on two cores; the page within a second.

    python benchmarks/service.py [--rate 500] [--seconds 30] [--store FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np

from tuner.config.catalogue import load_dataset_config, load_framework
from tuner.config.schema import BudgetConfig, MeasureConfig, SearchConfig, TuneConfig
from tuner.progress import StudyProgress
from tuner.report import front_json
from tuner.study.study import tune
from tuner.tracking import Tracker, default_tracking_uri
from tuner.values.results import StudyResult
from tuner.values.trial import Interval

SYNTHETIC = Path(__file__).parent.parent / "tests" / "synthetic"
TRIALS_A_STUDY = 100
CONNECTIONS = 32
WARM_UP_S = 3.0
_STORED = "stored.json"


def store(folder: Path, trials: int) -> None:
    """Fill a folder's MLflow with copies of one real study, each at a speed of its own."""
    done = folder / _STORED
    if done.exists() and json.loads(done.read_text()) >= trials:
        return
    original = _original(folder)
    factors = random.Random(1)
    for index in range(trials // TRIALS_A_STUDY):
        study = _copy(original, index, factors.lognormvariate(0.0, 0.5))
        tracker = Tracker(
            default_tracking_uri(folder), folder, experiment="synthetic-digits",
            study_id=study.study_id, name=study.study_id, tags={"fingerprint": ""}, params={},
        )  # fmt: skip
        for number in range(TRIALS_A_STUDY):
            result = original.trials[number % len(original.trials)]
            trial = dataclasses.replace(result.trial, number=number)
            tracker.log_trial(dataclasses.replace(result, trial=trial), folder)
        front = folder / "front.json"
        front.write_text(json.dumps(front_json(study)))
        tracker.finish([front], {})
        print(f"{(index + 1) * TRIALS_A_STUDY} trials stored", file=sys.stderr, flush=True)
    done.write_text(json.dumps(trials))


def _original(folder: Path) -> StudyResult:
    return tune(
        TuneConfig(
            framework=load_framework("synthetic", str(SYNTHETIC)),
            framework_path=str(SYNTHETIC),
            dataset=load_dataset_config("digits"),
            search=SearchConfig("joint", warm_start=False),
            budget=BudgetConfig(time_s=60, trials=20),
            measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
            tracking_uri=f"sqlite:///{folder}/original.db",
            output=str(folder),
        ),
        StudyProgress(),
    )


def _copy(original: StudyResult, index: int, factor: float) -> StudyResult:
    def scaled(time: Interval) -> Interval:
        return Interval(factor * time.value, factor * time.low, factor * time.high)

    verified = tuple(
        dataclasses.replace(each, train_time_s=scaled(each.train_time_s))
        for each in original.verified
    )
    return dataclasses.replace(original, study_id=f"{index:010x}", verified=verified)


@contextlib.contextmanager
def service(folder: Path) -> Iterator[str]:
    """Serve a folder's MLflow; yield the address."""
    command = [
        sys.executable, "-m", "tuner", "serve", "port=0", f"output={folder}",
        f"framework_path={SYNTHETIC}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def ask(address: str, rate: float, seconds: float) -> tuple[list[float], Counter[int]]:
    """Ask at a constant rate; seconds from when each question was due to its whole answer."""
    place = urlsplit(address)
    questions = _questions(int(rate * seconds))
    due: asyncio.Queue[tuple[float, str]] = asyncio.Queue()
    latencies: list[float] = []
    statuses: Counter[int] = Counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        while True:
            moment, path = await due.get()
            if not path:
                break
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            latencies.append(time.perf_counter() - moment)
            statuses[int(head.split(b" ", 2)[1])] += 1
        writer.close()
        await writer.wait_closed()

    clients = [asyncio.create_task(client()) for _ in range(CONNECTIONS)]
    start = time.perf_counter()
    for index, path in enumerate(questions):
        moment = start + index / rate
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        due.put_nowait((moment, path))
    for _ in clients:
        due.put_nowait((0.0, ""))
    await asyncio.gather(*clients)
    return latencies, statuses


def _questions(count: int) -> list[str]:
    """Paths with limits of all kinds, some of which nothing keeps."""
    drawn = random.Random(2)
    asked = []
    for _ in range(count):
        limits: dict[str, str | float] = {"dataset": "digits"}
        if drawn.random() < 0.5:
            limits["framework"] = "synthetic"
        if drawn.random() < 0.5:
            limits["max_train_time_s"] = round(10 ** drawn.uniform(-5, 0), 6)
        if drawn.random() < 0.5:
            limits["min_accuracy"] = round(drawn.uniform(0.8, 1.0), 4)
        limits["objective"] = drawn.choice(["train_time_s", "accuracy", "memory_mb"])
        asked.append(f"/v1/recommendations?{urlencode(limits)}")
    return asked


async def _page_s(address: str) -> float:
    place = urlsplit(address)
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    await reader.read(-1)
    writer.close()
    return time.perf_counter() - began


def main() -> None:
    """Ask and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=500.0, help="questions a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--store", type=Path, help="folder that is kept, and used if it is there")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.store or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TUNER_HOME"] = str(folder / "home")
        store(folder, given.trials)
        with service(folder) as address:
            asyncio.run(ask(address, given.rate, WARM_UP_S))
            latencies, statuses = asyncio.run(ask(address, given.rate, given.seconds))
            page_s = asyncio.run(_page_s(address))
    median, late, latest = (1e3 * float(np.quantile(latencies, part)) for part in (0.5, 0.99, 1.0))
    figures = {
        "trials": given.trials,
        "questions": len(latencies),
        "rate": given.rate,
        "p50_ms": round(median, 2),
        "p99_ms": round(late, 2),
        "max_ms": round(latest, 2),
        "statuses": dict(statuses),
        "page_s": round(page_s, 3),
    }
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:10} {value}")


if __name__ == "__main__":
    main()

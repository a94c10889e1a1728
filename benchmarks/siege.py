"""Whether the service stays right and up while all around it fails, for half an hour.

Clients ask, order studies and stop them, at a bounded rate. Meanwhile MLflow is stopped and
started, the disk of the studies is filled and freed, and the service is killed and started, in
turn and at random. Everything is on loopback. The disk is a small file system in memory, mounted
where nobody else sees it. Exit code 1 unless

- each answer to a question about what is on record is the one that was given before the siege,
- no status is 500 or more but 503 with ``Retry-After``, and nothing refuses to be asked but a
  service that was killed,
- ``healthz`` is true: well while MLflow can be read, unwell once it could not be for long,
- every study that was accepted ends: complete and on record, or stopped as asked.

    python benchmarks/siege.py [--minutes 30] [--rate 20] [--seed 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from tests.conftest import free_port
from tests.served import keep
from tuner.measure import SCOPE

SYNTHETIC = Path(__file__).parent.parent / "tests" / "synthetic"
OWN_DISK = "TUNER_SIEGE_DISK"  # set once this runs where the disk is mounted
DISK_MB = 512
SETTLED_S = 30.0  # after a change of its surroundings, until the service must have noticed
STALE_S = 60.0  # from which on the service calls what it knows too old
LULL_S = (20.0, 40.0)  # between two blows
BLOW_S = {"mlflow": (30.0, 150.0), "disk": (20.0, 60.0), "service": (0.5, 5.0)}
ORDER_S = 20.0  # between two studies that are asked for
_MAX_SAID = 600
LIMITS: dict[str, tuple[object, ...]] = {
    "framework": ("caffe",),
    "objective": ("accuracy", "memory_mb"),
    "max_train_time_s": (0.001, 10, 40, 1000),
    "min_accuracy": (0.5, 0.97, 0.99, 1),
    "max_accuracy_loss": ("none", 0, 0.01),
    "cores": (1, 2, 64),
}
QUESTIONS: list[dict[str, object]] = [
    {"dataset": "kept"},
    *({"dataset": "kept", name: value} for name, values in LIMITS.items() for value in values),
]
FAULTY = [
    ("/v1/recommendations", {"dataset": "../../etc"}, 422),
    ("/v1/recommendations", {"max_train_time_s": "nan"}, 422),
    ("/v1/studies/job-000000000000", {}, 404),
    ("/v1/nothing", {}, 404),
]
PLACES = ["/", "/v1/pareto?dataset=kept", "/v1/studies", "/v1/frameworks", "/v1/metrics"]


class Surroundings:
    """MLflow, the disk and the service, each of which can be struck and mended.

    Args:
        folder: On a disk of its own; MLflow is beside it.
        beside: Where MLflow keeps its own.
    """

    def __init__(self, folder: Path, beside: Path) -> None:
        self._folder, self._beside = folder, beside
        self._mlflow_port, self._port = free_port("127.0.0.1"), free_port("127.0.0.1")
        self.uri = f"http://127.0.0.1:{self._mlflow_port}"
        self.address = f"http://127.0.0.1:{self._port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._since = dict.fromkeys(BLOW_S, time.monotonic())
        self.well = dict.fromkeys(BLOW_S, False)

    def for_s(self, name: str) -> float:
        """Seconds for which one has been as it is."""
        return time.monotonic() - self._since[name]

    def _note(self, name: str, *, well: bool) -> None:
        self.well[name], self._since[name] = well, time.monotonic()

    def _start(self, name: str, *words: str) -> None:
        with (self._beside / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self._folder,
                # no study of somebody else's holds it up: nothing of it counts what it measures
                env={
                    **os.environ,
                    "TUNER_HOME": str(self._folder / "home"),
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                    SCOPE: "siege",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _until_answered(self, address: str) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with suppress(requests.RequestException):
                requests.get(address, timeout=10)
                return
            time.sleep(0.2)
        raise SystemExit(f"{address} does not answer")

    def mend(self, name: str) -> None:
        """Have one well again."""
        if name == "disk":
            (self._folder / "filling").unlink(missing_ok=True)
        elif name == "mlflow":
            store = f"sqlite:///{self._beside}/mlflow.db"
            artifacts = f"{self._beside}/artifacts"
            where = ("--host", "127.0.0.1", "--port", str(self._mlflow_port), "--workers", "1")
            kept = ("--backend-store-uri", store, "--artifacts-destination", artifacts)
            self._start(name, "mlflow", "server", *where, *kept)
            self._until_answered(f"{self.uri}/health")
        else:
            own = (f"port={self._port}", f"output={self._folder}", f"tracking_uri={self.uri}")
            self._start(name, "tuner", "serve", *own, f"framework_path={SYNTHETIC}")
            self._until_answered(f"{self.address}/v1/livez")
        self._note(name, well=True)

    def strike(self, name: str) -> None:
        """Take one away."""
        self._note(name, well=False)
        if name == "disk":
            with suppress(OSError), (self._folder / "filling").open("wb", buffering=0) as target:
                while True:
                    target.write(bytes(2**16))
            return
        with suppress(ProcessLookupError):
            os.killpg(self._processes[name].pid, signal.SIGKILL)
        self._processes[name].wait()

    def end(self) -> int:
        """Stop the service in good order, then all else. Returns the service's exit code."""
        self._processes["service"].terminate()
        code = self._processes["service"].wait(90)
        self.strike("mlflow")
        return code


class Siege:
    """What clients ask and see.

    Args:
        around: What the service depends on.
        seed: Of all that is drawn.
    """

    def __init__(self, around: Surroundings, seed: int) -> None:
        self.around = around
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.found: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.jobs: dict[str, bool] = {}  # whether it was stopped
        self._expected = [self._answer(each) for each in QUESTIONS]
        statuses = Counter(status for status, _ in self._expected)
        if statuses.keys() != {200, 404}:
            raise SystemExit(f"the questions are of one kind: {statuses}")

    def _complain(self, what: str) -> None:
        what = f"{time.strftime('%T')} {what}"[:_MAX_SAID]
        with self._lock:
            self.wrong.append(what)
        print(what, file=sys.stderr, flush=True)

    def _ask(self, method: str, path: str, **more: Any) -> requests.Response | None:
        """Ask the service and note any fault; return ``None`` if no answer came."""
        killed = not self.around.well["service"] or self.around.for_s("service") < 1
        try:
            answer = requests.request(method, f"{self.around.address}{path}", timeout=30, **more)
        except requests.RequestException as error:
            if not killed and self.around.well["service"] and self.around.for_s("service") > 1:
                self._complain(f"{method} {path}: {error}")
            return None
        with self._lock:
            self.found["asked"] += 1
            self.found[str(answer.status_code)] += 1
        if answer.status_code >= 500 and (
            answer.status_code != 503 or "Retry-After" not in answer.headers
        ):
            self._complain(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer

    def _answer(self, question: dict[str, Any]) -> tuple[int, Any]:
        """Return the answer to a question, without what changes from moment to moment."""
        answer = self._ask("GET", "/v1/recommendations", params=question)
        if answer is None or answer.status_code == 503:
            return 503, None
        body = answer.json()
        body.get("evidence", {}).pop("age_s", None)
        return answer.status_code, body

    # -- who asks -------------------------------------------------------------------------------

    def ask_on(self, rate: float) -> None:
        """Ask questions of all kinds at this rate, 1/s."""
        while not self._over.wait(1 / rate):
            kind = self._random.random()
            if kind < 0.6:
                number = self._random.randrange(len(QUESTIONS))
                answer = self._answer(QUESTIONS[number])
                if answer not in (self._expected[number], (503, None)):
                    was = self._expected[number]
                    self._complain(f"{QUESTIONS[number]}: {short(answer)}, was {short(was)}")
            elif kind < 0.8:
                self._ask("GET", self._random.choice(PLACES))
            else:
                path, words, status = self._random.choice(FAULTY)
                answered = self._ask("GET", path, params=words)
                if answered is not None and answered.status_code not in (status, 503):
                    self._complain(f"{path} {words}: {answered.status_code}, not {status}")

    def watch_health(self) -> None:
        """Hold what the service says of itself against what is so."""
        while not self._over.wait(1.0):
            well, since_s = self.around.well["mlflow"], self.around.for_s("mlflow")
            settled = min(since_s, self.around.for_s("service")) > SETTLED_S
            answer = self._ask("GET", "/v1/healthz")
            alive = self._ask("GET", "/v1/livez")
            if alive is not None and alive.status_code != 200:
                self._complain(f"livez: {alive.status_code} {alive.text}")
            if answer is None or not settled or self.around.well["mlflow"] is not well:
                continue
            if well:
                true = answer.status_code == 200
            elif since_s > STALE_S + SETTLED_S:
                true = answer.status_code == 503
            else:
                true = bool(answer.json()["fault"])
            if not true:
                state = "up" if well else "down"
                said = f"{answer.status_code} {answer.text}"
                self._complain(f"healthz: {said}; MLflow has been {state} for {since_s:.0f} s")
            with self._lock:
                self.found["health checks"] += 1

    def order_on(self) -> None:
        """Ask for studies, and have some of them stopped."""
        while not self._over.wait(ORDER_S):
            wish = {"framework": "synthetic", "dataset": "digits", "search": "joint", "time_s": 4}
            seed = self._random.randrange(2**31)
            answer = self._ask("POST", "/v1/studies", json={**wish, "seed": seed})
            if answer is not None and answer.status_code == 202:
                self.jobs[answer.json()["id"]] = False
            elif answer is not None:
                self.found["orders refused"] += 1
            if self.jobs and self._random.random() < 0.2:
                chosen = self._random.choice([*self.jobs])
                stopped = self._ask("DELETE", f"/v1/studies/{chosen}")
                self.jobs[chosen] |= stopped is not None and stopped.status_code == 200

    # -- who strikes ----------------------------------------------------------------------------

    def strike_for(self, seconds: float) -> None:
        """One blow after the other, with lulls between; all is well at the end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self._random.uniform(*LULL_S))
            blows = self._random.sample([*BLOW_S], self._random.choice((1, 1, 2)))
            for name in blows:
                self.around.strike(name)
                self.found[f"{name} struck"] += 1
            for name in blows:
                time.sleep(self._random.uniform(*BLOW_S[name]))
                self.around.mend(name)

    def run(self, seconds: float, rate: float) -> None:
        """Be besieged, then see how every study ended."""
        clients = [
            threading.Thread(target=self.ask_on, args=(rate / 2,)),
            threading.Thread(target=self.ask_on, args=(rate / 2,)),
            threading.Thread(target=self.watch_health),
            threading.Thread(target=self.order_on),
        ]
        for each in clients:
            each.start()
        try:
            self.strike_for(seconds)
        finally:
            self._over.set()
            for each in clients:
                each.join()
        for job_id in self.jobs:
            self._see_the_end(job_id)

    def _see_the_end(self, job_id: str) -> None:
        deadline = time.monotonic() + 1800
        job: dict[str, Any] = {"state": "unknown"}
        while time.monotonic() < deadline:
            answer = self._ask("GET", f"/v1/studies/{job_id}")
            job = answer.json() if answer is not None else job
            if job.get("state") in ("complete", "stopped", "failed"):
                break
            time.sleep(1)
        state = str(job.get("state"))
        self.found[f"studies {state}"] += 1
        if state == "complete":
            self._see_on_record(job["study_id"])
        elif not (state == "stopped" and self.jobs[job_id]):
            self._complain(f"{job_id}: {state}, {job.get('reason', job)}")

    def _see_on_record(self, study_id: str) -> None:
        for _ in range(60):
            answer = self._ask("GET", f"/v1/studies/{study_id}")
            if answer is not None and answer.status_code == 200:
                return
            time.sleep(1)
        self._complain(f"study {study_id} is complete, and not on record")


def short(answer: tuple[int, Any]) -> str:
    """Return an answer's status and main fields as text."""
    status, body = answer
    told = (
        ("detail",) if status != 200 else ("framework", "role", "stale", "params", "environment")
    )
    return f"{status} {[(body or {}).get(name) for name in told]}"


def mounted() -> Path:
    """Mount a disk of its own; at first, rerun this program where it can have one."""
    if place := os.environ.get(OWN_DISK):
        options = f"size={DISK_MB}m,mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
        return Path(place)
    with tempfile.TemporaryDirectory() as place:
        root = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["unshare", "--mount", *root, sys.executable, *sys.argv]
        done = subprocess.run(command, env={**os.environ, OWN_DISK: place}, check=False)
    sys.exit(done.returncode)


def main() -> None:
    """Besiege a service; print what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=20.0, help="questions a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    folder = mounted()
    beside = Path(tempfile.mkdtemp())
    keep(beside, dataset="kept")
    around = Surroundings(folder, beside)
    try:
        for name in BLOW_S:
            around.mend(name)
        time.sleep(10)  # what is on record has been read by then
        siege = Siege(around, given.seed)
        siege.run(60 * given.minutes, given.rate)
        code = around.end()
    except BaseException:
        with suppress(KeyError):
            around.strike("service")
            around.strike("mlflow")
        raise
    if code:
        siege.wrong.append(f"the service ended with {code}")
    figures = {**dict(sorted(siege.found.items())), "wrong": len(siege.wrong)}
    print(json.dumps(figures) if given.json else figures)
    print((beside / "service.log").read_text()[-2000:], file=sys.stderr)
    shutil.rmtree(beside)
    sys.exit(bool(siege.wrong))


if __name__ == "__main__":
    main()

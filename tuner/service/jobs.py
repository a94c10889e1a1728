"""Studies as jobs: a queue that survives the service, worked off one at a time.

A job is a folder: ``job.json`` (this module is its one writer) and what its process leaves
(``job.py``). One study at a time, for two on one machine would measure each other.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from filelock import FileLock, Timeout

from tuner.measure import started_at
from tuner.service.job import JOB, OUTCOME, PROGRESS
from tuner.storage.study_folder import write_atomically
from tuner.values.errors import ConfigError, TunerError

State = Literal["queued", "running", "stopping", "complete", "failed", "stopped"]
QUEUED: Final = "queued"
RUNNING: Final = "running"
STOPPING: Final = "stopping"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
OPEN = (QUEUED, RUNNING, STOPPING)
STATES: tuple[State, ...] = get_args(State)
_LOG = "log.txt"
_MOST_OPEN = 100
_MOST_ENDED = 500  # that are kept; their studies stay in MLflow
_POLL_S = 0.5
_PAUSE_S = 15.0  # until a job that could not be run is tried again, which costs seconds of CPU
_GRACE_S = 60.0  # a trial that is stopped cleans up, and what was measured is written
_INTERRUPTED = 130
_log = logging.getLogger(__name__)


class QueueFull(TunerError):
    """No more jobs are taken for now."""


class _Waits(Exception):
    """A job's study cannot be run now: MLflow is away, or the disk is full."""


class QueueUnwritable(TunerError):
    """A job cannot be kept, so it is not taken."""


@dataclass(frozen=True)
class Job:
    """A study that was asked for.

    Attributes:
        id: Of the job.
        kind: ``study`` or ``recheck``.
        words: Overrides of ``python -m tuner``.
        request: What was asked, as it came.
        submitted: Seconds since the epoch.
        state: ``queued``, ``running``, ``stopping``, ``complete``, ``failed`` or ``stopped``.
        started, ended: Seconds since the epoch; 0 before.
        reason: Why it failed, or waits.
        study_id: The study on record that came of it.
        process: Pid and start time of its process while it runs.
        turn: Its place in the queue, which no step of a clock changes.
    """

    id: str
    kind: str
    words: Sequence[str]
    request: Mapping[str, Any]
    submitted: float
    state: State = QUEUED
    started: float = 0.0
    ended: float = 0.0
    reason: str = ""
    study_id: str = ""
    process: Sequence[float] = ()
    turn: int = 0

    def setting(self, name: str) -> str:
        """What an override sets; empty if none sets it."""
        return next(
            (each.partition("=")[2] for each in self.words if each.startswith(f"{name}=")), ""
        )


@dataclass
class Jobs:
    """The queue of one store, and the thread that works it off while ``with`` lasts.

    Args:
        folder: Where jobs are kept. Only one service at a time works on it; others can read.

    Attributes:
        fault: Why no job can be run for now; empty while they can.
    """

    folder: Path
    _jobs: dict[str, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._change = threading.Condition()
        self.fault = ""
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name="jobs")
        self._lock = FileLock(
            self.folder.with_name(f"{self.folder.name}.lock"), thread_local=False
        )

    def __enter__(self) -> Jobs:
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            self._lock.acquire(timeout=0)
        for path in self.folder.glob(f"*/{JOB}"):
            with suppress(OSError, ValueError, TypeError):  # one that is damaged stops no other
                job = Job(**json.loads(path.read_text(encoding="utf-8")))
                self._jobs[job.id] = job
        if self._lock.is_locked:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._lock.is_locked:
            self._thread.join()
            self._lock.release()

    @property
    def alive(self) -> bool:
        """Whether jobs are worked off here, or by another service."""
        return self._thread.is_alive() or not self._lock.is_locked

    # -- what clients do ------------------------------------------------------------------------

    def all(self) -> list[Job]:
        """Newest first."""
        with self._change:
            return sorted(self._jobs.values(), key=lambda each: (-each.turn, -each.submitted))

    def get(self, job_id: str) -> Job | None:
        """One job."""
        with self._change:
            return self._jobs.get(job_id)

    def progress(self, job: Job) -> dict[str, Any]:
        """How far a job is, as its process said last; empty before it did."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self._file(job, PROGRESS).read_text(encoding="utf-8")))
        return {}

    def submit(self, kind: str, words: Sequence[str], request: Mapping[str, Any]) -> Job:
        """Queue a job.

        Raises:
            ConfigError: If another service works this queue.
            QueueFull: If too many wait.
        """
        self._require_own()
        job = Job(f"job-{secrets.token_hex(6)}", kind, tuple(words), request, time.time())
        with self._change:
            waiting = sum(each.state in OPEN for each in self._jobs.values())
            if waiting >= _MOST_OPEN:
                raise QueueFull(f"{waiting} jobs wait already; ask again when some have ended")
            last = max((each.turn for each in self._jobs.values()), default=0)
            job = dataclasses.replace(job, turn=last + 1)
            try:
                self._keep(job)
            except OSError as error:
                raise QueueUnwritable(f"the job cannot be kept: {error.strerror}") from error
            self._change.notify_all()
        return job

    def stop(self, job: Job) -> Job:
        """End a job; what it measured is kept. One that has ended stays as it is."""
        self._require_own()
        with self._change:
            now = self._jobs[job.id]
            if now.state == QUEUED:
                now = self._keep(dataclasses.replace(now, state=STOPPED, ended=time.time()))
            elif now.state == RUNNING:
                now = self._keep(dataclasses.replace(now, state=STOPPING))
                self._change.notify_all()
            return now

    def _require_own(self) -> None:
        if not self._lock.is_locked:
            raise ConfigError("another service works the jobs of this store; ask that one")

    # -- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        """Work jobs off until the service closes; what goes wrong with one ends no other."""
        while True:
            with self._change:
                job = self._next()
                while job is None and not self._closing:
                    self._change.wait()
                    job = self._next()
                if self._closing or job is None:
                    return
            try:
                if not self._outlive(job):
                    return
                self._work_off(job)
                self._forget_oldest()
                self.fault = ""
            except (OSError, _Waits) as error:  # of too many processes, for instance: it may pass
                self.fault = f"{job.id} cannot be run for now: {error}"
                _log.warning(self.fault)
                with self._change:
                    self._change.wait_for(lambda: self._closing, _PAUSE_S)
            except Exception as error:
                _log.exception("%s failed", job.id)
                self._give_up(job, f"{type(error).__name__}: {error}")

    def _work_off(self, job: Job) -> None:
        if job.state == STOPPING:  # a service before this one was asked to
            with self._change:
                self._keep(self._ended(job, _INTERRUPTED))
        else:
            self._run(job)

    def _give_up(self, job: Job, reason: str) -> None:
        with self._change, suppress(OSError):
            failed = dataclasses.replace(
                self._jobs[job.id], state=FAILED, ended=time.time(), reason=reason, process=()
            )
            self._jobs[job.id] = failed  # also where it cannot be written
            self._keep(failed)

    def _forget_oldest(self) -> None:
        """Delete the jobs that ended longest ago, beyond as many as are kept."""
        with self._change:
            ended = [each for each in self._jobs.values() if each.state not in OPEN]
            ended.sort(key=lambda each: each.ended, reverse=True)
            for each in ended[_MOST_ENDED:]:
                shutil.rmtree(self.folder / each.id, ignore_errors=True)
                del self._jobs[each.id]

    def _next(self) -> Job | None:
        """The job to go on with, or the one that waits longest."""
        waiting = [each for each in self._jobs.values() if each.state in OPEN]
        order = {STOPPING: 0, RUNNING: 1, QUEUED: 2}
        return min(
            waiting, key=lambda each: (order[each.state], each.turn, each.submitted), default=None
        )

    def _outlive(self, job: Job) -> bool:
        """Wait for the process that a service before this one left: it was told to end with it.

        Returns whether there is time left for this one to go on.
        """
        while job.process and started_at(int(job.process[0])) == job.process[1]:
            with self._change:
                if self._change.wait_for(lambda: self._closing, _POLL_S):
                    return False
        return True

    def _run(self, job: Job) -> None:
        folder, job_module = self.folder / job.id, f"{__package__}.job"
        with (folder / _LOG).open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", job_module, folder],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        with self._change:
            now = self._jobs[job.id]
            self._keep(
                dataclasses.replace(
                    now,
                    state=RUNNING if now.state == QUEUED else now.state,
                    started=now.started or time.time(),
                    process=(process.pid, started_at(process.pid)),
                )
            )
        self._wait(job, process)
        with self._change:
            if self._closing and process.returncode:
                return  # interrupted, killed or without its MLflow: the next service goes on
            ended = self._ended(self._jobs[job.id], process.returncode)
            if process.returncode == os.EX_TEMPFAIL and ended.state == FAILED:
                self._jobs[job.id] = dataclasses.replace(self._jobs[job.id], reason=ended.reason)
                raise _Waits(ended.reason)
            self._keep(ended)

    def _wait(self, job: Job, process: subprocess.Popen[bytes]) -> None:
        """Until the process ends, by itself or because it is to be stopped."""
        asked_s = 0.0
        while process.poll() is None:
            with self._change:
                self._change.wait(_POLL_S)
                unwanted = self._closing or self._jobs[job.id].state == STOPPING
            if unwanted and not asked_s:
                process.terminate()
                asked_s = time.monotonic()
            elif asked_s and time.monotonic() - asked_s > _GRACE_S:
                process.kill()

    def _ended(self, job: Job, code: int) -> Job:
        """What is known of a job whose process ended with ``code``."""
        outcome: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            outcome = json.loads(self._file(job, OUTCOME).read_text(encoding="utf-8"))
        state: State = COMPLETE if code == 0 else STOPPED if job.state == STOPPING else FAILED
        reason = str(outcome.get("reason", ""))
        if state == FAILED and not reason:
            reason = f"its process ended with {code}; see {self._file(job, _LOG).name} of the job"
        return dataclasses.replace(
            job,
            state=state,
            ended=time.time(),
            reason=reason,
            study_id=str(outcome.get("study_id", "")),
            process=(),
        )

    def _file(self, job: Job, name: str) -> Path:
        return self.folder / job.id / name

    def _keep(self, job: Job) -> Job:
        (self.folder / job.id).mkdir(exist_ok=True)
        write_atomically(self._file(job, JOB), json.dumps(dataclasses.asdict(job)))
        self._jobs[job.id] = job
        return job

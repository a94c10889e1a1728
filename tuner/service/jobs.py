"""Studies as jobs: a persistent queue that runs one job at a time.

A job is a folder with ``job.json``, which only this module writes, and the files of its process
(``job.py``). Two studies on one machine would disturb each other's measurements.
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
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tuner.measure import started_at
from tuner.service.job import JOB, OUTCOME, PROGRESS
from tuner.service.study_job import (
    COMPLETE,
    FAILED,
    OPEN,
    QUEUED,
    RUNNING,
    STOPPED,
    STOPPING,
    State,
    StudyJob,
)
from tuner.storage.study_folder import write_atomically
from tuner.values.errors import INTERRUPTED, ConfigError, TunerError

_LOG = "log.txt"
_MAX_OPEN = 100
_MAX_ENDED = 500  # ended jobs that are kept; all studies stay in MLflow
_POLL_S = 0.5
_PAUSE_S = 15.0  # before another attempt at a job, which costs seconds of CPU
_GRACE_S = 60.0  # for a stopped trial to clean up and its measurements to be written
_log = logging.getLogger(__name__)


class QueueFull(TunerError):
    """The queue is full: no more jobs are accepted for now."""


class _Waits(Exception):
    """A job's study cannot be run now: MLflow is away, or the disk is full."""


class Unsaved(TunerError):
    """What a client asked for cannot be saved, so it is not accepted."""


@dataclass
class Jobs:
    """The queue of one store, and the thread that runs its jobs inside a ``with`` block.

    Args:
        folder: Where jobs are kept. Only one service at a time runs them; others can read, and
            one of them takes over when that service ends.

    Attributes:
        fault: Why no job can be run for now; empty if jobs can run.
    """

    folder: Path
    _jobs: dict[str, StudyJob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._change = threading.Condition()
        self.fault = ""
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._failed_attempts: Counter[str] = Counter()  # by job
        self._thread = threading.Thread(target=self._work, daemon=True, name="jobs")
        self._lock = FileLock(
            self.folder.with_name(f"{self.folder.name}.lock"), thread_local=False
        )

    def __enter__(self) -> Jobs:
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user's
            self.folder.chmod(0o700)  # requests may hold passwords of addresses
        self._take_over()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        self._lock.release()

    @property
    def alive(self) -> bool:
        """Whether jobs are run, here or by another service."""
        return self._thread.is_alive()

    def _take_over(self) -> bool:
        """Take the queue unless another service runs it; return whether this one has it."""
        with self._change:
            if not self._lock.is_locked:
                with suppress(Timeout):
                    self._lock.acquire(timeout=0)
                    self._load()
            return self._lock.is_locked

    def _load(self) -> None:
        found = {}
        for path in self.folder.glob(f"*/{JOB}"):
            with suppress(OSError, ValueError, TypeError):  # a damaged one does not affect others
                job = StudyJob(**json.loads(path.read_text(encoding="utf-8")))
                found[job.id] = job
        self._jobs = found

    # -- what clients do ------------------------------------------------------------------------

    def all(self) -> list[StudyJob]:
        """Return all jobs, newest first."""
        with self._change:
            self._follow()
            return sorted(self._jobs.values(), key=lambda each: (-each.turn, -each.submitted))

    def get(self, job_id: str) -> StudyJob | None:
        """Return a job by its id; ``None`` if it is unknown."""
        with self._change:
            self._follow()
            return self._jobs.get(job_id)

    def _follow(self) -> None:
        if not self._lock.is_locked:  # another service changes them
            self._load()

    def progress(self, job: StudyJob) -> dict[str, Any]:
        """Return the progress that the job's process wrote last; empty before the first time."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self._file(job, PROGRESS).read_text(encoding="utf-8")))
        return {}

    def submit(self, kind: str, words: Sequence[str], request: Mapping[str, Any]) -> StudyJob:
        """Queue a job.

        Raises:
            ConfigError: If another service runs this queue.
            QueueFull: If too many jobs wait.
            Unsaved: If the job cannot be saved.
        """
        self._require_own()
        job = StudyJob(f"job-{secrets.token_hex(6)}", kind, tuple(words), request, time.time())
        with self._change:
            waiting = sum(each.state in OPEN for each in self._jobs.values())
            if waiting >= _MAX_OPEN:
                raise QueueFull(f"{waiting} jobs are waiting; try again when some have ended")
            last = max((each.turn for each in self._jobs.values()), default=0)
            job = dataclasses.replace(job, turn=last + 1)
            self._accept(job)
            self._change.notify_all()
        return job

    def stop(self, job: StudyJob) -> StudyJob:
        """Stop a job; what it measured is kept. A job that has ended stays unchanged.

        Raises:
            ConfigError: If another service runs this queue.
            Unsaved: If the stop cannot be saved; the job goes on.
        """
        self._require_own()
        with self._change:
            now = self._jobs.get(job.id, job)  # an ended one may have been deleted
            if now.state == QUEUED:
                now = self._accept(dataclasses.replace(now, state=STOPPED, ended=time.time()))
                self._forget_oldest()
            elif now.state == RUNNING:
                now = self._accept(dataclasses.replace(now, state=STOPPING))
                self._change.notify_all()
            return now

    def _accept(self, job: StudyJob) -> StudyJob:
        """Save a job as a client asked for it."""
        try:
            return self._keep(job)
        except OSError as error:
            if job.id not in self._jobs:  # after a restart it would be run, though it was refused
                shutil.rmtree(self.folder / job.id, ignore_errors=True)
            raise Unsaved(f"the job cannot be stored: {error.strerror}") from error

    def _require_own(self) -> None:
        if not self._lock.is_locked:
            raise ConfigError("another service runs the jobs of this store; send requests there")

    # -- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        """Run jobs until the service closes; a failure of one does not affect the others."""
        while not self._take_over():
            if self._closes_within(_POLL_S):
                return
        while True:
            with self._change:
                job = self._next()
                while job is None and not self._closing:
                    self.fault = ""  # what could not be run was stopped
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
            except (OSError, _Waits) as error:  # it may pass, such as too many processes
                self.fault = f"{job.id} cannot be run at the moment: {error}"
                _log.warning(self.fault)
                self._failed_attempts[job.id] += 1
                self._closes_within(_PAUSE_S)
            except Exception as error:
                _log.exception("%s failed", job.id)
                self._give_up(job, f"{type(error).__name__}: {error}")

    def _closes_within(self, seconds: float) -> bool:
        with self._change:
            return self._change.wait_for(lambda: self._closing, seconds)

    def _work_off(self, job: StudyJob) -> None:
        if job.state == STOPPING:  # an earlier service was asked to stop it
            with self._change:
                self._keep(self._ended(job, INTERRUPTED))
        else:
            self._run(job)

    def _give_up(self, job: StudyJob, reason: str) -> None:
        with self._change, suppress(OSError):
            failed = dataclasses.replace(
                self._jobs[job.id], state=FAILED, ended=time.time(), reason=reason, process=()
            )
            self._jobs[job.id] = failed  # even if it cannot be written
            self._keep(failed)

    def _forget_oldest(self) -> None:
        """Delete the jobs that ended longest ago, beyond the number to keep."""
        with self._change:
            ended = [each for each in self._jobs.values() if each.state not in OPEN]
            ended.sort(key=lambda each: each.ended, reverse=True)
            for each in ended[_MAX_ENDED:]:
                shutil.rmtree(self.folder / each.id, ignore_errors=True)
                del self._jobs[each.id]

    def _next(self) -> StudyJob | None:
        """Return the job to resume, else the one that has waited longest.

        One that could not be run lets those pass of which fewer attempts failed.
        """

        def order(job: StudyJob) -> tuple[float, ...]:
            attempts = 0 if job.state == STOPPING else self._failed_attempts[job.id]
            states = {STOPPING: 0, RUNNING: 1, QUEUED: 2}
            return attempts, states[job.state], job.turn, job.submitted

        return min(
            (job for job in self._jobs.values() if job.state in OPEN), key=order, default=None
        )

    def _outlive(self, job: StudyJob) -> bool:
        """Wait until the job's process of an earlier service ends; it ends with that service.

        Return whether it has ended; ``False`` means that this service closes first.
        """
        while job.process and started_at(int(job.process[0])) == job.process[1]:
            if self._closes_within(_POLL_S):
                return False
        return True

    def _run(self, job: StudyJob) -> None:
        with self._change:  # until it is on record as running, nobody can stop it halfway
            now = self._jobs.get(job.id)
            if now is None or now.state not in OPEN:  # stopped since it was chosen
                return
            process = self._start(now)
        self._wait(job, process)
        with self._change:
            if self._closing and process.returncode:
                return  # interrupted, killed or without MLflow: the next service resumes it
            ended = self._ended(self._jobs[job.id], process.returncode)
            if process.returncode == os.EX_TEMPFAIL and ended.state == FAILED:
                self._jobs[job.id] = dataclasses.replace(
                    self._jobs[job.id], state=QUEUED, reason=ended.reason, process=()
                )
                raise _Waits(ended.reason)
            self._keep(ended)

    def _start(self, job: StudyJob) -> subprocess.Popen[bytes]:
        """Start the process of a job, and save that it runs."""
        folder, job_module = self.folder / job.id, f"{__package__}.job"
        with (folder / _LOG).open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", job_module, folder],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._keep(
                dataclasses.replace(
                    job,
                    state=RUNNING if job.state == QUEUED else job.state,
                    started=job.started or time.time(),
                    process=(process.pid, started_at(process.pid)),
                )
            )
        except BaseException:  # what is not on record would be started twice
            process.kill()
            process.wait()
            raise
        return process

    def _wait(self, job: StudyJob, process: subprocess.Popen[bytes]) -> None:
        """Wait until the process ends; terminate it if the job or the service is to stop.

        Kill it if it has not ended after a grace period.
        """
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

    def _ended(self, job: StudyJob, code: int) -> StudyJob:
        """Return a job updated after its process ended with ``code``."""
        outcome: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            outcome = json.loads(self._file(job, OUTCOME).read_text(encoding="utf-8"))
        state: State = COMPLETE if code == 0 else STOPPED if job.state == STOPPING else FAILED
        reason = str(outcome.get("reason", ""))
        if state == FAILED and not reason:
            reason = f"its process ended with {code}; see {_LOG} of the job"
        return dataclasses.replace(
            job,
            state=state,
            ended=time.time(),
            reason=reason,
            study_id=str(outcome.get("study_id", "")),
            process=(),
        )

    def _file(self, job: StudyJob, name: str) -> Path:
        return self.folder / job.id / name

    def _keep(self, job: StudyJob) -> StudyJob:
        (self.folder / job.id).mkdir(exist_ok=True)
        write_atomically(self._file(job, JOB), json.dumps(dataclasses.asdict(job)))
        self._jobs[job.id] = job
        return job

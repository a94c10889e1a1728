"""One trial: spawn the worker, watch it, stop it, read what it says, and measure around it.

A trial that goes wrong is a result with a status and a reason, never an exception, and nothing
that it started outlives it.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tuner.config import FrameworkConfig, MeasureConfig
from tuner.datasets import Dataset
from tuner.errors import ConfigError, ProtocolError
from tuner.measure import (
    MARKER,
    ResourceMonitor,
    kill_marked,
    mapped_files,
    process_tree,
    strangers,
)
from tuner.protocol import EventLog, log_tail, request_stop, trained_iterations, write_request
from tuner.runtimes import Runtime
from tuner.trial import Params, Trial, TrialResult, TrialStatus
from tuner.verdict import Failure, Observation, conclude

Listener = Callable[[Trial, int, float], None]
"""Called with the trial, its iterations and its training seconds so far."""

WORKER_API = Path(__file__).parent / "worker_api"
_HOPELESS = 10.0  # a trial that would need this many times its limit is stopped at a quarter of it
_FAR_BEHIND_ACCURACY = 0.01  # a trial this far behind one that took
_FAR_BEHIND_TIME = 0.6  # this fraction of its time is stopped
_EXIT_GRACE_S = 10.0
_POLL_S = (0.002, 0.05)
_MAX_FILE_BYTES = 2**30
_LEAST_FREE_DISK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TrialSetup:
    """What is the same for every trial of a study.

    Attributes:
        framework, runtime, dataset, model: What is trained, in what, on what.
        worker: The framework's worker script.
        folder: Every trial gets a folder of its own below this one.
        marker: Identifies the study's processes; trials append their name.
        cores: CPUs a trial owns.
        memory_limit_bytes: Memory at which a trial is ended.
        measure: When a measurement counts as disturbed.
    """

    framework: FrameworkConfig
    runtime: Runtime
    dataset: Dataset
    model: str
    worker: Path
    folder: Path
    marker: str
    cores: tuple[int, ...]
    memory_limit_bytes: int
    measure: MeasureConfig


def run_trial(
    setup: TrialSetup,
    trial: Trial,
    *,
    listener: Listener | None = None,
    cancel: threading.Event | None = None,
) -> TrialResult:
    """Run one cold trial: a worker of its own that ends with it."""
    session = WorkerSession(setup, trial.params, writable=setup.folder / trial.name)
    try:
        result = session.run(trial, listener=listener, cancel=cancel)
    finally:
        left = session.close()
    if left and result.usable:
        reason = f"the worker left running: {left}"
        result = dataclasses.replace(result, status=TrialStatus.LEFT_PROCESSES, reason=reason)
    return result


class WorkerSession:
    """A worker that trains many trials in turn without a second import of the framework.

    All its trials share one runtime environment: BLAS, threads and kernel of ``params``. A trial
    that ends the worker costs only itself; the next one gets a new worker. The worker's own
    output goes to ``log.txt`` in the folder of the first trial it trained.

    Args:
        setup: What the trials share.
        params: Params that decide the environment.
        writable: The one folder the worker may write to, trial folders included.
    """

    def __init__(self, setup: TrialSetup, params: Params, writable: Path | None = None) -> None:
        self.setup = setup
        self.environment = setup.runtime.environment(params)
        self.writable = writable or setup.folder
        self._process: subprocess.Popen[bytes] | None = None
        self._log_folder = self.writable
        self._marker = ""

    def __enter__(self) -> WorkerSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        trial: Trial,
        *,
        listener: Listener | None = None,
        cancel: threading.Event | None = None,
    ) -> TrialResult:
        """Train ``trial`` in a folder made anew.

        Raises:
            ConfigError: If the trial needs another environment than this session's.
        """
        if self.setup.runtime.environment(trial.params) != self.environment:
            raise ConfigError(f"{trial.name} needs another runtime environment than its session")
        folder = self.setup.folder / trial.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_request(folder, trial, self.setup.dataset, self.setup.model)
        process = self._ensure_worker(trial, folder)
        watch = _Watch(self.setup, trial, folder, process, listener, cancel)
        failure: Failure | None = TrialStatus.INTERRUPTED, "the tuner was stopped"
        try:
            failure = watch.follow()
        finally:
            usage = watch.monitor.finish()
            if failure or watch.log.result is None:
                self._end(at_once=watch.log.error is None)
        return conclude(
            Observation(
                trial=trial,
                framework=self.setup.framework,
                classes=self.setup.dataset.classes,
                limits=self.setup.measure,
                log=watch.log,
                usage=usage,
                mapped=watch.mapped,
                failure=failure,
                stopping=watch.stopping,
                exit_code=process.returncode,
                tail=log_tail(self._log_folder),
            )
        )

    def close(self) -> str:
        """End the worker. Returns what it left running, which is gone by then."""
        return self._end(at_once=False)

    def _ensure_worker(self, trial: Trial, folder: Path) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._log_folder = folder
            self._marker = f"{self.setup.marker}/{trial.name}/"
            setup = self.setup
            readable = [setup.worker.parent, WORKER_API, setup.dataset.folder]
            command = setup.runtime.command(
                setup.worker, readable=readable, writable=[self.writable]
            )
            with (folder / "log.txt").open("ab") as log:
                self._process = subprocess.Popen(
                    [*_custody(setup.cores), *command],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.writable,
                    env=self._whole_environment(),
                    start_new_session=True,
                )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a worker already dead is noticed by the watch
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()
        return self._process

    def _whole_environment(self) -> dict[str, str]:
        """Built from nothing, so that no variable of this process reaches the worker."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.writable),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(WORKER_API),
            "PYTHONDONTWRITEBYTECODE": "1",
            MARKER: self._marker,
            **self.environment,
        }

    def _end(self, *, at_once: bool) -> str:
        process, self._process = self._process, None
        if process is None:
            return ""
        left = ""
        if not at_once:
            left = _wait_for_exit(process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            with suppress(BrokenPipeError):
                process.stdin.close()
        survivors = kill_marked(self._marker, patience_s=0.5)
        return left or (f"{survivors} detached processes" if survivors else "")


def _custody(cores: tuple[int, ...]) -> list[str]:
    """The prefix that binds a worker to its cores and to the life of this process.

    Each of these util-linux commands becomes the next, so that no process is added: the worker
    dies with the tuner, keeps to its cores, is the kernel's first choice when memory runs out,
    and can neither fill the disk with one file nor dump core.
    """
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("taskset", "--cpu-list", ",".join(map(str, cores))),
        *("choom", "--adjust", "1000", "--"),
        *("prlimit", f"--fsize={_MAX_FILE_BYTES}", "--core=0", "--"),
    ]


def _wait_for_exit(process: subprocess.Popen[bytes]) -> str:
    """Let the worker end by closing its input. Returns what it was last seen to leave behind.

    A sandbox ends everything in it together with the worker, so what was left is seen before.
    """
    seen = strangers(process.pid)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    deadline = time.monotonic() + _EXIT_GRACE_S
    last = seen
    while process.poll() is None and time.monotonic() < deadline:
        last = strangers(process.pid) or last
        time.sleep(_POLL_S[0])
    left = sorted(name for pid, name in seen.items() if pid in last)
    return ", ".join(left)


@dataclass
class _Watch:
    """One trial while it runs: reads its events, keeps its limits."""

    setup: TrialSetup
    trial: Trial
    folder: Path
    process: subprocess.Popen[bytes]
    listener: Listener | None
    cancel: threading.Event | None
    mapped: set[str] = field(default_factory=set)
    stopping: str = ""
    """Why the trial was asked to stop."""

    def __post_init__(self) -> None:
        self.log = EventLog(self.folder / "events.jsonl")
        interval = self.setup.measure.sample_interval_s
        self.monitor = ResourceMonitor(self.process.pid, self.setup.cores, interval)
        self.monitor.start()
        self._began_s = self._heard_s = time.monotonic()
        self._training = False

    def follow(self) -> Failure | None:
        """Until the worker has answered or must be given up. Returns why it was, if it was."""
        pause = _POLL_S[0]
        while True:
            dead = self.process.poll() is not None
            try:
                heard = self.log.read()
                while dead and self.log.read():  # nobody will look again
                    heard = True
            except ProtocolError as error:
                return TrialStatus.INVALID, str(error)
            if heard:
                self._hear()
            if dead or self.log.result or self.log.error:
                return None
            failure = self._broken_limit()
            if failure:
                return failure
            self._steer()
            time.sleep(pause)
            pause = min(pause * 1.3, _POLL_S[1])

    def _hear(self) -> None:
        self._heard_s = time.monotonic()
        if self.log.setup_time_s is not None and not self._training:
            self._training = True
            self.monitor.begin_training()
        if self.log.ended and not self.mapped:
            self.monitor.end_training()
            self.mapped = mapped_files(process_tree(self.process.pid)) | {""}
        if self.listener:
            self.listener(self.trial, self.log.iteration, self.log.train_time_s)

    def _broken_limit(self) -> Failure | None:
        now = time.monotonic()
        limit = self.setup.memory_limit_bytes
        if self.cancel and self.cancel.is_set():
            return TrialStatus.INTERRUPTED, "the tuner was stopped"
        if now - self._began_s > self.trial.time_limit_s:
            return TrialStatus.TIMEOUT, f"not done after {self.trial.time_limit_s:.0f} s"
        if now - self._heard_s > self.setup.framework.stall_limit_s:
            stalled = self.setup.framework.stall_limit_s
            return TrialStatus.STALLED, f"no sign of life for {stalled:.0f} s"
        if self.monitor.memory_bytes > limit:
            return TrialStatus.OUT_OF_MEMORY, f"used more than {limit / 2**20:.0f} MiB"
        if shutil.disk_usage(self.folder).free < _LEAST_FREE_DISK_BYTES:
            return TrialStatus.DISK_FULL, f"less than 64 MiB left in {self.folder}"
        return None

    def _steer(self) -> None:
        """Ask a trial to stop that reached its limit, or plainly leads nowhere."""
        if not self.stopping and self.log.iteration:
            self.stopping = self._past_limit() or self._far_behind()
        if self.stopping:
            request_stop(self.folder)

    def _past_limit(self) -> str:
        limit, log = self.trial.train_time_limit_s, self.log
        if limit is None:
            return ""
        if log.train_time_s > limit:
            return f"its limit of {limit:.0f} s was reached"
        projected = log.train_time_s / log.iteration * trained_iterations(self.trial)
        if projected > _HOPELESS * limit and log.train_time_s > limit / 4:
            return f"it would have taken {projected:.0f} s, its limit is {limit:.0f} s"
        return ""

    def _far_behind(self) -> str:
        if not self.log.checkpoints or not self.trial.rivals:
            return ""
        last = self.log.checkpoints[-1]
        for time_s, accuracy in self.trial.rivals:
            ahead = accuracy - last.val_accuracy > _FAR_BEHIND_ACCURACY
            if ahead and time_s < _FAR_BEHIND_TIME * last.train_time_s:
                return f"another trial had {100 * accuracy:.1f} % after {time_s:.1f} s"
        return ""

"""One trial: start the worker, watch it, read its events, measure it and stop it.

A trial that fails is a result with a status and a reason, never an exception. No process that it
started outlives it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tuner.config.schema import FrameworkConfig, MeasureConfig
from tuner.datasets.provide import Dataset
from tuner.measure import MARKER, ResourceMonitor, kill_marked, process_tree, strangers
from tuner.runtimes import Runtime, with_cache
from tuner.trials.custody import custody
from tuner.trials.outcome import Failure, Observation, conclude
from tuner.trials.protocol import EVENTS, MAX_EVENTS_BYTES, REQUEST, log_tail, request_text
from tuner.trials.spanning import Part
from tuner.trials.watch import MAX_LOG_BYTES, Listener, Watch
from tuner.trials.worker_folder import WorkerFolder, empty_if_large
from tuner.values.errors import ConfigError, ProtocolError
from tuner.values.params import Params, nodes_of
from tuner.values.trial import Trial, TrialResult, TrialStatus

WORKER_API = Path(__file__).parents[1] / "worker_api"
_EXIT_GRACE_S = 10.0
_EXIT_POLL_S = 0.002
_LOOK_EVERY_S = 0.2  # at the disk, while a worker ends
_MAX_CACHE_FILES, _MAX_CACHE_BYTES = 50_000, 2**30  # what compiled code may take
_COPIED_BYTES = 2**20  # at once
_MAX_PASSES = 20  # over a worker's processes, to reach those that it starts meanwhile
_WORKERS = "workers"  # below the folder of the trials: where workers write


@dataclass(frozen=True)
class TrialSetup:
    """What is the same for every trial of a study.

    Attributes:
        framework, runtime, dataset, model: What is trained, in which runtime, on which data.
        worker: The framework's worker script.
        folder: Holds a folder per trial with what is kept of it.
        marker: Identifies the study's processes; trials append their name.
        cores: CPUs a trial owns.
        memory_limit_bytes: Memory at which a trial is ended.
        measure: When a measurement counts as disturbed, and how often it is repeated.
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

    def identity(self, fingerprint: str) -> dict[str, Any]:
        """Return all that determines a trial's figures besides its params and seed, for JSON.

        Args:
            fingerprint: Fingerprint of the machine and the runtime's packages.
        """
        return {
            "framework": dataclasses.asdict(self.framework),
            "files": worker_files(self.worker),
            "data": [self.dataset.digest, self.model],
            "machine": [fingerprint, self.cores, self.memory_limit_bytes],
        }


def worker_files(worker: Path) -> dict[str, str]:
    """Return the SHA-256 of each file beside a worker's script, by name, its own included."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(worker.parent.iterdir())
        if path.is_file()
    }


def run_trial(
    setup: TrialSetup,
    trial: Trial,
    *,
    listener: Listener | None = None,
    cancel: threading.Event | None = None,
) -> TrialResult:
    """Run one trial with a cold start: in a worker of its own that ends with it."""
    session = WorkerSession(setup, trial.params)
    try:
        result = session.run(trial, listener=listener, cancel=cancel)
    finally:
        left = session.close()
    if left and result.usable:
        result = dataclasses.replace(result, status=left[0], reason=left[1])
    return result


def remove_worker_folders(folder: Path) -> None:
    """Delete the folders that workers of a killed tuner left; the workers must have ended.

    Args:
        folder: Folder of the trials.
    """
    with suppress(FileNotFoundError):
        for each in (folder / _WORKERS).iterdir():
            WorkerFolder(each).remove()


class WorkerSession:
    """A worker that trains many trials in turn and imports the framework only once.

    All its trials share one runtime environment: BLAS, threads and kernel of ``params``. A trial
    that ends the worker loses only its own result; the next one gets a new worker.

    The worker writes to its own folder, which is emptied before each trial and deleted with the
    worker. The request and the events of a trial are kept in a folder that no worker sees. The
    worker's output goes to a file without a name, as the worker can change whatever file it has
    open; it is copied to ``log.txt`` in the folder of the first trial that the worker trained.

    Args:
        setup: What the trials share.
        params: Params that determine the environment.
        part: This node's part of a group that spans several; its worker trains with those of the
            others, and has this node's network.

    Raises:
        ConfigError: If the group spans several nodes, and there is no ``part``.
    """

    def __init__(self, setup: TrialSetup, params: Params, part: Part | None = None) -> None:
        if nodes_of(params) > 1 and part is None:
            raise ConfigError(f"nodes={nodes_of(params)}: a trial on one machine has one node")
        self.setup, self._part = setup, part
        self.environment = setup.runtime.worker_environment(params)
        self._process: subprocess.Popen[bytes] | None = None
        self._own: WorkerFolder | None = None
        self._output: IO[bytes] | None = None
        self._log = Path()
        self._marker = ""
        self._overflow: Callable[[], str] = str
        self._cache = ExitStack()  # kept from other workers while this one lives

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
        """Train ``trial``; what is kept of it goes to a new folder.

        Raises:
            ConfigError: If the trial needs another environment than this session's.
        """
        setup = self.setup
        if setup.runtime.worker_environment(trial.params) != self.environment:
            raise ConfigError(f"{trial.name} needs another runtime environment than its session")
        folder = setup.folder / trial.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        request = request_text(trial, setup.dataset, setup.model)
        (folder / REQUEST).write_text(request, encoding="ascii")
        process, own = self._worker_given(request, trial, folder)
        interval_s = setup.measure.sample_interval_s
        assert self._output is not None
        # a warm worker begins as soon as it is told, so watching has to begin before
        watch = Watch(
            trial=trial,
            folder=own,
            process=process,
            output=self._output,
            monitor=ResourceMonitor(
                process.pid,
                setup.cores,
                interval_s,
                interface=self._part.interface if self._part else "",
            ),
            memory_limit_bytes=setup.memory_limit_bytes,
            stall_limit_s=setup.framework.stall_limit_s,
            listener=listener,
            cancel=cancel,
            quality=setup.dataset.quality,
        )
        self._overflow = watch.overflow
        failure: Failure | None = TrialStatus.INTERRUPTED, "the tuner was stopped"
        try:
            _tell(process, own.path)
            failure = watch.follow()
        finally:
            usage = watch.monitor.finish()
            try:
                self._keep_output()
                with suppress(ProtocolError):
                    (folder / EVENTS).write_bytes(own.read(EVENTS, MAX_EVENTS_BYTES))
            finally:  # a disk that it filled is freed in any case
                if failure or watch.log.result is None:
                    self._end(at_once=watch.log.error is None)
                else:
                    _signal_tree(process, signal.SIGSTOP)  # unwatched until the next trial
        return conclude(
            Observation(
                trial=trial,
                framework=setup.framework,
                classes=setup.dataset.classes,
                limits=setup.measure,
                log=watch.log,
                usage=usage,
                mapped=watch.mapped,
                failure=failure,
                stopping=watch.stopping,
                exit_code=process.returncode,
                tail=log_tail(self._log),
            )
        )

    def close(self) -> Failure | None:
        """End the worker; return what was wrong with its end, such as a process left running.

        Whatever it left has been killed or deleted.
        """
        return self._end(at_once=False)

    def _worker_given(
        self, request: str, trial: Trial, folder: Path
    ) -> tuple[subprocess.Popen[bytes], WorkerFolder]:
        """Write a trial's request for the worker, or for a new one if that is impossible."""
        if self._process is not None and self._own is not None:
            with suppress(ProtocolError):
                self._own.clear()
                self._own.write(REQUEST, request)
                return self._process, self._own
            self._end(at_once=True)
        own = self._own = WorkerFolder(self.setup.folder / _WORKERS / trial.name)
        own.write(REQUEST, request)
        self._log = folder / "log.txt"
        # other workers, which know the study's marker from their own, must not guess it
        self._marker = f"{self.setup.marker}/{trial.name}/{secrets.token_hex(8)}/"
        self._process = self._start(own.path)
        return self._process, own

    def _start(self, own: Path) -> subprocess.Popen[bytes]:
        setup = self.setup
        readable = [setup.worker.parent, WORKER_API, setup.dataset.folder]
        cache = self._cache.enter_context(setup.runtime.own_cache())
        for each in cache:
            self._cache.callback(empty_if_large, each, _MAX_CACHE_FILES, _MAX_CACHE_BYTES)
        command = setup.runtime.command(
            setup.worker, readable=readable, writable=[own, *cache], network=self._part is not None
        )
        self._output = tempfile.TemporaryFile(dir=setup.folder)  # noqa: SIM115 - as long as the worker
        return subprocess.Popen(
            [*custody(setup.cores, setup.memory_limit_bytes), *command],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=own,
            env=with_cache(self._whole_environment(own), cache),
            start_new_session=True,
        )

    def _whole_environment(self, home: Path) -> dict[str, str]:
        """Build the environment from scratch; only variables that the runtime names pass."""
        own = {**self.setup.runtime.inherited(), **self.environment}
        if self._part:
            own |= self._part.environment()
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            MARKER: self._marker,
            **own,
            "PYTHONPATH": f"{WORKER_API}:{own.get('PYTHONPATH', '')}".rstrip(":"),
        }

    def _end(self, *, at_once: bool) -> Failure | None:
        process, self._process = self._process, None
        own, self._own = self._own, None
        try:
            return self._stop(process, at_once) if process else None
        finally:
            with self._cache:
                if own is not None:
                    own.remove()

    def _keep_output(self) -> None:
        """Copy the output so far; at most what is allowed, however large it has grown unseen."""
        if self._output is not None:
            handle = self._output.fileno()
            with self._log.open("wb") as kept:
                while (at := kept.tell()) < MAX_LOG_BYTES and (
                    part := os.pread(handle, _COPIED_BYTES, at)
                ):
                    kept.write(part)

    def _stop(self, process: subprocess.Popen[bytes], at_once: bool) -> Failure | None:
        left = None if at_once else _wait_for_exit(process, self._overflow)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            with suppress(BrokenPipeError):
                process.stdin.close()
        survivors = kill_marked(self._marker, patience_s=0.5)
        try:
            self._keep_output()
        finally:
            if self._output is not None:
                self._output.close()
                self._output = None
        return left or (_left(f"{survivors} detached processes") if survivors else None)


def _tell(worker: subprocess.Popen[bytes], folder: Path) -> None:
    """Tell a worker to train the trial whose request is in ``folder``.

    It is not waited for. The watch notices a worker that is dead or has filled its own pipe.
    """
    assert worker.stdin is not None
    _signal_tree(worker, signal.SIGCONT)
    pipe = worker.stdin.fileno()
    os.set_blocking(pipe, False)
    with suppress(BrokenPipeError, BlockingIOError):
        os.write(pipe, f"{folder}\n".encode())  # shorter than PIPE_BUF: whole, or not at all


def _signal_tree(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Stop a worker with all its processes, those that it starts meanwhile too, or continue it."""
    reached: set[int] = set()
    for _ in range(_MAX_PASSES):  # one that starts processes without end does not hold us up
        new = {*process_tree(process.pid)} - reached
        if not new or process.poll() is not None:
            return
        for pid in new:
            with suppress(OSError):
                os.kill(pid, number)
        reached |= new


def _left(what: str) -> Failure:
    return TrialStatus.LEFT_PROCESSES, f"the worker left running: {what}"


def _wait_for_exit(
    process: subprocess.Popen[bytes], overflow: Callable[[], str]
) -> Failure | None:
    """Close the worker's input so that it ends; return what is wrong with its end.

    That is what it was last seen to leave running, or has more of on the disk than allowed. A
    sandbox ends everything in it together with the worker, so leftovers are looked for before.
    """
    seen = strangers(process.pid)
    _signal_tree(process, signal.SIGCONT)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    deadline = time.monotonic() + _EXIT_GRACE_S
    next_look_s = time.monotonic() + _LOOK_EVERY_S
    last = seen
    while process.poll() is None and time.monotonic() < deadline:
        last = strangers(process.pid) or last
        if time.monotonic() >= next_look_s:
            with suppress(ProtocolError):  # it ends in any case
                if excess := overflow():
                    return TrialStatus.OVER_LIMIT, excess
            next_look_s = time.monotonic() + _LOOK_EVERY_S
        time.sleep(_EXIT_POLL_S)
    left = sorted(name for pid, name in seen.items() if pid in last)
    return _left(", ".join(left)) if left else None

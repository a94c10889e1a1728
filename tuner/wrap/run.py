"""One run of a program: start it, watch it, measure it, and end it with all it started."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tuner.config.schema import MeasureConfig
from tuner.measure import (
    MARKER,
    ResourceMonitor,
    Usage,
    kill_marked,
    mapped_files,
    process_tree,
)
from tuner.trials.custody import custody
from tuner.trials.outcome import Failure
from tuner.trials.protocol import log_tail
from tuner.trials.worker_folder import BLOCK_BYTES, WorkerFolder
from tuner.values.errors import ProtocolError
from tuner.values.trial import Measurement, Trial, TrialResult, TrialStatus
from tuner.wrap.knobs import PRELOAD, Knob, variables_of
from tuner.wrap.program import STOP, Program, environment_of
from tuner.wrap.steps import Progress, Window, choose_window, steady_s

MAX_OUTPUT_BYTES = 256 * 2**20
_MAX_FILES, _MAX_BYTES = 100_000, 16 * 2**30  # what a program may write
_MAX_PROCESSES = 2000
_POLL_S = 0.02
_LOOK_EVERY_S = (0.1, 1.0)  # at mapped files and the disk: at first, and later
_HUNG_S = 120.0  # without output, a step, or work of the CPU
_IDLE = 0.01  # of a core, below which nothing computes
_LEAST_S = 1.0  # of steps, for a program that is over before more were measured
_GRACE_S = 2.0  # between telling a program to stop, SIGTERM and SIGKILL
_KEPT_BYTES = 2**20  # of the output
# runs the program, tells how it ended, and lives on with its CPU time until it is killed
_HOLD = 'trap : TERM; "$@" </dev/null; echo $? >&0; read -r _'


@dataclass(frozen=True)
class Aim:
    """When a run has shown enough.

    Attributes:
        window: Steps to measure; ``None`` to choose them by ``measured_s``.
        measured_s: Seconds of steady steps to measure; infinite to run the whole program.
        beaten_s: Seconds for the window, or the whole program, after which it is given up as too
            slow.
        time_limit_s: Seconds after which it is killed.
    """

    window: Window | None = None
    measured_s: float = float("inf")
    beaten_s: float = float("inf")
    time_limit_s: float = float("inf")

    @property
    def whole(self) -> bool:
        """Whether the program runs to its end."""
        return self.window is None and self.measured_s == float("inf")


@dataclass(frozen=True)
class Seen:
    """What a run showed besides its figures.

    Attributes:
        window: The steps that were measured; ``None`` if the whole program was.
        source: Where its progress came from; empty without any.
        mapped: Paths of the files that its processes had mapped.
        ended: Whether the program ended by itself.
    """

    window: Window | None
    source: str
    mapped: frozenset[str]
    ended: bool


@dataclass
class Runner:
    """Runs one program many times.

    Args:
        program: The program.
        folder: Holds a folder per run with what is kept of it.
        marker: Identifies the processes of all runs.
        cores: CPUs that it may use.
        memory_limit_bytes: Memory at which a run is ended.
        limits: When a measurement counts as disturbed.
        check: Called while a run is watched; an exception that it raises ends the run.
        tell: Called with the steps and seconds of a run so far.
    """

    program: Program
    folder: Path
    marker: str
    cores: tuple[int, ...]
    memory_limit_bytes: int
    limits: MeasureConfig
    check: Callable[[], None] = lambda: None
    tell: Callable[[Trial, int, float], None] = lambda _trial, _steps, _seconds: None
    knobs: Sequence[Knob] = field(default_factory=tuple)

    def run(self, trial: Trial, aim: Aim) -> tuple[TrialResult, Seen]:
        """Run the program once with the setting ``trial.params``."""
        folder = self.folder / trial.name
        folder.mkdir(parents=True, exist_ok=True)
        with (
            WorkerFolder(self.folder / "workers" / trial.name) as own,
            tempfile.TemporaryFile(dir=self.folder) as output,
        ):
            watch = _Watch(self, trial, aim, own, output)
            try:
                failure = watch.follow()
            finally:
                usage = watch.end()
                _keep(output, folder / "log.txt")
        tail = log_tail(folder / "log.txt")
        return watch.conclude(failure, usage, tail), watch.seen()


class _Watch:
    """One running program."""

    def __init__(
        self, runner: Runner, trial: Trial, aim: Aim, own: WorkerFolder, output: IO[bytes]
    ) -> None:
        self._runner, self._trial, self._aim = runner, trial, aim
        self._own, self._output = own, output
        program = runner.program
        self._progress = Progress(own, output, program.step, program.metric)
        variables = variables_of(runner.knobs, trial.params, program.environment)
        self._asked = variables
        self._marker = f"{runner.marker}/{trial.name}/"
        environment = environment_of(program, own, variables)
        self._began_s = time.monotonic()
        self._line, held = socket.socketpair()
        with held:
            self._process = subprocess.Popen(
                [
                    *custody(runner.cores, runner.memory_limit_bytes),
                    *("sh", "-c", _HOLD, "hold", "setpriv", "--pdeathsig", "KILL", "--"),
                    *program.command(own),
                ],
                stdin=held.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=program.folder,
                env={**environment, MARKER: self._marker},
                start_new_session=True,
            )
        self._monitor = ResourceMonitor(
            self._process.pid, runner.cores, runner.limits.sample_interval_s, ends_itself=True
        )
        self._monitor.start()
        self._monitor.begin_training()
        self._window = aim.window
        self._steady_s: float | None = None
        self._ended_s = 0.0
        self._mapped: set[str] = set()
        self._passed: dict[str, set[str]] = {}
        self._next_look_s = 0.0
        self._last_sign = self._began_s, 0.0, (0, 0)
        self._code: int | None = None
        if aim.whole:  # its steps are not needed
            own.touch("unhook")

    def follow(self) -> Failure | None:
        """Watch until the program has ended or shown enough; return why it must be given up."""
        try:
            return self._follow()
        except ProtocolError as error:
            return TrialStatus.INVALID, str(error)
        except ArithmeticError as error:
            return TrialStatus.DIVERGED, str(error)

    def _follow(self) -> Failure | None:
        while True:
            self._progress.read()
            if self._code is not None:
                self._measure()
                return _death(self._code)
            if self._measure() and not self._aim.whole:
                self._look()
                return None
            failure = self._broken_limit()
            if failure:
                return failure
            self._runner.check()
            if select.select([self._line], [], [], _POLL_S)[0]:
                self._ended_s = time.monotonic()
                self._code = self._exit_code()

    def _measure(self) -> bool:
        """Return whether the steps to be measured are done."""
        marks = self._progress.marks
        if self._window is None and not self._aim.whole:
            least_s = _LEAST_S if self._ended_s else self._aim.measured_s
            self._window = choose_window(marks, min(least_s, self._aim.measured_s))
        if self._window is not None and marks and marks[-1].step >= self._window.last:
            self._steady_s = steady_s(marks, self._window)
        return self._steady_s is not None

    def _exit_code(self) -> int:
        """Return how the program ended: its exit code, or 128 and the signal's number."""
        told = self._line.recv(16).split()
        if told:
            return int(told[0])
        return 128 - int(self._process.wait())  # what held it was killed as well

    def _broken_limit(self) -> Failure | None:
        now = time.monotonic()
        took_s = now - self._began_s
        marks = self._progress.marks
        self._runner.tell(self._trial, marks[-1].step if marks else 0, took_s)
        if self._is_beaten(took_s):
            return TrialStatus.STOPPED, "slower than the best so far"
        if took_s > self._aim.time_limit_s:
            return TrialStatus.TIMEOUT, f"not done after {self._aim.time_limit_s:.0f} s"
        size = os.fstat(self._output.fileno()).st_blocks * BLOCK_BYTES
        if size > MAX_OUTPUT_BYTES:
            return TrialStatus.OVER_LIMIT, f"wrote more than {MAX_OUTPUT_BYTES / 2**20:.0f} MiB"
        if self._monitor.memory_bytes > self._runner.memory_limit_bytes:
            limit = self._runner.memory_limit_bytes / 2**20
            return TrialStatus.OUT_OF_MEMORY, f"used more than {limit:,.0f} MiB"
        if len(self._monitor.tree) > _MAX_PROCESSES:
            return TrialStatus.OVER_LIMIT, f"has more than {_MAX_PROCESSES} processes"
        if now < self._next_look_s:
            return None
        self._next_look_s = now + min(max(0.1 * took_s, _LOOK_EVERY_S[0]), _LOOK_EVERY_S[1])
        self._look()
        if self._is_hung(now, (size, len(marks))):
            return TrialStatus.STALLED, f"no output, step or work for {_HUNG_S:.0f} s"
        return self._overflow()

    def _is_beaten(self, took_s: float) -> bool:
        if self._aim.whole:
            return took_s > self._aim.beaten_s
        marks, window = self._progress.marks, self._window
        if window is None or not marks or marks[-1].step <= window.first:
            return False
        part = Window(window.first, min(window.last, marks[-1].step))
        spent_s = steady_s(marks, part)
        # a third has to be seen, as the first steps may be slow
        enough = 3 * part.steps >= window.steps
        return (
            bool(spent_s and (enough or spent_s > self._aim.beaten_s))
            and (spent_s or 0.0) / part.steps > self._aim.beaten_s / window.steps
        )

    def _is_hung(self, now: float, alive: tuple[int, int]) -> bool:
        """Return whether the program has shown no sign of life for too long."""
        cpu_s = self._monitor.cpu_s()
        before_s, before_cpu_s, before = self._last_sign
        if alive != before or cpu_s - before_cpu_s > _IDLE * (now - before_s):
            self._last_sign = now, cpu_s, alive
        return now - self._last_sign[0] > _HUNG_S

    def _overflow(self) -> Failure | None:
        count, size = self._own.size(_MAX_FILES)
        if count > _MAX_FILES:
            return TrialStatus.OVER_LIMIT, f"wrote more than {_MAX_FILES:,} files"
        if size > _MAX_BYTES:
            return TrialStatus.OVER_LIMIT, f"wrote more than {_MAX_BYTES / 2**30:.0f} GiB"
        return None

    def _look(self) -> None:
        """Note which files the processes map, and which environment they were given."""
        for pid in process_tree(self._process.pid):
            mapped = mapped_files([pid])
            self._mapped |= mapped
            given = _environment(pid)
            for knob in self._runner.knobs:
                if knob.name in self._trial.params and (not knob.libraries or knob.reads(mapped)):
                    for name in knob.values[self._trial.params[knob.name]]:  # type: ignore[index]  # as in knob.values
                        self._passed.setdefault(name, set()).add(given.get(name, ""))

    def end(self) -> Usage:
        """End the program with all that it started, and return what it used."""
        self._monitor.end_training()
        usage = self._monitor.finish()
        if self._code is None:
            self._ask_to_stop()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._line.close()
        kill_marked(self._marker, patience_s=0.5)
        return usage

    def _ask_to_stop(self) -> None:
        """Let a program that reports, or that has no sandbox, end by itself for a while."""
        if self._progress.source.startswith("reports"):
            with suppress(ProtocolError):
                self._own.touch(STOP)
            if self._wait():
                return
        if not self._runner.program.confined:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._wait()

    def _wait(self) -> bool:
        """Return whether the program has ended within the grace."""
        return bool(select.select([self._line], [], [], _GRACE_S)[0])

    def seen(self) -> Seen:
        """Return what the run showed besides its figures."""
        return Seen(
            window=self._window if self._steady_s is not None else None,
            source=self._progress.source,
            mapped=frozenset(self._mapped),
            ended=self._code == 0,
        )

    def conclude(self, failure: Failure | None, usage: Usage, tail: str) -> TrialResult:
        """Return the run's result."""
        status, reason = failure or (TrialStatus.COMPLETE, "")
        doubt = self._doubt() if failure is None else ""
        if doubt:
            status, reason = TrialStatus.INVALID, doubt
        marks = self._progress.marks
        wall_s = (self._ended_s or time.monotonic()) - self._began_s
        whole = self._aim.whole or self._window is None
        train_s = wall_s if whole else self._steady_s or 0.0
        return TrialResult(
            trial=self._trial,
            status=status,
            reason=reason,
            iterations=marks[-1].step if marks else 0,
            val_accuracy=self._progress.accuracy,
            measurement=_measurement(usage, train_s, wall_s, self._runner.limits),
            log_tail="" if status.usable else tail,
        )

    def _doubt(self) -> str:
        """Return why the setting did not reach what reads it; empty if it did."""
        for name, value in self._asked.items():
            if name == PRELOAD:
                first = value.partition(":")[0]
                real = os.path.realpath(first)
                if not {first, real} & self._mapped:
                    return f"{Path(first).name} was not loaded"
            elif (given := self._passed.get(name)) is not None and value not in given:
                return f"the program does not pass {name} on to what reads it"
        return ""


def _death(code: int) -> Failure | None:
    """Return what is wrong with a program's end; ``None`` if nothing is."""
    if code == 0:
        return None
    number = code - 128
    if number == signal.SIGKILL:
        return TrialStatus.OUT_OF_MEMORY, "killed by the kernel"
    if number == signal.SIGXFSZ:
        return TrialStatus.DISK_FULL, "a file grew beyond 1 GiB"
    name = signal.strsignal(number) if 0 < number < signal.NSIG else None
    what = f"{name} (signal {number})" if name else f"exit code {code}"
    return TrialStatus.CRASHED, f"the program ended with {what}"


def _environment(pid: int) -> Mapping[str, str]:
    """Return the environment that a process was started with; empty if it cannot be seen."""
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        return dict(each.partition("=")[::2] for each in entries if "=" in each)
    return {}


def _keep(output: IO[bytes], log: Path) -> None:
    """Keep the end of a program's output."""
    size = os.fstat(output.fileno()).st_size
    log.write_bytes(os.pread(output.fileno(), _KEPT_BYTES, max(0, size - _KEPT_BYTES)))


def _measurement(
    usage: Usage, train_s: float, wall_s: float, limits: MeasureConfig
) -> Measurement:
    disturbed = []
    if usage.foreign_pct > limits.max_foreign_pct:
        disturbed.append(f"others used {usage.foreign_pct:.0f} % of its cores")
    if usage.steal_pct > limits.max_steal_pct:
        disturbed.append(f"the hypervisor stole {usage.steal_pct:.0f} %")
    return Measurement(
        setup_time_s=max(0.0, wall_s - train_s),
        train_time_s=train_s,
        test_time_s=0.0,
        wall_time_s=wall_s,
        cpu_user_s=usage.user_s,
        cpu_system_s=usage.system_s,
        cpu_iowait_s=usage.iowait_s,
        cpu_user_pct=usage.user_pct,
        cpu_system_pct=usage.system_pct,
        cpu_iowait_pct=usage.iowait_pct,
        avg_memory_bytes=usage.avg_memory_bytes,
        peak_memory_bytes=usage.peak_memory_bytes,
        foreign_cpu_pct=usage.foreign_pct,
        steal_pct=usage.steal_pct,
        psi_cpu_pct=usage.psi_pct,
        involuntary_switches=usage.involuntary_switches,
        threads_seen=usage.threads,
        cores_used=usage.cores_used,
        disturbed=" and ".join(disturbed),
    )

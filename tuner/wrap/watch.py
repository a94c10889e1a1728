"""One running program: started, watched, measured, and ended with all it started."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tuner.config.schema import MeasureConfig
from tuner.measure import MARKER, ResourceMonitor, Usage, kill_marked, mapped_files
from tuner.trials.custody import custody
from tuner.trials.outcome import Failure
from tuner.trials.worker_folder import WorkerFolder
from tuner.values.errors import ProtocolError
from tuner.values.trial import Trial, TrialResult, TrialStatus
from tuner.wrap.aim import Aim, Seen
from tuner.wrap.ending import MAX_BYTES, exit_failure, measurement
from tuner.wrap.knobs import PRELOAD, Knob, variables_of
from tuner.wrap.limits import Limits
from tuner.wrap.objective import Objective
from tuner.wrap.processes import process_environment, program_processes
from tuner.wrap.program import STOP, Program, environment_of
from tuner.wrap.spending import LONG_EVERY_S, Spending
from tuner.wrap.steps import Progress
from tuner.wrap.window import Window, choose_window, steady_s

_MAX_MAPPED = 20_000
_POLL_S = 0.02
_LEAST_S = 1.0  # of steps, for a program that is over before more were measured
_GRACE_S = 2.0  # between telling a program to stop, SIGTERM and SIGKILL
_WORSE = {
    Objective.TIME: "slower than the best so far",
    Objective.CPU: "uses more CPU time than the best so far",
    Objective.MEMORY: "uses more memory than the best so far",
}
# runs the program, tells how it ended, and lives on with its CPU time until it is killed
_HOLD = 'trap : TERM; "$@" </dev/null; echo $? >&0; read -r _'


@dataclass
class RunSetup:
    """What is the same for every run of a program.

    Args:
        program: The program.
        folder: Holds a folder per run with what is kept of it.
        marker: Identifies the processes of all runs.
        cores: CPUs that it may use.
        memory_limit_bytes: Memory at which a run is ended.
        limits: When a measurement counts as disturbed.
        objective: What is minimised.
        tell: Called with the steps and seconds of a run so far, and the files that it has mapped.
        knobs: The knobs that settings are of.
        in_percent: Whether the program tells accuracies in per cent; ``None`` if that is unknown.
        cancelled: Set to end the program that runs; its result is then ``INTERRUPTED``.
    """

    program: Program
    folder: Path
    marker: str
    cores: tuple[int, ...]
    memory_limit_bytes: int
    limits: MeasureConfig
    objective: Objective = Objective.TIME
    tell: Callable[[Trial, int, float, Collection[str]], None] = lambda *_: None
    knobs: Sequence[Knob] = field(default_factory=tuple)
    in_percent: bool | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)


class Watch:
    """One running program, which the constructor starts.

    Args:
        setup: What is the same for every run of it.
        trial: The run.
        aim: What it is to show.
        own: Folder of the run.
        output: File that takes its output.
    """

    def __init__(
        self, setup: RunSetup, trial: Trial, aim: Aim, own: WorkerFolder, output: IO[bytes]
    ) -> None:
        self._setup, self._trial, self._aim = setup, trial, aim
        self._own, self._output = own, output
        program = setup.program
        self._progress = Progress(
            own, output, program.step, program.metric, program.goal, setup.in_percent
        )
        self._asked = variables_of(setup.knobs, trial.params, program.environment)
        self._marker = f"{setup.marker}/{trial.name}/"
        given = {**environment_of(program, own, trial, self._asked), MARKER: self._marker}
        self._began_s = time.monotonic()
        if not aim.steps:
            own.touch("unhook")
        self._end_socket, held = socket.socketpair()  # tells how the program ended
        with held:
            self._process = subprocess.Popen(
                [
                    *custody(setup.cores, setup.memory_limit_bytes, MAX_BYTES),
                    *("sh", "-c", _HOLD, "hold", "setpriv", "--pdeathsig", "KILL", "--"),
                    *program.command(own, trial),
                ],
                stdin=held.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=program.here(program.folder),
                env=given,
                start_new_session=True,
            )
        self._monitor = ResourceMonitor(
            self._process.pid, setup.cores, setup.limits.sample_interval_s, ends_itself=True
        )
        if setup.objective is Objective.MEMORY:
            self._monitor.long_every_s = LONG_EVERY_S
        self._spending = Spending(setup.objective, self._monitor, aim.beaten, aim.steps)
        self._monitor.start()
        self._monitor.begin_training()
        self._window = aim.window
        self._steady_s: float | None = None
        self._steady_cpu_s: float | None = None
        self._ended_s = 0.0
        self._mapped: set[str] = set()
        self._reached: set[str] = set()  # names of the variables asked for that arrived
        self._reader_seen = False  # whether a process reads a knob of the setting
        self._judged = 0  # points of the curve that were held against the hope
        self._code: int | None = None
        self._start_s = 0.0
        self._limits = Limits(own, output, self._monitor, setup.memory_limit_bytes)

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
            self._progress.read(last=self._code is not None)
            measured = self._measure()
            if self._code is not None:
                return exit_failure(self._code) or self._shortage(measured)
            if measured and not self._aim.whole:
                self._inspect_processes()
                return None
            failure = self._given_up() or self._broken_limit()
            if failure:
                return failure
            if select.select([self._end_socket], [], [], _POLL_S)[0]:
                self._ended_s = time.monotonic()
                self._code = self._exit_code()

    def _measure(self) -> bool:
        """Return whether the steps to be measured are done."""
        if self._steady_s is not None:
            return True
        marks, window = self._progress.marks, self._window
        seen = bool(window and marks and marks[-1].step >= window.last)
        self._spending.follow(marks, at_the_end=seen or self._code is not None)
        if window is None and self._aim.steps:
            window = choose_window(marks, self._aim.measured_s)
            if window is None and self._ended_s:
                short = choose_window(marks, min(_LEAST_S, self._aim.measured_s))
                window = short and short.shortened()
            self._window = window if window and self._shows_steps(window) else None
        if self._window is not None and marks and marks[-1].step >= self._window.last:
            self._steady_s = steady_s(marks, self._window)
            self._steady_cpu_s = self._spending.cpu_s(self._window)
            self._start_s = time.monotonic() - self._began_s - (self._steady_s or 0.0)
        return self._steady_s is not None

    def _shows_steps(self, window: Window) -> bool:
        """Return whether what is minimised is known of the steps in a window."""
        if self._setup.objective is Objective.MEMORY:  # the peak is that of the run so far
            return not self._ended_s
        return self._setup.objective is Objective.TIME or self._spending.cpu_s(window) is not None

    def _shortage(self, measured: bool) -> Failure | None:
        """Return what is wrong with a program that ended before the steps to be measured."""
        if self._window is None or measured:
            return None
        marks = self._progress.marks
        done = marks[-1].step if marks else 0
        return TrialStatus.INVALID, (
            f"it ended after {done} steps, before the {self._window.last} to be measured"
        )

    def _exit_code(self) -> int:
        """Return how the program ended: its exit code, or 128 and the signal's number."""
        told = self._end_socket.recv(16).split()
        if told:
            return int(told[0])
        code = int(self._process.wait())  # what held it was killed as well
        return code if code >= 0 else 128 - code

    def _given_up(self) -> Failure | None:
        """Return why the run is of no more use."""
        if self._setup.cancelled.is_set():
            return TrialStatus.INTERRUPTED, "the tuner was stopped"
        took_s = time.monotonic() - self._began_s
        marks = self._progress.marks
        self._setup.tell(self._trial, self._steps_done(), took_s, self._mapped)
        if self._spending.is_beaten(marks, self._window, took_s):
            return TrialStatus.STOPPED, _WORSE[self._setup.objective]
        curve = self._progress.curve(self._began_s)
        if self._aim.hope and len(curve) != self._judged:
            self._judged = len(curve)
            if self._aim.hope.is_lost(curve):
                return TrialStatus.STOPPED, "its curve falls short of what the program reaches"
        if took_s > self._aim.time_limit_s:
            return TrialStatus.TIMEOUT, f"not done after {self._aim.time_limit_s:.0f} s"
        return None

    def _broken_limit(self) -> Failure | None:
        failure = self._limits.broken()
        if failure or not self._limits.is_look_due():
            return failure
        self._inspect_processes()
        return self._limits.broken_at_a_look(self._setup.folder, len(self._progress.marks))

    def _steps_done(self) -> int:
        """Return the steps that the program told of; 0 if its hook was told to be silent."""
        marks = self._progress.marks
        silent = not self._aim.steps and self._progress.source.startswith("hook")
        return 0 if silent or not marks else marks[-1].step

    def _inspect_processes(self) -> None:
        """Note which files the program maps, and whether the setting has reached it."""
        for pid in program_processes(self._process.pid, confined=self._setup.program.confined):
            mapped = mapped_files([pid])
            if len(self._mapped) < _MAX_MAPPED:
                self._mapped |= mapped
            given = process_environment(pid)
            for knob in self._setup.knobs:
                if knob.name in self._trial.params and (not knob.libraries or knob.reads(mapped)):
                    self._reached |= {
                        name for name, value in self._asked.items() if given.get(name) == value
                    }
                    self._reader_seen = True

    def end(self) -> Usage:
        """End the program with all that it started, and return what it used."""
        try:
            self._monitor.end_training()
            return self._monitor.finish()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._end_socket.close()
            kill_marked(self._marker, patience_s=0.5)

    def ask_to_stop(self, failure: Failure | None) -> None:
        """Let a program that reports, or that has no sandbox, end by itself for a while."""
        if self._code is not None or (failure and not failure[0].usable):
            return
        if self._progress.source.startswith("reports"):
            with suppress(ProtocolError):
                self._own.touch(STOP)
            if self._wait():
                return
        if not self._setup.program.confined:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._wait()

    def _wait(self) -> bool:
        """Return whether the program has ended within the grace."""
        return bool(select.select([self._end_socket], [], [], _GRACE_S)[0])

    def seen(self) -> Seen:
        """Return what the run showed besides its figures."""
        return Seen(
            window=self._window if self._steady_s is not None else None,
            source=self._progress.source,
            mapped=frozenset(self._mapped),
            start_s=self._start_s,
            in_percent=None
            if self._progress.accuracy is None
            else bool(self._progress.in_percent),
        )

    def conclude(self, failure: Failure | None, usage: Usage, tail: str) -> TrialResult:
        """Return the run's result."""
        status, reason = failure or (TrialStatus.COMPLETE, "")
        doubt = self._doubt() if failure is None else ""
        if doubt:
            status, reason = TrialStatus.INVALID, doubt
        ended = self._code is not None or failure is not None
        wall_s = (self._ended_s or time.monotonic()) - self._began_s
        train_s = wall_s if self._steady_s is None else self._steady_s
        cpu_s = self._steady_cpu_s
        if self._steady_s is None:
            cpu_s = usage.user_s + usage.system_s
        elif failure is None and cpu_s is None and self._setup.objective is Objective.CPU:
            status, reason = TrialStatus.INVALID, "the CPU time of its steps was not seen"
        if failure is None and train_s > wall_s:
            status, reason = (
                TrialStatus.INVALID,
                (f"{train_s:.2f} s of steps are reported but the run took {wall_s:.2f} s"),
            )
        return TrialResult(
            trial=self._trial,
            status=status,
            reason=reason,
            iterations=self._steps_done(),
            # what a run that was cut short reached is not what the program reaches
            val_accuracy=self._progress.accuracy if ended else None,
            reported=dict(self._progress.figures) if ended else {},
            curve=tuple(self._progress.curve(self._began_s)),
            measurement=measurement(usage, train_s, cpu_s, wall_s, self._setup.limits),
            log_tail="" if status.usable else tail,
        )

    def _doubt(self) -> str:
        """Return why the setting did not reach what reads it; empty if it did."""
        for name, value in self._asked.items():
            if name == PRELOAD:
                first = value.partition(":")[0]
                if not {first, os.path.realpath(first)} & self._mapped:
                    return f"{Path(first).name} was not loaded"
            elif self._reader_seen and name not in self._reached:
                return f"the program does not pass {name} on to what reads it"
        return ""

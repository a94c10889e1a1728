"""Runs of a program on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tuner import measure
from tuner.config.schema import ExecutorConfig, MeasureConfig
from tuner.executors import CoreSlot, RayExecutor
from tuner.progress import StudyProgress
from tuner.trials.setup import core_sets
from tuner.values.trial import Trial
from tuner.wrap.aim import Aim, Ran, Seen
from tuner.wrap.hints import telling
from tuner.wrap.knobs import Knob
from tuner.wrap.objective import Objective
from tuner.wrap.packing import pack, place_program, state_of
from tuner.wrap.program import Brought, Program
from tuner.wrap.record import Record, facts_of
from tuner.wrap.request import Request, option
from tuner.wrap.run import Runner

_MAX_RUNS = 512  # at once
_END_S = 10.0  # for runs that are cancelled


@dataclass(frozen=True)
class Order:
    """What the nodes are told of a study.

    Attributes:
        executor: The cluster, and the CPUs of its nodes.
        program: The program, with what it brings along.
        objective: What is minimised.
        state: What tells the content of its folder from others, see ``state_of``.
        archive: Its folder, packed; empty if it is too large to be sent.
    """

    executor: ExecutorConfig
    program: Program
    objective: Objective
    state: str
    archive: bytes


@dataclass(frozen=True)
class _Place:
    """What this machine knows of the runs."""

    folder: Path
    marker: str
    cores: tuple[int, ...]


class Nodes:
    """Runs one program many times, on the nodes of a cluster that are like this machine.

    Runs one after the other are on one node, as long as it is there. A run whose node is lost is
    repeated on another.

    Args:
        request: What is asked of the study.
        folder: Holds a folder per run with what is kept of it.
        marker: Identifies the processes of all runs.
        facts: The machine, and what is measured with.
        say: Told which nodes are not used, and which are lost.

    Attributes:
        knobs: The knobs that settings are of.
        in_percent: Whether the program tells accuracies in per cent; ``None`` if that is unknown.
    """

    def __init__(
        self,
        request: Request,
        folder: Path,
        marker: str,
        facts: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.knobs: Sequence[Knob] = ()
        self.in_percent: bool | None = None
        self._request, self._facts, self._say = request, facts, say
        self._place = _Place(folder, marker, core_sets(request.executor, option)[0])
        self._pool = ThreadPoolExecutor(_MAX_RUNS, thread_name_prefix="runs")
        self._running: set[Future[Ran]] = set()

    @cached_property
    def _executor(self) -> RayExecutor:
        program = self._request.program
        order = Order(
            self._request.executor,
            replace(program, brought=Brought(program.executable, program.environment)),
            self._request.objective,
            state_of(program),
            pack(program.folder) if program.confined else b"",
        )
        return RayExecutor(
            order,
            self._place,
            measure.fingerprint(self._facts),
            say=self._say,
            check=lambda: None,
            slot=ProgramSlot,
        )

    def open(self) -> None:
        """Prepare the nodes, which otherwise the first run does.

        Raises:
            ConfigError: If there is no cluster at the address.
            RuntimeUnavailable: If no node can run the program.
        """
        _ = self._executor

    @property
    def slots(self) -> int:
        """Number of runs that may take place at once."""
        return self._executor.slots

    def submit(self, trial: Trial, aim: Aim) -> Future[Ran]:
        """Run the program with a setting as soon as a node is free."""
        future = self._pool.submit(self._run, self._executor, trial, aim)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _run(self, executor: RayExecutor, trial: Trial, aim: Aim) -> Ran:
        answer = executor.submit(trial, aim, tuple(self.knobs), self.in_percent).result()
        return answer if isinstance(answer, tuple) else (answer, Seen())  # no node carried it out

    def close(self) -> None:
        """End all runs, and leave the cluster."""
        if "_executor" in vars(self):
            self._executor.cancel()
            wait([*self._running], timeout=_END_S)  # a node ends what a program has detached
            self._executor.close()
        self._pool.shutdown()


def make_runner(request: Request, record: Record, progress: StudyProgress) -> Runner | Nodes:
    """Return what runs the program: on this machine, or on the nodes of a cluster."""
    folder, marker = record.folder.trials, record.folder.marker
    if request.executor.name == "ray":
        return Nodes(request, folder, marker, record.facts, say=progress.message)
    return Runner(
        request.program,
        folder,
        marker,
        record.cores,
        int(request.executor.memory_share * measure.total_memory_bytes()),
        MeasureConfig(),
        request.objective,
        tell=telling(progress, request.program),
    )


class ProgramSlot(CoreSlot):
    """A core set of this node, and a program that runs there.

    Args:
        order: What the node is told of the study.
        study_id: Marks the study's processes.

    Raises:
        ConfigError, RuntimeUnavailable: If the program cannot be run here.
    """

    def __init__(self, order: Order, study_id: str) -> None:
        super().__init__(order.executor, study_id)
        sets = core_sets(order.executor, option)
        total, share = measure.total_memory_bytes(), order.executor.memory_share
        limit = order.executor.memory_limit_mb * 2**20 or int(share * total / len(sets))
        place = self.folder / "program"
        program = place_program(order.program, order.state, order.archive, place)
        program.check()
        self._runner = Runner(
            program, self.folder, self.marker, self.cores, limit, MeasureConfig(), order.objective
        )

    def facts(self) -> tuple[str, str]:
        """Return the node's fingerprint and a display name of this slot."""
        facts = facts_of(self._runner.program, self.cores)
        return measure.fingerprint(facts), self.name

    def run(
        self, trial: Trial, aim: Aim, knobs: Sequence[Knob], in_percent: bool | None
    ) -> tuple[Ran, dict[str, bytes]]:
        """Run the program to its end.

        Raises:
            OSError: If this node's disk is full or broken; the setting is not to blame.
        """
        self._runner.knobs, self._runner.in_percent = knobs, in_percent
        ran = self._runner.run(trial, aim)
        return ran, self.files_of(ran[0])

    def cancel(self) -> None:
        """End the program that runs; its result is ``INTERRUPTED``."""
        self._runner.cancelled.set()

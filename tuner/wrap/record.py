"""The record of a study of a program: its folder, MLflow, and the report."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shlex

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.progress import StudyProgress
from tuner.storage.study_folder import StudyFolder, home_id, write_atomically
from tuner.tracking import PROGRAM_FRONT, PROGRAMS, Outbox, Tracker, default_tracking_uri
from tuner.trials.setup import core_sets
from tuner.values.addresses import without_password
from tuner.values.errors import StorageError
from tuner.values.trial import TrialKind, TrialResult
from tuner.wrap.aim import Seen
from tuner.wrap.document import document
from tuner.wrap.knobs import all_knobs
from tuner.wrap.program import Program
from tuner.wrap.report import answer, describe
from tuner.wrap.request import Request, option
from tuner.wrap.result import WrapResult
from tuner.wrap.window import Window

_KINDS = (TrialKind.DEFAULT, TrialKind.SEARCH, TrialKind.VERIFY)


def facts_of(program: Program, cores: tuple[int, ...]) -> dict[str, str]:
    """Return what determines how fast a program runs on this machine, ready to print."""
    facts = measure.machine_facts(cores)
    if not program.confined:
        facts["sandbox"] = "off"
    if program.may_use_gpu and (names := measure.gpu_names()):
        facts["gpu"] = names
    return facts


class Record:
    """Where a study of a program keeps what it measured.

    The id depends on the program, the machine and all that changes its figures, so that the same
    command resumes the study.

    Args:
        request: What is asked for.
        progress: Told of faults of MLflow.
        on_exit: Unlocks the folder.

    Attributes:
        id: Id of the study.
        cores: CPUs that a run may use, as they are numbered here.
        facts: The machine, and what is measured with.
        folder: The study's folder, locked.

    Raises:
        ConfigError: If another process runs the study.
        StorageError: If the folder or MLflow's store cannot be used.
    """

    def __init__(
        self, request: Request, progress: StudyProgress, on_exit: contextlib.ExitStack
    ) -> None:
        self._program = program = request.program
        self.cores = core_sets(request.executor, option)[0]
        self.facts = facts_of(program, self.cores)
        known = all_knobs(len(self.cores), measure.cpu_flags())
        identity = {
            "program": program.identity(),
            "objective": request.objective.value,
            "machine": measure.fingerprint(self.facts),
            # a later version, or a library that is installed, has other values to choose from
            "knobs": [repr(known), repr(request.knobs), request.without],
            "cores": self.cores,
            "place": [home_id(tuner_home()), without_password(request.tracking_uri)],
        }
        if request.executor.name != "local":
            identity["executor"] = dataclasses.asdict(request.executor)
        text = json.dumps(identity, sort_keys=True, default=str)
        self.id = hashlib.sha256(text.encode()).hexdigest()[:10]
        output = request.output.absolute()
        self.folder = StudyFolder(tuner_home() / "studies" / self.id, fresh=request.fresh)
        on_exit.callback(self.folder.close)
        self._tracker = Tracker(
            request.tracking_uri or default_tracking_uri(output),
            output,
            experiment=PROGRAMS,
            study_id=self.id,
            name=f"{program.name} {self.id}",
            tags={
                "fingerprint": measure.fingerprint(self.facts),
                "program": program.name,
                "objective": request.objective.value,
                "command": shlex.join(program.argv),
                **{f"machine.{name}": value for name, value in self.facts.items()},
            },
            params={"command": shlex.join(program.argv)},
            fresh=request.fresh,
        )
        self._say = progress.message
        self._outbox = Outbox(self._tracker, lambda _: contextlib.nullcontext(), self._say)

    @property
    def runs(self) -> list[TrialResult]:
        """All runs that have ended."""
        return self.folder.results(*_KINDS)

    @property
    def first(self) -> TrialResult:
        """The run of the program as it is, once it has ended.

        Raises:
            StorageError: If its result was lost.
        """
        kept = self.folder.results(TrialKind.DEFAULT)
        if not kept:  # what follows was measured in the steps that were chosen by it
            raise StorageError(
                f"the first run of study {self.id} cannot be read any more; --restart starts over"
            )
        return kept[0]

    @property
    def reached(self) -> float | None:
        """The figure of the first run that must not get worse, with more as better."""
        return self._program.goal.of(self.first)

    @property
    def tried(self) -> list[TrialResult]:
        """The runs of the search, the first included."""
        return self.folder.results(TrialKind.DEFAULT, TrialKind.SEARCH)

    @property
    def raced(self) -> list[TrialResult]:
        """Those with the program's own params."""
        part_of = self._program.params.part_of
        return [each for each in self.tried if not part_of(each.trial.params)]

    @property
    def seen(self) -> Seen:
        """What the first run showed besides its figures; nothing before it has ended."""
        facts = self.folder.facts.get("default")
        if facts is None:
            return Seen()
        return Seen(
            window=Window(*facts["window"]) if facts["window"] else None,
            source=facts["source"],
            mapped=frozenset(facts["mapped"]),
            start_s=facts["start_s"],
            in_percent=facts["in_percent"],
        )

    def begin(self) -> None:
        """Open the study in MLflow, and bring it up to date."""
        self._outbox.begin()
        for result in self.runs:
            self._send(result)
        # without its first run the study cannot go on, see ``first``
        own = TrialKind.DEFAULT.value
        again = [each for each in self.folder.damaged if not each.startswith(own)]
        if again:
            self._outbox.forget(*again)
            self._say(
                f"results of {', '.join(again)} were damaged: they are set aside, and measured "
                "again"
            )

    def keep(self, result: TrialResult) -> None:
        """Store a run that has ended."""
        self.folder.keep(result)
        self._send(result)

    def keep_seen(self, seen: Seen) -> None:
        """Store what the first run showed besides its figures."""
        window = [seen.window.first, seen.window.last] if seen.window else None
        facts = {**vars(seen), "window": window, "mapped": sorted(seen.mapped)}
        self.folder.save(default=facts)

    def _send(self, result: TrialResult) -> None:
        self._outbox.send(result, self.folder.trials / result.trial.name)

    def fail(self, error: Exception) -> None:
        """Show the study as failed."""
        self._tracker.fail(str(error) or type(error).__name__)

    def finish(self, result: WrapResult, *, complete: bool) -> None:
        """Store the report; of a study that was interrupted, what it found so far."""
        folder = self.folder.path / "report"
        folder.mkdir(exist_ok=True)
        files = {
            PROGRAM_FRONT: json.dumps(document(result), indent=1),
            "report.txt": describe(result),
        }
        for name, text in files.items():
            write_atomically(folder / name, text)
        metrics = {"elapsed_s": result.elapsed_s}
        if result.proof:
            metrics["speedup"] = result.proof.speedup.value
            metrics["gain"] = result.proof.gain.value
        self._outbox.finish(
            [folder / name for name in files],
            {f"environment.{name}": value for name, value in result.variables.items()},
            complete=complete,
            metrics=metrics,
            description=answer(result),
        )

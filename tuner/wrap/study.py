"""A study of a program: run it as it is, try settings one by one, and prove the fastest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.config.schema import ExecutorConfig, MeasureConfig
from tuner.progress import StudyProgress
from tuner.storage.study_folder import StudyFolder, home_id, write_atomically
from tuner.tracking import Outbox, Tracker, default_tracking_uri
from tuner.trials.session import remove_worker_folders
from tuner.trials.setup import claim_cores
from tuner.values.addresses import without_password
from tuner.values.errors import ConfigError, NoTrialSucceeded
from tuner.values.trial import Trial, TrialKind, TrialResult, TrialStatus
from tuner.wrap.comparison import MIN_PAIRS, compare
from tuner.wrap.descent import Descent
from tuner.wrap.knobs import Knob, find_knobs, variables_of
from tuner.wrap.program import Program
from tuner.wrap.report import answer, describe, document
from tuner.wrap.result import WrapResult
from tuner.wrap.run import Aim, Runner, Seen
from tuner.wrap.steps import Window

EXPERIMENT = "programs"
_BEATEN = 1.3  # times as slow as the best so far: such a run is ended
_PAIRS = 6  # of interleaved runs, if there is time
_RESERVED = 0.4  # of the budget, at most, for these
_IN_RUNS = 10.0  # length of a study in whole runs, unless it is given
_IN_STEPS_S = 300.0  # length of a study whose runs can be cut short
_LEAST_S = 60.0  # length of any study that nobody asked to be shorter
_MEASURED = 1 / 60  # of the budget: steps of one run
_MEASURED_S = (1.0, 30.0)
_FIRST_LIMIT_S = 24 * 3600.0
_AROUND_S = 0.3  # of each run, outside the program
_SLOWEST = 20.0  # times as long as the first run: then a run hangs
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        program: The program.
        budget_s: Seconds for the study; 0 for 5 minutes, or ten runs of a program whose progress
            cannot be seen.
        cores: CPUs that it may use, such as ``0-3``; empty for all.
        knobs: Knobs that the user adds.
        without: Names of knobs that are left alone.
        output: Folder of MLflow's artifacts.
        tracking_uri: MLflow's address; empty for a database in ``output``.
        fresh: Whether earlier results of the same command are deleted.
    """

    program: Program
    budget_s: float = 0.0
    cores: str = ""
    knobs: tuple[Knob, ...] = ()
    without: tuple[str, ...] = ()
    output: Path = Path()
    tracking_uri: str = ""
    fresh: bool = False


def wrap(request: Request, progress: StudyProgress) -> WrapResult:
    """Find and prove a program's fastest runtime setting, or resume an interrupted study.

    Raises:
        ConfigError: Something asked for cannot be used.
        RuntimeUnavailable: No sandbox works here.
        NoTrialSucceeded: The program does not run as it is.
    """
    request.program.check()
    with contextlib.ExitStack() as stack:
        study = _Study(request, progress, stack)
        return study.run()


class _Study:
    def __init__(
        self, request: Request, progress: StudyProgress, on_exit: contextlib.ExitStack
    ) -> None:
        self._request, self._progress = request, progress
        program = request.program
        self._executor = ExecutorConfig(cores=request.cores)
        cores = measure.parse_cores(request.cores)
        self._facts = measure.machine_facts(cores)
        if not program.confined:
            self._facts["sandbox"] = "off"
        identity = {
            "program": program.identity(),
            "machine": measure.fingerprint(self._facts),
            "knobs": [repr(request.knobs), request.without],
            "cores": cores,
            "place": [home_id(tuner_home()), without_password(request.tracking_uri)],
        }
        text = json.dumps(identity, sort_keys=True, default=str)
        self._id = hashlib.sha256(text.encode()).hexdigest()[:10]
        self._folder = StudyFolder(tuner_home() / "studies" / self._id, fresh=request.fresh)
        on_exit.callback(self._folder.close)
        self._runner = Runner(
            program,
            self._folder.trials,
            self._folder.marker,
            cores,
            int(_MEMORY_SHARE * measure.total_memory_bytes()),
            MeasureConfig(),
            tell=progress.trial_progress,
        )
        measure.kill_marked(f"{self._folder.marker}/")
        remove_worker_folders(self._folder.trials)
        output = request.output.expanduser().absolute()
        uri = request.tracking_uri or default_tracking_uri(output)
        self._tracker = Tracker(
            uri,
            output,
            experiment=EXPERIMENT,
            study_id=self._id,
            name=f"{program.name} {self._id}",
            tags={
                "fingerprint": measure.fingerprint(self._facts),
                "program": program.name,
                "command": shlex.join(program.argv),
                **{f"machine.{name}": value for name, value in self._facts.items()},
            },
            params={"command": shlex.join(program.argv)},
            fresh=request.fresh,
        )
        self._outbox = Outbox(self._tracker, lambda _: contextlib.nullcontext(), progress.message)
        find_knobs([], 1, [], own=request.knobs, without=request.without)  # refuses unknown names
        self._knobs: list[Knob] = []
        self._window: Window | None = None

    def run(self) -> WrapResult:
        """Run, or resume, the study; report what it found so far if it is interrupted."""
        self._outbox.begin()
        for result in self._runs():
            self._outbox.send(result, self._folder.trials / result.trial.name)
        try:
            with claim_cores(self._executor, self._progress):
                self._folder.restart_clock()
                self._folder.save(framework=self._request.program.name, dataset="own")
                self._default()
                self._search()
                self._prove()
        except KeyboardInterrupt:
            self._finish(complete=False)
            raise
        except Exception as error:
            self._tracker.fail(str(error) or type(error).__name__)
            raise
        self._folder.save(complete=True)
        return self._finish(complete=True)

    # -- the program as it is ---------------------------------------------------------------------

    def _default(self) -> None:
        """Run the program as it is; learn what it loads and how its progress can be seen."""
        if "default" not in self._folder.facts:
            self._progress.phase("default", "the program as it is")
            budget_s = self._request.budget_s or _IN_STEPS_S
            measured_s = min(max(_MEASURED * budget_s, _MEASURED_S[0]), _MEASURED_S[1])
            trial = Trial(0, {}, TrialKind.DEFAULT)
            aim = Aim(
                measured_s=measured_s,
                whole=bool(self._request.program.metric),
                time_limit_s=_FIRST_LIMIT_S,
            )
            result, seen = self._runner.run(trial, aim)
            if not result.usable:
                tail = result.log_tail.splitlines()[-1:] or ["it printed nothing"]
                raise NoTrialSucceeded(
                    f"the program does not run as it is: {result.status.value}: {result.reason}; "
                    f"the end of its output: {tail[0]}"
                )
            self._keep(result)
            self._folder.save(default=_facts_of(seen))
        facts = self._folder.facts["default"]
        self._window = Window(*facts["window"]) if facts["window"] else None
        self._source = str(facts["source"])
        self._knobs = find_knobs(
            facts["mapped"],
            len(self._runner.cores),
            measure.cpu_flags(),
            own=self._request.knobs,
            without=self._request.without,
        )
        if not self._knobs:
            raise ConfigError(
                "the program loads no library of known settings, or ended too soon to see it; "
                "--knob VARIABLE=value,… names variables of its own"
            )
        self._runner.knobs = self._knobs

    @property
    def _first(self) -> TrialResult:
        return self._folder.results(TrialKind.DEFAULT)[0]

    @property
    def _budget_s(self) -> float:
        if self._request.budget_s:
            return self._request.budget_s
        in_runs_s = max(_LEAST_S, _IN_RUNS * self._wall_s)
        if not self._window:
            return in_runs_s
        return max(_IN_STEPS_S, in_runs_s) if self._proves_by_whole_runs else _IN_STEPS_S

    @property
    def _wall_s(self) -> float:
        """Wall time of the first run."""
        measured = self._first.measurement
        assert measured is not None
        return measured.wall_time_s

    # -- the search -------------------------------------------------------------------------------

    def _descent(self) -> Descent:
        tried = self._folder.results(TrialKind.DEFAULT, TrialKind.SEARCH)
        return Descent(self._knobs, [(each.trial.params, _seconds(each)) for each in tried])

    def _search(self) -> None:
        """Try one setting after the other, until none is left or the rest is for the proof."""
        self._progress.phase("search", f"{len(self._knobs)} knobs")
        if self._folder.facts.get("pairs"):
            return
        while (setting := self._descent().next) is not None:
            best_s = min(_seconds(each) for each in self._tried())
            cost_s = self._cost_s(_BEATEN * best_s)
            left_s = self._budget_s - self._folder.elapsed_s
            if left_s - cost_s < min(
                2 * MIN_PAIRS * self._cost_s(best_s), _RESERVED * self._budget_s
            ):
                return
            number = 1 + max((each.trial.number for each in self._tried()), default=0)
            trial = Trial(number, setting, TrialKind.SEARCH)
            self._progress.trial_started(trial)
            aim = Aim(
                window=self._window,
                whole=not self._window,
                beaten_s=_BEATEN * best_s,
                time_limit_s=_SLOWEST * self._wall_s + 60,
            )
            self._measure(trial, aim)

    def _tried(self) -> list[TrialResult]:
        return self._folder.results(TrialKind.DEFAULT, TrialKind.SEARCH)

    def _cost_s(self, train_s: float) -> float:
        """Return the wall time of a run whose measured part takes this long."""
        start_s = float(self._folder.facts["default"]["start_s"])
        return start_s + train_s + _AROUND_S

    def _measure(self, trial: Trial, aim: Aim) -> TrialResult:
        """Run a setting; once more if others disturbed it."""
        result, _ = self._runner.run(trial, aim)
        if result.measurement and result.measurement.disturbed and result.usable:
            result, _ = self._runner.run(trial, aim)
        self._keep(result)
        return result

    def _keep(self, result: TrialResult) -> None:
        self._folder.keep(result)
        self._outbox.send(result, self._folder.trials / result.trial.name)
        self._progress.trial_finished(result, [])
        self._progress.budget(
            self._folder.elapsed_s, self._budget_s, len(self._runs()), max_trials=0
        )

    # -- the proof --------------------------------------------------------------------------------

    def _prove(self) -> None:
        """Run the fastest setting and the program as it is in turns."""
        facts = self._folder.facts
        if not facts.get("pairs"):
            best = self._descent().best
            count = self._affordable_pairs() if best else 0
            self._folder.save(pairs=count, best=best)
        best, count = facts["best"], facts["pairs"]
        if not count:
            return
        self._progress.phase("verify", f"{count} pairs of runs")
        done = {each.trial.number for each in self._folder.results(TrialKind.VERIFY)}
        for number in range(2 * count):
            if {number, number ^ 1} <= done:  # both of a pair, or it is run again
                continue
            # own, best, best, own: so a drift of the machine's speed cancels out
            own = number % 4 in (0, 3)
            trial = Trial(number, {} if own else best, TrialKind.VERIFY)
            self._progress.trial_started(trial)
            steps = None if self._proves_by_whole_runs else self._window
            limit_s = _SLOWEST * self._wall_s + 60
            aim = Aim(window=steps, whole=not steps, time_limit_s=limit_s)
            result = self._measure(trial, aim)
            if math.isinf(_seconds(result)):
                return

    @property
    def _proves_by_whole_runs(self) -> bool:
        """Whether accuracy is read, which a part of a run does not show."""
        return bool(self._request.program.metric) or self._first.val_accuracy is not None

    def _affordable_pairs(self) -> int:
        left_s = self._budget_s - self._folder.elapsed_s
        best_s = min(_seconds(each) for each in self._tried())
        pair_s = self._cost_s(_seconds(self._first)) + self._cost_s(best_s)
        if self._proves_by_whole_runs:
            pair_s = 2 * self._wall_s
        return max(MIN_PAIRS, min(_PAIRS, int(left_s / pair_s)))

    # -- the result -------------------------------------------------------------------------------

    def _runs(self) -> list[TrialResult]:
        return self._folder.results(TrialKind.DEFAULT, TrialKind.SEARCH, TrialKind.VERIFY)

    def _pairs(self) -> list[tuple[TrialResult, TrialResult]]:
        runs = {each.trial.number: each for each in self._folder.results(TrialKind.VERIFY)}
        pairs = []
        for first in range(0, 2 * int(self._folder.facts.get("pairs", 0)), 2):
            both = [runs.get(first), runs.get(first + 1)]
            own = next((each for each in both if each and not each.trial.params), None)
            changed = next((each for each in both if each and each.trial.params), None)
            if own and changed and math.isfinite(_seconds(own) + _seconds(changed)):
                pairs.append((own, changed))
        return pairs

    def _finish(self, *, complete: bool) -> WrapResult:
        result = self.result()
        self._progress.phase("report")
        folder = self._folder.path / "report"
        folder.mkdir(exist_ok=True)
        files = {
            "wrap.json": json.dumps(document(result), indent=1),
            "report.txt": describe(result),
        }
        for name, text in files.items():
            write_atomically(folder / name, text)
        metrics = {"elapsed_s": result.elapsed_s}
        if result.proof:
            metrics["speedup"] = result.proof.speedup.value
        self._outbox.finish(
            [folder / name for name in files],
            {f"environment.{name}": value for name, value in result.variables.items()},
            complete=complete,
            metrics=metrics,
            description=answer(result),
        )
        return result

    def result(self) -> WrapResult:
        """Return what was found so far."""
        default = self._folder.facts.get("default", {})
        window = default.get("window")
        descent = self._descent() if self._tried() else None
        best = self._folder.facts.get("best", descent.best if descent else {})
        program = self._request.program
        runs = self._folder.results(TrialKind.VERIFY)
        failed = next((each for each in runs if math.isinf(_seconds(each))), None)
        return WrapResult(
            program=program,
            runs=self._runs(),
            window=Window(*window) if window else None,
            source=str(default.get("source", "")),
            best=best,
            variables=variables_of(self._knobs, best, program.environment),
            effects=descent.effects if descent else (),
            proof=None if failed else compare(self._pairs()),
            failed=failed,
            elapsed_s=self._folder.elapsed_s,
            study_id=self._id,
            facts=self._facts,
        )


def _facts_of(seen: Seen) -> dict[str, Any]:
    return {
        "window": [seen.window.first, seen.window.last] if seen.window else None,
        "source": seen.source,
        "mapped": sorted(seen.mapped),
        "start_s": seen.start_s,
    }


def _seconds(run: TrialResult) -> float:
    """Return the seconds of what is compared; infinite if the run failed or was given up."""
    if run.status is not TrialStatus.COMPLETE or run.measurement is None:
        return math.inf
    return run.measurement.train_time_s or math.inf

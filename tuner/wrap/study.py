"""A study of a program: run it as it is, try settings and params, and prove the best."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from tuner import measure
from tuner.progress import StudyProgress
from tuner.trials.session import remove_worker_folders
from tuner.trials.setup import claim_cores
from tuner.values.errors import ConfigError, NoTrialSucceeded
from tuner.values.params import Params
from tuner.values.trial import Trial, TrialKind, TrialResult
from tuner.wrap.aim import Aim, Ran
from tuner.wrap.descent import Descent
from tuner.wrap.goal import Goal
from tuner.wrap.hints import complaint, rangeless
from tuner.wrap.knobs import Knob, find_knobs, knob_names, timed_knobs
from tuner.wrap.nodes import make_runner
from tuner.wrap.objective import Objective
from tuner.wrap.param_runs import ParamRuns
from tuner.wrap.proving import Proving
from tuner.wrap.record import Record
from tuner.wrap.request import Request
from tuner.wrap.result import WrapResult
from tuner.wrap.run import Runner
from tuner.wrap.schedule import Schedule

_BEATEN = 1.3  # times as much as the best so far: such a run is ended
_FIRST_LIMIT_S = 24 * 3600.0
# seconds of a program, by the wall or by its CPUs, below which samples miss too much of it
_LEAST_S = {Objective.MEMORY: 0.5, Objective.CPU: 0.1}


def wrap(request: Request, progress: StudyProgress) -> WrapResult:
    """Find and prove a program's best runtime setting, or resume an interrupted study.

    Raises:
        ConfigError: Something asked for cannot be used.
        RuntimeUnavailable: No sandbox works here.
        NoTrialSucceeded: The program does not run as it is.
    """
    request.program.check()
    with contextlib.ExitStack() as stack:
        return _Study(request, progress, stack).run()


class _Study:
    def __init__(
        self, request: Request, progress: StudyProgress, on_exit: contextlib.ExitStack
    ) -> None:
        self._request, self._progress = request, progress
        self._record = Record(request, progress, on_exit)
        self._folder = self._record.folder
        self._schedule = Schedule(request, self._record)
        self._param_runs = ParamRuns(request, self._record, self._schedule)
        self._runner = make_runner(request, self._record, progress)
        measure.kill_marked(f"{self._folder.marker}/")
        remove_worker_folders(self._folder.trials)
        self._require_other_names()
        for warning in rangeless(request.program):
            progress.warn(warning)
        self._own_knobs = [*timed_knobs(request.program.params), *request.knobs]
        # refuses unknown names
        find_knobs([], 1, [], own=self._own_knobs, without=request.without)
        self._objective = request.objective
        self._proving = Proving(self._folder, request.program, self._objective, self._prove_by)
        self._knobs: list[Knob] = []

    def run(self) -> WrapResult:
        """Run, or resume, the study; report what it found so far if it is interrupted."""
        self._record.begin()
        known = len(self._record.runs) if self._folder.facts.get("complete") else -1
        try:
            with self._machines():
                self._folder.restart_clock()
                self._folder.save(framework=self._request.program.name, dataset="own")
                self._default()
                self._search()
                self._search_params()
                self._prove()
        except KeyboardInterrupt:
            self._record.finish(self.result(), complete=False)
            raise
        except Exception as error:
            self._record.fail(error)
            raise
        self._folder.save(complete=True)
        if len(self._record.runs) == known:
            self._progress.message("nothing was left to measure; --restart measures again")
        result = self.result()
        self._record.finish(result, complete=True)
        return result

    @contextlib.contextmanager
    def _machines(self) -> Iterator[None]:
        """Claim the cores of this machine; or prepare nodes, and end all runs there at the end."""
        if isinstance(self._runner, Runner):
            with claim_cores(self._request.executor, self._progress):
                yield
            return
        with contextlib.closing(self._runner):
            if not self._folder.facts.get("complete"):
                self._progress.phase("prepare", "the nodes of the Ray cluster")
                self._runner.open()
            yield

    # -- the program as it is ---------------------------------------------------------------------

    def _default(self) -> None:
        """Run the program as it is; learn what it loads and how its progress can be seen."""
        if "default" not in self._folder.facts:
            self._progress.phase("default", "the program as it is")
            measured_s = self._schedule.measured_s
            if self._objective is Objective.MEMORY and self._reads_quality:
                measured_s = math.inf  # no peak of a part of a run goes with that of whole runs
            trial = Trial(0, {}, TrialKind.DEFAULT)
            aim = Aim(
                measured_s=measured_s,
                whole=self._reads_quality,
                time_limit_s=_FIRST_LIMIT_S,
                once=True,
            )
            result, seen = self._runner.submit(trial, aim).result()
            if not result.usable:
                log = self._folder.trials / trial.name / "log.txt"
                raise NoTrialSucceeded(complaint(result, log, self._request.program))
            self._keep(result)
            self._record.keep_seen(seen)
        self._require_quality()
        self._require_enough_seen()
        self._runner.in_percent = self._record.seen.in_percent
        self._knobs = self._find_knobs(self._request.without)
        if not self._knobs and not self._request.program.params:
            raise ConfigError(self._why_no_knobs())
        self._runner.knobs = self._knobs

    def _find_knobs(self, without: Sequence[str]) -> list[Knob]:
        """Return the knobs of the libraries that the program loads, and the user's own."""
        mapped, cores = self._record.seen.mapped, len(self._record.cores)
        return find_knobs(mapped, cores, measure.cpu_flags(), own=self._own_knobs, without=without)

    def _why_no_knobs(self) -> str:
        """Tell why there is no setting to try, and what would give one."""
        remedy = "--knob VARIABLE=value,… names variables of its own"
        if left := [each.name for each in self._find_knobs([])]:
            names = ", ".join(left)
            return f"--without leaves out every knob of the program: {names}; {remedy}"
        return (
            "the program loads no library of known settings, or ended too soon to see it; "
            f"{remedy}"
        )

    @property
    def _reads_quality(self) -> bool:
        """Whether the user asked for something that only whole runs show."""
        program = self._request.program
        return bool(program.metric or program.params or program.goal != Goal())

    def _require_other_names(self) -> None:
        """Raise ``ConfigError`` if a param has the name of a knob."""
        request, params = self._request, self._request.program.params
        knobs = {*knob_names(), *(each.name for each in request.knobs)}
        without = {*request.without} - params.timed.keys()  # those are knobs themselves
        if clash := (knobs & params.names) - without:
            name = min(clash)
            or_without = "" if name in params.timed else f", or add --without {name}"
            raise ConfigError(
                f"the param {name} has the name of a knob; give it another one{or_without}"
            )

    def _require_quality(self) -> None:
        program, own = self._request.program, self._record.reached
        if own is not None and not program.goal.allowance(own):
            raise ConfigError(
                f"the program reaches a {program.goal.name} of 0 by itself; --margin says what "
                "counts as no loss of it"
            )
        if not self._reads_quality or own is not None:
            return
        if program.metric:
            raise ConfigError(f"--metric {program.metric!r} matches nothing that was printed")
        names = ", ".join(sorted(program.params.names))
        then = f" while its params are searched ({names})" if names else ""
        raise ConfigError(
            f"the program told no {program.goal.name}, which must not get worse{then}; let it "
            f"report it (docs/wrap.md), or add --metric '{program.goal.name}[:=] *"
            rf"(?P<{program.goal.name}>\S+)'"
        )

    def _require_enough_seen(self) -> None:
        """Raise ``ConfigError`` if the program is over too soon to see what is minimised."""
        objective, measured = self._objective, self._record.first.measurement
        assert measured is not None
        seen_s, what = measured.wall_time_s, "ends after {:.2f} s"
        if objective is Objective.CPU:
            seen_s, what = objective.of_whole(measured), "uses {:.2f} s of CPU time"
        if seen_s < _LEAST_S.get(objective, 0.0):
            raise ConfigError(
                f"the program {what.format(seen_s)}, too little to compare its {objective.used}; "
                "let it train longer, or leave out --objective"
            )

    # -- the search -------------------------------------------------------------------------------

    def _descent(self) -> Descent:
        raced = self._record.raced
        return Descent(
            self._knobs, [(each.trial.params, self._objective.of(each)) for each in raced]
        )

    def _search(self) -> None:
        """Try one setting after the other, until none is left or the rest is for the proof."""
        self._progress.phase("search", f"{len(self._knobs)} knobs")
        if self._proving.begun:
            return
        schedule, window = self._schedule, self._record.seen.window
        while (setting := (descent := self._descent()).next) is not None:
            best = min(self._record.raced, key=self._objective.of)
            best_s = Objective.TIME.of(best)
            kept_s = schedule.kept_s(best_s, found=bool(descent.best))
            if schedule.left_s - schedule.cost_s(_BEATEN * best_s) < kept_s:
                return
            aim = Aim(
                window=window,
                whole=not window,
                beaten=_BEATEN * self._objective.of(best),
                time_limit_s=schedule.search_limit_s(kept_s),
            )
            self._measure(self._next_trial(setting), aim)

    def _search_params(self) -> None:
        """Try params at the fastest runtime setting, until the rest of the time is for proofs."""
        if not self._request.program.params or self._proving.begun:
            return
        self._progress.phase("search", "params")
        fastest = self._descent().best
        running: dict[Future[Ran], Trial] = {}
        while True:
            pending = [*running.values()]
            if planned := self._param_runs.next(fastest, [each.params for each in pending]):
                setting, aim = planned
                trial = self._next_trial(setting, pending)
                running[self._runner.submit(trial, aim)] = trial
                if len(running) < self._runner.slots:
                    continue
            elif not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
                self._keep(ended.result()[0])

    def _next_trial(self, setting: Params, running: Sequence[Trial] = ()) -> Trial:
        known = [*(each.trial for each in self._record.tried), *running]
        trial = Trial(1 + max(each.number for each in known), setting, TrialKind.SEARCH)
        self._progress.trial_started(trial)
        return trial

    def _measure(self, trial: Trial, aim: Aim) -> TrialResult:
        result, _ = self._runner.submit(trial, aim).result()
        self._keep(result)
        return result

    def _keep(self, result: TrialResult) -> None:
        self._record.keep(result)
        self._progress.trial_finished(result, [])
        self._progress.budget(
            self._folder.elapsed_s, self._schedule.budget_s, len(self._record.runs), max_trials=0
        )

    # -- the proof --------------------------------------------------------------------------------

    def _prove(self) -> None:
        """Run the best settings and the program as it is in turns."""
        self._progress.phase("verify", "in turns with the program as it is")
        self._proving.run(self._finalists(), self._schedule.affordable_pairs)

    def _finalists(self) -> list[Params]:
        """Return the settings worth a proof, the most promising first."""
        best = self._descent().best
        asked = self._request.program.params and self._schedule.proves_by_whole_runs
        with_params = self._param_runs.finalists if asked else []
        return with_params + ([best] if best else [])

    def _prove_by(self, trial: Trial) -> TrialResult:
        self._progress.trial_started(trial)
        schedule = self._schedule
        steps = None if schedule.proves_by_whole_runs else self._record.seen.window
        aim = Aim(window=steps, whole=not steps, time_limit_s=schedule.limit_s)
        return self._measure(trial, aim)

    # -- the result -------------------------------------------------------------------------------

    def result(self) -> WrapResult:
        """Return what was found so far."""
        # none yet if it is interrupted early
        self._knobs = self._knobs or self._find_knobs(self._request.without)
        descent = self._descent() if self._record.raced else None
        seen = self._record.seen
        return WrapResult(
            program=self._request.program,
            objective=self._objective,
            runs=self._record.runs,
            window=seen.window,
            source=seen.source,
            found=next(iter(self._finalists()), {}) if descent else {},
            knobs=self._knobs,
            effects=descent.effects if descent else (),
            tested=self._proving.tested,
            elapsed_s=self._folder.elapsed_s,
            study_id=self._record.id,
            facts=self._record.facts,
            gpu=self._gpu(),
            untried=descent.untried if descent else (),
        )

    def _gpu(self) -> str:
        """Return what the program had of a GPU, see ``WrapResult.gpu``."""
        mapped = self._record.seen.mapped
        if measure.opened_gpu(mapped):
            return "used"
        return "hidden" if self._request.program.misses_gpu(mapped) else ""

"""A study of a program: run it as it is, try settings and params, and prove the best."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from tuner import measure
from tuner.progress import StudyProgress
from tuner.trials.session import remove_worker_folders
from tuner.trials.setup import claim_cores
from tuner.values.errors import ConfigError, NoTrialSucceeded
from tuner.values.trial import Params, Trial, TrialKind, TrialResult
from tuner.wrap.comparison import MIN_PAIRS
from tuner.wrap.descent import SLACK, Descent
from tuner.wrap.goal import Goal
from tuner.wrap.hope import Hope, at_pace
from tuner.wrap.knobs import Knob, find_knobs, knob_names, timed_knobs
from tuner.wrap.nodes import make_runner
from tuner.wrap.objective import Objective
from tuner.wrap.param_search import ParamSearch
from tuner.wrap.proving import Proving
from tuner.wrap.record import Record
from tuner.wrap.request import Request
from tuner.wrap.result import WrapResult
from tuner.wrap.run import Aim, Ran, Runner, Seen
from tuner.wrap.steps import Window

_BEATEN = 1.3  # times as much as the best so far: such a run is ended
_PAIRS = 10  # of interleaved runs, if there is time
_PAIRS_WITH_PARAMS = 30  # as accuracy differs more from seed to seed than time from run to run
_KEPT_PAIRS = 5  # for which the search leaves time: three have an interval twice as wide
_RESERVED = 0.4  # of the budget, at most, for these
_RACED = 0.25  # of the budget, at most, for runtime settings where there are params too
_IN_RUNS = 10.0  # length of a study in whole runs, unless it is given
_IN_RUNS_WITH_PARAMS = 30.0
_IN_STEPS_S = 300.0  # length of a study whose runs can be cut short
_LEAST_S = 60.0  # length of any study that nobody asked to be shorter
_MEASURED = 1 / 60  # of the budget: steps of one run
_MEASURED_S = (1.0, 30.0)
_FIRST_LIMIT_S = 24 * 3600.0
_AROUND_S = 0.3  # of each run, outside the program
_SLOWEST = 20.0  # times as long as the first run: then a run hangs
_SEEN_S = {Objective.MEMORY: 0.5, Objective.CPU: 0.1}  # least that a program has to show: samples


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
        self._runner = make_runner(request, self._record, progress)
        measure.kill_marked(f"{self._folder.marker}/")
        remove_worker_folders(self._folder.trials)
        self._require_other_names()
        self._own_knobs = [*timed_knobs(request.program.params), *request.knobs]
        # refuses unknown names
        find_knobs([], 1, [], own=self._own_knobs, without=request.without)
        self._objective = request.objective
        self._proving = Proving(self._folder, request.program, self._objective, self._prove_by)
        self._knobs: list[Knob] = []
        self._window: Window | None = None

    def run(self) -> WrapResult:
        """Run, or resume, the study; report what it found so far if it is interrupted."""
        self._record.begin()
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
            budget_s = self._request.budget_s or _IN_STEPS_S
            measured_s = min(max(_MEASURED * budget_s, _MEASURED_S[0]), _MEASURED_S[1])
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
                tail = result.log_tail.splitlines()[-1:] or ["it printed nothing"]
                raise NoTrialSucceeded(
                    f"the program does not run as it is: {result.status.value}: {result.reason}; "
                    f"the end of its output: {tail[0]}"
                )
            self._keep(result)
            self._folder.save(default=_facts_of(seen))
        self._require_quality()
        self._require_enough_seen()
        facts = self._folder.facts["default"]
        self._window = Window(*facts["window"]) if facts["window"] else None
        self._runner.in_percent = facts["in_percent"]
        self._knobs = self._find_knobs(facts["mapped"])
        if not self._knobs and not self._request.program.params:
            raise ConfigError(
                "the program loads no library of known settings, or ended too soon to see it; "
                "--knob VARIABLE=value,… names variables of its own"
            )
        self._runner.knobs = self._knobs

    def _find_knobs(self, mapped: Sequence[str]) -> list[Knob]:
        request, cores = self._request, len(self._record.cores)
        flags = measure.cpu_flags()
        return find_knobs(mapped, cores, flags, own=self._own_knobs, without=request.without)

    @property
    def _reads_quality(self) -> bool:
        """Whether the user asked for something that only whole runs show."""
        program = self._request.program
        return bool(program.metric or program.params or program.goal != Goal())

    def _require_other_names(self) -> None:
        """Raise ``ConfigError`` if a param has the name of a knob."""
        request = self._request
        knobs = {*knob_names(), *(each.name for each in request.knobs)} - {*request.without}
        if clash := knobs & request.program.params.names:
            raise ConfigError(
                f"the param {min(clash)} has the name of a knob; give it another one, or add "
                f"--without {min(clash)}"
            )

    def _require_quality(self) -> None:
        program = self._request.program
        own = program.goal.of(self._first)
        if own is not None and not program.goal.allowance(own):
            raise ConfigError(
                f"the program reaches a {program.goal.name} of 0 by itself; --margin says what "
                "counts as no loss of it"
            )
        if not self._reads_quality or own is not None:
            return
        raise ConfigError(
            f"the program told no {program.goal.name}, which must not get worse; let it report "
            f"it (docs/wrap.md), or add --metric '{program.goal.name}[:=] *"
            rf"(?P<{program.goal.name}>\S+)'"
        )

    def _require_enough_seen(self) -> None:
        """Raise ``ConfigError`` if the program is over too soon to see what is minimised."""
        objective, measured = self._objective, self._first.measurement
        assert measured is not None
        seen_s, what = measured.wall_time_s, "ends after {:.2f} s"
        if objective is Objective.CPU:
            seen_s, what = objective.of_whole(measured), "uses {:.2f} s of CPU time"
        if seen_s < _SEEN_S.get(objective, 0.0):
            raise ConfigError(
                f"the program {what.format(seen_s)}, too little to compare its {objective.used}; "
                "let it train longer, or leave out --objective"
            )

    @property
    def _first(self) -> TrialResult:
        return self._folder.results(TrialKind.DEFAULT)[0]

    @property
    def _budget_s(self) -> float:
        if self._request.budget_s:
            return self._request.budget_s
        if self._request.program.params:
            return max(_IN_STEPS_S, _IN_RUNS_WITH_PARAMS * self._wall_s)
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
        return Descent(
            self._knobs, [(each.trial.params, self._objective.of(each)) for each in self._raced]
        )

    @property
    def _raced(self) -> list[TrialResult]:
        """The runs with the program's own params."""
        part_of = self._request.program.params.part_of
        return [each for each in self._tried if not part_of(each.trial.params)]

    @property
    def _tried(self) -> list[TrialResult]:
        return self._folder.results(TrialKind.DEFAULT, TrialKind.SEARCH)

    @property
    def _left_s(self) -> float:
        return self._budget_s - self._folder.elapsed_s

    def _search(self) -> None:
        """Try one setting after the other, until none is left or the rest is for the proof."""
        self._progress.phase("search", f"{len(self._knobs)} knobs")
        if self._proving.begun:
            return
        while (setting := self._descent().next) is not None:
            best = min(self._raced, key=self._objective.of)
            best_s = Objective.TIME.of(best)
            cost_s = self._cost_s(_BEATEN * best_s)
            kept_s = min(2 * _KEPT_PAIRS * self._cost_s(best_s), _RESERVED * self._budget_s)
            if self._request.program.params:
                kept_s = (1 - _RACED) * self._budget_s
            if self._left_s - cost_s < kept_s:
                return
            aim = Aim(
                window=self._window,
                whole=not self._window,
                beaten=_BEATEN * self._objective.of(best),
                time_limit_s=self._search_limit_s(kept_s),
            )
            self._measure(self._next_trial(setting), aim)

    def _search_params(self) -> None:
        """Try params at the fastest runtime setting, until the rest of the time is for proofs."""
        if not self._request.program.params or self._proving.begun:
            return
        self._progress.phase("search", "params")
        setting = self._descent().best
        running: dict[Future[Ran], Trial] = {}
        while True:
            next_run = self._next_with_params(setting, [*running.values()])
            if next_run:
                running[self._runner.submit(*next_run)] = next_run[0]
                if len(running) < self._runner.slots:
                    continue
            elif not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
                self._keep(ended.result()[0])

    def _next_with_params(
        self, setting: Params, running: Sequence[Trial]
    ) -> tuple[Trial, Aim] | None:
        """Return the next run with other params; ``None`` if there is no time, or none is left."""
        search = self._param_search([each.params for each in running])
        next_s = self._next_s(search)
        kept_s = min(_PAIRS_WITH_PARAMS * (self._wall_s + next_s), _RESERVED * self._budget_s)
        if self._left_s - next_s < kept_s:
            return None
        params = search.next()
        if params is None:  # all were tried
            return None
        trial = self._next_trial({**setting, **params}, running)
        limit_s = self._search_limit_s(kept_s)
        beaten = self._beaten(search)
        end_s = min(limit_s, beaten) if self._objective is Objective.TIME else limit_s
        hope = self._hope(search, setting, end_s)
        return trial, Aim(whole=True, beaten=beaten, time_limit_s=limit_s, hope=hope)

    def _hope(self, search: ParamSearch, setting: Params, end_s: float) -> Hope:
        """Return what a curve at a runtime setting is compared with."""
        best = next(iter(search.finalists), self._first)
        of_params = self._request.program.params.part_of(best.trial.params)
        at = {name: each for name, each in best.trial.params.items() if name not in of_params}
        took_s = [
            next(Objective.TIME.of(each) for each in self._raced if each.trial.params == chosen)
            for chosen in (setting, at)
        ]
        start_s = float(self._folder.facts["default"]["start_s"])
        curve = at_pace(best.curve, took_s[0] / took_s[1], start_s)
        return Hope(self._request.program.goal, search.needed, curve, end_s)

    def _beaten(self, search: ParamSearch) -> float:
        """Return the figure of a whole run above which other params are no better."""
        assert self._first.measurement is not None
        best = min(self._objective.of_whole(self._first.measurement), search.best)
        # a run ended for its time costs no more than it, but one of equal memory is worth its end
        return best if self._objective is Objective.TIME else (1 + SLACK) * best

    def _next_s(self, search: ParamSearch) -> float:
        """Return the wall time of the next run with other params: at most, or as is expected."""
        best = next(iter(search.finalists), self._first).measurement
        assert best is not None
        choose = min if self._objective is Objective.TIME else max
        return choose(self._wall_s, best.wall_time_s)

    def _search_limit_s(self, kept_s: float) -> float:
        """Return the wall time of a run of the search, which leaves time for the proof.

        A run that is slow is ended as beaten, unless something else than time is minimised.
        """
        if self._objective is Objective.TIME:
            return self._limit_s
        return min(self._limit_s, self._left_s - kept_s)

    def _param_search(self, pending: Sequence[Params] = ()) -> ParamSearch:
        program = self._request.program
        runs = [each for each in self._tried if program.params.part_of(each.trial.params)]
        needed = program.goal.of(self._first)
        assert needed is not None
        return ParamSearch(program.params, program.goal, needed, runs, self._objective, pending)

    def _next_trial(self, setting: Params, running: Sequence[Trial] = ()) -> Trial:
        number = 1 + max(each.number for each in (*(run.trial for run in self._tried), *running))
        trial = Trial(number, setting, TrialKind.SEARCH)
        self._progress.trial_started(trial)
        return trial

    @property
    def _limit_s(self) -> float:
        """Wall time after which a run hangs."""
        return _SLOWEST * self._wall_s + 60

    def _cost_s(self, train_s: float) -> float:
        """Return the wall time of a run whose measured part takes this long."""
        start_s = float(self._folder.facts["default"]["start_s"])
        return start_s + train_s + _AROUND_S

    def _measure(self, trial: Trial, aim: Aim) -> TrialResult:
        result, _ = self._runner.submit(trial, aim).result()
        self._keep(result)
        return result

    def _keep(self, result: TrialResult) -> None:
        self._record.keep(result)
        self._progress.trial_finished(result, [])
        self._progress.budget(
            self._folder.elapsed_s, self._budget_s, len(self._record.runs), max_trials=0
        )

    # -- the proof --------------------------------------------------------------------------------

    def _prove(self) -> None:
        """Run the best settings and the program as it is in turns."""
        self._progress.phase("verify", "in turns with the program as it is")
        self._proving.run(self._finalists(), self._affordable_pairs)

    def _finalists(self) -> list[Params]:
        """Return the settings worth a proof, the most promising first."""
        best = self._descent().best
        asked = self._request.program.params and self._proves_by_whole_runs
        with_params = self._param_search().finalists if asked else []
        return [each.trial.params for each in with_params] + ([best] if best else [])

    def _prove_by(self, trial: Trial) -> TrialResult:
        self._progress.trial_started(trial)
        steps = None if self._proves_by_whole_runs else self._window
        return self._measure(trial, Aim(window=steps, whole=not steps, time_limit_s=self._limit_s))

    @property
    def _proves_by_whole_runs(self) -> bool:
        """Whether accuracy is read, which a part of a run does not show."""
        return self._request.program.goal.of(self._first) is not None

    def _affordable_pairs(self, setting: Params, first: bool) -> int:
        """Return how many pairs of runs there is time for; enough for a proof of the first."""
        took = next(each for each in self._tried if each.trial.params == setting)
        pair_s = sum(self._cost_s(Objective.TIME.of(each)) for each in (self._first, took))
        most = _PAIRS
        if self._proves_by_whole_runs:
            assert took.measurement is not None
            params = self._request.program.params.part_of(setting)
            whole, most = params or not self._window, _PAIRS_WITH_PARAMS if params else _PAIRS
            # a runtime setting's run was ended once its steps were measured
            pair_s = self._wall_s + (took.measurement.wall_time_s if whole else self._wall_s)
        pairs = min(most, int(self._left_s / pair_s))
        return max(MIN_PAIRS, pairs) if first else pairs * (pairs >= MIN_PAIRS)

    # -- the result -------------------------------------------------------------------------------

    def result(self) -> WrapResult:
        """Return what was found so far."""
        default = self._folder.facts.get("default", {})
        window = default.get("window")
        descent = self._descent() if self._raced else None
        program = self._request.program
        return WrapResult(
            program=program,
            objective=self._objective,
            runs=self._record.runs,
            window=Window(*window) if window else None,
            source=str(default.get("source", "")),
            found=next(iter(self._finalists()), {}) if descent else {},
            knobs=self._knobs or self._find_knobs(default.get("mapped", ())),
            effects=descent.effects if descent else (),
            tested=self._proving.tested,
            elapsed_s=self._folder.elapsed_s,
            study_id=self._record.id,
            facts=self._record.facts,
        )


def _facts_of(seen: Seen) -> dict[str, Any]:
    return {
        "window": [seen.window.first, seen.window.last] if seen.window else None,
        "source": seen.source,
        "mapped": sorted(seen.mapped),
        "start_s": seen.start_s,
        "in_percent": seen.in_percent,
    }

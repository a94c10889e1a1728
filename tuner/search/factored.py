"""``search=factored``: the race finds the runtime settings, so only accuracy is searched.

After the default, the race comes first, because every other trial trains at a setting that it
found. Each trial is a whole learning curve, at the fastest setting for its batch size. Or trials
run side by side, each at a setting of one thread, and get the times of the fastest. A lossy
exchange of gradients is trained with only where the race proved it faster than all exact settings,
and always alone: what a group learns with it, no other setting can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.search.candidates import Known
from tuner.search.derived import Composition
from tuner.search.optuna_study import OptunaStudy
from tuner.search.outlook import Aim
from tuner.search.proposals import Proposer
from tuner.search.strategy import Probe, Races, Stop, Train, View
from tuner.values.exchange import lossy
from tuner.values.params import Params, ParamValue, batch_size_of, iterations_of
from tuner.values.results import front_of, timed
from tuner.values.runtime_map import PaceProbe
from tuner.values.trial import SideBySide, TrialResult, TrialStatus

_MAX_TURN_SHARE = 1 / 3  # of the time left to search, at most, for a turn of the race
_FAULTS_OF_SETTING = (TrialStatus.INVALID, TrialStatus.CRASHED, TrialStatus.LEFT_PROCESSES)
_MEMORY = {"avg_memory_bytes", "peak_memory_bytes"}


class FactoredSearch:
    """Races the runtime settings and trains learning curves in turns; see ``Strategy``.

    Args:
        study: The study that trials are asked from and told to; its sampler is not used.
        race: The race whose map gives the paces. Times and failures of trials are added to the
            same map.
        cores: Number of cores on which trials may run side by side for their accuracy alone, one
            per core.

    Attributes:
        front: The best of all results told and of the points derived from them.
        derived: Points from the checkpoints of runs, at their own or other settings.
        min_iterations: Iterations of the shortest training in the space.
        warm: Whether trials may share a worker; false where memory counts, as a worker keeps what
            earlier trials took.
        lanes: How many trials run at once for their accuracy alone, at a setting of one thread;
            their times are composed with the paces of the race.
    """

    def __init__(self, study: OptunaStudy, race: Races, cores: int = 1) -> None:
        self.study, self._race, self._cores = study, race, cores
        self.lanes = 1
        self.front: list[TrialResult] = []
        self.derived: list[TrialResult] = []
        self._composition = Composition(
            study.space, race.known, study.objectives, study.constraints
        )
        self._proposer = Proposer(self._composition, study.default, study.seed, study.stream)
        self.min_iterations = self._proposer.min_iterations
        counted = {each.metric for each in study.objectives}
        counted |= {each.objective.metric for each in study.constraints}
        self.warm = not counted & _MEMORY
        self._results: list[TrialResult] = []
        self._under_way: dict[int, dict[str, ParamValue]] = {}
        # turns of the race: whether one is under way, whether there was one since the last trial,
        # and how many probes were known when it began
        self._racing, self._raced, self._probes_before = False, False, 0

    # -- what to do next ------------------------------------------------------------------------

    def next(self, view: View) -> Train | Probe | Stop:
        """Return the default, a turn of the race, the training worth most, or a stop."""
        paced = bool(self._race.known.probes) and not self._race.recorded
        if self.study.waiting and (paced or not view.default_known):
            return self._train_enqueued(view)
        if not paced and self._raced:
            return Stop("no runtime setting could be measured")
        if not paced or not (self._race.over or self._raced):
            return self._race_on(view)
        if not view.running:  # a trial that measures times runs beside no other
            self.lanes = self._at_once(self.study.default)
        beside = self.lanes > 1 and view.running > 0
        if beside and self._at_once(self.study.default) == 1:
            return Stop("side by side, trainings turned out to be slower than one at a time")
        if beside and any(map(lossy, self._under_way.values())):
            return Stop("a group that exchanges gradients with a loss trains alone")
        params = self._proposer.propose(
            self._known(view.aim), view.limit_s, self.lanes, exact=beside
        )
        if params is not None:
            return self._train(params)
        if not self._race.over and len(self._race.known.probes) > self._probes_before:
            return self._race_on(view)  # only the race helps, and its last turn did
        limit_s = min(view.limit_s, view.aim.max_s) if view.aim else view.limit_s
        return Stop(
            f"nothing untried fits into {limit_s:,.3g} s; a larger budget.time_s= may help"
        )

    def _at_once(self, params: Params) -> int:
        return self._composition.at_once(batch_size_of(params), self._cores)

    def beside(self, point: TrialResult) -> SideBySide | None:
        """Return how to measure accuracies side by side; ``None`` if not worth it."""
        lanes = self._at_once(point.params)
        if lanes == 1 or lossy(point.params):
            return None
        batch = batch_size_of(point.params)
        setting = self._composition.on_one_core(batch)
        train_s = iterations_of(point.params) * self._race.known.beside_s(setting, batch)
        return SideBySide({**point.params, **setting}, lanes, train_s)

    def _race_on(self, view: View) -> Probe:
        """Ask for the next turn of the race."""
        self._racing, self._probes_before = True, len(self._race.known.probes)
        return Probe(max(0.0, _MAX_TURN_SHARE * view.left_s))

    def _train_enqueued(self, view: View) -> Train | Stop:
        """Begin the enqueued trial: beside others, if an interruption ended it there."""
        number, params = self._ask()
        on_one_core = self._composition.on_one_core(batch_size_of(params))
        beside = view.default_known and on_one_core.items() <= params.items()
        at_once = self._at_once(self.study.default) if beside else 1
        if view.running and min(at_once, self.lanes) == 1:
            self.study.retry(number)
            return Stop("a trial that measures times runs beside no other")
        self.lanes = at_once
        return self._begin(number, params)

    def _train(self, proposed: dict[str, ParamValue]) -> Train:
        """Begin the proposed trial, or one that another driver has just left."""
        return self._begin(*self._ask(proposed))

    def _ask(
        self, proposed: dict[str, ParamValue] | None = None
    ) -> tuple[int, dict[str, ParamValue]]:
        """Ask the study for the enqueued trial, or else for the proposed one."""
        with self.study.alone():
            if proposed is not None and not self.study.waiting:
                self.study.enqueue(proposed)
            return self.study.ask()

    def _begin(self, number: int, params: dict[str, ParamValue]) -> Train:
        self._racing = self._raced = False
        self._under_way[number] = params
        beside = self.lanes > 1 and lossy(params) is None
        return Train(number, params, self._composition.pace_s(params) if beside else 0.0)

    # -- what was learnt ------------------------------------------------------------------------

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended."""
        if not self.study.tell(result):
            return
        self._note(result)
        self._extend_front(timed([result], []))
        self._derive(result)
        self._under_way.pop(result.trial.number, None)

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Resume where an earlier session stopped."""
        self.study.recall(results)
        for each in results:
            self._note(each)
        self._compose()

    def retry(self, number: int) -> None:
        """Ask again for a trial that was left running."""
        self.study.retry(number)

    def learn_paces(self) -> None:
        """Compose all points again, with the paces that the race has found."""
        self._raced, self._racing = self._raced or self._racing, False
        self._compose()

    def _note(self, result: TrialResult) -> None:
        """Keep a result, and add the cost or the failure of its setting to the map."""
        self._results.append(result)
        known, measured = self._race.known, result.measurement
        setting = {name: result.params[name] for name in self.study.space.runtime}
        if result.status in _FAULTS_OF_SETTING:
            known.note_failure(setting)
        if not (result.usable and measured and result.trial.curve):
            return
        if result.trial.is_default:  # the default's own setting is often an unsteady one
            return
        if measured.train_time_s <= 0:  # a clock may stand still
            return
        run = PaceProbe(
            setting,
            batch_size_of(result.params),
            measured.train_time_s / max(result.iterations, 1),
            measured.peak_memory_bytes,
            measured.cores_used,
            measured.sent_bytes / max(result.iterations, 1),
        )
        if result.trial.accuracy_only:
            known.add_beside(run)
        else:
            known.add_run(run)

    def _compose(self) -> None:
        self.derived, self.front = [], []
        self._extend_front(timed(self._results, []))
        for each in self._results:
            self._derive(each)

    def _derive(self, result: TrialResult) -> None:
        """Derive points from a trial's checkpoints, and tell them to Optuna."""
        points = self._composition.points(result)
        self.derived += points
        self._extend_front(points)
        self.study.add_derived(result, points)

    def _extend_front(self, points: Sequence[TrialResult]) -> None:
        self.front = front_of([*self.front, *points], self.study.objectives)

    def _front_points(self) -> list[tuple[float, float]]:
        """Return the training times and accuracies of the points to beat."""
        return [(each.metrics["train_time_s"], each.val_accuracy or 0.0) for each in self.front]

    def _known(self, aim: Aim | None = None) -> Known:
        return Known(self._results, list(self._under_way.values()), self._front_points(), aim)

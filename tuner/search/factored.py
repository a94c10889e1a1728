"""``search=factored``: the race finds the runtime settings, so only accuracy is searched.

The race comes first, as every trial trains at what it finds. Each trial is a whole learning curve,
trained with the fastest setting for its batch size.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.search.derived import Composition
from tuner.search.optuna_study import OptunaStudy
from tuner.search.outlook import Aim
from tuner.search.proposals import Known, Proposer
from tuner.search.strategy import Probe, Races, Stop, Train, View
from tuner.values.results import front_of, timed
from tuner.values.runtime_map import Probe as PaceProbe
from tuner.values.trial import Params, ParamValue, SideBySide, TrialResult, TrialStatus

_RACE_OF_LEFT = 1 / 3  # most of the time left to search that a turn of the race may take
_FAULTS_OF_SETTING = (TrialStatus.INVALID, TrialStatus.CRASHED, TrialStatus.LEFT_PROCESSES)
_MEMORY = {"avg_memory_bytes", "peak_memory_bytes"}


class FactoredSearch:
    """Races the runtime settings and trains learning curves in turns; see ``Strategy``.

    Args:
        study: Where it asks and tells; what its sampler is does not matter.
        race: Whose map it composes with. What trials take and which settings fail is learnt into
            the same map.
        cores: On which trials may run side by side for their accuracy alone, one a core.

    Attributes:
        front: Of all that it was told, and of what that stands for.
        derived: The checkpoints of runs at the pace of other settings.
        shortest: Iterations of the shortest training that is a member of the space.
        warm: Whether trials may share a worker: its memory is not a trial's own.
        lanes: Trials that run at once for their accuracy alone, at a setting of one thread; their
            times are composed with the paces of the race.
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
        self.shortest = self._proposer.shortest
        counted = {each.metric for each in study.objectives}
        counted |= {each.objective.metric for each in study.constraints}
        self.warm = not counted & _MEMORY
        self._results: list[TrialResult] = []
        self._flying: dict[int, dict[str, ParamValue]] = {}
        # a turn of the race: whether one is under way, whether one was since the last trial, and
        # how much was known when it began
        self._racing, self._raced, self._knew = False, False, 0

    # -- what to do next ------------------------------------------------------------------------

    def next(self, view: View) -> Train | Probe | Stop:
        """The default and the race, then trials, and more of the race until that is over."""
        paced = bool(self._race.known.probes) and not self._race.recorded
        if self.study.waiting and (paced or not view.default_known):
            return self._train(None)
        if not paced and self._raced:
            return Stop("no runtime setting could be measured")
        if not paced or not (self._race.over or self._raced):
            return self._race_on(view)
        if not view.running:  # who measures times and who does not never run beside each other
            self.lanes = self._at_once(self.study.default)
        params = self._proposer.propose(self._known(view.aim), view.limit_s, self.lanes)
        if params is not None:
            return self._train(params)
        if not self._race.over and len(self._race.known.probes) > self._knew:
            return self._race_on(view)  # it alone helps, and did
        return Stop(
            f"nothing that can be trained within {view.limit_s:.3g} s promises to add to what "
            "is known"
        )

    def _at_once(self, params: Params) -> int:
        return self._composition.at_once(int(params["batch_size"] or 1), self._cores)

    def beside(self, point: TrialResult) -> SideBySide | None:
        """How a point's accuracy is had while others run; ``None`` where that is not worth it."""
        lanes = self._at_once(point.params)
        if lanes == 1:
            return None
        batch = int(point.params["batch_size"] or 1)
        setting = self._composition.on_one_core(batch)
        pace_s = self._race.known.pace_s(setting, batch)
        train_s = int(point.params["iterations"] or 1) * pace_s
        return SideBySide({**point.params, **setting}, lanes, train_s)

    def _race_on(self, view: View) -> Probe:
        """The next turn of the race."""
        self._racing, self._knew = True, len(self._race.known.probes)
        return Probe(max(0.0, _RACE_OF_LEFT * view.left_s))

    def _train(self, proposed: dict[str, ParamValue] | None) -> Train:
        """Begin the trial that waits, or else the one that is proposed."""
        self._racing = self._raced = False
        with self.study.alone():
            if proposed is not None and not self.study.waiting:
                self._flying[self.study.enqueue(proposed)] = proposed
            number, params = self.study.ask()
        return Train(number, params, self._proposer.pace_s(params) if self.lanes > 1 else 0.0)

    # -- what was learnt ------------------------------------------------------------------------

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended."""
        if not self.study.tell(result):
            return
        self._note(result)
        self._extend_front(timed([result], []))
        self._derive(result)
        self._flying.pop(result.trial.number, None)

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Go on where an earlier session stopped."""
        self.study.recall(results)
        for each in results:
            self._note(each)
        self._compose()

    def retry(self, number: int) -> None:
        """Ask again for a trial that was left running."""
        self.study.retry(number)

    def learn_paces(self) -> None:
        """Compose all that was told with what the race has found since."""
        self._raced, self._racing = self._raced or self._racing, False
        self._compose()

    def _note(self, result: TrialResult) -> None:
        """Keep a result; it tells what its setting costs beside its probes, or that it fails."""
        self._results.append(result)
        known, measured = self._race.known, result.measurement
        setting = {name: result.params[name] for name in self.study.space.runtime}
        if result.status in _FAULTS_OF_SETTING:
            known.note_failure(setting)
        if not (result.usable and measured and result.trial.curve):
            return
        if result.trial.accuracy_only:
            return
        if result.trial.is_default:  # the default's own setting is often an unsteady one
            return
        if measured.train_time_s <= 0:  # a clock may stand still
            return
        known.add_run(
            PaceProbe(
                setting,
                int(result.params["batch_size"] or 1),
                measured.train_time_s / max(result.iterations, 1),
                measured.peak_memory_bytes,
                measured.cores_used,
            )
        )

    def _compose(self) -> None:
        self.derived, self.front = [], []
        self._extend_front(timed(self._results, []))
        for each in self._results:
            self._derive(each)

    def _derive(self, result: TrialResult) -> None:
        """Learn from every checkpoint that a trial left, and let Optuna do so."""
        points = self._composition.points(result)
        self.derived += points
        self._extend_front(points)
        self.study.add_derived(result, points)

    def _extend_front(self, points: Sequence[TrialResult]) -> None:
        self.front = front_of([*self.front, *points], self.study.objectives)

    def _front_points(self) -> list[tuple[float, float]]:
        """Training time and accuracy of what is to be surpassed."""
        return [
            (each.metrics["train_time_s"], each.metrics["val_accuracy"]) for each in self.front
        ]

    def _known(self, aim: Aim | None = None) -> Known:
        return Known(self._results, list(self._flying.values()), self._front_points(), aim)

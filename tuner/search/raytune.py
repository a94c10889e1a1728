"""``search=raytune``: the study of ``search=joint``, driven by Ray Tune's OptunaSearch."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Sequence

import optuna

from tuner.search.optuna_study import OptunaStudy
from tuner.search.strategy import Train, View
from tuner.values.results import front_of
from tuner.values.trial import TrialResult


class RayTuneSearch:
    """Asks and tells through ``ray.tune.search.optuna.OptunaSearch``; see ``Strategy``.

    Args:
        study: The study in which OptunaSearch keeps its trials; it also ends them.
    """

    min_iterations = 0
    warm = False
    lanes = 1

    def __init__(self, study: OptunaStudy) -> None:
        from ray.tune.search.optuna import OptunaSearch

        logging.getLogger("ray.tune").setLevel(logging.ERROR)
        self.study = study
        self.front: list[TrialResult] = []
        self.derived: list[TrialResult] = []
        self._starts = study.space.start_points(study.default)
        self._goals = [each.name for each in study.objectives]
        self._searcher = OptunaSearch(
            space=self._define,
            metric=self._goals,
            mode=[each.direction.value[:3] for each in study.objectives],
            sampler=study.optuna.sampler,
            study_name=study.optuna.study_name,
            storage=study.optuna._storage,
        )
        self._end_elsewhere, study.end_trial = study.end_trial, self._end
        self._counter = itertools.count()
        self._names: dict[int, str] = {}  # OptunaSearch's, by number, which a repeat keeps
        self._asked = Train(0, {})

    def next(self, view: View) -> Train:  # noqa: ARG002 - a sampler does not look at the clock
        """Train the default, then the start points, then what OptunaSearch proposes."""
        with self.study.alone():
            self.study.enqueue_first(self._starts)
            name = str(next(self._counter))
            with warnings.catch_warnings():
                # on a busy machine it mistakes slow sampling for training, and warns
                warnings.filterwarnings("ignore", "Define-by-run function")
                self._searcher.suggest(name)
            self._names[self._asked.number] = name
            return self._asked

    def _define(self, trial: optuna.Trial) -> None:
        """Draw the space's params; OptunaSearch records them itself."""
        self._asked = Train(*self.study.begin(trial))

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended."""
        if self.study.tell(result):
            self._learn([result])

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Resume where an earlier session stopped."""
        self.study.recall(results)
        self._learn(results)

    def retry(self, number: int) -> None:
        """Ask again for a trial that was left running."""
        self.study.retry(number)

    def learn_paces(self) -> None:
        """Learn nothing: there is no race."""

    def beside(self, _point: TrialResult) -> None:
        """Return nothing: each trial measures times, so nothing may run beside it."""

    def _learn(self, results: Sequence[TrialResult]) -> None:
        self.front = front_of([*self.front, *results], self.study.objectives)

    def _end(self, number: int, trial: optuna.Trial, values: list[float] | None) -> None:
        name = self._names.pop(number, None)
        if name is None:  # asked by an earlier process
            self._end_elsewhere(number, trial, values)
        elif values is None:
            self._searcher.on_trial_complete(name, error=True)
        else:
            self._searcher.on_trial_complete(name, dict(zip(self._goals, values, strict=True)))

"""Ray Tune's OptunaSearch, which drives the study of ``search=raytune``."""

from __future__ import annotations

import itertools
import logging
import warnings

import optuna

from tuner.search.optuna_study import OptunaStudy
from tuner.values.params import ParamValue


class RayTune:
    """Asks and ends the trials of a study through ``ray.tune.search.optuna.OptunaSearch``.

    Args:
        study: The study in which OptunaSearch keeps its trials; it also ends them.
    """

    def __init__(self, study: OptunaStudy) -> None:
        from ray.tune.search.optuna import OptunaSearch

        logging.getLogger("ray.tune").setLevel(logging.ERROR)
        self._study = study
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
        self._asked: tuple[int, dict[str, ParamValue]] = (0, {})

    def ask(self) -> tuple[int, dict[str, ParamValue]]:
        """Begin the enqueued trial, or else one that OptunaSearch proposes; see the study's."""
        name = str(next(self._counter))
        with warnings.catch_warnings():
            # on a busy machine it mistakes slow sampling for training, and warns
            warnings.filterwarnings("ignore", "Define-by-run function")
            self._searcher.suggest(name)
        self._names[self._asked[0]] = name
        return self._asked

    def _define(self, trial: optuna.Trial) -> None:
        """Draw the space's params; OptunaSearch records them itself."""
        self._asked = self._study.begin(trial)

    def _end(self, number: int, trial: optuna.Trial, values: list[float] | None) -> None:
        name = self._names.pop(number, None)
        if name is None:  # asked by an earlier process
            self._end_elsewhere(number, trial, values)
        elif values is None:
            self._searcher.on_trial_complete(name, error=True)
        else:
            self._searcher.on_trial_complete(name, dict(zip(self._goals, values, strict=True)))

"""``search=raytune``: the study of ``search=joint``, asked and told by Ray Tune's OptunaSearch."""

from __future__ import annotations

import importlib.util
import itertools
import logging
from typing import Any

import optuna

from tuner.errors import ConfigError
from tuner.search.joint import JointSearch
from tuner.trial import ParamValue


class RayTuneSearch(JointSearch):
    """Ask and tell through ``ray.tune.search.optuna.OptunaSearch``, its study kept as ours is.

    Args:
        args, kwargs: Of ``JointSearch``.

    Raises:
        ConfigError: If Ray Tune is not installed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not importlib.util.find_spec("ray"):
            raise ConfigError("search=raytune needs the package ray: pip install 'tuner[ray]'")
        super().__init__(*args, **kwargs)
        from ray.tune.search.optuna import OptunaSearch

        logging.getLogger("ray.tune").setLevel(logging.ERROR)
        self._names = [each.name for each in self.objectives]
        self._searcher = OptunaSearch(
            space=self._define,
            metric=self._names,
            mode=[each.direction.value[:3] for each in self.objectives],
            sampler=self._study.sampler,
            study_name=self._study.study_name,
            storage=self._study._storage,
        )
        self._counter = itertools.count()
        self._names_there: dict[int, str] = {}  # our numbers, which a repeated trial keeps
        self._asked: tuple[int, dict[str, ParamValue]] = 0, {}

    def _ask(self, limit_s: float) -> tuple[int, dict[str, ParamValue]]:  # noqa: ARG002 - for factored
        self._following = self._next_number()
        name = str(next(self._counter))
        self._searcher.suggest(name)
        self._names_there[self._asked[0]] = name
        return self._asked

    def _define(self, trial: optuna.Trial) -> None:
        """Searched are the space's params; OptunaSearch notes what is drawn for itself."""
        self._asked = self._begin(trial, self._following)

    def _tell(self, number: int, trial: optuna.Trial, values: list[float] | None) -> None:
        name = self._names_there.pop(number, None)
        if name is None:  # asked by an earlier process
            super()._tell(number, trial, values)
        elif values is None:
            self._searcher.on_trial_complete(name, error=True)
        else:
            self._searcher.on_trial_complete(name, dict(zip(self._names, values, strict=True)))

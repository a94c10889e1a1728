"""Ray Tune's OptunaSearch under ASHA, driven trial by trial: what its user would get."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import optuna
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch
from recorded import GOALS, Recorded
from replay import Replay

from tuner.values.params import ParamValue
from tuner.values.results import front_of
from tuner.values.trial import Checkpoint, Trial, TrialResult

_GOAL = GOALS[0]
_RUNGS = 81  # ASHA's first look is at this fraction of the longest training


@dataclass(frozen=True)
class _RayTrial:
    """What ASHA looks at of a trial."""

    trial_id: str


def _to_end(_points: Sequence[Checkpoint], _end_s: float) -> bool:
    """Let the default train to its end."""
    return True


class AshaSearch:
    """One search over a recorded framework, for accuracy alone, that stops trials by ASHA.

    ASHA (doi:10.48550/arXiv.1810.05934) stops for one goal alone. Both goals without stopping are
    ``search=raytune`` of the tuner itself.

    Args:
        recorded: What is searched.
        seed: Of the sampler.
    """

    def __init__(self, recorded: Recorded, seed: int) -> None:
        logging.getLogger("ray.tune").setLevel(logging.ERROR)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._recorded = recorded
        self._params: dict[str, ParamValue] = {}
        starts = [recorded.space.optuna_params(each) for each in self._starts()]
        self._search = OptunaSearch(
            space=self._define,
            metric=_GOAL.name,
            mode=_GOAL.direction.value[:3],
            points_to_evaluate=starts,
            seed=seed,
        )
        # driven without a controller of Ray, so untyped
        self._asha: Any = AsyncHyperBandScheduler(
            time_attr="train_time_s", metric=_GOAL.name, mode=_GOAL.direction.value[:3],
            # seconds, which ASHA only compares
            max_t=recorded.longest_s, grace_period=recorded.longest_s / _RUNGS,  # type: ignore[arg-type]  # Ray declares int
            reduction_factor=3,
        )  # fmt: skip

    def _starts(self) -> list[dict[str, ParamValue]]:
        space, default = self._recorded.space, self._recorded.default
        known = [default, *space.start_points(default)]
        return [dict(each) for each in known if not space.refusal(each)]

    def _define(self, trial: optuna.Trial) -> None:
        self._params = self._recorded.space.suggest(trial)

    def _goes_on(self, trial: _RayTrial, points: Sequence[Checkpoint], _end_s: float) -> bool:
        """Ask ASHA, which looks at a trial's name alone and not at its controller."""
        seen = {"train_time_s": points[-1].train_time_s, _GOAL.name: points[-1].val_accuracy}
        return bool(self._asha.on_trial_result(None, trial, seen) == TrialScheduler.CONTINUE)

    def run(self, machine: Replay, budget_s: float, enough: float) -> list[tuple[float, float]]:
        """Search until ``enough`` hypervolume; returns time and true hypervolume a trial."""
        results: list[TrialResult] = []
        anytime: list[tuple[float, float]] = []
        number = 0
        min_iterations = self._recorded.min_iterations
        while machine.now < budget_s and not (anytime and anytime[-1][1] >= enough):
            self._search.suggest(str(number))
            limit = self._recorded.longest_s if number else None
            trial = Trial(number, self._params, train_time_limit_s=limit, curve=min_iterations)
            ray_trial = _RayTrial(str(number))
            self._asha.on_trial_add(None, ray_trial)
            result = machine.run(trial, partial(self._goes_on, ray_trial) if number else _to_end)
            if not number:
                machine.now = 0.0
            figures = {_GOAL.name: _GOAL.value(result.metrics)}
            self._search.on_trial_complete(str(number), figures)
            results.append(result)
            found = [each.params for each in front_of(results, GOALS)]
            anytime.append((machine.now, self._recorded.volume(found)))
            number += 1
        return anytime

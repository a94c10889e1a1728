"""How a study's budget is shared out: when to go on searching, and how long a trial may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.config import BudgetConfig
from tuner.trial import Trial, TrialKind

_DEFAULT_TIME_SHARE = 0.6  # of the budget; a default that needs more is projected
_LEAST_TRIALS = 3  # the default and two others, however little time the default has left
_LEAST_TRIAL_S = 3.0  # a search trial with less time left would only be set-up
_PROJECTED_SHARE = 0.05  # of the default's iterations, where the budget asks for no less
_KILL_FACTOR, _KILL_EXTRA_S = 5.0, 300.0
_FULL_LIMIT_S = 7 * 86400.0


@dataclass(frozen=True)
class Schedule:
    """The search's part of a budget.

    Attributes:
        budget: Of the whole study.
        seed: Of every search trial, so that they differ in nothing but their params.
        baseline: ``full`` gives the default all the time it needs, ``projected`` a share of its
            iterations, ``auto`` what the budget says.
        default_s: Wall time that trial 0 took of the budget, seconds; 0 before it ended.
    """

    budget: BudgetConfig
    seed: int
    baseline: str = "auto"
    default_s: float = 0.0

    @property
    def search_end_s(self) -> float:
        """Seconds after the study's begin when verification must have its share.

        Of what a slow default leaves it has no more than half.
        """
        whole = self.budget.time_s
        left = max(0.0, whole - self.default_s)
        return whole - min(self.budget.verify_share * whole, left / 2)

    def allows(self, trials: int, elapsed_s: float) -> bool:
        """Whether another search trial may follow ``trials`` after ``elapsed_s`` seconds."""
        if trials >= (self.budget.trials or math.inf):
            return False
        return trials < _LEAST_TRIALS or self.search_end_s - elapsed_s > _LEAST_TRIAL_S

    def default_trial(self, params: Mapping[str, Any]) -> Trial:
        """Trial 0: tested as well, and with most of the budget if it needs it."""
        budget = self.budget
        share = budget.default_share
        limit_s: float | None = _DEFAULT_TIME_SHARE * budget.time_s
        kill_s = _KILL_FACTOR * budget.time_s + _KILL_EXTRA_S
        if self.baseline == "full":
            share, limit_s, kill_s = 1.0, None, _FULL_LIMIT_S
        elif self.baseline == "projected":
            share = min(share, _PROJECTED_SHARE)
        return Trial(
            number=0,
            params=params,
            kind=TrialKind.DEFAULT,
            seed=self.seed,
            train_time_limit_s=limit_s,
            time_limit_s=kill_s,
            test=True,
            share=share,
        )

    def limit_s(self, number: int, elapsed_s: float) -> float:
        """Longest training of search trial ``number``: its share, but not more than is left."""
        limit = self.budget.trial_share * self.budget.time_s
        if number < _LEAST_TRIALS:
            return limit
        return max(_LEAST_TRIAL_S, min(limit, self.search_end_s - elapsed_s))

    def search_trial(
        self,
        number: int,
        params: Mapping[str, Any],
        limit_s: float,
        rivals: tuple[tuple[float, float], ...],
    ) -> Trial:
        """A later trial, which may train for ``limit_s`` seconds."""
        return Trial(
            number=number,
            params=params,
            seed=self.seed,
            train_time_limit_s=limit_s,
            time_limit_s=_KILL_FACTOR * limit_s + _KILL_EXTRA_S,
            rivals=rivals,
        )

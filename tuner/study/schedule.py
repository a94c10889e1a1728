"""Division of a study's budget: when to keep searching, and how long a trial may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.config.schema import BudgetConfig
from tuner.values.params import iterations_of
from tuner.values.trial import Trial, TrialKind

_MIN_TRIALS = 3  # the default and two others, however little time the default leaves
_MIN_TRIAL_S = 3.0  # with less time left, a search trial would be nothing but set-up
_MIN_PART = 0.1  # least part of the default's iterations for its first part
_MIN_PART_ITERATIONS = 1000  # the same where the default is short
_ROUNDS_OF_PROOF = 2  # that a trial must leave time for
_WHOLE_SHARE = 0.6  # of the budget: limit of the whole default if nothing else limits it
_KILL_FACTOR, _KILL_EXTRA_S = 5.0, 300.0
_FULL_LIMIT_S = 7 * 86400.0


@dataclass(frozen=True)
class Schedule:
    """A budget and the rules for spending it.

    Attributes:
        budget: Budget of the whole study.
        seed: Seed of every search trial, so that they differ only in their params.
        baseline: ``full`` gives the default all the time it needs, ``projected`` trains only its
            first part, ``auto`` does what the budget allows.
    """

    budget: BudgetConfig
    seed: int
    baseline: str = "auto"

    def left_s(self, elapsed_s: float) -> float:
        """Return the seconds left of the budget; negative beyond it."""
        return self.budget.time_s - elapsed_s

    @property
    def first_part_s(self) -> float:
        """Longest training (s) of the default's first part."""
        return self.budget.default_share * self.budget.time_s

    @property
    def verify_s(self) -> float:
        """Seconds reserved for verification until its need is known."""
        return self.budget.verify_share * self.budget.time_s

    def allows(self, trials: int, left_s: float) -> bool:
        """Return whether a search trial may follow ``trials``, with ``left_s`` to search."""
        if trials >= (self.budget.trials or math.inf):
            return False
        return trials < _MIN_TRIALS or left_s > _MIN_TRIAL_S

    def limit_s(self, trials: int, left_s: float) -> float:
        """Return the longest training (s) of the next trial, with ``left_s`` to search."""
        max_s = self.budget.trial_share * self.budget.time_s
        if trials < _MIN_TRIALS:
            left_s = max(left_s, self.first_part_s)
        return max(_MIN_TRIAL_S, min(max_s, left_s))

    def provable_s(self, left_s: float) -> float:
        """Return the longest trial (s) whose proof would fit into ``left_s`` after it.

        A round of accuracies, side by side, takes about as long as the trial did.
        """
        return max(self.first_part_s, left_s / (1 + _ROUNDS_OF_PROOF))

    def default_trial(self, params: Mapping[str, Any], *, part: bool) -> Trial:
        """Return trial 0.

        Args:
            params: The default's params.
            part: Whether its first part may be enough; otherwise it is trained to its end, if
                most of the budget suffices for that.
        """
        time_s, share, limit_s = self.budget.time_s, 1.0, _WHOLE_SHARE * self.budget.time_s
        kill_s = _KILL_FACTOR * time_s + _KILL_EXTRA_S
        if self.baseline == "full":
            return self._first(params, 1.0, None, _FULL_LIMIT_S)
        if part or self.baseline == "projected":
            iterations = iterations_of(params)
            share = min(1.0, max(_MIN_PART, _MIN_PART_ITERATIONS / iterations))
            limit_s = self.first_part_s
        return self._first(params, share, limit_s, kill_s)

    def _first(
        self, params: Mapping[str, Any], share: float, limit_s: float | None, kill_s: float
    ) -> Trial:
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

    def reference_trial(self, params: Mapping[str, Any], curve: int) -> Trial:
        """Return the default's whole training at a fast setting, for want of a reference."""
        return Trial(
            number=0,
            params=params,
            kind=TrialKind.REFERENCE,
            seed=self.seed,
            time_limit_s=_KILL_FACTOR * self.budget.time_s + _KILL_EXTRA_S,
            test=True,
            curve=curve,
        )

    def search_trial(
        self,
        number: int,
        params: Mapping[str, Any],
        limit_s: float,
        rivals: tuple[tuple[float, float], ...],
    ) -> Trial:
        """Return a search trial, which may train for ``limit_s`` seconds."""
        return Trial(
            number=number,
            params=params,
            seed=self.seed,
            train_time_limit_s=limit_s,
            time_limit_s=_KILL_FACTOR * limit_s + _KILL_EXTRA_S,
            rivals=rivals,
        )

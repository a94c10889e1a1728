"""Which points of a front are verified, and by which runs.

Every round runs each configuration once, in turning order, so that a machine that changes its
speed does so for all. What is still in doubt after the planned rounds is run more often.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tuner.config import Constraint, VerifyConfig
from tuner.pareto import OBJECTIVES, Direction, Objective, hypervolume
from tuner.results import Verified, front_of, least_of_interest
from tuner.trial import Trial, TrialKind, TrialResult

LEAST_ROUNDS = 2
"""Fewer would prove nothing."""
_LEAST_S = 1e-9  # a clock may stand still


def pick_finalists(
    trials: Sequence[TrialResult],
    default: TrialResult,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    config: VerifyConfig,
    affordable: Callable[[Sequence[TrialResult]], bool] = lambda _chosen: True,
) -> list[TrialResult]:
    """The points of the front worth verifying, most important first.

    First the fastest whose validation accuracy is not below the default's (of many that are near
    it the one that seems so is the luckiest, so nothing is allowed for), or else the most
    accurate; then those that add most hypervolume. What there is no time for beside those before
    it is left out, and so is what errs many times as often as the default, but one remains.

    Args:
        trials: Usable and other trials of the search.
        default: Trial 0.
        objectives: Of the study.
        constraints: Only trials that keep them can be finalists.
        config: How many.
        affordable: Whether there is time to verify these.
    """
    allowed = [
        each
        for each in trials
        if each is not default
        and not any(limit.violation(each.metrics) > 0 for limit in constraints)
    ]
    whole = front_of(allowed, objectives)
    poorest = least_of_interest(default.metrics.get("val_accuracy", 0.0))
    good = [each for each in whole if each.metrics.get("val_accuracy", 0.0) >= poorest] or whole
    front = [each for each in good if affordable([each])] or good
    chosen: list[TrialResult] = []
    least = default.metrics.get("val_accuracy", 0.0)
    equals = [each for each in front if each.metrics.get("val_accuracy", 0.0) >= least]
    if equals:
        chosen.append(min(equals, key=lambda each: each.metrics["train_time_s"]))
    elif front:
        chosen.append(max(front, key=lambda each: each.metrics.get("val_accuracy", 0.0)))
    while len(chosen) < config.finalists:
        rest = [each for each in front if each not in chosen and affordable([*chosen, each])]
        if not rest:
            break
        chosen.append(max(rest, key=lambda each: _volume([*chosen, each], front, objectives)))
    return chosen[: config.finalists]


def _volume(
    chosen: Sequence[TrialResult], front: Sequence[TrialResult], objectives: Sequence[Objective]
) -> float:
    """Hypervolume of ``chosen``, each objective scaled to the front's own extent."""
    rows = {id(each): [goal.value(each.metrics) for goal in objectives] for each in front}
    low = [min(column) for column in zip(*rows.values(), strict=True)]
    high = [max(column) for column in zip(*rows.values(), strict=True)]

    def scaled(row: Sequence[float]) -> list[float]:
        return [
            (value - least) / ((most - least) or 1.0)
            for value, least, most in zip(row, low, high, strict=True)
        ]

    corner = [-0.1 if each.direction is Direction.MAXIMIZE else 1.1 for each in objectives]
    return hypervolume([scaled(rows[id(each)]) for each in chosen], corner, objectives)


@dataclass(frozen=True)
class Plan:
    """Which verification runs there will be.

    Attributes:
        default: Trial 0.
        finalists: What is compared with it.
        rounds: How often everything is run once.
        config: Shares and limits.
        seed: The study's seed; verification uses seeds that no search trial used.
        test_images: Size of the test split.
        first: Number of the first run; an earlier plan of the study may have used those below.
        objectives: Whose front it is.
    """

    default: TrialResult
    finalists: tuple[TrialResult, ...]
    rounds: int
    config: VerifyConfig
    seed: int
    test_images: int
    first: int = 0
    objectives: Sequence[Objective] = (OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"])

    @property
    def entrants(self) -> tuple[TrialResult, ...]:
        """Everything that is run in each round, the default first."""
        return (self.default, *self.finalists)

    def trials(self) -> Iterator[Trial]:
        """All runs in their order; the same plan always gives the same numbers and seeds."""
        count = len(self.entrants)
        for turn in range(self.rounds):
            for place in range(count):
                index = (place + turn) % count
                yield self.trial(turn, index)

    def trial(self, turn: int, index: int) -> Trial:
        """The run of one entrant in one round."""
        share = self._share(turn, index)
        return Trial(
            number=self.first + turn * len(self.entrants) + index,
            params=self.entrants[index].params,
            kind=TrialKind.VERIFY,
            seed=1000 * (self.seed + 1) + turn,
            test=share == 1,
            share=share,
        )

    def _share(self, turn: int, index: int) -> float:
        entrant = self.entrants[index]
        long = entrant.metrics["train_time_s"] > self.config.long_s
        # trial 0 was itself a full run with the test split; a finalist's first repeat is one
        has_full_run = index == 0 or turn > 0
        least = self.config.least_rate_s / max(entrant.metrics["train_time_s"], _LEAST_S)
        rate = max(self.config.rate_share, least)
        if entrant.trial.projected:
            return min(entrant.trial.share, rate)
        return min(rate, 1.0) if long and has_full_run else 1.0

    def doubtful(self, verified: Sequence[Verified]) -> list[int]:
        """Indices of the entrants to run once more: the default and those in doubt.

        In doubt is a finalist that may or may not be on the front. Empty if none is.
        """
        level = 1 - self.config.confidence
        unsure = {
            each.trial_number
            for each in verified
            if each.name != "default" and level < each.on_front < 1 - level
        }
        places = [index for index, each in enumerate(self.entrants) if each.trial.number in unsure]
        return [0, *places] if places else []

    def place(self, number: int) -> tuple[int, int]:
        """Round and entrant of the run with this number."""
        return divmod(number - self.first, len(self.entrants))

    def cost_s(self) -> float:
        """Estimated wall time of all runs, in seconds."""
        return sum(self.trial_cost_s(trial) for trial in self.trials())

    def trial_cost_s(self, trial: Trial) -> float:
        """Estimated wall time of one run, in seconds."""
        default, measured = (
            each.measurement for each in (self.default, self.entrants[self.place(trial.number)[1]])
        )
        assert default is not None
        assert measured is not None
        # a warm worker had less to set up than a cold one will have
        setup_s = max(default.setup_time_s, measured.setup_time_s)
        looks = 3.0 if trial.test else 1.0  # on the validation split alone it takes less
        rest = setup_s + looks * measured.test_time_s + 1.0
        return measured.train_time_s * trial.share + rest

    def within(self, budget_s: float) -> Plan:
        """The plan cut to ``budget_s``: fewer finalists first, then fewer rounds.

        At least one finalist and two rounds remain: less would prove nothing.
        """
        plan = self
        while plan.cost_s() > budget_s and len(plan.finalists) > 1:
            plan = dataclasses.replace(plan, finalists=plan.finalists[:-1])
        while plan.cost_s() > budget_s and plan.rounds > LEAST_ROUNDS:
            plan = dataclasses.replace(plan, rounds=plan.rounds - 1)
        return plan

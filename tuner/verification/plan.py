"""The plan of verification: which configurations are verified, and by which runs.

A round with the default in it compares times. It runs each of its configurations once, in rotating
order, so that a change of the machine's speed affects all of them. A round without the default has
whole runs for their accuracy alone, side by side, each with a fresh seed. Rounds are added one by
one: the results of the last one decide which configurations are in the next.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.config.schema import SEEDS, VerifyConfig
from tuner.convergence.references import Reference
from tuner.values.pareto import OBJECTIVES, Objective
from tuner.values.trial import Trial, TrialKind, TrialResult
from tuner.values.verified import Role
from tuner.verification.entrant import CANDIDATES, OF_DEFAULT, Entrant
from tuner.verification.noninferiority import LookPlan, candidate_alpha
from tuner.verification.recorded_stop import MIN_SEEDS, RecordedStop, earliest_stop
from tuner.verification.stops import same_training

MIN_ROUNDS = 2
"""Fewer would prove nothing."""
_RATE_ROUNDS = 2  # times as many where only rates are measured, which takes seconds
_MIN_S = 1e-9  # a clock may stand still
_SEEDS_APART = 10**6  # between the runs of one configuration in one round
_PATIENCE, _LEAST_PATIENCE_S = 5.0, 3600.0  # times what a run is expected to take; and at least
_FOR_STOP = 0.25  # of the level, for the default stopped earlier


def look_counts(config: VerifyConfig, at_once: int, rounds: int = 0) -> tuple[int, ...]:
    """Return after how many accuracies a candidate is looked at, ``at_once`` of them per round.

    Args:
        config: Limits the rounds of a candidate that is not chosen yet.
        at_once: Accuracies per round.
        rounds: Rounds that were planned when it was chosen; 0 before that.
    """
    planned = range(1, (rounds or most_rounds(config)) + 1)
    return tuple(at_once * each for each in planned if at_once * each >= MIN_ROUNDS)


def most_rounds(config: VerifyConfig) -> int:
    """Return how many rounds a candidate has at most."""
    return max(MIN_ROUNDS, config.repeats)


@dataclass(frozen=True)
class Plan:
    """The verification runs so far, and how to make those of the next round.

    Attributes:
        entrants: Every configuration that was ever in a round, the default first.
        rounds: Indices of the entrants of each round, in the order in which they run. An entrant
            that runs several times in a round is listed as often.
        config: Shares and limits.
        seed: The study's seed; verification uses seeds that no search trial used.
        test_images: Size of the test split.
        accuracies: The default's own test accuracies known before, one per seed.
        part: Whether only a first part stands for the default, so non-inferiority is not provable.
        min_iterations: Iterations of the shortest training of interest, see ``Trial.curve``.
        reference: Recorded convergence of the default, with which runs at other runtime settings
            are compared; ``None`` without one.
        objectives: Objectives of the front.
        val_images: Size of the validation split, on which those runs are looked at; 0 if it is
            that of the test split.
        setup_s: How long a set-up mostly takes after trial 0, seconds. Trial 0 also fills the
            caches of what its framework compiles, which few other runs have to do.
    """

    entrants: tuple[Entrant, ...]
    rounds: tuple[tuple[int, ...], ...]
    config: VerifyConfig
    seed: int
    test_images: int
    accuracies: tuple[float, ...] = ()
    part: bool = False
    min_iterations: int = 0
    reference: Reference | None = None
    objectives: Sequence[Objective] = (OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"])
    val_images: int = 0
    setup_s: float = math.inf

    @property
    def default(self) -> TrialResult:
        """Trial 0."""
        return self.entrants[0].result

    def trials(self) -> list[Trial]:
        """Return all runs in order; the same plan always gives the same numbers and seeds."""
        made = (
            self._trial(number, turn, index) for number, (turn, index) in enumerate(self.places)
        )
        return [dataclasses.replace(each, time_limit_s=self._patience_s(each)) for each in made]

    def _patience_s(self, trial: Trial) -> float:
        """Return the wall time after which a run is killed: far more than it is to take."""
        return max(_LEAST_PATIENCE_S, _PATIENCE * self.trial_cost_s(trial))

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The round and the entrant of each run, by its number."""
        return [(turn, index) for turn, order in enumerate(self.rounds) for index in order]

    def compares_times(self, turn: int) -> bool:
        """Return whether a round measures times, not the accuracies of runs side by side."""
        return 0 in self.rounds[turn]

    def timed_rounds(self, index: int) -> int:
        """Count the rounds in which the pace of an entrant is measured."""
        known = set(self.of_its_pace(index))
        return sum(0 in order and not known.isdisjoint(order) for order in self.rounds)

    def of_its_pace(self, index: int) -> list[int]:
        """Return the entrants whose timed runs tell an entrant's pace: itself and others.

        Others train the same for longer or shorter, in parts as it does: candidates, or the
        default at the fastest setting.
        """
        kind, params = self._in_parts(index), self.entrants[index].result.params
        return [
            other
            for other, each in enumerate(self.entrants)
            if other == index
            or (
                kind
                and kind == self._in_parts(other)
                and same_training(each.result.params, params)
            )
        ]

    def _in_parts(self, index: int) -> str:
        """Tell of which kind an entrant is whose timed runs are parts; empty for whole runs."""
        entrant = self.entrants[index]
        if entrant.beside:
            return "candidate"
        return "default" if entrant.role in OF_DEFAULT and self._share(0, index) < 1 else ""

    def runners(self, indices: Sequence[int]) -> list[int]:
        """Leave out those of the entrants whose pace the runs of one before tell."""
        return [
            each
            for place, each in enumerate(indices)
            if not {*indices[:place]} & {*self.of_its_pace(each)}
        ]

    def least_rounds(self, index: int) -> int:
        """Return in how many rounds the times of an entrant must be measured."""
        return MIN_ROUNDS * self._runs_for_one(index)

    def owes(self, index: int) -> bool:
        """Return whether the times of an entrant were measured in fewer rounds than needed."""
        return self.timed_rounds(index) < self.least_rounds(index)

    @property
    def owed(self) -> list[int]:
        """Those of the default's own training for which rounds are still to come."""
        roles = [each.role for each in self.entrants]
        return [
            index for index, role in enumerate(roles) if role in OF_DEFAULT and self.owes(index)
        ]

    def max_rounds(self, index: int) -> int:
        """Return the number of rounds after which an entrant's times need no more."""
        return most_rounds(self.config) * self._runs_for_one(index)

    def _runs_for_one(self, index: int) -> int:
        """Return how many runs measure an entrant's time once: several if all are short parts."""
        return _RATE_ROUNDS if self._share(0, index) < 1 else 1

    def _trial(self, number: int, turn: int, index: int) -> Trial:
        """Make one run of an entrant in a round."""
        if not self.compares_times(turn):
            return self._accuracy_trial(number, turn, index)
        share, entrant = self._share(turn, index), self.entrants[index]
        role = entrant.role
        # compared with the recorded run of the same seed
        followed = self.reference if share < 1 and role in OF_DEFAULT else None
        return Trial(
            number=number,
            params=entrant.result.params,
            kind=TrialKind.VERIFY,
            seed=followed.seed_for(turn) if followed else self._seed(turn),
            test=share == 1 and role is not Role.STOPPED,
            test_at=() if entrant.beside else entrant.stops_on_the_way,
            share=share,
            curve=self.min_iterations if followed else 0,
        )

    def _accuracy_trial(self, number: int, turn: int, index: int) -> Trial:
        """Make a whole run beside others, with a seed that no other run of the entrant has."""
        entrant = self.entrants[index]
        beside = entrant.beside
        assert beside is not None
        first = sum(len(order) for order in self.rounds[:turn])
        earlier = self.rounds[turn][: number - first].count(index)
        return Trial(
            number=number,
            params=beside.params,
            kind=TrialKind.VERIFY,
            seed=self._seed(turn, earlier),
            test=True,
            test_at=entrant.stops_on_the_way,
            accuracy_only=True,
        )

    def _seed(self, turn: int, earlier: int = 0) -> int:
        """Return a fresh seed for a round and, of runs side by side in it, for each of them."""
        return (1000 * (self.seed + 1) + turn + _SEEDS_APART * earlier) % SEEDS

    def _share(self, turn: int, index: int) -> float:
        """Return the part of the iterations that is run: 1 where accuracy is measured."""
        entrant = self.entrants[index]
        time_s = entrant.result.metrics["train_time_s"]
        before = sum(index in order for order in self.rounds[:turn])
        # of a mere part, the least whole runs tell the accuracy that there is to tell
        told = self.part and before >= MIN_ROUNDS
        only_rate = {
            Role.DEFAULT: bool(self.accuracies) or told,
            Role.RUNTIME_ONLY: len(self.accuracies) > 1 or entrant.in_parts or told,
            Role.STOPPED: True,
            Role.TRADE_OFF: before > 0,
        }.get(entrant.role, entrant.beside is not None)
        short = time_s <= self.config.long_s and entrant.role is not Role.STOPPED
        if short or not only_rate:
            return 1.0
        rate_s = min(self.config.rate_share * time_s, self.config.max_rate_s)
        return min(1.0, max(rate_s, self.config.min_rate_s) / max(time_s, _MIN_S))

    def with_entrants(self, entrants: Sequence[Entrant]) -> Plan:
        """Return the plan with further entrants, which are in no round yet."""
        return dataclasses.replace(self, entrants=(*self.entrants, *entrants))

    def with_round(self, order: Sequence[int]) -> Plan:
        """Return the plan with another round."""
        return dataclasses.replace(self, rounds=(*self.rounds, tuple(order)))

    def turned(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return the entrants that run in the next round, in their order."""
        indices = self.runners(indices)
        shift = len(self.rounds) % max(len(indices), 1)
        return (*indices[shift:], *indices[:shift])

    @property
    def tested(self) -> list[int]:
        """Entrants that may be claimed to lose nothing, in the order of their shares of the level.

        These are the candidates. Trade-offs are tested only in a study without candidates, or its
        claims would err too often.
        """
        roles = [each.role for each in self.entrants]
        candidates = [index for index, role in enumerate(roles) if role in CANDIDATES]
        others = [index for index, role in enumerate(roles) if role is Role.TRADE_OFF]
        return candidates or others

    @cached_property
    def recorded_stop(self) -> RecordedStop | None:
        """The earliest stop of the default at which its reference proves no loss."""
        if self.reference is None or self.part:
            return None
        margin = self.config.margin(self.default.quality)
        return earliest_stop(self.reference, margin, _FOR_STOP * (1 - self.config.confidence))

    def alpha(self, place: int) -> float:
        """Return the level of the candidate at this place in the study's order, counted from 0."""
        return candidate_alpha(self._alpha, place)

    @property
    def alpha_left(self) -> float:
        """The level that all tested candidates leave."""
        return self._alpha - sum(self.alpha(place) for place in range(len(self.tested)))

    @property
    def _alpha(self) -> float:
        """The level of all candidates together.

        The recorded stops have a part of the level. It passes on to the candidates if one of the
        stops is proven (Wiens and Dmitrienko 2005, doi:10.1080/10543400500265660).
        """
        alpha = 1 - self.config.confidence
        recorded = self.reference is not None and len(self.reference.runs) >= MIN_SEEDS
        if recorded and not self.part and self.recorded_stop is None:
            alpha *= 1 - _FOR_STOP
        return alpha

    def margin(self, index: int) -> float:
        """Return the loss of accuracy that a candidate may have: 0 if it must be more accurate."""
        gain = self.entrants[index].role is Role.ACCURACY
        return 0.0 if gain else self.config.margin(self.default.quality)

    def looks(self, index: int) -> LookPlan:
        """Return the looks at one of ``tested`` and its stops, planned before its first run."""
        entrant = self.entrants[index]
        at_once = entrant.beside.at_once if entrant.beside else 1
        counts = look_counts(self.config, at_once, entrant.rounds)
        first = next((turn for turn, order in enumerate(self.rounds) if index in order), 0)
        grown = self._whole_runs_of_default(first)
        known = tuple(len(self.accuracies) + grown[0] + grown[1] * count for count in counts)
        alpha = self.alpha(self.tested.index(index))
        return LookPlan(tuple(max(1, each) for each in known), counts, alpha)

    def _whole_runs_of_default(self, first: int) -> tuple[int, int]:
        """Count the whole runs of the default's params: before a round, and in each from then."""
        own = [
            index
            for index, each in enumerate(self.entrants)
            if each.role in (Role.DEFAULT, Role.RUNTIME_ONLY)
        ]
        whole = [
            sum(index in order and self._share(turn, index) == 1 for index in own)
            for turn, order in enumerate(self.rounds)
        ]
        return sum(whole[:first]), whole[first] if first < len(whole) else 0

    def cost_s(self, order: Sequence[int]) -> float:
        """Estimate the wall time of one more round, in seconds."""
        following = self.with_round(order)
        costs_s = [following.trial_cost_s(each) for each in following.trials()[len(self.places) :]]
        if following.compares_times(len(self.rounds)):
            return sum(costs_s)
        beside = self.entrants[order[0]].beside
        return math.ceil(len(order) / (beside.at_once if beside else 1)) * max(costs_s)

    def accuracy_s(self, indices: Sequence[int]) -> float:
        """Estimate the seconds until the accuracies measured apart from times can be decided."""
        found = [(each, self.entrants[each].beside) for each in indices]
        return sum(
            math.ceil(MIN_ROUNDS / beside.at_once) * self.cost_s((index,) * beside.at_once)
            for index, beside in found
            if beside
        )

    def times_s(self, indices: Sequence[int]) -> float:
        """Estimate the seconds of the rounds that the times of these entrants still need."""
        plan, total_s = self, 0.0
        while order := plan.runners([each for each in indices if plan.owes(each)]):
            total_s += plan.cost_s([0, *order])
            plan = plan.with_round([0, *order])
        return total_s

    def trial_cost_s(self, trial: Trial) -> float:
        """Estimate the wall time of one run, in seconds."""
        entrant = self.entrants[self.places[trial.number][1]]
        default, measured = self.default.measurement, entrant.result.measurement
        assert default is not None
        assert measured is not None
        # a warm worker needed less set-up than a cold start will
        setup_s = min(max(default.setup_time_s, measured.setup_time_s), self.setup_s)
        # on the validation split alone it takes less
        evaluations = 3.0 * (1 + len(trial.test_at)) if trial.test else 1.0
        rest = setup_s + evaluations * measured.test_time_s + 1.0
        if trial.accuracy_only and entrant.beside:
            return entrant.beside.train_s + rest
        return measured.train_time_s * trial.share + rest

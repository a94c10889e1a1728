"""The runs of a verification so far: what each candidate reached, and whether it loses nothing.

The looks at a candidate are planned before its first run, see
``tuner.verification.noninferiority``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from tuner.convergence.departures import departure
from tuner.values.trial import TrialResult
from tuner.values.verified import Role
from tuner.verification.entrant import CANDIDATES, OF_DEFAULT
from tuner.verification.noninferiority import (
    Spread,
    chance_of_proof,
    least_margin,
    p_of_loss,
    usual_deviation,
)
from tuner.verification.plan import MIN_ROUNDS, Plan
from tuner.verification.runs import diverged, failed, timed_runs, whole_runs

_ROUNDED = 1 / math.sqrt(12)  # standard deviation of rounding to whole images, in images
_HOPE = 0.1  # chance of a proof below which a candidate is given up
_HOPE_OF_MORE = 0.3  # the same of an earlier stop of what is proven already
_SURELY = 0.01  # level at which the default's own params are called worse at another setting


class Readings:
    """The verification runs of a study, by configuration and round.

    Of an entrant, ``stop`` 0 is its end, 1 the latest of its earlier stops, and so on.

    Args:
        plan: The plan of the runs.
        runs: The runs that have ended.

    Attributes:
        rounds: Usable runs of each entrant by stop and round, for rounds that compare times.
        whole_runs: Runs of each entrant that tell its test accuracy, by stop, each with its round.
        diverged: Entrants of which a run diverged; nothing is claimed of them.
        failed: Entrants of which two runs told nothing.
        departure: How the default converges differently at the fastest setting; empty if not.
    """

    def __init__(self, plan: Plan, runs: Sequence[TrialResult]) -> None:
        self.plan, self.rounds = plan, timed_runs(plan, runs)
        self.whole_runs = whole_runs(plan, runs)
        self.diverged, self.failed = diverged(plan, runs), failed(plan, runs)
        self.departure = next(filter(None, map(self._departure, range(len(self.rounds)))), "")

    def notes(self) -> tuple[str, ...]:
        """Tell in words what the runs show apart from their figures."""
        refuted = [
            f"{each.result.trial.title}{' (a run diverged)' if index in self.diverged else ''}"
            for index, each in enumerate(self.plan.entrants)
            if each.role in CANDIDATES and self.verdict(index) is False
        ]
        departure = (
            "The default learns differently at the fastest runtime setting: "
            f"{self.plan.default.quality.name} depends on it here. {self.departure}."
        )
        tried = f"Tested for no loss but not proven: {', '.join(refuted)}."
        return (*([departure] if self.departure else []), *([tried] if refuted else []))

    def only_tried(self) -> list[int]:
        """Return the most accurate candidate, as long as no times but its own were compared.

        Such a study would end without a single comparison with the default.
        """
        accuracies = {
            index: statistics.fmean(accuracy for _, accuracy in whole)
            for index, whole in enumerate(map(self.whole, range(len(self.rounds))))
            if whole and index in self.plan.tested and self.role(index) in CANDIDATES
        }
        if not accuracies:
            return []
        nearest = max(accuracies, key=lambda index: accuracies[index])
        timed = {each for order in self.plan.rounds if 0 in order for each in order}
        return [nearest] if timed <= {0, nearest} and self.plan.owes(nearest) else []

    def _departure(self, index: int) -> str:
        if self.role(index) not in OF_DEFAULT:
            return ""
        if index in self.diverged and 0 not in self.diverged:
            return "a run of it diverged"
        curves = [each for each in self.rounds[index][0].values() if each.trial.curve]
        reference, images = self.plan.reference, self.plan.val_images or self.plan.test_images
        if reference is not None:
            found = (
                departure(reference, each.trial.seed, each.checkpoints, images, elsewhere=True)
                for each in curves
            )
            return next(filter(None, found), "") or self._loses(index)
        return self._loses(index)

    def _loses(self, index: int) -> str:
        """Tell how far whole runs at the fastest setting are below the default's; empty if not."""
        mine = [accuracy for _, accuracy in self.whole(index)]
        others = [*self.plan.accuracies, *(accuracy for _, accuracy in self.whole(0))]
        if min(len(mine), len(others)) < MIN_ROUNDS:
            return ""
        gain = statistics.fmean(mine) - statistics.fmean(others)
        spread = Spread(_ROUNDED / self.plan.test_images, usual_runs=0)
        sure = 1 - p_of_loss(mine, others, 0.0, spread) < _SURELY
        quality = self.plan.default.quality
        if gain > -self.plan.config.margin(quality) or not sure:
            return ""
        return f"its test {quality.name} is {quality.shown_gain(gain)} from the default's own"

    @property
    def has_proven(self) -> bool:
        """Whether a candidate is proven already."""
        indices = range(len(self.plan.entrants))
        return any(self.role(each) in CANDIDATES and self.verdict(each) for each in indices)

    def is_undecided(self, index: int) -> bool:
        """Return whether more accuracies could prove a candidate or one of its earlier stops."""
        return self.verdict(index, len(self.plan.entrants[index].stops)) is None

    def earliest(self, index: int) -> int:
        """Return the earliest stop of an entrant that is proven; 0 if none is but its end."""
        stops = range(1, len(self.plan.entrants[index].points))
        return sum(self.verdict(index, stop) is True for stop in stops)

    def role(self, index: int) -> Role:
        """Return what an entrant is verified for."""
        return self.plan.entrants[index].role

    def is_default(self, index: int) -> bool:
        """Return whether an entrant learns what the default learns, at any runtime setting."""
        same = self.role(index) is Role.RUNTIME_ONLY and not self.departure
        return self.role(index) is Role.DEFAULT or same

    def whole(self, index: int, stop: int = 0) -> list[tuple[int, float]]:
        """Return the test accuracies of an entrant's whole runs in order, each with its round."""
        runs = self.whole_runs[index][stop]
        return [(turn, run.test_accuracy) for turn, run in runs if run.test_accuracy is not None]

    def of_default(self, last: int | None = None) -> list[float]:
        """Return the default's test accuracies over seeds, as known after round ``last``."""
        found = list(self.plan.accuracies)
        for index in filter(self.is_default, range(len(self.rounds))):
            known = self.whole(index)
            found += [each for turn, each in known if last is None or turn <= last]
        return found

    def accuracies(self, index: int, stop: int = 0) -> list[float]:
        """Return the test accuracies of an entrant over seeds."""
        if self.is_default(index):
            return self.of_default()
        if self.role(index) is Role.STOPPED:
            recorded = self.plan.recorded_stop
            return [*recorded.accuracies] if recorded and not self.departure else []
        return [accuracy for _, accuracy in self.whole(index, stop)]

    def groups(self) -> list[list[float]]:
        """Return the test accuracies, grouped by configurations that learn the same.

        Earlier stops of a run are no further runs.
        """
        others = [
            each
            for each in range(len(self.rounds))
            if not (self.is_default(each) or self.role(each) is Role.STOPPED)
        ]
        return [self.of_default(), *map(self.accuracies, others)]

    def common(self, index: int, stop: int = 0) -> list[tuple[TrialResult, TrialResult]]:
        """Return pairs of the default's run and the entrant's, round by round."""
        default, own = self.rounds[0][0], self.rounds[index][stop]
        return [(default[turn], own[turn]) for turn in sorted(default.keys() & own.keys())]

    def no_loss(self, index: int, stop: int = 0) -> tuple[int, bool]:
        """Return how often an entrant's accuracy was looked at, and whether no loss is proven.

        The default's own params lose nothing, unless they were seen to converge differently.
        Nothing is claimed of entrants that are not tested. An earlier stop is tested at the full
        level of the one whose runs tell of it, as it counts only if all later ones are proven (a
        fixed sequence; Maurer, Hothorn and Lehmacher 1995; in sequential tests Glimm, Maurer and
        Bretz 2010, doi:10.1002/sim.3748).
        """
        if self.role(index) is Role.RUNTIME_ONLY:
            return 1, self.is_default(index)
        if self.role(index) is Role.STOPPED:  # the reference proves it, see ``recorded_stop``
            return 1, not self.departure
        if index in self.diverged:
            return 0, False
        if index not in self.plan.tested or (stop and not self.no_loss(index, stop - 1)[1]):
            return 0, False
        margin, number = self.plan.margin(index), 0
        for number, (mine, default, level) in enumerate(self._looks(index, stop), 1):
            if p_of_loss(mine, default, margin, self._spread(default)) < level:
                return number, True
        return number, False

    def loss_ruled_out(self, index: int, stop: int = 0) -> float:
        """Return the least loss (fraction) of which it is proven that an entrant loses no more.

        A planned look rules out every loss that its test rejects at its level, whatever the
        margin. These bounds hold together at all looks, so the best one counts (repeated
        confidence intervals, Jennison and Turnbull 2000, ISBN 978-0849303166, chapter 9).
        Of a training that was tested at several stops, the margin is ruled out at those that are
        proven, and nothing else: closer bounds would not hold together (Hsu and Berger 1999,
        doi:10.1080/01621459.1999.10474141). Trade-offs beside candidates have one look, at the
        end. They share in equal parts what the candidates leave of the level.

        Returns:
            The loss; below 0 for a proven gain, and infinite if nothing is proven.
        """
        if self.is_default(index):
            return 0.0
        if self.plan.part or index in self.diverged:
            return math.inf
        if self.plan.entrants[index].stops or self.role(index) is Role.STOPPED:
            return self.plan.margin(index) if self.no_loss(index, stop)[1] else math.inf
        looks = self._looks(index) if index in self.plan.tested else self._end(index)
        bounds = (
            least_margin(mine, default, level, self._spread(default))
            for mine, default, level in looks
        )
        return min(bounds, default=math.inf)

    def _looks(
        self, index: int, stop: int = 0
    ) -> Iterator[tuple[list[float], list[float], float]]:
        """Yield the accuracies of a tested entrant and the default at each look, and its level."""
        planned, whole = self.plan.looks(index), self.whole(index, stop)
        for count, level in zip(planned.candidate_runs, planned.levels, strict=True):
            if count <= len(whole):
                known = whole[:count]
                mine = [accuracy for _, accuracy in known]
                yield mine, self.of_default(known[-1][0]), level

    def _end(self, index: int) -> Iterator[tuple[list[float], list[float], float]]:
        """Yield the only look at a trade-off beside candidates."""
        plan = self.plan
        others = [each for each in plan.entrants if each.role is Role.TRADE_OFF]
        if self.role(index) is Role.TRADE_OFF:
            yield self.accuracies(index), self.of_default(), plan.alpha_left / len(others)

    def verdict(self, index: int, stop: int = 0) -> bool | None:
        """Return whether a candidate is proven or refuted; ``None`` while that is open.

        It is refuted after its last planned look, or as soon as that is unlikely to prove it, or a
        run of it diverges. An earlier stop waits for the next later one. Further runs must be
        worth it, as something is proven by then.
        """
        if index in self.diverged:
            return False
        if stop and not (later := self.verdict(index, stop - 1)):
            return later
        _, proven = self.no_loss(index, stop)
        if proven:
            return True
        mine, plan = self.accuracies(index, stop), self.plan.looks(index)
        unseen = stop and len(mine) < len(self.whole(index, stop - 1))
        if unseen or len(mine) >= plan.candidate_runs[-1]:
            return False
        default = self.of_default()
        if not (mine and default):
            return None
        margin = self.plan.margin(index)
        hope = chance_of_proof(mine, default, plan, margin, self._spread(default))
        return False if hope < (_HOPE_OF_MORE if stop else _HOPE) else None

    def _spread(self, default: Sequence[float]) -> Spread:
        """Return how accuracies vary between seeds in tests against these of the default."""
        mean = statistics.fmean(default) if default else 0.0
        return Spread(usual_deviation(mean, self.plan.test_images, self.plan.default.quality))

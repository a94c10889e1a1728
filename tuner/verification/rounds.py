"""What a study verifies, round by round, and how much time it needs for that.

A campaign verifies the next candidate for "no loss", the runtime setting and some trade-offs.
Where runs side by side save time, the candidate's accuracy comes first: times are compared only
once it is proven. The results of a refuted candidate go back into the search, which continues
while there is time for another campaign.

Rounds are saved in the study's folder when they are added, so that an interrupted verification
resumes with the same configurations and seeds.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from tuner.config.schema import Constraint, TuneConfig
from tuner.convergence.default_run import KnownDefault
from tuner.storage.study_folder import StudyFacts
from tuner.values.errors import ConfigError
from tuner.values.pareto import Objective
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialKind, TrialResult
from tuner.values.verified import Role, Verified
from tuner.verification.campaign import Aims, Beside, Campaign
from tuner.verification.entrant import CANDIDATES, Entrant
from tuner.verification.finalists import Chances, train_time_s
from tuner.verification.further_rounds import FurtherRounds
from tuner.verification.noninferiority import LookPlan, Spread, usual_deviation
from tuner.verification.plan import MIN_ROUNDS, Plan, look_counts
from tuner.verification.proof import summarize
from tuner.verification.readings import Readings

_MOSTLY = 0.75  # of the runs need no longer set-up


class Verification:
    """Decides which runs verify what.

    Args:
        config: The study's configuration.
        folder: The study's folder, which holds the rounds and the runs.
        objectives: The study's objectives.
        constraints: The study's constraints.
        space: The study's search space.
        test_images: Size of the test split.
        min_iterations: Iterations of the shortest training of interest.
        beside: Tells how to measure a point's accuracy side by side with other runs.
        val_images: Size of the validation split; 0 if it is that of the test split.
    """

    def __init__(
        self,
        config: TuneConfig,
        folder: StudyFacts,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        space: SearchSpace,
        test_images: int,
        min_iterations: int,
        beside: Beside = lambda _point: None,
        val_images: int = 0,
    ) -> None:
        self._config, self._folder = config, folder
        self._aims = Aims(config, objectives, constraints, space, beside)
        self._test_images, self._val_images = test_images, val_images
        self._min_iterations = min_iterations
        self._plan: Plan | None = None

    # -- what is known --------------------------------------------------------------------------

    def begin(self, known: KnownDefault) -> None:
        """Learn the default to compare with, and the rounds that an earlier session added.

        Raises:
            ConfigError: If what was tested then was tested with another margin or confidence.
        """
        kept = self._folder.facts.get("verification") or {"entrants": [], "rounds": []}
        others = [Entrant.from_json(each) for each in kept["entrants"]]
        self._plan = Plan(
            entrants=(Entrant(known.result, Role.DEFAULT), *others),
            rounds=tuple(tuple(order) for order in kept["rounds"]),
            config=self._config.verify,
            seed=self._config.seed,
            test_images=self._test_images,
            accuracies=known.accuracies,
            part=bool(known.part),
            min_iterations=self._min_iterations,
            reference=known.reference,
            objectives=self._aims.objectives,
            val_images=self._val_images,
        )
        self._require(kept.get("terms", {}))

    @property
    def _terms(self) -> dict[str, float]:
        """The settings that a claim depends on, which are fixed before the first look."""
        config, name = self._config.verify, f"{self._known.default.quality.name}_margin"
        return {"confidence": config.confidence, name: getattr(config, name)}

    def _require(self, terms: Mapping[str, float]) -> None:
        """Refuse other terms than those that an earlier session has tested something with."""
        for name, value in self._terms.items():
            if terms.get(name, value) != value:
                raise ConfigError(
                    f"verify.{name} must stay {terms[name]:g}, got {value:g}: configurations of "
                    f"this study were tested with it; resume=restart starts over"
                )

    def summary(self) -> tuple[Verified, ...]:
        """Return what is verified so far."""
        return summarize(self._plan, self._runs()) if self._plan else ()

    def notes(self) -> tuple[str, ...]:
        """Tell in words what verification showed apart from its figures."""
        return (*self._seen().notes(), *self._too_coarse()) if self._plan else ()

    def _too_coarse(self) -> list[str]:
        """Tell why nothing was tested, if even the default's equal would seldom be proven."""
        plan, known = self._known, self._seen().of_default()
        asked = plan.config.finalists and self._config.goal == "no_loss" and not plan.part
        if not (asked and known) or self._tested:
            return []
        quality = plan.default.quality
        spread = Spread(usual_deviation(statistics.fmean(known), plan.test_images, quality))
        margin = plan.config.margin(quality)
        if self.next_looks().allowance(margin, *spread.deviations([], known)) > 0:
            return []
        runs = f"{len(known)} run{'s' if known[1:] else ''}"
        return [
            f"Nothing was tested for no loss: with {plan.test_images:,} test {quality.items} and "
            f"{runs} of the default, even a configuration as {quality.good} would seldom be "
            f"proven to lose at most {quality.shown_loss(margin)} (verify.{quality.name}_margin=)."
        ]

    def next_looks(self) -> LookPlan:
        """Return the looks planned for the next candidate."""
        plan = self._known
        counts = look_counts(plan.config, self.at_once)
        known = self._seen().of_default()
        grown = 0 if len(plan.accuracies) > 1 or self.at_once > 1 else 1
        grown_to = tuple(len(known) + grown * each for each in counts)
        return LookPlan(grown_to, counts, plan.alpha(self._tested))

    @property
    def at_once(self) -> int:
        """How many runs of a candidate are side by side."""
        beside = self._aims.beside(self._known.default)
        return beside.at_once if beside else 1

    def proof_s(self, left_s: float) -> float:
        """Return the seconds of ``left_s``, and of overtime, that a candidate's runs may take.

        The others are for comparing times with the default's.
        """
        times_s = 2 * MIN_ROUNDS * self._known.cost_s([0])
        return max(left_s + self.overtime_s - times_s, 0.0)

    @property
    def proven_speedup(self) -> float:
        """Speed-up of the fastest that is proven to lose nothing; 1 while none is."""
        lossless = (each for each in self.summary() if each.loses_nothing and each.is_faster)
        return max((each.speedup for each in lossless), default=1.0)

    def sure_s(self, points: Sequence[TrialResult]) -> float:
        """Return the shortest training time (s) already known to lose no accuracy.

        It is that of a proven configuration, or of the default's own training.
        """
        plan = self._known
        same: list[Entrant] = []
        if not self._seen().departure:
            same = [*self._aims.runtime_only(plan, points), *self._aims.stopped(plan, points)]
        proven_s = train_time_s(plan.default) / self.proven_speedup
        return min([proven_s, *(train_time_s(each.result) for each in same)])

    @property
    def overtime_s(self) -> float:
        """Seconds beyond the budget that may be used while no candidate is proven."""
        return 0.0 if self._seen().has_proven else self._aims.overtime_s

    @property
    def _known(self) -> Plan:
        assert self._plan is not None
        return self._plan

    @property
    def _tested(self) -> int:
        return sum(each.role in CANDIDATES for each in self._known.entrants)

    def _runs(self) -> list[TrialResult]:
        return self._folder.results(TrialKind.VERIFY)

    def _seen(self) -> Readings:
        return Readings(self._known, self._runs())

    def _further(self, plan: Plan) -> FurtherRounds:
        return FurtherRounds(plan, self._runs())

    def _campaign(self, points: Sequence[TrialResult], chances: Chances) -> Campaign:
        self._learn_setup(points)
        return Campaign(self._aims, self._seen(), points, chances, self.sure_s(points))

    def _learn_setup(self, points: Sequence[TrialResult]) -> None:
        """Learn how long a set-up mostly takes: of all runs but trial 0, few start cold."""
        runs = [*self._runs(), *(each for each in points if each.trial.number)]
        setups_s = sorted(each.measurement.setup_time_s for each in runs if each.measurement)
        usual_s = setups_s[int(_MOSTLY * len(setups_s))] if setups_s else math.inf
        if usual_s != self._known.setup_s:
            self._plan = dataclasses.replace(self._known, setup_s=usual_s)

    # -- what to run ----------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether a campaign is under way and not decided, or times of it are owed."""
        if self._plan is None:
            return False
        further = self._further(self._plan)
        return further.must_go_on(further.active())

    def whole_runs(self) -> list[TrialResult]:
        """Return the runs to the end, whose curves tell as much as those of trials."""
        return [each for each in self._runs() if each.usable and not each.trial.projected]

    def describe(self) -> str:
        """Describe what the round under way verifies, in a few words."""
        plan = self._known
        order = plan.rounds[-1] if plan.rounds else ()
        told = {*order}
        if 0 in order:  # times are compared, which hold for others of the same pace too
            told = {each for index in order for each in plan.of_its_pace(index)}
        names = ", ".join(self._describe(index, order) for index in sorted(told - {0}))
        what = f"{names} against the default" if 0 in order else f"accuracy of {names}"
        return f"{what}, round {len(plan.rounds)}"

    def _describe(self, index: int, order: Sequence[int]) -> str:
        entrant = self._known.entrants[index]
        name = f"{entrant.result.trial.title} ({entrant.role.value})"
        if not entrant.stops or (0 in order and entrant.beside):
            return name
        stops = ", ".join(f"{each:,}" for each in entrant.iterations[1:])
        return f"{name}, and at {stops} on the way"

    def pending(self) -> list[Trial]:
        """Return the runs still to do in rounds that were begun."""
        if self._plan is None:
            return []
        done = {each.trial.number for each in self._runs()}
        return [each for each in self._plan.trials() if each.number not in done]

    def reserve_s(self, points: Sequence[TrialResult], chances: Chances, left_s: float) -> float:
        """Return the seconds to reserve for the next campaign, without trade-offs.

        Args:
            points: All points that may be verified.
            chances: Estimates the chances of the points.
            left_s: Seconds left of the study's budget.
        """
        if self._plan is None or not self._config.verify.finalists:
            return 0.0
        return self._campaign(points, chances).reserve_s(left_s)

    def promise(self, points: Sequence[TrialResult], chances: Chances) -> float:
        """Return what the next candidate is expected to gain; 0 without one.

        That is the logarithm of its speed-up over what is sure, for the chance of a proof.
        """
        return self._campaign(points, chances).promise

    def next_round(
        self, points: Sequence[TrialResult], chances: Chances, left_s: float, *, last: bool
    ) -> list[Trial]:
        """Begin one more round and return its runs; none if nothing is open or time is short.

        Args:
            points: All points that may be verified.
            chances: Estimates the chances of the points.
            left_s: Seconds left of the study's budget.
            last: Whether the search has ended, so that all the time left is for verification.
        """
        if self._plan is None or not self._config.verify.finalists:
            return []
        plan, further = self._plan, self._further(self._plan)
        active = further.active()
        first = [each for each in active if further.must_go_on([each])]
        order = further.order(first or active) if active else ()
        order = order if order and self._fits(order, left_s) else ()
        doubtful = [] if order or further.must_go_on(active) else further.doubtful()
        if doubtful and last:
            order = plan.turned([0, *doubtful])
            candidates = any(plan.entrants[each].role in CANDIDATES for each in doubtful)
            allowed_s = left_s + (self._aims.overtime_s if candidates else 0.0)
            order = order if plan.cost_s(order) <= allowed_s else ()
        if not order and not further.must_go_on(active):
            entrants = self._campaign(points, chances).entrants(left_s, last=last)
            plan = self._plan.with_entrants(entrants)
            new = range(len(self._plan.entrants), len(plan.entrants))
            everything = [*self._plan.owed, *doubtful, *new]
            order = self._further(plan).order(everything) if entrants else ()
        owed = self._plan.owed
        if not order and last and (timed := owed or further.unsure()):
            order = plan.turned([0, *timed])
            order = order if owed or plan.cost_s(order) <= left_s else ()
        if not order and last and (nearest := Readings(plan, self._runs()).only_tried()):
            order = plan.turned([0, *nearest])
            order = order if plan.times_s(nearest) <= left_s + self._aims.overtime_s else ()
        if not order:
            return []
        self._plan = plan.with_round(order)
        self._save()
        return self.pending()

    def _fits(self, order: Sequence[int], left_s: float) -> bool:
        """Return whether there is time for a further round, or it must run regardless.

        Fewer than ``MIN_ROUNDS`` would prove nothing, so an entrant of one is owed as many. While
        no candidate is proven, an undecided one may run into overtime.
        """
        plan, seen = self._known, self._seen()
        cost_s = plan.cost_s(order)
        if 0 not in order:
            cost_s += plan.times_s([*plan.owed, order[0]])
        elif any(each and plan.owes(each) for each in order):
            return True
        doubtful = any(seen.role(each) in CANDIDATES and seen.is_undecided(each) for each in order)
        return cost_s <= left_s + (self.overtime_s if doubtful else 0.0)

    def _save(self) -> None:
        plan = self._known
        self._folder.save(
            verification={
                "entrants": [each.to_json() for each in plan.entrants[1:]],
                "rounds": plan.rounds,
                **({"terms": self._terms} if plan.tested else {}),
            }
        )

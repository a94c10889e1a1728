"""The runs of a verification that have ended, and of which entrants they tell.

A run may tell of others than its own entrant's end. A whole run was tested at earlier stops on the
way. And the rate of a training is that of the same training for longer or shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tuner.values.trial import TrialResult, TrialStatus
from tuner.verification.plan import Plan
from tuner.verification.stops import at_stop, for_iterations


def timed_runs(plan: Plan, runs: Sequence[TrialResult]) -> list[list[dict[int, TrialResult]]]:
    """Return the usable runs of rounds that compare times, by entrant, point and round.

    Runs of another entrant of the same pace stand for one where it was not in the round. A run of
    no time at all, as its clock stood still, has none that could be compared.
    """
    own: list[dict[int, TrialResult]] = [{} for _ in plan.entrants]
    for run, turn, index in _placed(plan, runs):
        if run.usable and plan.compares_times(turn) and run.metrics["train_time_s"] > 0:
            own[index][turn] = run
    found = []
    for index, entrant in enumerate(plan.entrants):
        end, *stops = entrant.iterations
        same = plan.of_its_pace(index)
        at_end = _at(end, [own[each] for each in same if each != index]) | own[index]
        found.append([at_end, *(_at(stop, [own[each] for each in same]) for stop in stops)])
    return found


def _at(iterations: int, known: Iterable[Mapping[int, TrialResult]]) -> dict[int, TrialResult]:
    """Return runs by round, each as if it stood for so many iterations; later ones prevail."""
    return {
        turn: at_stop(run, iterations) or for_iterations(run, iterations)
        for each in known
        for turn, run in each.items()
    }


def whole_runs(
    plan: Plan, runs: Sequence[TrialResult]
) -> list[list[list[tuple[int, TrialResult]]]]:
    """Return the usable runs that tell a test accuracy, with rounds, by entrant and point."""
    found: list[list[list[tuple[int, TrialResult]]]] = [
        [[] for _ in each.points] for each in plan.entrants
    ]
    for run, turn, index in _placed(plan, runs):
        if not run.usable:
            continue
        end, *stops = found[index]
        if run.test_accuracy is not None:
            end.append((turn, run))
        for stop, iterations in zip(stops, plan.entrants[index].iterations[1:], strict=True):
            if earlier := at_stop(run, iterations):
                stop.append((turn, earlier))
    return found


def diverged(plan: Plan, runs: Sequence[TrialResult]) -> frozenset[int]:
    """Return the entrants of which a run diverged; its other seeds do not tell it all."""
    return frozenset(
        index for run, _, index in _placed(plan, runs) if run.status is TrialStatus.DIVERGED
    )


def failed(plan: Plan, runs: Sequence[TrialResult]) -> frozenset[int]:
    """Return the entrants of which two runs told nothing, so that they are given up."""
    told_nothing = Counter(
        index
        for run, _, index in _placed(plan, runs)
        if not run.usable or (run.trial.test and run.test_accuracy is None)
    )
    return frozenset(index for index, count in told_nothing.items() if count > 1)


def _placed(plan: Plan, runs: Sequence[TrialResult]) -> list[tuple[TrialResult, int, int]]:
    """Return the plan's own runs in the order of their numbers, each with round and entrant."""
    known = [each for each in runs if each.trial.number < len(plan.places)]
    known.sort(key=lambda each: each.trial.number)
    return [(each, *plan.places[each.trial.number]) for each in known]

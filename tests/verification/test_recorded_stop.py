"""The default stopped earlier: what its reference proves, and how a study uses that."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from tests.verification.test_rounds import BEST, GOOD, RUNTIME, Bench
from tests.verify_samples import (
    DEFAULT,
    LONG,
    SEEDS,
    first_looks,
    make_entrant,
    make_plan,
    make_reference,
    run_of,
)
from tuner.convergence.references import Accuracies, ReferenceRun
from tuner.values.verified import Role, answers_of
from tuner.verification.noninferiority import candidate_alpha
from tuner.verification.proof import summarize
from tuner.verification.readings import Readings
from tuner.verification.recorded_stop import earliest_stop, stopped_default

MARGIN, LEVEL = 0.002, 0.0125
STEADY = (0.0004, 0.0006, 0.0005, 0.0003, 0.0007)
"""What each seed loses at a stop: seeds agree, far within the margin."""


def recorded(**losses):
    """A reference whose seeds lose that much after so many iterations: ``it3200=STEADY``."""
    reference = make_reference(*SEEDS)
    by_stop = {int(name.removeprefix("it")): each for name, each in losses.items()}

    def look(known: Accuracies, end: float, place: int) -> Accuracies:
        if known.iteration not in by_stop:
            return known
        return dataclasses.replace(known, test_accuracy=end - by_stop[known.iteration][place])

    runs = tuple(
        ReferenceRun(
            run.seed,
            tuple(look(each, run.looks[-1].test_accuracy, place) for each in run.looks),
        )
        for place, run in enumerate(reference.runs)
    )
    return dataclasses.replace(reference, runs=runs)


REFERENCE = recorded(it3200=STEADY)


def test_the_earliest_stop_that_loses_nothing_is_found():
    found = earliest_stop(recorded(it3200=STEADY, it1600=STEADY[::-1]), MARGIN, LEVEL)
    assert found.iterations == 1600
    assert found.accuracies == pytest.approx(
        [end - loss for end, loss in zip(SEEDS, STEADY[::-1], strict=True)]
    )
    gain, p_value = found.gain(0.95)
    assert gain.value == pytest.approx(-0.0005)
    assert -0.0008 < gain.low < gain.high < -0.0002
    assert p_value < 0.01


def test_a_stop_counts_only_if_all_later_ones_do():
    assert earliest_stop(recorded(it1600=STEADY), MARGIN, LEVEL) is None, "3200 is not proven"


def test_seeds_that_disagree_or_are_too_few_prove_nothing():
    scattered = recorded(it3200=(0.0035, -0.0015, 0.0010, -0.0010, 0.0015))
    assert earliest_stop(scattered, MARGIN, LEVEL) is None
    two = dataclasses.replace(REFERENCE, runs=REFERENCE.runs[:2])
    assert earliest_stop(two, MARGIN, LEVEL) is None
    alike = recorded(it3200=(0.0005,) * 5)
    assert earliest_stop(alike, MARGIN, LEVEL) is None, "no spread at all is no evidence"


def test_stops_that_lose_the_margin_are_seldom_called_no_loss():
    noise, wrong = random.Random(1), 0
    for _ in range(4000):
        losses = {
            f"it{stop}": [noise.gauss(MARGIN, 0.0008) for _ in SEEDS] for stop in (800, 1600, 3200)
        }
        wrong += earliest_stop(recorded(**losses), MARGIN, 0.05) is not None
    assert wrong / 4000 < 0.06


def test_what_the_stops_do_not_spend_passes_on_to_the_candidates():
    first = make_entrant(1, 20.0, Role.NO_LOSS)
    without = make_plan(first, config=LONG, accuracies=SEEDS)
    proven = dataclasses.replace(without, reference=REFERENCE)
    spent = dataclasses.replace(without, reference=make_reference())
    assert without.alpha(0) == proven.alpha(0) == pytest.approx(candidate_alpha(0.05, 0))
    assert spent.alpha(1) == pytest.approx(0.75 * candidate_alpha(0.05, 1))
    assert dataclasses.replace(spent, part=True).recorded_stop is None


def derived_at(iterations, setting=RUNTIME):
    """A checkpoint of the default at the pace of a setting."""
    params = {**setting.params, "iterations": iterations}
    share = iterations / DEFAULT.iterations
    return dataclasses.replace(
        setting,
        trial=dataclasses.replace(setting.trial, params=params, point=2),
        iterations=iterations,
        measurement=dataclasses.replace(
            setting.measurement, train_time_s=share * setting.metrics["train_time_s"]
        ),
    )


@pytest.fixture
def bench(folder):
    return StoppedBench(folder, RUNTIME, derived_at(3200), reference=REFERENCE)


class StoppedBench(Bench):
    """A bench whose runs of the default's own training are told apart by their settings."""

    def number(self, trial):
        ours = {**trial.params, "iterations": DEFAULT.iterations} == RUNTIME.params
        return "runtime" if ours else super().number(trial)


def test_the_runs_of_the_runtime_setting_tell_the_time_of_the_stop_too(bench):
    assert bench.verification.sure_s(bench.points) == pytest.approx(16.0), "before any proof"
    ran = bench.run(bench.round(last=True))
    assert bench.roles() == [Role.RUNTIME_ONLY, Role.STOPPED]
    assert sorted(map(str, ran)) == ["0", "runtime"], "one run for both"
    assert bench.verification.describe() == (
        "trial 0 at 10,000 (runtime only), trial 0 at 3,200 (default stopped) against the "
        "default, round 1"
    )
    while trials := bench.round(last=True):
        bench.run(trials)
    verified = bench.verification.summary()
    found = next(each for each in verified if each.role is Role.STOPPED)
    assert found.name == "default at 3,200"
    assert found.params["iterations"] == 3200
    assert found.speedup == pytest.approx(6.25, rel=0.01)
    assert found.loses_nothing
    assert found.gain == pytest.approx(-0.0005)
    assert found.accuracy_from == "its first run at this stop"
    assert found.against_default.loss_ruled_out == MARGIN
    assert answers_of(verified).no_loss is found
    assert answers_of(verified).runtime_only.speedup == pytest.approx(2.0, rel=0.01)


def test_a_short_stop_shares_the_runs_of_the_runtime_setting_too(folder):
    reference = recorded(it3200=STEADY, it1600=STEADY[::-1])
    bench = StoppedBench(folder, RUNTIME, derived_at(1600), reference=reference)
    assert sorted(map(str, bench.run(bench.round(last=True)))) == ["0", "runtime"]
    while trials := bench.round(last=True):
        bench.run(trials)
    found = next(each for each in bench.verification.summary() if each.role is Role.STOPPED)
    assert (found.full_runs, found.rate_runs, found.rate_share) == (0, 6, pytest.approx(0.625))


def test_without_a_faster_setting_the_stop_runs_at_the_default_s_own(folder):
    bench = StoppedBench(folder, reference=REFERENCE)
    assert sorted(map(str, [t.params["iterations"] for t in bench.round(last=True)])) == [
        "10000",
        "3200",
    ]
    assert bench.roles() == [Role.STOPPED]


LESS = range(200, 0, -2)
"""Seconds left, less and less."""


def roles_for(bench, left_s, *, last=False):
    """What a campaign would verify in the time that is left."""
    campaign = bench.verification._campaign(bench.points, bench.likely)
    return [each.role for each in campaign.entrants(left_s, last=last)]


def test_with_little_time_the_stop_waits_until_the_candidate_has_failed(folder):
    bench = StoppedBench(folder, BEST, at_once=2, reference=REFERENCE)
    found = [each for each, _ in itertools.groupby(LESS, lambda left_s: roles_for(bench, left_s))]
    assert found == [[Role.STOPPED, Role.NO_LOSS], [Role.NO_LOSS], []]
    bench.chances[BEST.trial.number] = 0.0
    assert roles_for(bench, LESS[0]) == [], "it waits for a candidate, too"
    assert roles_for(bench, LESS[-1], last=True) == [Role.STOPPED]


@pytest.mark.parametrize(
    ("left_s", "roles", "rounds"),
    [
        (120.0, [Role.STOPPED, Role.NO_LOSS], 3),
        (100.0, [Role.NO_LOSS], 3),
        (90.0, [Role.STOPPED, Role.NO_LOSS], 2),
    ],
)
def test_the_stop_waits_if_that_leaves_time_for_one_more_look(folder, left_s, roles, rounds):
    bench = StoppedBench(folder, BEST, at_once=2, reference=REFERENCE, budget_s=240.0)
    campaign = bench.verification._campaign(bench.points, bench.likely)
    found = campaign.entrants(left_s, last=True)
    assert [each.role for each in found] == roles
    assert found[-1].rounds == rounds


def test_a_stop_is_of_no_use_once_a_faster_candidate_is_proven(folder):
    bench = StoppedBench(folder, BEST, at_once=2, reference=REFERENCE)
    left_s = next(each for each in LESS if roles_for(bench, each) == [Role.NO_LOSS])
    bench.shown[BEST.trial.number] = GOOD
    bench.run(bench.round(left_s=left_s))
    while trials := bench.round(last=True):
        bench.run(trials)
    assert bench.roles() == [Role.NO_LOSS]


def test_a_limit_may_forbid_the_stop_and_a_goal_may_not_ask_for_it(folder):
    assert Bench(folder, reference=REFERENCE, limits=["accuracy>=0.999"]).round(last=True) == []
    assert Bench(folder, reference=REFERENCE, goal="accuracy").round(last=True) == []


def followed(shift):
    """Rounds of the stop alone, whose looks are ``shift`` from what is recorded."""
    stop = make_plan(config=LONG, reference=REFERENCE).recorded_stop
    entrant = make_entrant(0, 50.0, Role.RUNTIME_ONLY)
    entrant = dataclasses.replace(
        entrant, role=Role.STOPPED, result=stopped_default(entrant.result, stop)
    )
    plan = make_plan(
        entrant, config=LONG, accuracies=SEEDS, reference=REFERENCE, min_iterations=100, rounds=2
    )
    runs = [
        run_of(
            trial,
            (100.0, 16.0)[plan.places[trial.number][1]] + turn / 10,
            None,
            checkpoints=first_looks(REFERENCE, trial.seed, 800, shift) if trial.curve else (),
        )
        for turn, trial in enumerate(plan.trials())
    ]
    return plan, runs


def test_a_stop_is_claimed_only_if_its_setting_learns_as_recorded():
    plan, runs = followed(0.0)
    assert answers_of(summarize(plan, runs)).no_loss.role is Role.STOPPED
    plan, runs = followed(0.005)
    assert "from the recorded curve" in Readings(plan, runs).departure
    assert summarize(plan, runs) == ()

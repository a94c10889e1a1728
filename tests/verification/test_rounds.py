"""Campaigns: who is verified next, how long, and what an interruption leaves to do."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report_samples import make_measurement, make_result
from tests.verify_samples import (
    DEFAULT,
    LONG,
    SEEDS,
    SPACE,
    first_looks,
    make_entrant,
    make_plan,
    make_reference,
    make_runtime_only,
    make_space,
    run_of,
    searched,
)
from tuner.config.schema import BudgetConfig, TuneConfig, VerifyConfig, parse_constraint
from tuner.convergence.default_run import KnownDefault
from tuner.storage.study_folder import StudyFolder
from tuner.values.errors import ConfigError
from tuner.values.pareto import find_objective
from tuner.values.trial import Checkpoint, SideBySide, TrialKind, TrialStatus
from tuner.values.verified import Role
from tuner.verification.rounds import Verification
from tuner.verification.stops import same_training

GOALS = [find_objective("accuracy"), find_objective("train_time_s")]
AMPLE = 1e6
RUNTIME = make_runtime_only(50.0)
BEST = make_result(1, 0.990, 20.0, batch_size=128, iterations=4000)
SECOND = make_result(2, 0.990, 25.0, batch_size=32, iterations=8000)
LONGER = make_result(3, 0.991, 30.0, batch_size=128, iterations=6000)
PART = make_result(4, 0.988, 10.0, batch_size=128, iterations=2000)
COARSE = make_result(5, 0.970, 5.0, batch_size=256, iterations=500)
STOPS = [
    dataclasses.replace(
        BEST,
        trial=BEST.trial.derive(place, {**BEST.params, "iterations": iterations}),
        measurement=make_measurement(20.0 * iterations / 4000),
    )
    for place, iterations in enumerate((3200, 2400), 1)
]
"""Earlier stops of the best."""


def only_best(points):
    """Chances by which the best comes first, and its earlier stops are worth a look."""
    return [0.9 if each.params == BEST.params else 0.2 * (each in STOPS) for each in points]


LIKELY = {1: 0.9, 2: 0.7, 3: 0.6, 4: 0.5, 5: 0.01}
GOOD, POOR = (0.9902, 0.9898, 0.9901), (0.9851, 0.9849, 0.9852)
NEARLY = (0.9890, 0.9889, 0.9891)
"""As good within the margin, which two runs do not prove."""


class Bench:
    """A verification over a real study folder, whose runs show what is said."""

    def __init__(
        self, folder, *points, accuracies=SEEDS, config=LONG, limits=(), reference=None,
        goal="no_loss", at_once=1, budget_s=1000.0, space=SPACE,
    ):  # fmt: skip
        self.folder, self.points, self.at_once = folder, searched(*points), at_once
        self.accuracies, self.reference, self.space = accuracies, reference, space
        self.chances, self.shown, self.times, self.on_the_way = dict(LIKELY), {}, {}, {}
        self.config = TuneConfig(verify=config, budget=BudgetConfig(time_s=budget_s), goal=goal)
        self.limits = [parse_constraint(text) for text in limits]
        self.resume()

    def resume(self):
        """A new session of the same study."""
        self.verification = Verification(
            self.config, self.folder, GOALS, self.limits, self.space, test_images=10_000,
            min_iterations=100, beside=self.beside,
        )  # fmt: skip
        self.verification.begin(KnownDefault(DEFAULT, tuple(self.accuracies), self.reference))

    def beside(self, point):
        """One core is as fast as two, so that two runs beside each other take half the time."""
        if self.at_once == 1:
            return None
        params = {**point.params, "threads": 1}
        return SideBySide(params, self.at_once, point.metrics["train_time_s"])

    def likely(self, points):
        return [self.chances.get(each.trial.number, 0.0) for each in points]

    def round(self, left_s=AMPLE, *, last=False):
        return self.verification.next_round(self.points, self.likely, left_s, last=last)

    def reserve_s(self, left_s=AMPLE):
        return self.verification.reserve_s(self.points, self.likely, left_s)

    def number(self, trial):
        """Of the search trial that a run verifies."""
        params = trial.params
        if trial.accuracy_only:
            params = {**params, "threads": BEST.params["threads"]}
        if params == RUNTIME.params:
            return "runtime"
        same = [each for each in self.points if same_training(each.params, params)]
        exact = [each for each in same if each.params == params]
        return (exact or same)[0].trial.number  # a candidate may train for longer

    def outcome(self, trial):
        """What a run shows: accuracies turn by turn of those said to have some."""
        number = self.number(trial)
        turn = trial.seed % 1000 + trial.seed // 10**6 if trial.test else 0
        accuracies = self.shown.get(number, (0.99, 0.9902, 0.9898))
        time_s = trial.number / 1e3 + self.times.get(
            number, 50.0 if number == "runtime" else self.point(number)
        )
        looks = first_looks(self.reference, trial.seed, 1600) if trial.curve else ()
        looks += tuple(
            Checkpoint(
                each,
                time_s * each / trial.params["iterations"],
                None,
                0.99,
                self.on_the_way.get(each, accuracies)[turn % 3],
            )
            for each in trial.test_at
        )
        return run_of(trial, time_s, accuracies[turn % 3], checkpoints=looks)

    def point(self, number):
        return next(x for x in self.points if x.trial.number == number).metrics["train_time_s"]

    def run(self, trials):
        for each in trials:
            self.folder.keep(self.outcome(each))
        return [self.number(each) for each in trials]

    def campaign(self, **how):
        """Who is in each round until the campaign that is begun now is decided."""
        rounds = [self.run(self.round(**how))]
        while (self.verification.open or how.get("last")) and (trials := self.round(**how)):
            rounds.append(self.run(trials))
        return rounds

    def roles(self):
        kept = self.folder.facts["verification"]["entrants"]
        return [Role(each["role"]) for each in kept]


# -- who ----------------------------------------------------------------------------------------


def test_the_runtime_setting_and_the_most_promising_candidate_come_first(folder):
    bench = Bench(folder, RUNTIME, SECOND, BEST, PART)
    bench.chances[4] = 0.3  # faster, and less likely
    assert sorted(map(str, bench.run(bench.round(left_s=160.0)))) == ["0", "1", "runtime"]
    assert bench.roles() == [Role.RUNTIME_ONLY, Role.NO_LOSS]
    assert bench.verification.describe() == (
        "trial 0 at 10,000 (runtime only), trial 1 (no loss), and at 2,000 on the way "
        "against the default, round 1"
    )


def test_the_fastest_runtime_setting_is_verified_and_only_if_it_is_faster(folder):
    slower = make_runtime_only(120.0)
    bench = Bench(folder, slower)
    assert bench.round(last=True) == []
    faster = make_runtime_only(40.0)
    setting = {**RUNTIME.params, "threads": 1}
    faster = dataclasses.replace(faster, trial=DEFAULT.trial.derive(1, setting))
    bench.points += [RUNTIME, faster]
    assert bench.round() == [], "the search may go on"
    params = [each.params for each in bench.round(last=True)]
    assert params == [DEFAULT.params, setting]


def test_what_trial_0_compiled_is_not_compiled_again(folder):
    cold = dataclasses.replace(DEFAULT.measurement, setup_time_s=30.0)
    bench = Bench(folder, RUNTIME, budget_s=10_000.0)
    bench.points = [
        dataclasses.replace(each, measurement=dataclasses.replace(cold, train_time_s=50.0))
        for each in bench.points
    ]
    before_s = bench.reserve_s()
    warm = dataclasses.replace(cold, setup_time_s=5.0)
    bench.points.append(dataclasses.replace(BEST, measurement=warm, val_accuracy=0.5))
    runs = 4  # of the runtime setting, whose figures come from trial 0; reserved four times
    assert before_s - bench.reserve_s() == pytest.approx(4 * runs * 25.0)


def test_few_slow_set_ups_are_not_expected_again(folder):
    bench = Bench(folder, RUNTIME, budget_s=10_000.0)
    usual = dataclasses.replace(DEFAULT.measurement, setup_time_s=5.0)
    slow = dataclasses.replace(usual, setup_time_s=20.0)
    bench.points = [
        dataclasses.replace(each, measurement=dataclasses.replace(slow, train_time_s=50.0))
        for each in bench.points
    ]
    for number in range(10, 18):
        trial = dataclasses.replace(BEST.trial, number=number)
        bench.points.append(
            dataclasses.replace(BEST, trial=trial, measurement=usual, val_accuracy=0.5)
        )
    before_s = bench.reserve_s()
    bench.points[-1] = dataclasses.replace(bench.points[-1], measurement=slow)
    assert bench.reserve_s() == before_s
    bench.points[-3:] = [dataclasses.replace(each, measurement=slow) for each in bench.points[-3:]]
    assert bench.reserve_s() > before_s, "as many are not few"


def test_what_is_slower_than_the_runtime_setting_alone_promises_nothing(folder):
    bench = Bench(folder, RUNTIME, make_result(6, 0.992, 60.0, batch_size=32), BEST)
    bench.chances |= {6: 0.99, 1: 0.2}
    assert bench.verification.sure_s(bench.points) == 50.0
    bench.campaign(left_s=160.0)
    assert bench.roles() == [Role.RUNTIME_ONLY, Role.NO_LOSS]
    assert bench.verification.sure_s(bench.points) == pytest.approx(20.0, rel=0.01), "proven"


@pytest.mark.parametrize(("chance", "first"), [(0.2, 6), (0.6, 1)])
def test_of_two_the_one_is_verified_first_that_promises_more(folder, chance, first):
    slow = make_result(6, 0.991, 45.0, batch_size=32)
    bench = Bench(folder, slow, BEST, at_once=2)
    bench.chances |= {6: 0.99, 1: chance}
    assert bench.run(bench.round()) == [first] * 2, "log 5 at this chance; log 2.2 at 0.99"


def test_a_part_of_the_default_is_no_runtime_setting_alone(folder):
    half = dataclasses.replace(RUNTIME, iterations=5000)
    assert Bench(folder, half).round() == []


def test_a_candidate_promises_speed_at_some_chance(folder):
    slow = make_result(6, 0.992, 95.0, batch_size=16)
    bench = Bench(folder, slow, COARSE)
    bench.chances[6] = 0.99
    assert bench.round() == [], "one is hardly faster, the other hopeless"
    bench.chances[5] = 0.2
    assert 5 in bench.run(bench.round())


def test_without_finalists_nothing_is_verified(folder):
    bench = Bench(folder, RUNTIME, BEST, config=dataclasses.replace(LONG, finalists=0))
    assert bench.round(last=True) == []
    assert bench.reserve_s() == 0.0
    assert bench.verification.summary() == ()


def test_before_the_default_is_known_there_is_nothing_to_do(folder):
    fresh = Verification(TuneConfig(), folder, GOALS, [], SPACE, 10_000, 100)
    assert fresh.pending() == []
    assert fresh.next_round([BEST], lambda points: [1.0], AMPLE, last=True) == []
    assert fresh.reserve_s([BEST], lambda points: [1.0], AMPLE) == 0.0
    assert (fresh.summary(), fresh.notes(), fresh.open) == ((), (), False)


def test_what_breaks_a_constraint_is_not_verified(folder):
    greedy = dataclasses.replace(
        BEST, measurement=make_measurement(20.0, peak_memory_bytes=2 * 2**30)
    )
    bench = Bench(folder, greedy, SECOND, limits=["peak_memory_mb<=1000"])
    assert set(bench.run(bench.round(last=True))) == {0, 2}


# -- one campaign after the other ---------------------------------------------------------------


def test_a_candidate_that_is_proven_leaves_the_campaign(folder):
    bench = Bench(folder, BEST, config=dataclasses.replace(LONG, repeats=5))
    bench.shown[1] = GOOD
    assert bench.campaign() == [[0, 1], [1, 0]]
    assert bench.verification.proven_speedup == pytest.approx(5.0, rel=0.01)
    assert bench.round() == [], "nothing promises more than is proven"


def test_a_refuted_candidate_is_followed_by_its_longer_training_never_by_a_part_of_it(folder):
    bench = Bench(folder, BEST, LONGER, PART, SECOND)
    bench.chances |= {2: 0.3, 4: 0.16}
    bench.shown = {1: POOR, 3: POOR}
    followers = []
    while trials := bench.round(left_s=130.0):  # too little for trade-offs
        followers += [each for each in bench.run(trials) if each]
    assert [each for each, _ in itertools.groupby(followers)] == [1, 3, 2]
    assert bench.verification.notes() == ("Tested for no loss but not proven: trial 1, trial 3.",)


@pytest.mark.parametrize(
    ("margin", "accuracies", "told"),
    [(0.002, SEEDS, False), (0.0002, SEEDS, True), (0.001, SEEDS[:1], True)],
)
def test_a_test_split_too_small_to_prove_anything_is_told(folder, margin, accuracies, told):
    config = dataclasses.replace(LONG, accuracy_margin=margin)
    bench = Bench(folder, BEST, config=config, accuracies=accuracies)
    notes = bench.verification.notes()
    assert [f"10,000 test images and {len(accuracies)} run" in each for each in notes] == [
        True
    ] * told
    bench.round()
    assert bench.verification.notes() == (), "a candidate is being tested after all"


def test_a_part_of_what_is_proven_may_be_proven_too(folder):
    bench = Bench(folder, BEST, PART)
    bench.chances[4] = 0.1  # not worth a look on the way
    bench.shown = {1: GOOD, 4: GOOD}
    bench.campaign()
    assert bench.verification.proven_speedup == pytest.approx(5.0, rel=0.01)
    bench.chances[4] = 0.5
    bench.campaign()
    assert bench.verification.proven_speedup == pytest.approx(10.0, rel=0.01)
    assert bench.round() == []


def test_where_accuracy_is_sought_the_likeliest_is_taken_however_slow(folder):
    slow = make_result(6, 0.994, 300.0, batch_size=16)
    half = make_result(7, 0.993, 150.0, batch_size=16, iterations=5000)
    bench = Bench(folder, slow, half, goal="accuracy")
    bench.config.budget.time_s = 3000.0
    bench.chances = {6: 0.8, 7: 0.7}
    bench.shown = {6: (0.9950, 0.9951, 0.9949)}
    assert set(itertools.chain(*bench.campaign(left_s=980.0))) == {0, 6}
    assert bench.roles() == [Role.ACCURACY]
    found = bench.verification.summary()[1]
    assert found.is_better
    assert found.is_slower
    assert bench.round(left_s=980.0) == [], "a part of it is not more accurate"


def test_what_was_verified_slower_than_promised_is_not_verified_again(folder):
    bench = Bench(folder, BEST)
    bench.shown[1], bench.times[1] = GOOD, 60.0
    bench.campaign()
    assert bench.verification.proven_speedup == pytest.approx(100 / 60, rel=0.01)
    assert bench.round() == []


def test_a_candidate_whose_runs_fail_twice_is_given_up(folder):
    bench = Bench(folder, BEST, SECOND)
    for turn in range(2):
        for each in bench.round():
            failed = TrialStatus.CRASHED if bench.number(each) == 1 else TrialStatus.COMPLETE
            folder.keep(dataclasses.replace(bench.outcome(each), status=failed))
        assert bench.verification.open is (turn == 0)
    assert 2 in bench.run(bench.round())


@pytest.mark.parametrize("good_rounds", [0, 1, 2])
def test_a_candidate_of_which_a_run_diverges_is_refuted(folder, good_rounds):
    bench = Bench(folder, BEST, SECOND, config=dataclasses.replace(LONG, repeats=5))
    bench.shown[1] = (0.9892, 0.9890, 0.9891)  # good enough, but not proven before the third look
    for turn in range(good_rounds + 1):
        for each in bench.round():
            diverged = turn == good_rounds and bench.number(each) == 1
            status = TrialStatus.DIVERGED if diverged else TrialStatus.COMPLETE
            folder.keep(dataclasses.replace(bench.outcome(each), status=status))
    assert not bench.verification.open
    assert bench.verification.proven_speedup == 1.0
    assert not any(each.trial_number == 1 for each in bench.verification.summary())
    (note,) = bench.verification.notes()
    assert note == "Tested for no loss but not proven: trial 1 (a run diverged)."
    assert 2 in bench.run(bench.round())


def test_a_runtime_setting_at_which_a_run_diverges_is_not_the_default_alone(folder):
    bench = Bench(folder, RUNTIME)
    for turn in range(4):
        for each in bench.round(last=True):
            diverged = turn == 3 and bench.number(each) == "runtime"
            status = TrialStatus.DIVERGED if diverged else TrialStatus.COMPLETE
            folder.keep(dataclasses.replace(bench.outcome(each), status=status))
    assert "a run of it diverged" in bench.verification.notes()[0]
    assert bench.verification.proven_speedup == 1.0


def test_a_run_that_failed_once_is_made_up_for(folder):
    bench = Bench(folder, BEST, config=dataclasses.replace(LONG, repeats=2))
    first = bench.round()
    folder.keep(bench.outcome(first[0]))
    folder.keep(dataclasses.replace(bench.outcome(first[1]), status=TrialStatus.STALLED))
    bench.shown[1] = GOOD
    assert bench.campaign() == [[1, 0], [0, 1]]
    assert bench.verification.proven_speedup > 4


def test_the_runtime_setting_goes_on_beside_the_next_candidate(folder):
    bench = Bench(folder, RUNTIME, BEST, SECOND, reference=make_reference())
    bench.shown = {1: POOR, 2: POOR}
    bench.shown[2] = (0.9892, 0.9891, 0.9892)  # not decided before the last look
    first = bench.campaign(left_s=600.0)
    assert ["runtime" in each for each in first] == [True], "what is refuted ends the campaign"
    later = bench.campaign(left_s=600.0)
    runs = [each for each in (*first, *later) if "runtime" in each]
    assert len(runs) == 4, "as many rounds as rates need"
    assert all(2 in each for each in later)
    assert any(each.role is Role.RUNTIME_ONLY for each in bench.verification.summary())


@pytest.mark.parametrize(("left_s", "rounds"), [(AMPLE, 10), (-1.0, 4)])
def test_the_runtime_setting_alone_has_more_than_the_least_rounds_in_time(folder, left_s, rounds):
    bench = Bench(folder, RUNTIME, config=dataclasses.replace(LONG, repeats=5))
    found = []
    while trials := bench.round(left_s=left_s, last=True):
        found.append(sorted(map(str, bench.run(trials))))
    assert found == [["0", "runtime"]] * rounds
    assert bench.round(last=False) == []


def test_the_runtime_setting_alone_has_its_further_rounds_at_the_end_of_the_search(folder):
    bench = Bench(folder, RUNTIME)
    assert bench.round() == [], "it waits for a candidate"
    assert bench.reserve_s() > 0
    assert set(bench.run(bench.round(last=True))) == {0, "runtime"}
    assert not bench.verification.open
    assert bench.round() == [], "the search may go on"
    assert bench.reserve_s() > 0, "and has to leave the time for it"
    for _ in range(3):
        assert set(bench.run(bench.round(left_s=-1.0, last=True))) == {0, "runtime"}
    assert bench.round(left_s=-1.0, last=True) == []


@pytest.mark.parametrize(
    ("faster_s", "rounds"),
    [
        ([50.0] * 8, 6),  # clear at once: the usual rounds
        ([99.0, 70.0, 95.0, 72.0] * 2, 8),  # seems faster, not proven by four rounds
        ([101.0, 130.0, 105.0, 128.0] * 2, 6),  # seems slower
    ],
)
def test_a_runtime_setting_that_seems_faster_and_is_not_proven_has_more_rounds(
    folder, faster_s, rounds
):
    bench = Bench(folder, RUNTIME, BEST, SECOND, reference=make_reference())
    bench.shown = {1: POOR, 2: POOR}
    took = iter(faster_s)
    runs = []
    while trials := bench.round(left_s=600.0, last=True):
        if any(bench.number(each) == "runtime" for each in trials):
            bench.times["runtime"] = next(took)
        runs.append(bench.run(trials))
    assert sum(1 for _ in itertools.takewhile(lambda each: "runtime" in each, runs)) == rounds


@pytest.mark.parametrize(
    ("default_s", "rounds"),
    [
        ([100.0] * 8, 2),  # clear at once
        ([100.0, 40.0, 90.0, 50.0] * 2, 4),  # seems slower, but not clearly
    ],
)
def test_a_proven_candidate_that_seems_faster_has_more_rounds(folder, default_s, rounds):
    bench = Bench(folder, BEST)
    bench.shown[1] = GOOD
    took, found = iter(default_s), []
    while trials := bench.round(left_s=-1.0 if found else AMPLE, last=True):
        bench.times[0] = next(took)
        found.append(set(bench.run(trials)))
    assert found == [{0, 1}] * rounds


# -- side by side -------------------------------------------------------------------------------


def test_accuracies_side_by_side_come_first_and_times_once_they_are_proven(folder):
    bench = Bench(folder, RUNTIME, BEST, at_once=2)
    bench.shown[1] = GOOD
    rounds = bench.campaign()
    assert rounds[0] == [1, 1], "two fresh seeds at once, and nothing to compare times with"
    assert [set(each) for each in rounds[1:]] == [{0, "runtime", 1}] * 4
    whole, parts = [], []
    for each in bench.folder.results(TrialKind.VERIFY):
        (whole if each.trial.accuracy_only else parts).append(each.trial)
    assert len({each.seed for each in whole}) == 2
    assert all(each.params["threads"] == 1 and each.test and each.share == 1 for each in whole)
    assert all(each.share < 1 and not each.test for each in parts)
    found = next(x for x in bench.verification.summary() if x.role is Role.NO_LOSS)
    assert (found.full_runs, found.rate_runs, found.projected) == (2, 4, False)
    assert found.test_accuracy.value == pytest.approx(sum(GOOD[:2]) / 2)
    assert found.loses_nothing
    assert found.is_faster
    assert set(whole[0].name.split()) < set(found.runs)


def test_times_of_what_is_proven_are_measured_again_at_the_end_of_the_search(folder):
    bench = Bench(folder, RUNTIME, BEST, at_once=2)
    bench.shown[1] = GOOD
    bench.campaign()
    assert bench.round(left_s=-1.0, last=True) == []
    while trials := bench.round(last=True):
        assert set(bench.run(trials)) == {0, "runtime", 1}
    found = next(x for x in bench.verification.summary() if x.role is Role.NO_LOSS)
    assert (found.full_runs, found.rate_runs) == (2, 2 * LONG.repeats)


def test_what_is_refuted_side_by_side_costs_no_comparison_of_times(folder):
    bench = Bench(folder, RUNTIME, BEST, SECOND, at_once=2)
    bench.shown = {1: POOR, 2: GOOD}
    assert bench.campaign() == [[1, 1]]
    assert bench.campaign()[0] == [2, 2]
    assert "trial 1" in bench.verification.notes()[0]


def test_what_two_seeds_leave_open_has_two_more_if_there_is_time_for_its_times_too(folder):
    open_ = (0.9888, 0.9887, 0.9889)
    bench = Bench(folder, RUNTIME, BEST, at_once=2)
    bench.shown[1] = open_
    assert bench.run(bench.round()) == [1, 1]
    assert bench.verification.open
    assert bench.round(left_s=30.0 - 250.0) == [], "enough for the accuracies alone"
    assert bench.run(bench.round(left_s=200.0 - 250.0)) == [1, 1], "a quarter beyond the budget"
    assert len({each.trial.seed for each in bench.folder.results(TrialKind.VERIFY)}) == 4
    # at the end the runtime setting is verified whatever became of the candidate
    assert set(bench.run(bench.round(left_s=-200.0, last=True))) == {0, "runtime"}


def test_no_more_looks_are_planned_than_there_is_time_for(folder):
    planned = []
    for left_s in range(500, -250, -10):
        bench = Bench(folder, RUNTIME, BEST, at_once=2)
        bench.round(left_s=left_s, last=True)
        *_, candidate = folder.facts["verification"]["entrants"]
        if candidate["role"] == Role.NO_LOSS.value:
            planned.append(candidate["rounds"])
        folder.save(verification=None)
    assert planned == sorted(planned, reverse=True)
    assert planned[0] >= LONG.repeats
    assert planned[-1] == 1


def test_accuracies_side_by_side_cost_half_the_time(folder):
    slow = make_result(6, 0.9905, 80.0, batch_size=16)
    alone, both = (Bench(folder, slow, at_once=each) for each in (1, 2))
    for bench in (alone, both):
        bench.chances[6] = 0.9
    assert both.reserve_s() < alone.reserve_s()
    plan = make_plan(make_entrant(1, 100.0, Role.NO_LOSS), rounds=0, config=LONG)
    beside = SideBySide({**BEST.params}, 2, 120.0)
    plan = dataclasses.replace(
        plan, entrants=(plan.entrants[0], dataclasses.replace(plan.entrants[1], beside=beside))
    )
    assert plan.cost_s((1, 1)) == pytest.approx(plan.cost_s((1,)))
    assert 120.0 < plan.cost_s((1, 1)) < 150.0


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(
    ("way", "proven"),
    [((GOOD, GOOD), 2400), ((GOOD, POOR), 3200), ((POOR, GOOD), 4000), ((POOR, POOR), 4000)],
)
def test_runs_of_a_candidate_prove_its_earlier_stops_one_after_the_other(
    folder, way, proven, at_once
):
    bench = Bench(folder, RUNTIME, BEST, *STOPS, at_once=at_once)
    bench.likely = only_best
    bench.shown[1] = GOOD
    bench.on_the_way = dict(zip((3200, 2400), way, strict=True))
    bench.campaign()
    shown = {each.params["iterations"]: each for each in bench.verification.summary()}
    lossless = [each for each in shown.values() if each.loses_nothing and each.is_faster]
    assert min(lossless, key=lambda each: each.train_time_s.value) is shown[proven]
    assert shown[proven].speedup == pytest.approx(100 / (proven / 200), rel=0.01)
    assert shown[proven].full_runs == shown[4000].full_runs == 2
    assert {3200, 2400} & shown.keys() == {proven} - {4000}, "no others are shown"
    assert {4000, proven} <= shown.keys()
    assert bench.verification.next_looks().alpha == pytest.approx(0.1 / 9), "one share"
    assert all(
        each.against_default.loss_ruled_out == 0.002 for each in (shown[4000], shown[proven])
    )


def test_an_earlier_stop_that_may_be_proven_has_further_runs_at_the_end(folder):
    bench = Bench(folder, RUNTIME, BEST, *STOPS, at_once=2)
    bench.likely = only_best
    bench.shown[1], bench.on_the_way = GOOD, {3200: NEARLY, 2400: POOR}
    bench.campaign()
    assert not bench.verification.open, "the search may go on"
    assert bench.round(left_s=0.0, last=True) == []
    more = bench.round(last=True)
    assert [each.test_at for each in more] == [(2400, 3200)] * 2
    bench.run(more)
    bench.campaign(last=True)
    lossless = [each for each in bench.verification.summary() if each.loses_nothing]
    assert 3200 in [each.params["iterations"] for each in lossless]


def test_a_refuted_candidate_proves_no_earlier_stop(folder):
    bench = Bench(folder, RUNTIME, BEST, *STOPS, at_once=2)
    bench.likely = only_best
    bench.shown[1], bench.on_the_way = POOR, {3200: GOOD, 2400: GOOD}
    bench.campaign()
    bench.round(last=True)
    assert bench.verification.proven_speedup < 3
    assert bench.verification.notes() == ("Tested for no loss but not proven: trial 1.",)


def test_a_candidate_may_train_for_longer_than_its_trial_did(folder):
    bench = Bench(folder, RUNTIME, BEST, at_once=2, space=make_space(6000))
    bench.likely = lambda points: [0.9 if each.iterations > 5000 else 0.2 for each in points]
    bench.shown[1], bench.on_the_way = GOOD, {4000: NEARLY}
    begun = bench.round()
    assert {each.params["iterations"] for each in begun} == {round(4000 * 2**0.5)}
    assert {each.test_at for each in begun} == {(4000,)}, "what its trial showed may do as well"
    bench.run(begun)
    bench.campaign()
    (found,) = [each for each in bench.verification.summary() if each.role is Role.NO_LOSS]
    assert (found.name, found.composed[1]) == ("trial 1 at 5,657", None)
    assert found.loses_nothing


def test_earlier_stops_are_kept_for_a_resumed_study(folder):
    bench = Bench(folder, RUNTIME, BEST, *STOPS, at_once=2)
    bench.likely = only_best
    bench.on_the_way = {3200: GOOD, 2400: GOOD}
    begun = bench.round()
    assert [each.test_at for each in begun] == [(2400, 3200)] * 2
    assert bench.verification.describe() == (
        "accuracy of trial 1 (no loss), and at 3,200, 2,400 on the way, round 1"
    )
    bench.resume()
    assert bench.verification.pending() == begun


@pytest.mark.parametrize(("budget_s", "rounds"), [(300.0, 3), (600.0, 5), (4000.0, 6)])
def test_cheap_proofs_have_up_to_twice_as_many_rounds(folder, budget_s, rounds):
    bench = Bench(folder, PART, at_once=2, budget_s=budget_s)
    assert bench.run(bench.round()) == [4, 4], "a short training too, side by side"
    (candidate,) = folder.facts["verification"]["entrants"]
    assert candidate["rounds"] == rounds


def test_a_resumed_study_goes_on_side_by_side(folder):
    bench = Bench(folder, RUNTIME, BEST, at_once=2)
    begun = bench.round()
    bench.folder.keep(bench.outcome(begun[0]))
    bench.resume()
    assert bench.verification.pending() == begun[1:]


def test_levels_and_looks_of_the_next_candidate_are_known_beforehand(folder):
    bench = Bench(folder, BEST, SECOND)
    first = bench.verification.next_looks()
    assert (first.candidate_runs, first.default_runs, first.alpha) == (
        (2, 3),
        (5, 5),
        pytest.approx(0.1 / 3),
    )
    bench.shown[1] = POOR
    bench.campaign()
    assert bench.verification.next_looks().alpha == pytest.approx(0.1 / 9)
    alone = Bench(folder, BEST, accuracies=())
    assert alone.verification.next_looks().default_runs == (2, 3)


# -- trade-offs ---------------------------------------------------------------------------------


def test_beside_a_candidate_trade_offs_take_their_share_of_the_time(folder):
    bench = Bench(folder, BEST, COARSE)
    # three whole runs of 5 s and what goes with them
    assert set(bench.run(bench.round(left_s=120.0))) == {0, 1}
    assert set(bench.run(bench.round(left_s=120.0))) == {0, 1}


def test_with_more_time_left_they_are_verified_beside_it(folder):
    bench = Bench(folder, BEST, COARSE)
    assert set(bench.run(bench.round(left_s=400.0))) == {0, 1, 5}
    assert bench.roles() == [Role.NO_LOSS, Role.TRADE_OFF]


def test_trade_offs_leave_the_time_for_another_candidate_if_the_first_fails(folder):
    bench = Bench(folder, BEST, COARSE, budget_s=400.0)
    needed_s = bench.reserve_s() / 1.5
    assert set(bench.run(bench.round(left_s=2 * needed_s, last=True))) == {0, 1}


def test_trade_offs_alone_wait_for_the_end_of_the_search(folder):
    bench = Bench(folder, COARSE)
    assert bench.round() == []
    assert set(bench.run(bench.round(last=True))) == {0, 5}


def test_trade_offs_are_no_more_than_the_finalists(folder):
    many = [make_result(n, 0.96 + n / 1000, 4.0 + n, batch_size=n) for n in range(10, 20)]
    bench = Bench(folder, BEST, *many, config=dataclasses.replace(LONG, finalists=2))
    while trials := bench.round(last=True):
        bench.run(trials)
    assert bench.roles().count(Role.TRADE_OFF) == 2


# -- time ---------------------------------------------------------------------------------------


def test_the_reserve_pays_for_all_planned_rounds(folder):
    bench = Bench(folder, BEST, budget_s=400.0)
    bench.shown[1] = (0.9890, 0.9889, 0.9891)  # not decided before the last look
    reserved = bench.reserve_s()
    spent_s = 0.0
    for _ in range(3):
        trials = bench.round(left_s=reserved - spent_s)
        bench.run(trials)
        spent_s += sum(each.share * bench.point(bench.number(each)) for each in trials)
    assert not bench.verification.open
    # what goes with a run beside its training is estimated
    assert spent_s < reserved < spent_s + 6 * 8.0
    assert 0 < bench.reserve_s() < reserved, "for whatever else is found"


def test_a_campaign_is_begun_only_with_time_for_all_of_it(folder):
    bench = Bench(folder, BEST, budget_s=400.0)
    needed = bench.reserve_s() / 1.5  # the rest is for a second candidate
    assert bench.round(left_s=needed - 0.1) == []
    assert "verification" not in folder.facts, "what was not begun leaves no trace"
    assert len(bench.round(left_s=needed + 0.1)) == 2


def test_the_cheaper_a_candidate_the_more_of_them_the_reserve_pays_for(folder):
    needed_s = Bench(folder, BEST, budget_s=400.0).reserve_s() / 1.5
    assert Bench(folder, BEST, budget_s=1000.0).reserve_s() == pytest.approx(250.0)
    bench = Bench(folder, BEST, budget_s=10_000.0)
    assert bench.reserve_s() == pytest.approx(4 * needed_s)


def test_if_the_best_takes_too_long_the_next_is_taken(folder):
    slow = make_result(6, 0.9905, 60.0, batch_size=16)
    bench = Bench(folder, slow, make_result(5, 0.97, 30.0, batch_size=256, iterations=500))
    bench.chances = {6: 0.99, 5: 0.16}
    need_s = bench.reserve_s()
    assert 5 in bench.run(bench.round(left_s=need_s / 2))


def test_the_search_leaves_time_for_a_long_candidate_while_nothing_is_proven(folder):
    slow = make_result(6, 0.9905, 90.0, batch_size=16)
    bench = Bench(folder, slow, at_once=2)
    bench.chances[6] = 0.9

    def reserved(budget_s, left_s):
        budget = BudgetConfig(time_s=budget_s)
        bench.config = dataclasses.replace(bench.config, budget=budget)
        bench.resume()
        return bench.reserve_s(left_s)

    usual_s = reserved(200.0, left_s=195.0)  # it would leave too little to search
    last_s = reserved(260.0, left_s=195.0)
    assert usual_s == reserved(260.0, left_s=10.0) < last_s < 195.0, "too late for it"
    assert bench.round(left_s=last_s) == [], "it takes more than a campaign's share"
    assert bench.run(bench.round(left_s=last_s, last=True)) == [6, 6]


def test_what_was_begun_has_its_least_rounds_and_no_more_beyond_the_overtime(folder):
    bench = Bench(folder, BEST)
    bench.shown[1] = NEARLY
    bench.run(bench.round())
    bench.run(bench.round(left_s=-250.0))
    assert bench.verification.open
    assert bench.round(left_s=-250.0) == []
    assert len(bench.round(left_s=1.0)) == 2, "undecided, and nothing is proven"


def test_no_round_of_trade_offs_takes_overtime(folder):
    bench = Bench(folder, COARSE)
    bench.chances = {}
    bench.run(bench.round(last=True))
    bench.run(bench.round(last=True))
    assert bench.verification.open
    assert bench.round(left_s=1.0) == []
    assert len(bench.round(left_s=200.0)) == 2


def test_the_first_campaign_at_the_end_of_the_search_may_take_overtime(folder):
    bench = Bench(folder, BEST)
    assert bench.round(left_s=1.0) == []
    assert set(bench.run(bench.round(left_s=1.0, last=True))) == {0, 1}
    bench.campaign(last=True, left_s=1.0)
    bench.points.append(SECOND)
    assert bench.round(left_s=1.0, last=True) == [], "only while nothing is proven"


def test_overtime_is_for_further_candidates_too_while_none_is_proven(folder):
    bench = Bench(folder, BEST, SECOND)
    bench.shown[1] = POOR
    bench.run(bench.round(left_s=1.0, last=True))
    assert set(bench.run(bench.round(left_s=1.0, last=True))) == {0, 2}


def test_trade_offs_wait_until_a_candidate_is_proven(folder):
    bench = Bench(folder, RUNTIME, BEST, SECOND, COARSE, at_once=2)
    bench.shown = {1: POOR, 2: GOOD}
    assert bench.campaign(last=True)[:2] == [[1, 1], [2, 2]]


def test_where_there_is_time_for_little_the_cheapest_of_the_front_is_verified(folder):
    slow = make_result(6, 0.9905, 90.0, batch_size=16)
    bench = Bench(folder, slow, COARSE, accuracies=())
    # three whole runs of the default alone need more than the time left
    assert set(bench.run(bench.round(left_s=100.0, last=True))) == {0, 5}


@pytest.mark.parametrize("left_s", [100.0, 1.0, -500.0])
def test_a_study_never_ends_with_nothing_verified(folder, left_s):
    # nothing is known of the default's end, nothing promises, and the machine was slow
    bench = Bench(folder, RUNTIME, COARSE, accuracies=())
    bench.chances = {}
    rounds = bench.campaign(left_s=left_s, last=True)
    assert [set(each) for each in rounds] == [{0, "runtime"}, {0, "runtime"}]
    assert len(bench.verification.summary()) == 2


def test_without_time_for_whole_runs_parts_prove_the_runtime_setting(folder):
    own = make_reference(0.99)  # the default's only whole training, of this study
    bench = Bench(folder, RUNTIME, COARSE, accuracies=(0.99,), reference=own)
    bench.chances = {}
    rounds = bench.campaign(left_s=-150.0, last=True)
    assert [set(each) for each in rounds] == [{0, "runtime"}] * 4
    runs = folder.results(TrialKind.VERIFY)
    assert all(each.trial.share < 1 for each in runs)
    bench.resume()
    _, found = bench.verification.summary()
    assert found.role is Role.RUNTIME_ONLY
    assert found.is_faster
    assert found.loses_nothing


def test_with_time_for_them_whole_runs_tell_more_of_the_default(folder):
    own = make_reference(0.99)
    bench = Bench(folder, RUNTIME, COARSE, accuracies=(0.99,), reference=own)
    bench.chances = {}
    bench.run(bench.round(last=True))
    shares = {
        bench.number(each.trial): each.trial.share for each in folder.results(TrialKind.VERIFY)
    }
    assert shares["runtime"] == 1.0


def test_where_all_is_refuted_the_nearest_is_compared_with_the_default(folder):
    bench = Bench(folder, BEST, SECOND, at_once=2)
    bench.shown = {1: POOR, 2: (0.9861, 0.9859, 0.9862)}
    rounds = bench.campaign(last=True, left_s=1.0)
    assert [each for each in rounds if 0 not in each] == [[1, 1], [2, 2]]
    assert [set(each) for each in rounds[2:]] == [{0, 2}] * 4
    _, found = bench.verification.summary()
    assert found.name == "trial 2"
    assert found.is_faster
    assert not found.loses_nothing


@pytest.mark.parametrize(("others", "nearest"), [(STOPS, 1), ([LONGER], 3)])
def test_so_it_is_where_its_times_tell_those_of_others_too(folder, others, nearest):
    bench = Bench(folder, BEST, *others, at_once=2)
    bench.likely = lambda points: [0.2 if each in STOPS else 0.9 for each in points]
    bench.shown = {1: POOR, 3: (0.9861, 0.9859, 0.9862)}
    bench.on_the_way = dict.fromkeys((3200, 2400), POOR)
    rounds = bench.campaign(last=True, left_s=1.0)
    assert [set(each) for each in rounds if 0 in each] == [{0, nearest}] * 4


def test_the_least_verification_is_paid_for_before_anything_is_verified(folder):
    bench = Bench(folder, RUNTIME, COARSE, accuracies=())
    bench.config = dataclasses.replace(bench.config, budget=BudgetConfig(time_s=100.0))
    bench.chances = {}
    bench.resume()
    # two rounds of the default and the cheapest of the front: more than campaigns may need
    assert bench.reserve_s() > 2 * (100.0 + 5.0)
    assert set(bench.run(bench.round(left_s=1.0, last=True))) == {0, 5}


# -- what an interruption leaves ----------------------------------------------------------------


def test_after_an_interruption_exactly_the_missing_runs_are_pending(folder):
    bench = Bench(folder, RUNTIME, BEST, reference=make_reference())
    bench.run(bench.round(left_s=600.0))
    second = bench.round(left_s=600.0)
    folder.keep(bench.outcome(second[1]))
    expected = [second[0], second[2]]
    assert bench.verification.pending() == expected
    bench.resume()
    assert bench.verification.pending() == expected
    bench.run(expected)
    assert bench.verification.pending() == []


@pytest.mark.slow
def test_a_new_session_goes_on_with_the_same_entrants_numbers_and_seeds(tmp_path):
    def study(name, *, interrupted):
        path = tmp_path / name
        with contextlib.closing(StudyFolder(path)) as opened:
            bench = Bench(opened, RUNTIME, BEST, SECOND, COARSE, reference=make_reference())
            bench.shown[1] = POOR
            trials = []
            while due := bench.round(left_s=900.0, last=True):
                trials += due
                if interrupted:
                    bench.run(due[:1])
                    opened.close()
                    opened = StudyFolder(path)
                    bench.folder = opened
                    bench.resume()
                    assert bench.verification.pending() == due[1:]
                    due = due[1:]
                bench.run(due)
            opened.close()
            return trials, bench.verification.summary()

    assert study("whole", interrupted=False) == study("broken", interrupted=True)


def configured(bench, **changes):
    """A new session of the same study with other settings of verification."""
    verify = dataclasses.replace(bench.config.verify, **changes)
    bench.config = dataclasses.replace(bench.config, verify=verify)
    bench.resume()


@pytest.mark.parametrize("repeats", [2, 5])
def test_a_candidate_has_the_looks_that_were_planned_whatever_is_configured_later(folder, repeats):
    bench = Bench(folder, BEST)
    bench.shown[1] = (0.9891, 0.9889, 0.9886)  # not decided before the third look
    bench.run(bench.round())
    configured(bench, repeats=repeats)
    bench.campaign()
    whole = [each for each in folder.results(TrialKind.VERIFY) if bench.number(each.trial) == 1]
    assert len(whole) == LONG.repeats == 3
    assert bench.round() == []


@pytest.mark.parametrize("changes", [{"accuracy_margin": 0.005}, {"confidence": 0.9}])
def test_the_margin_is_fixed_before_the_first_look(folder, changes):
    bench = Bench(folder, RUNTIME)
    bench.run(bench.round())
    configured(bench, **changes)
    bench.points.append(BEST)
    bench.run(bench.round())
    assert Role.NO_LOSS in bench.roles()
    bench.resume()
    (name, value) = next(iter(changes.items()))
    kept = getattr(LONG, name)
    with pytest.raises(ConfigError, match=f"verify.{name} must stay {value:g}, got {kept:g}"):
        configured(bench, **{name: kept})


def test_an_interrupted_run_is_run_again(folder):
    bench = Bench(folder, BEST)
    trials = bench.round()
    folder.keep(dataclasses.replace(bench.outcome(trials[0]), status=TrialStatus.INTERRUPTED))
    assert bench.verification.pending() == trials


# -- what is known afterwards -------------------------------------------------------------------


def test_a_runtime_setting_that_learns_otherwise_is_noted(folder):
    reference = make_reference()
    bench = Bench(folder, RUNTIME, reference=reference)
    for shift in (0.0, 0.005):
        for each in bench.round(last=True):
            looks = first_looks(reference, each.seed, 800, shift) if each.curve else ()
            folder.keep(dataclasses.replace(bench.outcome(each), checkpoints=looks))
    (note,) = bench.verification.notes()
    assert "learns differently at the fastest runtime setting" in note
    assert "recorded curve" in note
    assert bench.verification.proven_speedup == 1.0


def test_whole_runs_teach_the_search_and_parts_do_not(folder):
    bench = Bench(folder, BEST)
    trials = bench.round()
    bench.run(trials)
    assert [each.trial for each in bench.verification.whole_runs()] == [
        each for each in trials if each.share == 1
    ]
    assert {bench.number(each.trial) for each in bench.verification.whole_runs()} == {1}


def test_the_default_s_accuracy_needs_no_whole_run_of_its_own(folder):
    bench = Bench(folder, BEST)
    bench.shown[1] = GOOD
    bench.campaign()
    default, found = bench.verification.summary()
    assert default.full_runs == 0
    assert default.test_accuracy.value == pytest.approx(0.99)
    assert found.loses_nothing


# -- whatever happens ---------------------------------------------------------------------------


class Memory:
    """A study's folder that is no folder, for many studies."""

    def __init__(self):
        self.facts, self.runs = {}, []

    def save(self, **facts):
        self.facts |= facts

    def results(self, *kinds):
        assert kinds == (TrialKind.VERIFY,)
        return list(self.runs)

    def keep(self, result):
        self.runs.append(result)


ALL = (RUNTIME, BEST, SECOND, LONGER, PART, COARSE)
statuses = st.sampled_from([TrialStatus.COMPLETE] * 4 + [TrialStatus.CRASHED])
shown = st.tuples(statuses, st.one_of(st.none(), st.floats(0.97, 1.0)), st.floats(0.5, 2.0))


@pytest.mark.timeout(60)
@settings(deadline=None, max_examples=30)
@given(st.data())
@pytest.mark.slow
def test_whatever_the_runs_show_verification_ends_and_never_repeats_a_number(data):
    points = [each for each in ALL if data.draw(st.booleans())]
    known = data.draw(st.integers(0, 5))
    config = VerifyConfig(
        long_s=data.draw(st.sampled_from([1.0, 15.0, 1e6])),
        repeats=data.draw(st.integers(1, 4)),
        finalists=data.draw(st.integers(0, 3)),
    )
    reference = make_reference(*SEEDS[:known]) if known else None
    bench = Bench(
        Memory(), *points, config=config, accuracies=SEEDS[:known], reference=reference,
        at_once=data.draw(st.integers(1, 3)),
    )  # fmt: skip
    bench.chances = {number: data.draw(st.floats(0, 1)) for number in range(6)}
    seen = []
    for _ in range(200):
        reserved = bench.reserve_s()
        assert 0 <= reserved < math.inf
        due = bench.round(data.draw(st.floats(-100, 2000)), last=data.draw(st.booleans()))
        for each in due:
            status, accuracy, factor = data.draw(shown)
            run = bench.outcome(each)
            run = run_of(each, factor * run.metrics["train_time_s"], accuracy, status=status)
            bench.folder.keep(run)
        seen += [each.number for each in due]
        if not (due or bench.round(AMPLE, last=True)):
            break
        bench.run(bench.verification.pending())
    else:
        pytest.fail("it goes on and on")
    numbers = [each.trial.number for each in bench.folder.runs]
    assert sorted(numbers) == list(range(len(numbers)))
    whole = [
        (str(x.trial.params), x.trial.seed) for x in bench.folder.runs if x.trial.accuracy_only
    ]
    assert len({*whole}) == len(whole), "nothing is trained twice with one seed"
    bench.verification.summary()

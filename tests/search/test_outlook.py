"""Tests of ``tuner.search.outlook``: what is to be reached to lose nothing."""

import dataclasses
import math

import numpy as np
import pytest

from tests.conftest import DEFAULT, SYNTHETIC
from tests.report_samples import make_measurement
from tuner.search import Aim, Outlook, Target
from tuner.values.quality import perplexity
from tuner.values.space import SearchSpace
from tuner.values.trial import Checkpoint, Trial, TrialKind, TrialResult, TrialStatus
from tuner.verification.noninferiority import LookPlan

TARGET = Target(
    val_accuracy=0.9912,
    test_accuracy=0.9909,
    deviation=0.0005,
    test_images=10_000,
    sure_s=100.0,
    images=640_000,
    looks=LookPlan((5, 5), (2, 4), 0.025),
    margin=0.002,
    noise=0.13,
    val_images=5_000,
)


def changed(**changes):
    return dataclasses.replace(TARGET, **changes)


def test_a_target_is_within_the_margin_of_the_default():
    assert TARGET.default_log_error < TARGET.log_error
    assert TARGET.log_error < changed(margin=0.003).log_error
    assert changed(margin=0.0).log_error < TARGET.default_log_error


@pytest.mark.parametrize("noisier", [{"noise": 0.2}, {"deviation": 0.003}])
def test_noise_makes_it_harder(noisier):
    assert changed(**noisier).log_error < TARGET.log_error
    assert changed(**noisier).by_seeds > TARGET.by_seeds


def test_a_larger_test_split_is_less_noisy_than_the_looks_at_validation():
    assert TARGET.log_error > changed(val_images=10_000).log_error
    assert changed(val_images=20_000).log_error == changed(val_images=10_000).log_error


def test_what_the_images_of_a_split_cause_falls_with_their_number():
    assert TARGET.own_of(5_000) == pytest.approx(2 * TARGET.own_of(20_000))
    assert TARGET.own_of(0) == 0.0
    assert changed(val_images=0).between_splits == 0, "nothing is known of the split"
    assert changed(test_accuracy=0.9, val_accuracy=0.9).own_of(5_000) < TARGET.own_of(5_000)


PTB = perplexity(10_000)
TEXT = changed(
    val_accuracy=PTB.score(120.0), test_accuracy=PTB.score(115.0), deviation=0.0, noise=0.002,
    test_images=82_429, val_images=73_759, margin=PTB.loss_of(0.01), quality=PTB,
)  # fmt: skip


def test_of_a_text_the_target_is_a_perplexity():
    assert math.exp(TEXT.default_log_error) == pytest.approx(120.0)
    assert 120.0 < math.exp(TEXT.log_error) < 120.0 * 1.01
    assert math.exp(dataclasses.replace(TEXT, margin=0.0).log_error) < 120.0
    assert TEXT.by_test == pytest.approx(120 / 115)
    assert 0 < math.hypot(TEXT.by_seeds, TEXT.between_splits) < 0.02, "a part of a perplexity"


def test_errors_on_the_test_split_are_put_to_the_scale_of_validation():
    assert TARGET.by_test == pytest.approx(0.0088 / 0.0091)
    assert 0 < changed(test_accuracy=1.0).by_test < 100


def test_what_seems_as_accurate_as_the_default_is_mostly_not_quite():
    sure, guessed = np.array([1e-6]), np.array([0.2])
    at_target = np.array([TARGET.log_error])
    known = changed(val_images=10**9, test_images=10**9)
    assert known.chances(np.array([known.log_error]), sure)[0] == pytest.approx(0.5, abs=0.01)
    assert TARGET.chances(at_target, guessed)[0] < TARGET.chances(at_target, sure)[0] < 0.5
    assert TARGET.chances(at_target - 0.5, sure)[0] > 0.9, "what is far better is believed"


def test_a_proof_is_less_likely_where_there_is_time_for_fewer_runs():
    at_target, sure = np.full(4, TARGET.log_error), np.full(4, 1e-6)
    pairs = changed(at_once=2, looks=LookPlan((5, 5, 5), (2, 4, 6), 0.025))
    none, one, two, three = pairs.chances(at_target, sure, np.array([0.0, 1.9, 2.0, 3.0]))
    assert none == one < two < three
    assert pairs.chances(at_target, sure)[0] == three
    assert list(changed(proof_s=250.0).rounds_in_time(np.array([100.0, 20.0]))) == [2, 10]


def test_what_takes_too_long_for_several_looks_is_worth_less():
    times_s, mean, sure = np.array([[40.0]]), np.array([[-4.8]]), np.full((1, 1), 0.1)
    ample, scarce = (Aim(changed(at_once=2, proof_s=each)) for each in (1000.0, 110.0))
    assert scarce.values(mean, sure, times_s) < ample.values(mean, sure, times_s)


def test_of_a_text_nothing_is_known_before():
    at_target = np.array([TEXT.log_error])
    assert TEXT.chances(at_target, np.array([0.1]))[0] == pytest.approx(0.5)


def test_a_later_end_is_worth_its_earlier_stops_too():
    aim = Aim(TARGET)
    mean, sure = np.array([[-4.7, -4.8, -4.9]]), np.full((1, 3), 0.1)
    first, second, third = (float(each) for each in TARGET.chances(mean, sure)[0])
    assert first < second < third
    found = aim.values(mean, sure, np.array([[10.0, 30.0, 40.0]]))[0]
    speeds = [math.log(100 / each) for each in (10.0, 30.0, 40.0)]
    assert found == pytest.approx(
        [
            first * speeds[0],
            second * speeds[1],  # the first is earlier than half of it
            third * speeds[2] + second * (speeds[1] - speeds[2]),
        ]
    )


def _trial(number, rate, status=TrialStatus.COMPLETE):
    """Return a trial that comes near the default's accuracy, or one that diverged."""
    looks = [Checkpoint(100 * n, 10.0 * n, None, 0.9912 - 0.1 / n**2) for n in range(1, 11)]
    complete = status is TrialStatus.COMPLETE
    return TrialResult(
        Trial(
            number,
            {**DEFAULT, "learning_rate": rate},
            TrialKind.SEARCH if number else TrialKind.DEFAULT,
        ),
        status,
        iterations=1000,
        val_accuracy=0.9912 if complete else None,
        checkpoints=tuple(looks) if complete else (),
        measurement=make_measurement(100.0) if complete else None,
    )


def test_a_point_near_a_training_that_diverged_has_less_of_a_chance():
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    usable = [_trial(0, 0.01), _trial(1, 0.02), _trial(2, 0.1)]
    chances = []
    for further in ([], [_trial(3, 0.12, TrialStatus.DIVERGED)]):
        outlook = Outlook(space, seed=1)
        outlook.learn([*usable, *further], TARGET)
        chances.append(outlook.chances(usable[1:], TARGET))
    (far, near), (far_after, near_after) = chances
    assert min(far, near) > 0.01
    assert near_after < 0.6 * near, "one of two went well"
    assert far_after > 0.9 * far

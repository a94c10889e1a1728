"""Tests of ``tuner.search.places``."""

import dataclasses

import numpy as np
import pytest

from tests.conftest import DEFAULT, SYNTHETIC
from tests.report_samples import make_measurement
from tuner.search.places import AccuracyCube
from tuner.values.params import AVERAGE_WEIGHTS
from tuner.values.ranges import Choices
from tuner.values.space import SearchSpace
from tuner.values.trial import Checkpoint, Trial, TrialKind, TrialResult, TrialStatus

SPACE = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
HIGH, LOW = 4 * DEFAULT["learning_rate"], DEFAULT["learning_rate"] / 4


def trained(number, accuracies, learning_rate=DEFAULT["learning_rate"], **changes):
    """A training that was looked at after 100, 200 … iterations."""
    kind = TrialKind.SEARCH if number else TrialKind.DEFAULT
    points = tuple(
        Checkpoint(100 * place, 1.0 * place, None, accuracy)
        for place, accuracy in enumerate(accuracies, 1)
    )
    result = TrialResult(
        Trial(number, {**DEFAULT, "learning_rate": learning_rate}, kind), TrialStatus.COMPLETE,
        iterations=100 * len(points), val_accuracy=accuracies[-1], checkpoints=points,
        measurement=make_measurement(5.0),
    )  # fmt: skip
    return dataclasses.replace(result, **changes)


OWN = trained(0, (0.9, 0.96, 0.98))


@pytest.fixture
def cube():
    return AccuracyCube(SPACE)


def test_what_nearly_diverged_is_no_curve_to_learn_from(cube):
    steady, shaky = trained(1, (0.88, 0.95), HIGH), trained(2, (0.6, 0.82), HIGH)
    assert cube.curves([OWN, steady, shaky]) == cube.curves([OWN, steady])
    assert len(cube.curves([shaky])) == 1, "without a default nothing tells"
    verified = dataclasses.replace(shaky, test_accuracy=0.83)
    assert cube.curves([OWN, verified], by_test=1.0) == cube.curves([OWN])


def test_an_end_on_the_test_split_tells_by_other_images(cube):
    verified = trained(1, (0.88, 0.95), test_accuracy=0.94)
    curve, end = cube.curves([verified], by_test=0.5)
    assert curve == cube.curves([verified])[0]
    assert (end.place, end.iterations, end.shares) == (curve.place, (200,), False)
    assert end.accuracy == pytest.approx((0.97,))


def test_a_low_rate_is_slow_and_not_unstable(cube):
    slow = trained(1, (0.3, 0.5), LOW)
    assert len(cube.curves([OWN, slow])) == 2
    assert (cube.stability(np.array([cube.place(slow.params)]), [OWN, slow]) == 1).all()


@pytest.mark.parametrize(
    "lost",
    [
        trained(1, (0.6, 0.82), HIGH),
        trained(1, (0.9,), HIGH, status=TrialStatus.DIVERGED, val_accuracy=None),
    ],
    ids=["nearly", "diverged"],
)
def test_beside_and_above_what_diverged_training_is_unlikely_to_go_well(cube, lost):
    rates = [LOW, HIGH, 1.5 * HIGH]
    places = np.array([cube.place({**DEFAULT, "learning_rate": each}) for each in rates])
    low, same, higher = cube.stability(places, [OWN, lost])
    assert low > 0.9
    assert same == pytest.approx(0)
    assert higher == pytest.approx(0)


def test_the_more_trainings_went_well_at_a_rate_the_likelier_is_the_next(cube):
    lost = trained(1, (0.9,), 1.1 * HIGH, status=TrialStatus.DIVERGED, val_accuracy=None)
    fine = [trained(number, (0.9, 0.97), HIGH) for number in (2, 3)]
    rates = [0.9 * HIGH, HIGH, 1.1 * HIGH]
    places = np.array([cube.place({**DEFAULT, "learning_rate": each}) for each in rates])
    before, once, twice = (
        cube.stability(places, [OWN, lost, *fine[:number]]) for number in range(3)
    )
    assert (before < 0.1).all()
    assert once[:2] == pytest.approx(1 / 2, abs=0.03)
    assert twice[:2] == pytest.approx(2 / 3, abs=0.03)
    assert twice[2] == pytest.approx(0), "it tells nothing of a higher rate"


def test_what_diverges_does_so_whether_its_weights_are_averaged_or_not():
    averages = Choices({"": (False, True)}, runtime=False)
    space = dataclasses.replace(SPACE, params={**SPACE.params, AVERAGE_WEIGHTS: averages})
    cube, plain = AccuracyCube(space), {**DEFAULT, AVERAGE_WEIGHTS: False}
    own, lost = (
        dataclasses.replace(each, trial=dataclasses.replace(each.trial, params=params))
        for each, params in (
            (OWN, plain),
            (
                trained(1, (0.9,), status=TrialStatus.DIVERGED, val_accuracy=None),
                {**plain, "learning_rate": HIGH, AVERAGE_WEIGHTS: True},
            ),
        )
    )
    places = [cube.place({**plain, "learning_rate": each}) for each in (LOW, HIGH)]
    assert cube.stability(np.array(places), [own, lost]) == pytest.approx([1, 0], abs=0.1)


def test_a_default_outside_the_choices_that_are_left_has_a_place_of_its_own():
    only = Choices({"": (True,)}, runtime=False)
    space = dataclasses.replace(SPACE, params={**SPACE.params, AVERAGE_WEIGHTS: only})
    cube = AccuracyCube(space)
    own, other = (cube.place({**DEFAULT, AVERAGE_WEIGHTS: each}) for each in (False, True))
    assert own != other

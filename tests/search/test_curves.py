"""Tests of ``tuner.search.curves``."""

import math

import numpy as np
import pytest

from tuner.search.curves import (
    Curve,
    CurveModel,
    front_gain,
    look_deviations,
    merit,
    persistence_of,
)
from tuner.values.quality import perplexity

ITERATIONS = (20, 40, 80, 160, 320, 640)


def error(place, iterations):
    """A power of the iterations, best in the middle of the first axis."""
    rate = 0.6 - 1.5 * (place[0] - 0.5) ** 2 + 0.02 * place[1]
    return 0.9 * (iterations / 10) ** -rate


def curve(place, iterations=ITERATIONS):
    return Curve(place, iterations, tuple(1 - error(place, each) for each in iterations))


@pytest.fixture
def model():
    rng = np.random.default_rng(0)
    model = CurveModel(2000)
    model.fit([curve(tuple(rng.random(2))) for _ in range(12)])
    return model


def test_curves_at_new_places_are_predicted(model):
    places = np.array([[0.5, 0.5], [0.2, 0.7], [0.8, 0.3]])
    iterations = np.tile([30.0, 300.0], (3, 1))
    mean, deviation = model.predict(places, iterations)
    assert mean.shape == deviation.shape == (3, 2)
    truth = np.log([[error(place, each) for each in (30, 300)] for place in places])
    assert np.abs(mean - truth).max() < 0.15


def test_perplexities_are_predicted_to_a_part_of_a_percent():
    quality, rng = perplexity(10_000), np.random.default_rng(0)

    def reached(place, iterations):
        return 80 + 9_000 * (iterations / 20 + 1) ** -(1.2 - (place[0] - 0.5) ** 2)

    def looks(place):
        scores = (quality.score(reached(place, each)) for each in ITERATIONS)
        return Curve(place, ITERATIONS, tuple(scores), quality=quality)

    model = CurveModel(2000)
    model.fit([looks(tuple(rng.random(2))) for _ in range(12)])
    mean, deviation = model.predict(np.array([[0.45, 0.5]]), np.array([[320.0, 640.0]]))
    truth = [reached((0.45, 0.5), each) for each in (320, 640)]
    assert np.exp(mean[0]) == pytest.approx(truth, rel=0.02)
    assert deviation.max() < 0.03
    score = quality.score_of_log_error(mean[0, 1])
    assert score == pytest.approx(quality.score(truth[1]), abs=0.003)


def test_what_lies_far_from_all_runs_is_uncertain(model):
    near, far = np.array([[0.5, 0.5]]), np.array([[0.5, 6.0]])
    iterations = np.array([[100.0]])
    assert model.predict(far, iterations)[1] > 2 * model.predict(near, iterations)[1]


def test_many_looks_at_a_curve_make_it_certain_though_each_is_noisy():
    rng = np.random.default_rng(0)
    noise, place = 0.1, (0.5, 0.5)
    looks = [
        Curve(place, ITERATIONS, tuple(
            1 - error(place, each) * math.exp(rng.normal(0, noise)) for each in ITERATIONS
        ))
        for _ in range(10)
    ]  # fmt: skip
    model = CurveModel(2000)
    model.fit(looks)
    _, deviation = model.predict(np.array([place]), np.array([[100.0]]))
    assert deviation.item() < model.noise / 2
    assert model.noise == pytest.approx(noise, rel=0.5)


def test_what_is_off_at_one_place_alone_is_luck_and_no_merit():
    """Of two equal places one seems better at the images that both were looked at with."""
    lucky, plain = (0.45, 0.5), (0.55, 0.5)
    seen = Curve(lucky, ITERATIONS, tuple(1 - 0.85 * error(lucky, each) for each in ITERATIONS))
    others = [curve((x, 0.5)) for x in (0.3, 0.4, 0.5, 0.6, 0.7)]
    place, end = np.array([lucky]), np.array([[640.0]])
    believed = []
    for own in (0.0, 0.15):
        model = CurveModel(2000)
        model.fit([seen, curve(plain), *others], own)
        believed.append(model.predict(place, end)[0].item())
    truth = math.log(error(lucky, 640) + 0.001)
    assert believed[0] < believed[1] <= truth + 0.05


def test_other_images_tell_of_the_place_itself():
    place = (0.5, 0.5)
    lucky = Curve(place, ITERATIONS, tuple(1 - 0.8 * error(place, each) for each in ITERATIONS))
    ends = [Curve(place, (640,), (1 - error(place, 640),), shares=False) for _ in range(4)]
    believed = []
    for known in ([], ends):
        model = CurveModel(2000)
        model.fit([lucky, *known], 0.15)
        believed.append(model.predict(np.array([place]), np.array([[640.0]]))[0].item())
    assert believed[1] > believed[0]


STOPS = tuple(round(20 * 2 ** (step / 2)) for step in range(12))


def seeds_of(lasting, by_seed, count=8, draw=3):
    """Curves of several seeds at a place: what is off at a stop with all, and what with one."""
    rng = np.random.default_rng(draw)
    stops = rng.normal(0, lasting, len(STOPS))
    return [
        Curve((0.5, 0.5), STOPS, tuple(
            1 - error((0.5, 0.5), each) * math.exp(stop + rng.normal(0, by_seed))
            for each, stop in zip(STOPS, stops, strict=True)
        ))
        for _ in range(count)
    ]  # fmt: skip


def test_what_all_seeds_meet_at_a_stop_is_told_from_what_one_does():
    found = [look_deviations(seeds_of(0.1, 0.05, draw=draw)) for draw in range(20)]
    lasting, by_seed = np.mean(found, axis=0)
    assert lasting == pytest.approx(0.1, rel=0.2)
    assert by_seed == pytest.approx(0.05, rel=0.1)
    assert persistence_of(seeds_of(0.1, 0.05)) > 0.6
    assert persistence_of(seeds_of(0.0, 0.1)) < 0.25


def test_nothing_is_said_of_a_place_that_one_seed_was_at():
    assert look_deviations([]) == (0.0, 0.0)
    assert persistence_of(seeds_of(0.1, 0.05, count=1)) == 0.0


def test_a_lucky_stop_is_believed_as_far_as_it_lasts():
    place, lucky = (0.5, 0.5), 640
    looks = [1 - error(place, each) * (0.8 if each == lucky else 1) for each in STOPS]
    known = [Curve(place, STOPS, tuple(looks)), *(curve((x, 0.5)) for x in (0.3, 0.4, 0.6, 0.7))]
    at, end = np.array([place]), np.array([[float(lucky)]])

    def believed(persistence, *, stops):
        model = CurveModel(2000)
        model.fit(known, persistence=persistence)
        return model.predict(at, end, stops=stops)[0].item()

    smooth = believed(0.0, stops=True)
    assert believed(0.7, stops=False) == pytest.approx(smooth, abs=0.02)
    assert believed(0.7, stops=True) < believed(0.35, stops=True) - 0.01 < smooth - 0.02


@pytest.mark.slow
def test_many_points_are_thinned(model):
    model.fit([curve((x / 100, 0.5), tuple(range(20, 620, 20))) for x in range(100)])
    mean, _ = model.predict(np.array([[0.5, 0.5]]), np.array([[300.0]]))
    assert mean[0, 0] == pytest.approx(math.log(error((0.5, 0.5), 300)), abs=0.1)


FRONT = [(1.0, 0.8), (10.0, 0.9)]
TIMES = np.array([[1.0, 10.0, 100.0]])
SURE = np.full((1, 3), 1e-9)


def logs(*accuracies):
    return np.log(1.001 - np.array([accuracies]))


def test_merit_counts_every_halving_of_the_error_alike():
    assert merit(0.1) == pytest.approx(0)
    assert merit(0.96) - merit(0.92) == pytest.approx(merit(0.8) - merit(0.6), rel=0.05)


def test_what_lies_below_the_front_adds_nothing():
    assert front_gain(logs(0.5, 0.85, 0.9), SURE, TIMES, FRONT).max() == pytest.approx(0, abs=1e-9)


def test_the_gain_is_the_area_above_the_front_in_logarithmic_time():
    gain = front_gain(logs(0.8, 0.95, 0.95), SURE, TIMES, FRONT)[0]
    assert gain[0] == pytest.approx(0, abs=1e-9)
    assert gain[1] == pytest.approx(0.5 * (merit(0.95) - merit(0.9)), rel=0.05)  # of the axis
    assert gain[2] == pytest.approx(gain[1])


def test_without_a_front_everything_is_gained():
    gain = front_gain(logs(0.8, 0.8, 0.8), SURE, TIMES, [])[0]
    assert gain[-1] == pytest.approx(merit(0.8), rel=0.01)


def test_the_uncertain_are_worth_a_try():
    unsure = np.full((1, 3), 0.8)
    sure = front_gain(logs(0.75, 0.85, 0.88), SURE, TIMES, FRONT)
    assert front_gain(logs(0.75, 0.85, 0.88), unsure, TIMES, FRONT)[0, -1] > sure[0, -1] + 0.01


def test_training_on_never_takes_anything_away():
    rng = np.random.default_rng(1)
    mean = np.log(rng.random((50, 8)))
    times = np.sort(rng.random((50, 8)) * 100 + 0.1, axis=1)
    gains = front_gain(mean, np.full(mean.shape, 0.2), times, FRONT)
    assert (np.diff(gains, axis=1) >= -1e-12).all()


def test_below_the_least_accuracy_nothing_is_gained():
    curve = logs(0.8, 0.95, 0.97)
    assert front_gain(curve, SURE, TIMES, [], min_accuracy=0.98).max() == pytest.approx(
        0, abs=1e-9
    )
    assert (
        0
        < front_gain(curve, SURE, TIMES, [], min_accuracy=0.9).max()
        < front_gain(curve, SURE, TIMES, []).max()
    )

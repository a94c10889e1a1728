"""Tests of ``tuner.values.quality``: accuracies and perplexities as scores."""

import math

import pytest

from tests.report_samples import make_result
from tuner.values.quality import ACCURACY, perplexity
from tuner.values.trial import TrialResult

PTB = perplexity(10_000)
BOTH = pytest.mark.parametrize(("quality", "figure"), [(ACCURACY, 0.985), (PTB, 115.2)])


@BOTH
def test_a_score_is_turned_back_into_its_figure(quality, figure):
    score = quality.score(figure)
    assert quality.figure(score) == pytest.approx(figure)
    assert quality.score_of_error(quality.error(score)) == pytest.approx(score)
    assert quality.score_of_log_error(quality.log_error(score)) == pytest.approx(score)


def test_guessing_blindly_scores_nothing_and_knowing_all_scores_one():
    assert PTB.score(10_000) == pytest.approx(0.0)
    assert PTB.score(1.0) == pytest.approx(1.0)
    assert PTB.blind_score == 0.0


def test_less_perplexity_is_a_higher_score():
    assert PTB.score(110) > PTB.score(115)


def test_the_logarithm_of_a_perplexity_is_the_cross_entropy():
    assert PTB.log_error(PTB.score(115.2)) == pytest.approx(math.log(115.2))
    assert PTB.error(PTB.score(115.2)) == pytest.approx(115.2)


def test_equal_ratios_are_equal_differences():
    assert PTB.score(100) - PTB.score(110) == pytest.approx(PTB.score(200) - PTB.score(220))


@BOTH
def test_the_slope_is_that_of_the_logarithm(quality, figure):
    score, step = quality.score(figure), 1e-6
    rise = quality.log_error(score - step) - quality.log_error(score)
    assert quality.slope(score) * step == pytest.approx(rise, rel=1e-3)
    assert quality.log_error_rise(step, score) == pytest.approx(rise, rel=1e-3)


def test_figures_are_shown_in_their_units():
    assert ACCURACY.shown(0.985) == "98.50 %"
    assert PTB.shown(PTB.score(115.2)) == "115.20"
    assert ACCURACY.shown_test(0.985) == "98.50 % test accuracy"
    assert PTB.shown_test(PTB.score(115.2)) == "a test perplexity of 115.20"
    assert ACCURACY.shown_range(0.98, 0.985) == "98.00 to 98.50 %"
    assert PTB.shown_range(PTB.score(120), PTB.score(115)) == "115.00 to 120.00"


def test_gains_are_points_or_changes_in_percent():
    assert ACCURACY.shown_gain(0.0025) == "+0.25 points"
    assert PTB.shown_gain(PTB.score(99) - PTB.score(100)) == "-1.00 %"
    assert PTB.plain_gain(PTB.score(99) - PTB.score(100)) == pytest.approx(0.99)
    assert PTB.gain_of(0.99) == pytest.approx(PTB.score(99) - PTB.score(100))


def test_a_margin_is_points_or_a_part_of_a_perplexity():
    assert ACCURACY.shown_loss(0.002) == "0.2 points"
    assert PTB.shown_loss(PTB.loss_of(0.01)) == "1 %"
    assert PTB.plain_loss(PTB.loss_of(0.01)) == pytest.approx(0.01)
    assert PTB.score(100) - PTB.score(101) == pytest.approx(PTB.loss_of(0.01))


@BOTH
def test_more_items_vary_less(quality, figure):
    score = quality.score(figure)
    few, many = (quality.sampling_deviation(score, items) for items in (10_000, 40_000))
    assert many == pytest.approx(few / 2)


def test_a_result_names_its_figures():
    plain = make_result(1, 0.98, 10.0, test=0.97)
    assert {"val_accuracy": 0.98, "test_accuracy": 0.97}.items() <= plain.metrics.items()
    text = TrialResult(
        plain.trial, plain.status, val_accuracy=PTB.score(120), test_accuracy=None, quality=PTB
    )
    assert text.metrics == {"val_perplexity": pytest.approx(120)}


def test_a_result_keeps_what_its_scores_are_of():
    plain = make_result(1, 0.98, 10.0)
    text = TrialResult(plain.trial, plain.status, val_accuracy=PTB.score(120), quality=PTB)
    assert TrialResult.from_json(text.to_json()) == text
    assert TrialResult.from_json(plain.to_json()) == plain


def test_a_result_of_an_earlier_version_is_of_accuracy():
    older = make_result(1, 0.98, 10.0).to_json()
    older = older.replace(', "quality": {"name": "accuracy", "words": 0}', "")
    assert "quality" not in older
    assert TrialResult.from_json(older).quality == ACCURACY

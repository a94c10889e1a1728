"""What pairs of runs prove: the speed-up with its interval, and whether accuracy is kept."""

from __future__ import annotations

import pytest

from tests.wrap.samples import run
from tuner.wrap.comparison import compare, differ, is_hopeless
from tuner.wrap.goal import Goal


def pairs(own, changed, accuracies=((None, None),) * 9):
    return [
        (run(each, accuracy=first), run(other, accuracy=second))
        for each, other, (first, second) in zip(own, changed, accuracies, strict=False)
    ]


def test_two_pairs_prove_nothing():
    assert compare(pairs([2.0, 2.0], [1.0, 1.0])) is None


def test_a_speedup_has_an_interval():
    proof = compare(pairs([2.0, 2.2, 1.9], [1.0, 1.05, 1.0]))
    assert proof.speedup.value == pytest.approx(1.997, abs=0.01)
    assert 1.7 < proof.speedup.low < proof.speedup.value < proof.speedup.high < 2.4
    assert proof.better
    assert proof.no_loss is None


def test_noise_is_not_taken_for_a_speedup():
    assert not compare(pairs([2.0, 1.0, 3.0], [1.5, 1.5, 1.5])).better


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ((0.990, 0.991, 0.990), True),
        ((0.980, 0.981, 0.980), False),
        ((0.97, 0.999, 0.99), False),
    ],
)
def test_accuracy_is_kept_only_if_that_is_proven(changed, kept):
    own = (0.990, 0.9905, 0.9895)
    proof = compare(pairs([2.0] * 3, [1.0] * 3, list(zip(own, changed, strict=True))))
    assert proof.no_loss is kept


def test_an_equal_setting_is_not_given_up_for_its_noise():
    accuracies = [(0.985, 0.9837), (0.986, 0.9849), (0.984, 0.9847)]
    assert not is_hopeless(pairs([2.0] * 3, [1.0] * 3, accuracies), Goal(), 10, 0.05)


def test_a_saturated_setting_may_be_proven_where_the_program_varies():
    accuracies = [(0.985, 1.0), (0.987, 1.0), (0.986, 1.0)]
    assert compare(pairs([2.0] * 3, [1.0] * 3, accuracies)).no_loss is True


@pytest.mark.parametrize("changed", [0.9, 0.95, 0.89])
def test_a_program_that_always_trains_alike_proves_nothing_of_other_seeds(changed):
    proof = compare(pairs([2.0] * 3, [1.0] * 3, [(0.9, changed)] * 3))
    assert proof.reached == pytest.approx((0.9, changed))
    assert proof.no_loss is None


def test_a_figure_that_should_be_low_is_lost_by_being_higher():
    goal = Goal("perplexity", maximize=False)

    def seen(own, changed):
        return [
            (run(2.0, reported={"perplexity": one}), run(1.0, reported={"perplexity": other}))
            for one, other in zip(own, changed, strict=True)
        ]

    own = (80.0, 80.1, 79.9)
    assert compare(seen(own, (70.0, 70.2, 69.9)), goal).no_loss is True
    lost = seen(own, (90.0, 90.1, 89.8))
    assert compare(lost, goal).no_loss is False
    assert is_hopeless(lost, goal, 10, 0.025)
    assert not is_hopeless(seen(own, (80.2, 80.3, 80.0)), goal, 10, 0.025)
    assert not is_hopeless(lost[:2], goal, 10, 0.025)
    assert not is_hopeless([], goal, 10, 0.025)


def test_a_setting_that_changes_accuracy_by_more_than_seeds_is_told_apart():
    own = [0.970, 0.971, 0.969, 0.9705]
    assert differ(own, [0.95], Goal(), 0.05)
    assert differ(own, [0.99, 0.991], Goal(), 0.05)
    assert not differ(own, [0.972], Goal(), 0.05), "no more than seeds explain"
    assert not differ([0.97, 0.90, 0.99], [0.95], Goal(), 0.05), "seeds differ by as much"
    assert not differ([0.97] * 3, [0.9711], Goal(), 0.05), "less than what counts as a loss"
    assert not differ([0.97] * 2, [0.5], Goal(), 0.05), "too few runs"


def test_a_stricter_level_needs_a_clearer_proof():
    accuracies = [(0.990, 0.9899), (0.991, 0.9908), (0.9895, 0.9900)]
    known = pairs([2.0] * 3, [1.0] * 3, accuracies)
    assert compare(known).no_loss is True
    strict = compare(known, alpha=0.001)
    assert strict.no_loss is False
    assert strict.confidence == 0.999
    slow = compare(pairs([2.0, 2.2, 1.9], [1.0, 1.05, 1.0]), alpha=0.01)
    assert slow.speedup.low < compare(pairs([2.0, 2.2, 1.9], [1.0, 1.05, 1.0])).speedup.low

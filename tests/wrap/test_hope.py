"""Curves of runs with other params: which are given up, and how they are compared."""

from __future__ import annotations

import pytest

from tuner.wrap.goal import Goal
from tuner.wrap.hope import Hope, at_pace

TIMES = range(1, 21)


def accuracy(error: float, power: float, *, until=20):
    return [(float(each), 1 - error * each**-power) for each in TIMES if each <= until]


BEST = accuracy(0.5, 1.0)
NEEDED = BEST[-1][1]


def hope(goal=None, needed=NEEDED, best=BEST) -> Hope:
    return Hope(goal or Goal(), needed, best, 20.0)


def given_up_at(curve, **options) -> int | None:
    """Return after how many looks a run is given up; ``None`` if it runs to its end."""
    asked = hope(**options)
    return next((each for each in range(1, len(curve)) if asked.is_lost(curve[:each])), None)


def test_a_curve_that_stays_low_is_given_up_soon():
    assert 4 <= given_up_at([(each, 0.1) for each, _ in BEST]) <= 6


@pytest.mark.parametrize(
    "curve",
    [
        BEST,
        [(each, figure - 0.001) for each, figure in BEST],
        accuracy(0.9, 1.2),
    ],
    ids=["as good", "as good but for noise", "behind and catching up"],
)
def test_a_curve_that_may_still_reach_what_is_needed_is_not(curve):
    assert given_up_at(curve) is None


def test_to_be_behind_a_best_that_reaches_more_than_is_needed_is_no_reason():
    assert given_up_at(accuracy(0.9, 0.8, until=15), needed=0.85) is None
    assert given_up_at([(1.5 * each, figure) for each, figure in BEST[:13]], needed=0.95) is None
    assert given_up_at([(each, 0.5) for each, _ in BEST], needed=0.85) is not None


def test_a_best_that_goes_up_and_down_makes_no_run_hopeless_for_its_noise():
    noisy = [(each, figure - 0.3 * (each % 2)) for each, figure in BEST]
    assert given_up_at([(each, NEEDED - 0.2) for each, _ in BEST], best=noisy) is None
    assert given_up_at([(each, NEEDED - 0.2) for each, _ in BEST]) is not None


def test_a_figure_that_should_be_low_is_followed_as_well():
    goal = Goal("loss", maximize=False)
    best = [(each, 4.0 / each) for each in TIMES]
    options = {"goal": goal, "needed": -best[-1][1], "best": best}
    assert given_up_at([(each, 3.9) for each in TIMES], **options) is not None
    assert given_up_at(best, **options) is None


@pytest.mark.parametrize("best", [[(each, 20.0 + each) for each in TIMES], []])
def test_a_figure_without_a_known_error_or_a_curve_ends_no_run(best):
    options = {"goal": Goal("bleu"), "needed": 40.0, "best": best}
    assert given_up_at([(each, 1.0) for each in TIMES], **options) is None


def test_another_setting_changes_the_pace_after_the_start():
    assert at_pace([(1.0, 0.1), (2.0, 0.5), (4.0, 0.9)], 0.5, 2.0) == [
        (1.0, 0.1), (2.0, 0.5), (3.0, 0.9),
    ]  # fmt: skip

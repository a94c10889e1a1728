"""No loss: levels of planned looks, and how often a claim of no loss is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.values.quality import perplexity
from tuner.verification.noninferiority import (
    LookPlan,
    Spread,
    candidate_alpha,
    chance_of_proof,
    nominal_levels,
    p_of_loss,
    pooled_deviation,
    usual_deviation,
)

MARGIN, DEVIATION, STUDIES = 0.002, 0.0006, 2000
SPREAD = Spread(usual_deviation(0.99, 10_000))


def test_levels_are_those_of_the_tables():
    # Lan and DeMets' Pocock type, one-sided 2.5 %: z of 2.157, 2.201; 2.279, 2.295, 2.296
    assert nominal_levels((1.0,), 0.025) == pytest.approx([0.025], rel=1e-3)
    assert nominal_levels((0.5, 1.0), 0.025) == pytest.approx([0.0155, 0.01387], rel=5e-3)
    thirds = nominal_levels((1 / 3, 2 / 3, 1.0), 0.025)
    assert thirds == pytest.approx([0.01133, 0.01087, 0.01084], rel=1e-2)


def test_all_candidates_of_a_study_share_one_level():
    assert sum(candidate_alpha(0.05, place) for place in range(30)) == pytest.approx(0.05)


def claimed(loss, *, spread=1.0, plan=None, studies=STUDIES):
    """How often no loss is claimed of a candidate with a true loss."""
    plan = plan or LookPlan((5, 5, 5), (2, 3, 4), candidate_alpha(0.05, 0))
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(studies):
        default = random.normal(0.99, DEVIATION, plan.default_runs[-1]).tolist()
        runs = random.normal(0.99 - loss, spread * DEVIATION, plan.candidate_runs[-1]).tolist()
        hits += any(
            p_of_loss(runs[:count], default[:known], MARGIN, SPREAD) < plan.level(count)
            for known, count in zip(plan.default_runs, plan.candidate_runs, strict=True)
        )
    return hits / studies


@pytest.mark.slow
def test_a_configuration_worse_by_the_margin_is_called_no_loss_in_at_most_5_percent():
    assert claimed(MARGIN) <= 0.05


@pytest.mark.slow
def test_so_it_is_where_the_candidate_varies_more_than_the_default():
    assert claimed(MARGIN, spread=1.5) <= 0.05


@pytest.mark.slow
def test_so_it_is_without_a_reference_where_the_default_is_run_beside_it():
    plan = LookPlan((3, 4, 5), (2, 3, 4), candidate_alpha(0.05, 0))
    assert claimed(MARGIN, plan=plan) <= 0.05


def test_a_configuration_that_loses_nothing_is_mostly_proven():
    assert claimed(0.0) > 0.9


def test_a_noisier_reference_makes_the_claim_harder():
    plan = LookPlan((5, 5), (2, 3), 0.025)
    noises = (0.0002, 0.0006, 0.001, 0.002)
    for allowances in (
        [plan.allowance(MARGIN, noise, DEVIATION) for noise in noises],
        [plan.allowance(MARGIN, DEVIATION, noise) for noise in noises],
    ):
        assert allowances == sorted(allowances, reverse=True)
    assert plan.allowance(MARGIN, 0.002, 0.002) < 0, "so few runs prove nothing of this spread"


# test accuracies of seeds: those of Caffe's default agree far better than a candidate's
AGREES, VARIES = 0.0002, 0.0009


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [5, 10])
def test_so_it_is_however_many_seeds_of_the_default_agree(seeds):
    """Pooled with the candidate's variance, that of so many would hide it."""
    random = np.random.default_rng(2)
    plan = LookPlan((seeds,) * 3, (2, 4, 6), candidate_alpha(0.05, 0))
    hits = {SPREAD: 0, Spread(1e-6, usual_runs=0): 0}
    for _ in range(STUDIES):
        default = random.normal(0.99, AGREES, seeds).tolist()
        runs = random.normal(0.99 - MARGIN, VARIES, 6).tolist()
        for spread in hits:
            hits[spread] += any(
                p_of_loss(runs[:count], default, MARGIN, spread) < plan.level(count)
                for count in plan.candidate_runs
            )
    moderated, pooled = (each / STUDIES for each in hits.values())
    assert moderated <= 1.25 * plan.alpha < 0.05 < pooled


def test_few_runs_are_moderated_by_what_is_usual_and_many_tell_themselves():
    spread = Spread(0.001)
    assert spread.deviation([]) == spread.deviation([0.99]) == 0.001
    same, apart = [0.99] * 3, [0.98, 0.99, 1.0]
    assert 0 < spread.deviation(same) < 0.001 < spread.deviation(apart) < pooled_deviation(apart)
    assert spread.deviation(apart * 50) == pytest.approx(pooled_deviation(apart * 50), rel=0.02)
    _, few = spread.error(same, apart)
    _, more = spread.error(same, apart * 50)
    assert few < more
    error, freedom = Spread(0.001, usual_runs=0).error(same, same)
    assert (error, freedom) == (pytest.approx(0.001 * (2 / 3) ** 0.5), 4)


def test_a_perfect_default_is_not_known_exactly():
    assert 0 < usual_deviation(1.0, 10_000) < usual_deviation(0.99, 10_000)
    assert usual_deviation(0.0, 10_000) == pytest.approx(usual_deviation(1.0, 10_000))
    text = perplexity(10_000)
    assert 0 < usual_deviation(text.score(115), 82_429, text) < text.loss_of(0.01) / 2
    assert usual_deviation(0.99, 40_000) == pytest.approx(usual_deviation(0.99, 10_000) / 2)


@pytest.mark.parametrize(
    ("runs", "low", "high"),
    [
        ([0.9897, 0.9895], 0.9, 1.0),
        ([0.9880, 0.9881], 0.0, 0.01),
        ([0.9891], 0.1, 0.9),
        ([0.9895] * 6, 1.0, 1.0),
        ([0.9880] * 6, 0.0, 0.0),
    ],
)
def test_the_chance_of_a_proof_follows_what_was_seen(runs, low, high):
    plan = LookPlan((5, 5, 5), (2, 4, 6), 0.025)
    default = [0.9900, 0.9906, 0.9894, 0.9903, 0.9897]
    assert low <= chance_of_proof(runs, default, plan, MARGIN, SPREAD) <= high


@pytest.mark.slow
def test_what_is_given_up_would_seldom_have_been_proven():
    random = np.random.default_rng(3)
    plan = LookPlan((5, 5, 5), (2, 4, 6), candidate_alpha(0.05, 0))
    given_up = proven = 0
    for _ in range(STUDIES):
        default = random.normal(0.99, DEVIATION, 5).tolist()
        runs = random.normal(0.9892, DEVIATION, 6).tolist()
        if chance_of_proof(runs[:2], default, plan, MARGIN, SPREAD) < 0.1:
            given_up += 1
            proven += any(
                p_of_loss(runs[:count], default, MARGIN, SPREAD) < plan.level(count)
                for count in (4, 6)
            )
    assert given_up
    assert proven / given_up < 0.15


def test_too_few_runs_prove_nothing():
    assert p_of_loss([0.99], [0.99, 0.99], 0.5, SPREAD) == 1.0
    assert p_of_loss([], [0.99] * 5, 0.5, SPREAD) == 1.0
    assert p_of_loss([0.99] * 2, [0.99] * 5, MARGIN, Spread(1e-4)) < 1e-5


def test_no_look_is_taken_that_was_not_planned():
    plan = LookPlan((5, 5), (2, 3), 0.025)
    assert plan.level(1) is None
    assert plan.level(4) is None
    assert 0 < plan.level(2) < 0.025
    assert 0 < plan.level(3) < 0.025
    assert plan.level(2) + plan.level(3) > 0.025, "what one look has spent the other shares"


def test_the_spread_is_pooled_over_the_groups():
    assert pooled_deviation([1.0, 3.0], [5.0, 7.0]) == pytest.approx(2**0.5)
    assert pooled_deviation([1.0], [2.0]) == 0.0

"""Plans, runs and references to verify with: a default of 100 s and what beats it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from tests.report_samples import DEFAULT_PARAMS, make_result
from tuner.config.schema import VerifyConfig
from tuner.convergence.references import Accuracies, Reference, ReferenceRun
from tuner.values.ranges import Choices, Range
from tuner.values.space import SearchSpace
from tuner.values.trial import Checkpoint, Trial, TrialKind, TrialResult
from tuner.values.verified import Role
from tuner.verification.entrant import Entrant
from tuner.verification.plan import Plan

SHORT = VerifyConfig(long_s=1e6)
"""Nothing is long: every run is whole."""
LONG = VerifyConfig(long_s=15, rate_share=0.1, min_rate_s=1, max_rate_s=100)
DEFAULT = make_result(0, 0.990, 100.0)
LEARNS_BY = ("batch_size", "learning_rate")
SEEDS = (0.9900, 0.9906, 0.9894, 0.9903, 0.9897)
"""Test accuracies of the default, one a seed."""
LOOKS = (100, 200, 400, 800, 1600, 3200, 10_000)


def make_space(most_iterations: int) -> SearchSpace:
    """What the samples train, at the default's runtime setting, for at most so many iterations."""
    learnt = {
        "batch_size": Range(16, 512, integer=True),
        "learning_rate": Range(0.001, 0.1, integer=False),
        "iterations": Range(100, most_iterations, integer=True),
    }
    setting = {name: Choices({"": (each,)}) for name, each in DEFAULT_PARAMS.items()}
    return SearchSpace("caffe", {**setting, **learnt}, defaults=())


SPACE = make_space(100)
"""Its longest training is so short that no end is later than a trial's."""


def make_runtime_only(time_s: float = 50.0, default: TrialResult = DEFAULT) -> TrialResult:
    """The default's own training at a faster setting."""
    trial = default.trial.derive(1, {**default.params, "blas": "mkl", "threads": 2})
    measured = dataclasses.replace(default.measurement, train_time_s=time_s)
    return dataclasses.replace(default, trial=trial, measurement=measured, test_accuracy=None)


def make_entrant(
    number: int, time_s: float, role: Role = Role.TRADE_OFF, **params: Any
) -> Entrant:
    """What was found as a trial of that number, or composed of the default's."""
    if role is Role.RUNTIME_ONLY:
        return Entrant(make_runtime_only(time_s), role)
    params = {"batch_size": 64 + number, **params}
    return Entrant(make_result(number, 0.985, time_s, **params), role)


def make_plan(
    *entrants: Entrant, rounds: int = 3, config: VerifyConfig = SHORT, **changes: Any
) -> Plan:
    """All entrants in every round against the default."""
    first = Entrant(changes.pop("default", DEFAULT), Role.DEFAULT)
    plan = Plan((first, *entrants), (), config, seed=1, test_images=10_000, **changes)
    for _ in range(rounds):
        plan = plan.with_round(plan.turned(range(len(plan.entrants))))
    return plan


def make_reference(*finals: float, looks: Sequence[int] = LOOKS) -> Reference:
    """Seeds that end at these accuracies, each a little less after each look before."""
    runs = tuple(
        ReferenceRun(seed, tuple(Accuracies(each, *_at(each, final)) for each in looks))
        for seed, final in enumerate(finals or SEEDS, 1)
    )
    return Reference(
        framework="caffe",
        dataset="mnist",
        model="default",
        dataset_digest="abc",
        params=DEFAULT.params,
        setting={"blas": "x"},
        versions={"caffe": "1.0.0"},
        machine={},
        runs=runs,
    )


def _at(iteration: int, final: float) -> tuple[float, float]:
    left = 0.1 * (1 - iteration / LOOKS[-1])
    return final - left, final - left


def first_looks(
    reference: Reference, seed: int, until: int, shift: float = 0.0
) -> tuple[Checkpoint, ...]:
    """What a training with that seed shows at its first looks if it is ``shift`` better."""
    return tuple(
        Checkpoint(each.iteration, each.iteration / 100, None, each.val_accuracy + shift)
        for each in reference.looks_of(seed).values()
        if each.iteration <= until
    )


def run_of(trial: Trial, time_s: float, accuracy: float | None, **changes: Any) -> TrialResult:
    """What a verification run showed."""
    run = dataclasses.replace(
        make_result(1, 0.98, time_s),
        trial=trial,
        test_accuracy=accuracy if trial.test else None,
    )
    return dataclasses.replace(run, **changes)


def simulate(
    plan: Plan,
    speedup: float = 1.0,
    gain: float = 0.0,
    *,
    time_noise: float = 0.03,
    seed_noise: float = 0.001,
    seed: int = 0,
) -> list[TrialResult]:
    """Runs of a plan in a world where each entrant is that much better than the default."""
    noise = random.Random(seed)
    runs = []
    for trial in plan.trials():
        role = plan.entrants[plan.places[trial.number][1]].role
        factor = 1.0 if role is Role.DEFAULT else speedup
        own = 0.0 if role in (Role.DEFAULT, Role.RUNTIME_ONLY) else gain
        time_s = 100.0 / factor * math.exp(noise.gauss(0, time_noise))
        runs.append(run_of(trial, time_s, 0.98 + own + noise.gauss(0, seed_noise)))
    return runs


def searched(*results: TrialResult) -> list[TrialResult]:
    """What a search gave, as it may be verified: the default and these."""
    assert all(each.trial.kind in (TrialKind.SEARCH, TrialKind.DERIVED) for each in results)
    return [DEFAULT, *results]

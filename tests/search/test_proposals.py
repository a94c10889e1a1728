"""Tests of ``tuner.search.proposals``."""

import dataclasses
import math

import pytest

from tests.conftest import DEFAULT, SYNTHETIC
from tests.report_samples import make_measurement
from tuner.search.candidates import Known
from tuner.search.derived import Composition
from tuner.search.outlook import Aim, Target
from tuner.search.proposals import Proposer
from tuner.values.params import AVERAGE_WEIGHTS, iterations_of
from tuner.values.ranges import Choices
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import Checkpoint, Trial, TrialKind, TrialResult, TrialStatus
from tuner.verification.noninferiority import LookPlan

PLAIN = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
AVERAGING = dataclasses.replace(
    PLAIN, params={**PLAIN.params, AVERAGE_WEIGHTS: Choices({"": (False, True)}, runtime=False)}
)
_NEXT = math.sqrt(2)  # times the iterations of one point of the grid
FAST = {"blas": "fast", "threads": 1, "blas_kernel": "auto", "fault": ""}
TARGET = Target(
    val_accuracy=0.98, test_accuracy=0.98, deviation=0.001, test_images=10_000, sure_s=100.0,
    images=64_000, looks=LookPlan((5, 5), (2, 4), 0.025), margin=0.002, val_images=5_000,
)  # fmt: skip


def _beginning(space, default=DEFAULT, image_s=0.01 / 64):
    """Return a proposer and what is known after the default; time grows with the images."""
    looks = [Checkpoint(100 * n, 10.0 * n, None, 1 - 0.2 / n) for n in range(1, 11)]
    own = TrialResult(
        Trial(0, default, TrialKind.DEFAULT), TrialStatus.COMPLETE, iterations=1000,
        val_accuracy=0.98, checkpoints=tuple(looks), measurement=make_measurement(100.0),
    )  # fmt: skip
    probes = [PaceProbe(FAST, batch, image_s * batch) for batch in (8, 64, 256)]
    proposer = Proposer(Composition(space, RuntimeMap(probes)), default, seed=1, stream=0)
    return proposer, Known([own], [], [(100.0, 0.98)], Aim(TARGET, max_images=64_000))


@pytest.mark.parametrize(
    ("space", "share"), [(PLAIN, 0.5), (AVERAGING, 0.25)], ids=["plain", "averaging"]
)
def test_a_start_point_trains_hardly_longer_than_was_named_for_it(space, share):
    default = {**DEFAULT, AVERAGE_WEIGHTS: False} if space is AVERAGING else DEFAULT
    proposer, known = _beginning(space, default)
    first = proposer.propose(known, limit_s=1000.0)
    later = proposer.propose(dataclasses.replace(known, flying=[first]), limit_s=1000.0)
    bolder, smaller = sorted((first, later), key=lambda each: -each["batch_size"])
    assert bolder["learning_rate"] == 3 * default["learning_rate"]
    assert iterations_of(bolder) < _NEXT * share * iterations_of(default)
    assert smaller["batch_size"] == default["batch_size"] // 4
    assert iterations_of(smaller) < _NEXT * iterations_of(default)
    for each in (bolder, smaller):
        assert each.get(AVERAGE_WEIGHTS, False) is (space is AVERAGING)


def test_a_point_that_the_space_names_comes_first_though_its_batches_cost_as_much():
    wish = {"batch_size": 67, "learning_rate": 0.015}
    proposer, known = _beginning(dataclasses.replace(PLAIN, start=(wish,)))
    assert wish.items() <= proposer.propose(known, limit_s=1000.0).items()


@pytest.mark.parametrize(
    ("image_s", "limit_s", "tried"),
    [(0.01 / 64, 1000.0, True), (1.0 / 64, 1000.0, False), (0.01 / 64, 1.0, False)],
    ids=["faster", "slower", "out-of-time"],
)
def test_a_start_point_is_tried_though_the_model_expects_nothing_if_it_is_not_too_long(
    image_s, limit_s, tried
):
    proposer, known = _beginning(PLAIN, image_s=image_s)
    aim = dataclasses.replace(known.aim, incumbent=1e9)
    hopeless = dataclasses.replace(known, front=[(1e-3, 1.0)], aim=aim)
    found = proposer.propose(hopeless, limit_s)
    start = {"batch_size": 64, "learning_rate": 0.03, "iterations": 640}
    assert (start.items() <= found.items()) is tried
    assert ((found["batch_size"], found["learning_rate"]) in [(64, 0.03), (16, 0.005)]) is tried


def test_nothing_is_trained_for_longer_than_could_be_proven():
    proposer, known = _beginning(PLAIN)
    flying = []
    for _ in range(6):
        aim = dataclasses.replace(known.aim, max_s=20.0)
        found = proposer.propose(
            dataclasses.replace(known, aim=aim, flying=flying), limit_s=1000.0
        )
        assert iterations_of(found) * found["batch_size"] * 0.01 / 64 <= 20.0 * (1 + 1e-6)
        flying = [*flying, found]


@pytest.mark.parametrize(("max_s", "tried"), [(5.0, True), (0.5, False)])
def test_a_start_point_is_left_out_if_there_is_no_time_for_half_of_it(max_s, tried):
    proposer, known = _beginning(PLAIN)
    aim = dataclasses.replace(known.aim, max_s=max_s)
    found = proposer.propose(dataclasses.replace(known, aim=aim), limit_s=1000.0)
    assert ((found["batch_size"], found["learning_rate"]) in [(64, 0.03), (16, 0.005)]) is tried

"""Tests of ``tuner.study.warm_start``."""

import pytest

from tests.conftest import DEFAULT, SYNTHETIC
from tuner.study.warm_start import earlier_points
from tuner.values.space import SearchSpace

SPACE = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)


def front(*points, model="default"):
    verified = [{"params": DEFAULT, "comparison": None, "on_front": 0.5}]
    faster = {"speedup": {"value": 2.0, "low": 1.9, "high": 2.1}}
    verified += [{"params": {**DEFAULT, **each}, "comparison": {**faster}} for each in points]
    return {"model": model, "verified": verified}


def test_what_was_verified_elsewhere_is_tried_first_and_the_default_is_not():
    fronts = [front({"batch_size": 32}), front({"batch_size": 16}, {"batch_size": 32})]
    found = earlier_points(fronts, SPACE, DEFAULT, "default")
    assert [each["batch_size"] for each in found] == [32, 16]
    assert all(not SPACE.refusal(each) for each in found)
    assert earlier_points(fronts, SPACE, DEFAULT, "lenet") == []


def test_what_this_machine_does_not_have_is_replaced_or_left_out():
    (found,) = earlier_points(
        [front({"blas": "mkl", "batch_size": 32, "cores_of_old": 4})], SPACE, DEFAULT, "default"
    )
    assert found["blas"] in SPACE.params["blas"].values({})
    assert "cores_of_old" not in found
    assert earlier_points([front({"batch_size": 10**6})], SPACE, DEFAULT, "default") == []


FASTER = {"speedup": {"low": 1.9}}


@pytest.mark.parametrize(
    "front_of_old",
    [
        *({}, {"model": "default"}, front(), []),
        *({"model": "default", "verified": each} for each in (None, [None], [{"comparison": 1}])),
        {"model": "default", "verified": [{"comparison": FASTER, "params": [1]}]},
        {"model": "default", "verified": [{"comparison": {"no_loss": True}, "params": {}}]},
    ],
)
def test_an_older_front_without_points_says_nothing(front_of_old):
    assert earlier_points([front_of_old], SPACE, DEFAULT, "default") == []


def test_only_a_few_are_taken_and_the_doubtful_are_not():
    many = front(*({"batch_size": size} for size in range(20, 40)))
    assert len(earlier_points([many], SPACE, DEFAULT, "default")) == 3
    many["verified"][1]["on_front"] = 0.2
    assert earlier_points([many], SPACE, DEFAULT, "default")[0]["batch_size"] == 21


def test_what_was_proven_is_tried_before_the_rest_of_the_front():
    first = front({"batch_size": 20}, {"batch_size": 21}, {"batch_size": 22})
    second = front({"batch_size": 23}, {"batch_size": 24})
    first["verified"][3]["comparison"] |= {"no_loss": True}
    first["verified"][3]["role"] = "runtime only"
    second["verified"][1]["comparison"] |= {"no_loss": True}
    second["verified"][1]["on_front"] = 0.1  # another one that loses nothing dominates it
    second["verified"][2]["comparison"] |= {"no_loss": False}
    slower = {"no_loss": True, "speedup": {"value": 0.5, "low": 0.4, "high": 0.6}}
    second["verified"].append({"params": {**DEFAULT, "batch_size": 25}, "comparison": slower})
    found = earlier_points([first, second], SPACE, DEFAULT, "default")
    assert [each["batch_size"] for each in found] == [23, 22, 20]


def test_older_studies_said_otherwise_what_they_proved():
    old = front({"batch_size": 20}, {"batch_size": 21})
    old["verified"][2]["comparison"] |= {"accuracy_kept": True}
    found = earlier_points([old], SPACE, DEFAULT, "default")
    assert [each["batch_size"] for each in found] == [21, 20]

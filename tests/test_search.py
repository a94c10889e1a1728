"""What every search strategy must do; a new one is one more entry of ``SEARCHES``."""

from __future__ import annotations

import dataclasses

import optuna
import pytest

from tests.conftest import DEFAULT, SYNTHETIC
from tests.report_samples import make_measurement
from tuner.config import SamplerConfig, parse_constraint
from tuner.errors import ConfigError, StorageError
from tuner.pareto import OBJECTIVES
from tuner.search import JointSearch
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialResult, TrialStatus

# processes are started, which takes longer where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)

SEARCHES = [JointSearch]
SAMPLERS = ["tpe", "nsga2", "random"]
GOALS = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"]]


@pytest.fixture(params=SEARCHES)
def make(request, tmp_path):
    """Open the same persistent search again and again."""
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)

    def open_search(**changes):
        given = {
            "sampler": SamplerConfig("random"),
            "storage": f"sqlite:///{tmp_path}/search.db",
            "name": "study",
            "default": DEFAULT,
            "seed": 1,
        } | changes
        limits = [parse_constraint(text) for text in given.pop("constraints", [])]
        return request.param(given.pop("space", space), GOALS, limits, **given)

    return open_search


def outcome(number, params, status=TrialStatus.COMPLETE, **changes) -> TrialResult:
    measurement = dataclasses.replace(make_measurement(5.0), train_time_s=1.0 + number)
    given = {"iterations": 100, "val_accuracy": 0.5, "measurement": measurement} | changes
    return TrialResult(Trial(number, params), status, **given)


def test_number_0_is_the_default(make):
    assert make().ask() == (0, DEFAULT)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_proposals_are_members_and_numbered_without_gaps(make, sampler):
    search = make(sampler=SamplerConfig(sampler))
    for expected in range(15):
        number, params = search.ask()
        assert number == expected
        assert search.space.contains(params) == ""
        status = list(TrialStatus)[expected % len(TrialStatus)]
        search.tell(outcome(number, params, status))
    assert search.unfinished() == []


def test_a_trial_left_running_is_asked_for_again_under_its_number(make):
    first = make()
    first.tell(outcome(*first.ask()))
    lost = first.ask()
    again = make()
    assert again.unfinished() == [lost[0]]
    again.retry(lost[0])
    assert again.unfinished() == []
    assert again.ask() == lost
    third = make()
    third.retry(lost[0])
    assert third.ask() == lost
    assert third.ask()[0] == lost[0] + 1


def test_a_result_found_after_a_restart_can_be_told(make):
    first = make()
    number, params = first.ask()
    again = make()
    again.tell(outcome(number, params))
    assert again.unfinished() == []
    assert again.ask()[0] == 1


def test_telling_twice_changes_nothing(make):
    search = make()
    result = outcome(*search.ask())
    search.tell(result)
    search.tell(result)
    assert search.ask()[0] == 1


def test_a_stopped_trial_counts_for_the_iterations_it_reached(make, tmp_path):
    search = make()
    number, params = search.ask()
    search.tell(outcome(number, params, TrialStatus.STOPPED, iterations=77))
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/search.db")
    states = {each.state.name: each for each in study.trials}
    assert set(states) == {"FAIL", "COMPLETE"}
    assert states["COMPLETE"].params["iterations"] == 77
    assert states["FAIL"].params["iterations"] == 1000


def test_constraints_reach_the_sampler(make, tmp_path):
    search = make(constraints=["accuracy>=0.9"])
    search.tell(outcome(*search.ask()))
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/search.db")
    assert study.trials[0].constraints == {"accuracy>=0.9": pytest.approx(0.4)}


def test_a_default_outside_the_space_is_still_trial_0(make):
    space = SearchSpace.load(
        SYNTHETIC / "search_spaces" / "synthetic.yaml",
        cores=2,
        overrides={"batch_size": {"low": 100}},
    )
    search = make(space=space)
    assert search.ask() == (0, DEFAULT)
    search.tell(outcome(0, DEFAULT))
    number, params = search.ask()
    assert number == 1
    assert params["batch_size"] >= 100


def test_start_points_come_before_the_sampler(make):
    plain = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    start = ({"batch_size": 32}, {"batch_size": 9999}, {"blas": "fast"})
    search = make(space=dataclasses.replace(plain, start=start))
    asked = [search.ask()[1] for _ in range(3)]
    assert asked[1] == {**DEFAULT, "batch_size": 32}
    assert asked[2] == {**DEFAULT, "blas": "fast"}


def test_wrong_storage_and_options_are_one_line(make):
    with pytest.raises(StorageError, match="cannot be opened"):
        make(storage="sqlite:////proc/nowhere/x.db")
    with pytest.raises(ConfigError, match=r"sampler\.options"):
        make(sampler=SamplerConfig("random", {"no_such": 1}))

"""What every search strategy must do; a new one is one more entry of ``SEARCHES``."""

from __future__ import annotations

import dataclasses
import math
from importlib.util import find_spec

import optuna
import pytest

from tests.conftest import DEFAULT, OPTUNA, SYNTHETIC, add_database
from tests.report_samples import make_measurement
from tuner.config.schema import SamplerConfig, parse_constraint
from tuner.search import (
    Driver,
    FactoredSearch,
    JointSearch,
    OptunaStudy,
    Probe,
    RayTune,
    Stop,
    Train,
    View,
)
from tuner.trials.protocol import checkpoint_grid
from tuner.values.errors import ConfigError, StorageError
from tuner.values.pareto import OBJECTIVES, find_objective
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import Checkpoint, Trial, TrialResult, TrialStatus

# processes are started, which takes longer where neighbours take the CPU
pytestmark = [pytest.mark.slow, pytest.mark.timeout(20)]


def make_factored_map():
    """Two settings; the fast one is that of few."""
    kernel = {"blas_kernel": "auto", "fault": ""}
    probes = [
        PaceProbe({"blas": blas, "threads": threads, **kernel}, batch, seconds * (20 + batch))
        for blas, threads, seconds in (("slow", "unset", 1e-3), ("fast", 2, 1e-5))
        for batch in (8, 64, 256)
    ]
    return RuntimeMap(probes)


class Raced:
    """A race that is over, or would go on for ever."""

    def __init__(self, known: RuntimeMap, *, over: bool = True) -> None:
        self.known, self.over, self.recorded = known, over, False

    def run(self, max_s: float) -> None:
        """Find nothing."""


def make_factored(study):
    """After the race."""
    return FactoredSearch(study, Raced(make_factored_map()))


def ask(search, limit_s=math.inf, *, default_known=True):
    """Number and params of the next trial, which there must be."""
    asked = search.next(View(limit_s, math.inf, 0, default_known=default_known))
    return asked.number, asked.params


def heard(search):
    """What a driver hears of others, and learns."""
    found = search.study.hear_of_others()
    for each in found:
        search.tell(each)
    return sorted(found, key=lambda each: each.trial.number)


def raced(tmp_path, *, over=True):
    """A factored search of the synthetic framework, kept in a file, after the race."""
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    study = OptunaStudy(
        space, GOALS, [], sampler=SamplerConfig("random"), default=DEFAULT, seed=1,
        storage=add_database(tmp_path, OPTUNA), name="study",
    )  # fmt: skip
    return FactoredSearch(study, Raced(make_factored_map(), over=over))


def make_raytune(study):
    return JointSearch(study, RayTune(study).ask)


ONE, TWO = Driver("one", "alike"), Driver("two", "alike")
SEARCHES = [
    JointSearch,
    make_factored,
    pytest.param(
        make_raytune,
        marks=pytest.mark.skipif(not find_spec("ray"), reason="pip install 'tuner[ray]'"),
    ),
]
SAMPLERS = ["tpe", "nsga2", "random"]
GOALS = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"]]


@pytest.fixture(params=SEARCHES)
def make(request, tmp_path):
    """Open the same persistent search again and again."""
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)

    def open_search(**changes):
        given = {
            "sampler": SamplerConfig("random"),
            "storage": add_database(tmp_path, OPTUNA),
            "name": "study",
            "default": DEFAULT,
            "seed": 1,
        } | changes
        limits = [parse_constraint(text) for text in given.pop("constraints", [])]
        return request.param(OptunaStudy(given.pop("space", space), GOALS, limits, **given))

    return open_search


def outcome(number, params, status=TrialStatus.COMPLETE, **changes) -> TrialResult:
    measurement = dataclasses.replace(make_measurement(5.0), train_time_s=1.0 + number)
    given = {"iterations": 100, "val_accuracy": 0.5, "measurement": measurement} | changes
    return TrialResult(Trial(number, params), status, **given)


def test_number_0_is_the_default(make):
    assert ask(make()) == (0, DEFAULT)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.slow
def test_proposals_are_members_and_numbered_without_gaps(make, sampler):
    search = make(sampler=SamplerConfig(sampler))
    for expected in range(15):
        number, params = ask(search)
        assert number == expected
        assert search.study.space.refusal(params) == ""
        status = list(TrialStatus)[expected % len(TrialStatus)]
        search.tell(outcome(number, params, status))
    assert search.study.unfinished() == []


def test_a_trial_left_running_is_asked_for_again_under_its_number(make):
    first = make()
    told = outcome(*ask(first))
    first.tell(told)
    lost = ask(first)
    again = make()
    assert again.study.unfinished() == [lost[0]]
    again.retry(lost[0])
    assert again.study.unfinished() == []
    assert ask(again) == lost
    third = make()
    third.recall([told])
    assert ask(third) == lost
    assert ask(third)[0] == lost[0] + 1


def test_what_was_told_and_whose_result_is_lost_is_asked_for_again(make):
    first = make()
    asked = ask(first)
    first.tell(outcome(*asked))
    again = make()
    again.recall([])
    assert ask(again) == asked
    again.tell(outcome(*asked))
    assert ask(again)[0] == asked[0] + 1


def test_a_result_found_after_a_restart_can_be_told(make):
    first = make()
    number, params = ask(first)
    again = make()
    again.recall([outcome(number, params)])
    assert again.study.unfinished() == []
    assert ask(again)[0] == 1


@pytest.mark.slow
def test_drivers_in_turns_take_all_numbers_once_and_learn_from_each_other(make):
    one, two = make(driver=ONE), make(driver=TWO)
    told = [[], []]
    for turn in range(10):
        driver = (one, two)[turn % 2]
        result = outcome(*ask(driver))
        driver.tell(result)
        told[turn % 2].append(result)
    assert [each.trial.number for pair in zip(*told, strict=True) for each in pair] == [*range(10)]
    assert heard(one) == told[1]
    assert heard(one) == [], "once"
    assert heard(two) == told[0]
    assert [each.trial.name for each in one.front] == [each.trial.name for each in two.front]
    again = make(driver=ONE)
    again.recall(told[0])
    assert heard(again) == told[1]


def test_what_another_driver_is_about_is_left_to_it(make):
    one, two = make(driver=ONE), make(driver=TWO)
    mine, its = ask(one), ask(two)
    again = make(driver=ONE)
    assert again.study.unfinished() == [mine[0]]
    assert again.study.unfinished_of_others() == [its[0]]
    again.recall([])
    assert ask(again) == mine
    two.tell(outcome(*its))
    assert ask(two)[0] == 2


def test_what_a_dead_driver_was_about_is_asked_for_again_under_its_number(make, monkeypatch):
    one, two = make(driver=ONE), make(driver=TWO)
    mine, its = ask(one), ask(two)
    assert one.study.release() == []
    monkeypatch.setattr("tuner.search.crew.LEASE_S", -1.0)
    assert one.study.release() == [its[0]]
    assert one.study.release() == []
    assert ask(one) == its
    two.tell(outcome(*its))  # it only slept, and is too late
    assert two.study.unfinished() == []
    result = outcome(*its)
    one.tell(result)
    assert heard(make(driver=Driver("three", "alike"))) == [result]
    assert one.study.unfinished() == [mine[0]]


@pytest.mark.parametrize("ended", [False, True])
def test_a_driver_that_comes_back_leaves_its_trial_to_who_took_it_over(make, monkeypatch, ended):
    one, two = make(driver=ONE), make(driver=TWO)
    ask(one)
    its = ask(two)
    monkeypatch.setattr("tuner.search.crew.LEASE_S", -1.0)
    assert one.study.release() == [its[0]]
    monkeypatch.setattr("tuner.search.crew.LEASE_S", 120.0)
    assert ask(one) == its
    if ended:
        one.tell(outcome(*its))
    back = make(driver=TWO)
    back.recall([])
    assert back.study.waiting == []
    assert ask(back)[0] == 2


def test_a_driver_that_dies_before_it_notes_its_name_leaves_the_trial_to_others(make):
    one, two = make(driver=ONE), make(driver=TWO)
    default = ask(one)
    known = {"batch_size": 32, "iterations": 500, "learning_rate": 0.02}
    two.study.enqueue({**default[1], **known}, 1)
    two.study.optuna.ask()  # the enqueued one, and a new one that has no number yet
    two.study.optuna.ask()
    again = make(driver=ONE)
    again.recall([])
    assert ask(again) == default
    number, params = ask(again)
    assert number == 1
    assert {name: params[name] for name in known} == known
    assert again.study.unfinished_of_others() == []
    assert ask(again)[0] == 2


def test_who_begins_the_default_leads(make, monkeypatch):
    one, two = make(driver=ONE), make(driver=TWO)
    ask(one)
    assert (one.study.crew.leads, two.study.crew.leads) == (True, False)
    monkeypatch.setattr("tuner.search.crew.LEASE_S", -1.0)
    assert two.study.release() == [0]
    assert ask(two)[0] == 0
    assert (one.study.crew.leads, two.study.crew.leads) == (False, True)


def test_the_end_of_the_search_is_told_to_all_drivers(make):
    one, two = make(driver=ONE), make(driver=TWO)
    assert not two.study.over
    one.study.end()
    assert two.study.over
    one.study.end(over=False)
    assert not make(driver=TWO).study.over
    alone = make(name="alone")
    alone.study.end()
    assert not alone.study.over, "nobody is there to be told"


def test_drivers_on_machines_of_different_kinds_are_refused(make):
    make(driver=ONE)
    with pytest.raises(ConfigError, match="began on machine alike, and this one is other"):
        make(driver=Driver("two", "other"))


def test_a_fresh_search_forgets_what_was_before(make):
    search = make()
    search.tell(outcome(*ask(search)))
    assert ask(make())[0] == 1
    assert ask(make(fresh=True))[0] == 0


def test_telling_twice_changes_nothing(make):
    search = make()
    result = outcome(*ask(search))
    search.tell(result)
    search.tell(result)
    assert ask(search)[0] == 1


def test_a_stopped_trial_counts_for_the_iterations_it_reached(make, tmp_path):
    search = make()
    number, params = ask(search)
    search.tell(outcome(number, params, TrialStatus.STOPPED, iterations=77))
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/search.db")
    states = {each.state.name: each for each in study.trials}
    assert set(states) == {"FAIL", "COMPLETE"}
    assert states["COMPLETE"].params["iterations"] == 77
    assert states["FAIL"].params["iterations"] == 1000


def test_a_trial_stopped_too_early_to_count_is_told_as_what_it_would_have_been(make, tmp_path):
    search = make()
    number, params = ask(search)
    stopped = outcome(number, params, TrialStatus.STOPPED, iterations=1, val_accuracy=0.2)
    assert search.study.space.refusal(stopped.params)
    search.tell(stopped)
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/search.db")
    told = study.trials[0]
    assert told.state.name == "COMPLETE"
    assert told.params["iterations"] == 1000
    assert told.values == [0.2, pytest.approx(1000.0)]


def test_constraints_reach_the_sampler(make, tmp_path):
    search = make(constraints=["accuracy>=0.9"])
    search.tell(outcome(*ask(search)))
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/search.db")
    assert study.trials[0].constraints == {"accuracy>=0.9": pytest.approx(0.4)}


def test_a_default_outside_the_space_is_still_trial_0(make):
    space = SearchSpace.load(
        SYNTHETIC / "search_spaces" / "synthetic.yaml",
        cores=2,
        overrides={"batch_size": {"low": 100}},
    )
    search = make(space=space)
    assert ask(search) == (0, DEFAULT)
    search.tell(outcome(0, DEFAULT))
    number, params = ask(search)
    assert number == 1
    assert params["batch_size"] >= 100


def test_start_points_come_before_the_sampler(make):
    plain = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    start = ({"batch_size": 32}, {"batch_size": 9999}, {"blas": "fast"})
    search = make(space=dataclasses.replace(plain, start=start))
    asked = [ask(search)]
    for _ in range(2):
        search.tell(outcome(*asked[-1]))
        asked.append(ask(search))
    if search.min_iterations:  # it knows a better setting, and how long to train
        assert asked[1][1]["batch_size"] == 32
        assert asked[1][1]["learning_rate"] == DEFAULT["learning_rate"]
        return
    assert asked[1][1] == {**DEFAULT, "batch_size": 32}
    assert asked[2][1] == {**DEFAULT, "blas": "fast"}


def test_wrong_storage_and_options_are_one_line(make):
    with pytest.raises(StorageError, match="cannot be opened"):
        make(storage="sqlite:////proc/nowhere/x.db")
    with pytest.raises(ConfigError, match=r"sampler\.options"):
        make(sampler=SamplerConfig("random", {"no_such": 1}))


_SHORTEST = 10


def _pretend(number, params, *, limit_s=math.inf):
    """What the synthetic framework's formulas make of a trial, with its learning curve."""
    pace = 1e-5 * (20 + params["batch_size"]) * (100 if params["blas"] == "slow" else 1)
    rate = math.exp(-(math.log(params["learning_rate"] / 0.02) ** 2))
    marks = checkpoint_grid(params["iterations"], _SHORTEST)
    points = tuple(
        Checkpoint(
            each, pace * each, 1.0,
            0.99 - 0.89 * math.exp(-each * params["batch_size"] ** 0.5 * rate / 800),
        )
        for each in marks
        if pace * each <= limit_s or each == marks[0]
    )  # fmt: skip
    last = points[-1]
    measurement = dataclasses.replace(
        make_measurement(5.0), train_time_s=last.train_time_s,
        setup_time_s=0.02, wall_time_s=last.train_time_s + 0.03,
    )  # fmt: skip
    status = TrialStatus.COMPLETE if last.iteration == marks[-1] else TrialStatus.STOPPED
    return TrialResult(
        Trial(number, params, curve=_SHORTEST), status, iterations=last.iteration,
        val_accuracy=last.val_accuracy, checkpoints=points, measurement=measurement,
    )  # fmt: skip


@pytest.mark.slow
def test_factored_search_trains_at_the_fastest_setting_and_finds_the_best_rate(tmp_path):
    search = raced(tmp_path)
    asked = []
    for _ in range(12):
        number, params = ask(search, limit_s=0.2)
        asked.append(params)
        search.tell(_pretend(number, params, limit_s=0.2))
    assert all(each["blas"] == "fast" for each in asked[1:])
    rates = [each["learning_rate"] for each in asked[1:]]
    assert sum(0.01 <= rate <= 0.04 for rate in rates) >= 5
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/search.db")
    derived = [each for each in study.trials if "derived_from" in each.user_attrs]
    assert len(derived) > 5
    assert len({each.user_attrs["derived_from"] for each in derived}) > 2


def test_what_was_told_before_the_race_is_composed_after_it_once(tmp_path):
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    given = {
        "sampler": SamplerConfig("random"), "default": DEFAULT, "seed": 1, "name": "study",
        "storage": f"sqlite:///{tmp_path}/search.db",
    }  # fmt: skip
    race = Raced(RuntimeMap())
    search = FactoredSearch(OptunaStudy(space, GOALS, [], **given), race)
    result = _pretend(*ask(search, default_known=False))
    search.tell(result)
    assert not search.derived
    for each in make_factored_map().probes:
        race.known.add(each)
    search.learn_paces()
    assert search.derived
    assert {each.params["blas"] for each in search.front} == {"fast"}
    again = make_factored(OptunaStudy(space, GOALS, [], **given))
    again.recall([result])
    assert again.derived == search.derived
    study = optuna.load_study(study_name="study", storage=given["storage"])
    assert sum("derived_from" in each.user_attrs for each in study.trials) == len(search.derived)


def side_by_side(tmp_path, one_thread=1.2e-5, objectives=GOALS):
    """After a race in which one thread takes so long for an image, and two take 1e-5 s."""
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    study = OptunaStudy(
        space, objectives, [], sampler=SamplerConfig("random"), default=DEFAULT, seed=1,
        storage=f"sqlite:///{tmp_path}/search.db", name="study",
    )  # fmt: skip
    known = make_factored_map()
    base = {**known.fastest(64), "threads": 1}
    for batch in (8, 64, 256):
        known.add(PaceProbe(base, batch, one_thread * (20 + batch)))
    return FactoredSearch(study, Raced(known), cores=2)


def test_trials_run_side_by_side_where_one_core_is_worth_more_than_half_of_two(tmp_path):
    search = side_by_side(tmp_path)
    search.tell(_pretend(*ask(search)))
    number, params = ask(search, limit_s=2.0)
    assert search.lanes == 2
    assert (params["blas"], params["threads"]) == ("fast", 1)
    result = _pretend(number, params)
    paces = len(search._race.known.probes)
    search.tell(dataclasses.replace(
        result, trial=dataclasses.replace(result.trial, accuracy_only=True)
    ))  # fmt: skip
    own = [each for each in search.derived if each.trial.number == number]
    points = [each for each in result.checkpoints if each.iteration >= search.min_iterations]
    assert len(own) == len(points), "its end too is composed"
    assert {each.params["threads"] for each in own} == {2}
    assert not any(each.trial.accuracy_only for each in (*own, *search.front))
    end = own[-1]
    pace_s = search._race.known.pace_s(search._race.known.fastest(64), params["batch_size"])
    assert end.metrics["train_time_s"] == pytest.approx(result.iterations * pace_s)
    assert len(search._race.known.probes) == paces
    beside = search.beside(end)
    assert beside.at_once == 2
    assert beside.params == {**end.params, "threads": 1}
    assert beside.train_s == pytest.approx(1.2 * end.metrics["train_time_s"])


def test_what_runs_beside_another_trial_is_another_training(tmp_path):
    search = side_by_side(tmp_path)
    search.tell(_pretend(*ask(search)))
    one = search.next(View(2.0, 60.0, 0, default_known=True))
    other = search.next(View(2.0, 60.0, 1, default_known=True))
    assert one.params != other.params
    known, batch = search._race.known, one.params["batch_size"]
    assert one.pace_s == known.pace_s(known.fastest(batch), batch)
    assert one.pace_s < known.pace_s(
        {name: one.params[name] for name in search.study.space.runtime}, batch
    )


def test_trials_that_were_interrupted_side_by_side_run_so_again(tmp_path):
    interrupted = side_by_side(tmp_path)
    default = _pretend(*ask(interrupted))
    interrupted.tell(default)
    views = [View(2.0, 60.0, running, default_known=True) for running in (0, 1)]
    pair = [interrupted.next(view) for view in views]
    assert pair[0].pace_s > 0
    search = side_by_side(tmp_path)
    search.recall([default])
    assert [search.next(view) for view in views] == pair
    assert search.lanes == 2


def test_an_enqueued_trial_that_measures_times_waits_until_the_others_have_ended(tmp_path):
    search = side_by_side(tmp_path)
    search.tell(_pretend(*ask(search)))
    beside = search.next(View(2.0, 60.0, 0, default_known=True))
    search.study.enqueue({**beside.params, "threads": 2})
    assert isinstance(search.next(View(2.0, 60.0, 1, default_known=True)), Stop)
    search.tell(_pretend(beside.number, beside.params))
    alone = search.next(View(2.0, 60.0, 0, default_known=True))
    assert (search.lanes, alone.params["threads"], alone.pace_s) == (1, 2, 0.0)


@pytest.mark.parametrize(
    ("one_thread", "goal"), [(1.9e-5, "train_time_s"), (1.2e-5, "peak_memory_mb")]
)
def test_trials_run_alone_where_two_at_once_gain_little_or_memory_counts(
    tmp_path, one_thread, goal
):
    search = side_by_side(tmp_path, one_thread, [OBJECTIVES["accuracy"], find_objective(goal)])
    search.tell(_pretend(*ask(search)))
    _, params = ask(search, limit_s=2.0)
    assert search.lanes == 1
    assert params["threads"] == 2
    assert search.beside(outcome(1, params)) is None


def test_trainings_that_slow_each_other_down_run_one_at_a_time_from_then_on(tmp_path):
    search = side_by_side(tmp_path)
    search.tell(_pretend(*ask(search)))
    pair = [search.next(View(2.0, 60.0, running, default_known=True)) for running in (0, 1)]
    assert search.lanes == 2
    first = _pretend(pair[0].number, pair[0].params)
    seconds = 1.8 * 1.2e-5 * (20 + first.params["batch_size"]) * first.iterations
    search.tell(dataclasses.replace(
        first,
        trial=dataclasses.replace(first.trial, accuracy_only=True),
        measurement=dataclasses.replace(first.measurement, train_time_s=seconds),
    ))  # fmt: skip
    assert isinstance(search.next(View(2.0, 60.0, 1, default_known=True)), Stop), "until it ends"
    found = search.next(View(2.0, 60.0, 0, default_known=True))
    assert (search.lanes, found.params["threads"], found.pace_s) == (1, 2, 0.0)
    assert search.beside(first) is None


def test_constraints_bound_what_is_asked(make):
    search = make(constraints=["train_time_s<=0.05"])
    search.tell(_pretend(*ask(search)))
    if search.min_iterations:
        _, params = ask(search, limit_s=10.0)
        assert params["iterations"] * 1e-5 * (20 + params["batch_size"]) <= 0.05 * 1.01


def test_the_race_comes_before_all_trials_but_the_default(tmp_path):
    search = raced(tmp_path)
    search._race.known.forget()
    assert search.next(View(0.2, 60.0, 0, default_known=False)) == Train(0, DEFAULT)
    search.tell(_pretend(0, DEFAULT, limit_s=0.2))
    turn = search.next(View(0.2, 60.0, 0, default_known=True))
    assert turn == Probe(pytest.approx(20.0))


def test_a_race_that_is_not_over_has_a_turn_after_each_trial(tmp_path):
    search = raced(tmp_path, over=False)
    view = View(0.2, 60.0, 0, default_known=True)
    assert search.next(view) == Train(0, DEFAULT), "the default comes first"
    search.tell(_pretend(0, DEFAULT, limit_s=0.2))
    for _ in range(3):
        assert search.next(view) == Probe(pytest.approx(20.0))
        search.learn_paces()
        number, params = ask(search, limit_s=0.2)
        search.tell(_pretend(number, params, limit_s=0.2))


def test_a_setting_that_runs_otherwise_than_requested_is_given_up(tmp_path):
    search = raced(tmp_path)
    search.tell(_pretend(*ask(search)))
    for _ in range(2):
        number, params = ask(search, limit_s=0.2)
        assert params["blas"] == "fast"
        search.tell(outcome(number, params, TrialStatus.INVALID, measurement=None))
    assert search.next(View(0.2, 60.0, 0, default_known=True)) == Stop(
        "nothing untried fits into 0.2 s; a larger budget.time_s= may help"
    )
    assert ask(search, limit_s=2.0)[1]["blas"] == "slow"
    search.learn_paces()
    assert {each.params["blas"] for each in search.front} == {"slow"}

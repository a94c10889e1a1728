"""Every strategy under any budget, pace, noise and failure: no exception, no nonsense, an end.

What is driven is a model of a study: a clock that only trainings advance, trials that end as the
example says, and the loop of ``SearchPhase`` in small.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import DEFAULT, SYNTHETIC
from tests.report_samples import make_measurement
from tuner.config.schema import SamplerConfig, parse_constraint
from tuner.race.race import Race
from tuner.search import (
    FactoredSearch,
    JointSearch,
    OptunaStudy,
    Probe,
    RayTune,
    Stop,
    Strategy,
    Train,
    View,
)
from tuner.trials.protocol import checkpoint_grid
from tuner.values.pareto import OBJECTIVES
from tuner.values.space import SearchSpace
from tuner.values.trial import Checkpoint, Trial, TrialKind, TrialResult, TrialStatus

GOALS = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"]]
SPACE = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
START_S = 0.3
MAX_TRIALS = 7
ENDS = [
    TrialStatus.COMPLETE, TrialStatus.CRASHED, TrialStatus.DIVERGED, TrialStatus.INVALID,
    TrialStatus.STOPPED, TrialStatus.TIMEOUT,
]  # fmt: skip


@dataclass
class Machine:
    """Trains by formulas; its clock is advanced by nothing else.

    Attributes:
        pace_s: Seconds an iteration of one image takes with the fastest setting.
        slow: How many times as long the default's library takes.
        noise: Standard deviation of a time's logarithm.
        ends: How the trials end, in turns.
        now: Seconds.
    """

    pace_s: float
    slow: float = 20.0
    noise: float = 0.0
    ends: tuple[TrialStatus, ...] = (TrialStatus.COMPLETE,)
    now: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def iteration_s(self, params) -> float:
        factor = (self.slow if params["blas"] == "slow" else 1.0) * (
            0.6 if params["threads"] == 2 else 1.0
        )
        return self.pace_s * (20 + params["batch_size"]) * factor

    @contextlib.contextmanager
    def session(self, _params):
        self.now += START_S
        yield self

    def run(self, trial: Trial) -> TrialResult:
        """Train until the trial's limit at the longest."""
        pace = self.iteration_s(trial.params) * math.exp(self.random.gauss(0, self.noise))
        limit_s = trial.train_time_limit_s or math.inf
        status = TrialStatus.COMPLETE
        if trial.kind is not TrialKind.PROBE:
            status = self.ends[trial.number % len(self.ends)]
        marks = checkpoint_grid(trial.params["iterations"], trial.curve or 10)
        reached = [each for each in marks if pace * each <= limit_s] or marks[:1]
        if status is TrialStatus.STOPPED:
            reached = reached[: 1 + len(reached) // 2]
        elif status is TrialStatus.COMPLETE and reached[-1] < marks[-1]:
            status = TrialStatus.STOPPED
        points = tuple(
            Checkpoint(each, pace * each, 1.0, self.accuracy(trial.params, each))
            for each in reached
        )
        train_s = points[-1].train_time_s
        self.now += START_S + train_s
        measurement = dataclasses.replace(
            make_measurement(5.0), train_time_s=train_s, setup_time_s=START_S,
            wall_time_s=START_S + train_s, disturbed="",
        )  # fmt: skip
        usable = status.usable
        return TrialResult(
            trial, status, iterations=reached[-1], checkpoints=points,
            val_accuracy=points[-1].val_accuracy if usable else None,
            measurement=measurement if usable or status is TrialStatus.DIVERGED else None,
        )  # fmt: skip

    @staticmethod
    def accuracy(params, iterations) -> float:
        rate = math.exp(-(math.log(params["learning_rate"] / 0.02) ** 2))
        return 0.99 - 0.89 * math.exp(-iterations * params["batch_size"] ** 0.5 * rate / 800)


def open_study(space=SPACE, sampler="random", constraints=(), seed=1) -> OptunaStudy:
    return OptunaStudy(
        space, GOALS, [parse_constraint(each) for each in constraints],
        sampler=SamplerConfig(sampler), storage=None, name="study", default=DEFAULT, seed=seed,
    )  # fmt: skip


def open_race(machine, budget_s, space=SPACE) -> Race:
    return Race(space, DEFAULT, machine.session, budget_s, clock=lambda: machine.now)


@dataclass
class Driven:
    """What a strategy did: its trials, the turns of its race, and why it ended."""

    results: list[TrialResult] = field(default_factory=list)
    turns: int = 0
    end: str = "budget"


def drive(
    strategy: Strategy, machine: Machine, race: Race | None, budget_s: float, limit_s: float
) -> Driven:
    """Carry out what a strategy says until a budget ends, and check each answer."""
    driven = Driven()
    while len(driven.results) < MAX_TRIALS and machine.now < budget_s:
        left_s = budget_s - machine.now
        view = View(min(limit_s, left_s), left_s, 0, default_known=bool(driven.results))
        match strategy.next(view):
            case Train(number, params):
                check(strategy, number, params, view, machine, race)
                limit = view.limit_s if number else limit_s
                trial = Trial(
                    number, params, train_time_limit_s=limit, curve=strategy.min_iterations
                )
                driven.results.append(machine.run(trial))
                strategy.tell(driven.results[-1])
            case Probe(max_s):
                assert max_s <= left_s / 2
                driven.turns += 1
                assert driven.turns <= 3 * MAX_TRIALS + 40, "there is no end"
                race.run(max_s)
                strategy.learn_paces()
            case Stop(reason):
                driven.end = reason
                break
    return driven


def check(strategy, number, params, view, machine, race) -> None:
    if number == 0:
        assert params == DEFAULT
        return
    assert strategy.study.space.refusal(params) == ""
    if race is not None:
        batch, setting = params["batch_size"], strategy.study.space.runtime
        own = {name: params[name] for name in setting}
        expected_s = params["iterations"] * race.known.pace_s(own, batch)
        assert expected_s <= view.limit_s * (1 + 1e-9)


budgets = st.floats(0.05, 120.0)
machines = st.builds(
    Machine,
    pace_s=st.floats(-9, 0).map(lambda power: 10.0**power),
    slow=st.floats(0.5, 200.0),
    noise=st.sampled_from([0.0, 0.05, 0.5]),
    ends=st.lists(st.sampled_from(ENDS), min_size=1, max_size=6).map(tuple),
)
spaces = st.sampled_from(
    [
        SPACE,
        SearchSpace.load(
            SYNTHETIC / "search_spaces" / "synthetic.yaml",
            cores=2,
            overrides={"iterations": {"low": 50, "high": 50}, "batch_size": {"low": 100}},
        ),
        dataclasses.replace(SPACE, start=({"batch_size": 16, "iterations": 2000},)),
    ]
)
anything = given(
    machine=machines,
    budget_s=budgets,
    share=st.floats(0.05, 1.0),
    space=spaces,
    limits=st.sampled_from([(), ("train_time_s<=0.01",), ("accuracy>=0.9",)]),
)
unhurried = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
@settings(max_examples=12, **unhurried)
@anything
def test_joint_search_goes_through_anything(sampler, machine, budget_s, share, space, limits):
    strategy = JointSearch(open_study(space, sampler, limits))
    driven = drive(strategy, machine, None, budget_s, share * budget_s)
    assert [each.trial.number for each in driven.results] == [*range(len(driven.results))]


@pytest.mark.slow
@pytest.mark.timeout(120)
@settings(max_examples=30, **unhurried)
@anything
def test_factored_search_goes_through_anything(machine, budget_s, share, space, limits):
    race = open_race(machine, 0.15 * budget_s, space)
    strategy = FactoredSearch(open_study(space, constraints=limits), race)
    driven = drive(strategy, machine, race, budget_s, share * budget_s)
    assert [each.trial.number for each in driven.results] == [*range(len(driven.results))]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.skipif(not find_spec("ray"), reason="pip install 'tuner[ray]'")
@settings(max_examples=5, **unhurried)
@anything
def test_ray_tunes_search_goes_through_anything(machine, budget_s, share, space, limits):
    study = open_study(space, constraints=limits)
    strategy = JointSearch(study, RayTune(study).ask)
    driven = drive(strategy, machine, None, budget_s, share * budget_s)
    assert [each.trial.number for each in driven.results] == [*range(len(driven.results))]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("limit_s", "trials"), [(0.02, 1), (0.3, 2), (5.0, MAX_TRIALS)])
def test_what_does_not_fit_into_the_time_is_not_begun(limit_s, trials):
    """With a small budget every candidate is longer than the limit; see also its repetition."""
    machine = Machine(pace_s=1e-4)
    race = open_race(machine, 20.0)
    strategy = FactoredSearch(open_study(), race)
    driven = drive(strategy, machine, race, 1000.0, limit_s)
    assert len(driven.results) >= trials
    if len(driven.results) < MAX_TRIALS:
        assert driven.end == f"nothing can be trained within {limit_s:g} s"
        again = strategy.next(View(limit_s, 60.0, 0, default_known=True))
        assert again == Stop(driven.end), "as often as it is asked"


@pytest.mark.timeout(20)
def test_a_slow_default_does_not_keep_the_search_from_a_faster_setting():
    machine = Machine(pace_s=2e-3, slow=20.0)  # the default: 3.4 s an iteration
    race = open_race(machine, 0.15 * 60)
    strategy = FactoredSearch(open_study(), race)
    driven = drive(strategy, machine, race, 60.0, 15.0)
    assert "fast" in {each["blas"] for each in race.known.settings}
    assert {each["threads"] for each in race.known.settings} > {"unset"}
    assert {each.params["blas"] for each in driven.results[1:]} == {"fast"}


def test_a_race_that_can_measure_nothing_ends_the_search():
    class Broken(Machine):
        def run(self, trial):
            if trial.kind is TrialKind.PROBE:
                return TrialResult(trial, TrialStatus.CRASHED, "gone")
            return super().run(trial)

    machine = Broken(pace_s=1e-5)
    race = open_race(machine, 10.0)
    driven = drive(FactoredSearch(open_study(), race), machine, race, 60.0, 5.0)
    assert (len(driven.results), driven.end) == (1, "no runtime setting could be measured")


@pytest.mark.timeout(20)
def test_what_trials_tell_is_learnt_once_into_the_map_of_the_race():
    machine = Machine(pace_s=1e-5, ends=(TrialStatus.COMPLETE, TrialStatus.INVALID))
    race = open_race(machine, 20.0)
    strategy = FactoredSearch(open_study(), race)
    driven = drive(strategy, machine, race, 60.0, 1.0)
    failed = Counter(
        tuple(each.params[name] for name in SPACE.runtime)
        for each in driven.results
        if not each.usable
    )
    given_up = [each for each in race.known.probed if failed[tuple(each.values())] > 1]
    assert given_up
    kept = [each for each in race.known.settings if each in given_up]
    assert not kept or race.known.settings == kept[:1], "but for the last one there is"
    before = race.known.pace_s(race.known.fastest(64), 64)
    for _ in range(3):
        strategy.learn_paces()
        strategy.tell(driven.results[0])
    assert race.known.pace_s(race.known.fastest(64), 64) == before

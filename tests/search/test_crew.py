"""Drivers of one study: who lives, who leads, and who goes on for whom."""

from __future__ import annotations

import dataclasses
import os
import signal

import optuna
import pytest

from tuner.progress import StudyProgress
from tuner.search.crew import LEASE_S, Crew, Driver
from tuner.study.study import tune
from tuner.tracking import default_tracking_uri, load_results
from tuner.values.errors import ConfigError
from tuner.values.trial import TrialKind

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def crews(clock):
    """Two drivers of one study."""
    study = optuna.create_study()
    return [Crew(study, Driver(name, "alike"), clock) for name in ("one", "two")]


def test_a_driver_is_dead_once_it_has_not_counted_on_for_a_lease(crews, clock):
    one, two = crews
    two.beat()
    assert one.dead(["one", "two"]) == set(), "it may have stopped just now"
    clock.now = LEASE_S - 1
    two.beat()
    assert one.dead(["two"]) == set()
    clock.now = 2 * LEASE_S - 2
    assert one.dead(["two"]) == set()
    clock.now = 2 * LEASE_S
    assert one.dead(["one", "two"]) == {"two"}, "and nobody is dead to itself"


def test_one_that_comes_back_lives(crews, clock):
    one, two = crews
    two.beat()
    one.dead(["two"])
    clock.now = 2 * LEASE_S
    again = Crew(one._study, two.driver, clock)
    again.beat()
    assert one.dead(["two"]) == set()


def test_one_is_waited_for_until_it_counts_on(crews, clock):
    one, two = crews
    two.beat()
    ticks = []

    def tick() -> None:
        ticks.append(clock.now)
        clock.now += 1
        if len(ticks) == 5:
            two.beat()

    assert not one.outlives("two", tick)
    assert len(ticks) == 5


def test_one_is_waited_for_until_its_lease_ends(crews, clock):
    one, two = crews
    two.beat()

    def tick() -> None:
        clock.now += 1

    assert one.outlives("two", tick)
    assert LEASE_S < clock.now <= LEASE_S + 2


def test_one_that_has_ended_the_study_is_not_waited_for(crews, clock):
    """It beats no more, and is not dead."""
    one, two = crews
    two.beat()

    def tick() -> None:
        clock.now += 1
        two.note_report(written=True)

    assert not one.outlives("two", tick)
    assert clock.now <= 2


def test_who_leads_publishes_and_who_is_replaced_does_not(crews):
    one, two = crews
    assert not one.leads
    assert one.leader == ""
    one.lead()
    one.publish("default", {"accuracies": [0.99]})
    two.publish("default", "not mine to say")
    assert two.published == {"default": {"accuracies": [0.99]}}
    two.lead()
    one.publish("default", "too late")
    assert two.published == {"default": {"accuracies": [0.99]}}
    assert (one.leads, two.leads) == (False, True)


def test_a_heart_beats_until_it_is_closed(crews, monkeypatch):
    monkeypatch.setattr("tuner.search.crew._BEAT_S", 0.02)
    one, two = crews
    two.begin()
    assert not one.outlives("two", lambda: None)
    two.close()
    before = dict(one._study.user_attrs)
    assert not two._thread.is_alive()
    assert before == one._study.user_attrs


class Stopper(StudyProgress):
    """Interrupts its study once it has ended so many trials of a kind; keeps what is said."""

    def __init__(self, kind: TrialKind | None = None, count: int = 1) -> None:
        self.kind, self.left, self.said = kind, count, []

    def trial_finished(self, result, front) -> None:
        self.left -= result.trial.kind is self.kind
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)

    def message(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "count"),
    [(TrialKind.DEFAULT, 1), (TrialKind.SEARCH, 4), (TrialKind.VERIFY, 2)],
)
def test_a_study_whose_leader_is_gone_is_ended_by_another_driver(
    config, tmp_path, monkeypatch, kind, count
):
    config = dataclasses.replace(config, storage=f"sqlite:///{tmp_path}/shared.db")
    with pytest.raises(KeyboardInterrupt):
        tune(config, Stopper(kind, count))
    left = sorted(
        each.parent.name for each in tmp_path.glob("home/studies/*/trials/*/result.json")
    )
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "other"))
    monkeypatch.setattr("tuner.search.crew.LEASE_S", 1.0)
    shown = Stopper()
    result = tune(config, shown)
    assert any("this one leads the study" in each for each in shown.said)
    assert [each.trial.number for each in result.trials] == [*range(config.budget.trials)]
    assert result.complete
    assert len(result.verified) > 1
    mine = [each.parent.name for each in tmp_path.glob("other/studies/*/trials/*/result.json")]
    runs = {each.trial.name for each in (*result.trials, *result.verifications)}
    assert set(left) <= runs, "nothing that was measured is lost"
    measured_twice = {each for each in left if each in mine and each.startswith("search")}
    assert not measured_twice
    (record,) = load_results(default_tracking_uri(tmp_path), "synthetic", "digits")
    assert set(record.run_ids) == runs

    def again(home: str) -> list[str]:
        monkeypatch.setenv("TUNER_HOME", str(tmp_path / home))
        shown = Stopper()
        tune(config, shown)
        return shown.said

    assert any("is complete" in each for each in again("other"))
    assert any("the search has ended" in each for each in again("home"))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_study_that_another_driver_runs_is_not_started_over(config, tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.search.crew._BEAT_S", 0.2)
    config = dataclasses.replace(config, storage=f"sqlite:///{tmp_path}/shared.db")
    with pytest.raises(KeyboardInterrupt):
        tune(config, Stopper(TrialKind.SEARCH, 2))
    restarted = dataclasses.replace(config, resume="restart")
    (name,) = optuna.get_all_study_names(config.storage)
    study = optuna.load_study(study_name=name, storage=config.storage)
    other = Crew(study, Driver("other", "alike"))
    other.begin()
    with pytest.raises(ConfigError, match=r"^study .* is being run by another driver"):
        tune(restarted)
    assert len(study.get_trials()) >= 2
    other.close()
    assert tune(restarted).complete

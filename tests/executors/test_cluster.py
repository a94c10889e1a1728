"""Studies on a Ray cluster whose nodes share this machine, each with cores of its own."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.cluster import (
    CORES,
    add_machine,
    executor_at,
    fixture_cluster,  # noqa: F401 - a fixture
    fixture_networks,  # noqa: F401 - a fixture
    on_two_nodes,
    ray,
    two_nodes,
    wait_for_slots,
)

# collected here once more, with the executor of this file
from tests.executors.test_executors import (  # noqa: F401
    test_a_failing_trial_is_a_result,
    test_a_submitted_trial_comes_back,
    test_cancel_ends_what_runs,
    test_no_more_trials_run_at_once_than_there_are_slots,
)
from tuner import measure
from tuner.config.schema import (
    BudgetConfig,
    ExecutorConfig,
    SamplerConfig,
    TuneConfig,
    VerifyConfig,
)
from tuner.config.validation import validate
from tuner.executors import LocalExecutor, RaceSession, RayExecutor
from tuner.executors.connection import _reach
from tuner.executors.node import NodeAddress, NodeSlot
from tuner.executors.pool import TeamPool
from tuner.executors.team import Member, Team
from tuner.progress import StudyProgress
from tuner.runtimes import ensure_installed
from tuner.study.preparation import results_place
from tuner.study.study import tune
from tuner.tracking import load_results
from tuner.values.errors import ConfigError, RuntimeUnavailable
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.trial import TrialResult, TrialStatus

pytestmark = [*on_two_nodes, pytest.mark.timeout(180)]


@pytest.fixture
def config(config, cluster) -> TuneConfig:
    config.executor = executor_at(cluster.address)
    return config


@pytest.fixture
def setup(setup):
    ensure_installed(setup.runtime)  # as its packages are part of a machine's fingerprint
    return dataclasses.replace(setup, cores=setup.cores[:1])


def open_executor(config, setup, said=None) -> RayExecutor:
    machine = measure.machine_facts(setup.cores)
    fingerprint = measure.fingerprint(machine, setup.runtime.packages())
    say = (lambda _: None) if said is None else said.append
    return RayExecutor(config, setup, fingerprint, say=say, check=lambda: None)


@pytest.fixture
def executor(config, setup) -> Iterator[RayExecutor]:
    made = open_executor(config, setup)
    wait_for_slots(made, 2)
    yield made
    made.close()


def test_each_node_measures_what_this_machine_does(executor, setup, make_trial):
    trials = [make_trial(number, seed=number) for number in range(1, 5)]
    spread = [each.result(30) for each in [executor.submit(each) for each in trials]]
    local = LocalExecutor(setup)
    alone = [local.submit(each).result(30) for each in trials]
    local.close()

    def figures(result: TrialResult):
        points = result.checkpoints
        return [each.train_time_s for each in points] + [each.val_accuracy for each in points]

    for one, other in zip(spread, alone, strict=True):
        assert figures(one) == pytest.approx(figures(other), rel=1e-3)
        assert (setup.folder / one.trial.name / "events.jsonl").is_file(), "its files came along"


def test_trials_at_once_own_different_cores(executor, setup, make_trial):
    futures = [executor.submit(make_trial(number, fault="burn")) for number in (1, 2)]
    deadline, seen = time.monotonic() + 10, {}
    while len({*seen.values()}) < 2 and time.monotonic() < deadline:
        for pid in measure.marked_processes(setup.marker):
            try:
                cores = os.sched_getaffinity(pid)
                assert os.getpriority(os.PRIO_PROCESS, pid) == 0
            except ProcessLookupError:
                continue
            if len(cores) == 1:  # a worker that has just begun is not bound yet
                seen[pid] = min(cores)
    assert len({*seen.values()}) == 2, "each on a CPU of its own"
    assert all(each.result(10).usable for each in futures)


def test_a_spread_study_finds_the_front_that_one_machine_finds(config):
    config.sampler, config.verify = SamplerConfig("random"), VerifyConfig(finalists=0)
    config.budget = BudgetConfig(time_s=60, trials=16)
    spread = tune(config)
    alone = tune(dataclasses.replace(config, executor=ExecutorConfig(cores=str(CORES[0]))))
    assert [each.trial.number for each in spread.trials] == list(range(16))

    def figures(trials):
        return {each.trial.number: each.metrics["val_accuracy"] for each in trials}

    assert [each.params for each in spread.trials] == [each.params for each in alone.trials]
    assert figures(spread.front) == pytest.approx(figures(alone.front))
    (record, _) = load_results(results_place(config)[0], "synthetic", "digits")
    assert len([name for name in record.run_ids if name.startswith("search")]) == 15


def test_factored_search_races_here_and_trains_there(config):
    config.search = dataclasses.replace(config.search, name="factored", probe_s=0.0005)
    result = tune(dataclasses.replace(config, budget=BudgetConfig(time_s=60, trials=10)))
    assert [each.trial.number for each in result.trials] == list(range(10))
    assert result.verified[1].params["blas"] == "fast"


class Messages(StudyProgress):
    def __init__(self) -> None:
        self.all: list[str] = []

    def message(self, text) -> None:
        self.all.append(text)


@pytest.fixture
def naps(config) -> TuneConfig:
    """A study of trials that take a second, and of nothing else."""
    config.search_space = {"fault": {"type": "categorical", "choices": ["nap"]}}
    config.verify = VerifyConfig(finalists=0)
    config.budget = BudgetConfig(time_s=90, trials=12)
    return config


@pytest.fixture
def three_nodes(monkeypatch) -> None:
    """Trials begin once three nodes have joined."""

    def opened(*given, **named) -> RayExecutor:
        made = RayExecutor(*given, **named)
        wait_for_slots(made, 3)
        return made

    monkeypatch.setattr("tuner.study.parts.RayExecutor", opened)


def once_it_trains(home, change) -> threading.Thread:
    """Change something as soon as the node with this home trains."""

    def wait() -> None:
        deadline = time.monotonic() + 90
        begun = "slots/*/workers/search-*/events.jsonl"
        while not [*home.glob(begun)] and time.monotonic() < deadline:
            time.sleep(0.02)
        change()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.usefixtures("three_nodes")
def test_a_node_that_is_lost_loses_no_trial_and_doubles_none(naps, cluster, tmp_path):
    doomed = add_machine(cluster, tmp_path / "third")
    killing = once_it_trains(
        tmp_path / "third", lambda: cluster.remove_node(doomed, allow_graceful=False)
    )
    messages = Messages()
    result = tune(naps, messages)
    killing.join()
    assert [each.trial.number for each in result.trials] == list(range(12))
    assert {each.status for each in result.trials} <= {TrialStatus.COMPLETE, TrialStatus.STOPPED}
    assert any("was lost while it ran" in each for each in messages.all), messages.all
    (record,) = load_results(results_place(naps)[0], "synthetic", "digits")
    searched = sorted(name for name in record.run_ids if name.startswith("search"))
    assert searched == [f"search-{number:04d}" for number in range(1, 12)]


@pytest.mark.usefixtures("three_nodes")
def test_a_fault_of_a_nodes_disk_costs_its_slot_alone(naps, cluster, tmp_path):
    home = tmp_path / "third"
    third = add_machine(cluster, home)

    def fail() -> None:
        for folder in (home / "slots").glob("[0-9]"):
            folder.rename(folder.with_suffix(".gone"))
            folder.write_text("no folder any more")

    failing, messages = once_it_trains(home, fail), Messages()
    result = tune(naps, messages)
    failing.join()
    cluster.remove_node(third)
    assert [each.trial.number for each in result.trials] == list(range(12))
    assert {each.status for each in result.trials} <= {TrialStatus.COMPLETE, TrialStatus.STOPPED}
    assert any("which runs again" in each for each in messages.all), messages.all


def test_nodes_with_networks_of_their_own_share_a_study(naps, networks, tmp_path):
    ray.shutdown()
    seen: set[str] = set()

    class Look(StudyProgress):
        def trial_started(self, trial) -> None:
            seen.update(each["NodeManagerAddress"] for each in ray.nodes() if each["Alive"])

    with two_nodes(networks, tmp_path / "nodes") as naps.executor.address:
        result = tune(naps, Look())
    assert seen == {networks.here, networks.there}
    assert [each.trial.number for each in result.trials] == list(range(12))
    assert all(each.usable for each in result.trials)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_cluster_may_have_addresses_by_ipv6():
    place = NodeSlot.free_place(None, "::1")
    assert re.fullmatch(r"\[::1\]:\d+", place)
    with socket.create_server(("::1", int(place[6:])), family=socket.AF_INET6):
        _reach(place)
    with pytest.raises(ConfigError, match="there is no Ray cluster at"):
        _reach(place)


def test_a_setting_that_lacked_a_node_is_tried_again_by_another_race(make_trial):
    one = Team((0, 0), (Member(None, "here", NodeAddress("id", "127.0.0.1", "lo")),))
    executor = SimpleNamespace(racing=lambda: one)
    setting = {"workers": 1, "nodes": 2}
    result = RaceSession(executor, setting).run(make_trial(**setting))
    assert result.reason == "it needs 2 nodes of the Ray cluster, which has 1 left"
    known = RuntimeMap([PaceProbe({"workers": 1, "nodes": 1}, 64, 0.01)])
    known.faults = [(setting, f"{result.status.value}: {result.reason}"), ({}, "CRASHED: why")]
    known.settled = True
    kept = RuntimeMap.from_json(known.to_json())
    assert kept.faults == [({}, "CRASHED: why")]
    assert not kept.settled


def test_a_team_that_replaces_a_lost_one_is_not_taken_for_another(monkeypatch):
    nodes = [{"Resources": {"CPU": 2.0}}] * 2
    monkeypatch.setattr("tuner.executors.pool.alive_nodes", lambda: nodes)
    monkeypatch.setattr("tuner.executors.pool.shared", lambda config: config)
    opened: list[Team] = []
    config = SimpleNamespace(executor=ExecutorConfig(nodes_per_trial=2))
    made = TeamPool(config, "study", 1, "any", lambda _: None, NodeSlot)
    made._threads = SimpleNamespace(submit=lambda _, _size, rank: opened.append(Team(rank, ())))
    made._look_for_teams()
    assert len(opened) == 2
    made._teams -= 1  # the first is lost
    made._look_for_teams()
    assert len(opened) == 3
    assert opened[2] not in opened[:2]


def test_an_address_without_a_cluster_is_one_line(config):
    ray.shutdown()
    config.executor.address = "127.0.0.1:1"
    with pytest.raises(ConfigError, match=r"there is no Ray cluster at 127\.0\.0\.1:1") as told:
        tune(config)
    assert "\n" not in str(told.value)


def test_nodes_of_another_kind_are_not_used(config, setup):
    with pytest.raises(RuntimeUnavailable, match="is another kind of machine"):
        RayExecutor(config, setup, "another", say=lambda _: None, check=lambda: None)


def test_a_slot_that_cannot_be_sent_to_its_node_is_not_waited_for(config, setup):
    class Unsendable(NodeSlot):
        held = threading.Lock()

    end = time.monotonic() + 60

    def check() -> None:
        assert time.monotonic() < end, "it waits for a slot that will never open"

    with pytest.raises(RuntimeUnavailable, match=r"can run trials: node \w{8}: TypeError: "):
        RayExecutor(config, setup, "any", say=lambda _: None, check=check, slot=Unsendable)


def test_nodes_that_would_measure_wrongly_are_not_used(config, cluster, setup, tmp_path):
    nice = add_machine(cluster, tmp_path / "nice", RAY_worker_niceness="15")
    said: list[str] = []
    executor = open_executor(config, setup, said)
    deadline = time.monotonic() + 30
    while not said and time.monotonic() < deadline:
        time.sleep(0.05)
    executor.close()
    cluster.remove_node(nice)
    assert len(said) == 1
    why = "Ray's workers run at nice 15 here; start Ray with RAY_worker_niceness=0"
    assert re.fullmatch(rf"not used: node \w{{8}}: {why}", said[0])


def test_what_is_for_a_cluster_is_refused_without_one(config):
    config.executor = ExecutorConfig(cores_per_trial=1)
    with pytest.raises(ConfigError, match=r"executor\.cores_per_trial must be left out"):
        validate(config)

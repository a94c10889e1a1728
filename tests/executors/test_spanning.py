"""Trials whose group of workers spans nodes, in two networks of this machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import (
    Networks,
    executor_at,
    fixture_networks,  # noqa: F401 - a fixture
    on_two_nodes,
    ray,
    two_nodes,
)
from tests.conftest import MLFLOW, add_database, chosen_frameworks
from tuner import measure
from tuner.config.catalogue import (
    load_dataset_config,
    load_framework,
    tuner_home,
)
from tuner.config.schema import (
    BudgetConfig,
    ExecutorConfig,
    MeasureConfig,
    SearchConfig,
    TuneConfig,
    VerifyConfig,
)
from tuner.config.validation import validate
from tuner.executors import RayExecutor
from tuner.progress import StudyProgress
from tuner.runtimes import ensure_installed, find_runtime
from tuner.study.preparation import load_space
from tuner.study.study import tune
from tuner.trials.setup import core_sets, fetch, host_facts, make_setup
from tuner.values.errors import ConfigError
from tuner.values.trial import Trial, TrialKind, TrialResult, TrialStatus

pytestmark = [*on_two_nodes, pytest.mark.timeout(240)]

PIECE = 10_000
"""Bytes that each node sends the other in an iteration."""
WORKER = f"""
import os
import signal
import socket
import threading
import time
import worker_api
import worker_group

with worker_api.importing("nothing"):
    pass

SIZE = {PIECE}
lines = []


def meet(trial):
    place = worker_group.places()[0]
    if trial.rank:
        deadline = time.time() + 20
        while not lines:
            try:
                lines.append(socket.create_connection(place))
            except EnvironmentError:
                assert time.time() < deadline
                time.sleep(0.01)
        return
    door = socket.socket()
    door.bind(place)
    door.listen(8)
    door.settimeout(2 if trial.fault == "late" else 20)
    lines.extend(door.accept()[0] for _ in range(trial.workers - 1))


def receive(line):
    got = 0
    while got < SIZE:
        part = line.recv(SIZE - got)
        if not part:
            time.sleep(60)  # as frameworks do that wait for what a dead process owes them
        got += len(part)


def serve(line):
    receive(line)
    line.sendall(b"x" * SIZE)


def prepare(trial):
    if trial.fault == "late" and trial.rank:
        time.sleep(30)
    if trial.fault == "hog" and trial.rank:
        trial.hog = bytearray(b"x" * (400 * 2 ** 20))
    with worker_group.meeting():
        if trial.workers > 1 and not lines:
            meet(trial)
    done = [0]

    def step(count):
        for _ in range(count):
            done[0] += 1
            if trial.fault == "killed" and trial.rank == 1 and done[0] == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            if trial.fault == "hang" and trial.rank == 1 and done[0] == 20:
                time.sleep(30)
            time.sleep(0.02 if trial.fault == "nap" else 0.002)
            for line in lines:
                line.sendall(b"x" * SIZE)
                receive(line)
        if trial.fault == "owing" and done[0] == trial.iterations:
            if trial.rank:
                time.sleep(1)
                lines[0].sendall(b"x" * SIZE)
                receive(lines[0])
            else:
                threading.Thread(target=serve, args=lines).start()
        return 1.0 / done[0]

    def evaluate(split):
        return 0.95 * (1 - 0.9 * 0.99 ** (done[0] * trial.batch_size / 64.0))

    return step, evaluate


worker_api.serve(prepare, report=lambda: {{"workers": len(lines) + 1}})
"""
CONF = """
name: spanning
title: Spanning
worker: worker.py
spans_nodes: true
stall_limit_s: 20
runtime: {kind: system, interpreter: "{python}", check: "print('spanning 1.0')"}
blas: {own: {thread_variables: [OMP_NUM_THREADS]}}
"""
SPACE = """
params:
  batch_size: {type: int, low: 8, high: 256, log: true}
  iterations: {type: int, low: 10, high: 400, log: true}
  learning_rate: {type: float, low: 0.002, high: 0.2, log: true}
  blas: {type: categorical, choices: [own]}
  workers: {type: categorical, choices: [1]}
  threads: {type: categorical, choices: [1]}
  fault: {type: categorical, choices: [""]}
defaults:
  - model: default
    datasets: [digits]
    params:
      batch_size: 64
      iterations: 200
      learning_rate: 0.01
      blas: own
      workers: 1
      threads: 1
      fault: ""
    source: made up
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A framework whose processes send each other pieces, on however many nodes."""
    root = tmp_path_factory.mktemp("tree")
    for place, text in (
        ("frameworks/spanning/worker.py", WORKER),
        ("conf/framework/spanning.yaml", CONF),
        ("search_spaces/spanning.yaml", SPACE),
    ):
        (root / place).parent.mkdir(parents=True)
        (root / place).write_text(text)
    return root


@pytest.fixture(scope="module")
def cluster(networks) -> Iterator[str]:
    """A node in each network; their ``TUNER_HOME`` is this one's, for its runtimes."""
    with two_nodes(networks, tuner_home()) as address:
        yield address


def make_config(framework: str, tree: Path | None, address: str, **executor: object) -> TuneConfig:
    path = str(tree) if tree else None
    return TuneConfig(
        framework=load_framework(framework, path),
        framework_path=path,
        dataset=load_dataset_config("digits"),
        executor=executor_at(address, nodes_per_trial=2, **executor),
        measure=MeasureConfig(max_foreign_pct=1000, max_steal_pct=1000),
        progress="none",
    )


class Bed:
    """An executor on both nodes, and what it said."""

    def __init__(self, config: TuneConfig, folder: Path) -> None:
        validate(config)
        self.said: list[str] = []
        dataset, runtime = fetch(config, StudyProgress())
        cores = core_sets(config.executor)[0]
        self.marker = folder.name
        self.setup = make_setup(
            config, dataset, runtime, folder=folder, marker=self.marker, cores=cores
        )
        fingerprint = measure.fingerprint(host_facts(config), runtime.packages())
        self.default = load_space(config).default("digits", config.model).params
        self.executor = RayExecutor(
            config, self.setup, fingerprint, say=self.said.append, check=lambda: None
        )

    def run(self, number: int, *, warm: bool = False, **params: object) -> TrialResult:
        trial = Trial(number, {**self.default, **params}, time_limit_s=60.0, warm=warm)
        return self.executor.submit(trial).result(120)


def alive(marker: str) -> list[int]:
    """Processes of trials in either network; a dying one gets a moment."""
    deadline = time.monotonic() + 30
    while measure.marked_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    return measure.marked_processes(marker)


@contextlib.contextmanager
def opened(config: TuneConfig, folder: Path) -> Iterator[Bed]:
    """A bed that leaves no process of a trial."""
    made = Bed(config, folder)
    try:
        yield made
    finally:
        made.executor.close()
    assert alive(made.marker) == []


@pytest.fixture
def bed(tree, cluster, tmp_path) -> Iterator[Bed]:
    with opened(make_config("spanning", tree, cluster), tmp_path) as made:
        yield made


@pytest.fixture
def lenet(cluster, tmp_path, name) -> Iterator[Bed]:
    """Caffe's LeNet in a framework that can span nodes."""
    config = make_config(name, None, cluster)
    config.model = "lenet"
    ensure_installed(find_runtime(config.framework))
    with opened(config, tmp_path) as made:
        yield made


def test_a_group_on_two_nodes_is_measured_as_one(bed):
    one, two = bed.run(1, nodes=1, iterations=200), bed.run(2, nodes=2, iterations=200)
    assert one.status is TrialStatus.COMPLETE, (one.reason, one.log_tail)
    assert two.status is TrialStatus.COMPLETE, (two.reason, two.log_tail)
    assert (one.versions["workers"], two.versions["workers"]) == ("1", "2")
    assert one.val_accuracy == two.val_accuracy
    assert one.measurement.processes_seen == 1
    assert two.measurement.processes_seen == 2
    assert two.measurement.peak_memory_bytes > 1.5 * one.measurement.peak_memory_bytes
    # each sends the other a piece an iteration; Ray and headers come to that, and the host may
    # notice the beginning late
    assert 0.5 * 2 * 200 * PIECE < two.measurement.sent_bytes < 2 * 2 * 200 * PIECE
    assert one.measurement.sent_bytes == 0


def test_a_session_keeps_its_group(bed):
    params = {**bed.default, "nodes": 2, "iterations": 50}
    with bed.executor.session(params) as session:
        first = session.run(Trial(1, params, time_limit_s=60.0))
        group = measure.marked_processes(bed.marker)
        second = session.run(Trial(2, params, time_limit_s=60.0))
        assert measure.marked_processes(bed.marker) == group
    assert [first.status, second.status] == [TrialStatus.COMPLETE] * 2, second.reason
    assert group
    assert alive(bed.marker) == []


def test_the_first_node_serves_the_others_to_their_end(bed):
    params = {**bed.default, "nodes": 2, "iterations": 50, "fault": "owing"}
    with bed.executor.session(params) as session:
        for number in (1, 2):
            result = session.run(Trial(number, params, time_limit_s=60.0))
            assert result.status is TrialStatus.COMPLETE, result.reason


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("killed", TrialStatus.OUT_OF_MEMORY, "killed by the kernel"),
        ("late", TrialStatus.CRASHED, "the 2 workers did not meet: timed out"),
        ("hang", TrialStatus.STALLED, "no sign of life for 3 s"),
        ("hog", TrialStatus.OUT_OF_MEMORY, "used more than 300 MiB"),
    ],
)
def test_a_part_that_fails_ends_the_whole_by_name(tree, cluster, tmp_path, fault, status, reason):
    config = make_config("spanning", tree, cluster, memory_limit_mb=300)
    config.framework.stall_limit_s = 3 if fault == "hang" else 20
    with opened(config, tmp_path) as bed:
        result = bed.run(1, nodes=2, fault=fault)
        assert result.status is status, (result.reason, result.log_tail)
        assert reason in result.reason
        assert alive(f"{bed.marker}-") == []
        after = bed.run(2, nodes=2, iterations=50)
        assert after.status is TrialStatus.COMPLETE, (after.reason, after.log_tail)


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        names = chosen_frameworks(metafunc.config)
        metafunc.parametrize("name", [each for each in names if load_framework(each).spans_nodes])


@pytest.mark.runtime
def test_it_learns_on_two_nodes_what_it_learns_on_one(lenet):
    # a batch that cannot be divided evenly shows whether the parts are weighted
    asked = {"batch_size": 63, "iterations": 60, "threads": 1}
    one, two = lenet.run(1, nodes=1, **asked), lenet.run(2, nodes=2, **asked)
    assert one.status is TrialStatus.COMPLETE, (one.reason, one.log_tail)
    assert two.status is TrialStatus.COMPLETE, (two.reason, two.log_tail)
    assert two.versions["workers"] == "2"
    assert two.val_accuracy == pytest.approx(one.val_accuracy, abs=0.005)


@pytest.mark.runtime
def test_a_session_of_it_trains_on_two_nodes_time_and_again(lenet):
    params = {**lenet.default, "nodes": 2, "threads": 1, "iterations": 3}
    with lenet.executor.session(params) as session:
        for number in range(20):
            trial = Trial(number, params, kind=TrialKind.PROBE, time_limit_s=60.0)
            result = session.run(trial)
            assert result.usable, (number, result.reason)


@pytest.mark.parametrize(
    ("executor", "framework", "wanted"),
    [("local", "torch", "1 unless executor=ray"), ("ray", "caffe", "1 with caffe")],
)
def test_only_what_can_span_nodes_may(executor, framework, wanted):
    config = TuneConfig(framework=load_framework(framework))
    config.executor = ExecutorConfig(executor, nodes_per_trial=2)
    with pytest.raises(ConfigError, match=f"executor.nodes_per_trial must be {wanted}"):
        validate(config)


class Cutter(StudyProgress):
    """Cuts the cable while a group trains over it."""

    def __init__(self, networks: Networks) -> None:
        self._cut = threading.Timer(1.0, networks.cut)
        self.messages: list[str] = []
        self.begun = False

    def trial_started(self, trial: Trial) -> None:
        if trial.number >= 2 and trial.params["nodes"] == 2 and not self.begun:
            self.begun = True
            self._cut.start()

    def message(self, text: str) -> None:
        self.messages.append(text)


def test_a_study_outlives_the_cable(tree, networks, tmp_path, home):
    ray.shutdown()  # so that the study connects to nodes of its own
    add_database(tmp_path, MLFLOW)
    with two_nodes(networks, home) as address:
        config = make_config("spanning", tree, address)
        config.search = SearchConfig("joint", warm_start=False)
        config.budget = BudgetConfig(time_s=120, trials=8)
        config.verify = VerifyConfig(finalists=1, repeats=1)
        config.search_space = {
            "fault": {"type": "categorical", "choices": ["nap"]},
            "iterations": {"low": 200},
        }
        config.output = str(tmp_path)
        cutter = Cutter(networks)
        try:
            result = tune(config, cutter)
        finally:
            networks.mend()
        assert cutter.begun
    assert any("which runs again" in each for each in cutter.messages), cutter.messages
    assert [each.trial.number for each in result.trials] == list(range(8))
    for each in result.trials:
        lost = "2 nodes of the Ray cluster, which has 1 left" in each.reason
        assert each.usable or (each.trial.params["nodes"] == 2 and lost), each.reason
    assert any(each.usable for each in result.trials)
    assert alive(result.study_id) == []

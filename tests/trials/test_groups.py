"""Processes that train in a group: who takes part, what they send, and how a loss is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tuner.measure import marked_processes
from tuner.runtimes.sandbox import sandbox_fault
from tuner.trials.session import TrialSetup, WorkerSession, run_trial
from tuner.values.errors import ConfigError
from tuner.values.trial import TrialStatus

# processes are started, which takes longer where neighbours take the CPU
pytestmark = [pytest.mark.slow, pytest.mark.timeout(30)]

PIECE = 10_000
"""Bytes that each process sends the first in an iteration, and gets back."""
WORKER = f"""
import os
import signal
import socket
import time
import worker_api
import worker_group

with worker_api.importing("nothing"):
    worker_group.help_with("server", ROLE="server")
    if os.environ.get("ROLE") == "server":
        time.sleep(60)

SIZE = {PIECE}
lines = []


def meet(trial):
    place = trial.folder + "/port"
    if trial.rank:
        deadline = time.time() + 20
        while not os.path.exists(place) and time.time() < deadline:
            time.sleep(0.01)
        lines.append(socket.create_connection(("127.0.0.1", int(open(place).read()))))
        return
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen(8)
    door.settimeout(1)
    with open(place + ".part", "w") as target:
        target.write(str(door.getsockname()[1]))
    os.rename(place + ".part", place)
    lines.extend(door.accept()[0] for _ in range(trial.workers - 1))


def receive(line):
    got = 0
    while got < SIZE:
        got += len(line.recv(SIZE - got)) or 10 * SIZE


def prepare(trial):
    if trial.fault == "late" and trial.rank:
        time.sleep(30)
    if trial.fault == "slow to see" and not trial.rank:
        time.sleep(1)
    if trial.fault in ("impossible", "slow to see"):
        raise worker_api.Impossible("not so")
    with worker_group.meeting():
        if not lines:
            meet(trial)
    done = [0]

    def step(count):
        for _ in range(count):
            done[0] += 1
            if trial.fault == "killed" and trial.rank == 1 and done[0] == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            if trial.fault == "helpless" and not trial.rank and done[0] == 20:
                os.kill(worker_group._helpers[0].pid, signal.SIGTERM)
            if trial.fault == "hang" and trial.rank == 1 and done[0] == 20:
                time.sleep(30)
            time.sleep(0.002 * len(lines))
            for line in lines:
                line.sendall(b"x" * SIZE)
                receive(line)
        return 1.0 / done[0]

    return step, lambda split: 0.9


worker_api.serve(prepare, report=lambda: {{"workers": len(lines) + 1 if lines else 1}})
"""


@pytest.fixture
def group(setup: TrialSetup, tmp_path: Path) -> TrialSetup:
    worker = tmp_path / "group" / "worker.py"
    worker.parent.mkdir()
    worker.write_text(WORKER)
    return dataclasses.replace(setup, worker=worker)


def test_a_group_trains_and_says_who_took_part(group, make_trial):
    if sandbox_fault():
        pytest.skip("without a sandbox a group has no network of its own")
    result = run_trial(group, make_trial(workers=3, iterations=200))
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert result.versions["workers"] == "3"
    assert result.measurement.processes_seen == 3 + 1, "three workers and their helper"
    # each of two sends the first a piece an iteration and gets one; headers come to that, and
    # the host may notice the beginning late
    pieces = 200 * 2 * 2 * PIECE
    assert 0.5 * pieces <= result.measurement.sent_bytes < 1.2 * pieces
    assert marked_processes(group.marker) == []


def test_a_session_is_of_one_size_and_jobs_are_not_told_of_it(group, make_trial):
    trials = [make_trial(number, workers=number) for number in (1, 2)]
    runtime = group.runtime
    own, of_group = (runtime.worker_environment(each.params) for each in trials)
    assert of_group == {**own, "TUNER_WORKERS": "2"}
    assert runtime.environment(trials[0].params) == runtime.environment(trials[1].params) == own
    with (
        WorkerSession(group, trials[0].params) as session,
        pytest.raises(ConfigError, match="another runtime environment"),
    ):
        session.run(trials[1])


def test_one_process_is_no_group(group, make_trial):
    result = run_trial(group, make_trial(workers=1))
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert result.measurement.processes_seen == 1
    assert result.measurement.sent_bytes == 0


def test_a_group_lives_as_long_as_its_session(group, make_trial):
    trials = [make_trial(number, workers=2) for number in (1, 2)]
    with WorkerSession(group, trials[0].params) as session:
        results = [session.run(each) for each in trials]
        assert [each.status for each in results] == [TrialStatus.COMPLETE] * 2
        assert session.close() is None, "nothing is left running"
    assert marked_processes(group.marker) == []


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("killed", TrialStatus.CRASHED, "worker 2 of 2 died: signal 9"),
        ("helpless", TrialStatus.CRASHED, "the server of 2 workers died: signal 15"),
        ("late", TrialStatus.CRASHED, "the 2 workers did not meet: timed out"),
        ("hang", TrialStatus.STALLED, "no sign of life for 2 s"),
        ("impossible", TrialStatus.IMPOSSIBLE, "not so"),
        ("slow to see", TrialStatus.IMPOSSIBLE, "not so"),
    ],
)
def test_a_group_that_breaks_is_named_and_ended(group, make_trial, fault, status, reason):
    impatient = dataclasses.replace(group.framework, stall_limit_s=2 if fault == "hang" else 20)
    broken = dataclasses.replace(group, framework=impatient)
    result = run_trial(broken, make_trial(1, workers=2, fault=fault))
    assert (result.status, result.reason[: len(reason)]) == (status, reason), result.log_tail
    assert marked_processes(group.marker) == []
    after = run_trial(group, make_trial(2, workers=2))
    assert after.status is TrialStatus.COMPLETE, (after.reason, after.log_tail)


LAUNCHER = """
import os
import subprocess
import sys

if sys.argv[1] == "broken":
    sys.exit(3)
count, program = int(sys.argv[3]), sys.argv[4:]
for rank in range(count):
    told = dict(os.environ, PMI_ID=str(rank), PMI_PORT="port %d" % (7 * rank))
    last = subprocess.Popen(program, env=told)
last.wait()
"""
MEMBER = """
import os
import sys
import worker_api
import worker_mpi

LAUNCHER = os.path.join(os.path.dirname(sys.argv[0]), "launcher.py")
with worker_api.importing("nothing"):
    worker_mpi.start(sys.executable, LAUNCHER, "{how}")


def prepare(trial):
    worker_mpi.join()
    assert os.environ["PMI_PORT"] == "port %d" % (7 * trial.rank)
    return (lambda count: 0.1), (lambda split: 0.9)


worker_api.serve(prepare, report=lambda: {{"place": os.environ["PMI_ID"]}})
"""


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("well", TrialStatus.COMPLETE, ""),
        ("broken", TrialStatus.CRASHED, "the launcher of 2 workers died: exit code 3"),
    ],
)
def test_a_group_takes_the_places_of_an_mpi_job(group, make_trial, how, status, reason):
    (group.worker.parent / "launcher.py").write_text(LAUNCHER)
    group.worker.write_text(MEMBER.format(how=how))
    result = run_trial(group, make_trial(workers=2))
    assert (result.status, result.reason) == (status, reason), result.log_tail
    assert result.versions.get("place") == (None if reason else "0")
    assert marked_processes(group.marker) == []


def test_a_group_of_fewer_processes_than_asked_for_is_invalid(setup, make_trial):
    """The synthetic worker starts no group, whatever it is asked for."""
    result = run_trial(setup, make_trial(workers=2, fault="slow", iterations=4000))
    assert result.status is TrialStatus.INVALID
    assert "2 workers were requested but" in result.reason

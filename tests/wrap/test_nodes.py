"""Programs on a Ray cluster whose nodes share this machine, each with cores of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import (
    CORES,
    add_machine,
    executor_at,
    fixture_cluster,  # noqa: F401 - a fixture
    on_two_nodes,
    wait_for_slots,
)
from tests.command import fixture_tuner  # noqa: F401 - a fixture
from tests.wrap.test_study import KNOB, PROGRAM
from tuner import measure
from tuner.config.schema import ExecutorConfig
from tuner.measure import SCOPE, marked_processes
from tuner.values.errors import ConfigError, RuntimeUnavailable
from tuner.values.trial import Trial, TrialStatus
from tuner.wrap import packing
from tuner.wrap.aim import Aim
from tuner.wrap.nodes import Nodes, Order, ProgramSlot
from tuner.wrap.objective import Objective
from tuner.wrap.program import Brought, Program
from tuner.wrap.request import Request

pytestmark = [*on_two_nodes, pytest.mark.timeout(400)]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "program"
    made.mkdir()
    (made / "train.py").write_text(textwrap.dedent(PROGRAM))
    return made


@pytest.fixture
def options(cluster, folder) -> list[str]:
    address = ("--executor", "ray", "--ray-address", cluster.address)
    cores = ("--cores", ",".join(map(str, CORES)), "--cores-per-trial", "1")
    return ["--progress", "none", "--output", str(folder.parent), *address, *cores]


@pytest.mark.usefixtures("few_pairs")
def test_a_study_on_nodes_proves_what_one_on_this_machine_does(folder, tuner, options):
    command = ("--", sys.executable, "train.py")
    done = tuner("wrap", "--json", *options, "--budget", "30", *KNOB, *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["proven"], found["environment"]) == (True, {"SPEED": "fast"})
    assert found["speedup"][1] > 1.5
    assert "counted by its own reports" in found["measured"]
    assert [each.name for each in folder.iterdir()] == ["train.py"]
    logs = (folder.parent / "home").glob("studies/*/trials/*/log.txt")
    assert len([*logs]) == len(found["runs"]), "the files of a run come along"
    told = tuner("recommend", "program=train.py", "format=env")
    assert "SPEED=fast\n" in told.stdout, told.stderr


TIMED = """
    import argparse, os, random, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    print("cores", len(os.sched_getaffinity(0)))
    for _ in range(options.epochs + 5):
        print("at", time.monotonic())
        time.sleep(0.1)
    print("at", time.monotonic(), "accuracy", 0.9 + random.gauss(0, 1e-4))
"""
ACCURACY = ("--metric", r"accuracy (?P<accuracy>\S+)")


@pytest.mark.usefixtures("few_pairs")
def test_runs_with_other_params_share_the_nodes_and_those_in_turn_do_not(folder, tuner, options):
    (folder / "train.py").write_text(textwrap.dedent(TIMED))
    command = (sys.executable, "train.py", "--epochs={epochs}", "--seed", "{seed}")
    ranges = ("--epochs", "int(1, 20)", "--without", "allocator", "--budget", "60")
    done = tuner("wrap", "--json", *options, *ACCURACY, *ranges, "--", *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["proven"] is True
    searched, in_turn = [], []
    for log in (folder.parent / "home").glob("studies/*/trials/*/log.txt"):
        told = log.read_text()
        assert told.startswith("cores 1\n")
        times = [float(each) for each in re.findall(r"at (\S+)", told)]
        runs = searched if log.parent.name.startswith("search") else in_turn
        runs.append((min(times), max(times)))
    assert len(in_turn) >= 7, "the program as it is, and three pairs"
    assert overlap(searched)
    assert not overlap(in_turn)


def overlap(runs) -> bool:
    runs = sorted(runs)
    return any(end > begin for (_, end), (begin, _) in itertools.pairwise(runs))


def open_nodes(folder, cluster, said, **program) -> Nodes:
    program = Program((sys.executable, "train.py"), folder, **program)
    facts = measure.machine_facts((0,))
    marker = f"nodes-{os.getpid()}"
    request = Request(program, executor=executor_at(cluster.address))
    return Nodes(request, folder.parent, marker, facts, said.append)


def test_a_run_whose_node_is_lost_is_repeated_and_nothing_stays_alive(folder, cluster, tmp_path):
    (folder / "train.py").write_text("import time; time.sleep(5)")
    doomed = add_machine(cluster, tmp_path / "third")
    said: list[str] = []
    opened = open_nodes(folder, cluster, said)
    try:
        opened.open()
        wait_for_slots(opened, 3)
        runs = [opened.submit(Trial(number, {}), Aim(whole=True)) for number in (1, 2, 3)]
        deadline = time.monotonic() + 60
        while len(programs()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.remove_node(doomed, allow_graceful=False)
        results = [each.result(60)[0] for each in runs]
    finally:
        opened.close()
    assert [each.status for each in results] == [TrialStatus.COMPLETE] * 3
    assert len([each for each in said if "was lost while it ran" in each]) == 1, said
    wait_for_end()


def programs() -> set[str]:
    """Return which runs have processes."""
    found = set()
    for pid in marked_processes(f"nodes-{os.getpid()}"):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        except OSError:
            continue
        found |= {each for each in words if each.startswith(f"{measure.MARKER}=")}
    return found


def wait_for_end(marker: str = "") -> None:
    marker = marker or f"nodes-{os.getpid()}"
    deadline = time.monotonic() + 60
    while marked_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert marked_processes(marker) == []


@pytest.mark.usefixtures("few_pairs")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_study_that_was_stopped_leaves_nothing_alive_and_resumes(folder, tuner, options, how):
    home = folder.parent / "home"
    words = [*options, "--budget", "30", *KNOB, "--", sys.executable, "train.py"]
    first = subprocess.Popen(
        [sys.executable, "-m", "tuner", "wrap", *words],
        cwd=folder,
        env={**os.environ, "TUNER_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while len(results(home)) < 2 and time.monotonic() < deadline and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(how)
    _, said = first.communicate(timeout=100)
    if how is signal.SIGINT:
        assert (first.returncode, said.splitlines()) == (
            130, ["interrupted: all measurements are kept; the same command resumes"],
        )  # fmt: skip
    before = {path: path.read_bytes() for path in results(home)}
    assert len(before) >= 2
    (study,) = (home / "studies").glob("*/trials")
    wait_for_end(study.parent.name)
    done = tuner("wrap", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "SPEED=fast" in done.stdout
    assert {path: path.read_bytes() for path in before} == before


def results(home: Path) -> list[Path]:
    return list(home.glob("studies/*/trials/*/result.json"))


# -- a node by itself -----------------------------------------------------------------------------


@pytest.fixture
def apart(home, monkeypatch) -> Iterator[None]:
    """A node whose CPUs nobody else claims."""
    monkeypatch.setenv(SCOPE, str(home))
    claims, claim = [], measure.claim
    monkeypatch.setattr(
        measure, "claim", lambda *words, **more: claims.append(claim(*words, **more)) or claims[-1]
    )
    yield
    for each in claims:
        each.close()


def order(folder, *, state="another", archive=None, executable=sys.executable, **options) -> Order:
    program = Program((executable, "train.py"), folder, **options)
    brought = Brought(Path(executable), {**os.environ, "OF_THE_USER": "brought"})
    return Order(
        ExecutorConfig("ray"),
        Program((executable, "train.py"), folder, brought=brought, **options),
        Objective.TIME,
        state or packing.state_of(program),
        packing.pack(folder) if archive is None else archive,
    )


READS = """
    import os
    from beside import VALUE
    print(os.getcwd(), VALUE, os.environ["OF_THE_USER"])
    open("train.py", "w").write("changed")
"""


@pytest.mark.parametrize("state", ["another", ""])
@pytest.mark.usefixtures("apart")
def test_a_node_runs_a_copy_unless_the_folder_is_the_same_there(folder, state):
    source = textwrap.dedent(READS)
    (folder / "train.py").write_text(source)
    (folder / "beside.py").write_text("VALUE = 'sent'")
    asked = order(folder, state=state)
    if state:
        (folder / "beside.py").write_text("VALUE = 'stale'")
    slot = ProgramSlot(asked, f"nodes-{os.getpid()}")
    (result, _), files = slot.run(Trial(1, {}), Aim(whole=True), (), None)
    assert result.status is TrialStatus.COMPLETE, result.log_tail
    assert files["log.txt"].decode() == f"{folder} sent brought\n"
    assert (folder / "train.py").read_text() == source


@pytest.mark.usefixtures("apart")
def test_a_copy_is_used_where_the_folder_is_missing(folder):
    asked = order(folder)
    (folder / "train.py").unlink()
    folder.rmdir()
    slot = ProgramSlot(asked, f"nodes-{os.getpid()}")
    timer = threading.Timer(2, slot.cancel)
    timer.start()
    (result, _), _ = slot.run(Trial(1, {}), Aim(whole=True), (), None)
    timer.join()
    assert (result.status, result.reason) == (TrialStatus.INTERRUPTED, "the tuner was stopped")
    assert result.iterations > 0, "it had trained"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executable": "/no/such/python"}, "/no/such/python is not there"),
        ({"archive": b""}, r"is not the same .* too large to be sent \(more than 64 MiB"),
        ({"confined": False}, "has not the same program; a copy is used in a sandbox only"),
    ],
)
@pytest.mark.usefixtures("apart")
def test_a_node_that_cannot_run_the_program_says_why(folder, options, said):
    with pytest.raises((ConfigError, RuntimeUnavailable), match=said) as told:
        ProgramSlot(order(folder, **options), f"nodes-{os.getpid()}")
    assert "\n" not in str(told.value)


def test_a_cluster_without_a_fitting_node_is_one_line(folder, cluster):
    opened = open_nodes(folder, cluster, [])
    opened._facts = {}
    try:
        with pytest.raises(RuntimeUnavailable, match="is another kind of machine") as told:
            opened.submit(Trial(1, {}), Aim(whole=True))
    finally:
        opened.close()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--executor", "ray", "--ray-address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
        (["--executor", "rays"], "invalid choice: 'rays'"),
        (["--ray-address", "127.0.0.1:1"], "--ray-address must be left out unless --executor ray"),
        (["--cores-per-trial", "1"], "--cores-per-trial must be left out unless --executor ray"),
        (["--executor", "ray", "--cores-per-trial", "-1"], "must be 0 or more, got -1"),
        (["--executor", "ray", "--cores-per-trial", "9999"], "--cores-per-trial=9999: there are"),
    ],
)
def test_wrong_words_get_one_line(folder, tuner, words, said):
    done = tuner(
        "wrap", "--progress", "none", *words, "--", sys.executable, "train.py", cwd=folder
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr

"""First workers of several nodes that meet, here all of them on the loopback interface."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import free_port
from tests.worker_api.test_worker_api import environment, python  # noqa: F401 - a fixture
from tuner.trials.session import WORKER_API

# processes are started, which takes longer where neighbours take the CPU
pytestmark = [pytest.mark.slow, pytest.mark.timeout(40)]

SCRIPT = """
import sys
import worker_api
import worker_group

if "briefly" in sys.argv:
    worker_group.MEET_S = 1


def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()


try:
    worker_group.start()
    say("places " + " ".join("%s:%d" % place for place in worker_group.places()))
    worker_group.watch(say)
    if worker_group.FIRST:
        for count in worker_group.steps(lambda: None):
            say("step %d" % count)
        say("end")
    else:
        worker_group.say("step", 7)
        worker_group.say("end")
    sys.stdin.readline()
    worker_group.end()
except worker_group.Broken as error:
    say(str(error))
"""

ENDING = """
import os
import sys
import time
import worker_api
import worker_group

TRAINED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trained")


def train(count):
    if worker_group.RANK == int(os.environ["LATE"]):
        time.sleep(float(os.environ["LATE_S"]))
    os.mkdir(os.path.join(TRAINED, str(worker_group.RANK)))


def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()


worker_group.start()
if worker_group.RANK != worker_group.FIRST:
    worker_group.follow(lambda folder: train)
    sys.exit()
worker_group.watch(say)
worker_group.say("trial", "one")
together = worker_group.led(train)
for count in worker_group.steps(lambda: None) if worker_group.FIRST else [7]:
    together(count)
worker_group.say("end")
try:
    worker_group.finish(lambda: None)
    say(" ".join(sorted(os.listdir(TRAINED))))
except worker_group.Broken as error:
    say(str(error))
sys.stdin.readline()
worker_group.end()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(python: str, tmp_path: Path) -> Iterator[Start]:  # noqa: F811 - the fixture
    """Starts the first worker of a node, of two with so many workers each."""
    scripts = {SCRIPT: tmp_path / "first.py", ENDING: tmp_path / "ending.py"}
    for text, script in scripts.items():
        script.write_text(text)
    (tmp_path / "trained").mkdir()
    control = f"127.0.0.1:{free_port('127.0.0.1')}"

    with contextlib.ExitStack() as stack:

        def begin(
            first: int,
            each: int = 1,
            token: str = "right",
            *words: str,
            text: str = SCRIPT,
            **variables: str,
        ) -> subprocess.Popen[str]:
            own = {
                "TUNER_WORKERS": str(2 * each),
                "TUNER_WORKERS_HERE": str(each),
                "TUNER_NODES": "2",
                "TUNER_FIRST": str(first),
                "TUNER_CONTROL": control,
                "TUNER_TOKEN": token,
            }
            process = subprocess.Popen(
                [python, "-B", str(scripts[text]), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment() | own | variables,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        begin.control = control
        yield begin


def heard(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def test_all_know_all_places_and_hear_the_first(start):
    first, second = start(0), start(1)
    places = heard(first)
    assert len({*places.split()}) == 3, "the word, and a place for each"
    assert heard(second) == places
    assert [heard(second), heard(second)] == ["step 7", "end"]
    for each in (first, second):
        each.stdin.close()
        assert each.wait() == 0
        assert each.stdout.read() == "", "an end that was asked for is no fault"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nodes_meet_by_either_protocol(address):
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    spec = importlib.util.spec_from_file_location("worker_link", WORKER_API / "worker_link.py")
    link = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(link)
    control, own, other = link.free_places(address, 3)
    with ThreadPoolExecutor(1) as pool:
        given = "token", 2, [own], lambda rank, place: f"{rank} at {place}", 20
        meeting = pool.submit(link.gather, control, *given)
        (to_first,), heard = link.join(control, "token", 1, [other], lambda *_: "first", 20)
        (to_second,), places = meeting.result()
    assert heard == places == [own, other]
    assert to_second.name == f"1 at {other}"
    to_first.close()
    to_second.close()


def test_a_worker_that_dies_is_named(start):
    first, second = start(0), start(1)
    assert heard(first) == heard(second)
    os.kill(second.pid, signal.SIGKILL)
    assert heard(first) == "worker 2 of 2 on 127.0.0.1 died"


def test_those_who_know_no_token_are_left_alone(start):
    first = start(0)
    host, _, port = start.control.rpartition(":")
    stranger, deadline = None, time.monotonic() + 20
    while stranger is None and time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            stranger = socket.create_connection((host, int(port)))
    with stranger:
        stranger.sendall(b"wrong 1 127.0.0.1:1\n")
        second = start(1)
        assert heard(first) == heard(second)
        assert stranger.recv(1) == b"", "it is told nothing"


@pytest.mark.parametrize(
    ("rank", "why"), [(0, "1 of 2 nodes came within 1 s"), (1, "Connection refused")]
)
def test_nodes_that_do_not_meet_say_so(start, rank, why):
    alone = start(rank, 1, "right", "briefly")
    said = heard(alone)
    assert said.startswith("the 2 workers did not meet: ")
    assert why in said


@pytest.mark.parametrize("late", ["1", "2", "3"])
def test_no_node_is_done_before_all_workers_are(start, late):
    given = {"each": 2, "text": ENDING, "LATE": late, "LATE_S": "0.5"}
    nodes = [start(0, **given), start(2, **given)]
    for each in nodes:
        assert heard(each) == "0 1 2 3", "who has trained the last step"
    for each in nodes:
        each.stdin.close()
        assert each.wait() == 0


def test_one_that_dies_while_it_is_waited_for_is_named(start, tmp_path):
    given = {"text": ENDING, "LATE": "1", "LATE_S": "60"}
    first, second = start(0, **given), start(1, **given)
    deadline = time.monotonic() + 20
    while not (tmp_path / "trained/0").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(second.pid, signal.SIGKILL)
    assert heard(first) == "worker 2 of 2 on 127.0.0.1 died"

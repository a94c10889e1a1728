"""Two networks on one machine, joined by a cable of any bandwidth, and a node of Ray in each.

Only root may make them (ip-netns(8)); the other network is one name space, this one is where the
caller runs. The cable is a veth pair with a token bucket filter at each end (tc-tbf(8)). Processes
of both see the same CPUs, memory and files.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import ray

from tuner import measure
from tuner.config.schema import ExecutorConfig, TuneConfig
from tuner.executors import RayExecutor
from tuner.executors.connection import alive_nodes, connect
from tuner.progress import StudyProgress
from tuner.study.preparation import standalone_setup
from tuner.trials.setup import host_facts
from tuner.values.space import SearchSpace

_READY_S = 60.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_QUICKLY = {  # Ray takes a node that does not answer for lost after seconds, and not a minute
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class NoNetworks(Exception):
    """Networks cannot be made here; the message says why."""


@dataclass(frozen=True)
class Networks:
    """The two networks.

    Attributes:
        name: Name of the other one, and of this one's end of the cable.
        here, there: Addresses of the two ends.
    """

    name: str
    here: str
    there: str

    def shape(self, rate: str) -> None:
        """Let so much through, in each direction: ``100mbit``, for example."""
        filtered = ("tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
        _run("tc", "qdisc", "replace", "dev", self.name, "root", *filtered)
        _run("tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", "root", *filtered)

    def cut(self) -> None:
        """Cut the cable."""
        _run("ip", "link", "set", self.name, "down")

    def mend(self) -> None:
        """Join the ends again."""
        _run("ip", "link", "set", self.name, "up")

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs a command in the other network."""
        return ["ip", "netns", "exec", self.name, *command]

    def megabits_s(self, seconds: float = 2.0) -> float:
        """Measure how much goes through the cable, Mbit/s, by one TCP connection from here."""
        sink = "import socket as s, sys; d = s.create_server((sys.argv[1], 0)); "
        sink += "print(d.getsockname()[1], flush=True); c = d.accept()[0]\n"
        sink += "while c.recv(1 << 20): pass"
        command = self.inside(sys.executable, "-c", sink, self.there)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": _PATH}
        ) as other:
            assert other.stdout is not None
            port = int(other.stdout.readline())
            with socket.create_connection((self.there, port)) as line:
                began_s, before = time.monotonic(), self._sent()
                while time.monotonic() - began_s < seconds:
                    line.sendall(bytes(1 << 16))
                sent, took_s = self._sent() - before, time.monotonic() - began_s
        return 8e-6 * sent / took_s

    def _sent(self) -> int:
        return int(Path(f"/sys/class/net/{self.name}/statistics/tx_bytes").read_text())


@contextlib.contextmanager
def two_networks() -> Iterator[Networks]:
    """Make the networks; what is left in the other one is killed at the end.

    Raises:
        NoNetworks: If they cannot be made here.
    """
    own = os.getpid()
    third = f"10.{200 + own // 250 % 50}.{own % 250}"  # others may do the same here
    made = Networks(f"tuner-{own % 10**6}", f"{third}.1", f"{third}.2")
    try:
        _run("ip", "netns", "add", made.name)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise NoNetworks(f"network name spaces cannot be made here: {said.strip()}") from error
    try:
        ends = ("type", "veth", "peer", "name", "eth0", "netns", made.name)
        _run("ip", "link", "add", made.name, *ends)
        _run("ip", "address", "add", f"{made.here}/24", "dev", made.name)
        _run("ip", "link", "set", made.name, "up")
        _run("ip", "-n", made.name, "address", "add", f"{made.there}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", made.name, "link", "set", device, "up")
        yield made
    finally:
        for pid in _run("ip", "netns", "pids", made.name).split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "delete", made.name)


@contextlib.contextmanager
def two_nodes(
    networks: Networks, home: Path, cpus: int = 1, *, lost_soon: bool = True
) -> Iterator[str]:
    """Start a head of Ray here and a node in the other network, and connect to them.

    Yields the cluster's address.

    Args:
        networks: The networks.
        home: ``TUNER_HOME`` of the nodes.
        cpus: CPUs of each node.
        lost_soon: Whether Ray takes a node for lost after seconds without an answer. One that is
            only busy for so long never comes back, so that what measures for long wants this off.
    """
    port = _free_port(networks.here)
    address = f"{networks.here}:{port}"
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--num-cpus={cpus}"]
    head = [*start, "--head", f"--node-ip-address={networks.here}", f"--port={port}"]
    away = [*start, f"--node-ip-address={networks.there}", f"--address={address}"]
    own = {
        **(_QUICKLY if lost_soon else {}),
        "PATH": _PATH,
        "TUNER_HOME": str(home),
        "RAY_worker_niceness": "0",
        "RAY_AUTH_MODE": "disabled",  # else it depends on a token in the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with contextlib.ExitStack() as nodes:
        nodes.enter_context(mock.patch.dict(os.environ, RAY_AUTH_MODE="disabled"))
        for command in ([*head, "--include-dashboard=false"], networks.inside(*away)):
            node = subprocess.Popen(
                command,
                env={**os.environ, **own},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            nodes.callback(_end, node)
            _wait_for(networks.here, port)
        connect(ExecutorConfig("ray", address=address))
        nodes.callback(ray.shutdown)
        _wait_until(lambda: len(alive_nodes()) == 2, "both nodes")
        yield address


@contextlib.contextmanager
def both_nodes(config: TuneConfig) -> Iterator[tuple[SearchSpace, RayExecutor]]:
    """Make an executor for trials that belong to no study, on the nodes of ``two_nodes``.

    Yields the search space too.

    Raises:
        TunerError: If framework or data set cannot be had, or a node cannot run trials.
    """
    with standalone_setup(config, StudyProgress()) as (space, setup):
        executor = RayExecutor(
            config,
            setup,
            measure.fingerprint(host_facts(config), setup.runtime.packages()),
            say=lambda text: print(text, file=sys.stderr),
            check=lambda: None,
        )
        try:
            yield space, executor
        finally:
            executor.close()


def _end(node: subprocess.Popen[bytes]) -> None:
    """End a node; one that is cut off may wait for the others."""
    node.terminate()
    kill = threading.Timer(10, node.kill)
    kill.start()
    node.wait()
    kill.cancel()


def _run(*command: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": _PATH}
    )
    return done.stdout


def _free_port(host: str) -> int:
    """Return a port that the kernel gives to nobody who asks for any."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise OSError(f"no port is free on {host}")


def _wait_for(host: str, port: int) -> None:
    def listens() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), 1).close()
            return True
        return False

    _wait_until(listens, f"somebody who listens at {host}:{port}")


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_READY_S:.0f} s for {what}")
        time.sleep(0.1)

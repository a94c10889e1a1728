"""Ray clusters for tests, whose nodes share this machine, each with cores of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.config.schema import ExecutorConfig
from tuner.executors import RayExecutor
from tuner.measure import SCOPE
from tuner.wrap.nodes import Nodes

pytest.importorskip("ray", reason="pip install 'tuner[ray]'")

import ray
from ray.cluster_utils import Cluster
from two_networks import Networks, NoNetworks, two_networks, two_nodes

__all__ = [
    "CORES",
    "Networks",
    "add_machine",
    "executor_at",
    "fixture_cluster",
    "fixture_networks",
    "on_two_nodes",
    "ray",
    "two_nodes",
    "wait_for_slots",
]
CORES = sorted(os.sched_getaffinity(0))[:2]
_TRIES = 3
on_two_nodes = [
    pytest.mark.slow,
    # one after the other: Ray gives a node 30 s to start, which several at once may need
    pytest.mark.xdist_group("two-nodes"),
    pytest.mark.skipif(len(CORES) < 2, reason="two nodes want two CPUs"),
    # Ray leaves sockets and pipes to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
"""Marks of the tests that need two nodes."""
OWN = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module", name="cluster")
def fixture_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of one CPU each, which share a cache folder as processes of one machine do."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**OWN, "TUNER_HOME": str(tmp_path_factory.mktemp("nodes"))}.items():
            patch.setenv(name, value)
        made = _started()
    yield made
    ray.shutdown()
    made.shutdown()


def _started() -> Cluster:
    """Start two nodes; again if one takes longer than Ray waits, as on a busy machine."""
    for left in reversed(range(_TRIES)):
        made = Cluster()
        try:
            made.add_node(num_cpus=1)
            made.add_node(num_cpus=1)
        except Exception as error:
            made.shutdown()
            if "timed out" not in str(error).lower() or not left:
                raise
        else:
            break
    return made


@pytest.fixture(scope="module", name="networks")
def fixture_networks() -> Iterator[Networks]:
    """Two networks that are joined by a cable; only root may make them."""
    try:
        with two_networks() as made:
            yield made
    except NoNetworks as error:
        pytest.skip(str(error))


def add_machine(cluster: Cluster, home: Path, **variables: str) -> Any:
    """Add a node of one CPU as on another machine, whose CPUs nobody else claims."""
    own = {**OWN, "TUNER_HOME": str(home), SCOPE: home.name, **variables}
    return cluster.add_node(num_cpus=1, env_vars=own)


def executor_at(address: str, **more: Any) -> ExecutorConfig:
    """Trials on the nodes at an address, on a CPU each."""
    cores = ",".join(map(str, CORES))
    return ExecutorConfig("ray", address=address, cores=cores, cores_per_trial=1, **more)


def wait_for_slots(executor: RayExecutor | Nodes, count: int) -> None:
    """Wait until so many nodes have joined."""
    deadline = time.monotonic() + 60
    while executor.slots < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert executor.slots == count

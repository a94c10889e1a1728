"""Trials on a Ray cluster (https://docs.ray.io): Ray finds the machines and carries the results.

Each slot is an actor that owns a core set of a node and runs a framework's worker as a child
process (Ray's own processes cannot host another Python). Slots on machines that differ from this
one are not used: times are comparable only between machines of the same kind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from tuner import measure
from tuner.config.schema import ExecutorConfig
from tuner.executors.node import Answer, CoreSlot, NodeSlot
from tuner.values.errors import ConfigError, RuntimeUnavailable
from tuner.values.trial import Trial, TrialResult, TrialStatus

_MAX_SLOTS = 512
_LOOK_S = 10.0  # between two checks for new nodes
_TICK_S = 0.25
_REACH_S = 5.0
_LOSSES = 3  # a trial that was lost this often is taken to kill its nodes


@dataclass(order=True)
class _Slot:
    """A slot on a node; the lowest is taken first, so that successive runs share a machine."""

    rank: tuple[int, int]
    node: str
    actor: Any
    name: str


class Asked(Protocol):
    """What a slot is told of a study; the rest of it depends on the kind of slot."""

    @property
    def executor(self) -> ExecutorConfig:
        """The cluster, and the CPUs of its nodes."""


class Place(Protocol):
    """What this machine knows of the trials of a study, whoever runs them."""

    @property
    def folder(self) -> Path:
        """Folder for the trials' files."""

    @property
    def marker(self) -> str:
        """Marks the study's processes."""

    @property
    def cores(self) -> tuple[int, ...]:
        """CPUs of a trial, as they are numbered here."""


class RayExecutor:
    """Runs trials on the nodes of a Ray cluster that are like this machine.

    Nodes that join later are used too. A trial whose node is lost runs again elsewhere. Progress
    within a trial is not reported.

    Args:
        config: The study's configuration; ``config.executor`` selects the cluster.
        setup: Setup of trials on this machine.
        fingerprint: Fingerprint of this machine and the runtime's packages.
        say: Told which nodes are not used, and which are lost.
        check: Called while nodes prepare; an exception it raises ends that.
        slot: The class whose objects run trials on the nodes.

    Raises:
        ConfigError: If there is no cluster at the address.
        RuntimeUnavailable: If no node can run trials.
    """

    def __init__(
        self,
        config: Asked,
        setup: Place,
        fingerprint: str,
        say: Callable[[str], None],
        check: Callable[[], None],
        slot: type[CoreSlot] = NodeSlot,
    ) -> None:
        self._slot = slot
        self._setup, self._fingerprint, self._say = setup, fingerprint, say
        self._own = _connect(config.executor)
        self._told = _shared(config)
        self._pool = ThreadPoolExecutor(_MAX_SLOTS, thread_name_prefix="ray")
        self._changed = threading.Condition()
        self._free: list[_Slot] = []
        self._busy: list[_Slot] = []
        self._actors: list[Any] = []
        self._opening = 0
        self._seen: dict[str, int] = {}  # nodes in the order of arrival
        self._looked = -_LOOK_S
        self._cancelled = False
        self._refused: list[str] = []
        try:
            self._look_for_nodes()
            self._wait_for_first(check)
        except BaseException:
            self.close()
            raise

    def _wait_for_first(self, check: Callable[[], None]) -> None:
        """Wait for at least one slot; the others join when they are ready."""
        with self._changed:
            while not self.slots and self._opening:
                check()
                self._changed.wait(_TICK_S)
        if not self.slots:
            why = "; ".join(self._refused) or "there is none with enough CPUs"
            raise RuntimeUnavailable(f"no node of the Ray cluster can run trials: {why}")

    @property
    def slots(self) -> int:
        """Number of trials that may run at once now."""
        return len(self._free) + len(self._busy)

    def submit(self, trial: Trial, *further: object) -> Future[Any]:
        """Start ``trial`` as soon as a slot is free.

        Args:
            trial: The trial.
            *further: What else the slot's class is told of it.

        Returns:
            The trial's result, as the slot's class returns it.
        """
        return self._pool.submit(self._run, trial, *further)

    def _run(self, trial: Trial, *further: object) -> Any:
        import ray
        from ray.exceptions import RayError, RayTaskError

        for _ in range(_LOSSES):
            slot = self._take()
            if slot is None:
                break
            try:
                result, files = cast("Answer", ray.get(slot.actor.run.remote(trial, *further)))
            except RayTaskError as error:
                if not isinstance(error.cause, OSError):
                    raise RuntimeUnavailable(f"{slot.name}: {_reason(error)}") from error
                self._lose(slot)
                self._say(f"{slot.name} cannot run {trial.name}, which runs again: {error.cause}")
                continue
            except RayError:  # slot, node or network
                self._lose(slot)
                if self._cancelled:
                    break
                self._say(f"{slot.name} was lost while it ran {trial.name}, which runs again")
                continue
            self._give_back(slot)
            self._keep(trial, files)
            return result
        else:
            return TrialResult(trial, TrialStatus.CRASHED, f"{_LOSSES} slots were lost under it")
        return TrialResult(trial, TrialStatus.INTERRUPTED, "the tuner was stopped")

    def _keep(self, trial: Trial, files: Mapping[str, bytes]) -> None:
        folder = self._setup.folder / trial.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)

    # -- slots ----------------------------------------------------------------------------------

    def _take(self) -> _Slot | None:
        """Take the lowest free slot; return ``None`` once cancelled."""
        while not self._cancelled:
            self._look_for_nodes()
            with self._changed:
                if not self._free:
                    self._changed.wait(_TICK_S)
                if self._free:
                    slot = min(self._free)
                    self._free.remove(slot)
                    self._busy.append(slot)
                    return slot
                if not self._busy and not self._opening:
                    raise RuntimeUnavailable("every node of the Ray cluster was lost")
        return None

    def _give_back(self, slot: _Slot) -> None:
        with self._changed:
            self._busy.remove(slot)
            self._free.append(slot)
            self._changed.notify_all()

    def _lose(self, slot: _Slot) -> None:
        """Give up a slot; open a new one if its node is still alive."""
        import ray

        ray.kill(slot.actor)  # it may only have been unreachable
        with self._changed:
            self._busy.remove(slot)
            alive = {each["NodeID"] for each in _nodes()}
            if slot.node in alive and not self._cancelled:
                self._opening += 1
                self._pool.submit(self._open, slot.node, slot.rank)
            else:
                self._seen.pop(slot.node, None)
            self._changed.notify_all()

    def _look_for_nodes(self) -> None:
        """Open slots on new nodes."""
        with self._changed:
            if self._cancelled or time.monotonic() - self._looked < _LOOK_S:
                return
            self._looked = time.monotonic()
            for node in _nodes():
                if node["NodeID"] in self._seen:
                    continue
                rank = self._seen[node["NodeID"]] = max(self._seen.values(), default=-1) + 1
                room = int(node["Resources"].get("CPU", 0)) // len(self._setup.cores)
                self._opening += room
                for index in range(room):
                    self._pool.submit(self._open, node["NodeID"], (rank, index))

    def _open(self, node: str, rank: tuple[int, int]) -> None:
        """Open a slot on a node, which takes as long as the installation there."""
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        refusal, slot = "", None
        remote: Any = ray.remote(self._slot)
        try:
            actor = remote.options(
                num_cpus=len(self._setup.cores),
                max_concurrency=2,  # one runs a trial, one can cancel it
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(self._told, self._setup.marker)
            self._actors.append(actor)
            fingerprint, name = ray.get(actor.facts.remote())
            if fingerprint == self._fingerprint:
                slot = _Slot(rank, node, actor, name)
            else:
                refusal = f"{name} is another kind of machine ({fingerprint})"
                ray.kill(actor)
        except RayError as error:
            refusal = f"node {node[:8]}: {_reason(error)}"
        with self._changed:
            self._opening -= 1
            if slot:
                self._free.append(slot)
            else:
                self._refused.append(refusal)
            self._changed.notify_all()
        if refusal and not self._cancelled:
            self._say(f"not used: {refusal}")

    # -- the end --------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End every running trial; their results are ``INTERRUPTED``."""
        self._cancelled = True
        with self._changed:
            for slot in self._busy:
                slot.actor.cancel.remote()

    def close(self) -> None:
        """Cancel the trials and leave the cluster; one that was started here ends."""
        import ray

        self.cancel()
        for actor in self._actors:
            ray.kill(actor)
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._own:
            ray.shutdown()


def _connect(config: ExecutorConfig) -> bool:
    """Connect to the cluster; return whether to disconnect at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's workers run at nice 15 by default, and their child processes inherit that
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    if ray.is_initialized():
        return False
    address = config.address or os.environ.get("RAY_ADDRESS", "")
    given: dict[str, Any] = {"address": address}
    if not address:
        cpus = len(measure.parse_cores(config.cores))
        given = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    _reach(address)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            **given,
            configure_logging=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            namespace="tuner",
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's handler would exit at once
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from error
    return True


def _reach(address: str) -> None:
    """Reject at once an address where nothing listens: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):  # auto, or none
        return
    try:
        socket.create_connection((host.rpartition("/")[2], int(port)), _REACH_S).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ConfigError:
    why = _reason(error)
    return ConfigError(f"there is no Ray cluster at {address}: {why}")


def _shared(config: Asked) -> Any:
    """Return a reference to what all slots are told, which each node fetches once."""
    import ray

    return ray.put(config)


def _nodes() -> list[dict[str, Any]]:
    """Return the nodes that are alive."""
    import ray

    nodes: Any = ray.nodes
    with contextlib.suppress(ConnectionError):
        return [each for each in nodes() if each["Alive"]]
    return []


def _reason(error: Exception) -> str:
    """Return an error's message, without the traceback that Ray adds to a node's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return re.sub(r"^tuner\.[\w.]+: ", "", last)

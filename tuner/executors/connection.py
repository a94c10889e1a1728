"""The connection to a Ray cluster, and the nodes that are alive there."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
from typing import Any, Protocol

from tuner import measure
from tuner.config.schema import ExecutorConfig
from tuner.values.errors import ConfigError

REACH_S = 5.0
"""Longest wait for a connection."""


class Asked(Protocol):
    """What a slot is told of a study; the rest of it depends on the kind of slot."""

    @property
    def executor(self) -> ExecutorConfig:
        """The cluster, and the CPUs of its nodes."""


def connect(config: ExecutorConfig) -> bool:
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
        name = host.rpartition("/")[2].strip("[]")  # of an address by IPv6
        socket.create_connection((name, int(port)), REACH_S).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ConfigError:
    return ConfigError(f"there is no Ray cluster at {address}: {reason_of(error)}")


def alive_nodes() -> list[dict[str, Any]]:
    """Return the nodes that are alive."""
    import ray

    listed: Any = ray.nodes
    with contextlib.suppress(ConnectionError):
        return [each for each in listed() if each["Alive"]]
    return []


def reason_of(error: Exception) -> str:
    """Return an error's message, without the traceback that Ray adds to a node's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return re.sub(r"^tuner\.[\w.]+: ", "", last)


def shared(config: Asked) -> Any:
    """Return a reference to what all slots are told, which each node fetches once."""
    import ray

    return ray.put(config)

"""Serves the application until it is told to stop."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import socket
from collections.abc import Sequence

import uvicorn

from tuner.config.catalogue import tuner_home
from tuner.service.app import make_app
from tuner.service.jobs import Jobs
from tuner.service.orders import own_words
from tuner.values.errors import ConfigError

TOKEN = "TUNER_SERVICE_TOKEN"  # noqa: S105 - the name of a variable
_LEAST_TOKEN = 16
_MOST_PORT = 65535


def serve(
    uri: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    *,
    output: str = ".",
    framework_path: str | None = None,
    behind_proxy: bool = False,
    words: Sequence[str] = (),
) -> None:
    """Serve what is on record at ``uri``, and run the studies that are asked for, until Ctrl-C.

    Args:
        uri: MLflow's tracking address.
        host: Address to listen on. Any but this machine's own loopback needs a token in the
            environment, ``TUNER_SERVICE_TOKEN``.
        port: TCP port; 0 for any that is free, which is printed.
        output: Folder that studies leave their report in.
        framework_path: Folder with frameworks of the user's own.
        behind_proxy: Whether others reach it through a proxy: then a token is needed on loopback
            too, as all that the proxy passes on comes from there.
        words: Further overrides of every study that is asked for.

    Raises:
        ConfigError: If the address cannot be listened on, or needs a token.
        TunerError: If studies cannot be run with ``words``.
    """
    if not 0 <= port <= _MOST_PORT:  # the system would take it modulo 65536
        raise ConfigError(f"port must be at least 0 and at most {_MOST_PORT}, got {port}")
    whole = own_words(uri, output, framework_path, words)
    token = os.environ.get(TOKEN, "")
    local = _is_loopback(host) and not behind_proxy
    if not local and len(token) < _LEAST_TOKEN:
        where = "behind_proxy=true" if behind_proxy else f"host={host}"
        raise ConfigError(
            f"{where} can be reached from other machines, so {TOKEN} must hold a token of "
            f"{_LEAST_TOKEN} characters or more, got {len(token)}; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listener.getsockname()[1]}", flush=True)
    store = hashlib.sha256(uri.encode()).hexdigest()[:12]
    jobs = Jobs(tuner_home() / "jobs" / store)
    app = make_app(
        uri, jobs, words=whole, framework_path=framework_path,
        token=token, local=local and not token,
    )  # fmt: skip
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    with contextlib.suppress(KeyboardInterrupt):  # it has shut down in good order by then
        uvicorn.Server(config).run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean any address


def _listen(host: str, port: int) -> socket.socket:
    """A socket that lets those who ask before all is read wait."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"host={host} port={port} cannot be listened on: {why}") from error

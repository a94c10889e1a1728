"""The HTTP server of the application."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Sequence
from typing import get_args

import uvicorn

from tuner.config.catalogue import tuner_home
from tuner.service.access import is_loopback
from tuner.service.app import make_app
from tuner.service.jobs import Jobs
from tuner.service.orders import own_words
from tuner.service.responses import Mode
from tuner.values.errors import ConfigError

TOKEN = "TUNER_SERVICE_TOKEN"  # noqa: S105 - the name of a variable
_MIN_TOKEN = 16
_MAX_PORT = 65535


def serve(
    uri: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    *,
    output: str = ".",
    framework_path: str | None = None,
    behind_proxy: bool = False,
    mode: str = "apply",
    words: Sequence[str] = (),
) -> None:
    """Serve what is on record at ``uri``, and run requested studies, until Ctrl-C.

    Args:
        uri: MLflow's tracking address.
        host: Address to listen on. Any address except loopback needs a token in the environment,
            ``TUNER_SERVICE_TOKEN``.
        port: TCP port; 0 chooses a free one. The address is printed.
        output: Folder where studies write their reports.
        framework_path: Folder with the user's own frameworks.
        behind_proxy: Whether clients come through a proxy. A token is then needed on loopback
            too, as the proxy's requests come from there.
        mode: ``apply``, or ``observe`` to change no job and only show what would be saved.
        words: Further overrides of every requested study.

    Raises:
        ConfigError: If it cannot listen on the address, or the address needs a token.
        TunerError: If studies cannot be run with ``words``.
    """
    if not 0 <= port <= _MAX_PORT:  # the system would take it modulo 65536
        raise ConfigError(f"port must be at least 0 and at most {_MAX_PORT}, got {port}")
    if mode not in get_args(Mode):
        raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    whole = own_words(uri, output, framework_path, words)
    token = os.environ.get(TOKEN, "")
    local = is_loopback(host) and not behind_proxy
    if not local and len(token) < _MIN_TOKEN:
        where = "behind_proxy=true" if behind_proxy else f"host={host}"
        raise ConfigError(
            f"{where} can be reached from other machines, so {TOKEN} must hold a token of "
            f"{_MIN_TOKEN} characters or more, got {len(token)}; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )
    if not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ConfigError(
            f"{TOKEN} holds what no client can send in a header: it must be of ASCII letters, "
            "without a line end or a space at its ends"
        )
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listener.getsockname()[1]}", flush=True)
    store = hashlib.sha256(uri.encode()).hexdigest()[:12]
    jobs = Jobs(tuner_home() / "jobs" / store)
    app = make_app(
        uri, jobs, words=whole, framework_path=framework_path,
        token=token, local=local and len(token) < _MIN_TOKEN, observe=mode == "observe",
    )  # fmt: skip
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    with contextlib.suppress(KeyboardInterrupt):  # the server has shut down cleanly by then
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket; early clients wait on it until the records are read."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"cannot listen on host={host} port={port}: {why}") from error

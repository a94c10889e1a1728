"""A PostgreSQL server of its own for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import free_port


def program(name: str) -> str | None:
    """One of PostgreSQL's, which Debian keeps off PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(debian[-1]) if debian else shutil.which(name)


without_postgresql = pytest.mark.skipif(
    program("initdb") is None, reason="no PostgreSQL server (apt-get install postgresql)"
)


@pytest.fixture(scope="module", name="server")
def fixture_server() -> Iterator[int]:
    """The port of a server of its own; it runs as somebody else than root, or it would not."""
    port = free_port("127.0.0.1")
    root = os.geteuid() == 0
    owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if root else []
    with tempfile.TemporaryDirectory(prefix="tuner-postgresql-") as folder:
        if root:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = Path(folder) / "data"

        def run(name: str, *words: str) -> None:
            command = [*owner, str(program(name)), "-D", str(data), *words]
            subprocess.run(command, check=True, cwd=folder, capture_output=True)

        run("initdb", "--auth=trust", "--username=tuner", "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c fsync=off -k {folder}"
        run("pg_ctl", "--wait", f"--log={folder}/log", f"--options={options}", "start")
        try:
            yield port
        finally:
            run("pg_ctl", "--mode=immediate", "stop")

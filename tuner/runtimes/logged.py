"""Run the commands that install a runtime: log their output, leave no process behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tuner.values.errors import RuntimeUnavailable

_MARK = "TUNER_INSTALLS"
_INHERITED = re.compile(
    r"(PIP|UV|LC|XDG)_\w+|PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|TMPDIR|LD_LIBRARY_PATH|NETRC|APT_CONFIG"
    r"|(HTTP|HTTPS|FTP|NO|ALL)_PROXY|SSL_CERT_(FILE|DIR)|(CURL|REQUESTS)_CA_BUNDLE",
    re.IGNORECASE,
)
"""Variables that say where and how to install: proxies, certificates, package indexes."""
_POLL_S = 0.2
_END_GRACE_S = 5.0
_LUA_TRACEBACK = "stack traceback:"
_SHOWN_CHARACTERS = 200


def run_logged(
    command: Sequence[str],
    log: Path,
    folder: Path,
    *,
    tick: Callable[[], None] = lambda: None,
    remedy: str = "",
) -> None:
    """Run ``command`` to its end and append its output to ``log``.

    Args:
        command: Argument list, found on PATH.
        log: File that stays when the command fails.
        folder: Folder that it works on, by which ``end_commands_of`` finds it.
        tick: Called several times a second meanwhile.
        remedy: What to do when it fails, for the error message.

    Raises:
        RuntimeUnavailable: If it cannot start or fails; the message quotes it and names the log.
    """
    with log.open("ab") as output:
        start = output.tell()
        try:
            process = subprocess.Popen(
                [*_bound_to_us(), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_environment() | {_MARK: str(folder)},
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeUnavailable(f"{command[0]} cannot be started: {error}") from error
    try:
        while not _ended(process):
            tick()
    except BaseException:
        _end_group(process)
        raise
    if process.returncode != 0:
        raise RuntimeUnavailable(_describe(command, process.returncode, log, start, remedy))


def _bound_to_us() -> list[str]:
    """Return a prefix that ends the command with this process, even if this is killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []


def _environment() -> dict[str, str]:
    """Return the variables that a command needs of this process's, and no others."""
    kept = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    return kept | {"LC_ALL": "C.UTF-8", "PIP_NO_INPUT": "1"}


def _ended(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is not None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_GRACE_S)
    process.wait()


def end_commands_of(folder: Path) -> None:
    """Kill the commands that still work on ``folder`` after their own parent was killed.

    They are not asked to end, as ``mmdebstrap`` would finish its work first.
    """
    mark = f"{_MARK}={folder}\0".encode()
    deadline = time.monotonic() + _END_GRACE_S
    while time.monotonic() < deadline:
        found = [path.parent for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)]
        if not found:
            return
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        time.sleep(_POLL_S / 4)


def _has(path: Path, mark: bytes) -> bool:
    with suppress(OSError):
        return mark in path.read_bytes()
    return False


def _describe(command: Sequence[str], code: int, log: Path, start: int, remedy: str) -> str:
    with log.open("rb") as output:
        output.seek(start)
        said = last_words(output.read().decode(errors="replace"))
    name = " ".join([Path(command[0]).name, *command[1:3]])
    return f"{name} … failed ({code}): {said}; {remedy}{'; ' if remedy else ''}full log: {log}"


def last_words(output: str) -> str:
    """Return the line of a command's output that best says why it failed, shortened."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if _LUA_TRACEBACK in lines:  # follows the error, which other programs print last
        lines = lines[: lines.index(_LUA_TRACEBACK)][:1]
    faults = [line for line in lines if line.lower().startswith(("e:", "error", "fatal"))]
    words = (faults[:1] or lines[-1:] or ["no output"])[0]
    if len(words) <= _SHOWN_CHARACTERS:
        return words
    return f"{words[: _SHOWN_CHARACTERS - 1]}…"

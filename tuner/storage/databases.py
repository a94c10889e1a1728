"""Databases by address, locked by one process at a time."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import NullPool, create_engine, func, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from tuner.values.addresses import without_password
from tuner.values.errors import StorageAway

_PATIENCE_S = 300
_PATIENT = {
    "connect_timeout": 60,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
"""libpq's settings: a server that does not answer for a minute is given up."""
_IDLE_S = 600  # idle time after which the server ends our session, and with it the lock
_LIMITS = {
    "idle_in_transaction_session_timeout": 1000 * _IDLE_S,
    "tcp_keepalives_idle": 30,
    "tcp_keepalives_interval": 10,
    "tcp_keepalives_count": 3,
}
"""PostgreSQL's settings while a lock is held, in ms and s."""
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL's code for a lock timeout


class Hold(enum.Enum):
    """Purposes for which a database is locked; each has its own lock.

    PostgreSQL names advisory locks by numbers: these bytes are read as one.
    """

    TABLES = b"tuner"
    UPLOADS = b"uploads"


class DatabaseHeld(StorageAway):
    """Another process did not release a database in time."""


@contextlib.contextmanager
def exclusive(
    address: str, hold: Hold = Hold.TABLES, wait_s: float = _PATIENCE_S
) -> Iterator[None]:
    """Lock a database against all others that lock it this way; do not nest.

    The lock is released when its process dies. PostgreSQL also releases it when the process's
    machine can no longer be reached, or its session is idle for long. An address that is no such
    database, for instance an MLflow server's, is not locked.

    Args:
        address: SQLAlchemy's address of a SQLite or PostgreSQL database.
        hold: Purpose of the lock; others may lock the database for another purpose meanwhile.
        wait_s: Seconds to wait for another process.

    Raises:
        DatabaseHeld: If another process still holds the lock then.
        sqlalchemy.exc.SQLAlchemyError: If the server cannot be reached.
    """
    kind = _kind(address)
    if kind == "sqlite" and (file := make_url(address).database):
        suffix = "lock" if hold is Hold.TABLES else f"{hold.name.lower()}.lock"
        with _held(Path(f"{file}.{suffix}"), wait_s):
            yield
    elif kind == "postgresql":
        engine = create_engine(address, poolclass=NullPool, connect_args=connect_args(address))
        with engine.begin() as connection:
            limits = {**_LIMITS, "lock_timeout": max(1, round(1000 * wait_s))}
            for name, value in limits.items():
                connection.execute(text(f"SET LOCAL {name} = {value}"))
            try:
                lock = func.pg_advisory_xact_lock(int.from_bytes(hold.value))
                connection.execute(select(lock))
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", "") != _LOCK_NOT_AVAILABLE:
                    raise
                raise _taken(without_password(address), wait_s) from None
            yield
    else:
        yield


@contextlib.contextmanager
def _held(path: Path, wait_s: float) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise _taken(str(path), wait_s) from None
    try:
        yield
    finally:
        lock.release()


def _taken(place: str, wait_s: float) -> DatabaseHeld:
    return DatabaseHeld(
        f"another process has held {place} for {wait_s:g} s; end it, or wait until it has ended"
    )


def fault_of(error: BaseException) -> str:
    """Return the first line of a database's fault, without libraries' advice and passwords.

    Args:
        error: The exception as raised, by any library.
    """
    said: object = error
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, DBAPIError) and each.orig is not None:
            said = each.orig
        each = each.__cause__ or each.__context__
    line = (str(said).strip().splitlines() or [type(said).__name__])[0]
    return without_password(line)


def connect_args(address: str) -> dict[str, Any]:
    """Return the arguments of a connection that gives up a server silent for a minute."""
    return dict(_PATIENT) if _kind(address) == "postgresql" else {}


def can_be_held(address: str) -> bool:
    """Return whether ``exclusive`` can lock the database of this address."""
    return _kind(address) in {"sqlite", "postgresql"}


def _kind(address: str) -> str:
    """Return the kind of database; empty if this is no address of one."""
    try:
        return make_url(address).get_backend_name()
    except ArgumentError:
        return ""

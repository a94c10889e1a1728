"""Databases by their address: held by one process at a time, shown without a password."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote_plus

from filelock import FileLock
from sqlalchemy import NullPool, create_engine, func, make_url, select
from sqlalchemy.exc import ArgumentError

_HIDDEN = "***"
_SECRET = re.compile("pass|secret|token|key", re.IGNORECASE)  # in the name of a query's part
_LOCK = int.from_bytes(b"tuner")  # PostgreSQL's advisory locks have numbers for names


@contextlib.contextmanager
def exclusive(address: str) -> Iterator[None]:
    """Hold a database among all who hold it this way; not to be nested.

    Who dies lets go. An address of no database, an MLflow server's for instance, is not held.

    Args:
        address: SQLAlchemy's, of SQLite or PostgreSQL.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: If the server cannot be reached.
    """
    kind = _kind(address)
    if kind == "sqlite" and (file := make_url(address).database):
        with FileLock(f"{file}.lock"):
            yield
    elif kind == "postgresql":
        with create_engine(address, poolclass=NullPool).begin() as connection:
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            yield
    else:
        yield


def can_be_held(address: str) -> bool:
    """Whether ``exclusive`` keeps others out of it."""
    return _kind(address) in {"sqlite", "postgresql"}


def _kind(address: str) -> str:
    """The database's kind; empty for what is no address of one."""
    try:
        return make_url(address).get_backend_name()
    except ArgumentError:
        return ""


def without_password(address: str) -> str:
    """An address as it may be shown and kept: ``***`` for a password, also one of its query."""
    try:
        url = make_url(address)
    except ArgumentError:
        return address
    hidden = {name: _HIDDEN for name in url.query if _SECRET.search(name)}
    shown = url.update_query_dict(hidden).render_as_string(hide_password=True)
    return shown.replace(quote_plus(_HIDDEN), _HIDDEN)


def without_passwords(words: Iterable[str]) -> list[str]:
    """Overrides such as ``storage=postgresql://…`` as they may be shown and kept."""
    shown = []
    for word in words:
        name, equals, value = word.partition("=")
        bare = value.strip("'\"")
        hidden = without_password(bare) if "://" in bare else bare
        shown.append(f"{name}{equals}{value.replace(bare, hidden) if bare else value}")
    return shown

"""Addresses as they may be shown and stored: without passwords."""

from __future__ import annotations

import re

_HIDDEN = "***"
# up to the last @ before a path: a password may have one
_USER = re.compile(r"([\w+.-]+)://([^/\s'\"]*)@")
# that of a database may have a slash: SQLAlchemy ends it at the @ alone
_DATABASE = re.compile(r"((?:postgres|mysql|mariadb|mssql|oracle)[\w+.-]*://[^:/@\s]*:)\S*@")
_PARAMETER = re.compile(
    r"([?&][^=&\s]*(?:pass|secret|token|key)[^=&\s]*=)[^&\s'\"#]*", re.IGNORECASE
)


def without_password(text: str) -> str:
    """Return an address, or a text with addresses, with ``***`` for each password.

    These are the password of a user, secrets in a query, and a token in place of HTTP's user.
    """
    hidden = _DATABASE.sub(rf"\1{_HIDDEN}@", _USER.sub(_hide, text))
    return _PARAMETER.sub(rf"\1{_HIDDEN}", hidden)


def _hide(found: re.Match[str]) -> str:
    scheme, (user, colon, _) = found[1], found[2].partition(":")
    if colon:
        return f"{scheme}://{user}:{_HIDDEN}@"
    return f"{scheme}://{_HIDDEN}@" if scheme.startswith("http") else found[0]

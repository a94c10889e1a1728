"""Addresses as they may be shown and stored: without passwords."""

from __future__ import annotations

import re

_HIDDEN = "***"
# up to the last @ before a path: a password may have one
_USER = re.compile(r"([\w+.-]+)://([^/\s'\"]*)@")
_PARAMETER = re.compile(
    r"([?&][^=&\s]*(?:pass|secret|token|key)[^=&\s]*=)[^&\s'\"#]*", re.IGNORECASE
)


def without_password(text: str) -> str:
    """Return an address, or a text with addresses, with ``***`` for each password.

    These are the password of a user, secrets in a query, and a token in place of HTTP's user.
    """
    return _PARAMETER.sub(rf"\1{_HIDDEN}", _USER.sub(_hide, text))


def _hide(found: re.Match[str]) -> str:
    scheme, (user, colon, _) = found[1], found[2].partition(":")
    if colon:
        return f"{scheme}://{user}:{_HIDDEN}@"
    return f"{scheme}://{_HIDDEN}@" if scheme.startswith("http") else found[0]

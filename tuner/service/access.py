"""Who may ask, and how much at once."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import JSONResponse, Response

_MOST_BYTES = 64 * 1024  # of a request's body
_OPEN = {"/v1/healthz", "/v1/livez"}  # what a load balancer asks without a token
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOCAL = {"localhost", "127.0.0.1", "[::1]", "testserver"}


@dataclass(frozen=True)
class Access:
    """What is refused before anything is looked at.

    Attributes:
        token: Bearer token that must be sent; empty where none is needed.
        local: Whether the service goes by no name but this machine's.
    """

    token: str
    local: bool

    def refusal(self, request: Request) -> Response | None:
        """Why this request is refused, or ``None``."""
        length = request.headers.get("content-length", "0")
        if "transfer-encoding" in request.headers or not length.isdecimal():
            return _no(411, "a body must say its Content-Length")
        if int(length) > _MOST_BYTES:
            return _no(413, f"a body may have {_MOST_BYTES} bytes")
        host = request.headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.local and name not in _LOCAL:
            return _no(421, "this service answers on this machine alone, as localhost")
        if self.local and any(name in request.headers for name in _FORWARDED):
            return _no(421, "this came through a proxy, which needs behind_proxy=true and a token")
        if self.token and request.url.path not in _OPEN and not self._knows(request):
            return _no(401, "send the token as Authorization: Bearer <token>, or as a password")
        return None

    def _knows(self, request: Request) -> bool:
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":  # how a browser sends it: as the password
            kind, sent = "bearer", _password(sent)
        # in constant time: how long it takes must not tell how much of it is right
        right = hmac.compare_digest(sent.encode(), self.token.encode())
        return kind.lower() == "bearer" and right


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _no(status: int, why: str) -> Response:
    headers = {"WWW-Authenticate": 'Bearer, Basic realm="tuner"'} if status == 401 else {}
    return JSONResponse({"detail": why}, status_code=status, headers=headers)

"""Access control: who may send requests, and how large they may be."""

from __future__ import annotations

import base64
import hmac
import ipaddress
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import JSONResponse, Response

_MAX_BYTES = 64 * 1024  # of a request's body
_MAX_DIGITS = 20  # of its length; Python refuses to read thousands
_OPEN = {"/v1/healthz", "/v1/livez"}  # a load balancer needs no token for these
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


@dataclass(frozen=True)
class Access:
    """Checks that refuse a request before it is processed.

    Attributes:
        token: Bearer token that must be sent; empty if none is needed.
        local: Whether to refuse every host name except those of the local machine.
    """

    token: str
    local: bool

    def refusal(self, request: Request) -> Response | None:
        """Return the response that refuses this request, or ``None``."""
        length = request.headers.get("content-length", "0")
        if "transfer-encoding" in request.headers or not length.isdecimal():
            return _no(411, "a request body needs a Content-Length")
        if len(length) > _MAX_DIGITS or int(length) > _MAX_BYTES:
            return _no(413, f"a request body may have at most {_MAX_BYTES} bytes")
        host = request.headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.local and not is_loopback(name.removeprefix("[").removesuffix("]")):
            return _no(421, "this service only answers requests from this machine, to localhost")
        if self.local and any(each in request.headers for each in _FORWARDED):
            return _no(421, "this came through a proxy, which needs behind_proxy=true and a token")
        if _is_of_another_site(request):
            return _no(403, "a page of another site asked for this")
        # not that of ``request.url``, which older versions of Starlette make of the host header
        if self.token and request.scope["path"] not in _OPEN and not self._knows(request):
            return _no(401, "send the token as Authorization: Bearer <token>, or as a password")
        return None

    def _knows(self, request: Request) -> bool:
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":  # a browser sends the token as the password
            kind, sent = "bearer", _password(sent)
        # constant time, so that timing does not reveal how much of the token is right
        right = hmac.compare_digest(sent.encode(), self.token.encode())
        return kind.lower() == "bearer" and right


def is_loopback(host: str) -> bool:
    """Return whether a name or an address, without brackets, means this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean any address


def _is_of_another_site(request: Request) -> bool:
    """Return whether a page of another site sent this; it may link here, and no more.

    A browser adds the token that the user gave for our own page, or is on the same machine.
    """
    if "sec-fetch-site" not in request.headers:  # browsers send it over TLS, and to this machine
        origin = request.headers.get("origin")
        return origin is not None and origin.partition("://")[2] != request.headers.get("host")
    fetch = {name: request.headers.get(f"sec-fetch-{name}", "none") for name in ("site", "mode")}
    follows_link = request.method == "GET" and fetch["mode"] == "navigate"
    return fetch["site"] not in ("none", "same-origin") and not follows_link


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _no(status: int, why: str) -> Response:
    headers = {"WWW-Authenticate": 'Bearer, Basic realm="tuner"'} if status == 401 else {}
    return JSONResponse({"detail": why}, status_code=status, headers=headers)

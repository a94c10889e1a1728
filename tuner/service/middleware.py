"""Middleware that refuses forbidden requests and counts all answers."""

from __future__ import annotations

import time

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.service.access import Access
from tuner.service.meters import Meters

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Gate:
    """ASGI middleware; FastAPI's own kind costs as much as a whole recommendation.

    Args:
        app: The application that answers.
        access: Refuses requests before they reach ``app``.
        meters: Counts every answer.
    """

    def __init__(self, app: ASGIApp, access: Access, meters: Meters) -> None:
        self._app, self._access, self._meters = app, access, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # which FastAPI's routes refuse; the server sends no body
            scope = {**scope, "method": "GET"}
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._access.refusal(Request(scope)) or self._app
        try:
            await answer(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._meters.count(route, status, time.perf_counter() - began)

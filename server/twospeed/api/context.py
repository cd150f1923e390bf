"""What is known of one HTTP request besides its bytes, and the middleware that keeps it.

The middleware gives every response its id and time, checks the Host header, turns an unexpected exception into
the envelope of errors.py, and counts the request. It never sees a body.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..gateway.gateway import Gateway
from ..observe.metrics import Metrics
from .replies import as_api_error, error_response

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_STATE = "twospeed"


@dataclass(slots=True)
class Context:
    """One request. `outcome` is the status to count, where the one that was sent doesn't tell the end. `headers` go
    with the response, whatever it becomes; `late_headers` gives more of them, and is asked when the response begins.
    """

    id: str
    started: float = field(default_factory=time.perf_counter)
    model: str = ""
    tier: str = ""
    status: int = 0
    outcome: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    late_headers: Callable[[], dict[str, str]] | None = None

    @classmethod
    def of(cls, scope: Scope) -> Context:
        context = scope["state"][_STATE]
        assert isinstance(context, Context)  # only ContextMiddleware puts it there
        return context


class ContextMiddleware:
    """Wraps the whole app."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway, metrics: Metrics) -> None:
        self._app = app
        self._gateway = gateway
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = Context(id=_request_id(headers.get("x-request-id")))
        scope.setdefault("state", {})[_STATE] = context

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                out = MutableHeaders(scope=message)
                out["x-request-id"] = context.id
                out["openai-processing-ms"] = str(round((time.perf_counter() - context.started) * 1000))
                out["x-content-type-options"] = "nosniff"
                if context.tier:
                    out["x-twospeed-service-tier"] = context.tier
                out.update(context.headers)
                if context.late_headers is not None:
                    out.update(context.late_headers())
            await send(message)

        try:
            self._gateway.hosts.check(headers.get("host"))
            await self._app(scope, receive, send_with_headers)
        except Exception as exc:
            error = as_api_error(exc, context.id)
            if context.status:
                raise error from None  # too late for a status; the server cuts the connection
            await error_response(error)(scope, receive, send_with_headers)
        finally:
            self._count(scope, context)

    def _count(self, scope: Scope, context: Context) -> None:
        seconds = time.perf_counter() - context.started
        status = context.outcome or context.status or 499
        if scope["path"].startswith("/v1/"):
            self._metrics.request(context.model, context.tier, status, seconds)
        logger.debug("%s %s %s %d %.3fs", context.id, scope["method"], context.model, status, seconds)


def _request_id(wanted: str | None) -> str:
    if wanted is not None and _REQUEST_ID.fullmatch(wanted):
        return wanted
    return f"req_{secrets.token_hex(16)}"

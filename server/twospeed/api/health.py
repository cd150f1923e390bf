"""GET /livez, /readyz and /metrics: for supervisors, load balancers and Prometheus.

/livez and /readyz need no key: they tell states, never data. /metrics needs one where keys are configured.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import ApiError
from ..gateway.gateway import Gateway
from ..routes import AUTO
from ..types import ModelStatus
from .deps import Deps
from .openapi import operation
from .replies import json_response


def router(deps: Deps) -> APIRouter:
    """The endpoints."""
    routes = APIRouter()

    @routes.get("/livez", **operation("The server runs", None, None))
    async def livez(request: Request) -> Response:
        return json_response({"status": "ok"})

    @routes.get(
        "/readyz",
        **operation("200 once a preloaded model answers requests, or the one named by `?model=`; else 503", None, None),
    )
    async def readyz(request: Request, model: str | None = None) -> Response:
        gateway = deps.gateway
        asked = None
        if model:
            asked = gateway.router.models if model == AUTO else [gateway.catalog.resolve(model)]
        statuses = {status.name: status for status in gateway.catalog.statuses()}
        error = _why_not_ready(gateway, statuses, asked)
        body: dict[str, Any] = {
            "status": "ready" if error is None else "unavailable",
            "models": {name: _state(status) for name, status in statuses.items()},
        }
        if error is None:
            return json_response(body)
        return json_response(error.body() | body, status=error.status, headers=error.headers())

    @routes.get("/metrics", **operation("Prometheus metrics", None, None))
    async def metrics(request: Request) -> Response:
        deps.authenticate(request)
        text, content_type = deps.metrics.render(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    return routes


def _why_not_ready(gateway: Gateway, statuses: dict[str, ModelStatus], asked: list[str] | None) -> ApiError | None:
    if gateway.admission.closed:
        return ApiError("shutting_down", "The server is shutting down.")
    names = gateway.catalog.preloaded() if asked is None else asked
    if not names or any(statuses[name].state == "ready" for name in names):
        return None
    states = ", ".join(f"{name}: {statuses[name].state}" for name in names)
    return ApiError("model_not_ready", f"No model is ready yet ({states}).")


def _state(status: ModelStatus) -> dict[str, Any]:
    ready = status.state == "ready"
    return {"state": status.state, "ready": ready, "detail": status.detail, "progress": status.progress}

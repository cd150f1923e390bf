"""GET /v1/tiers: the service tiers' seats, speed and shares right now. `twospeed top` draws it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..observe.board import TierBoard
from .deps import Deps
from .openapi import operation
from .replies import json_response


def router(deps: Deps) -> APIRouter:
    """The endpoint."""
    routes = APIRouter()

    @routes.get("/v1/tiers", **operation("How the service tiers and the models stand", None, TierBoard))
    async def tiers(request: Request) -> Response:
        deps.authenticate(request)
        return json_response(deps.board.draw())

    return routes

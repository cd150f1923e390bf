"""What the endpoints need from the rest of the server."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from ..config import Server
from ..gateway.auth import Principal
from ..gateway.gateway import Gateway
from ..observe.board import Board
from ..observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Deps:
    """Built once, in app.py. `created` is when the server started, Unix seconds."""

    gateway: Gateway
    metrics: Metrics
    board: Board
    created: int

    @property
    def server(self) -> Server:
        """The server's settings as they are in effect now."""
        return self.gateway.config.server

    def authenticate(self, request: Request) -> Principal:
        """Who sent this. Raises `invalid_api_key`."""
        return self.gateway.keys.check(request.headers.get("authorization"), request.headers.get("x-api-key"))

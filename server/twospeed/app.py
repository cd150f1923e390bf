"""The composition root: Config -> ASGI app. Nothing else builds objects that live as long as the server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from . import __version__
from .api import chat, completions, health, models, openapi, tiers
from .api.context import ContextMiddleware
from .api.deps import Deps
from .api.disconnect import ClientGoneError
from .api.replies import on_api_error, on_client_gone, on_http_error
from .config import Config
from .engine.client import EngineClient
from .errors import ApiError
from .gateway.auth import check_exposure
from .gateway.catalog import Catalog, Files, LoadingEngine, Progress
from .gateway.counts import AdmissionCounts
from .gateway.gateway import Gateway
from .models.store import Store, StoreError
from .observe.board import Board, TierBoard
from .observe.collector import TierCollector
from .observe.metrics import Metrics
from .observe.window import Window
from .types import ModelStatus


class StartableEngine(LoadingEngine, Protocol):
    """An engine that the app starts with itself."""

    async def start(self) -> None: ...


def create_app(
    config: Config,
    *,
    engine: StartableEngine | None = None,
    files: Files | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_state: Callable[[ModelStatus], None] | None = None,
    trace: Path | None = None,
) -> FastAPI:
    """The server for `config`; its Gateway is `app.state.gateway`.

    Call it in any thread; the app belongs to the event loop that runs its lifespan. `engine` and `files` stand in
    for the embedded engine and the store in tests. `on_progress` and `on_state` are the Catalog's; `trace` is the
    embedded engine's. Raises StartRefusedError for a configuration that would open the server to anybody.
    """
    check_exposure(config.server)
    window = Window()
    metrics = Metrics(window.ttft)
    store = Store()
    engine = engine or EngineClient(
        template_timeout_s=config.server.template_timeout_s, costs_folder=store.root / "costs", trace=trace
    )
    catalog = Catalog(config, engine, files or store, known=(StoreError,), on_progress=on_progress, on_state=on_state)
    gateway = Gateway(config, engine, catalog, metrics)
    engine.on_step(window.step)
    counts = AdmissionCounts(gateway.admission)
    board = Board(config, window, counts, catalog.status, policies=lambda: gateway.config.service_tiers)
    metrics.add(TierCollector(board))
    deps = Deps(gateway=gateway, metrics=metrics, board=board, created=int(time.time()))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        gateway.start()
        catalog.start()
        try:
            yield
        finally:
            await gateway.drain()

    app = FastAPI(
        title="twospeed",
        version=__version__,
        description="A local LLM server: a fast and a smart model behind one OpenAI-style API.",
        lifespan=lifespan,
        docs_url=None,  # these pages would load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={ApiError: on_api_error, ClientGoneError: on_client_gone, HTTPException: on_http_error},
    )
    app.add_middleware(ContextMiddleware, gateway=gateway, metrics=metrics)
    for family in (chat, completions, models, tiers, health):
        app.include_router(family.router(deps))
    openapi.install(
        app,
        bodies=(chat.ChatCompletionRequest, completions.CompletionRequest),
        replies=(chat.ChatCompletion, completions.Completion, models.ModelList, models.ModelObject, TierBoard),
    )
    app.state.gateway = gateway
    return app

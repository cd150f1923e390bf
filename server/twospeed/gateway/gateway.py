"""The gateway: the one way in for a call, whatever wire format it came in.

Which model, which tier, a permit, the model's readiness, the engine, and the numbers about it. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Self, cast

from ..config import Config
from ..errors import ApiError
from ..observe.metrics import Metrics, TokenClock
from ..routes import AUTO
from ..types import Chunk, GenerateRequest, ModelInfo, ServiceTier
from .admission import Admission
from .calls import Call
from .catalog import Catalog, LoadingEngine
from .merge import merge
from .route import Facts, Route, Router, RuleRouter


class Run:
    """A call that runs: who serves it, and its chunks, to be iterated once."""

    def __init__(
        self, *, model: str, tier: ServiceTier, info: ModelInfo, chunks: AsyncIterator[Chunk], clock: TokenClock, n: int
    ) -> None:
        self.model = model
        self.tier = tier
        self.fingerprint = info.fingerprint
        self._chunks = chunks
        self._clock = clock
        self._n = n
        self._first: Chunk | None = None

    async def wait_for_first(self, seconds: float) -> None:
        """Wait for the first chunk, which is kept for the iteration. Raises `queue_timeout`."""
        try:
            async with asyncio.timeout(seconds):
                self._first = await self.__anext__()
        except TimeoutError:
            raise ApiError("queue_timeout", f"No slot came free within {seconds:g} s; try again later.") from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        chunk = await self._chunks.__anext__()
        self._clock.chunk(chunk, chunk.index // self._n)
        return chunk


class Gateway:
    """Ties catalog, admission, engine and metrics together. Used from one event loop."""

    def __init__(self, config: Config, engine: LoadingEngine, catalog: Catalog, metrics: Metrics) -> None:
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._drained = False
        self.catalog = catalog
        self.admission = Admission(config)
        self.router: Router = RuleRouter(config)
        for name in config.models:
            metrics.watch_model(
                name,
                admitted=lambda name=name: self.admission.held(name),  # type: ignore[misc]
                ready=lambda name=name: float(catalog.status(name).state == "ready"),  # type: ignore[misc]
            )
        engine.on_step(metrics.step)

    def route(self, call: Call) -> tuple[str, Route | None]:
        """The model (no alias) that serves `call` and, for `model: auto`, why. Raises `model_not_found`, and
        `invalid_value` for a wish about the route that names no model.
        """
        if call.model != AUTO:
            return self.catalog.resolve(call.model), None
        route = self.router.route(call.facts, lambda model: self._could_begin(model, call.facts))
        for model in route.passed_over:
            self.catalog.wake(model)  # nobody else may ever ask for it
        return route.model, route

    def tier(self, wanted: str) -> ServiceTier:
        """The service tier that serves a request for `wanted`."""
        del wanted  # everything is served alike until tiers have lanes of their own
        return "default"

    @asynccontextmanager
    async def run(self, call: Call, model: str, tier: ServiceTier) -> AsyncIterator[Run]:
        """Admit `call` to `model` (no alias) and run it; ready to be read when the first chunk is there.

        Leaving the context ends the work within one engine step and gives the permit back. Raises ApiError:
        what admission, catalog and engine raise, and `queue_timeout`.
        """
        with self.admission.permit(model, call.sequences):
            info = await self.catalog.ready(model)
            requests = call.requests(model, tier, self._config.models[model].sampling)
            async with aclosing(self._generate(requests, call.n)) as chunks:
                clock = self._metrics.tier(model, tier).watch(call.started)
                run = Run(model=model, tier=tier, info=info, chunks=chunks, clock=clock, n=call.n)
                await run.wait_for_first(self._config.server.queue_wait_s)
                yield run

    async def drain(self) -> None:
        """Stop admission, let what runs finish for `server.drain_s`, then end it. May be called again."""
        self.admission.close()
        if self._drained:
            return
        self._drained = True
        try:
            async with asyncio.timeout(self._config.server.drain_s):
                await self.admission.idle()
        except TimeoutError:
            pass  # the engine fails the rest with `shutting_down`, which their clients are told
        finally:
            await self.catalog.close()
            await self._engine.close()

    def _could_begin(self, model: str, facts: Facts) -> bool:
        status = self.catalog.status(model)
        if status.state != "ready" or status.info is None:
            return False
        return status.info.infill or not facts.infill

    def _generate(self, requests: list[GenerateRequest], n: int) -> AsyncGenerator[Chunk, None]:
        # The protocol promises `aclose`, which AsyncIterator has no word for.
        streams = [cast("AsyncGenerator[Chunk, None]", self._engine.generate(request)) for request in requests]
        return streams[0] if len(streams) == 1 else merge(streams, n)

"""The gateway: the one way in for a call, whatever wire format it came in.

Which model, which tier, a permit, the model's readiness, the engine, and the numbers about it. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Self, cast

from msgspec import structs

from ..config import Config
from ..errors import ApiError
from ..observe.metrics import Metrics, TokenClock
from ..routes import AUTO
from ..types import Chunk, GenerateRequest, ModelInfo, ServiceTier
from . import tiers
from .admission import Admission, Permit
from .auth import Hosts, Keys, Principal
from .calls import Call
from .catalog import Catalog, LoadingEngine
from .merge import merge
from .quotas import Meter, Quotas
from .route import Facts, Route, Router, RuleRouter


class Run:
    """A call that runs: who serves it, and its chunks, to be iterated once."""

    def __init__(
        self,
        *,
        model: str,
        tier: ServiceTier,
        info: ModelInfo,
        chunks: AsyncIterator[Chunk],
        clock: TokenClock,
        meter: Meter,
        n: int,
    ) -> None:
        self.model = model
        self.tier = tier
        self.fingerprint = info.fingerprint
        self._chunks = chunks
        self._clock = clock
        self._meter = meter
        self._n = n
        self._waited_ms = 0.0
        self._first: Chunk | None = None

    async def begin(self, permit: Permit) -> None:
        """Wait for a seat, and then for the first chunk, which is kept for the iteration."""
        before = time.perf_counter()
        await permit.seat()
        self._waited_ms = (time.perf_counter() - before) * 1000
        self._first = await self.__anext__()
        permit.served()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        chunk = await self._chunks.__anext__()
        if chunk.timings is not None:  # the engine's; it doesn't know of the line here
            timings = structs.replace(chunk.timings, queue_ms=chunk.timings.queue_ms + self._waited_ms)
            chunk = structs.replace(chunk, timings=timings)
        prompt = chunk.index // self._n
        self._clock.chunk(chunk, prompt)
        self._meter.chunk(chunk, prompt)
        return chunk


class Gateway:
    """Ties keys, catalog, admission, engine and metrics together. Used from one event loop.

    `config` is what is in effect; `reload` replaces it, and nobody else keeps one.
    """

    def __init__(self, config: Config, engine: LoadingEngine, catalog: Catalog, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._drained = False
        self.config = config
        self.keys = Keys(config)
        self.hosts = Hosts(config.server)
        self.catalog = catalog
        self.admission = Admission(config, info=lambda model: catalog.status(model).info)
        self.router: Router = RuleRouter(config)
        self.quotas = Quotas()
        for name in config.models:
            metrics.watch_model(
                name,
                admitted=lambda name=name: self.admission.held(name),  # type: ignore[misc]
                ready=lambda name=name: float(catalog.status(name).state == "ready"),  # type: ignore[misc]
            )
        engine.on_step(metrics.step)

    def start(self) -> None:
        """Tell the engine, which runs now, how tiers share the device."""
        self._engine.share(tiers.shares(self.config.service_tiers))

    def reload(self, config: Config) -> None:
        """Go by `config` from the next request on; what runs goes on, and its permits stay counted.

        It must be one that `reload.merged` made: models, host and port are as before.
        """
        self.config = config
        self.keys = Keys(config)
        self.hosts = Hosts(config.server)
        self.router = RuleRouter(config)
        self.catalog.reload(config)
        self.admission.reload(config)
        self._engine.share(tiers.shares(config.service_tiers))

    def route(self, call: Call) -> tuple[str, Route | None]:
        """The model (no alias) that serves `call` and, for `model: auto`, why. Raises `model_not_found`, and
        `invalid_value` for a wish about the route that names no model.
        """
        if call.model != AUTO:
            return self.catalog.resolve(call.model, call.principal), None
        route = self.router.route(
            call.facts, lambda model: self._could_begin(model, call.facts), call.principal.may_use
        )
        for model in route.passed_over:
            self.catalog.wake(model)  # nobody else may ever ask for it
        return self.catalog.resolve(route.model, call.principal), route

    def tier(self, wanted: str, principal: Principal) -> ServiceTier:
        """The service tier to serve a request for `wanted` in. Raises `service_tier_not_allowed`."""
        return tiers.tier_for(wanted, principal)

    @asynccontextmanager
    async def run(self, call: Call, model: str, tier: ServiceTier) -> AsyncIterator[Run]:
        """Admit `call` to `model` (no alias) and run it; ready to be read when the first chunk is there.

        The tier that serves it, which may be another than `tier`, is the Run's. Leaving the context ends the work
        within one engine step and gives the permit back. Raises ApiError: what quotas, admission, catalog and engine
        raise, `invalid_value` for more output than the tier gives, and `queue_timeout`.
        """
        config = self.config
        call.check(tier, config.service_tiers.of(tier))
        self.quotas.check(call.principal, call.sequences)
        with (
            self.admission.permit(model, tier, call.sequences, patience_s=call.patience_s) as permit,
            self.quotas.hold(call.principal, call.sequences) as meter,
        ):
            tier = permit.tier
            info = await self.catalog.ready(model)
            requests = call.requests(model, tier, config.models[model].sampling, config.service_tiers.of(tier))
            async with aclosing(self._generate(requests, call.n)) as chunks:
                clock = self._metrics.tier(model, tier).watch(call.started)
                run = Run(model=model, tier=tier, info=info, chunks=chunks, clock=clock, meter=meter, n=call.n)
                wait = tiers.queue_wait_of(config, tier)
                try:
                    async with asyncio.timeout(wait):
                        await run.begin(permit)
                except TimeoutError:
                    raise ApiError("queue_timeout", f"No slot came free within {wait:g} s; try again later.") from None
                yield run

    async def drain(self) -> None:
        """Stop admission, let what runs finish for `server.drain_s`, then end it. May be called again."""
        self.admission.close()
        if self._drained:
            return
        self._drained = True
        try:
            async with asyncio.timeout(self.config.server.drain_s):
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

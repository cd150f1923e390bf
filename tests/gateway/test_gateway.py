"""A call from admission to its end, on an engine in this process that does as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.config import Config
from twospeed.errors import ApiError
from twospeed.gateway.auth import Limits, Principal
from twospeed.gateway.calls import Call
from twospeed.gateway.catalog import Catalog
from twospeed.gateway.gateway import Gateway
from twospeed.observe.metrics import Metrics
from twospeed.types import (
    TIERS,
    Chunk,
    GenerateRequest,
    ModelInfo,
    ModelStatus,
    ServiceTier,
    TextPrompt,
    Timings,
    Usage,
)

INFO = ModelInfo(
    description="", context=99, kv_tokens=99, slots=2, vocab_size=1, parameters=1, size_bytes=1, chat_template=True,
    infill=True, fingerprint="fp",
)  # fmt: skip
USAGE = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=0)
TIMINGS = Timings(queue_ms=1, cache_n=0, prompt_n=5, prompt_ms=1, predicted_n=3, predicted_ms=1)


class Engine:
    """Answers as the prompt says: `ok`, `early` and `late` (failures), `hang`."""

    def __init__(self) -> None:
        self.seen: list[GenerateRequest] = []
        self.running = 0

    def share(self, shares: object) -> None:
        pass

    def on_step(self, listener: object) -> None:
        pass

    def status(self, model: str) -> ModelStatus:
        return ModelStatus(name=model, state="ready", info=INFO)

    async def load(self, name: str, path: object, model: object, draft: object) -> None:
        pass

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        assert isinstance(request.prompt, TextPrompt)
        how = request.prompt.text
        self.seen.append(request)
        self.running += 1
        try:
            await asyncio.sleep(0)
            if how == "early":
                raise ApiError("context_length_exceeded", "no")
            for index in range(request.n):
                yield Chunk(index=index, text="a", tokens=1)
                await asyncio.sleep(0)
            if how == "late":
                raise ApiError("engine_died", "no")
            if how == "hang":
                await asyncio.Event().wait()
            for index in range(request.n):
                yield Chunk(index=index, text="bc", tokens=2, finish_reason="stop", usage=USAGE, timings=TIMINGS)
        finally:
            self.running -= 1


def configured(**tiers: Any) -> Config:
    return Config.model_validate(
        {
            "version": 1,
            "server": {"max_queue": 2},
            "service_tiers": tiers,
            "models": {"fast": {"backend": "fake", "slots": 2}},
        }
    )


async def started(config: Config) -> tuple[Gateway, Engine]:
    engine: Any = Engine()
    gateway = Gateway(config, engine, Catalog(config, engine, files=None), Metrics())  # type: ignore[arg-type]
    gateway.catalog.start()
    await gateway.catalog.ready("fast")
    return gateway, engine


KEY = Principal(name="k", namespace="", limits=Limits(concurrent=4, requests_per_minute=20, tokens_per_minute=1000))


def call(how: str, n: int = 1, **more: Any) -> Call:
    return Call(id="c", model="fast", prompts=[TextPrompt(how)], principal=KEY, started=0.0, n=n, **more)


async def serve(gateway: Gateway, what: Call, tier: ServiceTier) -> tuple[str, list[Chunk]]:
    """The tier that served it, and all its chunks."""
    async with gateway.run(what, "fast", tier) as run:
        return run.tier, [chunk async for chunk in run]


def held(gateway: Gateway) -> tuple[int, int]:
    return gateway.admission.held("fast"), gateway.quotas.in_flight("k")


def test_the_tier_that_serves_is_what_the_engine_is_told_and_the_run_says() -> None:
    async def run() -> None:
        gateway, engine = await started(configured(ultrafast={"seats": 1, "max_context": 50}))
        async with gateway.run(call("hang"), "fast", "ultrafast") as first:
            tier, chunks = await serve(gateway, call("ok"), "ultrafast")
            assert (first.tier, tier) == ("ultrafast", "default")
            assert [chunk.tokens for chunk in chunks] == [1, 2]
            assert held(gateway) == (1, 1)
        assert [(request.tier, request.max_context) for request in engine.seen] == [
            ("ultrafast", 50),
            ("default", None),
        ]
        assert (held(gateway), engine.running) == ((0, 0), 0)

    asyncio.run(run())


def test_the_wait_for_a_seat_is_in_the_timings_and_what_was_used_is_charged() -> None:
    async def run() -> None:
        gateway, engine = await started(configured(priority={"seats": 1, "max_queue": 1}))
        with gateway.admission.permit("fast", "priority", 1):
            task = asyncio.create_task(serve(gateway, call("ok"), "priority"))
            await asyncio.sleep(0.02)
            assert engine.seen == [], "it waits here"
        tier, chunks = await task
        assert tier == "priority"
        assert chunks[-1].timings is not None
        assert chunks[-1].timings.queue_ms > TIMINGS.queue_ms
        told = gateway.quotas.headers(KEY)
        assert told["x-ratelimit-remaining-tokens"] == str(1000 - 5 - 3)
        assert told["x-ratelimit-remaining-requests"] == "19"

    asyncio.run(run())


@pytest.mark.parametrize("how", ["early", "late"])
def test_a_failure_gives_everything_back(how: str) -> None:
    async def run() -> None:
        gateway, engine = await started(configured())
        with pytest.raises(ApiError):
            await serve(gateway, call(how, n=2), "flex")
        assert (held(gateway), engine.running) == ((0, 0), 0)

    asyncio.run(run())


Job = tuple[str, ServiceTier, int, str, int]
JOBS = st.lists(
    st.tuples(
        st.sampled_from(["ok", "early", "late", "hang"]),
        st.sampled_from(get_args(ServiceTier)),
        st.integers(1, 5),
        st.sampled_from(["run", "leave", "reload"]),
        st.integers(0, 4),
    ),
    max_size=30,
)
SEATS = st.fixed_dictionaries({tier: st.fixed_dictionaries({"seats": st.integers(1, 2)}) for tier in TIERS})


@settings(deadline=None)
@given(JOBS, SEATS, SEATS)
def test_after_any_storm_of_calls_nothing_is_held(jobs: list[Job], before: Any, after: Any) -> None:
    async def one(gateway: Gateway, job: Job) -> None:
        how, tier, n, end, turns = job
        for _ in range(turns):
            await asyncio.sleep(0)
        if end == "reload":
            gateway.reload(configured(**(after if turns % 2 else before)))
        with suppress(ApiError):
            async with gateway.run(call(how, n), "fast", tier) as run:
                assert run.tier in (tier, "default")
                if end != "leave":
                    async for _ in run:
                        pass

    async def run() -> None:
        gateway, engine = await started(configured(**before))
        tasks = [asyncio.create_task(one(gateway, job)) for job in jobs]
        for _ in range(20):
            await asyncio.sleep(0)
        assert gateway.quotas.in_flight("k") == gateway.admission.held("fast") <= 4
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
        assert (held(gateway), engine.running) == ((0, 0), 0)
        await asyncio.wait_for(gateway.admission.idle(), 1)

    asyncio.run(run())

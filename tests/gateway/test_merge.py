"""Several engine requests as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from twospeed.errors import ApiError
from twospeed.gateway.merge import merge
from twospeed.types import Chunk


class Source:
    """A stream of `count` chunks of two sequences, that knows when it was closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.closed = False

    async def stream(self) -> AsyncGenerator[Chunk, None]:
        try:
            for number in range(self.count):
                await asyncio.sleep(0)
                yield Chunk(index=number % 2, text=str(number), tokens=1)
            if self.error:
                raise self.error
        finally:
            self.closed = True


def test_all_chunks_come_in_order_with_indexes_of_their_own() -> None:
    async def run() -> None:
        sources = [Source(5), Source(0), Source(9)]
        seen: dict[int, list[int]] = {}
        async for chunk in merge([source.stream() for source in sources], 2):
            seen.setdefault(chunk.index, []).append(int(chunk.text))
        assert seen == {0: [0, 2, 4], 1: [1, 3], 4: [0, 2, 4, 6, 8], 5: [1, 3, 5, 7]}
        assert all(source.closed for source in sources)

    asyncio.run(run())


def test_the_first_failure_ends_all() -> None:
    async def run() -> None:
        sources = [Source(10**9), Source(3, ApiError("engine_died", "gone"))]
        with pytest.raises(ApiError):
            async for _ in merge([source.stream() for source in sources], 2):
                pass
        assert all(source.closed for source in sources)

    asyncio.run(run())


def test_leaving_closes_all() -> None:
    async def run() -> None:
        sources = [Source(10**9), Source(10**9)]
        async with aclosing(merge([source.stream() for source in sources], 2)) as chunks:
            async for _ in chunks:
                break
        assert all(source.closed for source in sources)

    asyncio.run(run())

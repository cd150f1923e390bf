"""Several engine requests of one client call, as one stream of chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from ..types import Chunk


async def merge(streams: Sequence[AsyncGenerator[Chunk, None]], n: int) -> AsyncGenerator[Chunk, None]:
    """The chunks of `streams` as they come; a sequence of stream i gets index `i * n + index`.

    The first failure of a stream ends the others and is raised. Closing it closes all.
    """
    # One place per stream: a client that reads slowly holds the streams back instead of filling memory.
    queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(len(streams))

    async def pump(stream: AsyncGenerator[Chunk, None], first: int) -> None:
        try:
            async for chunk in stream:
                await queue.put(msgspec.structs.replace(chunk, index=first + chunk.index) if first else chunk)
        except Exception as exc:  # raised again by the one who reads the queue
            await queue.put(exc)
        else:
            await queue.put(None)
        finally:
            await stream.aclose()

    tasks = [asyncio.create_task(pump(stream, number * n)) for number, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

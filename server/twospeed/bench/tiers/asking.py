"""One measured request, with a bound on every wait: what came is a sample, and that nothing came is one too."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from ..client import BenchError, Result, Stream
from .dialect import Dialect

_EVENTS = 2  # a role, then text


class Bounds(NamedTuple):
    """Seconds that a first token is waited for, and that a stream may run after it."""

    first_s: float = 90.0
    decode_s: float = 60.0


class Seen(NamedTuple):
    """`result`: None where no token came within the bound. `end`: on the clock of `result.times`."""

    result: Result | None
    whole: bool
    sent: float
    end: float


async def ask(dialect: Dialect, body: dict[str, Any], bounds: Bounds) -> Seen:
    """Send a request and read it, as long as the bounds allow. Raises BenchError where it is refused or breaks."""
    while True:
        fitted = dialect.fit(body)
        stream = await Stream.start(dialect.endpoint, fitted)
        try:
            return await _read(stream, bounds)
        except BenchError as error:
            if not dialect.learn(error, fitted):
                raise


async def _read(stream: Stream, bounds: Bounds) -> Seen:
    try:
        async with asyncio.timeout(bounds.first_s):
            await stream.reach(_EVENTS)
        async with asyncio.timeout(bounds.decode_s):
            result = await stream.result()
    except TimeoutError:
        end = time.perf_counter()
        return Seen(stream.cut_or_none(), False, stream.sent, end)
    except asyncio.CancelledError:
        stream.end()
        raise
    return Seen(result, True, stream.sent, result.times[-1])

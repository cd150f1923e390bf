"""Streams of the `default` tier that keep a server busy, and what they got in any span of time.

Each stream asks something new when it ends. What they received is only counted, and read when a stream is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from .. import stats
from ..client import BenchError, Result, Stream
from .dialect import Dialect
from .results import Span
from .workloads import background_text

BACKGROUND_TOKENS = 192
_WARM_EVENTS = 6  # a role and a few tokens
_PAUSE_S = 0.5  # after a refusal


class Received(NamedTuple):
    """One stream's events, and how many tokens each of them stands for."""

    times: list[float]
    weight: float


class Background:
    """`async with Background(...)`: so many streams run inside, and are ended promptly after.

    `refused`: how often one was not let in. What was received is complete once the streams have ended.
    """

    def __init__(self, dialect: Dialect, count: int, mark: str) -> None:
        self.count = count
        self.refused = 0
        self.problem = ""
        self._dialect = dialect
        self._mark = mark
        self._started = 0
        self._news = asyncio.Event()
        self._warm: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._results: list[tuple[Result, bool]] = []
        self._received: list[Received] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep(number)) for number in range(self.count)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._received = list(received([r for r, _ in self._results], [whole for _, whole in self._results]))

    async def warm(self, wanted: int, seconds: float) -> int:
        """Wait until so many streams have had tokens, or for so long; how many have."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self._warm) < min(wanted, self.count):
                    self._news.clear()
                    await self._news.wait()
        return len(self._warm)

    async def _keep(self, number: int) -> None:
        while True:
            try:
                await self._one(number)
            except BenchError as error:
                self.refused += 1
                self.problem = str(error)
                await asyncio.sleep(_PAUSE_S)

    async def _one(self, number: int) -> None:
        self._started += 1
        messages = [
            {"role": "system", "content": f"[{self._mark}-{self._started}] You are a careful assistant."},
            {"role": "user", "content": background_text(number + self.count * (self._started // self.count))},
        ]
        body = self._dialect.fit(self._dialect.body(messages, "default", BACKGROUND_TOKENS, fixed=True))
        stream = await Stream.start(self._dialect.endpoint, body)
        try:
            await stream.reach(_WARM_EVENTS)
            self._warm.add(number)
            self._news.set()
            self._results.append((await stream.result(), True))
        except asyncio.CancelledError:
            with contextlib.suppress(BenchError):  # else it would be taken for a refusal, and tried again
                if (result := stream.cut_or_none()) is not None:
                    self._results.append((result, False))
            raise
        except BenchError as error:
            self._warm.discard(number)
            if not self._dialect.learn(error, body):
                raise

    def rate(self, start: float, end: float) -> float:
        """Tokens a second of all streams between two moments. After they ended."""
        total = sum(stats.events_within(one.times, start, end) * one.weight for one in self._received)
        return total / (end - start)

    def span(self, before: tuple[float, float], during: tuple[float, float], tokens: int) -> Span:
        """What they got before and during a request that got `tokens` itself."""
        rate = self.rate(*during)
        theirs = rate * (during[1] - during[0])
        share = theirs / (theirs + tokens) if theirs + tokens else 0.0
        running = mean_running([one.times for one in self._received], *during)
        return Span(before=self.rate(*before), during=rate, streams=running, share=share)

    def gap_ms(self) -> float | None:
        """The usual time between two events of a stream: a step, where each step serves all streams."""
        gaps = [gap for one in self._received for gap in stats.gaps(one.times)]
        return stats.median(gaps) * 1000 if gaps else None


def mean_running(streams: Sequence[Sequence[float]], start: float, end: float) -> float:
    """How many were between their first token and their last, on average over a span of time."""
    overlaps = [min(end, times[-1]) - max(start, times[0]) for times in streams]
    return sum(max(0.0, overlap) for overlap in overlaps) / (end - start)


def received(results: list[Result], whole: list[bool]) -> Iterator[Received]:
    """Tokens per event: the server's count where a stream ended well, else the average of those that did."""
    known = [r.tokens / len(r.times) for r, done in zip(results, whole, strict=True) if done and r.tokens]
    usual = max(1.0, stats.median(known)) if known else 1.0
    for result, done in zip(results, whole, strict=True):
        weight = max(1.0, result.tokens / len(result.times)) if done and result.tokens else usual
        yield Received(result.times, weight)

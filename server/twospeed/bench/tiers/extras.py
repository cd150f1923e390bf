"""Measures beside the grid: default streams by themselves, long prompts that arrive, seats that run out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .. import stats
from ..client import BenchError, RefusedError, Result, Stream
from ..measures import all_at_once
from ..workloads import Lengths, Prompts
from .asking import Bounds, ask
from .dialect import Dialect
from .results import Conserved, Extra, Gaps, Seats, Tier
from .workloads import Message, Workload, background_text

CONSERVED_STREAMS = 16
LONG_TOKENS = 1500
_TOKENS = 96
_ENDLESS, _LONGEST = 2000, 8000
_ALONE_EVENTS = 48
_SKIPPED = 8  # events of a stream before its gaps count
_ARRIVAL_S = 40.0  # eight long prompts may take longer than anyone watches
_PAIR_S = 20.0
_HEADERS_S = 10.0
_MOST_EXTRAS = 6
_WORD_TOKENS = 1.4  # where a server counts nothing

Bare = Callable[[str, int], Awaitable[float]]


class Extras:
    """`context`: what a request may hold, where that is known; a stream that is watched should not end too soon."""

    def __init__(self, dialect: Dialect, prompts: Prompts, bounds: Bounds, context: int | None = None) -> None:
        self._dialect = dialect
        self._prompts = prompts
        self._bounds = bounds
        # Eight prompts take long to read; several of such streams would fill the KV cache instead of the seats.
        self._longest = max(_ENDLESS, min(_LONGEST, (context or 0) - _ENDLESS))
        self._chars = 4.0  # of a token; known better after one stream

    def _messages(self, number: int) -> list[Message]:
        head = f"[{self._prompts.mark()}] You are a careful assistant."
        return [{"role": "system", "content": head}, {"role": "user", "content": background_text(number)}]

    def _body(self, number: int, tier: Tier, tokens: int, *, drafts: bool = True) -> dict[str, Any]:
        return self._dialect.body(self._messages(number), tier, tokens, fixed=True, drafts=drafts)

    async def _open(self, number: int, tokens: int = _ENDLESS, *, drafts: bool = True) -> Stream:
        """An ultrafast stream that is meant to be cut."""
        body = self._dialect.fit(self._body(number, "ultrafast", tokens, drafts=drafts))
        return await Stream.start(self._dialect.endpoint, body)

    async def conserved(self) -> Conserved:
        bodies = [self._body(i, "default", _TOKENS) for i in range(CONSERVED_STREAMS)]
        seen = await all_at_once([ask(self._dialect, body, self._bounds) for body in bodies])
        results = [one.result for one in seen if one.result is not None]
        if len(results) < CONSERVED_STREAMS:
            raise BenchError(f"{CONSERVED_STREAMS - len(results)} of {CONSERVED_STREAMS} streams got no token")
        window = stats.common_window([r.times for r in results])
        counted = [(r.times, r.tokens or len(r.times)) for r in results]
        together = stats.aggregate_rate(counted, *window) if window else None
        seconds = max(r.times[-1] for r in results) - min(r.sent for r in results)
        return Conserved(CONSERVED_STREAMS, together, sum(tokens for _, tokens in counted) / seconds)

    async def gaps(self, prompts: int) -> Gaps:
        """So many 1,500-token default prompts, sent at once while an ultrafast stream decodes: one without drafts, of
        which each makes a gap, with many tokens behind it, whether a prompt comes or not."""
        words = await self._words(LONG_TOKENS)
        bodies = [self._dialect.body(self._long(words), "default", 4) for _ in range(prompts)]
        stream = await self._open(1, self._longest, drafts=False)
        try:
            async with asyncio.timeout(self._bounds.first_s + self._bounds.decode_s):
                await stream.reach(_ALONE_EVENTS)
            begun = time.perf_counter()
            bound = Bounds(first_s=_ARRIVAL_S, decode_s=_ARRIVAL_S)
            seen = await all_at_once([ask(self._dialect, body, bound) for body in bodies])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEADERS_S):
                    await stream.more(2)  # the gap in which the last prompt ended counts as well
        except TimeoutError:
            raise BenchError("the ultrafast stream did not get going") from None
        finally:
            stream.end()
        result = stream.cut()
        answered = [one.result for one in seen if one.result is not None]
        end = max((r.times[0] for r in answered), default=begun) if len(answered) == prompts else begun + _ARRIVAL_S
        before = [at for at in result.times[_SKIPPED:] if at <= begun]
        if len(before) < 2:
            raise BenchError("the ultrafast stream was too short to have gaps")
        return Gaps(
            prompts=prompts,
            prompt_tokens=next((r.prompt_tokens for r in answered if r.prompt_tokens), None),
            alone_ms=[1000 * gap for gap in stats.gaps(before)],
            beside_ms=[1000 * gap for gap in stats.gaps_touching(result.times, begun, end)],
            answered=len(answered),
            seconds=end - begun,
            covered=result.times[-1] >= end,
            served=result.served,
        )

    def _long(self, words: int) -> list[Message]:
        return [{"role": "user", "content": self._prompts.report(words) + "\n\nSum this up in one word."}]

    async def _words(self, tokens: int) -> int:
        """Words that make about so many tokens, as the server counts them."""
        sample = await ask(
            self._dialect, self._dialect.body(self._long(Lengths.SAMPLE_WORDS), "default", 1), self._bounds
        )
        counted = sample.result.prompt_tokens if sample.result else 0
        return Lengths(counted or round(_WORD_TOKENS * Lengths.SAMPLE_WORDS)).words(tokens)

    async def seats(self) -> Seats:
        """One ultrafast stream, two at once with more that knock, and one again."""
        alone = [await self._alone()]
        streams = [await self._open(1), await self._open(3)]
        try:
            async with asyncio.timeout(self._bounds.first_s):
                await asyncio.gather(*(stream.reach(4) for stream in streams))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAIR_S):
                    await asyncio.gather(*(stream.more(_TOKENS) for stream in streams))
            end = time.perf_counter()
            extras = await self._knock(len(streams))
        except TimeoutError:
            raise BenchError("two ultrafast streams did not both get going") from None
        finally:
            for stream in streams:
                stream.end()
        results: list[Result] = [stream.cut() for stream in streams]
        times = [[at for at in r.times if at <= end] for r in results]
        weights = [await self._weight(r) for r in results]
        window = stats.common_window([t for t in times if t]) if all(times) else None
        if window is None:
            raise BenchError("the two streams did not decode at the same time")
        span = window[1] - window[0]
        together = [stats.events_within(t, *window) * w / span for t, w in zip(times, weights, strict=True)]
        alone.append(await self._alone())
        return Seats(alone=alone, together=together, served=[r.served for r in results], extras=extras)

    async def _alone(self) -> float:
        seen = await ask(self._dialect, self._body(1, "ultrafast", _TOKENS), self._bounds)
        if seen.result is None:
            raise BenchError("an ultrafast stream alone got no token")
        self._chars = len(seen.result.text) / max(1, seen.result.tokens or len(seen.result.times))
        rate = stats.decode_rate(seen.result.times, seen.result.tokens or len(seen.result.times))
        if rate is None:
            raise BenchError("an ultrafast stream alone took no time")
        return rate

    async def _weight(self, result: Result) -> float:
        """Tokens an event of a cut stream stands for, by the length of its text."""
        return max(1.0, len(result.text) / self._chars / len(result.times))

    async def _knock(self, running: int) -> list[Extra]:
        """One more after the other, all left open, until one is not served as asked."""
        extras: list[Extra] = []
        opened: list[Stream] = []
        try:
            for number in range(running + 1, running + 1 + _MOST_EXTRAS):
                stream = await self._open(2 * number + 1)
                opened.append(stream)
                extras.append(await _answered(stream, number))
                if extras[-1].served != "ultrafast":
                    break
        finally:
            for stream in opened:
                stream.end()
        return extras


async def _answered(stream: Stream, number: int) -> Extra:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HEADERS_S):
            await stream.reach(2)
    status, served, ttft = 200, None, None
    try:
        if (result := stream.so_far()) is not None:
            served, ttft = result.served, result.ttft_ms
    except RefusedError as refused:
        status = refused.status
    at = stream.headers_at
    waited = 1000 * ((at if at is not None else time.perf_counter()) - stream.sent)
    return Extra(number, served, status if at is not None else 0, waited, ttft)


async def plain(bare: Bare, workload: Workload, mark: str) -> float:
    """The bare decode loop at the positions of a workload's answer, tokens a second."""
    task = workload.tasks(0, mark)[0]
    return await bare(f"{task.system}\n{task.turns[0]}\n", _TOKENS)

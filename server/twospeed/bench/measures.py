"""The measures: each asks one model's server something and gives back what it saw. No printing, no verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from . import stats
from .client import BenchError, Endpoint, Result, Stream
from .results import Arrival, ManyStreams, OneStream, Pair, Prefill, StreamSample, Turn
from .workloads import TURNS, Lengths, Prompts

ONE_TOKENS = 96
MANY_TOKENS = 64
TURN_TOKENS = 32
PROMPT_TOKENS = 500
LONG_TOKENS = 1500
_ROUNDS = 4  # of bare loop and HTTP
_PROMPTS = 3
_SKIPPED = 8  # tokens of a stream before its gaps count
_ALONE = 48  # tokens of the stream before the long prompt comes
_ENDLESS = 2000  # tokens of a stream that is cut when it is no longer needed
_PAIR_S, _PAIR_ALONE_S = 6.0, 3.0
_PAIR_TOKENS = 400  # a fast model needs less time
_WARM_TOKENS = 16
_PLAIN = {"speculation": "off"}  # as the bare loop decodes; `bench tiers` is for drafts

T = TypeVar("T")
Bare = Callable[[str, int], Awaitable[float]]


class Subject:
    """One model of a running server."""

    def __init__(self, endpoint: Endpoint, model: str, prompts: Prompts) -> None:
        self.model = model
        self.prompts = prompts
        self._endpoint = endpoint
        self._lengths: Lengths | None = None

    async def stream(self, prompt: str, tokens: int) -> Stream:
        """Start a greedy stream of exactly so many tokens."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True} | _PLAIN
        return await Stream.start(self._endpoint, body)

    async def complete(self, prompt: str, tokens: int) -> Result:
        return await (await self.stream(prompt, tokens)).result()

    async def chat(self, messages: list[dict[str, str]], tokens: int) -> Result:
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": tokens} | _PLAIN
        return await (await Stream.start(self._endpoint, body)).result()

    async def warm_up(self) -> None:
        """Load the model if need be, and learn how many words its tokens make."""
        sample = await self.complete(self.prompts.report(Lengths.SAMPLE_WORDS), 1)
        self._lengths = Lengths(sample.prompt_tokens)
        await self.complete(self.prompts.opening(), _WARM_TOKENS)

    def report(self, tokens: int) -> str:
        """A prompt of about so many tokens that no cache knows."""
        if self._lengths is None:
            raise BenchError(f"{self.model} was not warmed up")
        return self.prompts.report(self._lengths.words(tokens))


async def one_stream(subject: Subject, bare: Bare | None) -> OneStream:
    """One prompt, the same number of tokens bare and through HTTP. `bare` gives tokens a second."""
    prompt = subject.prompts.opening()
    raw, streams = [], []
    for _ in range(_ROUNDS):
        if bare:
            raw.append(await bare(prompt, ONE_TOKENS))
        # the first token belongs to the prefill: both then make as many decode steps at the same positions
        streams.append(await subject.complete(prompt, ONE_TOKENS + 1))
    if bare:
        raw.append(await bare(prompt, ONE_TOKENS))
    rates = [_need(stats.decode_rate(s.times, s.tokens), "a stream's rate") for s in streams]
    return OneStream(raw=raw, http=rates, streams=[StreamSample.of(s) for s in streams])


async def many_streams(subject: Subject, count: int) -> ManyStreams:
    """`count` streams with different prompts, sent at the same moment."""
    prompts = [subject.prompts.opening(i) for i in range(count)]
    streams = await all_at_once([subject.complete(prompt, MANY_TOKENS) for prompt in prompts])
    window = stats.common_window([s.times for s in streams])
    together = stats.aggregate_rate([(s.times, s.tokens) for s in streams], *window) if window else None
    start, end = min(s.sent for s in streams), max(s.times[-1] for s in streams)
    return ManyStreams(
        count=count,
        together=together,
        together_s=window[1] - window[0] if window else 0.0,
        whole=sum(s.tokens for s in streams) / (end - start),
        streams=[StreamSample.of(s) for s in streams],
    )


async def prefill(subject: Subject) -> Prefill:
    """Fresh prompts, one after the other."""
    results = [await subject.complete(subject.report(PROMPT_TOKENS), 1) for _ in range(_PROMPTS)]
    return Prefill(
        ttft_ms=[r.ttft_ms for r in results],
        rate=[r.prefill_rate for r in results],
        streams=[StreamSample.of(r) for r in results],
    )


async def conversation(subject: Subject) -> list[Turn]:
    """A chat whose every turn sends all that was said before."""
    messages = [{"role": "system", "content": subject.prompts.system()}]
    turns: list[Turn] = []
    for text in TURNS:
        messages.append({"role": "user", "content": text})
        result = await subject.chat(messages, TURN_TOKENS)
        messages.append({"role": "assistant", "content": result.text})
        before = turns[-1].prompt + turns[-1].completion if turns else 0
        turns.append(
            Turn(
                prompt=result.prompt_tokens,
                cached=result.cached_tokens,
                prefilled=result.prompt_tokens - result.cached_tokens,
                new=result.prompt_tokens - before,
                completion=result.tokens,
                ttft_ms=result.ttft_ms,
            )
        )
    return turns


async def arrival(subject: Subject) -> Arrival:
    """A long prompt alone, then one as long while a stream decodes."""
    alone = await subject.complete(subject.report(LONG_TOKENS), 1)
    stream = await subject.stream(subject.prompts.opening(), _ENDLESS)
    try:
        await stream.reach(_ALONE)
        beside = await subject.complete(subject.report(LONG_TOKENS), 1)
        await stream.more(2)  # the gap in which the prompt ended counts as well
    finally:
        seen = stream.cut()
    came, done = beside.sent, beside.times[0]
    before = [at for at in seen.times[_SKIPPED:] if at <= came]
    return Arrival(
        prompt_tokens=beside.prompt_tokens,
        rate_alone=alone.prefill_rate,
        rate_beside=beside.prefill_rate,
        ttft_ms=beside.ttft_ms,
        gaps_alone_ms=[gap * 1000 for gap in stats.gaps(before)],
        gaps_beside_ms=[gap * 1000 for gap in stats.gaps_touching(seen.times, came, done)],
        covered=seen.times[-1] > done,
    )


async def pair(first: Subject, second: Subject) -> Pair:
    """Each model's stream alone, both at once, and each alone again."""
    subjects = (first, second)
    prompts = {s.model: s.prompts.opening() for s in subjects}
    alone: dict[str, list[float]] = {s.model: [] for s in subjects}

    async def each_alone() -> None:
        for s in subjects:
            rates, _ = await _rates([s], prompts, _PAIR_ALONE_S)
            alone[s.model] += rates

    await each_alone()
    both, seconds = await _rates(list(subjects), prompts, _PAIR_S)
    await each_alone()
    together = {s.model: rate for s, rate in zip(subjects, both, strict=True)}
    return Pair(alone=alone, together=together, seconds=seconds)


async def _rates(subjects: list[Subject], prompts: dict[str, str], seconds: float) -> tuple[list[float], float]:
    """Tokens a second of each model's stream while all of them decode, for about so long; and how long it was."""
    streams = [await s.stream(prompts[s.model], _ENDLESS) for s in subjects]
    results: list[Result] = []
    try:
        await all_at_once([stream.reach(1) for stream in streams])
        reached = [asyncio.create_task(stream.reach(_PAIR_TOKENS)) for stream in streams]
        _, pending = await asyncio.wait(reached, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
    finally:
        results += [stream.cut() for stream in streams]
    window = stats.common_window([r.times for r in results])
    if window is None:
        raise BenchError("the streams did not decode at the same time")
    start, end = window
    return [stats.events_within(r.times, start, end) / (end - start) for r in results], end - start


async def all_at_once(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All at the same time; the first that fails ends the others. Raises what it raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failed:
        known = failed.subgroup(BenchError)
        raise (known or failed).exceptions[0] from failed
    return [task.result() for task in tasks]


def _need(value: float | None, what: str) -> float:
    if value is None:
        raise BenchError(f"{what} could not be measured: it took no time")
    return value

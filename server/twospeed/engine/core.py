"""The engine's loop body: plan a step, run it, sample, commit, and say what came of it.

Owns the runners. Used by one thread; knows nothing of sockets, processes or templates.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..types import ChatPrompt, Chunk, FinishReason, StepStats, Timings, Usage
from .cost import Curves, StepCost
from .kv import Copy, KvCache
from .lanes import Limits, Sequence, Step
from .memo import TokenMemo
from .messages import Out
from .prepare import Prepared
from .runner.base import Logits, Runner
from .sampling import Sampler
from .scheduler import Scheduler
from .text import TextStream


@dataclass(eq=False, slots=True)
class _Live:
    """A sequence on its way to a client."""

    sequence: Sequence
    prepared: Prepared
    index: int
    sampler: Sampler
    stream: TextStream
    text: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Loaded:
    runner: Runner
    memo: TokenMemo


class Core:
    """All loaded models of one device and the requests they work on. Times are seconds of one clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._scheduler = Scheduler()
        self._models: dict[str, _Loaded] = {}
        self._requests: dict[str, list[_Live]] = {}
        self._by_sequence: dict[int, _Live] = {}

    def add_model(self, name: str, runner: Runner, memo: TokenMemo, curves: Curves, limits: Limits) -> None:
        info = runner.info
        kv = KvCache(info.kv_tokens, max_seqs(limits.slots), partial_prefix=info.partial_prefix)
        self._scheduler.add_model(name, StepCost(curves), kv, limits)
        self._models[name] = _Loaded(runner, memo)

    def submit(self, prepared: Prepared) -> None:
        """Queue a request's sequences; siblings wait for the first one's prefill and share it."""
        request, now = prepared.request, self._clock()
        eog = self._models[request.model].runner.vocab.eog
        lives: list[_Live] = []
        for index in range(request.n):
            sequence = Sequence(
                id=request.id,
                model=request.model,
                tokens=list(prepared.tokens),
                max_new=prepared.max_new,
                # Its siblings may share its prompt all the same.
                namespace=request.namespace if request.cache_prompt else f"{request.namespace}/{request.id}",
                leader=lives[0].sequence if lives else None,
                arrived=now,
            )
            seed = request.sampling.seed
            seed = secrets.randbits(63) if seed is None else (seed + index) % 2**64
            sampler = Sampler(request.sampling, prepared.tokens, eog, seed)
            live = _Live(sequence, prepared, index, sampler, TextStream(request.stop))
            lives.append(live)
            self._by_sequence[id(sequence)] = live
            self._scheduler.add(sequence)
        self._requests[request.id] = lives

    def cancel(self, request_id: str) -> None:
        """Forget a request, wherever it is; harmless when it is over."""
        for live in self._requests.pop(request_id, []):
            self._drop(live)

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    def step(self) -> tuple[StepStats, list[Out]] | None:
        """Run one step of one model; None when there is nothing to do. Raises RunnerError."""
        start = self._clock()
        step = self._scheduler.plan(start)
        if step is None:
            return None
        runner = self._models[step.model].runner
        for op in step.ops:
            if isinstance(op, Copy):
                runner.copy(op.source, op.target, op.length)
            else:
                runner.trim(op.seq, op.length)
        logits = runner.run(step.rows)
        tokens = self._sample(step, logits)
        now = self._clock()
        ms = (now - start) * 1000
        self._scheduler.commit(step, ms, now, tokens)
        outs = [self._advance(live, now) for live in self._sampled(step)]
        return self._stats(step, ms), outs

    def close(self) -> None:
        for loaded in self._models.values():
            loaded.runner.close()

    def _sampled(self, step: Step) -> list[_Live]:
        return [self._by_sequence[id(pick.sequence)] for pick in step.picks if pick.sampled]

    def _sample(self, step: Step, logits: Logits) -> list[int]:
        return [live.sampler.choose(row) for live, row in zip(self._sampled(step), logits, strict=True)]

    def _advance(self, live: _Live, now: float) -> Out:
        """Turn the newest token of a sequence into a chunk, its last one if it ends here."""
        sequence, request = live.sequence, live.prepared.request
        vocab = self._models[request.model].runner.vocab
        token = sequence.tokens[-1]
        live.sampler.accept(token)
        ended = token in vocab.eog
        text = "" if ended else live.stream.push(vocab.piece(token))
        finish: FinishReason | None = None
        if ended or live.stream.stopped:
            finish = "stop"
        elif sequence.generated >= sequence.max_new:
            finish = "length"
        if finish:
            text += live.stream.finish()
            finish = "stop" if live.stream.stopped else finish
        live.text.append(text)
        if request.echo and sequence.generated == 1:
            text = live.prepared.text + text
        if finish is None:
            return Out(request.id, Chunk(index=live.index, text=text, tokens=1))
        chunk = Chunk(
            index=live.index,
            text=text,
            tokens=1,
            finish_reason=finish,
            usage=_usage(sequence),
            timings=_timings(sequence, now),
        )
        self._finish(live, ended=ended)
        return Out(request.id, chunk)

    def _finish(self, live: _Live, *, ended: bool) -> None:
        request = live.prepared.request
        if request.cache_prompt and isinstance(request.prompt, ChatPrompt) and not live.stream.stopped:
            tokens = live.sequence.tokens[:-1] if ended else list(live.sequence.tokens)
            text = live.prepared.text + "".join(live.text)
            self._models[request.model].memo.remember(request.namespace, text, tokens)
        self._drop(live)
        siblings = self._requests[request.id]
        siblings.remove(live)
        if not siblings:
            del self._requests[request.id]

    def _drop(self, live: _Live) -> None:
        self._scheduler.release(live.sequence, keep=live.prepared.request.cache_prompt)
        del self._by_sequence[id(live.sequence)]

    def _stats(self, step: Step, ms: float) -> StepStats:
        lane = self._scheduler.lanes[step.model]
        return StepStats(
            model=step.model,
            ms=ms,
            predicted_ms=step.predicted_ms,
            decode_rows=step.decode_rows,
            prefill_rows=len(step.rows) - step.decode_rows,
            running=len(lane.running),
            waiting=len(lane.waiting),
            kv_used=lane.kv.used,
            kv_total=lane.kv.capacity,
        )


def max_seqs(slots: int) -> int:
    """Sequence ids of a model with `slots`: as many again, and some more, stay as prefixes."""
    return min(256, 2 * slots + 16)


def _usage(sequence: Sequence) -> Usage:
    return Usage(
        prompt_tokens=sequence.prompt_length, completion_tokens=sequence.generated, cached_tokens=sequence.cached
    )


def _timings(sequence: Sequence, now: float) -> Timings:
    assert sequence.started is not None
    assert sequence.first_token is not None
    return Timings(
        queue_ms=(sequence.started - sequence.arrived) * 1000,
        cache_n=sequence.cached,
        prompt_n=sequence.prompt_length - sequence.cached,
        prompt_ms=(sequence.first_token - sequence.started) * 1000,
        predicted_n=sequence.generated,
        predicted_ms=(now - sequence.first_token) * 1000,
    )

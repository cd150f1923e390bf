"""The engine's loop body: plan a step, run it, sample, commit, and say what came of it.

Owns the runners. Used by one thread; knows nothing of sockets, processes or templates.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..types import (
    TIERS,
    ChatPrompt,
    Chunk,
    FinishReason,
    ServiceTier,
    Share,
    StepStats,
)
from .cost import Curves, StepCost
from .draft_model import Draft, DraftModel
from .figures import step_stats, timings, usage
from .kv import Copy, Forget, KvCache, Op, Restore, Save, Trim
from .lanes import Limits, Sequence, Step
from .memo import TokenMemo
from .messages import Out
from .prepare import Prepared
from .runner.base import Logits, Runner, RunnerError
from .sampling import Sampler
from .scheduler import Scheduler
from .text import TextStream

_log = logging.getLogger("twospeed.engine")


@dataclass(eq=False, slots=True)
class _Live:
    """A sequence on its way to a client."""

    sequence: Sequence
    prepared: Prepared
    index: int
    sampler: Sampler
    stream: TextStream
    text: list[str] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Written:
    """What one step adds to a sequence. `ended`: by the model's own end token."""

    live: _Live
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: FinishReason | None = None
    ended: bool = False


@dataclass(slots=True)
class _Loaded:
    runner: Runner
    memo: TokenMemo
    draft: DraftModel | None


class Core:
    """All loaded models of one device and the requests they work on. Times are seconds of one clock, which is that of
    `scheduler` too: a new one, or one that records."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, scheduler: Scheduler | None = None) -> None:
        self._clock = clock
        self._scheduler = scheduler or Scheduler()
        self._models: dict[str, _Loaded] = {}
        self._requests: dict[str, list[_Live]] = {}
        self._by_sequence: dict[int, _Live] = {}
        self._saved: dict[int, bytes] = {}  # states of preempted sequences

    def add_model(
        self,
        name: str,
        runner: Runner,
        memo: TokenMemo,
        curves: Curves,
        limits: Limits,
        *,
        draft: Draft | None = None,
    ) -> None:
        info, seqs = runner.info, max_seqs(limits.slots)
        kv = KvCache(info.kv_tokens, seqs, partial_prefix=info.partial_prefix)
        self._scheduler.add_model(name, StepCost(curves), kv, limits, draft and draft.lane(seqs))
        writer = draft and DraftModel(draft.runner, runner.vocab.size, self._clock)
        self._models[name] = _Loaded(runner, memo, writer)

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
                tier=request.tier,
                speculation=request.speculation,
                prediction=prepared.prediction,
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
            self._drop(live, self._scheduler.cancel)

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    def share(self, shares: Mapping[ServiceTier, Share]) -> None:
        """How service tiers share the device from the next step on."""
        self._scheduler.share(shares)

    def step(self) -> tuple[StepStats, list[Out]] | None:
        """Run one step of one model; None when there is nothing to do. Raises RunnerError."""
        start = self._clock()
        step = self._scheduler.plan(start)
        while step is not None and step.restored is not None:
            self._restore(step, step.restored)
            start = self._clock()
            step = self._scheduler.plan(start)
        if step is None:
            return None
        if step.asks:
            return self._draft(step, start)
        runner = self._models[step.model].runner
        self._do(runner, step.ops)
        written = self._write(step, runner.run(step.rows))
        now = self._clock()
        ms = (now - start) * 1000
        self._scheduler.commit(step, ms, now, [w.tokens for w in written])
        outs = [self._out(w, now) for w in written]
        return self._stats(step, ms, written), outs

    def _draft(self, step: Step, start: float) -> tuple[StepStats, list[Out]]:
        """Run a step of a draft model. One that fails is done without: nobody's text depends on it."""
        loaded, done = self._models[step.model], None
        assert loaded.draft is not None
        try:
            done = loaded.draft.run(step.ops, step.asks)
        except RunnerError as error:
            _log.warning("%s goes on without its draft model, which failed: %s", step.model, error)
            loaded.draft.close()
            loaded.draft = None
        ms = (self._clock() - start) * 1000
        self._scheduler.drafted(step, ms, done)
        return self._stats(step, ms, []), []

    def _do(self, runner: Runner, ops: list[Op]) -> None:
        for op in ops:
            match op:
                case Copy(source, target, length):
                    runner.copy(source, target, length)
                case Trim(seq, length):
                    runner.trim(seq, length)
                case Save(seq, key):
                    self._saved[key] = runner.save(seq)
                case Restore(seq, key):
                    runner.restore(seq, self._saved.pop(key))
                case Forget(key):
                    del self._saved[key]

    def _restore(self, step: Step, sequence: Sequence) -> None:
        try:
            self._do(self._models[step.model].runner, step.ops)
        except RunnerError:  # a cache in many pieces may not take it back whole
            self._scheduler.restore_failed(sequence)

    def close(self) -> None:
        for loaded in self._models.values():
            loaded.runner.close()
            if loaded.draft is not None:
                loaded.draft.close()

    def _write(self, step: Step, logits: Logits) -> list[_Written]:
        """The tokens that come of the step's sampled parts. A drafted token stays as long as it is what is sampled
        after those before it: the output is sampled from the model whatever was drafted."""
        written: list[_Written] = []
        row = 0
        for part in step.parts:
            if not part.sampled:
                continue
            w = _Written(self._by_sequence[id(part.sequence)])
            for drafted in (*part.draft, None):
                self._next(w, logits[row + len(w.tokens)])
                if w.finish or w.tokens[-1] != drafted:
                    break
            row += 1 + len(part.draft)
            written.append(w)
        return written

    def _next(self, w: _Written, logits: npt.NDArray[np.float32]) -> None:
        """One more token of a sequence, and the text it makes."""
        live = w.live
        vocab = self._models[live.sequence.model].runner.vocab
        token = live.sampler.choose(logits)
        live.sampler.accept(token)
        w.tokens.append(token)
        w.ended = token in vocab.eog
        if not w.ended:
            w.text += live.stream.push(vocab.piece(token))
        if w.ended or live.stream.stopped:
            w.finish = "stop"
        elif live.sequence.generated + len(w.tokens) >= live.sequence.max_new:
            w.finish = "length"
        if w.finish:
            w.text += live.stream.finish()
            w.finish = "stop" if live.stream.stopped else w.finish

    def _out(self, w: _Written, now: float) -> Out:
        """What a sequence wrote as a chunk, its last one if it ends here."""
        live, sequence, request = w.live, w.live.sequence, w.live.prepared.request
        live.text.append(w.text)
        text = w.text
        if request.echo and sequence.generated == len(w.tokens):
            text = live.prepared.text + text
        if w.finish is None:
            return Out(request.id, Chunk(index=live.index, text=text, tokens=len(w.tokens)))
        chunk = Chunk(
            index=live.index,
            text=text,
            tokens=len(w.tokens),
            finish_reason=w.finish,
            usage=usage(sequence),
            timings=timings(sequence, now),
        )
        self._finish(live, ended=w.ended)
        return Out(request.id, chunk)

    def _finish(self, live: _Live, *, ended: bool) -> None:
        request = live.prepared.request
        if request.cache_prompt and isinstance(request.prompt, ChatPrompt) and not live.stream.stopped:
            tokens = live.sequence.tokens[:-1] if ended else list(live.sequence.tokens)
            text = live.prepared.text + "".join(live.text)
            self._models[request.model].memo.remember(request.namespace, text, tokens)
        self._drop(live, self._scheduler.release)
        siblings = self._requests[request.id]
        siblings.remove(live)
        if not siblings:
            del self._requests[request.id]

    def _drop(self, live: _Live, release: Callable[..., None]) -> None:
        if live.sequence.spilled is not None:
            self._saved.pop(live.sequence.spilled, None)  # else it is still to be saved, and is forgotten then
        release(live.sequence, keep=live.prepared.request.cache_prompt)
        del self._by_sequence[id(live.sequence)]

    def _stats(self, step: Step, ms: float, written: list[_Written]) -> StepStats:
        tokens = Counter[ServiceTier]()
        for w in written:
            tokens[w.live.sequence.tier] += len(w.tokens)
        return step_stats(self._scheduler.models[step.model], step, ms, tokens)


def max_seqs(slots: int) -> int:
    """Sequence ids of a model with `slots` for each service tier. What is not in use stays as prefixes."""
    return min(256, len(TIERS) * slots + 16)

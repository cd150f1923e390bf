"""What runs next: pure decisions, no clock, no I/O, no ctypes, no randomness.

State in, a Step out; the caller runs it and commits what came of it with the milliseconds it took. So a trace
of adds, cancels and step times always replays to the same plans.

Models share the device by measured milliseconds (start-time fair queueing: Goyal et al., SIGCOMM 1996).
Within a model a step mixes decode rows and chunks of prefill (Sarathi-Serve, https://arxiv.org/abs/2403.02310)
within a predicted cost, and sequences join and leave between steps (Orca, OSDI 2022).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from .cost import StepCost
from .kv import KvCache, Op
from .runner.base import Row

SHORTEST_CHUNK = 8
"""Prefill in chunks of this many rows and more, each a multiple of 4 but the last, comes out of llama.cpp's CPU
kernels bit for bit as from one whole batch; other cuts change the last bits."""
_RESERVE = 256  # output tokens a sequence is admitted with; it grows beyond them while there is room
_STREAM_FACTOR = 4.75  # `max_step_ms: auto`: a prompt may slow a stream down this much,
_SMOOTH_MS = 250.0  # or to this gap, where many streams run
_MIXED_IS_POOR = 0.3  # of the prefill rate alone; below, prefill and decode take turns


@dataclass(eq=False, slots=True)
class Sequence:
    """One completion in the making. `tokens`: prompt, then output; the first `computed` of them are in the
    KV cache as `kv`. `leader`: its sibling that prefills the prompt for both."""

    id: str
    model: str
    tokens: list[int]
    max_new: int
    namespace: str = ""
    leader: Sequence | None = None
    arrived: float = 0.0
    prompt_length: int = field(init=False)
    kv: int | None = None
    computed: int = 0
    cached: int = 0
    started: float | None = None
    first_token: float | None = None
    last_step: int = 0
    done: bool = False

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens not in the cache yet: 1 while decoding, more in prefill."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        return self.pending == 1

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length


class Pick(NamedTuple):
    """A sequence's part of a step: `rows` of its tokens; `sampled`: its next token comes of it."""

    sequence: Sequence
    rows: int
    sampled: bool


class Step(NamedTuple):
    """One call of one model's runner, after its `ops`. `context`: positions of all rows, summed."""

    model: str
    ops: list[Op]
    rows: list[Row]
    picks: list[Pick]
    decode_rows: int
    outputs: int
    context: int
    predicted_ms: float


class Limits(NamedTuple):
    """Milliseconds a step may cost, and how many sequences and rows a model runs at once."""

    slots: int
    max_rows: int
    max_step_ms: float | None
    max_prefill_step_ms: float


@dataclass(eq=False, slots=True)
class Lane:
    """One model's share of the device."""

    model: str
    cost: StepCost
    kv: KvCache
    limits: Limits
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    served_ms: float = 0.0
    was_idle: bool = True
    prefilled_last: bool = False

    @property
    def streaming(self) -> bool:
        """Somebody watches output of this model appear."""
        return any(s.decoding and s.generated for s in self.running)


class Scheduler:
    """All models of one device."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self._steps = 0

    def add_model(self, model: str, cost: StepCost, kv: KvCache, limits: Limits) -> None:
        self.lanes[model] = Lane(model, cost, kv, limits)

    def add(self, sequence: Sequence) -> None:
        """Queue `sequence`. Its prompt must leave room for one token at least in the model's cache."""
        self.lanes[sequence.model].waiting.append(sequence)

    def release(self, sequence: Sequence, *, keep: bool = True) -> None:
        """`sequence` finished or was cancelled, wherever it was; harmless when it is gone already."""
        lane = self.lanes[sequence.model]
        sequence.done = True
        if sequence.kv is not None:
            lane.kv.stop(sequence.kv, keep=keep)
            sequence.kv = None
            lane.running.remove(sequence)
        elif sequence in lane.waiting:
            lane.waiting.remove(sequence)

    @property
    def idle(self) -> bool:
        return not any(lane.running or lane.waiting for lane in self.lanes.values())

    def plan(self, now: float) -> Step | None:
        """The next step, or None when there is nothing to do."""
        busy = [lane for lane in self.lanes.values() if lane.running or lane.waiting]
        for lane in self.lanes.values():
            if not (lane.running or lane.waiting):
                lane.was_idle = True
        if not busy:
            return None
        self._catch_up(busy)
        for lane in busy:
            self._admit(lane, now)
        ready = [lane for lane in busy if lane.running]
        if not ready:
            return None
        streaming = any(lane.streaming for lane in ready)
        lane = min(ready, key=lambda lane: lane.served_ms)
        return self._compose(lane, streaming=streaming)

    def commit(self, step: Step, ms: float, now: float, tokens: Seq[int]) -> None:
        """`step` took `ms`; `tokens` are the sampled ones, in the order of its picks that have one."""
        lane = self.lanes[step.model]
        lane.served_ms += ms
        lane.prefilled_last = step.decode_rows == 0
        lane.cost.observe(len(step.rows), step.outputs, step.context, ms)
        sampled = iter(tokens)
        for pick in step.picks:
            pick.sequence.computed += pick.rows
            if pick.sampled:
                pick.sequence.tokens.append(next(sampled))
                if pick.sequence.first_token is None:
                    pick.sequence.first_token = now

    def _catch_up(self, busy: list[Lane]) -> None:
        """A model that was idle starts level with those that were not, or with all when all were: idleness earns
        no claim to later time, and time that nobody else wanted costs none."""
        working = [lane.served_ms for lane in busy if not lane.was_idle]
        level = min(working) if working else max(lane.served_ms for lane in self.lanes.values())
        for lane in busy:
            if lane.was_idle:
                lane.was_idle = False
                lane.served_ms = max(lane.served_ms, level)

    # Admission

    def _admit(self, lane: Lane, now: float) -> None:
        """Move waiting sequences into slots, first come first served, while their tokens fit."""
        while lane.waiting and len(lane.running) < lane.limits.slots:
            sequence = lane.waiting[0]
            if sequence.leader is not None and self._prefilling(sequence.leader):
                break
            donor, length = lane.kv.match(sequence.tokens, sequence.namespace)
            shared = length if donor is not None and lane.kv.is_hot(donor) else 0
            need = len(sequence.tokens) + min(sequence.max_new - sequence.generated, _RESERVE) - shared
            if lane.running and lane.kv.hot_cells + self._growth(lane) + need > lane.kv.capacity:
                break
            lane.waiting.popleft()
            sequence.kv = lane.kv.start(sequence.tokens, sequence.namespace, donor, length)
            sequence.computed = length
            if sequence.started is None:
                sequence.started = now
                sequence.cached = length
            lane.running.append(sequence)

    @staticmethod
    def _prefilling(leader: Sequence) -> bool:
        return not leader.done and not leader.generated

    @staticmethod
    def _growth(lane: Lane) -> int:
        """Cells that the running sequences were promised and do not hold yet."""
        return sum(max(s.pending, s.prompt_length + min(s.max_new, _RESERVE) - s.computed, 0) for s in lane.running)

    # One step

    def _compose(self, lane: Lane, *, streaming: bool) -> Step:
        decoding = [s for s in lane.running if s.decoding]
        prefilling = [s for s in lane.running if not s.decoding]
        limit = self._limit(lane, decoding, streaming=streaming)
        decoding = self._fitting(lane, decoding, limit)
        chunk = 0
        if prefilling:
            chunk, alone = self._chunk(lane, decoding, prefilling, limit)
            if alone and decoding:
                if lane.prefilled_last:
                    prefilling, chunk = [], 0
                else:
                    decoding = []
        shares = [(s, 1) for s in decoding] + self._split(prefilling, chunk)
        return self._build(lane, self._with_room(lane, shares))

    @staticmethod
    def _limit(lane: Lane, decoding: list[Sequence], *, streaming: bool) -> float:
        """Milliseconds this step may be predicted to take."""
        limits = lane.limits
        if not streaming:
            return limits.max_prefill_step_ms
        if limits.max_step_ms is not None:
            return limits.max_step_ms
        one = lane.cost.ms(1, 1)
        decode = lane.cost.ms(*_load([(s, 1) for s in decoding])) or one
        return max(decode, min(_STREAM_FACTOR * decode, max(_STREAM_FACTOR * one, _SMOOTH_MS)))

    @staticmethod
    def _fitting(lane: Lane, decoding: list[Sequence], limit: float) -> list[Sequence]:
        """All, unless they exceed the limit; then as many as get most done within it, one at least, those that
        waited longest first."""
        waited = sorted(decoding, key=lambda s: s.last_step)

        def ms(n: int) -> float:
            return lane.cost.ms(*_load([(s, 1) for s in waited[:n]]))

        if ms(len(decoding)) <= limit:
            return decoding
        fitting = [n for n in range(1, len(decoding)) if ms(n) <= limit]
        return waited[: max(fitting, key=lambda n: n / ms(n), default=1)]

    @classmethod
    def _chunk(cls, lane: Lane, decoding: list[Sequence], prefilling: list[Sequence], limit: float) -> tuple[int, bool]:
        """Prefill rows for this step, and whether they should run in a step of their own.

        The size with the best rate within the limit: on a staircase the largest one often is not."""
        wanted = min(sum(s.pending for s in prefilling), lane.limits.max_rows - len(decoding))

        def best(others: list[Sequence]) -> tuple[int, float]:
            rows, rate = 0, 0.0
            beside = _load([(s, 1) for s in others])
            for n in _sizes(wanted, len(others)):
                load = _load(cls._split(prefilling, n))
                ms = lane.cost.ms(*map(sum, zip(beside, load, strict=True)))
                all_at_once = n == wanted and not others  # the first token sooner beats a better rate
                if ms <= limit and (n / ms >= rate or all_at_once):
                    rows, rate = n, n / ms
            return rows, rate

        rows, rate = best(decoding)
        if not decoding:
            return max(rows, 1), True
        rows_alone, rate_alone = best([])
        if rate < _MIXED_IS_POOR * rate_alone or rows == 0:
            return max(rows_alone, 1), True
        return rows, False

    @staticmethod
    def _split(prefilling: list[Sequence], chunk: int) -> list[tuple[Sequence, int]]:
        """Deal `chunk` rows out: half to who came first, so that long prompts get on; the rest to those
        with the least left, so that short prompts need not wait for long ones."""
        if not prefilling or chunk <= 0:
            return []
        rows = {id(s): 0 for s in prefilling}
        first = prefilling[0]
        rows[id(first)] = min(first.pending, (chunk + 1) // 2)
        left = chunk - rows[id(first)]
        for s in sorted(prefilling, key=lambda s: s.pending):
            take = min(left, s.pending - rows[id(s)])
            rows[id(s)] += take
            left -= take
        return [(s, rows[id(s)]) for s in prefilling if rows[id(s)]]

    def _with_room(self, lane: Lane, shares: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Make the cells for `shares` free: cold prefixes go first, then the youngest sequences go back to
        the queue, to be prefilled again later. The oldest can always go on, as one request fits the cache."""
        while not lane.kv.make_room(sum(n for _, n in shares)):
            if len(lane.running) == 1:
                raise RuntimeError(f"a request of {len(lane.running[0].tokens)} tokens outgrew the cache")
            youngest = lane.running.pop()
            assert youngest.kv is not None
            lane.kv.stop(youngest.kv, keep=True)
            youngest.kv, youngest.computed = None, 0
            lane.waiting.appendleft(youngest)
            shares = [(s, n) for s, n in shares if s is not youngest] or [(lane.running[0], 1)]
        return shares

    def _build(self, lane: Lane, shares: list[tuple[Sequence, int]]) -> Step:
        self._steps += 1
        rows: list[Row] = []
        picks: list[Pick] = []
        decode_rows = 0
        _, outputs, context = _load(shares)
        for s, n in shares:
            assert s.kv is not None
            if s.decoding:
                decode_rows += 1
            sampled = n == s.pending
            last = s.computed + n - 1
            rows += [Row(s.kv, s.tokens[i], i, sampled and i == last) for i in range(s.computed, s.computed + n)]
            lane.kv.extend(s.kv, s.tokens[s.computed : s.computed + n])
            s.last_step = self._steps
            picks.append(Pick(s, n, sampled))
        predicted = lane.cost.ms(len(rows), outputs, context)
        return Step(lane.model, lane.kv.take_ops(), rows, picks, decode_rows, outputs, context, predicted)


def _load(shares: list[tuple[Sequence, int]]) -> tuple[int, int, int]:
    """Rows, outputs and context of a step of `shares`."""
    rows = outputs = context = 0
    for s, n in shares:
        rows += n
        outputs += n == s.pending
        context += n * s.computed + n * (n - 1) // 2
    return rows, outputs, context


def _sizes(wanted: int, others: int) -> list[int]:
    """Chunk sizes to consider beside `others` rows. Alone: those after which prefill gives the same bits as in one
    go. In company the bits differ anyway: those that fill a tile of 16 rows. The small ones are for where none of
    those fits the limit."""
    if others:
        tiles = [n - others for n in range(16, wanted + others, 16) if n > others]
        return [*range(1, min(wanted, 16)), *(n for n in tiles if n >= 16), wanted]
    exact = [n for n in (SHORTEST_CHUNK, 12, *range(16, wanted, 16)) if n <= wanted - SHORTEST_CHUNK]
    return [*range(1, min(wanted, SHORTEST_CHUNK)), *exact, wanted]

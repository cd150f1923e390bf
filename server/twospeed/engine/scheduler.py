"""What runs next: pure decisions, no clock, no I/O, no ctypes, no randomness.

State in, a Step out; the caller runs it and commits what came of it with the milliseconds it took. So a trace
of adds, cancels and step times always replays to the same plans.

Models share the device by measured milliseconds (start-time fair queueing: Goyal et al., SIGCOMM 1996).
Within a model sequences join and leave between steps (Orca, OSDI 2022); compose.py fills a step.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from .compose import Share, compose, load
from .cost import StepCost
from .kv import KvCache
from .lanes import Lane, Limits, Pick, Sequence, Step
from .runner.base import Row

_RESERVE = 256  # output tokens a sequence is admitted with; it grows beyond them while there is room


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
        return self._build(lane, self._with_room(lane, compose(lane, streaming=streaming)))

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

    def _with_room(self, lane: Lane, shares: list[Share]) -> list[Share]:
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

    def _build(self, lane: Lane, shares: list[Share]) -> Step:
        self._steps += 1
        rows: list[Row] = []
        picks: list[Pick] = []
        decode_rows = 0
        _, outputs, context = load(shares)
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

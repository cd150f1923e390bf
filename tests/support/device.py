"""A device for scheduler tests: what core.Core does with FakeRunners, on a clock of its own.

It checks every step on the way. The fake computes from its cache alone, so text that is right means that rows,
positions, prefixes and drafts were.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

from twospeed.config import Model
from twospeed.engine.cost import Curves, StepCost
from twospeed.engine.kv import Copy, Forget, KvCache, Op, Restore, Save, Trim
from twospeed.engine.lanes import Lanes, Limits, Part, Sequence, Step
from twospeed.engine.runner.base import Logits, Row
from twospeed.engine.runner.fake import FakeRunner
from twospeed.engine.scheduler import Scheduler
from twospeed.types import TIERS, ServiceTier, Share

BOS, END, USER, ASSISTANT = 256, 257, 262, 263
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


class Setup(NamedTuple):
    """One model: `one_ms` for a row, stairs of `tile` rows, `per_output` ms for logits."""

    capacity: int = 4096
    slots: int = 4
    max_rows: int = 64
    max_step_ms: float | None = None
    max_prefill_step_ms: float = 600
    one_ms: float = 10
    tile: int = 4
    per_output: float = 0.5
    spill_tokens: int = 0

    def curves(self) -> Curves:
        last = {n: self.one_ms * (1 + 0.6 * ((n - 1) // self.tile)) for n in _SIZES}
        return Curves(last=last, every={n: last[n] + (n - 1) * self.per_output for n in _SIZES})


class Device:
    def __init__(self, setups: list[Setup], shares: dict[ServiceTier, Share] | None = None) -> None:
        self.now = 0.0
        self.scheduler = Scheduler()
        self.scheduler.share(shares or {tier: Share(speculation="off") for tier in TIERS})
        self.saved: dict[int, bytes] = {}
        self.restored = 0
        self.restores_fail = False
        self.steps: list[Step] = []
        self.tier_ms = dict.fromkeys(TIERS, 0.0)
        self.runners: dict[str, FakeRunner] = {}
        self.plans: list[tuple[Any, ...]] = []
        self.finished: list[Sequence] = []
        self.added: list[Sequence] = []
        self.admitted: dict[tuple[str, str], list[int]] = {}
        self.preempted = 0
        self.served: dict[str, float] = {}
        self._longest_ms = 0.0
        self._level: dict[tuple[str, str], tuple[float, float]] = {}  # both models' time when both became busy
        self._missed: dict[int, int] = {}
        for i, setup in enumerate(setups):
            self.add_model(f"m{i}", setup)

    def add_model(self, name: str, setup: Setup) -> None:
        seqs = 4 * setup.slots + 2
        runner = FakeRunner(None, Model(backend="fake"), max_seqs=seqs)
        runner.info = runner.info._replace(kv_tokens=setup.capacity, max_rows=setup.max_rows)
        self.runners[name] = runner
        limits = Limits(setup.slots, setup.max_rows, setup.max_step_ms, setup.max_prefill_step_ms, setup.spill_tokens)
        self.scheduler.add_model(name, StepCost(setup.curves()), KvCache(setup.capacity, seqs), limits)
        self.served[name] = 0.0

    def lanes(self, name: str = "m0") -> Lanes:
        return self.scheduler.models[name]

    def add(
        self,
        tokens: list[int],
        max_new: int,
        model: str = "m0",
        *,
        namespace: str = "",
        leader: Sequence | None = None,
        tier: ServiceTier = "default",
        **fields: Any,
    ) -> Sequence:
        number = str(len(self.added))
        sequence = Sequence(number, model, list(tokens), max_new, tier, namespace, leader, **fields)
        self.added.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step(self, slowness: float = 1.0) -> Step | None:
        busy = {name for name, lanes in self.scheduler.models.items() if lanes.busy}
        started = [s for s in self.added if s.started is not None]
        was_running = [s for lanes in self.scheduler.models.values() for s in lanes.running]
        step = self.scheduler.plan(self.now)
        self.preempted += sum(s.kv is None for s in was_running)
        if step is None:
            assert not busy
            return None
        self._check_admission(started)
        if step.restored is not None:
            self._restore(step, step.restored)
            return step
        self._check_size(step)
        self.steps.append(step)
        self.plans.append((step.model, step.tier, step.ops, step.rows, step.decode_rows, step.load, step.predicted_ms))
        runner, lanes = self.runners[step.model], self.lanes(step.model)
        for op in step.ops:
            self._do(runner, op)
        written = _written(step.parts, runner.run(step.rows))
        self._check_turns(step, lanes)
        ms = step.predicted_ms * slowness
        self.now += ms / 1000
        self.scheduler.commit(step, ms, self.now, written)
        for tier, fraction in step.charged.items():
            self.tier_ms[tier] += ms * fraction
        assert math.isclose(sum(step.charged.values()), 1.0)
        self._check_shares(step.model, ms, busy)
        for part in step.parts:
            s = part.sequence
            if s.generated and (s.tokens[-1] == END or s.generated >= s.max_new):
                self.release(s)
                self.finished.append(s)
        return step

    def release(self, sequence: Sequence) -> None:
        if sequence.spilled is not None:
            self.saved.pop(sequence.spilled, None)
        self.scheduler.release(sequence)

    def _do(self, runner: FakeRunner, op: Op) -> None:
        match op:
            case Copy(source, target, length):
                runner.copy(source, target, length)
            case Trim(seq, length):
                runner.trim(seq, length)
            case Save(seq, key):
                self.saved[key] = runner.save(seq)
            case Restore(seq, key):
                runner.restore(seq, self.saved.pop(key))
            case Forget(key):
                del self.saved[key]

    def _restore(self, step: Step, sequence: Sequence) -> None:
        *before, last = step.ops
        for op in before:
            self._do(self.runners[step.model], op)
        assert isinstance(last, Restore)
        self.restored += 1
        if self.restores_fail:
            del self.saved[last.key]
            self.scheduler.restore_failed(sequence)
        else:
            self._do(self.runners[step.model], last)

    def drain(self, most: int = 4000) -> None:
        for _ in range(most):
            if self.step() is None:
                return
        raise AssertionError("does not come to an end")

    def run_for(self, ms: float) -> None:
        until = self.now + ms / 1000
        while self.now < until and self.step() is not None:
            pass

    @property
    def mixed(self) -> bool:
        """Whether several service tiers, or drafts, make steps that the simple checks do not describe."""
        off = all(share.speculation == "off" for share in self.scheduler._shares.values())
        return not off or len({s.tier for s in self.added}) > 1

    def _check_admission(self, started: list[Sequence]) -> None:
        """First come, first served in each tier; those that were put back come before those that never ran."""
        for (name, lanes), tier in itertools.product(self.scheduler.models.items(), TIERS):
            mine = [s for s in self.added if s.model == name and s.tier == tier]
            new = [int(s.id) for s in mine if s.started is not None and s not in started]
            admitted = self.admitted.setdefault((name, tier), [])
            admitted += new
            assert admitted == sorted(admitted)
            waiting = lanes.waiting[tier]
            assert all(i > int(admitted[-1]) for i in [int(s.id) for s in waiting if s.started is None] if admitted)
            ages = [int(s.id) for s in waiting]
            assert ages == sorted(ages)
            assert sum(s.tier == tier for s in lanes.running) <= lanes.limits.slots
            assert lanes.kv.hot_cells <= lanes.kv.used <= lanes.kv.capacity

    def _check_size(self, step: Step) -> None:
        lanes = self.lanes(step.model)
        limits = lanes.limits
        assert 0 < len(step.rows) <= limits.max_rows
        assert len({id(p.sequence) for p in step.parts}) == len(step.parts)
        assert [p.sequence.rank for p in step.parts] == sorted(p.sequence.rank for p in step.parts) or self.mixed
        load = (len(step.rows), sum(row.logits for row in step.rows), sum(row.pos for row in step.rows))
        assert step.load == load
        assert step.predicted_ms == lanes.cost.ms(*load)
        if len(step.rows) == 1 or self.mixed:
            return  # the smallest step there is
        decoding = [p.sequence.computed for p in step.parts if p.sequence.decoding]
        limit = limits.max_prefill_step_ms
        if any(s.streaming for other in self.scheduler.models.values() for s in other.running):
            limit = limits.max_step_ms or math.inf
            if limits.max_step_ms is None:
                n = max(1, len(decoding))
                decode = lanes.cost.ms(n, n, sum(decoding))
                limit = max(decode, min(4 * decode, max(4 * lanes.cost.ms(1, 1), 250)))
        assert step.predicted_ms <= limit * (1 + 1e-9)

    def _check_turns(self, step: Step, lanes: Lanes) -> None:
        """Whoever decodes gets a row at least every second round of single rows."""
        ran = {id(p.sequence) for p in step.parts}
        for s in lanes.running:
            missed = 0 if id(s) in ran or not s.decoding else self._missed.get(id(s), 0) + 1
            self._missed[id(s)] = missed
            assert missed <= 2 * lanes.limits.slots + 1 or self.mixed

    def _check_shares(self, model: str, ms: float, busy: set[str]) -> None:
        """While two models both have work, their times differ by a few steps at most."""
        for pair in itertools.combinations(sorted(self.served), 2):
            if not busy.issuperset(pair):
                self._level.pop(pair, None)
            elif pair not in self._level:
                self._level[pair] = (self.served[pair[0]], self.served[pair[1]])
        self.served[model] += ms
        self._longest_ms = max(self._longest_ms, ms)
        for (a, b), (from_a, from_b) in self._level.items():
            apart = (self.served[a] - from_a) - (self.served[b] - from_b)
            assert abs(apart) <= 2.01 * self._longest_ms or self.mixed


def _written(parts: list[Part], logits: Logits) -> list[list[int]]:
    """Greedy: of a draft, what is the model's own choice, and the token after that."""
    written, row = [], 0
    for part in parts:
        if not part.sampled:
            continue
        tokens: list[int] = []
        for drafted in (*part.draft, None):
            tokens.append(int(logits[row + len(tokens)].argmax()))
            if tokens[-1] != drafted or tokens[-1] == END:
                break
        written.append(tokens)
        row += 1 + len(part.draft)
    return written


def alone(tokens: list[int], max_new: int) -> list[int]:
    """What the fake model writes when nobody else is there."""
    runner = FakeRunner(None, Model(backend="fake"), max_seqs=1)
    tokens = list(tokens)
    logits = runner.run([Row(0, t, i, i == len(tokens) - 1) for i, t in enumerate(tokens)])
    output: list[int] = []
    while True:
        output.append(int(logits[0].argmax()))
        if output[-1] == END or len(output) == max_new:
            return output
        logits = runner.run([Row(0, output[-1], len(tokens) + len(output) - 1, True)])


def chat(text: bytes) -> list[int]:
    return [USER, *text, END, ASSISTANT]

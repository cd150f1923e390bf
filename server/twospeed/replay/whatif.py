"""The same requests under another policy: the scheduler on a device that is made of the record.

A request comes when it came, writes what it wrote, and ends where it ended, or was cancelled. A draft is right as far
as it agrees with that. A step takes what the recorded ones tell of its rows and context. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from ..config import Config
from ..engine import trace
from ..engine.lanes import Sequence, Step
from ..engine.recorder import Recorder
from ..gateway.tiers import shares
from ..types import TIERS, ServiceTier, Share, Speculation
from .exact import AsTheyAre, add_model, sequence_of
from .record import Life

_IDS_PER_SLOT = len(TIERS)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Other limits of a model. None: as recorded."""

    slots: int | None = None
    max_step_ms: float | Literal["auto"] | None = None
    max_prefill_step_ms: float | None = None

    def over(self, event: trace.ModelAdded) -> trace.ModelAdded:
        changes: dict[str, float | None] = {}
        if self.slots is not None:
            changes["slots"] = self.slots
            changes["seqs"] = event.seqs + max(self.slots - event.slots, 0) * _IDS_PER_SLOT
        if self.max_step_ms is not None:
            changes["max_step_ms"] = None if self.max_step_ms == "auto" else self.max_step_ms
        if self.max_prefill_step_ms is not None:
            changes["max_prefill_step_ms"] = self.max_prefill_step_ms
        return msgspec.structs.replace(event, **changes)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be different. `models`: each one's limits; `every`: those of all, which come before."""

    shares: Mapping[ServiceTier, Share] | None = None
    speculation: Speculation | None = None
    models: Mapping[str, Limits] = {}
    every: Limits = Limits()

    def shared(self, recorded: Mapping[ServiceTier, Share]) -> dict[ServiceTier, Share]:
        wanted = {tier: Share() for tier in TIERS} | dict(self.shares if self.shares is not None else recorded)
        if self.speculation is None:
            return wanted
        return {tier: msgspec.structs.replace(share, speculation=self.speculation) for tier, share in wanted.items()}

    def model(self, event: trace.ModelAdded) -> trace.ModelAdded:
        return self.every.over(self.models.get(event.model, Limits()).over(event))


def policy_of(config: Config) -> Policy:
    """What a models.yaml says of how the device is shared."""
    return Policy(
        shares=shares(config.service_tiers),
        models={
            name: Limits(slots=m.slots, max_step_ms=m.max_step_ms, max_prefill_step_ms=m.max_prefill_step_ms)
            for name, m in config.models.items()
        },
    )


def simulate(life: Life, policy: Policy, tell: Callable[[trace.Event], None]) -> None:
    """Run `life` under `policy`; `tell` gets a trace of it."""
    _Simulation(life, policy, tell).run()


class _Simulation:
    def __init__(self, life: Life, policy: Policy, tell: Callable[[trace.Event], None]) -> None:
        self._life = life
        self._policy = policy
        self._asked = iter(life.asked)
        self._next = next(self._asked, None)
        self._now = self._next.at if self._next else 0.0
        self._speeds = {name: (speed.fit(), speed) for name, speed in life.speeds.items()}
        self._scheduler = Recorder(tell, AsTheyAre(), lambda: self._now)
        self._sequences: dict[int, Sequence] = {}
        self._pause = life.pause()

    def run(self) -> None:
        self._scheduler.share(self._policy.shared({}))
        while True:
            while self._next is not None and self._next.at <= self._now:
                self._take(self._next)
                self._next = next(self._asked, None)
            step = self._scheduler.plan(self._now)
            if step is not None and step.restored is None:
                self._step(step)
            elif step is None and self._next is None:
                return
            elif step is None and self._next is not None:
                self._now = self._next.at

    def _take(self, event: trace.ModelAdded | trace.Shared | trace.Added | trace.Released) -> None:
        match event:
            case trace.ModelAdded():
                add_model(self._scheduler, self._policy.model(event))
            case trace.Shared(_, shares):
                self._scheduler.share(self._policy.shared(shares))
            case trace.Added(number):
                leader = None if event.leader is None else self._sequences[event.leader]
                self._sequences[number] = sequence_of(event, leader)
                self._scheduler.add(self._sequences[number])
            case trace.Released(number, _, keep):
                if not self._sequences[number].done:
                    self._scheduler.cancel(self._sequences[number], keep=keep)

    def _step(self, step: Step) -> None:
        (factor, per_context), speed = self._speeds[step.model]
        ms = factor * speed.base(step.load) + per_context * step.load.context / 1000
        self._now += ms / 1000
        written = [self._writes(part.sequence, part.draft) for part in step.parts if part.sampled]
        self._scheduler.commit(step, ms, self._now, written)
        for part in step.parts:
            s = part.sequence
            if s.generated and s.generated >= len(self._life.outputs[int(s.id)]):
                self._scheduler.release(s, keep=int(s.id) not in self._life.dropped)
        self._now += self._pause

    def _writes(self, sequence: Sequence, draft: tuple[int, ...]) -> list[int]:
        """What the record has next of its output, as far as the draft was right and one token more."""
        number = int(sequence.id)
        # One that was cancelled before its first token may come to it now: a token that nothing else is.
        rest = self._life.outputs[number][sequence.generated :] or [-1 - number]
        right = 0
        while right < min(len(draft), len(rest) - 1) and draft[right] == rest[right]:
            right += 1
        return rest[: right + 1]

"""What runs next: pure decisions, no clock, no I/O, no ctypes, no randomness.

State in, a Step out; the caller runs it and commits what came of it with the milliseconds it took. So a trace
of adds, cancels and step times always replays to the same plans.

Device time, in measured milliseconds, is shared between service tiers (fair.py) and inside a tier between models.
Within a model sequences join and leave between steps (Orca, OSDI 2022); compose.py fills a step. Whoever is not
scheduled is preempted, and loses nothing by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from ..types import TIERS, ServiceTier, Share
from .compose import Due, Lead, charges, compose, load_of
from .cost import StepCost
from .drafting import leave, plan_draft, took, wrote
from .fair import FairQueue, tier_weights
from .kv import Forget, KvCache
from .lanes import Drafted, DraftLane, Lanes, Limits, Load, Part, Sequence, Step
from .runner.base import Row
from .speculate import Drafter

_RESERVE = 256  # output tokens a sequence is admitted with; it grows beyond them while there is room
_LONE, _LONE_FIRST = 4 / 3, 2.0  # max_prefill_step_ms that a lone stream's draft may take: all of 64 rows
_URGENT_FACTOR = 1.45  # one-row steps that others may add to the gap of a stream with precedence

DEFAULT_SHARES: dict[ServiceTier, Share] = {tier: Share() for tier in TIERS}


class Scheduler:
    """All models of one device."""

    def __init__(self) -> None:
        self.models: dict[str, Lanes] = {}
        self._shares: Mapping[ServiceTier, Share] = DEFAULT_SHARES
        self._tiers: FairQueue[ServiceTier] = FairQueue()
        self._within: dict[ServiceTier, FairQueue[str]] = {tier: FairQueue() for tier in TIERS}
        self._steps = 0
        self._spills = 0

    def add_model(self, name: str, cost: StepCost, kv: KvCache, limits: Limits, draft: DraftLane | None = None) -> None:
        self.models[name] = Lanes(name, cost, kv, limits, draft)

    def share(self, shares: Mapping[ServiceTier, Share]) -> None:
        """How tiers share the device from the next plan on. All start level: what was paid by the old weights would
        be a debt for long by the new ones."""
        self._shares = {**DEFAULT_SHARES, **shares}
        self._tiers = FairQueue()

    def add(self, sequence: Sequence) -> None:
        """Queue `sequence`. Its prompt must leave room for one token at least in the model's cache."""
        self.models[sequence.model].waiting[sequence.tier].append(sequence)

    def release(self, sequence: Sequence, *, keep: bool = True) -> None:
        """`sequence` finished or was cancelled, wherever it was; harmless when it is gone already. What was saved of
        it as `spilled` is not needed any more."""
        lanes = self.models[sequence.model]
        sequence.done = True
        leave(lanes, sequence, keep=keep)
        if sequence.kv is not None:
            lanes.kv.stop(sequence.kv, keep=keep)
            sequence.kv = None
            lanes.running.remove(sequence)
        elif sequence in lanes.waiting[sequence.tier]:
            lanes.waiting[sequence.tier].remove(sequence)

    def cancel(self, sequence: Sequence, *, keep: bool = True) -> None:
        """`release`, of one that may have had more to write; a trace tells them apart."""
        self.release(sequence, keep=keep)

    @property
    def idle(self) -> bool:
        return not any(lanes.busy for lanes in self.models.values())

    def plan(self, now: float) -> Step | None:
        """The next step, or None when there is nothing to do."""
        for lanes in self.models.values():
            if lanes.busy and (restore := self._admit(lanes, now)):
                return restore
        ready: dict[ServiceTier, list[str]] = {}
        for name, lanes in self.models.items():
            for tier in lanes.tiers():
                ready.setdefault(tier, []).append(name)
        for tier in TIERS:
            if tier not in ready:
                self._within[tier].nobody()
        if not ready:
            self._tiers.nobody()
            return None
        weights = tier_weights([tier for tier in TIERS if tier in ready], self._shares)
        tier = self._tiers.next(weights)
        lanes = self.models[self._within[tier].next(dict.fromkeys(ready[tier], 1.0))]
        lead = self._lead(lanes, tier, weights)
        drafting = plan_draft(lanes, lead, weights)
        return drafting or self._build(lanes, tier, self._with_room(lanes, compose(lanes, lead)), weights)

    def commit(self, step: Step, ms: float, now: float, written: Seq[Seq[int]]) -> None:
        """`step` took `ms`; `written` are the tokens that came of its sampled parts, in their order: of one with a
        draft, what of it was right and the token after that."""
        lanes = self.models[step.model]
        self._charge(step, ms)
        own = [part for part in step.parts if part.sequence.tier == step.tier]
        lanes.prefilled_last = any(not p.sequence.decoding for p in own) and not any(p.sequence.decoding for p in own)
        lanes.cost.observe(*step.load, ms)
        tokens = iter(written)
        for part in step.parts:
            if part.sampled:
                self._wrote(lanes, part, next(tokens), now)
            else:
                part.sequence.computed += part.rows

    def drafted(self, step: Step, ms: float, done: Drafted | None) -> None:
        """`step`, one of the draft model, took `ms`. None: it failed, and is not asked again."""
        self._charge(step, ms)
        took(self.models[step.model], step, done)

    def _charge(self, step: Step, ms: float) -> None:
        for tier, fraction in step.charged.items():
            self._tiers.charge(tier, ms * fraction, step.weights[tier])
            self._within[tier].charge(step.model, ms * fraction, 1.0)

    def restore_failed(self, sequence: Sequence) -> None:
        """What was saved of `sequence` could not be put back: it is prefilled again."""
        assert sequence.kv is not None
        self.models[sequence.model].kv.rewind(sequence.kv, 0)
        sequence.computed = 0

    def _wrote(self, lanes: Lanes, part: Part, tokens: Seq[int], now: float) -> None:
        s, offered = part.sequence, len(part.draft)
        accepted = len(tokens) - 1
        s.computed += part.rows + accepted
        if accepted < offered:
            assert s.kv is not None
            lanes.kv.rewind(s.kv, s.computed)
        if s.first_token is None:
            s.first_token = now
            if lanes.kv.partial:
                s.drafter = Drafter(s.tokens, s.prediction)
        s.tokens.extend(tokens)
        wrote(lanes, s, tokens)
        if s.drafter is not None:
            s.drafter.advance(tokens, offered)
        s.drafted += offered
        s.accepted += accepted
        if part.predicted:
            s.predicted += offered
            s.predicted_accepted += accepted

    def _lead(self, lanes: Lanes, tier: ServiceTier, weights: Mapping[ServiceTier, float]) -> Lead:
        """For whom the next step is made, and who else is to be spared."""
        rank = TIERS.index(tier)
        peers = [s for other in self.models.values() for s in other.running if s.rank <= rank and s.streaming]
        urgent = None
        if self._shares[tier].precedence != "first":
            live = {s.model for m in self.models.values() for s in m.running if s.rank < rank and self._is_first(s)}
            if live:
                urgent = _URGENT_FACTOR * min(self.models[name].cost.ms(1, 1) for name in live)
        # A lone stream's drafts hold up nobody but who comes now, and nobody comes before one with precedence.
        first = urgent is not None or self._shares[tier].precedence == "first"
        counted = [s for s in peers if self._is_first(s)] if first else peers
        lone = None if len(counted) > 1 else _LONE_FIRST if first else _LONE
        due = {
            other: Due(self._tiers.credit(other, tier, weights[other]), weights[other] / weights[tier])
            for other in TIERS[rank + 1 :]
            if other in weights
        }
        return Lead(
            tier,
            streaming=bool(peers),
            lone=lone,
            speculation={name: share.speculation for name, share in self._shares.items()},
            urgent_ms=urgent,
            due=due,
        )

    def _is_first(self, sequence: Sequence) -> bool:
        return self._shares[sequence.tier].precedence == "first"

    # Admission

    def _admit(self, lanes: Lanes, now: float) -> Step | None:
        """Move waiting sequences into slots, the most urgent tier's first, then first come first served, while their
        tokens fit. A step, where one has to be put back from RAM."""
        for tier in TIERS:
            waiting = lanes.waiting[tier]
            while waiting and sum(s.tier == tier for s in lanes.running) < lanes.limits.slots:
                sequence = waiting[0]
                if sequence.leader is not None and self._prefilling(sequence.leader):
                    break
                found = self._make_way(lanes, sequence)
                if found is None:
                    break
                donor, length = found
                waiting.popleft()
                lanes.running.append(sequence)
                if sequence.started is None:
                    sequence.started = now
                    sequence.cached = length
                if sequence.spilled is not None and length < sequence.computed:
                    return self._restore(lanes, sequence)
                if sequence.spilled is not None:
                    lanes.kv.ops.append(Forget(sequence.spilled))
                    sequence.spilled = None
                sequence.kv = lanes.kv.start(sequence.tokens, sequence.namespace, donor, length, rank=sequence.rank)
                sequence.computed = length
        return None

    def _make_way(self, lanes: Lanes, sequence: Sequence) -> tuple[int | None, int] | None:
        """The prefix that `sequence` can begin with, once it has room; None while it has not. Running ones of less
        urgent tiers make room for it."""
        equals = [s for s in lanes.running if s.rank <= sequence.rank]
        new = len(sequence.tokens) + min(sequence.max_new - sequence.generated, _RESERVE)
        # What equals share is counted twice here, so this is no proof; but then nobody below is pushed out in vain.
        helpless = bool(equals) and new + sum(self._promised(s) for s in equals) > lanes.kv.capacity
        while True:
            donor, length = lanes.kv.match(sequence.tokens, sequence.namespace)
            whole = sequence.spilled is not None and length < sequence.computed  # comes back from RAM, shares nothing
            shared = length if donor is not None and lanes.kv.is_hot(donor) and not whole else 0
            if not lanes.running or lanes.kv.hot_cells + self._growth(lanes) + new - shared <= lanes.kv.capacity:
                return donor, length
            lowest = max(s.rank for s in lanes.running)
            if helpless or lowest <= sequence.rank:
                return None
            self._preempt(lanes, self._youngest(lanes, lowest))

    @staticmethod
    def _prefilling(leader: Sequence) -> bool:
        return not leader.done and not leader.generated

    @staticmethod
    def _growth(lanes: Lanes) -> int:
        """Cells that the running sequences were promised and do not hold yet."""
        return sum(Scheduler._promised(s) - s.computed for s in lanes.running)

    @staticmethod
    def _promised(sequence: Sequence) -> int:
        """Cells it was admitted with, or has come to need."""
        return max(len(sequence.tokens), sequence.prompt_length + min(sequence.max_new, _RESERVE))

    @staticmethod
    def _youngest(lanes: Lanes, rank: int) -> Sequence:
        return [s for s in lanes.running if s.rank == rank][-1]

    def _preempt(self, lanes: Lanes, sequence: Sequence) -> None:
        """Take a running sequence's cells, and put it at the head of its queue. Its state goes to RAM while there is
        room; without, it is prefilled again later."""
        assert sequence.kv is not None
        lanes.running.remove(sequence)
        leave(lanes, sequence, keep=True)
        if lanes.kv.is_saveable(sequence.kv) and lanes.spilled_tokens + sequence.computed <= lanes.limits.spill_tokens:
            self._spills += 1
            sequence.spilled = self._spills
            lanes.kv.spill(sequence.kv, sequence.spilled)
        else:
            lanes.kv.stop(sequence.kv, keep=True)
            sequence.computed = 0
        sequence.kv = None
        lanes.waiting[sequence.tier].appendleft(sequence)

    def _restore(self, lanes: Lanes, sequence: Sequence) -> Step:
        assert sequence.spilled is not None
        tokens = sequence.tokens[: sequence.computed]
        lanes.kv.make_room(len(tokens))
        sequence.kv = lanes.kv.restore(tokens, sequence.namespace, sequence.spilled, rank=sequence.rank)
        sequence.spilled = None
        ops = lanes.kv.take_ops()
        return Step(lanes.model, sequence.tier, ops, [], [], Load(), 0, 0, 0.0, {}, {}, restored=sequence)

    def _with_room(self, lanes: Lanes, parts: list[Part]) -> list[Part]:
        """Make the cells for `parts` free: cold prefixes go first, then drafts, then the youngest sequences of the
        least urgent tier go back to the queue. The oldest can always go on, as one request fits the cache."""
        if lanes.kv.make_room(load_of(parts).rows):
            return parts
        parts = [Part(p.sequence, p.rows) for p in parts]
        while not lanes.kv.make_room(load_of(parts).rows):
            if len(lanes.running) == 1:
                raise RuntimeError(f"a request of {len(lanes.running[0].tokens)} tokens outgrew the cache")
            youngest = self._youngest(lanes, max(s.rank for s in lanes.running))
            self._preempt(lanes, youngest)
            parts = [p for p in parts if p.sequence is not youngest]
            parts = parts or [Part(min(lanes.running, key=lambda s: s.rank), 1)]
        return parts

    def _build(self, lanes: Lanes, tier: ServiceTier, parts: list[Part], weights: dict[ServiceTier, float]) -> Step:
        self._steps += 1
        rows: list[Row] = []
        load, charged = load_of(parts), charges(lanes, parts)
        for s, own, draft, _ in parts:
            assert s.kv is not None
            tokens = [*s.tokens[s.computed : s.computed + own], *draft]
            first_output = own - 1 if own == s.pending else len(tokens)
            rows += [Row(s.kv, token, s.computed + i, i >= first_output) for i, token in enumerate(tokens)]
            lanes.kv.extend(s.kv, tokens)
            s.last_step = self._steps
        return Step(
            lanes.model,
            tier,
            lanes.kv.take_ops(),
            rows,
            parts,
            load,
            decode_rows=sum(1 for part in parts if part.sequence.decoding),
            draft_rows=sum(len(part.draft) for part in parts),
            predicted_ms=lanes.cost.ms(*load),
            charged=charged,
            weights=weights,
        )

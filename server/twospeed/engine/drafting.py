"""When a draft model guesses for which sequences, how much, and how its cache follows theirs.

A smaller model with the same vocabulary writes a few tokens ahead and the model checks them all in one step
(Leviathan et al. 2023, https://arxiv.org/abs/2211.17192; Chen et al. 2023, https://arxiv.org/abs/2302.01318). Unlike a
copy a guess costs device time, so it is a step of its own: planned here, bounded as any step, charged to the tiers it
was made for. It is planned only for sequences that have nothing to copy from and only where what it may be expected to
win is more than what both models take for it, by what their steps were measured to cost. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from ..types import ServiceTier
from .compose import Lead, load_of, wanting
from .lanes import Ask, Drafted, DraftLane, Follow, Lanes, Load, Part, Sequence, Step, Wanting

_HORIZON = 256  # tokens still to come, at most, that the reading of what was written so far must be won back in


class _Choice(NamedTuple):
    """`guesses` tokens for each of `sequences`. `draft_ms`: what guessing takes; `wins_ms`: how much sooner, for each
    token and sequence, the output comes."""

    sequences: list[Sequence]
    guesses: int
    draft_ms: float
    wins_ms: float


def plan_draft(lanes: Lanes, lead: Lead, weights: dict[ServiceTier, float]) -> Step | None:
    """A step of the draft model before the next one for `lead`, if it is worth its time."""
    if lanes.draft is None:
        return None
    for group in wanting(lanes, lead):
        asks, ms = _asks(lanes, lanes.draft, group)
        if asks:
            for s in group.sequences:
                s.asked = len(s.tokens)  # one step of this kind between two of the model's own
            part = 1 / len(asks)
            charged: dict[ServiceTier, float] = {}
            for ask in asks:
                charged[ask.sequence.tier] = charged.get(ask.sequence.tier, 0.0) + part
            ops = lanes.draft.kv.take_ops()
            return Step(lanes.model, lead.tier, ops, [], [], Load(), 0, 0, ms, charged, weights, asks=tuple(asks))
    return None


def took(lanes: Lanes, step: Step, done: Drafted | None) -> None:
    """What came of a step of the draft model. None: it failed, and is asked no more."""
    lane = lanes.draft
    assert lane is not None
    if done is None:
        lanes.draft = None
        for s in lanes.running:
            s.follow = None
        return
    for load, ms in done.steps:
        lane.cost.observe(*load, ms)
    for ask, guesses in zip(step.asks, done.guesses, strict=True):
        s = ask.sequence
        if guesses:
            assert s.follow is not None
            assert s.drafter is not None
            s.drafter.guess.offer(guesses)
            s.follow.guessed = guesses[:-1]  # the last one was not taken in
            lane.kv.extend(ask.kv, s.follow.guessed)


def wrote(lanes: Lanes, sequence: Sequence, tokens: Seq[int]) -> None:
    """`sequence` goes on with `tokens`: what was guessed otherwise leaves the draft model's cache."""
    follow = sequence.follow
    if follow is None or lanes.draft is None or not follow.guessed:
        return
    for token, guess in zip(tokens[:-1], follow.guessed, strict=False):  # the next guess needs one to begin from
        if token != guess:
            break
        follow.computed += 1
    follow.guessed = []
    lanes.draft.kv.rewind(follow.kv, follow.computed)


def leave(lanes: Lanes, sequence: Sequence, *, keep: bool) -> None:
    """`sequence` ended, or has to wait: it needs no place in the draft model's cache."""
    follow, sequence.follow = sequence.follow, None
    if follow is not None and lanes.draft is not None:
        lanes.draft.kv.rewind(follow.kv, follow.computed)
        lanes.draft.kv.stop(follow.kv, keep=keep)


def _asks(lanes: Lanes, lane: DraftLane, group: Wanting) -> tuple[list[Ask], float]:
    """What the draft model is to do for a group, and what it may take; nothing, most of the time."""
    found = [
        s for s in group.sequences if s.asked != len(s.tokens) and _most(s) and s.drafter and s.drafter.guess.wanted
    ]
    found.sort(key=_odds, reverse=True)
    while found:
        choice = _choose(lanes, lane, group, found)
        if choice is None:
            break
        far = [s for s in choice.sequences if _is_far(lane, s)]
        if not far:
            feeds = [len(s.tokens) - s.follow.computed for s in choice.sequences if s.follow]
            return _with_room(lanes, lane, choice.sequences, feeds, choice.guesses), choice.draft_ms
        lost = [s for s in far if not _won_back(lane, s, choice.wins_ms)]
        if not lost:
            return _catch_up(lanes, lane, far, group.limit)
        for s in lost:
            _rest(s)
            found.remove(s)
    return [], 0.0


def _choose(lanes: Lanes, lane: DraftLane, group: Wanting, found: list[Sequence]) -> _Choice | None:
    """The surest sequences and the number of guesses that give most tokens a millisecond, of both models together."""
    tokens = sum(_expected(part) for part in group.base)
    base = load_of(group.base)
    plain = tokens / lanes.cost.ms(*base)
    best, rate = None, plain * group.worth
    for n in sorted({*(2**i for i in range(6) if 2**i < len(found)), len(found)}):
        chosen = found[:n]
        fed = sum(1 if _is_far(lane, s) else len(s.tokens) - (s.follow.computed if s.follow else 0) for s in chosen)
        chances, expected, load, draft_ms = [1.0] * n, tokens, base, 0.0
        if fed > lane.max_rows:
            break
        for k in range(1, lane.most + 1):
            going = [i for i, s in enumerate(chosen) if _most(s) >= k]
            if not going:
                break
            context = sum(chosen[i].computed for i in going)
            draft_ms += lane.cost.ms(fed if k == 1 else len(going), len(going), context)
            load = load.plus(Load(len(going), len(going), context))
            for i in going:
                chances[i] *= _odds(chosen[i])
                expected += chances[i]
            ms = lanes.cost.ms(*load) + draft_ms
            if ms > group.limit or load.rows > lanes.limits.max_rows:
                break
            if expected / ms > rate:
                rate = expected / ms
                best = _Choice(chosen, k, draft_ms, tokens / n * (1 / plain - 1 / rate))
    return best


def _with_room(lanes: Lanes, lane: DraftLane, sequences: list[Sequence], rows: list[int], guesses: int) -> list[Ask]:
    """Asks for `sequences`, each to take in its next `rows` tokens and to go on with `guesses`. Where the draft
    model's cache is too small, those it does not work for now leave it, then the last of these."""
    wanted = [(s, n, min(guesses, _most(s))) for s, n in zip(sequences, rows, strict=True)]
    others = [s for s in lanes.running if s.follow is not None and s not in sequences]
    while wanted and not lane.kv.make_room(sum(n + max(k - 1, 0) for _, n, k in wanted)):
        loser = others.pop() if others else wanted.pop()[0]
        leave(lanes, loser, keep=True)
        if loser in sequences:
            _rest(loser)
    asks = []
    for s, n, k in wanted:
        assert s.follow is not None
        start = s.follow.computed
        tokens = s.tokens[start : start + n]
        lane.kv.extend(s.follow.kv, tokens)
        s.follow.computed += n
        asks.append(Ask(s, s.follow.kv, start, tokens, k))
    return asks


def _catch_up(lanes: Lanes, lane: DraftLane, far: list[Sequence], limit: float) -> tuple[list[Ask], float]:
    """Let the draft model read what `far` have written, as much as one step may take. It guesses once it is level."""
    limit = min(limit, lanes.limits.max_prefill_step_ms)
    for s in far:
        if s.follow is None:
            donor, length = lane.kv.match(s.tokens, s.namespace)
            s.follow = Follow(lane.kv.start(s.tokens, s.namespace, donor, length, rank=s.rank), length)
    context = max(len(s.tokens) for s in far)
    left = lane.max_rows
    while left > 1 and lane.cost.ms(left, 1, left * context) > limit:
        left //= 2
    rows: list[int] = []
    for s in far:
        assert s.follow is not None
        rows.append(min(left, len(s.tokens) - 1 - s.follow.computed))
        left -= rows[-1]
    reading = [(s, n) for s, n in zip(far, rows, strict=True) if n]
    ms = lane.cost.ms(sum(rows), 1, sum(rows) * context)
    return _with_room(lanes, lane, [s for s, _ in reading], [n for _, n in reading], 0), ms


def _won_back(lane: DraftLane, sequence: Sequence, wins_ms: float) -> bool:
    """Whether reading what `sequence` has written pays, if it goes on for a while as it may be expected to."""
    held = sequence.follow.computed if sequence.follow else lane.kv.match(sequence.tokens, sequence.namespace)[1]
    behind = len(sequence.tokens) - held
    rows = min(behind, lane.max_rows)
    ms = behind / rows * lane.cost.ms(rows, 1, rows * len(sequence.tokens) / 2)
    return ms <= wins_ms * min(sequence.max_new - sequence.generated, _HORIZON)


def _is_far(lane: DraftLane, sequence: Sequence) -> bool:
    """Whether the draft model has to read before it can guess."""
    return sequence.follow is None or len(sequence.tokens) - sequence.follow.computed > 2 * lane.most


def _expected(part: Part) -> float:
    """Tokens that may be expected of a part that decodes."""
    expected = chance = 1.0
    if part.draft and part.sequence.drafter is not None:
        for odds in part.sequence.drafter.propose(len(part.draft)).odds:
            chance *= odds
            expected += chance
    return expected


def _most(sequence: Sequence) -> int:
    """Tokens a draft may have; the last one of a sequence needs none."""
    return sequence.max_new - sequence.generated - 1


def _odds(sequence: Sequence) -> float:
    assert sequence.drafter is not None
    return sequence.drafter.guess.odds


def _rest(sequence: Sequence) -> None:
    assert sequence.drafter is not None
    sequence.drafter.guess.rest()

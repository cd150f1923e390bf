"""Which rows go into one step of one model.

A step is led by one service tier: its decode rows, and as much of its prefill as the predicted cost allows (chunked
and mixed with decode: Sarathi-Serve, https://arxiv.org/abs/2403.02310). Streams of more urgent tiers are never left
out of it, as a row more in a step costs less than a step of its own. What less urgent ones can have for little fills
the rest. Drafts go where they are worth their rows (`_draft`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..types import ServiceTier, Speculation
from .lanes import RANK, Lanes, Load, Part, Sequence, Wanting
from .speculate import LONGEST

SHORTEST_CHUNK = 8
"""Prefill in chunks of this many rows and more, each a multiple of 4 but the last, comes out of llama.cpp's CPU
kernels bit for bit as from one whole batch; other cuts change the last bits."""
_STREAM_FACTOR = 3.5  # `max_step_ms: auto`: a prompt may slow a stream down this much,
_SMOOTH_MS = 250.0  # or to this gap, where many streams run
_MIXED_IS_POOR = 0.3  # of the prefill rate alone; below, prefill and decode take turns
_WORTH = {"auto": 1.15, "eager": 1.1}  # a draft must be this much faster: odds and costs are guesses
_FREE = 1e-3  # of a step's time, which is what a row adds to the context
_HOPELESS = 0.2  # odds of a draft's first token that are not worth a calculation


class Due(NamedTuple):
    """What a less urgent tier may add to a step: `credit_ms`, and `ratio` of what the leading tier's own rows take."""

    credit_ms: float
    ratio: float


class Lead(NamedTuple):
    """For whom a step is made. `urgent_ms`: the most it may add to the rows of more urgent streams, where these are
    of a tier with precedence. `streaming`: somebody on the device who counts as much watches output appear; `lone`:
    where no more than one sequence does, how many max_prefill_step_ms a step with its draft may take. `due`: of the
    tiers that are less urgent."""

    tier: ServiceTier
    streaming: bool
    lone: float | None
    speculation: Mapping[ServiceTier, Speculation]
    urgent_ms: float | None = None
    due: Mapping[ServiceTier, Due] = {}


def compose(lanes: Lanes, lead: Lead) -> list[Part]:
    """The parts of the next step of `lanes`, the most urgent tier's first."""
    rank = RANK[lead.tier]
    ahead = [s for s in lanes.running if s.rank < rank and s.decoding]
    own = [s for s in lanes.running if s.rank == rank]
    decoding = [s for s in own if s.decoding]
    prefilling = [s for s in own if not s.decoding]
    limit = _limit(lanes, lead, [*ahead, *decoding])
    draft_ms = limit
    if lead.lone is not None and lanes.limits.max_step_ms is None:
        draft_ms = lead.lone * lanes.limits.max_prefill_step_ms

    parts = _drafted(lanes, lead, ahead, [], draft_ms, kept=len(decoding) + bool(prefilling))
    before = load_of(parts)
    if lead.urgent_ms is not None:
        limit = min(limit, _ms(lanes, before) + lead.urgent_ms)
    fitting = _fitting(lanes, decoding, before, limit)
    chunk = 0
    if prefilling and lead.urgent_ms is not None:
        # Too little room for both: they take turns.
        if not (fitting and lanes.prefilled_last):
            fitting, chunk = [], max(_best_chunk(lanes, before, prefilling, limit)[0], 1)
    elif prefilling:
        beside = before.plus(load_of([Part(s, 1) for s in fitting]))
        chunk, apart = _chunk(lanes, beside, prefilling, limit)
        if apart and fitting and lanes.prefilled_last:
            chunk = 0
        elif apart:
            fitting, parts = [], []
    if chunk:
        parts = [*parts, *(Part(s, 1) for s in fitting), *_split(prefilling, chunk)]
    else:
        parts = _drafted(lanes, lead, fitting, parts, min(draft_ms, limit) if ahead else draft_ms)
    return _filled(lanes, lead, parts)


def wanting(lanes: Lanes, lead: Lead) -> list[Wanting]:
    """For whom a draft model may be of use in the next step, the eager ones first."""
    rank = RANK[lead.tier]
    if any(s.rank == rank and not s.decoding for s in lanes.running):
        rank -= 1  # beside a prompt its tier has no drafts
    decoding = [s for s in lanes.running if s.decoding and s.rank <= rank]
    limit = _limit(lanes, lead, decoding)
    if lead.urgent_ms is not None:
        limit = min(limit, lead.urgent_ms)
    elif lead.lone is not None and lanes.limits.max_step_ms is None:
        limit = lanes.limits.max_prefill_step_ms
    parts = _drafted(lanes, lead, decoding, [], limit)
    eager = [p for p in parts if _policy(p.sequence, lead) == "eager"]
    groups = []
    for policy, base in (("eager", eager), ("auto", parts)):
        found = [p.sequence for p in base if not p.draft and _policy(p.sequence, lead) == policy and p.sequence.drafter]
        if found:
            groups.append(Wanting(found, base, limit, _WORTH[policy]))
    return groups


def load_of(parts: list[Part]) -> Load:
    """What `parts` are to the cost model."""
    rows = outputs = context = 0
    for s, own, draft, _ in parts:
        n = own + len(draft)
        rows += n
        outputs += 1 + len(draft) if own == s.pending else 0
        context += n * s.computed + n * (n - 1) // 2
    return Load(rows, outputs, context)


def charges(lanes: Lanes, parts: list[Part]) -> dict[ServiceTier, float]:
    """Each tier's part of a step's time, adding up to 1: the most urgent one pays what its rows would cost alone,
    the next one what its rows add, and so on."""
    tiers = {part.sequence.tier for part in parts}
    if len(tiers) == 1:
        return dict.fromkeys(tiers, 1.0)
    whole = _ms(lanes, load_of(parts))
    shares: dict[ServiceTier, float] = {}
    paid = 0.0
    for tier in sorted(tiers, key=RANK.__getitem__):
        upto = _ms(lanes, load_of([p for p in parts if p.sequence.rank <= RANK[tier]]))
        shares[tier] = max(upto - paid, 0.0) / whole
        paid = max(upto, paid)
    return shares


def _ms(lanes: Lanes, load: Load) -> float:
    return lanes.cost.ms(*load)


def _limit(lanes: Lanes, lead: Lead, decoding: list[Sequence]) -> float:
    """Milliseconds this step may be predicted to take."""
    limits = lanes.limits
    if not lead.streaming:
        return limits.max_prefill_step_ms
    if limits.max_step_ms is not None:
        return limits.max_step_ms
    one = lanes.cost.ms(1, 1)
    decode = _ms(lanes, load_of([Part(s, 1) for s in decoding])) or one
    return max(decode, min(_STREAM_FACTOR * decode, max(_STREAM_FACTOR * one, _SMOOTH_MS)))


def _fitting(lanes: Lanes, decoding: list[Sequence], before: Load, limit: float) -> list[Sequence]:
    """All, unless they exceed the limit beside the rows `before` them; then as many as get most done within it, one
    at least, those that waited longest first."""
    waited = sorted(decoding, key=lambda s: s.last_step)

    def ms(n: int) -> float:
        return _ms(lanes, before.plus(load_of([Part(s, 1) for s in waited[:n]])))

    if not decoding or ms(len(decoding)) <= limit:
        return decoding
    fitting = [n for n in range(1, len(decoding)) if ms(n) <= limit]
    return waited[: max(fitting, key=lambda n: n / ms(n), default=1)]


def _chunk(lanes: Lanes, beside: Load, prefilling: list[Sequence], limit: float) -> tuple[int, bool]:
    """Prefill rows for this step, and whether they should run in a step of their own."""
    rows, rate = _best_chunk(lanes, beside, prefilling, limit)
    if not beside.rows:
        return max(rows, 1), True
    rows_apart, rate_apart = _best_chunk(lanes, Load(), prefilling, limit)
    if rate < _MIXED_IS_POOR * rate_apart or rows == 0:
        return max(rows_apart, 1), True
    return rows, False


def _best_chunk(lanes: Lanes, beside: Load, prefilling: list[Sequence], limit: float) -> tuple[int, float]:
    """The prefill rows with the best rate within the limit, and that rate: on a staircase it is often not the largest
    chunk."""
    wanted = min(sum(s.pending for s in prefilling), lanes.limits.max_rows - beside.rows)
    rows, rate = 0, 0.0
    for n in _sizes(wanted, beside.rows):
        ms = _ms(lanes, beside.plus(load_of(_split(prefilling, n))))
        all_at_once = n == wanted and not beside.rows  # the first token sooner beats a better rate
        if ms <= limit and (n / ms >= rate or all_at_once):
            rows, rate = n, n / ms
    return rows, rate


def _split(prefilling: list[Sequence], chunk: int) -> list[Part]:
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
    return [Part(s, rows[id(s)]) for s in prefilling if rows[id(s)]]


def _sizes(wanted: int, others: int) -> list[int]:
    """Chunk sizes to consider beside `others` rows. Alone: those after which prefill gives the same bits as in one
    go. In company the bits differ anyway: those that fill a tile of 16 rows. The small ones are for where none of
    those fits the limit."""
    if others:
        tiles = [n - others for n in range(16, wanted + others, 16) if n > others]
        return [*range(1, min(wanted, 16)), *(n for n in tiles if n >= 16), wanted]
    exact = [n for n in (SHORTEST_CHUNK, 12, *range(16, wanted, 16)) if n <= wanted - SHORTEST_CHUNK]
    return [*range(1, min(wanted, SHORTEST_CHUNK)), *exact, wanted]


def _drafted(
    lanes: Lanes, lead: Lead, decoding: list[Sequence], parts: list[Part], limit: float, *, kept: int = 0
) -> list[Part]:
    """`parts` and a part for each of `decoding`, with the draft that is worth its rows; `kept` rows are for others.

    One after the other, each taking the length at which the expected tokens of the step for each millisecond are
    most, with none always among them. An eager one looks at the rows up to its own, the others at all.
    """
    plain = [Part(s, 1) for s in decoding]
    eager = [p for p in plain if _policy(p.sequence, lead) == "eager"]
    others = [p for p in plain if _policy(p.sequence, lead) != "eager"]
    done = list(parts)
    tokens = float(sum(1 for p in parts if p.sampled))
    room = lanes.limits.max_rows - kept - load_of([*parts, *plain]).rows  # for drafts
    for group in (eager, others):
        for i, part in enumerate(group):
            rest = group[i + 1 :] if group is others else []
            beside = _Beside(load_of([*done, *rest]), tokens + len(rest), limit, room)
            best, expected = _draft(lanes, part, _policy(part.sequence, lead), beside)
            done.append(best)
            tokens += expected
            room -= len(best.draft)
    return done


class _Beside(NamedTuple):
    """What else is in a step that a draft is considered for: its load and the tokens expected of it; how long the
    step may take, and how many rows a draft may have."""

    load: Load
    tokens: float
    limit: float
    room: int


def _draft(lanes: Lanes, part: Part, policy: Speculation, beside: _Beside) -> tuple[Part, float]:
    """`part` with its best draft, and how many tokens it may be expected to give."""
    s = part.sequence
    # The last token needs no row.
    most = min(s.max_new - s.generated - 1, beside.room, LONGEST)
    if s.drafter is None or policy == "off" or most < 1:
        return part, 1.0
    draft = s.drafter.propose(most)
    if not draft.tokens or draft.odds[0] < _HOPELESS:
        return part, 1.0
    rate = (beside.tokens + 1) / _ms(lanes, beside.load.plus(load_of([part]))) * _WORTH[policy]
    best, gained, so_far, expected = 0, 1.0, 1.0, 1.0
    for k, odds in enumerate(draft.odds, 1):
        so_far *= odds
        expected += so_far
        if k > 8 and (beside.load.rows + 1 + k) % 8 and k < len(draft.odds):
            continue  # between stairs
        ms = _ms(lanes, beside.load.plus(load_of([Part(s, 1, tuple(draft.tokens[:k]))])))
        if ms > beside.limit:
            break
        if (beside.tokens + expected) / ms > rate:
            best, gained, rate = k, expected, (beside.tokens + expected) / ms
    return Part(s, 1, tuple(draft.tokens[:best]), draft.source == "prediction"), gained


def _policy(sequence: Sequence, lead: Lead) -> Speculation:
    return sequence.speculation or lead.speculation[sequence.tier]


def _filled(lanes: Lanes, lead: Lead, parts: list[Part]) -> list[Part]:
    """`parts`, and decode rows of less urgent tiers: those that cost nothing, and those that their tier is due."""
    below = [s for s in lanes.running if s.rank > RANK[lead.tier] and s.decoding]
    if not below:
        return parts
    load = load_of(parts)
    own_ms = ms = _ms(lanes, load)
    added: list[Part] = []
    left = {tier: max(due.credit_ms + due.ratio * own_ms, 0.0) for tier, due in lead.due.items()}
    for s in sorted(below, key=lambda s: (s.rank, s.last_step)):
        more = load.plus(load_of([Part(s, 1)]))
        costs = _ms(lanes, more) - ms
        if costs > max(left[s.tier], _FREE * own_ms) or more.rows > lanes.limits.max_rows:
            continue
        added.append(Part(s, 1))
        left[s.tier] -= costs
        load, ms = more, ms + costs
    return [*parts, *added]

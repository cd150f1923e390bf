"""Which rows go into one step of one model: decode rows, and as much prefill as the predicted cost allows.

Pure. Prefill is chunked and mixed with decode (Sarathi-Serve, https://arxiv.org/abs/2403.02310).
"""

from __future__ import annotations

from .lanes import Lane, Sequence

Share = tuple[Sequence, int]
"""How many of a sequence's pending tokens are in a step."""

SHORTEST_CHUNK = 8
"""Prefill in chunks of this many rows and more, each a multiple of 4 but the last, comes out of llama.cpp's CPU
kernels bit for bit as from one whole batch; other cuts change the last bits."""
_STREAM_FACTOR = 4.0  # `max_step_ms: auto`: a prompt may slow a stream down this much,
_SMOOTH_MS = 250.0  # or to this gap, where many streams run
_MIXED_IS_POOR = 0.3  # of the prefill rate alone; below, prefill and decode take turns


def compose(lane: Lane, *, streaming: bool) -> list[Share]:
    """The rows of the next step of `lane`. `streaming`: somebody on the device watches output appear."""
    decoding = [s for s in lane.running if s.decoding]
    prefilling = [s for s in lane.running if not s.decoding]
    limit = _limit(lane, decoding, streaming=streaming)
    decoding = _fitting(lane, decoding, limit)
    chunk = 0
    if prefilling:
        chunk, alone = _chunk(lane, decoding, prefilling, limit)
        if alone and decoding:
            if lane.prefilled_last:
                prefilling, chunk = [], 0
            else:
                decoding = []
    return [(s, 1) for s in decoding] + _split(prefilling, chunk)


def _limit(lane: Lane, decoding: list[Sequence], *, streaming: bool) -> float:
    """Milliseconds this step may be predicted to take."""
    limits = lane.limits
    if not streaming:
        return limits.max_prefill_step_ms
    if limits.max_step_ms is not None:
        return limits.max_step_ms
    one = lane.cost.ms(1, 1)
    decode = lane.cost.ms(*load([(s, 1) for s in decoding])) or one
    return max(decode, min(_STREAM_FACTOR * decode, max(_STREAM_FACTOR * one, _SMOOTH_MS)))


def _fitting(lane: Lane, decoding: list[Sequence], limit: float) -> list[Sequence]:
    """All, unless they exceed the limit; then as many as get most done within it, one at least, those that
    waited longest first."""
    waited = sorted(decoding, key=lambda s: s.last_step)

    def ms(n: int) -> float:
        return lane.cost.ms(*load([(s, 1) for s in waited[:n]]))

    if ms(len(decoding)) <= limit:
        return decoding
    fitting = [n for n in range(1, len(decoding)) if ms(n) <= limit]
    return waited[: max(fitting, key=lambda n: n / ms(n), default=1)]


def _chunk(lane: Lane, decoding: list[Sequence], prefilling: list[Sequence], limit: float) -> tuple[int, bool]:
    """Prefill rows for this step, and whether they should run in a step of their own.

    The size with the best rate within the limit: on a staircase the largest one often is not."""
    wanted = min(sum(s.pending for s in prefilling), lane.limits.max_rows - len(decoding))

    def best(others: list[Sequence]) -> tuple[int, float]:
        rows, rate = 0, 0.0
        beside = load([(s, 1) for s in others])
        for n in _sizes(wanted, len(others)):
            chunk = load(_split(prefilling, n))
            ms = lane.cost.ms(*map(sum, zip(beside, chunk, strict=True)))
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


def _split(prefilling: list[Sequence], chunk: int) -> list[Share]:
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


def load(shares: list[Share]) -> tuple[int, int, int]:
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

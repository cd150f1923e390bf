"""A scheduler that tells what it is asked and what it decides, as events of a trace.

It decides nothing itself, so a run without a trace has a plain Scheduler and pays nothing. A replay uses it too: what
it tells then must be what was recorded.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from .. import __version__
from ..types import ServiceTier, Share
from . import trace
from .cost import Curves, StepCost
from .kv import KvCache
from .lanes import DraftLane, Limits, Part, Sequence, Step
from .scheduler import Scheduler
from .tracefile import TraceFile

_log = logging.getLogger("twospeed.engine")

_DIGITS = 6  # of predictions: enough to tell plans apart, and no rounding of another machine's in it
_BYTES = 6  # of a pseudonym: tokens that get the same one by chance would be one in billions
_REMEMBERED = 200_000


class Names(Protocol):
    """How the trace calls namespaces and tokens."""

    def namespace(self, namespace: str) -> int: ...

    def tokens(self, model: str, namespace: str, tokens: Seq[int]) -> list[int]: ...


class Pseudonyms:
    """Hashes under a key that is random, never leaves this object and is gone with the process.

    Equal tokens are equal within one namespace of one model, since no decision depends on more.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._place = lru_cache(64)(self._secret)
        self._number = lru_cache(_REMEMBERED)(_number)

    def namespace(self, namespace: str) -> int:
        return _number(self._secret("", namespace), 0)

    def tokens(self, model: str, namespace: str, tokens: Seq[int]) -> list[int]:
        place, number = self._place(model, namespace), self._number
        return [number(place, token) for token in tokens]

    def _secret(self, model: str, namespace: str) -> bytes:
        """A key for each namespace of each model."""
        return blake2b(f"{model}\0{namespace}".encode(), key=self._key, digest_size=32).digest()


def _number(place: bytes, token: int) -> int:
    return int.from_bytes(blake2b(place + token.to_bytes(8), digest_size=_BYTES).digest())


@contextmanager
def recording(path: Path | None) -> Iterator[Scheduler]:
    """A scheduler that is recorded at `path`, until the end of the block; a plain one without a path, and where the
    file cannot be written."""
    file: TraceFile | None = None
    try:
        file = TraceFile(path) if path else None
    except (OSError, trace.TraceError) as error:
        _log.error("no trace is written to %s: %s", path, error)
    if file is None:
        yield Scheduler()
        return
    file.write(trace.encode(trace.Header(trace.FORMAT, __version__)))
    try:
        yield Recorder(lambda event: file.write(trace.encode(event)))
    finally:
        file.close()


class Recorder(Scheduler):
    """`clock` must be that of the times it is given."""

    def __init__(
        self,
        tell: Callable[[trace.Told], None],
        names: Names | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self._tell = tell
        self._names = names or Pseudonyms()
        self._clock = clock
        self._numbers: dict[Sequence, int] = {}
        self._added = 0
        self._was_idle = False
        self._preempted: list[int] = []
        self._curves: dict[str, Curves] = {}

    def add_model(self, name: str, cost: StepCost, kv: KvCache, limits: Limits, draft: DraftLane | None = None) -> None:
        if draft is not None:  # what it guesses is decided outside the scheduler
            _log.warning("%s runs without its draft model while a trace is recorded", name)
        self._say(
            trace.ModelAdded(
                model=name,
                at=self._clock(),
                curves=cost.curves,
                capacity=kv.capacity,
                seqs=kv.max_seqs,
                partial_prefix=kv.partial,
                **limits._asdict(),
            )
        )
        super().add_model(name, cost, kv, limits)

    def share(self, shares: Mapping[ServiceTier, Share]) -> None:
        self._say(trace.Shared(self._clock(), dict(shares)))
        super().share(shares)

    def add(self, sequence: Sequence) -> None:
        leader = sequence.leader
        number = self._numbers[sequence] = self._added
        self._added += 1
        same = (
            leader in self._numbers
            and leader.namespace == sequence.namespace
            and leader.prediction == sequence.prediction
            and leader.tokens[: leader.prompt_length] == sequence.tokens
        )
        self._say(
            trace.Added(
                sequence=number,
                model=sequence.model,
                tier=sequence.tier,
                at=sequence.arrived,
                max_new=sequence.max_new,
                namespace=self._names.namespace(sequence.namespace),
                prompt=None if same else self._tokens(sequence, sequence.tokens),
                prediction=[] if same else self._tokens(sequence, sequence.prediction),
                leader=None if leader is None else self._numbers.get(leader),  # one that is over holds nobody up
                speculation=sequence.speculation,
            )
        )
        super().add(sequence)

    def release(self, sequence: Sequence, *, keep: bool = True) -> None:
        self._over(sequence, keep=keep, cancelled=False)
        super().release(sequence, keep=keep)

    def cancel(self, sequence: Sequence, *, keep: bool = True) -> None:
        self._over(sequence, keep=keep, cancelled=True)
        super().release(sequence, keep=keep)

    def plan(self, now: float) -> Step | None:
        running = [s for lanes in self.models.values() for s in lanes.running]
        step = super().plan(now)
        self._preempted += [self._numbers[s] for s in running if s.kv is None]
        if step is None and not self._was_idle:
            self._say(trace.Idle(now))
            self._was_idle = True
        if step is not None and step.restored is not None:
            self._say(trace.Restored(self._numbers[step.restored], now))
        return step

    def commit(self, step: Step, ms: float, now: float, written: Seq[Seq[int]]) -> None:
        results = iter(written)
        self._say(
            trace.Stepped(
                model=step.model,
                tier=step.tier,
                at=now,
                ms=ms,
                predicted_ms=round(step.predicted_ms, _DIGITS),
                load=step.load,
                decode_rows=step.decode_rows,
                draft_rows=step.draft_rows,
                charged={tier: round(part, _DIGITS) for tier, part in step.charged.items()},
                parts=[self._part(part, next(results) if part.sampled else None) for part in step.parts],
                preempted=self._preempted,
            )
        )
        self._preempted = []
        super().commit(step, ms, now, written)

    def restore_failed(self, sequence: Sequence) -> None:
        self._say(trace.RestoreFailed(self._numbers[sequence], self._clock()))
        super().restore_failed(sequence)

    def _say(self, event: trace.Told) -> None:
        self._was_idle = False
        self._tell(event)

    def _over(self, sequence: Sequence, *, keep: bool, cancelled: bool) -> None:
        number = self._numbers.pop(sequence, None)
        if number is not None:
            self._say(trace.Released(number, self._clock(), keep, cancelled))

    def _part(self, part: Part, written: Seq[int] | None) -> trace.Part:
        s = part.sequence
        tokens = None if written is None else self._tokens(s, written)
        return trace.Part(self._numbers[s], part.rows, self._tokens(s, part.draft), part.predicted, tokens)

    def _tokens(self, sequence: Sequence, tokens: Seq[int]) -> list[int]:
        return self._names.tokens(sequence.model, sequence.namespace, tokens) if tokens else []

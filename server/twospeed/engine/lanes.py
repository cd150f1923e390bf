"""What the scheduler decides about: sequences, the lanes of each model, and the steps it makes of them.

Plain state, as pure as the scheduler itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..types import TIERS, ServiceTier, Speculation
from .cost import StepCost
from .kv import KvCache, Op
from .runner.base import Row
from .speculate import Drafter

RANK: dict[ServiceTier, int] = {tier: rank for rank, tier in enumerate(TIERS)}
"""How far a service tier is from the most urgent one."""


@dataclass(eq=False, slots=True)
class Follow:
    """How far a draft model's cache follows a sequence: `computed` of its tokens and then `guessed` are there, as
    `kv`."""

    kv: int
    computed: int
    guessed: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Sequence:
    """One completion in the making. `tokens`: prompt, then output; the first `computed` of them are in the
    KV cache as `kv`, or in RAM as `spilled`. `leader`: its sibling that prefills the prompt for both.
    `speculation=None`: as its tier has it. `drafter`: from the first token on, where the model's cache can take back
    what was wrong. `asked`: how many tokens it had when a draft model was last set to work for it."""

    id: str
    model: str
    tokens: list[int]
    max_new: int
    tier: ServiceTier = "default"
    namespace: str = ""
    leader: Sequence | None = None
    speculation: Speculation | None = None
    prediction: list[int] = field(default_factory=list)
    drafter: Drafter | None = None
    follow: Follow | None = None
    asked: int = 0
    arrived: float = 0.0
    prompt_length: int = field(init=False)
    kv: int | None = None
    spilled: int | None = None
    computed: int = 0
    cached: int = 0
    started: float | None = None
    first_token: float | None = None
    last_step: int = 0
    done: bool = False
    drafted: int = 0
    accepted: int = 0
    predicted: int = 0
    predicted_accepted: int = 0

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def rank(self) -> int:
        return RANK[self.tier]

    @property
    def pending(self) -> int:
        """Tokens not in the cache yet: 1 while decoding, more in prefill."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        return self.pending == 1

    @property
    def streaming(self) -> bool:
        """Somebody watches its output appear."""
        return self.decoding and self.generated > 0

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length


class Part(NamedTuple):
    """A sequence's part of a step: `rows` of its pending tokens, then `draft`."""

    sequence: Sequence
    rows: int
    draft: tuple[int, ...] = ()
    predicted: bool = False
    """The draft is from the client's prediction."""

    @property
    def sampled(self) -> bool:
        """Its next token comes of this step."""
        return self.rows == self.sequence.pending


class Load(NamedTuple):
    """What a step is to the cost model: rows, rows with logits, and all rows' positions, summed."""

    rows: int = 0
    outputs: int = 0
    context: int = 0

    def plus(self, other: Load) -> Load:
        return Load(self.rows + other.rows, self.outputs + other.outputs, self.context + other.context)


class Wanting(NamedTuple):
    """Sequences without a draft worth its rows, and what one would be weighed against: the parts `base`; the most that
    it and the step may take; how much faster it must make them."""

    sequences: list[Sequence]
    base: list[Part]
    limit: float
    worth: float


class Ask(NamedTuple):
    """For a draft model: take in `tokens` of `sequence` from position `start` of `kv` on, then write on, `guesses`
    tokens."""

    sequence: Sequence
    kv: int
    start: int
    tokens: list[int]
    guesses: int


class Drafted(NamedTuple):
    """What a draft model wrote for each ask, and the calls of its runner with their milliseconds."""

    guesses: list[list[int]]
    steps: list[tuple[Load, float]]


class Step(NamedTuple):
    """One call of one model's runner, after its `ops`, led by `tier`. `charged`: each tier's part of its time; they
    add up to 1. Without rows it is a step of `ops` alone, for `restored`, and may fail; or one of the model's draft
    model, for `asks`, with that one's `ops`."""

    model: str
    tier: ServiceTier
    ops: list[Op]
    rows: list[Row]
    parts: list[Part]
    load: Load
    decode_rows: int
    draft_rows: int
    predicted_ms: float
    charged: dict[ServiceTier, float]
    weights: dict[ServiceTier, float]
    restored: Sequence | None = None
    asks: tuple[Ask, ...] = ()


class Limits(NamedTuple):
    """Milliseconds a step may cost, how many sequences of a tier and rows a model runs at once, and how many tokens
    of preempted sequences RAM may hold."""

    slots: int
    max_rows: int
    max_step_ms: float | None
    max_prefill_step_ms: float
    spill_tokens: int = 0


class DraftLane(NamedTuple):
    """A model's draft model: what its steps cost, its own cache, tokens of a draft and rows of a step at most."""

    cost: StepCost
    kv: KvCache
    most: int
    max_rows: int


@dataclass(eq=False, slots=True)
class Lanes:
    """One model's sequences: a lane of waiting ones for each service tier, and those that run."""

    model: str
    cost: StepCost
    kv: KvCache
    limits: Limits
    draft: DraftLane | None = None
    waiting: dict[ServiceTier, deque[Sequence]] = field(default_factory=lambda: {tier: deque() for tier in TIERS})
    running: list[Sequence] = field(default_factory=list)
    prefilled_last: bool = False

    @property
    def busy(self) -> bool:
        return bool(self.running) or any(self.waiting.values())

    def tiers(self) -> Iterator[ServiceTier]:
        """Service tiers that run something, the most urgent first."""
        present = {s.tier for s in self.running}
        return (tier for tier in TIERS if tier in present)

    @property
    def spilled_tokens(self) -> int:
        return sum(s.computed for lane in self.waiting.values() for s in lane if s.spilled is not None)

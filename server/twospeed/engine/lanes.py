"""What the scheduler decides about: sequences, the lane of each model, and the steps it makes of them.

Plain state, as pure as the scheduler itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from .cost import StepCost
from .kv import KvCache, Op
from .runner.base import Row


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

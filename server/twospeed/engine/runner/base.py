"""The small interface between the engine and whatever computes logits.

A runner knows tokens and KV sequences and nothing of requests, time or policy. Each implementation is one
file and passes the contract tests in tests/engine/runner.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...config import Model

Logits = npt.NDArray[np.float32]


class RunnerError(Exception):
    """The model cannot be loaded or a step failed; str() is one line for a person."""


class Row(NamedTuple):
    """One token of one sequence in a step. `logits`: the caller wants what the model says after it."""

    seq: int
    token: int
    pos: int
    logits: bool


class RunnerInfo(NamedTuple):
    """Facts of a loaded model. `partial_prefix`: a sequence can be cut back to any shorter length. `token_bytes`: what
    one token of a saved sequence takes."""

    description: str
    context: int
    kv_tokens: int
    max_rows: int
    parameters: int
    size_bytes: int
    partial_prefix: bool
    token_bytes: int
    fingerprint: str


class Vocab(Protocol):
    """Tokens and text. Safe to use from any thread, also while a step runs."""

    @property
    def size(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""
        ...

    @property
    def bos_text(self) -> str: ...

    @property
    def eos_text(self) -> str: ...

    @property
    def chat_template(self) -> str | None:
        """Jinja source, where the model brings one."""
        ...

    @property
    def fim(self) -> tuple[int, int, int] | None:
        """Fill-in-the-middle tokens: before the prefix, the suffix and the middle."""
        ...

    def tokenize(self, text: str, *, bos: bool) -> list[int]:
        """Tokens of `text`, special-token spellings included; `bos` puts the model's first token before
        them, where the model wants one and the text does not have it."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes `token` stands for: maybe a part of a UTF-8 character; empty for control tokens
        unless `special`."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether `token` is a control or user-defined token, which text never merges into."""
        ...


class Runner(Protocol):
    """One loaded model with its KV cache. Used by one thread at a time; sequence ids are 0 .. `max_seqs` - 1."""

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def vocab(self) -> Vocab: ...

    def run(self, rows: Sequence[Row]) -> Logits:
        """One step. Returns float32 logits of shape (rows with `logits`, vocabulary size), in the order of
        `rows`; the array is a view that the next call overwrites. Positions of a sequence must go on from
        its length. Raises RunnerError.
        """
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Let the empty sequence `target` share the first `length` tokens of `source`."""
        ...

    def trim(self, seq: int, length: int) -> None:
        """Cut `seq` back to its first `length` tokens; 0 empties it."""
        ...

    def save(self, seq: int) -> bytes:
        """The state of `seq`, for `restore` into an empty sequence of the same model."""
        ...

    def restore(self, seq: int, state: bytes) -> None:
        """Put back what `save` gave. Raises RunnerError where it does not fit."""
        ...

    def close(self) -> None:
        """Free everything. Nothing else may be called afterwards."""
        ...


class Loader(Protocol):
    """Makes a runner; slow, so called off the compute thread. Raises RunnerError."""

    def __call__(self, path: Path | None, model: Model, *, max_seqs: int) -> Runner: ...

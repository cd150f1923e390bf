"""Which sequence holds which KV cells, and which old prefixes can be taken up again.

Pure bookkeeping beside the runner's cache: it decides, the runner follows. A cell holds one token's keys and
values; sequences that share a prefix share its cells (SGLang's RadixAttention does the same on blocks,
https://arxiv.org/abs/2312.07104), so a copy costs nothing and a cell is free when nobody holds it. A finished
sequence stays, cold, until its cells or its id are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_WORTH_KEEPING = 8  # tokens; shorter prefixes cost less to prefill than to look after


class Copy(NamedTuple):
    """Let empty `target` share the first `length` tokens of `source`."""

    source: int
    target: int
    length: int


class Trim(NamedTuple):
    """Cut `seq` back to `length` tokens."""

    seq: int
    length: int


class Save(NamedTuple):
    """Keep the state of `seq` in RAM as `key`; it is emptied right after."""

    seq: int
    key: int


class Restore(NamedTuple):
    """Put what was saved as `key` into empty `seq`."""

    seq: int
    key: int


class Forget(NamedTuple):
    """What was saved as `key` is not needed."""

    key: int


Op = Copy | Trim | Save | Restore | Forget


@dataclass(slots=True)
class _Held:
    """What one sequence id holds. `tokens` and `cells` have equal length; hot: a running request's. `rank`: how far
    its service tier is from the most urgent one."""

    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    namespace: str = ""
    hot: bool = False
    used_at: int = 0
    rank: int = 0


class KvCache:
    """The cells of one model: `capacity` tokens for at most `max_seqs` sequences."""

    def __init__(self, capacity: int, max_seqs: int, *, partial_prefix: bool = True) -> None:
        self.capacity = capacity
        self.max_seqs = max_seqs
        self.ops: list[Op] = []
        """What the runner must do before the next step, in order."""
        self._partial = partial_prefix
        self._free_cells = list(range(capacity - 1, -1, -1))
        self._refs: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self._hot_refs: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self._free_seqs = list(range(max_seqs - 1, -1, -1))
        self._held: dict[int, _Held] = {}
        self._clock = 0
        self.hot_cells = 0
        """Cells that running requests hold."""

    @property
    def used(self) -> int:
        return self.capacity - len(self._free_cells)

    @property
    def free(self) -> int:
        return len(self._free_cells)

    @property
    def cold(self) -> int:
        """Cells that only cold prefixes hold."""
        return self.used - self.hot_cells

    def length(self, seq: int) -> int:
        return len(self._held[seq].tokens)

    def match(self, tokens: Sequence[int], namespace: str) -> tuple[int | None, int]:
        """The sequence that shares the longest prefix with `tokens`, and how long it is. One token is always
        left to decode: a sequence's last logits are not kept."""
        best, best_length = None, 0
        most = len(tokens) - 1
        for seq, held in self._held.items():
            if held.namespace != namespace or not held.tokens:
                continue
            length = _common_prefix(held.tokens, tokens, most)
            if not self._partial and length < len(held.tokens):
                continue
            if length > best_length:
                best, best_length = seq, length
        return best, best_length

    @property
    def partial(self) -> bool:
        """Whether a sequence can be cut back to any shorter length."""
        return self._partial

    def is_saveable(self, seq: int) -> bool:
        """Whether it holds what is worth saving: something, and not what others hold as well."""
        cells = self._held[seq].cells
        return bool(cells) and int(np.count_nonzero(self._hot_refs[cells] > 1)) * 2 < len(cells)

    def is_hot(self, seq: int) -> bool:
        return self._held[seq].hot

    def start(self, tokens: Sequence[int], namespace: str, donor: int | None, length: int, *, rank: int = 0) -> int:
        """A hot sequence for a request, beginning with `length` tokens of `donor` (from `match`). Raises
        IndexError when every other sequence id is hot."""
        if donor is not None and self._may_take_over(donor, length):
            seq = donor
            self._cut(seq, length)
        else:
            if not self._free_seqs:
                self._evict_one(spare=donor)
            seq = self._free_seqs.pop()
            self._held[seq] = _Held(namespace=namespace)
            if donor is not None and length:
                self._share(donor, seq, length)
        held = self._held[seq]
        held.rank = rank
        self._heat(held)
        self._touch(held)
        return seq

    def spill(self, seq: int, key: int) -> None:
        """Hot `seq` goes to RAM as `key`; its cells and its id are free."""
        self._cool(self._held[seq])
        self.ops.append(Save(seq, key))
        self._drop(seq)

    def restore(self, tokens: Sequence[int], namespace: str, key: int, *, rank: int = 0) -> int:
        """A hot sequence with `tokens`, which `spill` once put away as `key`. There must be room."""
        seq = self.start(tokens, namespace, None, 0, rank=rank)
        self.extend(seq, tokens)
        self.ops.append(Restore(seq, key))
        return seq

    def rewind(self, seq: int, length: int) -> None:
        """Cut hot `seq` back to `length` tokens: drafts that turned out wrong."""
        held = self._held[seq]
        gone = held.cells[length:]
        if gone:
            refs = self._hot_refs[gone] - 1
            self.hot_cells -= int(np.count_nonzero(refs == 0))
            self._hot_refs[gone] = refs
            self._cut(seq, length)

    def extend(self, seq: int, tokens: Sequence[int]) -> None:
        """`tokens` are decoded into hot `seq` in the next step. There must be room: see `make_room`."""
        held = self._held[seq]
        cells = [self._free_cells.pop() for _ in tokens]
        self._refs[cells] = 1
        self._hot_refs[cells] = 1
        self.hot_cells += len(cells)
        held.tokens.extend(tokens)
        held.cells.extend(cells)

    def make_room(self, cells: int) -> bool:
        """Evict cold prefixes until `cells` are free, the least urgent tier's first and of these the least recently
        used; False if that was not enough."""
        while self.free < cells and self._evict_one(spare=None, must=False):
            pass
        return self.free >= cells

    def stop(self, seq: int, *, keep: bool) -> None:
        """The request of `seq` is over; its prefix goes cold if it is worth keeping and `keep` says so."""
        held = self._held[seq]
        self._cool(held)
        if not keep or len(held.tokens) < _WORTH_KEEPING:
            self._drop(seq)
            return
        self._touch(held)
        covered = [
            other
            for other, old in self._held.items()
            if other != seq
            and not old.hot
            and old.namespace == held.namespace
            and len(old.tokens) <= len(held.tokens)
            and held.tokens[: len(old.tokens)] == old.tokens
        ]
        if self._partial:
            for other in covered:
                self._drop(other)

    def clear(self) -> None:
        """Forget all cold prefixes."""
        for seq in [s for s, held in self._held.items() if not held.hot]:
            self._drop(seq)

    def take_ops(self) -> list[Op]:
        ops, self.ops = self.ops, []
        return ops

    def _may_take_over(self, donor: int, length: int) -> bool:
        """A cold donor that the new request covers whole would only be kept twice."""
        held = self._held[donor]
        return not held.hot and length == len(held.tokens)

    def _share(self, donor: int, seq: int, length: int) -> None:
        source, target = self._held[donor], self._held[seq]
        target.tokens = source.tokens[:length]
        target.cells = source.cells[:length]
        self._refs[target.cells] += 1
        self.ops.append(Copy(donor, seq, length))

    def _heat(self, held: _Held) -> None:
        held.hot = True
        if held.cells:
            refs = self._hot_refs[held.cells]
            self.hot_cells += int(np.count_nonzero(refs == 0))
            self._hot_refs[held.cells] = refs + 1

    def _cool(self, held: _Held) -> None:
        held.hot = False
        if held.cells:
            refs = self._hot_refs[held.cells] - 1
            self.hot_cells -= int(np.count_nonzero(refs == 0))
            self._hot_refs[held.cells] = refs

    def _cut(self, seq: int, length: int) -> None:
        """Drop the tokens of `seq` beyond `length`."""
        held = self._held[seq]
        if length == len(held.tokens):
            return
        gone = held.cells[length:]
        del held.tokens[length:], held.cells[length:]
        refs = self._refs[gone] - 1
        self._refs[gone] = refs
        self._free_cells.extend(np.array(gone)[refs == 0].tolist())
        self.ops.append(Trim(seq, length))

    def _drop(self, seq: int) -> None:
        self._cut(seq, 0)
        del self._held[seq]
        self._free_seqs.append(seq)

    def _evict_one(self, spare: int | None, *, must: bool = True) -> bool:
        cold = [(-held.rank, held.used_at, seq) for seq, held in self._held.items() if not held.hot and seq != spare]
        if not cold:
            if must:
                raise IndexError("every sequence id is in use")
            return False
        self._drop(min(cold)[2])
        return True

    def _touch(self, held: _Held) -> None:
        self._clock += 1
        held.used_at = self._clock


def _common_prefix(a: Sequence[int], b: Sequence[int], most: int) -> int:
    """Length of the longest common prefix, at most `most`: by halving, as comparing slices is fast."""
    low, high = 0, min(len(a), len(b), most)
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

"""The KV book-keeping against a naive model: plain lists of cells that follow the operations."""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from twospeed.engine.kv import Copy, KvCache, Trim

CAPACITY, SEQS = 40, 5
_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=24)
_namespaces = st.sampled_from(["", "alice", "bob"])


def common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class _Machine(RuleBasedStateMachine):
    """`cache` is what the runner would hold: a list of (token, cell) for each sequence id."""

    partial: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.cache: list[list[tuple[int, object]]] = [[] for _ in range(SEQS)]
        self.namespace: dict[int, str] = {}
        self.hot: dict[int, list[int]] = {}

    @initialize()
    def make(self) -> None:
        self.kv = KvCache(CAPACITY, SEQS, partial_prefix=self.partial)

    def follow(self) -> None:
        for op in self.kv.take_ops():
            match op:
                case Copy(source, target, length):
                    assert not self.cache[target]
                    assert length <= len(self.cache[source])
                    assert self.partial or length == len(self.cache[source])
                    self.cache[target] = self.cache[source][:length]
                case Trim(seq, length):
                    assert seq not in self.hot
                    assert length < len(self.cache[seq])
                    assert self.partial or length == 0
                    del self.cache[seq][length:]

    def tokens(self, seq: int) -> list[int]:
        return [token for token, _ in self.cache[seq]]

    def cells(self, seqs: list[int] | range) -> int:
        return len({id(cell) for seq in seqs for _, cell in self.cache[seq]})

    def best(self, tokens: list[int], namespace: str) -> int:
        """The longest prefix that may be taken up, by looking at everything."""
        lengths = [0]
        for seq in range(SEQS):
            held = self.tokens(seq)
            length = min(common(held, tokens), len(tokens) - 1)
            if held and self.namespace[seq] == namespace and (self.partial or length == len(held)):
                lengths.append(length)
        return max(lengths)

    @precondition(lambda self: len(self.hot) < SEQS - 1)
    @rule(tokens=_tokens, namespace=_namespaces)
    def start(self, tokens: list[int], namespace: str) -> None:
        donor, length = self.kv.match(tokens, namespace)
        assert length == self.best(tokens, namespace)
        if donor is None:
            assert length == 0
        else:
            assert self.namespace[donor] == namespace
            assert self.tokens(donor)[:length] == tokens[:length]
        seq = self.kv.start(tokens, namespace, donor, length)
        assert seq not in self.hot
        self.namespace[seq] = namespace
        self.follow()
        self.hot[seq] = tokens[length:]
        assert self.tokens(seq) == tokens[:length]
        assert self.kv.is_hot(seq)

    @precondition(lambda self: self.hot)
    @rule(data=st.data(), extra=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def extend(self, data: st.DataObject, extra: list[int]) -> None:
        seq = data.draw(st.sampled_from(sorted(self.hot)))
        new = self.hot[seq] or extra  # first the prompt, in one go, then output
        if not self.kv.make_room(len(new)):
            self.follow()
            assert self.cells(list(self.hot)) + len(new) > CAPACITY, "room was there"
            assert self.kv.cold == 0
            return
        self.kv.extend(seq, new)
        self.follow()
        self.cache[seq] += [(token, object()) for token in new]
        self.hot[seq] = []

    @precondition(lambda self: self.hot)
    @rule(data=st.data(), keep=st.booleans())
    def stop(self, data: st.DataObject, keep: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(self.hot)))
        del self.hot[seq]
        held = self.tokens(seq)
        self.kv.stop(seq, keep=keep)
        self.follow()
        assert self.tokens(seq) == (held if keep and len(held) >= 8 else [])

    @rule()
    def clear(self) -> None:
        self.kv.clear()
        self.follow()
        assert self.kv.cold == 0
        assert all(seq in self.hot for seq in range(SEQS) if self.cache[seq])

    @invariant()
    def counts_are_those_of_the_cells(self) -> None:
        if not hasattr(self, "kv"):
            return
        assert self.kv.used == self.cells(range(SEQS))
        assert self.kv.used + self.kv.free == CAPACITY
        assert self.kv.hot_cells == self.cells(list(self.hot))
        assert self.kv.cold == self.kv.used - self.kv.hot_cells
        for seq in self.hot:
            assert self.kv.length(seq) == len(self.cache[seq])


class _Partial(_Machine):
    partial = True


class _Whole(_Machine):
    partial = False


_settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestAnyPrefixCanBeTakenUp = _Partial.TestCase
TestAnyPrefixCanBeTakenUp.settings = _settings
TestOnlyWholeSequencesCanBeTakenUp = _Whole.TestCase
TestOnlyWholeSequencesCanBeTakenUp.settings = _settings


def finished(kv: KvCache, tokens: list[int], namespace: str = "") -> int:
    seq = kv.start(tokens, namespace, None, 0)
    kv.make_room(len(tokens))
    kv.extend(seq, tokens)
    kv.stop(seq, keep=True)
    return seq


def test_namespaces_never_match_each_other() -> None:
    kv = KvCache(100, 4)
    finished(kv, list(range(20)), "alice")
    assert kv.match(list(range(20)), "bob") == (None, 0)
    assert kv.match(list(range(20)), "") == (None, 0)
    assert kv.match(list(range(20)), "alice")[1] == 19


def test_one_token_is_left_to_decode() -> None:
    kv = KvCache(100, 4)
    seq = finished(kv, list(range(20)))
    assert kv.match(list(range(20)), "") == (seq, 19)
    assert kv.match(list(range(30)), "") == (seq, 20)
    assert kv.match([0], "") == (None, 0)


def test_a_sequence_that_cannot_be_cut_is_taken_up_whole_or_not_at_all() -> None:
    kv = KvCache(100, 4, partial_prefix=False)
    seq = finished(kv, list(range(20)))
    assert kv.match(list(range(20)), "") == (None, 0)
    assert kv.match([*range(19), 99, 100], "") == (None, 0)
    assert kv.match(list(range(21)), "") == (seq, 20)


def test_a_prefix_that_is_covered_whole_is_not_kept_twice() -> None:
    kv = KvCache(100, 4)
    seq = finished(kv, list(range(20)))
    assert kv.start(list(range(25)), "", *kv.match(list(range(25)), "")) == seq
    assert kv.used == 20


def test_a_prefix_that_is_taken_up_in_part_stays_whole() -> None:
    kv = KvCache(100, 4)
    old, branch = list(range(20)), [*range(15), 99, 98]
    kept = finished(kv, old)
    assert kv.start(branch, "", *kv.match(branch, "")) != kept
    assert kv.match([*old, 1], "") == (kept, 20)
    assert kv.used == 20


def test_the_least_recently_used_prefix_goes_first() -> None:
    kv = KvCache(40, 4)
    old, new = list(range(100, 115)), list(range(200, 215))
    finished(kv, old)
    finished(kv, new)
    again = kv.start([*old, 1], "", *kv.match([*old, 1], ""))  # used again, so the other one is the oldest now
    kv.stop(again, keep=True)
    assert kv.make_room(20)
    assert kv.match([*old, 1], "")[1] == 15
    assert kv.match([*new, 1], "")[1] == 0


def test_what_running_requests_hold_is_never_evicted() -> None:
    kv = KvCache(20, 4)
    seq = kv.start(list(range(15)), "", None, 0)
    kv.extend(seq, list(range(15)))
    assert not kv.make_room(6)
    assert kv.length(seq) == 15


def test_no_sequence_id_left_is_an_error_and_not_a_shared_one() -> None:
    kv = KvCache(20, 2)
    kv.start([1], "", None, 0)
    kv.start([2], "", None, 0)
    with pytest.raises(IndexError):
        kv.start([3], "", None, 0)

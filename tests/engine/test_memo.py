"""Remembered text: the longest known start, kept apart by namespace, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.engine import memo
from twospeed.engine.memo import TokenMemo

_texts = st.text("ab", max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["", "x"]), _texts)), st.sampled_from(["", "x"]), _texts)
def test_the_longest_known_start_of_the_same_namespace_is_found(
    entries: list[tuple[str, str]], namespace: str, text: str
) -> None:
    known = TokenMemo()
    for i, (where, entry) in enumerate(entries):
        known.remember(where, entry, [i])
    last = {(where, entry): i for i, (where, entry) in enumerate(entries)}
    starts = [entry for where, entry in last if where == namespace and entry and text.startswith(entry)]
    longest = max(starts, key=len, default="")
    expected = (len(longest), [last[namespace, longest]]) if longest else (0, [])
    assert known.longest(namespace, text) == expected


def test_namespaces_never_see_each_other() -> None:
    known = TokenMemo()
    known.remember("alice", "secret", [1, 2])
    assert known.longest("bob", "secret") == (0, [])
    assert known.longest("", "secret") == (0, [])


def test_the_newest_tokens_of_a_text_count() -> None:
    known = TokenMemo()
    known.remember("", "abc", [1])
    known.remember("", "abc", [2])
    assert known.longest("", "abcd") == (3, [2])


def test_the_least_recently_used_text_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "_MAX_CHARS", 10)
    known = TokenMemo()
    for text in ("aaaa", "bbbb"):
        known.remember("", text, [1])
    assert known.longest("", "aaaa!")[0] == 4
    known.remember("", "cccc", [1])
    assert known.longest("", "bbbb")[0] == 0
    assert known.longest("", "aaaa")[0] == 4
    assert known.longest("", "cccc")[0] == 4


def test_remembering_a_text_again_takes_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "_MAX_CHARS", 10)
    known = TokenMemo()
    known.remember("", "aaaa", [1])
    for _ in range(10):
        known.remember("", "bbbb", [1])
    assert known.longest("", "aaaa")[0] == 4


def test_a_text_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "_MAX_CHARS", 10)
    known = TokenMemo()
    known.remember("", "a" * 11, [1])
    known.remember("", "bb", [2])
    assert known.longest("", "a" * 11)[0] == 0
    assert known.longest("", "bb")[0] == 2

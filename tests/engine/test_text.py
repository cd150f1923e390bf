"""Bytes to text: no half characters, nothing of a stop string, nothing lost."""

from __future__ import annotations

import codecs

from hypothesis import example, given, settings
from hypothesis import strategies as st

from twospeed.engine.text import TextStream

ALPHABET = [b"a", b"b", b"c", "é".encode(), "😀".encode(), b"\xff", b"\xf0\x9f", b"\xc3"]
data = st.lists(st.sampled_from(ALPHABET), max_size=14).map(b"".join)
stops = st.lists(st.text("abcé😀\ufffd", min_size=1, max_size=4), max_size=3)


@st.composite
def pieces(draw: st.DrawFn, whole: st.SearchStrategy[bytes] = data) -> list[bytes]:
    """Bytes, cut anywhere; some pieces are empty, as a control token's are."""
    text = draw(whole)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=len(text) + 2)))
    return [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def before_stop(text: str, stop: list[str]) -> str:
    """What a client may see of `text`: what stands before the first place where a stop string begins."""
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


def one_by_one(text: str) -> list[bytes]:
    return [bytes([b]) for b in text.encode()]


@given(pieces(st.binary(max_size=40) | data))
@settings(deadline=None)
def test_bytes_cut_anywhere_give_the_text_of_the_whole(parts: list[bytes]) -> None:
    stream = TextStream()
    text = "".join([stream.push(part) for part in parts]) + stream.finish()
    assert text == b"".join(parts).decode("utf-8", "replace")


@given(pieces(), stops)
@example(one_by_one("abc"), ["abc", "b"])
@example(one_by_one("abd"), ["abc", "b"])
@example(one_by_one("abc"), ["b", "abcd"])
@example(one_by_one("xaab"), ["aac", "ab"])
@example(one_by_one("abc"), ["ab", "abc"])
@example([b"a\xc3"], ["a\ufffd"])
@settings(deadline=None, max_examples=400)
def test_the_text_ends_where_the_first_stop_string_begins(parts: list[bytes], stop: list[str]) -> None:
    stream = TextStream(stop)
    text = "".join([stream.push(part) for part in parts]) + stream.finish()
    whole = b"".join(parts).decode("utf-8", "replace")
    assert text == before_stop(whole, stop)
    assert stream.stopped == any(s in whole for s in stop)


@given(pieces(), stops)
@settings(deadline=None, max_examples=400)
def test_what_may_become_a_stop_string_is_held_back_and_nothing_else(parts: list[bytes], stop: list[str]) -> None:
    stream, decoder = TextStream(stop), codecs.getincrementaldecoder("utf-8")("replace")
    shown = decoded = ""
    for part in parts:
        shown += stream.push(part)
        decoded += decoder.decode(part)
        if stream.stopped:
            break
        held = decoded.removeprefix(shown)
        assert shown + held == decoded
        assert not held or any(s.startswith(held) for s in stop)
        starts = {s[:n] for s in stop for n in range(1, len(s))}
        assert not any(decoded.endswith(start) and len(start) > len(held) for start in starts)


def test_after_a_stop_string_nothing_follows() -> None:
    stream = TextStream(["END"])
    assert stream.push(b"one END two") == "one "
    assert stream.stopped
    assert stream.push(b"three") == ""
    assert stream.finish() == ""


def test_half_a_character_at_the_end_becomes_a_replacement_character() -> None:
    stream = TextStream(["x"])
    assert stream.push(b"a\xe2\x82") == "a"
    assert stream.finish() == "\ufffd"


def test_a_start_of_a_stop_string_is_given_out_at_the_end() -> None:
    stream = TextStream(["</s>"])
    assert stream.push(b"1 </") == "1 "
    assert stream.finish() == "</"
    assert not stream.stopped

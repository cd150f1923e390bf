"""What counts as code for routing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.gateway.code import LOOKED_AT, holds_code

CODE = {
    "a fence": "What does this do?\n```\nx\n```",
    "a Python traceback": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nKeyError: 1',
    "a Java trace": "It says\n\tat com.acme.Foo.bar(Foo.java:17)\n",
    "a JavaScript trace": "TypeError: x is undefined\n    at run (/srv/app.js:10:5)",
    "a Rust panic": "thread 'main' panicked at src/main.rs:2:5:",
    "a compiler's error": "main.c:3:5: error: expected ';' before 'return'",
    "a diff": "@@ -1,3 +1,4 @@\n a\n+b",
    "bare Python": "def add(a, b):\n    return a + b\n\nWhy is it slow?",
    "bare JavaScript": "const add = (a, b) => a + b;",
    "bare C": "#include <stdio.h>\nint main() { return 0; }",
    "bare SQL": "SELECT name FROM users WHERE id == 3;\nwhat is wrong?",
    "an order for code": "Write a function that returns the largest element of a list.",
    "an order to repair": "please fix this SQL for me",
}
PROSE = {
    "nothing": "",
    "a question": "What is the capital of France?",
    "a letter": "Dear Anna,\n\nThank you for the invitation; we would love to come. See you on Friday!\n",
    "a list": "Buy:\n- milk\n- eggs (six)\n- bread\n",
    "markup of a chat": "**Note**: meet at 10:30; bring 3 copies (A4).",
    "talk about code": "Is Python a good language for beginners?",
    "sums": "If x is 3 and y = 4, what is x + y? Show (briefly) how.",
    "a class of people": "Write a speech for the class of 2024 about courage.",
    "a function of the heart": "What is the function of the heart? Explain it to a child.",
    "times and places": "we met at noon (local time)\nat the office: 10:30",
}


@pytest.mark.parametrize("kind", CODE)
def test_code_is_seen(kind: str) -> None:
    assert holds_code(CODE[kind])


@pytest.mark.parametrize("kind", PROSE)
def test_prose_is_not_taken_for_code(kind: str) -> None:
    assert not holds_code(PROSE[kind])


def test_head_and_end_of_a_long_text_are_looked_at() -> None:
    prose, code = "All is well. " * LOOKED_AT, CODE["bare C"]
    assert not holds_code(prose)
    assert holds_code(f"{code}\n{prose}")
    assert holds_code(f"{prose}\n{code}")


@pytest.mark.parametrize(
    "piece", ["{ ", "a_", "a.", "SELECT ", "export ", "\n    at ", "write ", "<a ", "\n\n", "a:1", '  File "', "aB("]
)
def test_no_text_takes_long(piece: str) -> None:
    """A pattern whose work explodes would run into the time limit that every test has."""
    assert holds_code(piece * 1_000_000) in (True, False)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("ab_.(){}[];:=<>-\n\t `@/\"'1A"), max_size=300))
def test_any_text_has_an_answer(text: str) -> None:
    assert holds_code(text) in (True, False)
    assert holds_code(f"{text}\n```\n")

"""What the benchmark asks for: short openings, long reports and a conversation, all of our own making.

Every prompt starts with a mark of its own, so that no prefix cache has seen it, also not that of a server which
was measured before.
"""

from __future__ import annotations

import itertools
import secrets
from random import Random

_OPENINGS = (
    "The diary of a lighthouse keeper, first entry. The storm came before noon, and by evening",
    "How to build a small wooden boat, step by step. First choose the planks.",
    "A short history of the bicycle. The first machines had no pedals at all;",
    "def parse_table(text):\n    '''Turn lines of comma-separated cells into a list of rows.'''\n",
    "Minutes of the garden club. Present were nine members and one dog. The chair opened by saying that",
    "Why is the sky blue? The answer begins with sunlight, which",
    "A letter to a friend who has moved abroad. Dear Nora, since you left the town",
    "Bread for beginners. You need flour, water, salt and patience. Mix",
    "class Inventory:\n    '''Keeps count of what is on the shelves of a shop.'''\n\n    def __init__(self):\n",
    "The rules of a card game for three players, which we call Heron. Each player starts with",
    "Notes on teaching children to swim. Begin in shallow water and",
    "The village had one clock, and it was always wrong. Nobody minded until",
    "What a beginner should know about tides. The moon pulls on the sea, and",
    "An interview with a bridge engineer. Question: what was the hardest bridge you built? Answer:",
    "-- Tables for a library: books, members and loans.\nCREATE TABLE books (\n",
    "A walk through the old harbour, in ten stops. The first stop is the customs house, where",
)

_WHO = (
    "the night watch",
    "the second team",
    "a visiting engineer",
    "the clerk",
    "our courier",
    "the harbour master",
    "an apprentice",
    "the new inspector",
)
_DID = (
    "checked",
    "repaired",
    "measured",
    "moved",
    "described",
    "counted",
    "painted",
    "replaced",
)
_WHAT = (
    "the copper valve",
    "three wooden crates",
    "a broken lamp",
    "the northern gate",
    "an old ledger",
    "the spare engine",
    "two maps",
    "the drinking water",
)
_WHEN = (
    "before sunrise",
    "after the meeting",
    "during the second shift",
    "in heavy rain",
    "on the way home",
    "without any help",
    "as agreed in spring",
    "for the third time",
)
_RESULT = (
    "and found nothing unusual",
    "and wrote a short note about it",
    "but had to stop early",
    "so the work could go on",
    "and asked for better tools",
    "although the numbers did not match",
    "which took longer than planned",
    "and nobody objected",
)

SYSTEM = "You are a helpful assistant. Answer briefly."
TURNS = (
    "I want to grow vegetables on a balcony. What should I start with?",
    "It faces north and gets three hours of sun a day. Does that change your answer?",
    "How large should the pots be, and how often do I water them in summer?",
    "Aphids have found the lettuce. What can I do without poison?",
    "My neighbour says coffee grounds are a good fertiliser. Is that true, and how much would I use?",
    "In autumn I am away for two weeks. How do the plants survive that?",
    "Which of them could stay outside in winter, if it rarely freezes here?",
    "Sum up what we have planned, in three short points.",
)
OPENINGS = len(_OPENINGS)


class Prompts:
    """A source of prompts that have not been sent before."""

    def __init__(self, mark: str | None = None) -> None:
        self._mark = mark or secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def mark(self) -> str:
        """A word that no prompt had before."""
        return self._unique()

    def _unique(self) -> str:
        number = next(self._numbers)
        return f"{number * 7919 % 10007}-{self._mark}-{number}"

    def opening(self, which: int = 0) -> str:
        """A short text that can be gone on with for long."""
        return f"{self._unique()}. {_OPENINGS[which % OPENINGS]}"

    def report(self, words: int) -> str:
        """A text of so many words, no two of them alike."""
        head = self._unique()
        pick = Random(head).choice  # noqa: S311 - variety, not secrecy
        out = [f"{head}:"]
        while len(out) < words:
            sentence = f"{pick(_WHO)} {pick(_DID)} {pick(_WHAT)} {pick(_WHEN)} {pick(_RESULT)}."
            out += (sentence[0].upper() + sentence[1:]).split()
        return " ".join(out[:words])

    def system(self) -> str:
        return f"{SYSTEM} (Conversation {self._unique()}.)"


class Lengths:
    """Tokens to words, by a sample that the server counted."""

    SAMPLE_WORDS = 300

    def __init__(self, sample_tokens: int) -> None:
        self._words_per_token = self.SAMPLE_WORDS / sample_tokens

    def words(self, tokens: int) -> int:
        return max(1, round(tokens * self._words_per_token))

"""What a draft model proposes for one sequence, and how likely it is held to be right.

Unlike copies (speculate.py) these proposals cost time of their own, so nothing is proposed only to see whether it
would have been right. Where they are wrong they stop within a few steps, and are tried again now and then. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

_PRIOR = 0.7
_TRIALS = 2.0  # what the prior counts for at first
_AGAIN_TRIALS = 0.5  # and when it is tried again: one wrong draft is enough then
_FORGET = 0.8
_HOPELESS = 0.2
_AGAIN = 64  # tokens without a proposal, after which it is worth another try


class Guess:
    """The proposal of now, `tokens`, which is empty most of the time, and what became of those before."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._hits = _PRIOR * _TRIALS
        self._trials = _TRIALS
        self._idle = 0

    @property
    def odds(self) -> float:
        """The chance that a proposed token is right if those before it are."""
        return self._hits / self._trials

    @property
    def wanted(self) -> bool:
        """Whether a proposal may be worth anything."""
        return not self.tokens and self.odds >= _HOPELESS

    def offer(self, tokens: Sequence[int]) -> None:
        """The draft model proposes `tokens` to follow what the sequence has written."""
        self.tokens = list(tokens)

    def rest(self) -> None:
        """Propose nothing for a while."""
        self._hits, self._idle = 0.0, 0

    def learn(self, written: Sequence[int], offered: int) -> None:
        """The sequence wrote `written`, after `offered` proposed tokens were checked; without any the first one still
        tells."""
        if not self.tokens:
            self._idle += len(written)
            if self._idle >= _AGAIN and self.odds < _PRIOR:
                self._hits, self._trials, self._idle = _PRIOR * _AGAIN_TRIALS, _AGAIN_TRIALS, 0
            return
        self._idle = 0
        self._hits *= _FORGET
        self._trials *= _FORGET
        for token, guess in zip(written, self.tokens[: max(offered, 1)], strict=False):
            self._trials += 1
            self._hits += token == guess
            if token != guess:
                break
        self.tokens = []

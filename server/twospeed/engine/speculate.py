"""Drafts that cost nothing: tokens copied from what the sequence has seen, and how likely each is right.

Two texts to copy from: the prompt with the output so far (prompt lookup decoding: Saxena 2023,
https://github.com/apoorvumang/prompt-lookup-decoding; SAM decoding, https://arxiv.org/abs/2411.10666; suffix
decoding, https://arxiv.org/abs/2411.04975) and the client's prediction. The place to copy from is where the longest
match of the last tokens ends. Instead of a suffix automaton the index is a hash chain over three tokens, as in
deflate (RFC 1951, section 4): a step costs a dictionary lookup, a prompt takes one entry a token, and the longest
matches among the most recent places are found all the same.

How long a draft is worth its rows is decided in compose.py from the odds given here. They are learnt for each
sequence from its own drafts, and from the drafts it would have made while it made none. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple

from .guess import Guess

Source = Literal["prediction", "lookup", "model"]

LONGEST = 63
"""Drafted tokens in a step, at most: the row they are checked from makes it 64."""
_GRAM = 3  # tokens that a match begins with
_PLACES = 16  # most recent places that are compared
_COMPARED = 64  # tokens back that a match is followed
_CLAIMED = 16  # a prediction's beginning counts as a match this long
_LENGTHS = (3, 5, 9, 17, 33)  # matches of 1-2, 3-4, 5-8, 9-16, 17-32 and more tokens have odds of their own
_FAR = 64  # tokens of the prompt that are left to copy: then it is more likely a text being repeated than a phrase
# By length of the match. Measured with a 1.5B: in 32 chats 0.55, 0.66, 0.7, 0.75 of the tokens after 3-4, 5-8, ... were
# right; where it edited code, 0.93 and then all but 1 in 100. A sequence soon finds out which it is.
_Kind = Literal["phrase", "text", "prediction"]
_PRIOR: dict[_Kind, tuple[float, ...]] = {
    "phrase": (0.5, 0.53, 0.62, 0.65, 0.7, 0.75),
    "text": (0.6, 0.72, 0.88, 0.94, 0.97, 0.98),
    "prediction": (0.6, 0.75, 0.88, 0.94, 0.97, 0.98),
}
_PRIOR_TRIALS = 1.5
_FORGET_DRAFT = 0.5  # a draft that was checked says more than all before it together: bad luck is noticed at once
_FORGET_GUESS = 0.9


class Draft(NamedTuple):
    """Proposed tokens. `odds[i]`: the chance that token i is right if those before it are."""

    tokens: list[int]
    odds: list[float]
    source: Source


_NO_DRAFT = Draft([], [], "lookup")


class Drafter:
    """Proposes what one sequence writes next. `tokens`: its prompt and what it has written so far."""

    def __init__(self, tokens: Sequence[int], prediction: Sequence[int] = ()) -> None:
        self._lookup = _Copy("lookup", tokens)
        self._prediction = _Copy("prediction", prediction) if prediction else None
        self.guess = Guess()
        """Of a draft model, where there is one: asked only when there is nothing good to copy, so it goes first."""
        self._tail = list(tokens[-_COMPARED:])
        if self._prediction is not None:
            self._prediction.begin()

    def propose(self, most: int) -> Draft:
        """A draft of up to `most` tokens, perhaps none."""
        if self.guess.tokens:
            tokens = self.guess.tokens[: min(most, LONGEST)]
            return Draft(tokens, [self.guess.odds] * len(tokens), "model")
        best = self._best()
        return best.propose(min(most, LONGEST)) if best is not None else _NO_DRAFT

    def advance(self, tokens: Sequence[int], offered: int) -> None:
        """The sequence wrote `tokens`, after a draft of which `offered` were checked."""
        best = self._best()
        if best is not None:
            best.learn(tokens, 0 if self.guess.tokens else offered)
        self.guess.learn(tokens, offered)
        for token in tokens:
            self._tail.append(token)
            if len(self._tail) > 2 * _COMPARED:
                del self._tail[:-_COMPARED]
            if self._prediction is not None:
                self._prediction.follow(token, self._tail)
            self._lookup.follow(token, self._tail)
            self._lookup.append(token)

    def _best(self) -> _Copy | None:
        prediction, lookup = self._prediction, self._lookup
        if prediction is not None and prediction.at is not None and (lookup.at is None or prediction.sure(lookup)):
            return prediction
        return lookup if lookup.at is not None else None


class _Odds:
    """How likely a copied token is right, by the length of the match before it."""

    def __init__(self, kind: _Kind) -> None:
        self._prior = _PRIOR[kind]
        self._hits = [0.0] * len(self._prior)
        self._trials = [0.0] * len(self._prior)
        self._odds = list(self._prior)

    def of(self, matched: int) -> float:
        return self._odds[bisect_right(_LENGTHS, matched)]

    def learn(self, matched: int, right: Sequence[bool], keep: float) -> None:
        """Tokens were right or not after a match of `matched`; of what was learnt before, `keep` is kept."""
        touched = set[int]()
        for i, hit in enumerate(right):
            length = bisect_right(_LENGTHS, matched + i)
            if length not in touched:
                touched.add(length)
                self._hits[length] *= keep
                self._trials[length] *= keep
            self._trials[length] += 1
            self._hits[length] += hit
        # What was learnt of shorter matches holds for longer ones at least; but not of the shortest, which are only
        # there after a token was replaced.
        shorter = 0.0
        for length, prior in enumerate(self._prior):
            usual = max(prior, shorter)
            odds = (self._hits[length] + usual * _PRIOR_TRIALS) / (self._trials[length] + _PRIOR_TRIALS)
            self._odds[length], shorter = odds, odds if length else 0.0


class _Copy:
    """A text to copy from, and where the copy goes on. `at=None`: nowhere, what was written last isn't in it."""

    def __init__(self, source: Source, tokens: Sequence[int]) -> None:
        self.source = source
        self.at: int | None = None
        self._matched = 0
        self._resume: int | None = None
        self._tokens: list[int] = []
        self._given = len(tokens)  # what follows was written by the sequence itself
        self._latest: dict[tuple[int, ...], int] = {}  # three tokens: where the text goes on after them
        self._before: list[int] = []  # by such a place: the one before it with the same three tokens, or -1
        self._phrase = _Odds("phrase")
        self._text = _Odds("text" if source == "lookup" else "prediction")
        for token in tokens:
            self.append(token)

    def begin(self) -> None:
        """The output is expected to begin as this text does."""
        self.at, self._matched = 0, _CLAIMED

    def sure(self, other: _Copy) -> bool:
        """Whether this one is at least as likely to go on."""
        return self._odds().of(self._matched) >= other._odds().of(other._matched)

    def append(self, token: int) -> None:
        """The text goes on with `token`."""
        self._tokens.append(token)
        place = -1
        if len(self._tokens) >= _GRAM:
            gram = tuple(self._tokens[-_GRAM:])
            place = self._latest.get(gram, -1)
            self._latest[gram] = len(self._tokens)
        self._before.append(place)

    def follow(self, token: int, tail: Sequence[int]) -> None:
        """`token` was written, the last one of `tail`; where does the copy go on?"""
        if self.at is not None and self.at < len(self._tokens) and self._tokens[self.at] == token:
            self.at += 1
            self._matched += 1
            return
        # One token may have been replaced: the copy may go on behind it.
        resume = self._resume if self.at is None else None
        self._resume = None if self.at is None else self.at + 1
        self.at, self._matched = self._find(tail)
        if self.at is None and resume is not None and resume < len(self._tokens) and self._tokens[resume] == token:
            self.at, self._matched, self._resume = resume + 1, 1, None

    def propose(self, most: int) -> Draft:
        assert self.at is not None
        if self.at < self._given:
            tokens = self._tokens[self.at : min(self.at + most, self._given)]
        else:
            # Copied from the output; where the copy reaches its end, the output repeats itself.
            tokens = self._tokens[self.at : self.at + most]
            period = len(self._tokens) - self.at
            tokens += [tokens[i % period] for i in range(len(tokens), most)] if period else []
        odds = self._odds()
        return Draft(tokens, [odds.of(self._matched + i) for i in range(len(tokens))], self.source)

    def learn(self, written: Sequence[int], offered: int) -> None:
        """Compare `written` with what the copy had gone on with; `offered` tokens of that were checked, and without
        any the first one still tells."""
        expected = self.propose(max(offered, 1)).tokens
        right: list[bool] = []
        for token, guess in zip(written, expected, strict=False):
            right.append(token == guess)
            if token != guess:
                break
        self._odds().learn(self._matched, right, _FORGET_DRAFT if offered else _FORGET_GUESS)

    def _odds(self) -> _Odds:
        far = self.source == "prediction" or (self.at is not None and self._given - self.at > _FAR)
        return self._text if far else self._phrase

    def _find(self, tail: Sequence[int]) -> tuple[int | None, int]:
        """Where the longest match of `tail` among the most recent places ends, and its length."""
        if len(tail) < _GRAM:
            return None, 0
        best, longest = None, 0
        place = self._latest.get(tuple(tail[-_GRAM:]), -1)
        for _ in range(_PLACES):
            if place < 0:
                break
            length = self._common(place, tail)
            if length > longest:
                best, longest = place, length
            place = self._before[place - 1]
        return best, longest

    def _common(self, place: int, tail: Sequence[int]) -> int:
        length = 0
        for back in range(1, min(place, len(tail), _COMPARED) + 1):
            if self._tokens[place - back] != tail[-back]:
                break
            length = back
        return length

"""From logits to the next token.

Bias and penalties first, as everywhere; then temperature, then top_k, top_p and min_p, each on what the one before
left, then one draw.
Penalties follow OpenAI's definition (presence and frequency count the output) and CTRL's
(https://arxiv.org/abs/1909.05858: repetition counts prompt and output). Greedy rows read the argmax of the
view they are given and copy nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..types import Sampling

_Floats = npt.NDArray[np.float32]
_FAR_BELOW = 16.0  # logits this far under the best one hold almost no mass: e^-16 of it each


class Sampler:
    """The choice of one sequence's tokens. Holds its random generator and its output's counts."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int], eog: frozenset[int], seed: int) -> None:
        """`seed`: this sequence's own; `sampling.seed` is the request's."""
        self._s = sampling
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._counts: Counter[int] = Counter()
        self._seen = set(prompt) if sampling.repetition_penalty != 1 else set[int]()
        banned = sorted(eog) if sampling.ignore_eos else []
        self._banned = np.array(banned, np.int64)
        self._banned_set = frozenset(banned)
        self._biased = np.array(list(sampling.logit_bias), np.int64)
        self._bias = np.array(list(sampling.logit_bias.values()), np.float32)
        self._counts_matter = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._changes = self._counts_matter or sampling.repetition_penalty != 1 or bool(self._biased.size)

    def choose(self, logits: _Floats) -> int:
        """The next token. `logits`: float32 of shape (vocabulary,), read only."""
        greedy = self._s.temperature == 0
        if greedy and not self._changes:
            token = int(logits.argmax())
            if token not in self._banned_set:
                return token
        if self._changes or self._banned.size:
            logits = self._adjusted(logits)
        return int(logits.argmax()) if greedy else self._draw(logits)

    def accept(self, token: int) -> None:
        """`token` became part of the output."""
        if self._counts_matter:
            self._counts[token] += 1
        if self._s.repetition_penalty != 1:
            self._seen.add(token)

    def _adjusted(self, logits: _Floats) -> _Floats:
        s = self._s
        logits = logits.copy()
        if self._biased.size:
            logits[self._biased] += self._bias
        if self._seen:
            at = np.fromiter(self._seen, np.int64, len(self._seen))
            values = logits[at]
            logits[at] = np.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
        if self._counts:
            at = np.fromiter(self._counts, np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[at] -= s.presence_penalty + s.frequency_penalty * counts
        if self._banned.size:
            logits[self._banned] = -np.inf
        return logits

    def _draw(self, logits: _Floats) -> int:
        tokens, weights = distribution(logits, self._s)
        cumulative = np.cumsum(weights)
        at = int(np.searchsorted(cumulative, self._rng.random() * cumulative[-1], side="right"))
        at = min(at, len(weights) - 1)
        return at if tokens is None else int(tokens[at])


def distribution(logits: _Floats, s: Sampling) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.float64]]:
    """Tokens that may come (None: all of them, in order) and their weights, not normalised.

    Temperature must be above 0. Truncation needs the best tokens sorted; sorting a whole vocabulary costs
    10 ms, so first only those near the best are, and all of them just when those do not hold enough.
    """
    below = logits.astype(np.float64) - float(logits.max())
    with np.errstate(over="ignore"):  # a tiny temperature: -inf, whose weight is 0
        below /= s.temperature
    if not (s.top_k or s.top_p < 1 or s.min_p):
        return None, np.exp(below)
    near = np.flatnonzero(below >= -_FAR_BELOW)
    if s.top_k:
        enough = len(near) >= s.top_k
    elif s.top_p < 1:
        total = float(np.exp(below).sum())
        enough = float(np.exp(below[near]).sum()) >= s.top_p * total
    else:
        enough = s.min_p >= np.exp(-_FAR_BELOW)
    tokens = near if enough else np.arange(len(below))
    order = np.argsort(-below[tokens], kind="stable")
    if s.top_k:
        order = order[: s.top_k]
    tokens = tokens[order].astype(np.int64)
    weights = np.exp(below[tokens])
    if s.top_p < 1:
        if s.top_k:
            total = float(weights.sum())
        before = np.cumsum(weights) - weights  # a token stays while the ones before it hold less than top_p
        keep = int(np.count_nonzero(before < s.top_p * total))
        tokens, weights = tokens[: max(1, keep)], weights[: max(1, keep)]
    if s.min_p:
        keep = int(np.count_nonzero(weights >= s.min_p * weights[0]))
        tokens, weights = tokens[: max(1, keep)], weights[: max(1, keep)]
    return tokens, weights

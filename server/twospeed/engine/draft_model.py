"""A smaller model that writes ahead for another one: loading it, and doing what drafting.py asks of it.

What it writes is only ever a proposal, so its arithmetic decides speed and never text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..config import Model
from .cost import Curves, StepCost
from .kv import Copy, KvCache, Op, Trim
from .lanes import Ask, Drafted, DraftLane, Load
from .messages import DraftFile
from .runner.base import Loader, Logits, Row, Runner, RunnerError, Vocab

_PADDING = 128  # tokens that files of one family differ by, at the end, where nothing is ever written (as llama.cpp)


class Draft(NamedTuple):
    """A draft model before it has work: its runner, what its steps cost, and the most tokens it proposes."""

    runner: Runner
    curves: Curves
    tokens: int

    def lane(self, max_seqs: int) -> DraftLane:
        """What the scheduler needs of it."""
        facts = self.runner.info
        return DraftLane(StepCost(self.curves), KvCache(facts.kv_tokens, max_seqs), self.tokens, facts.max_rows)


class DraftModel:
    """Writes ahead, greedily, for sequences of the model whose vocabulary has `size` tokens."""

    def __init__(self, runner: Runner, size: int, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._size = min(size, runner.vocab.size)
        self._clock = clock
        self._steps: list[tuple[Load, float]] = []

    def run(self, ops: Sequence[Op], asks: Sequence[Ask]) -> Drafted:
        """Take in what is asked, then one more token a step for all that still want one. Raises RunnerError."""
        self._steps = []
        for op in ops:
            match op:
                case Copy(source, target, length):
                    self._runner.copy(source, target, length)
                case Trim(seq, length):
                    self._runner.trim(seq, length)
                case _:
                    raise AssertionError(f"a draft model's cache does no {type(op).__name__}")
        guesses: list[list[int]] = [[] for _ in asks]
        going = [i for i, ask in enumerate(asks) if ask.guesses]
        best = self._run([row for ask in asks for row in self._rows(ask)])
        while going:
            for i, token in zip(going, best, strict=True):
                guesses[i].append(token)
            going = [i for i in going if len(guesses[i]) < asks[i].guesses and guesses[i][-1] not in self._eog]
            if going:
                best = self._run([_after(asks[i], guesses[i]) for i in going])
        return Drafted(guesses, self._steps)

    def close(self) -> None:
        self._runner.close()

    @property
    def _eog(self) -> frozenset[int]:
        return self._runner.vocab.eog

    def _rows(self, ask: Ask) -> list[Row]:
        last = len(ask.tokens) - 1 if ask.guesses else -1
        # Padding that a client sent is no token here; any other makes the guess no more than worse.
        tokens = [token if token < self._size else 0 for token in ask.tokens]
        return [Row(ask.kv, token, ask.start + i, i == last) for i, token in enumerate(tokens)]

    def _run(self, rows: list[Row]) -> list[int]:
        """One step, noted with its time; the most likely token after each row that wants one."""
        start = self._clock()
        logits: Logits = self._runner.run(rows)
        best: list[int] = logits[:, : self._size].argmax(axis=1).tolist() if len(logits) else []
        load = Load(len(rows), sum(row.logits for row in rows), sum(row.pos for row in rows))
        self._steps.append((load, (self._clock() - start) * 1000))
        return best


def load_draft(
    name: str, runner: Runner, draft: DraftFile, loader: Callable[[str], Loader], *, max_seqs: int, tokens: int
) -> Draft:
    """Load `draft` for model `name`, which `runner` runs; what its steps cost is still to be measured. `loader`: for a
    backend. Raises RunnerError."""
    pair = f"{draft.name} can't draft for {name}"
    if not runner.info.partial_prefix:
        raise RunnerError(f"{pair}: {name}'s cache can't take back what was drafted wrong")
    # As many tokens as the model's own cache holds, whatever it is configured for where it answers itself.
    room = {"context": runner.info.kv_tokens, "kv_tokens": runner.info.kv_tokens}
    model = Model.model_validate(draft.model).model_copy(update=room)
    try:
        own = loader(model.backend)(Path(draft.path) if draft.path else None, model, max_seqs=max_seqs)
    except RunnerError as error:
        raise RunnerError(f"{pair}: {error}") from error
    difference = vocab_difference(runner.vocab, own.vocab)
    if difference is None and not own.info.partial_prefix:
        difference = f"{draft.name}'s cache can't take back what was drafted wrong"
    if difference is not None:
        own.close()
        raise RunnerError(f"{pair}: {difference}")
    return Draft(own, Curves({}, {}), tokens)


def vocab_difference(model: Vocab, draft: Vocab) -> str | None:
    """In what two vocabularies differ; None where a token means the same in both. Files of one family may have
    more or less padding behind the last real token."""
    if abs(model.size - draft.size) > _PADDING:
        return f"their vocabularies differ: {model.size} tokens and {draft.size}"
    for token in range(min(model.size, draft.size)):
        ours, theirs = model.piece(token, special=True), draft.piece(token, special=True)
        if ours != theirs:
            return f"their vocabularies differ: token {token} is {ours!r} and {theirs!r}"
        if (token in model.eog) != (token in draft.eog):
            return f"their vocabularies differ: only one of them ends with token {token}, {ours!r}"
    return None


def _after(ask: Ask, guesses: list[int]) -> Row:
    """The last guess, to be taken in."""
    return Row(ask.kv, guesses[-1], ask.start + len(ask.tokens) + len(guesses) - 1, True)

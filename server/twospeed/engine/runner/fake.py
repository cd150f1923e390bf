"""A stand-in for llama.cpp without weights: deterministic, instant, and strict about its caller.

A byte-level model. A chat is answered by repeating the last user message, then the end token; raw text goes on
by repeating itself. It keeps a KV cache of real tokens and computes from that alone, so a scheduler that mixes
up sequences, positions or prefixes gets wrong text or an error here, as it would from the real thing.

TWOSPEED_FAKE_STEP_MS and TWOSPEED_FAKE_ROW_MS make a step take time; TWOSPEED_FAKE_LOAD_S delays loading.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...config import Model
from .base import Logits, Row, RunnerError, RunnerInfo

_BOS, _END, _PREFIX, _SUFFIX, _MIDDLE, _SYSTEM, _USER, _ASSISTANT = range(256, 264)
_SPECIAL = {
    "<|bos|>": _BOS,
    "<|end|>": _END,
    "<|prefix|>": _PREFIX,
    "<|suffix|>": _SUFFIX,
    "<|middle|>": _MIDDLE,
    "<|system|>": _SYSTEM,
    "<|user|>": _USER,
    "<|assistant|>": _ASSISTANT,
}
_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "{{ '<|' + m.role + '|>' + (m.content or '') + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_CONTEXT = 4096


class FakeVocab:
    """256 bytes and eight special tokens."""

    size = 264
    eog = frozenset({_END})
    bos_text = "<|bos|>"
    eos_text = "<|end|>"
    chat_template: str | None = _TEMPLATE
    fim: tuple[int, int, int] | None = (_PREFIX, _SUFFIX, _MIDDLE)

    def tokenize(self, text: str, *, bos: bool) -> list[int]:
        tokens = [_BOS] if bos and not text.startswith(self.bos_text) else []
        rest = text
        while rest:
            found = min(((at, name) for name in _SPECIAL if (at := rest.find(name)) >= 0), default=None)
            if found is None:
                return tokens + list(rest.encode("utf-8", "replace"))
            at, name = found
            tokens += [*rest[:at].encode("utf-8", "replace"), _SPECIAL[name]]
            rest = rest[at + len(name) :]
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < 256:
            return bytes([token])
        return next(name for name, t in _SPECIAL.items() if t == token).encode() if special else b""

    def is_special(self, token: int) -> bool:
        return token >= 256


class FakeRunner:
    """Implements Runner on lists."""

    def __init__(self, path: Path | None, model: Model, *, max_seqs: int) -> None:
        del path  # has no weights
        time.sleep(float(os.environ.get("TWOSPEED_FAKE_LOAD_S", "0")))
        self._step_s = float(os.environ.get("TWOSPEED_FAKE_STEP_MS", "0")) / 1000
        self._row_s = float(os.environ.get("TWOSPEED_FAKE_ROW_MS", "0")) / 1000
        context = _CONTEXT if model.context == "auto" else model.context
        kv_tokens = context if model.kv_tokens == "auto" else model.kv_tokens
        self.vocab = FakeVocab()
        self.info = RunnerInfo("fake", min(context, kv_tokens), kv_tokens, 512, 0, 0, True, 2, "fp_fake")
        self._seqs: list[list[int]] = [[] for _ in range(max_seqs)]
        self._cells: list[list[object]] = [[] for _ in range(max_seqs)]

    def run(self, rows: Sequence[Row]) -> Logits:
        if not 0 < len(rows) <= self.info.max_rows:
            raise RunnerError(f"a step of {len(rows)} rows")
        time.sleep(self._step_s + self._row_s * len(rows))
        out: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        for row in rows:
            tokens = self._seqs[row.seq]
            if row.pos != len(tokens):
                raise RunnerError(f"sequence {row.seq} has {len(tokens)} tokens, not {row.pos}")
            if not 0 <= row.token < self.vocab.size:
                raise RunnerError(f"{row.token} is not a token")
            tokens.append(row.token)
            self._cells[row.seq].append(object())
            if row.logits:
                out.append(self._logits(tokens))
        held = {id(cell) for cells in self._cells for cell in cells}
        if len(held) > self.info.kv_tokens:
            raise RunnerError("the KV cache is full")
        return np.array(out, np.float32).reshape(len(out), self.vocab.size)

    def copy(self, source: int, target: int, length: int) -> None:
        if self._seqs[target] or length > len(self._seqs[source]):
            raise RunnerError(f"cannot copy {length} tokens of {source} to {target}")
        self._seqs[target] = self._seqs[source][:length]
        self._cells[target] = self._cells[source][:length]

    def trim(self, seq: int, length: int) -> None:
        del self._seqs[seq][length:], self._cells[seq][length:]

    def save(self, seq: int) -> bytes:
        return json.dumps(self._seqs[seq]).encode()

    def restore(self, seq: int, state: bytes) -> None:
        if self._seqs[seq]:
            raise RunnerError(f"sequence {seq} is not empty")
        self._seqs[seq] = json.loads(state)
        self._cells[seq] = [object() for _ in self._seqs[seq]]

    def close(self) -> None:
        self._seqs.clear()

    def _logits(self, tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """The best token is certain, the end token second where the model would not end yet."""
        logits = np.zeros(self.vocab.size, np.float32)
        wanted = _next(tokens)
        logits[wanted[0]] = 20.0
        for other in wanted[1:]:
            logits[other] = 10.0
        return logits


def _next(tokens: list[int]) -> list[int]:
    """The tokens this model would write next, best first."""
    if _ASSISTANT in tokens:
        turn = len(tokens) - 1 - tokens[::-1].index(_ASSISTANT)
        written = len(tokens) - turn - 1
        users = [i for i in range(turn) if tokens[i] == _USER]
        message = tokens[users[-1] + 1 : tokens.index(_END, users[-1])] if users else []
    else:
        message = [t for t in tokens if t < 256][:64]
        return [message[len(tokens) % len(message)]] if message else [_END]
    if not message:
        return [_END, 32]
    again = message[written % len(message)]
    return [_END, again] if written == len(message) else [again]

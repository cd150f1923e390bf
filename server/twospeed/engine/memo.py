"""The tokens behind text that was seen before, so that a conversation's next turn finds its old tokens.

A model's own output, tokenized again, is not always the tokens it wrote; the KV cache would then match only
up to the first difference. This remembers prompt and output as text with the real tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

_MAX_CHARS = 8_000_000


class TokenMemo:
    """Least recently used first out; safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def remember(self, namespace: str, text: str, tokens: list[int]) -> None:
        with self._lock:
            key = (namespace, text)
            if key not in self._entries:
                self._chars += len(text)
            self._entries[key] = tokens
            self._entries.move_to_end(key)
            while self._chars > _MAX_CHARS:
                (_, oldest), _ = self._entries.popitem(last=False)
                self._chars -= len(oldest)

    def longest(self, namespace: str, text: str) -> tuple[int, list[int]]:
        """Characters of `text` that are known, and their tokens; (0, []) where none are."""
        with self._lock:
            best: tuple[str, str] | None = None
            for key in self._entries:
                if key[0] == namespace and len(key[1]) > len(best[1] if best else "") and text.startswith(key[1]):
                    best = key
            if best is None:
                return 0, []
            self._entries.move_to_end(best)
            return len(best[1]), self._entries[best]

"""Token bytes to text, exactly: no half characters, and nothing that may still become a stop string.

Pure. A token may end inside a UTF-8 character and a stop string may straddle tokens; both are held back until
they are decided.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Collects one sequence's bytes and gives out the text that is safe to show."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False
        """A stop string was met; the text before it is out and nothing follows."""

    def push(self, data: bytes) -> str:
        """Add bytes; returns the text that is now certain."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> str:
        """No more bytes come: returns what was held back. Half a character becomes U+FFFD."""
        text = self._take(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        hit = self._first(held)
        if hit is not None:
            self.stopped = True
        return text + held[:hit]

    def _take(self, new: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return new
        text = self._held + new
        hit = self._first(text)
        cut = len(text) - max(_overlap(text, stop) for stop in self._stop)
        if hit is not None and hit <= cut:
            self.stopped = True
            self._held = ""
            return text[:hit]
        self._held = text[cut:]  # maybe with a whole stop string in it, when a longer one may begin before that
        return text[:cut]

    def _first(self, text: str) -> int | None:
        """Where the first stop string in `text` begins."""
        return min((at for stop in self._stop if (at := text.find(stop)) >= 0), default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a start of `stop`, but not all of it."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0

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
        return text + held

    def _take(self, new: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return new
        text = self._held + new
        hits = [at for at in map(text.find, self._stop) if at >= 0]
        if hits:
            self.stopped = True
            self._held = ""
            return text[: min(hits)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a start of `stop`, but not all of it."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0

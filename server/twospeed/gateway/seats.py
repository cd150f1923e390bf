"""The seats of one service tier on one model, and the line before them.

Pure bookkeeping, with the clock given: who sits, who waits in which order, and how long a newcomer would wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_REMEMBERED = 32  # of how many requests the time in a seat is averaged


class Guest(Protocol):
    """Some sequences that want seats together. `seated()` is called when they have them, at once or later."""

    @property
    def sequences(self) -> int: ...
    def seated(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Room:
    """How things stand: seats and places in the line there are, and the sequences that have them."""

    seats: int
    queue: int
    seated: int
    waiting: int

    @property
    def held(self) -> int:
        """Sequences inside, seated or waiting."""
        return self.seated + self.waiting


class Seats:
    """First come, first seated. How many seats there are is asked each time, as a reload may change it."""

    def __init__(self, count: Callable[[], int], queue: Callable[[], int], clock: Callable[[], float]) -> None:
        self._count = count
        self._queue = queue
        self._clock = clock
        self._since: dict[Guest, float] = {}
        self._line: dict[Guest, None] = {}
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._seated = 0
        self._waiting = 0

    def room(self) -> Room:
        return Room(self._count(), self._queue(), self._seated, self._waiting)

    def enter(self, guest: Guest) -> None:
        """Seat `guest`, or put it at the end of the line. Whether there is room for it is for the caller to check."""
        self._line[guest] = None
        self._waiting += guest.sequences
        self.fill()

    def leave(self, guest: Guest, *, served: bool) -> None:
        """`guest` goes, from its seat or from the line. `served`: the time it sat tells how long others will."""
        since = self._since.pop(guest, None)
        if since is None:
            del self._line[guest]
            self._waiting -= guest.sequences
        else:
            self._seated -= guest.sequences
            if served:
                self._recent.append(self._clock() - since)
        self.fill()

    def fill(self) -> None:
        """Seat whom there are seats for, in order: nobody overtakes."""
        seats = self._count()
        while self._line:
            guest = next(iter(self._line))
            # Seats may have become fewer than it needs since it came in: then it sits alone.
            if self._seated and self._seated + guest.sequences > seats:
                return
            del self._line[guest]
            self._waiting -= guest.sequences
            self._seated += guest.sequences
            self._since[guest] = self._clock()
            guest.seated()

    def expected_wait(self, sequences: int) -> float:
        """Seconds until `sequences` more would sit, as far as one can tell; 0: at once."""
        room = self.room()
        if not self._line and room.seated + sequences <= room.seats:
            return 0.0
        if self._recent:
            hold = sum(self._recent) / len(self._recent)
        else:  # nobody has finished yet: at least as long as they have been at it
            hold = max((self._clock() - since for since in self._since.values()), default=0.0)
        return expected_wait(hold, ahead=room.waiting, seats=room.seats)


def expected_wait(hold_s: float, *, ahead: int, seats: int) -> float:
    """How long one waits behind `ahead` others for one of `seats`, all taken, each held for `hold_s`."""
    return hold_s * (ahead + 1) / max(seats, 1)

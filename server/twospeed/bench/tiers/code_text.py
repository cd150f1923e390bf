"""A Python file of about 1,000 tokens to be edited, and small edits of it. Our own text: nobody's code."""

from __future__ import annotations

FILE = '''"""Bookings of the rowing club: who has which boat, and when."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path

OPENING_HOUR = 7
CLOSING_HOUR = 21
LONGEST_TRIP = timedelta(hours=4)


class BookingError(Exception):
    """The booking is not possible; the text says why."""


@dataclass(frozen=True)
class Boat:
    name: str
    seats: int
    needs_licence: bool = False


@dataclass(frozen=True)
class Booking:
    boat: Boat
    member: str
    start: datetime
    end: datetime

    def overlaps(self, other: Booking) -> bool:
        return self.boat == other.boat and self.start < other.end and other.start < self.end

    def length(self) -> timedelta:
        return self.end - self.start


@dataclass
class BookingBook:
    boats: dict[str, Boat] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)
    licensed: set[str] = field(default_factory=set)

    def add_boat(self, name: str, seats: int, needs_licence: bool = False) -> Boat:
        if name in self.boats:
            raise BookingError(f"there is already a boat named {name}")
        if seats < 1:
            raise BookingError("a boat needs at least one seat")
        boat = Boat(name, seats, needs_licence)
        self.boats[name] = boat
        return boat

    def book(self, member: str, boat_name: str, start: datetime, hours: float) -> Booking:
        boat = self.boats.get(boat_name)
        if boat is None:
            raise BookingError(f"there is no boat named {boat_name}")
        if boat.needs_licence and member not in self.licensed:
            raise BookingError(f"{member} has no licence for {boat_name}")
        booking = Booking(boat, member, start, start + timedelta(hours=hours))
        self._check_times(booking)
        for other in self.bookings:
            if booking.overlaps(other):
                raise BookingError(f"{boat_name} is taken by {other.member} until {other.end:%H:%M}")
        self.bookings.append(booking)
        return booking

    def _check_times(self, booking: Booking) -> None:
        if booking.length() <= timedelta(0):
            raise BookingError("a trip must end after it starts")
        if booking.length() > LONGEST_TRIP:
            raise BookingError("a trip may take four hours at most")
        if booking.start.hour < OPENING_HOUR or booking.end.hour >= CLOSING_HOUR:
            raise BookingError("the boat house is closed at that time")

    def cancel(self, member: str, boat_name: str, start: datetime) -> None:
        for booking in self.bookings:
            if (booking.member, booking.boat.name, booking.start) == (member, boat_name, start):
                self.bookings.remove(booking)
                return
        raise BookingError(f"{member} has no such booking")

    def of_day(self, day: date) -> list[Booking]:
        found = [b for b in self.bookings if b.start.date() == day]
        return sorted(found, key=lambda b: (b.start, b.boat.name))

    def hours_of(self, member: str) -> float:
        total = sum((b.length() for b in self.bookings if b.member == member), timedelta(0))
        return total.total_seconds() / 3600

    def free_boats(self, start: datetime, hours: float) -> list[Boat]:
        end = start + timedelta(hours=hours)
        taken = {b.boat.name for b in self.bookings if b.start < end and start < b.end}
        return [boat for name, boat in sorted(self.boats.items()) if name not in taken]


def save(book: BookingBook, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["boat", "member", "start", "end"])
        for b in sorted(book.bookings, key=lambda b: b.start):
            writer.writerow([b.boat.name, b.member, b.start.isoformat(), b.end.isoformat()])
'''


EDITS = (
    "rename the class `BookingBook` to `Logbook` everywhere",
    "let trips take three hours at most: change the constant `LONGEST_TRIP` only",
    "rename the field `member` to `rower` everywhere",
    "open the boat house at six: change the constant `OPENING_HOUR` only",
    "rename the exception `BookingError` to `NotPossible` everywhere",
    "rename the method `of_day` to `on_day`",
)


def request(edit: str) -> str:
    return (
        f"Here is a Python file.\n\n```python\n{FILE}```\n\n"
        f"Repeat this whole file with one change: {edit}. "
        "Answer with the file alone, in one code block, and change nothing else."
    )

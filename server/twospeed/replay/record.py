"""A trace taken apart into what a simulation needs: what was asked and when, what was written, how long steps took.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..bench.stats import median
from ..engine import trace
from ..engine.cost import StepCost


class Speed:
    """How long steps of one model took: the measured curve times a factor, and so much for the context, fitted to all
    of them and then scaled to their whole time."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._xx = self._xy = self._yy = self._xm = self._ym = 0.0
        self._x = self._y = self._m = 0.0

    def learn(self, load: tuple[int, int, int], ms: float) -> None:
        x, y = self.base(load), load[2] / 1000
        self._xx += x * x
        self._xy += x * y
        self._yy += y * y
        self._xm += x * ms
        self._ym += y * ms
        self._x += x
        self._y += y
        self._m += ms

    def fit(self) -> tuple[float, float]:
        """The factor, and milliseconds for 1,000 positions."""
        if not self._xx:
            return 1.0, 0.0
        a, b = self._xm / self._xx, 0.0
        determinant = self._xx * self._yy - self._xy**2
        if determinant > 1e-6 * self._xx * self._yy:
            both = (
                (self._xm * self._yy - self._ym * self._xy) / determinant,
                (self._ym * self._xx - self._xm * self._xy) / determinant,
            )
            if min(both) >= 0:
                a, b = both
        fitted = a * self._x + b * self._y
        scale = self._m / fitted if fitted else 1.0
        return a * scale, b * scale

    def base(self, load: tuple[int, int, int]) -> float:
        return self._cost.base(load[0], load[1])


@dataclass(slots=True)
class Life:
    """One engine process. `asked`: what came from outside, in its order; of releases, only those that were cancelled.
    `outputs`: what each sequence wrote; `dropped`: those whose prefix could not stay. `pauses`: seconds between two
    steps while there was work."""

    asked: list[trace.ModelAdded | trace.Shared | trace.Added | trace.Released] = field(default_factory=list)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    speeds: dict[str, Speed] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)

    def pause(self) -> float:
        """The usual one: the few long ones are restores, or another process that had the CPU."""
        return median(self.pauses) if self.pauses else 0.0


class Gatherer:
    """Feed it the events of a trace."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self._live = set[int]()
        self._ended: float | None = None

    def feed(self, event: trace.Event) -> None:
        if isinstance(event, trace.Header):
            self.lives.append(Life())
            self._live, self._ended = set(), None
            return
        life = self.lives[-1]
        match event:
            case trace.ModelAdded():
                life.asked.append(event)
                life.speeds[event.model] = Speed(StepCost(event.curves))
            case trace.Shared():
                life.asked.append(event)
            case trace.Added():
                life.asked.append(event)
                life.outputs[event.sequence] = []
                self._live.add(event.sequence)
            case trace.Released():
                if event.cancelled:
                    life.asked.append(event)
                if not event.keep:
                    life.dropped.add(event.sequence)
                self._live.discard(event.sequence)
                if not self._live:
                    self._ended = None  # what comes until the next step is no pause
            case trace.Stepped():
                self._step(life, event)

    def _step(self, life: Life, event: trace.Stepped) -> None:
        life.speeds[event.model].learn(event.load, event.ms)
        if self._ended is not None:
            life.pauses.append(max(event.at - event.ms / 1000 - self._ended, 0.0))
        self._ended = event.at
        for part in event.parts:
            life.outputs[part.sequence] += part.written or []

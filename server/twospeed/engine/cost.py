"""What a step costs: milliseconds as a function of its rows, outputs and context.

The measured curve is a staircase: rows up to the next stair are free, because kernels work on tiles of rows.
Two curves are measured when a model is loaded (calibrate.py): steps with logits for their last row only, as
prefill has them, and with logits for every row, as decode has them. Every real step then corrects two
factors, one for the speed of the machine just now and one for the attention over long contexts, by recursive
least squares with forgetting (Haykin, Adaptive Filter Theory, ch. 10). Pure: no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

_FORGET = 0.98
_FACTOR_RANGE = (0.3, 5.0)
_TABLE = 513
_OUTLIER = 3.0  # a step this many times off its prediction was disturbed by something else


class Curves(msgspec.Struct, frozen=True):
    """Measured milliseconds by number of rows, at a short context."""

    last: dict[int, float]
    every: dict[int, float]


class _Stairs:
    """Piecewise linear through the measured points, made monotone: n rows never cost more than n + 1, since
    a row can always be added; that also takes out noise and leaves the stairs' treads flat."""

    def __init__(self, points: Mapping[int, float]) -> None:
        if 1 not in points:
            raise ValueError("a cost curve needs a one-row point")
        self._rows = sorted(points)
        ms = [points[n] for n in self._rows]
        for i in range(len(ms) - 2, -1, -1):
            ms[i] = min(ms[i], ms[i + 1])
        self._ms = ms
        self._table = [self._between(n) for n in range(_TABLE)]  # every plan asks for dozens

    def __call__(self, rows: int) -> float:
        return self._table[rows] if rows < _TABLE else self._between(rows)

    def _between(self, rows: int) -> float:
        if rows <= 0:
            return 0.0
        at = bisect_left(self._rows, rows)
        if at == len(self._rows):  # beyond the last point: its rate goes on
            return self._ms[-1] * rows / self._rows[-1]
        if self._rows[at] == rows:
            return self._ms[at]
        x0, x1, y0, y1 = self._rows[at - 1], self._rows[at], self._ms[at - 1], self._ms[at]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


class StepCost:
    """Predicts and learns the cost of one model's steps."""

    def __init__(self, curves: Curves) -> None:
        self.curves = curves
        self._last = _Stairs(curves.last)
        self._every = _Stairs(curves.every)
        self.factor = 1.0
        """How much slower than when measured the machine is now."""
        self.per_context = 0.0
        """Milliseconds for each 1,000 (row x token of context)."""
        self._spread = (0.01 * self._last(1)) ** 2  # of per_context at most: 1 % of a one-row step
        self._p = [[0.05, 0.0], [0.0, self._spread]]  # covariance: what is still unsure of the two

    def base(self, rows: int, outputs: int) -> float:
        """The measured milliseconds of a step with `rows` rows, logits wanted for `outputs` of them."""
        return self._last(rows) + max(0.0, self._every(outputs) - self._last(outputs))

    def ms(self, rows: int, outputs: int, context: float = 0.0) -> float:
        """Predicted milliseconds. `context`: the rows' positions, summed."""
        return self.factor * self.base(rows, outputs) + self.per_context * context / 1000

    def observe(self, rows: int, outputs: int, context: float, ms: float) -> None:
        """Learn from a step that took `ms`."""
        x = (self.base(rows, outputs), context / 1000)
        predicted = self.factor * x[0] + self.per_context * x[1]
        ms = min(max(ms, predicted / _OUTLIER), predicted * _OUTLIER)
        p = self._p
        px = (p[0][0] * x[0] + p[0][1] * x[1], p[1][0] * x[0] + p[1][1] * x[1])
        denominator = _FORGET * x[0] ** 2 * 0.01 + x[0] * px[0] + x[1] * px[1]  # noise: about 10 % of a step
        if denominator <= 0:
            return
        gain = (px[0] / denominator, px[1] / denominator)
        error = ms - predicted
        low, high = _FACTOR_RANGE
        self.factor = min(max(self.factor + gain[0] * error, low), high)
        self.per_context = max(0.0, self.per_context + gain[1] * error)
        # Bounded, so that a long run of equal steps cannot blow up what they say nothing about.
        new = [[(p[i][j] - gain[i] * px[j]) / _FORGET for j in (0, 1)] for i in (0, 1)]
        off = (new[0][1] + new[1][0]) / 2
        a, d = min(max(new[0][0], 1e-6), 0.05), min(max(new[1][1], 1e-5 * self._spread), self._spread)
        bound = 0.9 * (a * d) ** 0.5
        off = min(max(off, -bound), bound)
        self._p = [[a, off], [off, d]]

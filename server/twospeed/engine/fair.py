"""Who is next: device time in measured milliseconds, shared by weight.

Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996): each flow has a virtual time that grows by the time it
was given over its weight, and the flow that is furthest behind goes next. A flow that was away starts level with
those that stayed: waiting for nothing earns no claim, and time that nobody else wanted costs none. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from ..types import ServiceTier, Share

K = TypeVar("K")


class FairQueue(Generic[K]):
    """Flows by key. `weights` must be above 0."""

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._present: set[K] = set()

    def next(self, weights: Mapping[K, float]) -> K:
        """The flow that goes next of those in `weights`, which is all that want anything now; the earlier one of
        equals."""
        stayed = [self._at[key] for key in weights if key in self._present]
        level = min(stayed) if stayed else max(self._at.values(), default=0.0)
        for key in weights:
            if key not in self._present:
                self._at[key] = max(self._at.get(key, level), level)
        self._present = set(weights)
        return min(weights, key=self._at.__getitem__)

    def charge(self, key: K, ms: float, weight: float) -> None:
        """`key` was given `ms` of the device while it had `weight`."""
        self._at[key] = self._at.get(key, 0.0) + ms / weight

    def credit(self, key: K, other: K, weight: float) -> float:
        """Milliseconds that `key` may be given, at `weight`, until it is where `other` is; below 0 when it is ahead."""
        return (self._at[other] - self._at[key]) * weight

    def nobody(self) -> None:
        """Nothing is wanted now: whoever comes next starts level with all."""
        self._present = set()

    def forget(self, key: K) -> None:
        self._at.pop(key, None)
        self._present.discard(key)


def tier_weights(tiers: Iterable[ServiceTier], shares: Mapping[ServiceTier, Share]) -> dict[ServiceTier, float]:
    """What part of the device each of `tiers` gets while all of them want it; they add up to 1.

    `first` tiers get their share and `last` ones theirs; the `shared` ones divide the rest by weight. Where there is
    none of these, the last ones get the rest, and where there are only first ones, these do.
    """
    wanted = {tier: shares[tier] for tier in tiers}
    fixed = {tier: s.share for tier, s in wanted.items() if s.precedence != "shared"}
    by_weight = {tier: s.weight for tier, s in wanted.items() if s.precedence == "shared"}
    if not by_weight:
        last = {tier: part for tier, part in fixed.items() if wanted[tier].precedence == "last"}
        by_weight = last or fixed
        fixed = {tier: part for tier, part in fixed.items() if tier not in by_weight}
    rest, total = 1 - sum(fixed.values()), sum(by_weight.values())
    parts = fixed | {tier: rest * weight / total for tier, weight in by_weight.items()}
    return {tier: parts[tier] for tier in wanted}

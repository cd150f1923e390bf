"""Seats and permits per model and service tier, for whoever shows them."""

from __future__ import annotations

from ..types import ServiceTier
from .admission import Admission


class AdmissionCounts:
    """Implements observe.board.TierCounts."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def seats(self, model: str, tier: ServiceTier) -> int:
        return self._admission.room(model, tier).seats

    def held(self, model: str, tier: ServiceTier) -> int:
        return self._admission.room(model, tier).held

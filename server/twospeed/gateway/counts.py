"""Seats and permits per model and service tier, for whoever shows them."""

from __future__ import annotations

from ..config import Config
from ..types import ServiceTier
from .admission import Admission


class AdmissionCounts:
    """As long as everything is served as `default`, all permits of a model are that tier's."""

    def __init__(self, config: Config, admission: Admission) -> None:
        self._config = config
        self._admission = admission

    def seats(self, model: str, tier: ServiceTier) -> int:
        policies = dict(self._config.service_tiers.each())
        slots = self._config.models[model].slots
        seats = policies[tier].seats
        return slots if seats == "auto" else min(seats, slots)

    def held(self, model: str, tier: ServiceTier) -> int:
        return self._admission.held(model) if tier == "default" else 0

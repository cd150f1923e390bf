"""The tiers' standing for Prometheus, worked out when somebody scrapes, so that a step costs nothing more for it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .board import Board


class TierCollector(Collector):
    """Reads a Board. Labels are names of the configuration only."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        by_tier = ("model", "tier")
        board = self._board
        used = CounterMetricFamily("twospeed_tier_device_seconds", "Device time that a tier has had", labels=by_tier)
        seats = GaugeMetricFamily("twospeed_tier_seats", "Sequences that may run at the same time", labels=by_tier)
        taken = GaugeMetricFamily("twospeed_tier_seats_in_use", "Sequences that run", labels=by_tier)
        queue = GaugeMetricFamily("twospeed_tier_queue_depth", "Sequences that wait for a seat", labels=by_tier)
        share = GaugeMetricFamily(
            "twospeed_tier_share_promised", "Part of device time that a tier gets when all want it", labels=("tier",)
        )
        policies = board.policies()
        for tier, promise in policies.promised().items():
            share.add_metric([tier], promise)
            for model in board.models:
                labels = [model, tier]
                all_seats, in_use, waiting = board.seats(model, tier)
                used.add_metric(labels, board.window.device_ms((model, tier)) / 1000)
                seats.add_metric(labels, all_seats)
                taken.add_metric(labels, in_use)
                queue.add_metric(labels, waiting)
        yield from (used, share, seats, taken, queue)

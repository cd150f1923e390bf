"""What is told about a step, and about a sequence at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..types import TIERS, ServiceTier, StepStats, TierStep, Timings, Usage
from .lanes import Lanes, Sequence, Step


def step_stats(lanes: Lanes, step: Step, ms: float, tokens: Mapping[ServiceTier, int]) -> StepStats:
    """`tokens`: what each tier's sequences wrote."""
    running = Counter(s.tier for s in lanes.running)
    return StepStats(
        model=step.model,
        ms=ms,
        predicted_ms=step.predicted_ms,
        decode_rows=step.decode_rows,
        prefill_rows=len(step.rows) - step.decode_rows - step.draft_rows,
        draft_rows=step.draft_rows,
        running=len(lanes.running),
        waiting=sum(len(lane) for lane in lanes.waiting.values()),
        kv_used=lanes.kv.used,
        kv_total=lanes.kv.capacity,
        tiers=[
            TierStep(tier, ms * step.charged.get(tier, 0.0), tokens[tier], running[tier], len(lanes.waiting[tier]))
            for tier in TIERS
            if tier in step.charged or running[tier] or lanes.waiting[tier]
        ],
    )


def usage(sequence: Sequence) -> Usage:
    return Usage(
        prompt_tokens=sequence.prompt_length,
        completion_tokens=sequence.generated,
        cached_tokens=sequence.cached,
        accepted_prediction=sequence.predicted_accepted,
        rejected_prediction=sequence.predicted - sequence.predicted_accepted,
    )


def timings(sequence: Sequence, now: float) -> Timings:
    assert sequence.started is not None
    assert sequence.first_token is not None
    return Timings(
        queue_ms=(sequence.started - sequence.arrived) * 1000,
        cache_n=sequence.cached,
        prompt_n=sequence.prompt_length - sequence.cached,
        prompt_ms=(sequence.first_token - sequence.started) * 1000,
        predicted_n=sequence.generated,
        predicted_ms=(now - sequence.first_token) * 1000,
        draft_n=sequence.drafted,
        draft_n_accepted=sequence.accepted,
    )

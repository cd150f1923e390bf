"""Service tiers as arithmetic: which one a request gets, its seats, and its promised share of the device.

Pure: no clock, no state. Who holds a seat now is admission's part.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Config, ServiceTiers, TierPolicy
from ..errors import ApiError
from ..types import ModelInfo, ServiceTier, Share
from .auth import Principal

_MEANT: dict[str, ServiceTier] = {
    "ultrafast": "ultrafast",
    "priority": "priority",
    "fast": "priority",
    "scale": "priority",  # OpenAI sells it as a contract for reserved capacity; here that is what priority is
    "default": "default",
    "flex": "flex",
}


def tier_for(wanted: str, principal: Principal) -> ServiceTier:
    """The tier to serve a request with `service_tier: wanted` in. Raises `service_tier_not_allowed`."""
    if wanted == "auto":
        return principal.default_tier
    tier = _MEANT[wanted]
    if tier in principal.tiers:
        return tier
    what = "is a limited preview that" if tier == "ultrafast" else "is a service tier that"
    may = ", ".join(sorted(principal.tiers))
    raise ApiError(
        "service_tier_not_allowed",
        f"{tier!r} {what} this API key is not let into. Leave service_tier out, or use one of: {may}. Whoever runs "
        f"this server can let the key in under `preview` and the key's `service_tiers` in models.yaml.",
        param="service_tier",
    )


def seats_for(policy: TierPolicy, promised: float, slots: int, stream_ms: Sequence[float]) -> int:
    """How many sequences of one model may run in a tier at the same time.

    `promised` is the tier's share of the device, `stream_ms[n - 1]` the milliseconds of a step with n streams; empty
    while they are not known. At least 1 where it is computed, never more than the model's slots.
    """
    if policy.seats != "auto":
        return min(policy.seats, slots)
    if policy.min_tok_s is None or not stream_ms:
        return slots
    # auto is half of one stream's speed, whatever the share, which would stand on both sides.
    longest = 2 * stream_ms[0] if policy.min_tok_s == "auto" else 1000 * promised / policy.min_tok_s
    return max((n for n, ms in enumerate(stream_ms[:slots], 1) if ms <= longest), default=1)


def seats_of(config: Config, model: str, tier: ServiceTier, info: ModelInfo | None) -> int:
    """The seats of `tier` on `model`, as far as is known of the model: `info` is None until it is loaded."""
    tiers = config.service_tiers
    stream_ms = info.stream_ms if info else ()
    return seats_for(tiers.of(tier), tiers.promised()[tier], config.models[model].slots, stream_ms)


def queue_of(config: Config, tier: ServiceTier) -> int:
    """How many sequences may wait for a seat in `tier`, per model."""
    policy = config.service_tiers.of(tier)
    return config.server.max_queue if policy.max_queue == "auto" else policy.max_queue


def queue_wait_of(config: Config, tier: ServiceTier) -> float:
    """The longest wait for a seat in `tier`, in seconds."""
    policy = config.service_tiers.of(tier)
    return config.server.queue_wait_s if policy.queue_wait_s == "auto" else policy.queue_wait_s


def shares(tiers: ServiceTiers) -> dict[ServiceTier, Share]:
    """What the engine is told of them."""
    return {
        name: Share(
            precedence=policy.precedence, share=policy.share, weight=policy.weight, speculation=policy.speculation
        )
        for name, policy in tiers.each()
    }

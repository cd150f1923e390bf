"""Many steps of the scheduler alone, with a stand-in for the runner that accepts drafts by chance.

usage: python endurance.py STEPS SEED, which prints what was left at the end as JSON.
"""

from __future__ import annotations

import json
import random
import sys

from twospeed.config import ServiceTiers
from twospeed.engine.cost import Curves, StepCost
from twospeed.engine.kv import KvCache
from twospeed.engine.lanes import Limits, Sequence, Step
from twospeed.engine.scheduler import Scheduler
from twospeed.types import TIERS, ServiceTier, Share, Speculation

_STARVED_S = 600  # the least share is flex's 2 %, and others preempt it


def shares(speculation: Speculation) -> dict[ServiceTier, Share]:
    """The tiers' defaults."""
    return {
        tier: Share(precedence=p.precedence, share=p.share, weight=p.weight, speculation=speculation)
        for tier, p in ServiceTiers.model_validate({}).each()
    }


def scheduler(policy: dict[ServiceTier, Share], one_ms: dict[str, float]) -> Scheduler:
    """Models whose steps cost about as those of a 1.5B on two cores, in multiples of a one-row step."""
    made = Scheduler()
    made.share(policy)
    stairs = {1: 1.0, 2: 1.7, 4: 3.0, 8: 6.5, 16: 7.5, 17: 9.5, 32: 13.0, 64: 23.0}
    for name, one in one_ms.items():
        points = {n: one * times for n, times in stairs.items()}
        limits = Limits(8, 512, None, 600, 1000)
        made.add_model(name, StepCost(Curves(points, points)), KvCache(50_000, 40), limits)
    return made


def endure(steps: int, seed: int) -> dict[str, int]:
    """Random adds, cancels and changes of policy on two models whose caches are too small for all."""
    rng = random.Random(seed)
    policies = [shares(speculation) for speculation in ("off", "auto", "eager")]
    subject = scheduler(policies[2], {"a": 30.0, "b": 10.0})
    for lanes in subject.models.values():
        lanes.kv = KvCache(1024, 40)
    moved_at: dict[Sequence, float] = {}  # all that is alive, and when it last got a row
    now, ran, starved = 0.0, 0, 0
    while ran < steps:
        if len(moved_at) < 6 and rng.random() < 0.05:
            prompt = [rng.randrange(50) for _ in range(rng.randrange(3, 120))]
            sequence = Sequence(str(ran), rng.choice("ab"), prompt, rng.randrange(1, 200), rng.choice(TIERS))
            moved_at[sequence] = now
            subject.add(sequence)
        if moved_at and rng.random() < 0.002:
            _end(subject, moved_at, rng.choice(list(moved_at)))
        if rng.random() < 0.001:
            subject.share(rng.choice(policies))
        step = subject.plan(now)
        if step is None:
            assert not moved_at
            continue
        if step.restored is not None:
            if rng.random() < 0.3:
                subject.restore_failed(step.restored)
            continue
        ran += 1
        ms = step.predicted_ms * rng.choice([0.8, 1.0, 1.2])
        now += ms / 1000
        subject.commit(step, ms, now, _written(step, rng))
        for sequence in [part.sequence for part in step.parts]:
            starved += now - moved_at[sequence] > _STARVED_S
            moved_at[sequence] = now
            if sequence.generated >= sequence.max_new:
                _end(subject, moved_at, sequence)
    for sequence in list(moved_at):
        _end(subject, moved_at, sequence)
    lanes_left = list(subject.models.values())
    return {
        "steps": ran,
        "hot": sum(lanes.kv.hot_cells for lanes in lanes_left),
        "running": sum(len(lanes.running) for lanes in lanes_left),
        "starved": starved,
    }


def _end(subject: Scheduler, moved_at: dict[Sequence, float], sequence: Sequence) -> None:
    subject.release(sequence)
    del moved_at[sequence]


def _written(step: Step, rng: random.Random) -> list[list[int]]:
    written = []
    for part in step.parts:
        if part.sampled:
            right = 0
            while right < len(part.draft) and rng.random() < 0.8:
                right += 1
            written.append([*part.draft[:right], rng.randrange(50)])
    return written


if __name__ == "__main__":
    print(json.dumps(endure(int(sys.argv[1]), int(sys.argv[2]))))

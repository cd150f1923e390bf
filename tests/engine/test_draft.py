"""A draft model beside the model: the same text in fewer steps, only where it pays, within its cache and its time.

The fakes write what follows from all tokens in their caches, so a draft model that agrees in principle is right only
where its cache holds what the sequence does. A position that is not the next one is an error, after which there are no
drafts: `Engine.drain` looks for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.config import Model
from twospeed.engine.core import Core, max_seqs
from twospeed.engine.cost import Curves
from twospeed.engine.draft_model import Draft
from twospeed.engine.guess import Guess
from twospeed.engine.lanes import DraftLane, Limits
from twospeed.engine.memo import TokenMemo
from twospeed.engine.prepare import Preparer
from twospeed.engine.runner.base import Logits, Row, RunnerError
from twospeed.engine.runner.fake import FakeRunner
from twospeed.types import (
    TIERS,
    Chunk,
    GenerateRequest,
    Sampling,
    ServiceTier,
    Share,
    Speculation,
    StepStats,
    Timings,
    TokenPrompt,
)


class Clock:
    now = 100.0


class Writer(FakeRunner):
    """Writes text that never repeats itself, on a clock, `ms` for a step and `row_ms` for each row. Where `agrees` of
    the length says no it writes something else."""

    def __init__(self, clock: Clock, ms: float, model: Model, seqs: int, agrees: Callable[[int], bool]) -> None:
        super().__init__(None, model, max_seqs=seqs)
        self.clock, self.ms, self.row_ms, self.agrees = clock, ms, ms / 100, agrees
        self.sizes: list[int] = []
        self.fails_after: int | None = None
        self.closed = False

    def run(self, rows: Sequence[Row]) -> Logits:
        if self.fails_after == len(self.sizes):
            raise RunnerError("out of memory")
        self.sizes.append(len(rows))
        self.clock.now += (self.ms + self.row_ms * len(rows)) / 1000
        return super().run(rows)

    def close(self) -> None:
        self.closed = True

    def _logits(self, tokens: list[int]) -> Any:
        logits = np.zeros(self.vocab.size, np.float32)
        state = len(tokens)
        for token in tokens:
            state = (state * 31 + token) % 1_000_003
        logits[33 + (state + (not self.agrees(len(tokens)))) % 61] = 20.0
        return logits

    def curves(self) -> Curves:
        ms = {n: self.ms + self.row_ms * n for n in (1, 8, 64, 512)}
        return Curves(ms, ms)


def always(_: int) -> bool:
    return True


def never(_: int) -> bool:
    return False


def is_draft(stats: StepStats) -> bool:
    """Whether it was one of the draft model's steps."""
    return not stats.decode_rows and not stats.prefill_rows


class Engine:
    """A Core with one model, whose steps take 10 ms, and a draft model, whose steps take `draft_ms`."""

    def __init__(
        self,
        agrees: Callable[[int], bool] | None = None,
        *,
        draft_ms: float = 0.5,
        draft_row_ms: float = 0.01,
        tokens: int = 8,
        slots: int = 4,
        max_prefill_step_ms: float = 600,
        speculation: Speculation = "auto",
        draft_vocab: int = 264,
        **model: Any,
    ) -> None:
        made = Model(backend="fake", slots=slots, **model)
        seqs, clock = max_seqs(slots), Clock()
        self.clock = clock
        self.runner = Writer(clock, 10, made, seqs, always)
        self.writer = Writer(clock, draft_ms, made, seqs, agrees or always)
        self.writer.vocab.size, self.writer.row_ms = draft_vocab, draft_row_ms
        memo, info = TokenMemo(), self.runner.info
        self.preparer = Preparer(self.runner.vocab, info.context, None, memo)
        self.core = Core(lambda: clock.now)
        self.core.share({tier: Share(speculation=speculation) for tier in TIERS})
        draft = Draft(self.writer, self.writer.curves(), tokens) if agrees else None
        limits = Limits(slots, info.max_rows, None, max_prefill_step_ms, spill_tokens=1000)
        self.core.add_model("smart", self.runner, memo, self.runner.curves(), limits, draft=draft)
        self.chunks: dict[tuple[str, int], list[Chunk]] = {}
        self.stats: list[StepStats] = []
        self.count = 0

    @property
    def lane(self) -> DraftLane:
        lane = self.core._scheduler.models["smart"].draft
        assert lane is not None
        return lane

    @property
    def draft_steps(self) -> list[StepStats]:
        return [s for s in self.stats if is_draft(s)]

    def submit(self, prompt: list[int], max_tokens: int = 200, **fields: Any) -> str:
        self.count += 1
        fields = {"sampling": Sampling(temperature=0)} | fields
        name = f"r{self.count}"
        request = GenerateRequest(id=name, model="smart", prompt=TokenPrompt(prompt), max_tokens=max_tokens, **fields)
        self.core.submit(self.preparer.prepare(request))
        return name

    def step(self) -> bool:
        done = self.core.step()
        if done is None:
            return False
        self.stats.append(done[0])
        for out in done[1]:
            self.chunks.setdefault((out.id, out.chunk.index), []).append(out.chunk)
        return True

    def drain(self) -> None:
        while self.step():
            lane = self.core._scheduler.models["smart"].draft
            assert lane is None or lane.kv.used <= lane.kv.capacity

    def text(self, name: str, index: int = 0) -> str:
        return "".join(chunk.text for chunk in self.chunks[name, index])

    def timings(self, name: str) -> Timings:
        found = self.chunks[name, 0][-1].timings
        assert found is not None
        return found

    def run(self, prompt: list[int], max_tokens: int = 200, **fields: Any) -> tuple[str, Timings]:
        name = self.submit(prompt, max_tokens, **fields)
        self.drain()
        return self.text(name), self.timings(name)


PROMPT = list(range(40, 70))


def plain(prompt: list[int], max_tokens: int = 200) -> str:
    return Engine().run(prompt, max_tokens)[0]


@pytest.mark.parametrize("speculation", ["auto", "eager"])
def test_a_draft_model_that_is_right_saves_steps_and_changes_nothing(speculation: Speculation) -> None:
    engine = Engine(always, speculation=speculation)
    text, timings = engine.run(PROMPT)
    assert text == plain(PROMPT)
    assert timings.predicted_n == 200
    assert timings.draft_n_accepted == timings.draft_n > 150
    assert len(engine.runner.sizes) < 50
    assert engine.lane.kv.hot_cells == 0


def test_one_that_is_wrong_is_left_alone_within_a_few_steps_and_seldom_tried_again() -> None:
    engine = Engine(never)
    text, timings = engine.run(PROMPT, 640)
    assert text == plain(PROMPT, 640)
    assert timings.draft_n_accepted == 0
    assert 2 <= sum(map(is_draft, engine.stats[:64])) <= 8  # one of them reads the prompt
    assert len(engine.draft_steps) < 8 + 2 * 640 / 64


def test_one_that_is_right_for_a_while_is_used_for_a_while() -> None:
    engine = Engine(lambda length: 230 < length % 400 < 380)
    without = Engine()
    text, timings = engine.run(PROMPT, 800)
    assert text == without.run(PROMPT, 800)[0]
    assert timings.draft_n_accepted > 150
    assert engine.clock.now - 100 < 0.85 * (without.clock.now - 100)


def test_the_length_of_drafts_follows_how_often_they_are_right() -> None:
    def mean(agrees: Callable[[int], bool]) -> float:
        engine = Engine(agrees)
        _, timings = engine.run(PROMPT, 600)
        assert len(engine.runner.sizes) < 500
        return timings.draft_n / sum(1 for s in engine.stats if s.draft_rows)

    assert mean(lambda length: length % 3 != 0) < mean(always) - 2


def test_a_draft_model_that_costs_too_much_never_runs() -> None:
    engine = Engine(always, draft_ms=10)
    text, timings = engine.run(PROMPT)
    assert text == plain(PROMPT)
    assert (timings.draft_n, engine.writer.sizes) == (0, [])


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    prompt = [i % 250 for i in range(2000)]
    engine = Engine(always, draft_ms=3)
    engine.run(prompt, 6)
    assert engine.writer.sizes == []
    engine.run(prompt, 400)
    assert engine.writer.sizes != []


def test_a_request_can_do_without() -> None:
    engine = Engine(always)
    engine.run(PROMPT, speculation="off")
    assert engine.writer.sizes == []
    off = Engine(always, speculation="off")
    off.run(PROMPT)
    assert off.writer.sizes == []


def test_what_can_be_copied_is_copied() -> None:
    engine = Engine(always)
    text, timings = engine.run(PROMPT, prediction=plain(PROMPT))
    assert text == plain(PROMPT)
    assert timings.draft_n_accepted > 150
    assert engine.writer.sizes == []


def test_its_time_is_charged_to_the_tier_and_not_taken_for_the_models_own() -> None:
    engine = Engine(always, draft_ms=1)
    start = engine.clock.now
    engine.run(PROMPT, 400)
    elapsed = (engine.clock.now - start) * 1000
    assert sum(s.ms for s in engine.stats) == pytest.approx(elapsed)
    assert sum(tier.ms for s in engine.stats for tier in s.tiers) == pytest.approx(elapsed)
    assert engine.core._scheduler._tiers._at["default"] == pytest.approx(elapsed)
    lanes = engine.core._scheduler.models["smart"]
    assert lanes.cost.ms(1, 1) == pytest.approx(10.1, rel=0.02)
    assert engine.lane.cost.ms(1, 1) == pytest.approx(1.01, rel=0.02)


def test_a_tier_pays_for_its_own_guesses_only() -> None:
    engine = Engine(always, draft_ms=1)
    engine.core.share({tier: Share(speculation="auto" if tier == "priority" else "off") for tier in TIERS})
    engine.submit(PROMPT, tier="priority")
    engine.submit([*PROMPT, 1], tier="default")
    engine.drain()
    assert engine.draft_steps
    assert {tier.tier for s in engine.draft_steps for tier in s.tiers if tier.ms} == {"priority"}


def test_reading_a_long_prompt_is_cut_into_bounded_steps_with_the_models_own_between() -> None:
    engine = Engine(always, max_prefill_step_ms=12, draft_ms=1.2, draft_row_ms=0.1)
    text, timings = engine.run([i % 250 for i in range(3000)], 300)
    assert text == plain([i % 250 for i in range(3000)], 300)
    assert timings.draft_n_accepted > 50
    assert sum(1 for n in engine.writer.sizes if n > 16) > 30
    assert max(s.ms for s in engine.draft_steps) <= 12.1
    kinds = [is_draft(s) for s in engine.stats]
    assert not any(a and b for a, b in pairwise(kinds))


def test_sequences_have_their_own_and_leave_nothing_behind() -> None:
    engine = Engine(always, context=1024)
    for round_ in range(12):  # more than there are sequence ids
        names = [engine.submit([*PROMPT, round_, i], 60 + 10 * i) for i in range(4)]
        engine.submit([*PROMPT, round_], 50, n=3)
        gone = engine.submit([*PROMPT, 3, round_], 300)
        for _ in range(14):
            engine.step()
        engine.core.cancel(gone)
        engine.drain()
        for i, name in enumerate(names):
            assert engine.text(name) == plain([*PROMPT, round_, i], 60 + 10 * i)
        assert len({engine.text(f"r{engine.count - 1}", i) for i in range(3)}) == 1
        assert engine.lane.kv.hot_cells == 0
    assert len(engine.writer.sizes) < len(engine.runner.sizes) * 8


def test_samples_of_one_prompt_go_their_own_ways() -> None:
    def texts(agrees: Callable[[int], bool] | None) -> list[str]:
        engine = Engine(agrees)
        # The model is sure of its next token but for one part in a few hundred.
        name = engine.submit(PROMPT, 150, n=3, sampling=Sampling(temperature=2.0, seed=5))
        engine.drain()
        return [engine.text(name, i) for i in range(3)]

    with_drafts = texts(always)
    assert len(set(with_drafts)) > 1
    assert with_drafts == texts(None)


def test_a_cache_that_is_too_small_for_all_is_shared_by_turns() -> None:
    engine = Engine(always, slots=8, context=512, kv_tokens=512, draft_ms=0.2)
    prompts = [[50 + i, *range(40, 70)] for i in range(12)]
    names = [engine.submit(prompt, 150) for prompt in prompts]
    engine.drain()
    assert [engine.text(name) for name in names] == [plain(prompt, 150) for prompt in prompts]
    assert engine.lane.kv.hot_cells == 0  # and it is still there: nothing failed


def test_a_conversation_goes_on_where_the_draft_models_cache_ended() -> None:
    engine = Engine(always)
    prompt = [60 + i % 61 for i in range(800)]
    text, _ = engine.run(prompt, 60)
    rows = sum(engine.writer.sizes)
    engine.run([*prompt, *text.encode(), 99], 60)
    assert sum(engine.writer.sizes) - rows < 200


@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_draft_model_that_fails_is_done_without(after: int, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(always)
    engine.writer.fails_after = after
    with caplog.at_level(logging.WARNING):
        names = [engine.submit([*PROMPT, i]) for i in range(3)]
        engine.drain()
        engine.run(PROMPT)
    assert [engine.text(name) for name in names] == [plain([*PROMPT, i]) for i in range(3)]
    assert [record.getMessage() for record in caplog.records] == [
        "smart goes on without its draft model, which failed: out of memory"
    ]
    assert engine.writer.closed
    assert engine.core._scheduler.models["smart"].draft is None


_request = st.tuples(
    st.integers(0, 3), st.integers(1, 200), st.integers(2, 120), st.integers(1, 2), st.sampled_from(TIERS)
)


@given(st.lists(st.tuples(_request, st.integers(0, 25), st.booleans()), min_size=1, max_size=12), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_whatever_comes_and_goes_the_text_is_the_models_own(
    events: list[tuple[tuple[int, int, int, int, ServiceTier], int, bool]], period: int
) -> None:
    engine = Engine(lambda length: length % period != 0, slots=2, context=512, kv_tokens=512, draft_ms=0.3)
    wanted: dict[str, tuple[list[int], int, int]] = {}
    for (kind, length, new, n, tier), steps, leaves in events:
        prompt = [40 + kind, *(40 + i % 80 for i in range(length))]
        name = engine.submit(prompt, new, n=n, tier=tier)
        wanted[name] = (prompt, new, n)
        for _ in range(steps):
            engine.step()
        if leaves:
            engine.core.cancel(name)
            del wanted[name]
    engine.drain()
    for name, (prompt, new, n) in wanted.items():
        assert {engine.text(name, i) for i in range(n)} == {plain(prompt, new)}
    assert engine.lane.kv.hot_cells == 0


def test_a_token_that_only_the_model_has_is_no_error() -> None:
    engine = Engine(always, draft_vocab=250)
    text, _ = engine.run([256, *PROMPT], 100)
    assert text == plain([256, *PROMPT], 100)
    assert engine.lane.kv.used > 0  # it ran, and did not fail


def test_odds_fall_with_wrong_guesses_and_come_back_for_one_try() -> None:
    guess = Guess()
    wrong = 0
    while guess.wanted:
        guess.offer([1, 2, 3])
        guess.learn([9], 3)
        wrong += 1
    assert 2 <= wrong <= 6
    for _ in range(63):
        guess.learn([5], 0)
    assert not guess.wanted
    guess.learn([5], 0)
    assert guess.wanted
    guess.offer([1])
    assert not guess.wanted  # there is one
    guess.learn([9], 1)
    assert not guess.wanted
    assert guess.odds < 0.3

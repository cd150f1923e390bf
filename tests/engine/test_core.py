"""Requests through the whole engine but for its process: prepare, schedule, run, sample, text, numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.config import Model
from twospeed.engine.core import Core, max_seqs
from twospeed.engine.cost import Curves, StepCost
from twospeed.engine.lanes import Limits
from twospeed.engine.memo import TokenMemo
from twospeed.engine.prepare import Preparer, RejectedError
from twospeed.engine.runner.base import Logits, Row
from twospeed.engine.runner.fake import FakeRunner
from twospeed.engine.template import ChatTemplate
from twospeed.types import (
    TIERS,
    ChatPrompt,
    Chunk,
    GenerateRequest,
    Sampling,
    Share,
    Speculation,
    StepStats,
    TextPrompt,
    Timings,
    TokenPrompt,
    Usage,
)

"""Rows of a known prompt that are prefilled again at most."""


class Clocked(FakeRunner):
    """A FakeRunner whose steps take 1 ms and 1 ms a row, on a clock of their own."""

    def __init__(self, model: Model, *, seqs: int) -> None:
        super().__init__(None, model, max_seqs=seqs)
        self.now = 100.0
        self.rows = 0
        self.steps = 0

    def run(self, rows: Sequence[Row]) -> Logits:
        self.now += (1 + len(rows)) / 1000
        self.rows += len(rows)
        self.steps += 1
        return super().run(rows)


class Engine:
    def __init__(
        self,
        *,
        slots: int = 4,
        max_prefill_step_ms: float = 600,
        speculation: Speculation = "off",
        runner: type[Clocked] | None = None,
        **model: Any,
    ) -> None:
        self.runner = (runner or Clocked)(Model(backend="fake", slots=slots, **model), seqs=max_seqs(slots))
        self.core = Core(lambda: self.runner.now)
        memo = TokenMemo()
        vocab, info = self.runner.vocab, self.runner.info
        assert vocab.chat_template
        template = ChatTemplate(vocab.chat_template, bos_text="<|bos|>", eos_text="<|end|>", timeout_s=5)
        self.preparer = Preparer(vocab, info.context, template, memo)
        curves = Curves({n: 1.0 + n for n in (1, 64)}, {n: 1.0 + n for n in (1, 64)})
        limits = Limits(slots, info.max_rows, None, max_prefill_step_ms)
        self.core.share({tier: Share(speculation=speculation) for tier in TIERS})
        self.core.add_model("fast", self.runner, memo, curves, limits)
        self.chunks: dict[tuple[str, int], list[Chunk]] = {}
        self.count = 0

    @property
    def kv(self) -> Any:
        return self.core._scheduler.models["fast"].kv

    def submit(self, prompt: str | list[int] | list[dict[str, str]], **fields: Any) -> str:
        self.count += 1
        match prompt:
            case str():
                made: Any = TextPrompt(prompt)
            case [dict(), *_]:
                made = ChatPrompt(prompt)
            case _:
                made = TokenPrompt(prompt)
        fields = {"sampling": Sampling(temperature=0)} | fields
        request = GenerateRequest(id=f"r{self.count}", model="fast", prompt=made, **fields)
        self.core.submit(self.preparer.prepare(request))
        return request.id

    def step(self) -> StepStats | None:
        done = self.core.step()
        if done is None:
            return None
        stats, outs = done
        for out in outs:
            self.chunks.setdefault((out.id, out.chunk.index), []).append(out.chunk)
        assert stats.kv_used == self.kv.used <= stats.kv_total
        return stats

    def run(self, prompt: str | list[int] | list[dict[str, str]], **fields: Any) -> Answer:
        name = self.submit(prompt, **fields)
        self.drain()
        return self.answer(name)

    def drain(self) -> None:
        while self.step():
            pass

    def answer(self, name: str, index: int = 0) -> Answer:
        return Answer(self.chunks[name, index])


class Answer:
    """A sequence's chunks put together; exactly the last one ends it."""

    def __init__(self, chunks: list[Chunk]) -> None:
        *before, last = chunks
        assert all(c.finish_reason is None and c.usage is None and c.timings is None for c in before)
        assert last.finish_reason is not None
        assert last.usage is not None
        assert last.timings is not None
        self.text = "".join(c.text for c in chunks)
        self.reason = last.finish_reason
        self.usage: Usage = last.usage
        self.timings: Timings = last.timings
        assert sum(c.tokens for c in chunks) == self.usage.completion_tokens


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_an_end_token_stops() -> None:
    answer = Engine().run(user("hello"))
    assert (answer.text, answer.reason) == ("hello", "stop")
    assert answer.usage == Usage(prompt_tokens=9, completion_tokens=6, cached_tokens=0)


def test_max_tokens_ends_with_length() -> None:
    answer = Engine().run(user("hello"), max_tokens=3)
    assert (answer.text, answer.reason) == ("hel", "length")
    assert answer.usage.completion_tokens == 3


def test_without_max_tokens_the_context_ends_it_with_length() -> None:
    answer = Engine(context=256).run("ab")
    assert answer.reason == "length"
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == 256


def test_a_stop_string_ends_the_text_before_it() -> None:
    answer = Engine().run(user("one END two"), stop=["END"])
    assert (answer.text, answer.reason) == ("one ", "stop")


def test_a_stop_string_that_is_decided_only_at_the_end_still_counts_as_stop() -> None:
    answer = Engine().run(user("abz"), stop=["b", "abc"], max_tokens=2)
    assert (answer.text, answer.reason) == ("a", "stop")


def test_a_start_of_a_stop_string_at_the_end_is_given_out() -> None:
    answer = Engine().run(user("one EN"), stop=["END"])
    assert (answer.text, answer.reason) == ("one EN", "stop")


def test_characters_of_several_tokens_come_whole() -> None:
    engine = Engine()
    name = engine.submit(user("a😀é"))
    engine.drain()
    texts = [chunk.text for chunk in engine.chunks[name, 0]]
    assert texts == ["a", "", "", "", "😀", "", "é", ""]


def test_echo_puts_the_prompt_before_the_text_of_every_choice() -> None:
    engine = Engine()
    name = engine.submit("abc", echo=True, n=2, max_tokens=3)
    engine.drain()
    assert [engine.answer(name, i).text for i in (0, 1)] == ["abcbbb"] * 2
    assert engine.run(list(b"xyz"), echo=True, max_tokens=1).text[:3] == "xyz"


def test_a_stop_string_in_an_echoed_prompt_stops_nothing() -> None:
    answer = Engine().run("abc", echo=True, stop=["ab"], max_tokens=2)
    assert (answer.text, answer.reason) == ("abcbb", "length")


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    answer = Engine().run(user("hi"), max_tokens=9, sampling=Sampling(temperature=0, ignore_eos=True))
    assert (answer.text, answer.reason) == ("hihihihih", "length")


def test_siblings_share_one_prefill_of_the_prompt() -> None:
    engine = Engine()
    name = engine.submit("abcdefgh" * 30, n=4, max_tokens=5)
    engine.drain()
    answers = [engine.answer(name, i) for i in range(4)]
    again = [a.timings.prompt_n for a in answers[1:]]
    assert answers[0].usage.cached_tokens == 0
    assert again == [1, 1, 1]
    assert engine.runner.rows == 241 + sum(again) + 4 * 4
    assert len({a.text for a in answers}) == 1


def test_more_siblings_than_slots_all_come() -> None:
    engine = Engine(slots=2)
    name = engine.submit(user("hello"), n=7)
    engine.drain()
    assert [engine.answer(name, i).text for i in range(7)] == ["hello"] * 7


def test_the_next_turn_of_a_conversation_prefills_only_what_is_new() -> None:
    engine = Engine()
    messages = user("tell me a long story")
    answer = engine.run(messages)
    for turn in range(3):
        question = f"and then, {turn}?"
        messages = [*messages, {"role": "assistant", "content": answer.text}, *user(question)]
        answer = engine.run(messages)
        new = 1 + 1 + len(question) + 1 + 1  # end of the answer, user, the question, end, assistant
        assert answer.timings.prompt_n <= new + 2
        assert answer.usage.cached_tokens == answer.usage.prompt_tokens - answer.timings.prompt_n


def test_the_same_prompt_again_is_cached_but_for_a_few_tokens() -> None:
    engine = Engine()
    first, second = engine.run("abcdefgh" * 5, max_tokens=3), engine.run("abcdefgh" * 5, max_tokens=3)
    assert first.usage.cached_tokens == 0
    assert second.usage.prompt_tokens == 41
    assert second.usage.cached_tokens == 40
    assert second.text == first.text


def test_namespaces_never_share_a_prefix() -> None:
    engine = Engine()
    prompt = "abcdefgh" * 5
    assert engine.run(prompt, max_tokens=3, namespace="alice").usage.cached_tokens == 0
    assert engine.run(prompt, max_tokens=3, namespace="bob").usage.cached_tokens == 0
    assert engine.run(prompt, max_tokens=3).usage.cached_tokens == 0
    assert engine.run(prompt, max_tokens=3, namespace="alice").usage.cached_tokens == 40


def test_running_namespaces_never_share_a_prefix_either() -> None:
    engine = Engine()
    one = engine.submit("abcdefgh" * 5, max_tokens=30, namespace="alice")
    engine.step()
    two = engine.submit("abcdefgh" * 5, max_tokens=3, namespace="bob")
    engine.drain()
    assert engine.answer(one).usage.cached_tokens == engine.answer(two).usage.cached_tokens == 0


@pytest.mark.parametrize("when", ["queued", "prefill", "decode"])
def test_cancelling_frees_slot_and_cells_wherever_the_request_is(when: str) -> None:
    engine = Engine(slots=1, max_prefill_step_ms=33)
    if when == "queued":
        other = engine.submit("x", max_tokens=5)
        engine.step()
    name = engine.submit("abcdefgh" * 20, max_tokens=50, n=3)
    for _ in range({"queued": 1, "prefill": 2, "decode": 12}[when]):
        engine.step()
    assert ((name, 0) in engine.chunks) == (when == "decode")
    seen = len(engine.chunks.get((name, 0), []))
    engine.core.cancel(name)
    if when == "queued":
        engine.drain()
        assert engine.answer(other).usage.completion_tokens == 5
    assert engine.core.idle
    assert engine.step() is None
    assert engine.kv.hot_cells == 0
    assert len(engine.chunks.get((name, 0), [])) == seen
    engine.core.cancel(name)
    assert engine.run("abc", max_tokens=2, namespace="other").text == "bb"


def test_cancelling_one_request_leaves_the_others_their_text() -> None:
    engine = Engine()
    kept, gone = engine.submit(user("hello")), engine.submit(user("hello"), n=2)
    engine.step()
    engine.core.cancel(gone)
    engine.drain()
    assert engine.answer(kept).text == "hello"


def test_a_request_that_finished_leaves_nothing_behind() -> None:
    engine = Engine()
    engine.run(user("hello"), n=3)
    assert engine.core.idle
    assert engine.kv.hot_cells == 0
    assert not engine.core._requests
    assert not engine.core._by_sequence


def test_usage_and_timings_add_up() -> None:
    engine = Engine(slots=1, max_prefill_step_ms=33)
    start = engine.runner.now
    first = engine.submit("abcdefgh" * 10, max_tokens=5)
    second = engine.submit("abcdefgh" * 10 + "x", max_tokens=4)
    ends = {}
    while engine.step():
        for name, _ in engine.chunks:
            if engine.chunks[name, 0][-1].finish_reason and name not in ends:
                ends[name] = engine.runner.now
    for name, n in ((first, 5), (second, 4)):
        usage, timings = engine.answer(name).usage, engine.answer(name).timings
        assert timings.cache_n == usage.cached_tokens
        assert timings.cache_n + timings.prompt_n == usage.prompt_tokens
        assert timings.predicted_n == usage.completion_tokens == n
        whole = timings.queue_ms + timings.prompt_ms + timings.predicted_ms
        assert whole == pytest.approx((ends[name] - start) * 1000)
    assert engine.answer(first).timings.queue_ms == 0
    assert engine.answer(first).timings.predicted_ms == pytest.approx(4 * 2)
    assert engine.answer(second).timings.queue_ms == pytest.approx((ends[first] - start) * 1000)
    assert engine.answer(second).timings.prompt_n == 1
    assert engine.answer(second).timings.prompt_ms == pytest.approx(1 + engine.answer(second).timings.prompt_n)


def test_step_numbers_are_those_of_the_step() -> None:
    engine = Engine()
    engine.submit("abcdefgh", max_tokens=4)
    engine.submit("ijklmnop", max_tokens=4)
    steps = []
    while stats := engine.step():
        steps.append(stats)
    assert sum(s.decode_rows for s in steps) == 2 * 3
    assert sum(s.prefill_rows for s in steps) == 2 * 9
    assert all(s.ms == pytest.approx(1 + s.decode_rows + s.prefill_rows) for s in steps)
    assert [s.running for s in steps][-1] == 0
    assert steps[0].running == 2


def test_a_seed_decides_the_text_and_siblings_differ() -> None:
    likely = {ord(c): 20.0 for c in "abcdfgijkmn"}  # as likely as the letter the fake would write

    def texts(seed: int | None) -> list[str]:
        engine = Engine()
        s = Sampling(temperature=1, seed=seed, logit_bias=likely)
        name = engine.submit(user("hello"), n=2, max_tokens=40, sampling=s)
        engine.drain()
        return [engine.answer(name, i).text for i in (0, 1)]

    assert texts(5) == texts(5)
    assert len({*texts(5), *texts(-7), *texts(None), *texts(None)}) == 8


def test_what_could_never_fit_the_cache_is_refused_before_it_runs() -> None:
    engine = Engine(kv_tokens=256)  # and context: auto, which is larger
    assert engine.runner.info.context == 256
    with pytest.raises(RejectedError, match="256 tokens"):
        engine.submit("x" * 400, max_tokens=4)
    assert engine.run("x" * 200, max_tokens=55).usage.completion_tokens == 55


_request = st.tuples(st.text("ab😀<|", max_size=12), st.integers(1, 30), st.integers(1, 3), st.integers(0, 6))


@given(st.lists(_request, min_size=1, max_size=6), st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_together_every_request_gets_the_text_it_gets_alone(
    requests: list[tuple[str, int, int, int]], slots: int
) -> None:
    together = Engine(slots=slots, context=256, kv_tokens=256)
    names = []
    for text, max_tokens, n, steps in requests:
        names.append(together.submit(user(text), max_tokens=max_tokens, n=n, stop=["ba"]))
        for _ in range(steps):
            together.step()
    together.drain()
    for name, (text, max_tokens, n, _) in zip(names, requests, strict=True):
        alone = Engine().run(user(text), max_tokens=max_tokens, stop=["ba"])
        for index in range(n):
            answer = together.answer(name, index)
            assert (answer.text, answer.reason) == (alone.text, alone.reason)
            assert answer.usage.completion_tokens == alone.usage.completion_tokens


def test_without_cache_prompt_nothing_is_taken_up_and_nothing_is_left() -> None:
    engine = Engine()
    prompt = "abcdefgh" * 5
    engine.run(prompt, max_tokens=3)
    alone = engine.submit(prompt, max_tokens=3, n=2, cache_prompt=False)
    engine.drain()
    assert engine.answer(alone).usage.cached_tokens == 0
    assert engine.answer(alone, 1).usage.cached_tokens == 40
    assert engine.run(prompt + "ab", max_tokens=3, namespace=f"/{alone}").usage.cached_tokens == 0


# Speculation


def repeating(tokens: int = 80) -> dict[str, Any]:
    return {"prompt": [97, 98, 99, 100, 101, 102], "max_tokens": tokens}


@pytest.mark.parametrize("speculation", ["auto", "eager"])
def test_drafts_change_no_text_and_are_counted(speculation: Speculation) -> None:
    plain, drafting = Engine(), Engine(speculation=speculation)
    drafting.core._scheduler.models["fast"].cost = StepCost(Curves({1: 1.0, 64: 1.1}, {1: 1.0, 64: 1.2}))
    expected, answer = plain.run(**repeating()), drafting.run(**repeating())
    assert (answer.text, answer.reason) == (expected.text, expected.reason)
    assert answer.usage.completion_tokens == 80
    assert answer.timings.draft_n >= answer.timings.draft_n_accepted > 40
    assert drafting.runner.steps < plain.runner.steps / 3
    assert expected.timings.draft_n == 0


def test_a_request_can_do_without_drafts() -> None:
    engine = Engine(speculation="eager")
    assert engine.run(**repeating(), speculation="off").timings.draft_n == 0


def test_what_was_predicted_is_counted_as_openai_does() -> None:
    engine = Engine(speculation="eager")
    engine.core._scheduler.models["fast"].cost = StepCost(Curves({1: 1.0, 64: 1.1}, {1: 1.0, 64: 1.2}))
    expected = Engine().run("the quick brown fox jumps over a lazy dog", max_tokens=38)
    usage = engine.run("the quick brown fox jumps over a lazy dog", max_tokens=38, prediction=expected.text).usage
    assert usage.accepted_prediction > 20
    assert usage.rejected_prediction == 0
    wrong = engine.run("pack my box with five dozen", max_tokens=20, prediction="nothing of this is ever written").usage
    assert wrong.accepted_prediction == 0


def test_stop_strings_and_the_end_are_kept_inside_a_draft() -> None:
    for fields in ({"stop": ["efab"]}, {"max_tokens": 17}, {"stop": ["d"]}):
        engine = Engine(speculation="eager")
        engine.core._scheduler.models["fast"].cost = StepCost(Curves({1: 1.0, 64: 1.1}, {1: 1.0, 64: 1.2}))
        made: dict[str, Any] = repeating() | fields
        expected, answer = Engine().run(**made), engine.run(**made)
        assert (answer.text, answer.reason) == (expected.text, expected.reason)
        assert answer.usage.completion_tokens == expected.usage.completion_tokens
        # The cache holds what was written and nothing of what was drafted beyond it.
        follow = engine.run(**made)
        assert follow.text == expected.text


def test_drafts_keep_the_sampled_distribution() -> None:
    """Chi-square over 2,400 samples of three tokens after a prompt that invites drafts, with and without them.

    The model here says the same after every prompt; what a step computes decides only how many tokens come of it."""

    class Loaded(Clocked):
        def _logits(self, tokens: list[int]) -> Any:
            logits = np.full(self.vocab.size, -40.0, np.float32)
            # Depends on the last token, and likes to go on as the prompt does.
            for token, p in ((97, 0.5), (98, 0.3), (99, 0.2)):
                logits[token] = np.log(p) + (0.7 if token == 97 + (tokens[-1] - 96) % 3 else 0.0)
            return logits

    def samples(speculation: Speculation) -> tuple[Counter[str], int]:
        engine = Engine(speculation=speculation, runner=Loaded)
        engine.core._scheduler.models["fast"].cost = StepCost(Curves({1: 1.0, 64: 1.1}, {1: 1.0, 64: 1.2}))
        counts: Counter[str] = Counter()
        drafted = 0
        for seed in range(120):
            sampling = Sampling(temperature=1, seed=seed + (10_000 if speculation == "off" else 0))
            answer = engine.run([97, 98, 99] * 4, max_tokens=60, sampling=sampling)
            drafted += answer.timings.draft_n
            counts.update(answer.text[i : i + 3] for i in range(0, 60, 3))
        return counts, drafted

    with_drafts, drafted = samples("eager")
    without, none = samples("off")
    assert drafted > 1000
    assert none == 0
    cells = sorted(set(with_drafts) | set(without))
    assert sum(with_drafts.values()) == sum(without.values()) == 2400
    table = [(with_drafts[c], without[c]) for c in cells]
    chi2 = sum((a - b) ** 2 / (a + b) for a, b in table)
    assert len(cells) == 27
    assert chi2 < 54.1  # 26 degrees of freedom: one in a thousand by chance, and the seeds are fixed

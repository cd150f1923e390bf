"""Figures and ratios: what a limit makes of them, and that nothing slow is dropped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.bench.client import Result
from twospeed.bench.tiers import figures
from twospeed.bench.tiers.background import mean_running, received
from twospeed.bench.tiers.results import Figure, Span

values = st.lists(st.tuples(st.floats(0, 1000), st.booleans()), min_size=1, max_size=12)


@given(values, st.sampled_from([50.0, 95.0]), st.data())
def test_a_percentile_with_limits_is_never_above_the_true_one(
    known: list[tuple[float, bool]], percent: float, data: st.DataObject
) -> None:
    true = [(value + data.draw(st.floats(0, 1000)) * lower, False) for value, lower in known]
    said, real = figures.percentile(known, percent), figures.percentile(true, percent)
    assert said is not None
    assert real is not None
    assert said.value <= real.value + 1e-6
    if said.bound == "":
        assert said.value == pytest.approx(real.value)


def test_a_stream_that_got_nothing_counts_as_long_as_it_was_waited_for(sample: Any, cell: Any) -> None:
    two = cell([sample("default"), sample("default", [], waited_ms=90_000.0)])
    assert two.ttft_p95_ms is not None
    assert two.ttft_p95_ms.value > 80_000
    assert (two.ttft_p95_ms.bound, two.silent, two.waited_ms, two.rate) == (">=", 1, 90_000.0, 100.0)
    assert figures.percentile([], 50) is None


@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        (Figure(8), Figure(2), Figure(4)),
        (Figure(8, ">="), Figure(2), Figure(4, ">=")),
        (Figure(8), Figure(2, "<="), Figure(4, ">=")),
        (Figure(8), Figure(2, ">="), Figure(4, "<=")),
        (Figure(8, ">="), Figure(2, ">="), None),
        (Figure(8, ">="), Figure(2, "<="), Figure(4, ">=")),
        (Figure(8), Figure(0), None),
        (None, Figure(2), None),
    ],
)
def test_a_ratio_keeps_what_is_known_of_its_parts(
    above: Figure | None, below: Figure | None, expected: Figure | None
) -> None:
    assert figures.ratio(above, below) == expected


def test_rates_are_of_the_time_between_tokens(sample: Any, cell: Any) -> None:
    seen = cell([sample()])
    assert (seen.rate, seen.gap_p50_ms, seen.gap_max_ms, seen.tokens) == (100.0, 10.0, 10.0, 11)
    assert seen.whole_rate == Figure(1000 * 11 / 200)
    assert seen.drafted_per_step is None
    assert seen.cached_tokens is None


def test_drafts_are_counted_by_the_step(sample: Any, cell: Any) -> None:
    """11 tokens, the first by the prompt: 10 more in 4 steps, as 6 came out of drafts."""
    timings = {"predicted_n": 11.0, "draft_n": 12.0, "draft_n_accepted": 6.0}
    seen = cell([sample(timings=timings)])
    assert (seen.drafted_per_step, seen.accepted_per_step) == (3.0, 1.5)


def test_tokens_of_a_cut_stream_are_estimated_from_others_text(sample: Any, cell: Any) -> None:
    """An event may carry several tokens, so counting events would make a speculating server look slow."""
    full = sample(text="ab" * 11)
    cut = sample(round=1, told=False, whole=False, tokens=0, text="ab" * 31)
    assert figures.chars_per_token([full, cut]) == 2.0
    assert figures.tokens_of(cut, 2.0) == 31
    both = cell([full, cut])
    assert (both.cut, both.estimated, both.tokens) == (1, True, 42)
    assert figures.chars_per_token([cut]) == 4.0


def test_failed_samples_are_counted_and_not_measured(sample: Any, cell: Any) -> None:
    seen = cell([sample(at=[], error="status 429: full", told=False), sample(round=1)])
    assert (seen.samples, seen.failed, seen.silent, seen.rate) == (2, 1, 0, 100.0)


@given(st.text(), st.text(), st.text(min_size=1))
def test_texts_part_where_they_first_differ(head: str, one: str, other: str) -> None:
    assert figures.first_difference(head + one, head + one) == (None, len(head + one))
    at, of = figures.first_difference(head + "a" + one, head + "b" + other)
    assert at == len(head)
    assert of == len(head) + 1 + max(len(one), len(other))


def test_a_text_that_was_cut_is_compared_as_far_as_it_came() -> None:
    assert figures.first_difference("abc", "abcdef") == (3, 6)
    assert figures.first_difference("abc", "abcdef", whole=False) == (None, 3)


def test_only_answers_to_one_prompt_are_compared(sample: Any) -> None:
    pair = [sample("default", text="same"), sample(text="sane")]
    [apart], why = figures.differences(pair)
    assert (apart.at, apart.of, why) == (2, 4, "")
    others = [sample("default", same_prompt=False), sample(same_prompt=False)]
    assert figures.differences(others)[1].startswith("the prompts differ")
    assert figures.differences([sample(), sample("default", [], text="")])[1] == "no prompt was answered by both"


def test_ultrafast_is_held_against_default_and_against_itself(sample: Any, cell: Any) -> None:
    slow = sample("default", [1000.0 + 100 * i for i in range(11)])
    fast, alone = sample(), sample(load=0, at=[50.0 + 8 * i for i in range(11)])
    seen = figures.compare(cell([slow]), cell([fast]), cell([alone]), [slow, fast])
    assert seen.speed == Figure(10.0)
    assert seen.ttft == Figure(10.0)
    assert seen.kept == Figure(0.8)
    assert seen.ttft_of_alone == Figure(2.0)


def test_default_without_a_token_gives_limits_and_no_more(sample: Any, cell: Any) -> None:
    silent = sample("default", [], text="", waited_ms=10_000.0)
    fast = sample()
    seen = figures.compare(cell([silent]), cell([fast]), None, [silent, fast])
    assert seen.speed == Figure(1000 * 11 / 200 / 0.1, ">=")
    assert seen.ttft == Figure(100.0, ">=")
    assert seen.kept is None
    short = sample("default", [100.0])  # one token: it has no speed, and that isn't slowness
    assert figures.compare(cell([short]), cell([fast]), None, []).speed is None


def test_silent_streams_never_flatter_a_speed(sample: Any, cell: Any) -> None:
    """They have no rate, so the rate of the others is the most that it can be."""
    fast, silent = sample(), sample(round=1, at=[], text="", waited_ms=9000.0)
    slow = sample("default", [1000.0 + 100 * i for i in range(11)])
    seen = figures.compare(cell([slow]), cell([fast, silent]), cell([sample(load=0)]), [])
    assert (seen.speed, seen.kept) == (Figure(10.0, "<="), Figure(1.0, "<="))
    none = sample("default", [], round=1, text="", waited_ms=9000.0)
    assert figures.compare(cell([slow, none]), cell([fast]), None, []).speed == Figure(10.0, ">=")


def test_what_the_others_lost_is_the_usual_of_all_samples(sample: Any, cell: Any) -> None:
    spans = [Span(before=10, during=d, streams=4, share=0.1 * d) for d in (2.0, 4.0, 6.0)]
    seen = cell([sample(round=i, background=span) for i, span in enumerate(spans)])
    assert seen.background == Span(before=10, during=4, streams=4, share=0.4)


def test_events_of_the_background_weigh_what_they_carried() -> None:
    def result(tokens: int, events: int) -> Result:
        return Result(0.0, [float(i) for i in range(events)], "", tokens, 0, 0, {})

    whole, cut = received([result(20, 10), result(0, 10)], [True, False])
    assert (whole.weight, cut.weight) == (2.0, 2.0)
    [lone] = received([result(0, 10)], [False])
    assert lone.weight == 1.0


def test_streams_that_follow_each_other_count_as_one() -> None:
    assert mean_running([[0.0, 5.0], [5.0, 10.0], [2.0, 20.0], [11.0, 12.0]], 0.0, 10.0) == pytest.approx(1.8)

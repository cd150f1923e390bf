from __future__ import annotations

import pytest

from twospeed.bench import report
from twospeed.bench.results import Arrival, Ask, ManyStreams, OneStream, Pair, Turn


def arrival(**changes: object) -> Arrival:
    usual = {"gaps_alone_ms": [10.0, 10.0, 12.0], "gaps_beside_ms": [20.0, 60.0], "covered": True}
    rates = {"prompt_tokens": 1500, "rate_alone": 100.0, "rate_beside": 50.0, "ttft_ms": 3000.0}
    return Arrival(**(usual | rates | changes))  # type: ignore[arg-type]


def asks(*lines: report.Line) -> list[Ask]:
    return [ask for line in lines for ask in line.asks]


@pytest.mark.parametrize(
    ("value", "relation", "met"), [(2.0, ">=", True), (1.9, ">=", False), (2.0, "<=", True), (2.1, "<=", False)]
)
def test_an_ask_is_met_up_to_its_limit(value: float, relation: str, met: bool) -> None:
    assert report.ask("x", value, relation, 2.0).met is met  # type: ignore[arg-type]


def test_what_was_not_measured_is_neither_met_nor_below() -> None:
    line = report.Line("title", "text", [report.ask("x", None, ">=", 2)])
    assert report.text_of(line).endswith("x -, asked >= 2: not measured")


def test_one_stream_is_held_against_the_raw_loop_around_it() -> None:
    raw, http = report.of_one(OneStream(raw=[10, 8, 6], http=[9, 6], streams=[]), 96, "")
    assert raw.text == "8.0 tok/s (each: 10.0, 8.0, 6.0)"
    assert asks(http)[0].value == pytest.approx((1 + 6 / 7) / 2)
    assert report.text_of(http).endswith("of raw 0.93, asked >= 0.95: below")


def test_without_a_file_there_is_no_raw_figure_and_no_ask() -> None:
    raw, http = report.of_one(OneStream(raw=[], http=[9, 6], streams=[]), 96, "no file")
    assert raw.text == "not measured: no file"
    assert not asks(raw, http)


def test_sixteen_streams_are_held_against_one() -> None:
    one = OneStream(raw=[], http=[10, 10], streams=[])
    many = ManyStreams(count=16, together=25.0, together_s=3, whole=20, streams=[])
    assert [(a.value, a.met) for a in asks(report.of_many(many, one, 16))] == [(2.5, True)]
    assert asks(report.of_many(many, None, 16))[0].met is None
    never = ManyStreams(count=16, together=None, together_s=0, whole=20, streams=[])
    line = report.of_many(never, one, 8)
    assert asks(line)[0].met is None
    assert "8 slots" in line.text


def turn(prompt: int, cached: int, new: int) -> Turn:
    return Turn(prompt=prompt, cached=cached, prefilled=prompt - cached, new=new, completion=5, ttft_ms=10)


def test_the_worst_turn_after_the_first_counts() -> None:
    turns = [turn(50, 0, 20), turn(80, 55, 25), turn(110, 80, 25)]
    lines = report.of_turns(turns)
    assert len(lines) == 4
    assert [(a.value, a.met) for a in asks(*lines)] == [(5, False)]
    assert [a.met for a in asks(*report.of_turns(turns[:2]))] == [True]


def test_the_longest_gap_is_held_against_the_usual_one() -> None:
    gap, rate = report.of_arrival(arrival())
    assert [(a.value, a.met) for a in asks(gap, rate)] == [(6.0, True), (0.5, True)]
    assert "p50 40, p90 56" in gap.text
    slow = report.of_arrival(arrival(gaps_beside_ms=[90.0], rate_beside=30.0, covered=False))
    assert [a.met for a in asks(*slow)] == [False, False]
    assert "ended before" in slow[0].text


def test_two_models_share_what_each_has_alone() -> None:
    fair = Pair(alone={"a": [10, 10], "b": [20, 20]}, together={"a": 5.0, "b": 10.0}, seconds=6)
    assert [(a.value, a.met) for a in asks(*report.of_pair(fair))] == [(0.5, True), (0.5, True), (1.0, True)]
    greedy = Pair(alone={"a": [10, 10], "b": [20, 20]}, together={"a": 9.0, "b": 2.0}, seconds=6)
    assert [a.met for a in asks(*report.of_pair(greedy))] == [True, False, True]

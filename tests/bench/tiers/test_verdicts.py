"""Lines: a verdict only where it is known, and what was served where that is not what was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from twospeed.bench.report import text_of
from twospeed.bench.tiers import figures, verdicts
from twospeed.bench.tiers.results import Conserved, Extra, Figure, Gaps, Relation, Seats, Span


@pytest.mark.parametrize(
    ("value", "bound", "relation", "met"),
    [
        (8.0, "", ">=", True),
        (7.0, "", ">=", False),
        (8.0, ">=", ">=", True),
        (7.0, ">=", ">=", None),
        (7.0, "<=", ">=", False),
        (8.0, "<=", ">=", None),
        (9.0, ">=", "<=", False),
        (7.0, ">=", "<=", None),
        (7.0, "<=", "<=", True),
    ],
)
def test_a_limit_decides_only_what_it_can(value: float, bound: Relation, relation: Relation, met: bool | None) -> None:
    assert verdicts.ask("x", Figure(value, bound), relation, 8.0).met is met
    assert verdicts.ask("x", None, relation, 8.0).met is None


@pytest.fixture
def compared(sample: Any, cell: Any) -> Callable[..., list[str]]:
    """The lines of a load of 16 in which default got nothing."""

    def lines(**fast: Any) -> list[str]:
        slow, quick = sample("default", [], text="", waited_ms=90_000.0), sample(**fast)
        alone = cell([sample(load=0)])
        c = figures.compare(cell([slow]), cell([quick]), alone, [slow, quick])
        return [text_of(line) for line in verdicts.of_comparison(c, cell([slow]), cell([quick]), alone, 60.0)]

    return lines


def test_lines_of_a_load_that_something_is_asked_of(compared: Any) -> None:
    speed, ttft, kept, idle, texts = compared()
    assert "55.00, default <= 0.01 tok/s with the wait" in speed
    assert "p95 100 ms, default >= 90,000 ms" in ttft
    assert "100.0, alone 100.0 tok/s" in kept
    assert "times as fast >= 4950.00, asked >= 5: ok" in speed
    assert "times earlier >= 900.00, asked >= 8: ok" in ttft
    assert "of alone 1.00, asked >= 0.85: ok" in kept
    assert "p95 100 ms, idle 100 ms, 1.00 times as long, a background step 60 ms" in idle
    assert "asked <= 210: ok" in idle
    assert "not compared: no prompt was answered by both" in texts


def test_another_tier_shows_nothing_for_ultrafast_but_its_failures_stay(compared: Any) -> None:
    speed, _, kept, _, _ = compared(served="default")
    assert speed.endswith("not known")
    assert kept.endswith("not known")
    late = compared(served="default", at=[100.0 + 30 * i for i in range(11)])
    assert late[2].endswith("asked >= 0.85: below")


def test_loads_that_nothing_is_asked_of_have_figures_alone(sample: Any, cell: Any) -> None:
    slow, quick = sample("default", load=4), sample(load=4)
    c = figures.compare(cell([slow]), cell([quick]), None, [slow, quick])
    lines = verdicts.of_comparison(c, cell([slow]), cell([quick]), None, None)
    assert all(not line.asks for line in lines)
    assert lines[0].text == "100.0, default 100.0 tok/s; times as fast 1.00"
    assert lines[-1].text == "1 of 1 equal"


def test_a_cell_says_what_is_wrong_with_it(sample: Any, cell: Any) -> None:
    odd = [sample(served="default"), sample(round=1, at=[], text="", waited_ms=90_000.0)]
    text = text_of(verdicts.of_cell(cell(odd)))
    assert "asked ultrafast, served default" in text
    assert "no token within 90.0 s: 1 of 2" in text
    untold = text_of(verdicts.of_cell(cell([sample(served=None, told=False, whole=False)])))
    assert "served not told" in untold
    assert "tokens estimated from text" in untold
    assert "1 cut before the end" in untold


def test_where_texts_part_is_told_in_characters_and_as_a_part(sample: Any, cell: Any) -> None:
    pair = [sample("default", text="abcdefghij"), sample(text="abcdeXghij")]
    c = figures.compare(cell(pair[:1]), cell(pair[1:]), None, pair)
    assert verdicts.texts_of(c) == "0 of 1 equal; first difference at character 5 of 10 (50%)"


def test_what_the_others_lost_stands_beside(sample: Any, cell: Any) -> None:
    line = verdicts.of_background(cell([sample(background=Span(before=60, during=15, streams=16, share=0.25))]))
    assert line is not None
    assert line.text == "60.0 tok/s before, 15.0 during (16.0 streams); kept 0.25; their share of all tokens 0.25"
    assert verdicts.of_background(cell([sample()])) is None


def gaps(**changes: Any) -> Gaps:
    usual = Gaps(8, 1500, [10.0, 10.0, 12.0], [20.0, 35.0], 8, 30.0, True, "ultrafast")
    return msgspec.structs.replace(usual, **changes)


def test_the_longest_gap_beside_arriving_prompts() -> None:
    assert [a.met for a in verdicts.of_gaps(gaps()).asks] == [False]
    assert [a.met for a in verdicts.of_gaps(gaps(beside_ms=[20.0])).asks] == [True]
    ended = verdicts.of_gaps(gaps(beside_ms=[20.0], covered=False, answered=3))
    assert [a.met for a in ended.asks] == [None]
    assert "3 of 8 prompts read within 30 s" in ended.text
    assert [a.met for a in verdicts.of_gaps(gaps(beside_ms=[20.0], served="default")).asks] == [None]


def test_two_at_once_and_those_who_knock() -> None:
    extras = [Extra(3, "ultrafast", 200, 80.0, 90.0), Extra(4, None, 429, 12.0, None)]
    seen = Seats([30.0, 30.0], [15.0, 12.0], ["ultrafast", None], extras)
    one, two, third, fourth = verdicts.of_seats(seen)
    assert [a.met for line in (one, two) for a in line.asks] == [True, False]
    assert "served not told" in two.text
    assert (third.text, third.asks) == ("served ultrafast after 80 ms, first token 90 ms", [])
    assert "status 429 after 12 ms" in fourth.text
    assert [a.met for a in fourth.asks] == [True]


def test_ultrafast_alone_is_held_against_the_bare_loop(sample: Any, cell: Any) -> None:
    line = verdicts.of_plain("code-edit", [40.0, 50.0], cell([sample(load=0)]))
    assert [(a.value, a.met) for a in line.asks] == [(pytest.approx(100 / 45), True)]
    assert not verdicts.of_plain("json", [40.0], cell([sample(load=0)])).asks


def test_streams_that_were_never_all_at_work_say_so() -> None:
    assert verdicts.of_conserved(Conserved(16, None, 50.0)).text == "never all at once; whole run 50.0 tok/s"

"""The page and its plots: whole, self-contained, and nothing in them taken for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.bench.results import Machine
from twospeed.bench.tiers import svg
from twospeed.bench.tiers.page import page
from twospeed.bench.tiers.results import Gaps, Sample, Span, TiersReport
from twospeed.bench.tiers.run import conclude

EVIL = "<script>alert('x')</script>&\""
VOID = {"meta"}


class Tags(HTMLParser):
    """Every tag, and that each is closed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(samples: list[Sample]) -> TiersReport:
    machine = Machine(EVIL, [], 2, 2, "Linux", "x86_64", 1, 1, 0.5)
    out = TiersReport(machine, {"twospeed": "1"}, "today", EVIL, url=f"http://{EVIL}", samples=samples)
    out.notes, out.errors = [EVIL], [EVIL]
    out.gaps = [Gaps(1, 1500, [10.0], [20.0], 1, 3.0, True, EVIL)]
    out.step_ms = {16: 60.0}
    conclude(out)
    return out


@pytest.fixture
def samples(sample: Any) -> list[Sample]:
    others = Span(before=60, during=15, streams=16, share=0.25)
    out = [sample(tier, load=0) for tier in ("default", "ultrafast")]
    out.append(sample("default", [], text="", waited_ms=90_000.0, background=others))
    out.append(sample(served=EVIL, background=others))
    return out


def test_nothing_that_was_measured_is_taken_for_markup(samples: list[Sample]) -> None:
    text = page(report(samples))
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    assert "script" not in tags.seen
    assert EVIL not in text
    assert "alert(&#x27;x&#x27;)" in text


def test_the_page_needs_nothing_from_elsewhere(samples: list[Sample]) -> None:
    tags = Tags()
    tags.feed(page(report(samples)))
    assert not {"link", "img", "iframe", "object"} & set(tags.seen)
    assert not {"src", "href"} & {name for name, _ in tags.attributes}
    ids = [value for name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value for name, value in tags.attributes if name == "aria-labelledby"} == set(ids)


def test_limits_and_losses_are_in_it(samples: list[Sample]) -> None:
    text = page(report(samples))
    assert "&gt;= 90,000" in text
    assert "no token within 90.0 s" in text
    assert "all others together" in text
    assert "not known" in text  # another tier was served
    assert "prefers-color-scheme: dark" in text


def test_a_run_without_samples_is_a_page_too() -> None:
    tags = Tags()
    tags.feed(page(report([])))
    assert tags.open == []


def plots(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", text, re.DOTALL)[0])  # type: ignore[index]  # noqa: S314


sizes = st.floats(0.001, 1e6)


@given(st.lists(sizes, min_size=1, max_size=5), st.booleans())
def test_bars_stay_in_the_plot(values: list[float], log: bool) -> None:
    series = [svg.Series("s", "a", [svg.Bar(value, "v") for value in values])]
    root = plots(svg.bars("id", "title", "ms", [str(i) for i in range(len(values))], series, log=log))
    for rect in root.iter("rect"):
        assert float(rect.attrib["y"]) >= 0
        assert float(rect.attrib["height"]) >= 0
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= 230


@given(sizes)
def test_ticks_are_few_and_reach_the_top(top: float) -> None:
    marks = svg.ticks(top)
    assert marks[0] == 0
    assert marks[-1] >= top * (1 - 1e-9)
    assert 3 <= len(marks) <= 7
    low, *_, high = svg.log_ticks(top, top * 50)
    assert low <= top * (1 + 1e-9)
    assert high >= top * 50 * (1 - 1e-9)


def test_names_in_plots_are_text() -> None:
    text = svg.tracks("id", EVIL, "s", "tokens", [svg.Track(EVIL, "a", [(0.0, 0.0), (1.0, 5.0)])])
    assert plots(text).find("title") is not None
    assert "<script" not in text


@pytest.mark.parametrize("empty", [svg.bars("i", "t", "u", ["a"], []), svg.tracks("i", "t", "s", "u", [])])
def test_a_plot_of_nothing_says_so(empty: str) -> None:
    assert "nothing was measured" in "".join(plots(empty).itertext())

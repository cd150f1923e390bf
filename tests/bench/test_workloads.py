from __future__ import annotations

from twospeed.bench.workloads import OPENINGS, Lengths, Prompts


def test_no_two_prompts_begin_alike() -> None:
    prompts = Prompts()
    texts = [prompts.opening(i) for i in range(40)] + [prompts.report(50) for _ in range(40)]
    assert len({text.split()[0] for text in texts}) == 80
    assert Prompts().opening() != Prompts().opening()


def test_streams_that_run_together_continue_different_texts() -> None:
    prompts = Prompts()
    assert OPENINGS == 16
    assert len({prompts.opening(i).split(". ", 1)[1] for i in range(16)}) == 16


def test_a_report_has_as_many_words_as_asked() -> None:
    prompts = Prompts("mark")
    assert [len(prompts.report(n).split()) for n in (1, 37, 300)] == [1, 37, 300]


def test_the_same_mark_gives_the_same_prompts() -> None:
    assert Prompts("x").report(80) == Prompts("x").report(80)


def test_words_follow_the_sample() -> None:
    assert Lengths(600).words(1500) == 750
    assert Lengths(600).words(1) == 1

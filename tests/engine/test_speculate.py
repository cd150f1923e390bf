"""Drafts: where they are copied from, and how likely they are held to be right."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.engine.speculate import LONGEST, Drafter

_tokens = st.lists(st.integers(0, 5), max_size=80)


def after(prompt: list[int], output: list[int], prediction: list[int] | None = None) -> Drafter:
    """A drafter whose sequence has written `output`, a token a step."""
    drafter = Drafter(prompt, prediction or [])
    for token in output:
        drafter.advance([token], 0)
    return drafter


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    drafter = after([1, 2, 3, 4, 5, 6, 7, 8], [9, 3, 4, 5])
    draft = drafter.propose(3)
    assert draft.tokens == [6, 7, 8]
    assert draft.source == "lookup"


def test_the_longest_match_wins_and_of_equals_the_latest() -> None:
    long = [1, 2, 3, 4, 50]
    short = [9, 2, 3, 4, 60]
    assert after([*long, *short], [1, 2, 3, 4]).propose(1).tokens == [50]
    assert after([*short, *long, 0, *short], [7, 2, 3, 4]).propose(1).tokens == [60]


def test_text_that_repeats_itself_is_proposed_for_as_long_as_asked() -> None:
    assert after([8, 8], [1, 2, 1, 2, 1]).propose(6).tokens == [2, 1, 2, 1, 2, 1]


def test_two_tokens_are_not_enough() -> None:
    assert after([1, 2, 3], [9, 1, 2]).propose(5).tokens == []


def test_the_prompt_alone_proposes_nothing() -> None:
    """What follows the last user's message is not what followed the one before."""
    assert Drafter([1, 2, 3, 4, 1, 2, 3]).propose(5).tokens == []


def test_a_prediction_is_proposed_from_the_start_and_after_one_wrong_token_again() -> None:
    prediction = [10, 11, 12, 13, 14, 15]
    assert after([1], [], prediction).propose(2).tokens == [10, 11]
    assert after([1], [10], prediction).propose(9).tokens == [11, 12, 13, 14, 15]
    changed = after([1], [10, 99], prediction)
    assert changed.propose(9).tokens == []
    changed.advance([12], 0)
    draft = changed.propose(9)
    assert (draft.tokens, draft.source) == ([13, 14, 15], "prediction")


def test_a_prediction_is_found_again_after_an_insertion() -> None:
    prediction = [10, 11, 12, 13, 14, 15]
    assert after([1], [10, 98, 99, 97, 11, 12, 13], prediction).propose(9).tokens == [14, 15]


def test_odds_rise_with_the_length_of_the_match() -> None:
    prompt = list(range(100))
    odds = after(prompt, [200, *range(10, 13)]).propose(60).odds
    assert odds == sorted(odds)
    assert odds[0] < 0.8
    assert 0.9 < odds[-1] < 1


def test_a_draft_that_was_wrong_lowers_the_odds_at_once_and_for_good() -> None:
    """Text that looks like a copy and never is one."""
    prompt = [1, 2, 3, 4, 5, 6, 7, 8] * 4
    drafter = after(prompt, [0, 1, 2, 3])
    before = drafter.propose(1).odds[0]
    for i in range(3):
        offered = len(drafter.propose(4).tokens)
        drafter.advance([90 + i], offered)
        for token in (1, 2, 3):
            drafter.advance([token], 0)
    assert drafter.propose(1).odds[0] < 0.6 * before


def test_copies_that_would_have_been_right_raise_the_odds_before_any_draft_is_made() -> None:
    prompt = list(range(1000, 1100))
    fresh = after(prompt, [7, 1000, 1001, 1002, 1003]).propose(1).odds[0]
    proven = after(prompt, [*(t for i in range(8) for t in (7 + i, *range(1000, 1005)))])
    proven.advance([50], 0)
    for token in (1000, 1001, 1002, 1003):
        proven.advance([token], 0)
    assert proven.propose(1).odds[0] > fresh


@given(_tokens, _tokens, _tokens, st.integers(1, 100))
@settings(max_examples=200)
def test_a_proposal_is_a_copy_of_what_was_seen(
    prompt: list[int], output: list[int], prediction: list[int], most: int
) -> None:
    drafter = Drafter(prompt, prediction)
    written: list[int] = []
    for token in output:
        draft = drafter.propose(most)
        assert len(draft.tokens) == len(draft.odds) <= min(most, LONGEST)
        assert all(0 < odds < 1 for odds in draft.odds)
        seen = [prediction] if draft.source == "prediction" else [[*prompt, *written, *draft.tokens]]
        if draft.tokens and draft.source == "lookup":
            # Right after a place where the same three tokens stand, or two behind one that was replaced.
            assert _occurs(draft.tokens, [*prompt, *written], seen[0])
        elif draft.tokens:
            assert any(prediction[i : i + len(draft.tokens)] == draft.tokens for i in range(len(prediction)))
        drafter.advance([token], len(draft.tokens) if draft.tokens[:1] != [token] else 0)
        written.append(token)


def _occurs(draft: list[int], text: list[int], with_draft: list[int]) -> bool:
    """Whether `draft` is what follows somewhere in `text`, going on into itself at the end."""
    return any(with_draft[i : i + len(draft)] == draft for i in range(len(text)))

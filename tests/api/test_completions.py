"""POST /v1/completions as clients see it, through the openai SDK."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_text_prompt_goes_on_for_16_tokens_unless_told(server: Any) -> None:
    answer = server.openai().completions.create(model="fast", prompt="ab")
    assert (answer.object, answer.model, answer.service_tier) == ("text_completion", "fast", "default")
    assert answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.logprobs, len(choice.text)) == ("length", None, 16)
    assert answer.usage.completion_tokens == 16
    assert answer.timings["predicted_n"] == 16


def test_several_prompts_give_n_choices_each_in_order(server: Any) -> None:
    answer = server.openai().completions.create(model="fast", prompt=["aa", "bb"], n=2, max_tokens=3)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "aaa"), (1, "aaa"), (2, "bbb"), (3, "bbb"),
    ]  # fmt: skip
    one = server.openai().completions.create(model="fast", prompt="aa", max_tokens=3)
    assert answer.usage.prompt_tokens == 2 * one.usage.prompt_tokens
    assert answer.usage.completion_tokens == 12


@pytest.mark.parametrize(
    ("prompt", "texts"), [([97, 97], ["aa"]), ([[97, 97], [98, 98]], ["aa", "bb"]), (["aa"], ["aa"])]
)
def test_token_ids_are_prompts_too(server: Any, prompt: Any, texts: list[str]) -> None:
    answer = server.openai().completions.create(model="fast", prompt=prompt, max_tokens=2)
    assert [choice.text for choice in answer.choices] == texts


def test_echo_begins_with_the_prompt(server: Any) -> None:
    answer = server.openai().completions.create(model="fast", prompt="aa", max_tokens=3, echo=True)
    assert answer.choices[0].text == "aaaaa"
    assert answer.usage.completion_tokens == 3


def test_a_suffix_is_filled_up_to(server: Any) -> None:
    answer = server.openai().completions.create(model="fast", prompt="a", suffix="b", max_tokens=4)
    assert answer.choices[0].finish_reason in ("stop", "length")
    plain = server.openai().completions.create(model="fast", prompt="a", max_tokens=4)
    empty = server.openai().completions.create(model="fast", prompt="a", suffix="", max_tokens=4)
    assert empty.choices[0].text == plain.choices[0].text


def test_a_stream_ends_with_the_finish_reason_and_the_usage_if_asked_for(server: Any) -> None:
    stream = server.openai().completions.create(
        model="fast", prompt=["aa", "bb"], max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    texts, finishes, chunks = ["", ""], [], list(stream)
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason:
            finishes.append((choice.index, choice.finish_reason))
    assert texts == ["aaa", "bbb"]
    assert sorted(finishes) == [(0, "length"), (1, "length")]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 6

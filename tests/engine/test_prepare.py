"""From a request to tokens, and what is refused before it runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from twospeed.engine.memo import TokenMemo
from twospeed.engine.prepare import Prepared, Preparer, RejectedError
from twospeed.engine.runner.fake import FakeVocab
from twospeed.engine.template import ChatTemplate
from twospeed.types import ChatPrompt, GenerateRequest, InfillPrompt, Prompt, Sampling, TextPrompt, TokenPrompt

BOS, END, PREFIX, SUFFIX, MIDDLE, SYSTEM, USER, ASSISTANT = range(256, 264)


def preparer(*, context: int = 100, vocab: FakeVocab | None = None, chat: bool = True) -> Preparer:
    vocab = vocab or FakeVocab()
    source = vocab.chat_template or ""
    template = ChatTemplate(source, bos_text="<|bos|>", eos_text="<|end|>", timeout_s=5) if chat else None
    return Preparer(vocab, context, template, TokenMemo())


def request(prompt: Prompt, **fields: Any) -> GenerateRequest:
    return GenerateRequest(id="r", model="fast", prompt=prompt, **fields)


def prepare(prompt: Prompt, on: Preparer | None = None, **fields: Any) -> Prepared:
    return (on or preparer()).prepare(request(prompt, **fields))


def refused(prompt: Prompt, on: Preparer | None = None, **fields: Any) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        prepare(prompt, on, **fields)
    return caught.value


def chat(*contents: str) -> ChatPrompt:
    roles = ["user", "assistant"] * len(contents)
    return ChatPrompt([{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)])


def test_a_chat_goes_through_the_template() -> None:
    prepared = prepare(chat("hi"))
    assert prepared.tokens == [BOS, USER, *b"hi", END, ASSISTANT]
    assert prepared.text == "<|user|>hi<|end|><|assistant|>"
    assert prepared.max_new == 94


def test_text_gets_the_models_first_token() -> None:
    assert prepare(TextPrompt("ab")).tokens == [BOS, *b"ab"]


def test_token_ids_are_used_as_they_are() -> None:
    prepared = prepare(TokenPrompt([1, 2, END]), echo=True)
    assert prepared.tokens == [1, 2, END]
    assert prepared.text == "\x01\x02<|end|>"


def test_infill_puts_the_text_between_the_models_own_tokens() -> None:
    prepared = prepare(InfillPrompt("ab", "yz"))
    assert prepared.tokens == [PREFIX, *b"ab", SUFFIX, *b"yz", MIDDLE]
    assert prepared.text == "ab"


def test_max_tokens_bounds_each_sequence() -> None:
    assert prepare(TextPrompt("ab"), max_tokens=7).max_new == 7


def test_a_cap_that_nobody_asked_for_need_not_fit() -> None:
    assert prepare(TextPrompt("ab"), output_cap=7).max_new == 7
    assert prepare(TextPrompt("ab"), output_cap=1000).max_new == 97
    assert prepare(TextPrompt("ab"), output_cap=1000, max_tokens=5).max_new == 5


def test_a_tiers_context_is_a_limit_of_its_own() -> None:
    assert prepare(TextPrompt("ab"), max_context=50).max_new == 47
    error = refused(TextPrompt("x" * 60), max_context=50)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert "service tier's maximum context length is 50 tokens" in str(error)
    assert prepare(TextPrompt("ab"), max_context=5000).max_new == 97


def test_no_more_of_a_prediction_is_kept_than_can_be_written() -> None:
    assert prepare(TextPrompt("ab"), prediction="xyz", max_tokens=9).prediction == [*b"xyz"]
    assert prepare(TextPrompt("ab"), prediction="x" * 10**6, max_tokens=9).prediction == [*b"x" * 9]


@pytest.mark.parametrize(("max_tokens", "asked"), [(91, 91), (1000, 1000)])
def test_too_much_for_the_context_is_refused_with_both_numbers(max_tokens: int, asked: int) -> None:
    error = refused(TextPrompt("x" * 9), max_tokens=max_tokens)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert "maximum context length is 100 tokens" in str(error)
    assert f"{10 + asked} tokens (10 in the prompt, {asked} in the completion)" in str(error)


def test_a_text_far_too_long_is_refused_before_all_of_it_is_tokenized() -> None:
    class Counting(FakeVocab):
        seen = 0

        def tokenize(self, text: str, *, bos: bool) -> list[int]:
            self.seen += len(text)
            return super().tokenize(text, bos=bos)

    vocab = Counting()
    for prompt in (TextPrompt("x" * 10**6), chat("x" * 10**6), InfillPrompt("x" * 10**6, "y")):
        vocab.seen = 0
        error = refused(prompt, preparer(vocab=vocab), max_tokens=3)
        assert error.code == "context_length_exceeded"
        assert re.search(r"is 100 tokens.* more than 163\d\d tokens \(more than 163\d\d in the", str(error))
        assert vocab.seen < 10**5


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_without_max_tokens_too() -> None:
    error = refused(TextPrompt("x" * 99))
    assert error.code == "context_length_exceeded"
    assert "101 tokens (100 in the prompt" in str(error)
    assert refused(chat("x" * 99)).param == "messages"


def test_what_just_fits_the_context_is_accepted() -> None:
    assert prepare(TextPrompt("x" * 98)).max_new == 1
    assert prepare(TextPrompt("x" * 9), max_tokens=90).max_new == 90


@pytest.mark.parametrize("token", [-1, 264, 2**40])
def test_token_ids_that_the_model_does_not_have_are_refused(token: int) -> None:
    error = refused(TokenPrompt([1, token]))
    assert (error.code, error.param) == ("invalid_value", "prompt")
    assert str(token) in str(error)
    error = refused(TextPrompt("a"), sampling=Sampling(logit_bias={token: 1.0}))
    assert (error.code, error.param) == ("invalid_value", "logit_bias")
    assert str(token) in str(error)


def test_a_prompt_without_tokens_is_refused() -> None:
    error = refused(TokenPrompt([]))
    assert (error.code, error.param) == ("invalid_value", "prompt")


def test_infill_is_refused_by_a_model_that_cannot() -> None:
    vocab = FakeVocab()
    vocab.fim = None
    error = refused(InfillPrompt("a", "b"), preparer(vocab=vocab))
    assert (error.code, error.param) == ("unsupported_parameter", "suffix")


def test_a_chat_is_refused_by_a_model_without_template() -> None:
    error = refused(chat("hi"), preparer(chat=False))
    assert (error.code, error.param) == ("invalid_template", "messages")


def test_what_a_template_refuses_is_said_in_its_words() -> None:
    error = refused(ChatPrompt([{"role": "wizard", "content": "x"}]))
    assert (error.code, str(error)) == ("invalid_template", "unknown role wizard")


class _Pairs(FakeVocab):
    """Also reads 'ab' as one token, 97 + 1000, as real tokenizers merge bytes."""

    size = 2000

    def tokenize(self, text: str, *, bos: bool) -> list[int]:
        tokens: list[int] = []
        for token in super().tokenize(text, bos=bos):
            if token == ord("b") and tokens[-1:] == [ord("a")]:
                tokens[-1] = 1097
            else:
                tokens.append(token)
        return tokens

    def is_special(self, token: int) -> bool:
        return 256 <= token < 1000


@pytest.fixture
def remembering() -> Preparer:
    """One that saw the model write "a" and "b" apart, where the tokenizer would join them."""
    vocab = _Pairs()
    assert vocab.chat_template
    template = ChatTemplate(vocab.chat_template, bos_text="<|bos|>", eos_text="<|end|>", timeout_s=5)
    memo = TokenMemo()
    memo.remember("", "<|user|>q<|end|><|assistant|>ab", [BOS, USER, *b"q", END, ASSISTANT, *b"ab"])
    return Preparer(vocab, 100, template, memo)


def test_the_models_own_tokens_are_taken_up_again_where_a_special_token_follows(remembering: Preparer) -> None:
    tokens = prepare(chat("q", "ab", "ab"), remembering).tokens
    assert tokens == [BOS, USER, *b"q", END, ASSISTANT, *b"ab", END, USER, 1097, END, ASSISTANT]


def test_remembered_tokens_are_not_used_where_plain_text_follows(remembering: Preparer) -> None:
    tokens = prepare(chat("q", "abc", "x"), remembering).tokens
    assert tokens[:7] == [BOS, USER, *b"q", END, ASSISTANT, 1097, *b"c"]


def test_remembered_tokens_are_not_used_for_another_namespace(remembering: Preparer) -> None:
    tokens = prepare(chat("q", "ab", "x"), remembering, namespace="bob").tokens
    assert tokens[:6] == [BOS, USER, *b"q", END, ASSISTANT, 1097]

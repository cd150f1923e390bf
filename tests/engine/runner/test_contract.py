"""What every runner must do. The fake runs everywhere; llama.cpp on the tiny real model, when it was pulled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from twospeed.config import Model
from twospeed.engine.runner.base import Logits, Row, Runner, RunnerError
from twospeed.engine.runner.fake import FakeRunner

MAX_SEQS = 6


def fake() -> Runner:
    return FakeRunner(None, Model(backend="fake", context=512), max_seqs=MAX_SEQS)


@pytest.fixture(scope="module", params=["fake", pytest.param("llama", marks=pytest.mark.real)])
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Runner, float]]:
    if request.param == "fake":
        runner, near = fake(), 1e-6
    else:
        from twospeed.engine.runner.llama import LlamaRunner

        path, model = request.getfixturevalue("real_model")("tiny")
        runner, near = LlamaRunner(path, model.model_copy(update={"context": 512}), max_seqs=MAX_SEQS), 0.5
    yield runner, near
    runner.close()


@pytest.fixture
def runner(case: tuple[Runner, float]) -> Runner:
    for seq in range(MAX_SEQS):
        case[0].trim(seq, 0)
    return case[0]


@pytest.fixture
def near(case: tuple[Runner, float]) -> float:
    return case[1]


def feed(runner: Runner, seq: int, tokens: list[int], start: int = 0) -> Logits:
    """Decode `tokens`; the logits after the last one, copied."""
    last = len(tokens) - 1
    return runner.run([Row(seq, t, start + i, i == last) for i, t in enumerate(tokens)])[0].copy()


def prompt(runner: Runner, text: str = "The capital of France is Paris. The capital of Italy is") -> list[int]:
    return runner.vocab.tokenize(text, bos=True)


def test_logits_come_for_the_rows_that_want_them_in_their_order(runner: Runner, near: float) -> None:
    tokens = prompt(runner)
    wanted = {3, len(tokens) - 1}
    out = runner.run([Row(0, t, i, i in wanted) for i, t in enumerate(tokens)]).copy()
    assert out.shape == (2, runner.vocab.size)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out[0], feed(runner, 1, tokens[:4]), atol=near)
    np.testing.assert_allclose(out[1], feed(runner, 2, tokens), atol=near)


def test_a_step_without_wanted_logits_returns_none(runner: Runner) -> None:
    out = runner.run([Row(0, t, i, False) for i, t in enumerate(prompt(runner))])
    assert out.shape == (0, runner.vocab.size)


def test_a_prompt_in_chunks_says_the_same_as_at_once(runner: Runner, near: float) -> None:
    tokens = prompt(runner)
    whole = feed(runner, 0, tokens)
    feed(runner, 1, tokens[:5])
    np.testing.assert_allclose(feed(runner, 1, tokens[5:], 5), whole, atol=near)


def test_sequences_in_one_step_do_not_see_each_other(runner: Runner, near: float) -> None:
    a, b = prompt(runner, "One, two, three,"), prompt(runner, "Red, green,")
    alone = [feed(runner, 0, a), feed(runner, 1, b)]
    rows = [Row(2, t, i, i == len(a) - 1) for i, t in enumerate(a)]
    rows += [Row(3, t, i, i == len(b) - 1) for i, t in enumerate(b)]
    together = runner.run(rows)
    np.testing.assert_allclose(together[0], alone[0], atol=near)
    np.testing.assert_allclose(together[1], alone[1], atol=near)


def test_a_copied_prefix_goes_on_like_its_source(runner: Runner, near: float) -> None:
    tokens = prompt(runner)
    whole = feed(runner, 0, tokens)
    runner.copy(0, 1, 6)
    np.testing.assert_allclose(feed(runner, 1, tokens[6:], 6), whole, atol=near)


def test_a_copy_outlives_its_source(runner: Runner, near: float) -> None:
    tokens = prompt(runner)
    whole = feed(runner, 0, tokens)
    runner.copy(0, 1, len(tokens) - 1)
    runner.trim(0, 0)
    np.testing.assert_allclose(feed(runner, 1, tokens[-1:], len(tokens) - 1), whole, atol=near)


def test_a_trimmed_sequence_forgets_its_tail(runner: Runner, near: float) -> None:
    tokens = prompt(runner)
    whole = feed(runner, 0, tokens)
    feed(runner, 1, tokens[:6] + prompt(runner, "something else entirely"))
    runner.trim(1, 6)
    np.testing.assert_allclose(feed(runner, 1, tokens[6:], 6), whole, atol=near)


def test_a_saved_sequence_goes_on_where_it_was(runner: Runner, near: float) -> None:
    tokens = prompt(runner)
    whole = feed(runner, 0, tokens)
    feed(runner, 1, tokens[:-1])
    state = runner.save(1)
    runner.trim(1, 0)
    runner.restore(2, state)
    np.testing.assert_allclose(feed(runner, 2, tokens[-1:], len(tokens) - 1), whole, atol=near)


def test_a_full_cache_is_an_error_and_not_a_crash(runner: Runner) -> None:
    filler = (prompt(runner) * 100)[:300]
    feed(runner, 0, filler)
    with pytest.raises(RunnerError):
        feed(runner, 1, filler)


def test_text_survives_tokens(runner: Runner) -> None:
    text = "naïve café — 日本語 👩‍🚀 \t\n x = {'a': [1, 2]}"
    tokens = runner.vocab.tokenize(text, bos=False)
    assert b"".join(runner.vocab.piece(t) for t in tokens).decode() == text


def test_a_lone_surrogate_does_not_break_the_tokenizer(runner: Runner) -> None:
    assert runner.vocab.tokenize("a\ud800b", bos=False)


def test_special_tokens_are_known_and_silent(runner: Runner) -> None:
    vocab = runner.vocab
    assert vocab.eog
    for token in vocab.eog:
        assert vocab.is_special(token)
        assert vocab.piece(token) == b""
        assert vocab.piece(token, special=True)
    assert not any(vocab.is_special(t) for t in vocab.tokenize("plain words", bos=False))


def test_special_spellings_become_their_tokens(runner: Runner) -> None:
    end = min(runner.vocab.eog)
    spelling = runner.vocab.piece(end, special=True).decode()
    assert runner.vocab.tokenize(spelling, bos=False) == [end]


def test_info_tells_what_was_asked_for(runner: Runner) -> None:
    assert runner.info.context == 512
    assert runner.info.kv_tokens == 512
    assert runner.vocab.chat_template

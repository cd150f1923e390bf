"""The next token: greedy, truncated and drawn, penalised, biased and seeded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from twospeed.engine.sampling import Sampler, distribution
from twospeed.types import Sampling

NONE: frozenset[int] = frozenset()


def row(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    logits = np.array(values, np.float32)
    logits.flags.writeable = False  # what a runner gives is a view of its memory
    return logits


def draws(s: Sampling, logits: np.ndarray[tuple[int], np.dtype[np.float32]], n: int, seed: int = 1) -> list[int]:
    sampler = Sampler(s, [0], NONE, seed)
    return [sampler.choose(logits) for _ in range(n)]


def _settle(clear: bool) -> None:
    """Leave out examples where rounding decides."""
    if not clear:
        reject()


def plain(logits: list[float], s: Sampling) -> dict[int, float]:
    """Tokens and probabilities by the plain rule: sort everything, cut by top_k, top_p, min_p in turn."""
    best = max(logits)
    with np.errstate(over="ignore"):
        weight = [float(np.exp(np.float64(x - best) / s.temperature)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if s.top_k:
        order = order[: s.top_k]
    if s.top_p < 1:
        total, before, kept = sum(weight[i] for i in order), 0.0, []
        for i in order:
            _settle(weight[i] == 0 or abs(before - s.top_p * total) > 1e-9 * total)
            if not kept or before < s.top_p * total:
                kept.append(i)
            before += weight[i]
        order = kept
    if s.min_p:
        for i in order:
            _settle(logits[i] == best or weight[i] == 0 or abs(weight[i] - s.min_p) > 1e-9 * s.min_p)
        order = [i for i in order if weight[i] >= s.min_p]
    total = sum(weight[i] for i in order)
    return {i: weight[i] / total for i in order if weight[i] > 0}


_value = st.one_of(
    st.floats(-40, 40, width=32),
    st.sampled_from([0.0, 1.0, 2.0, -3.0, 20.0]),  # ties
    st.just(float("-inf")),
)
_logits = st.lists(_value, min_size=1, max_size=40).filter(lambda x: max(x) > float("-inf"))
_sampling = st.builds(
    Sampling,
    temperature=st.sampled_from([5e-324, 1e-310, 1e-6, 0.01, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 39, 1000]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 0.05, 0.5, 1.0]),
)


@given(_logits, _sampling)
@example([0.0, 20.0, 20.0, 1.0], Sampling(top_k=3))
@example([0.0, -20.0, -21.0], Sampling(top_p=0.999999999999))
@example([0.0, -20.0], Sampling(min_p=1e-9))
@example([3.0, 2.0], Sampling(temperature=1e-310))
@settings(deadline=None, max_examples=500)
def test_the_distribution_is_that_of_the_plain_rule(logits: list[float], s: Sampling) -> None:
    tokens, weights = distribution(row(*logits), s)
    ids = range(len(logits)) if tokens is None else tokens.tolist()
    total = weights.sum()
    assert np.isfinite(weights).all()
    got = {i: w / total for i, w in zip(ids, weights.tolist(), strict=True) if w > 0}
    assert got == pytest.approx(plain(logits, s), rel=1e-5, abs=1e-12)


@given(_logits, _sampling, st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_a_drawn_token_is_one_that_may_come(logits: list[float], s: Sampling, seed: int) -> None:
    assert Sampler(s, [0], NONE, seed).choose(row(*logits)) in plain(logits, s)


@given(_logits)
def test_temperature_zero_is_the_argmax_whatever_else_is_set(logits: list[float]) -> None:
    s = Sampling(temperature=0, top_k=5, top_p=0.5, min_p=0.1, seed=3)
    assert Sampler(s, [0], NONE, 0).choose(row(*logits)) == logits.index(max(logits))


@pytest.mark.parametrize("temperature", [5e-324, 1e-100, 1e-4])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert set(draws(Sampling(temperature=temperature), row(1, 3, 2.99, -np.inf), 20)) == {1}


# Values that float32 holds exactly, so that the formulas can be compared with ==.
_exact = st.integers(-40, 40).map(lambda n: n / 4)
_penalty = st.integers(-8, 8).map(lambda n: n / 4)


@given(
    logits=st.lists(_exact, min_size=4, max_size=4, unique=True),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    output=st.lists(st.integers(0, 3), max_size=6),
    s=st.builds(
        Sampling,
        temperature=st.just(0.0),
        presence_penalty=_penalty,
        frequency_penalty=_penalty,
        repetition_penalty=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
        logit_bias=st.dictionaries(st.integers(0, 3), st.integers(-100, 100).map(float), max_size=3),
    ),
)
@settings(deadline=None, max_examples=300)
def test_bias_and_penalties_follow_the_published_formulas(
    logits: list[float], prompt: list[int], output: list[int], s: Sampling
) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence (OpenAI); x / r or x * r for what was seen (CTRL)."""
    sampler = Sampler(s, prompt, NONE, 0)
    for token in output:
        sampler.accept(token)
    expected = []
    counts = Counter(output)
    for token, value in enumerate(logits):
        x = value + s.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            x = x / s.repetition_penalty if x > 0 else x * s.repetition_penalty
        expected.append(x - counts[token] * s.frequency_penalty - (counts[token] > 0) * s.presence_penalty)
    assert sampler.choose(row(*logits)) == expected.index(max(expected))


def test_the_prompt_counts_for_repetition_and_not_for_presence_and_frequency() -> None:
    logits = row(2, 1.5)
    assert Sampler(Sampling(temperature=0, repetition_penalty=2), [0], NONE, 0).choose(logits) == 1
    s = Sampling(temperature=0, presence_penalty=2, frequency_penalty=2)
    assert Sampler(s, [0], NONE, 0).choose(logits) == 0


def test_repetition_is_penalised_without_a_prompt_too() -> None:
    sampler = Sampler(Sampling(temperature=0, repetition_penalty=2), [], NONE, 0)
    assert sampler.choose(row(2, 1.5)) == 0
    sampler.accept(0)
    assert sampler.choose(row(2, 1.5)) == 1


def test_a_bias_of_100_forces_and_of_minus_100_bans() -> None:
    logits = row(20, 0, -20, 15)
    assert set(draws(Sampling(temperature=2, logit_bias={2: 100}), logits, 50)) == {2}
    assert 0 not in draws(Sampling(temperature=2, logit_bias={0: -100}), logits, 200)


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=6, max_size=6),
    eog=st.frozensets(st.integers(0, 5), min_size=1, max_size=5),
    s=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.7, 2.0]),
        top_p=st.sampled_from([0.3, 1.0]),
        top_k=st.sampled_from([0, 6]),
        ignore_eos=st.just(True),
        logit_bias=st.just({0: 100.0, 3: 100.0}),
    ),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_ignore_eos_never_yields_an_end_token(logits: list[float], eog: frozenset[int], s: Sampling, seed: int) -> None:
    sampler = Sampler(s, [0], eog, seed)
    assert not {sampler.choose(row(*logits)) for _ in range(5)} & eog


def test_an_end_token_may_come_where_it_is_not_ignored() -> None:
    assert Sampler(Sampling(temperature=0), [0], frozenset({1}), 0).choose(row(0, 5)) == 1


def test_a_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    logits = row(*np.linspace(0, 1, 50))
    first = draws(Sampling(), logits, 30, seed=7)
    assert draws(Sampling(), logits, 30, seed=7) == first
    assert draws(Sampling(), logits, 30, seed=8) != first
    assert len(draws(Sampling(), logits, 30, seed=2**64 - 1)) == 30


@pytest.mark.parametrize(
    "s",
    [Sampling(), Sampling(temperature=0.5), Sampling(top_k=4), Sampling(top_p=0.8), Sampling(min_p=0.2, top_k=6)],
    ids=["plain", "cold", "top_k", "top_p", "min_p"],
)
def test_drawn_frequencies_are_the_expected_ones(s: Sampling) -> None:
    logits = [1.0, 0.0, 1.5, 0.5, -1.0, 1.25, 0.25, -0.5]
    n = 4000
    seen = Counter(draws(s, row(*logits), n, seed=42))
    expected = plain(logits, s)
    assert seen.keys() <= expected.keys()
    chi_square = sum((seen[t] - n * p) ** 2 / (n * p) for t, p in expected.items())
    assert chi_square < 30  # the 0.9999 quantile at 7 degrees of freedom; the seed is fixed


def test_choosing_changes_nothing_in_the_logits_it_is_given() -> None:
    logits = row(3, 2, 1)
    s = Sampling(presence_penalty=1, repetition_penalty=1.5, logit_bias={1: 5}, ignore_eos=True, top_k=2)
    sampler = Sampler(s, [0], frozenset({2}), 0)
    sampler.accept(0)
    sampler.choose(logits)
    assert logits.tolist() == [3, 2, 1]

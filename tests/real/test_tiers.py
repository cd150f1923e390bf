"""Service tiers and drafts on the real models: what a client sees, and that sampling stays what it was."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from twospeed.config import Model
from twospeed.engine.core import Core, max_seqs
from twospeed.engine.cost import Curves
from twospeed.engine.lanes import Limits
from twospeed.engine.memo import TokenMemo
from twospeed.engine.prepare import Preparer
from twospeed.types import TIERS, GenerateRequest, Sampling, Share, Speculation, TokenPrompt

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CODE = """class Stack:
    def __init__(self, limit):
        self.items = []
        self.limit = limit

    def push(self, item):
        if len(self.items) >= self.limit:
            raise OverflowError("the stack is full")
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items.pop()

    def peek(self):
        return self.items[-1] if self.items else None

    def clear(self):
        while self.items:
            self.pop()

    def describe(self):
        lines = [f"{len(self.items)} of {self.limit} places are taken"]
        for number, item in enumerate(self.items):
            lines.append(f"{number}: {item}")
        return "\\n".join(lines)
"""
EDIT = f"Repeat this file and change nothing but the name Stack, which becomes Pile:\n```python\n{CODE}```"


@contextmanager
def background(server: Any, streams: int) -> Iterator[list[int]]:
    """Default streams of `smart` that go on until the block ends; yields how many events each has brought."""
    stop, seen = threading.Event(), [0] * streams

    def stream(number: int) -> None:
        messages = [{"role": "user", "content": f"({number}) Tell me a long story about the number {number}."}]
        body = {"model": "smart", "messages": messages, "stream": True, "max_tokens": 1000, "ignore_eos": True}
        with server.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                seen[number] += bool(line)
                if stop.is_set():
                    return

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def ask(server: Any, content: str, tier: str, **options: Any) -> dict[str, Any]:
    body = {"model": "smart", "messages": [{"role": "user", "content": content}], "temperature": 0}
    with server.http() as http:
        answer = http.post("/v1/chat/completions", json=body | {"service_tier": tier} | options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-twospeed-service-tier"] == answer.json()["service_tier"]
    found: dict[str, Any] = answer.json()
    return found


def test_ultrafast_is_served_first_while_default_streams_go_on(server: Any) -> None:
    with background(server, 4) as seen:
        while min(seen) < 3:
            threading.Event().wait(0.05)
        before = sum(seen)
        urgent = ask(server, "Count from one to twenty in words.", "ultrafast", max_tokens=24)
        during = sum(seen) - before
        assert urgent["service_tier"] == "ultrafast"
        tokens = urgent["usage"]["completion_tokens"]
        assert tokens >= 20
        assert 0 < during < 2 * tokens  # as default it would have had a fifth of all
        while sum(seen) < before + during + 20:  # and they go on
            threading.Event().wait(0.05)


def test_a_code_edit_is_drafted_and_the_usage_says_so(server: Any) -> None:
    """From the prompt alone, and from a prediction as well."""
    plain = ask(server, EDIT, "default", speculation="off", max_tokens=300)
    assert plain["timings"]["draft_n"] == 0
    assert "class Pile" in plain["choices"][0]["message"]["content"]
    looked_up = ask(server, EDIT, "ultrafast", max_tokens=300)
    assert looked_up["timings"]["draft_n_accepted"] > 10
    predicted = ask(server, EDIT, "ultrafast", max_tokens=300, prediction={"type": "content", "content": CODE})
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 10
    assert predicted["usage"]["completion_tokens"] == (
        predicted["timings"]["predicted_n"] + details["rejected_prediction_tokens"]
    )


def test_drafts_keep_the_distribution_of_a_real_model(real_model: Callable[[str], tuple[Path, Model]]) -> None:
    """Chi-square over 2,048 samples with and without drafts, which here are made whenever there is anything to copy:
    the last two of eight letters."""
    from twospeed.engine.runner.llama import LlamaRunner  # a native library: only where a real model is at hand

    path, model = real_model("tiny")
    at_once = 32
    small = model.model_copy(update={"context": 2048, "kv_tokens": 2048})
    runner = LlamaRunner(path, small, max_seqs=max_seqs(at_once))
    letters = [runner.vocab.tokenize(letter, bos=False)[0] for letter in ("a", "b", "c")]
    free = Curves({1: 1.0, 64: 1.0001}, {1: 1.0, 64: 1.0001})

    def sample(speculation: Speculation) -> tuple[Counter[str], int]:
        core = Core()
        core.share({tier: Share(speculation=speculation) for tier in TIERS})
        memo = TokenMemo()
        core.add_model("tiny", runner, memo, free, Limits(at_once, 512, None, 600))
        preparer = Preparer(runner.vocab, 2048, None, memo)
        counts, drafted = Counter[str](), 0
        for batch in range(2048 // at_once):
            sampling = Sampling(
                temperature=1.0,
                seed=at_once * batch + (10**6 if speculation == "off" else 0),  # a sequence adds its number
                logit_bias=dict.fromkeys(letters, 60.0),
            )
            prompt = TokenPrompt(letters * 4)
            request = GenerateRequest(
                id=str(batch), model="tiny", prompt=prompt, sampling=sampling, max_tokens=8, n=at_once
            )
            core.submit(preparer.prepare(request))
            texts = [""] * at_once
            while done := core.step():
                for out in done[1]:
                    texts[out.chunk.index] += out.chunk.text
                    if out.chunk.timings is not None:
                        drafted += out.chunk.timings.draft_n
            counts.update(text[-2:] for text in texts)
        return counts, drafted

    with_drafts, drafted = sample("eager")
    for seq in range(max_seqs(at_once)):
        runner.trim(seq, 0)
    without, none = sample("off")
    runner.close()
    assert drafted > 1000
    assert none == 0
    assert sum(with_drafts.values()) == sum(without.values()) == 2048
    cells = [cell for cell in set(with_drafts) | set(without) if with_drafts[cell] + without[cell] >= 10]
    chi2 = sum((with_drafts[c] - without[c]) ** 2 / (with_drafts[c] + without[c]) for c in cells)
    print(f"{len(cells)} cells, chi-square {chi2:.1f}, {drafted} drafted")
    assert len(cells) >= 4
    assert chi2 < 26.1  # at most 9 cells, so 8 degrees of freedom: one in a thousand by chance

"""Greedy answers through the server against a plain llama.cpp loop that has nothing of twospeed in it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from twospeed.config import Model
from twospeed.machine import usable_cores

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

TOKENS = 32
NEAR_TIE = 0.5  # between the two best logits; kernels for other batch shapes differ by less
PROMPTS = [
    "Write a Python function that reverses a string.",
    "What is the capital of Australia?",
    "Explain recursion to a ten-year-old in three sentences.",
    "Translate to French: The cat sleeps on the sofa.",
    "List four prime numbers greater than 50.",
    "Write a haiku about the sea.",
    "Fix this code: for i in range(10) print(i)",
    "Give me a JSON object with the keys name and age.",
    "Summarise in one line: Water boils at 100 degrees at sea level and at less on a mountain.",
    "Write a bash one-liner that counts the lines of all .py files.",
    "What is the difference between a list and a tuple in Python?",
    "Write an SQL query for the five newest orders of customer 42.",
    "Is 91 a prime number? Answer yes or no and say why.",
    "Write a polite reply that declines a meeting on Friday.",
    "Convert 20 degrees Celsius to Fahrenheit.",
    "Write a JavaScript function that removes duplicates from an array.",
    "Name three uses for an old newspaper.",
    "What does the HTTP status 404 mean?",
    "Write a regular expression that matches an e-mail address. Say what each part does.",
    "Continue: Once upon a time there was a small robot who",
]
# What the models' own templates make of a single user message.
SYSTEM = {
    "tiny": "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "fast": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "smart": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
}


def rendered(name: str, prompt: str) -> str:
    system = f"<|im_start|>system\n{SYSTEM[name]}<|im_end|>\n"
    return f"{system}<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


Reference = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def reference(real_model: Callable[[str], tuple[Path, Model]]) -> Reference:
    @cache
    def run(name: str) -> list[dict[str, Any]]:
        path, _ = real_model(name)
        prompts = [rendered(name, p) for p in PROMPTS]
        job = {"path": str(path), "threads": usable_cores(), "prompts": prompts, "tokens": TOKENS}
        script = Path(__file__).with_name("reference.py")
        done = subprocess.run(
            [sys.executable, str(script)], input=json.dumps(job), capture_output=True, text=True, check=True
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    return run


def ask(server: Any, name: str, prompt: str, **options: Any) -> str:
    answer = server.sdk().chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=TOKENS,
        extra_body={"repetition_penalty": 1} | options,
    )
    return answer.choices[0].message.content or ""


@pytest.mark.parametrize("name", ["tiny", "fast", "smart"])
def test_alone_the_answer_is_that_of_a_plain_loop(server: Any, reference: Reference, name: str) -> None:
    answers = [ask(server, name, prompt, cache_prompt=False, speculation="off") for prompt in PROMPTS]
    assert answers == [plain["texts"][-1] for plain in reference(name)]


@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize("name", ["fast", "smart"])
def test_shared_prefixes_and_batches_differ_first_at_a_near_tie(
    server: Any, reference: Reference, name: str, streams: int
) -> None:
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda prompt: ask(server, name, prompt), PROMPTS))
    differ_at_near_ties(answers, reference(name), f"{name}, {streams} at once")


def test_drafts_differ_first_at_a_near_tie(server: Any, reference: Reference) -> None:
    """The answer itself as the prediction: nearly every token comes out of a draft."""
    plain = reference("smart")
    answers = [
        ask(server, "smart", prompt, speculation="eager", prediction={"type": "content", "content": p["texts"][-1]})
        for prompt, p in zip(PROMPTS, plain, strict=True)
    ]
    differ_at_near_ties(answers, plain, "smart, drafted")


def differ_at_near_ties(answers: list[str], reference: list[dict[str, Any]], what: str) -> None:
    pairs = zip(answers, reference, strict=True)
    gaps = [difference(answer, plain) for answer, plain in pairs if answer != plain["texts"][-1]]
    print(f"{what}: {len(gaps)} of {len(PROMPTS)} differ from a plain loop, first at gaps {gaps}")
    assert all(gap <= NEAR_TIE for gap in gaps)


def difference(answer: str, plain: dict[str, Any]) -> float:
    """How much worse than the best one the first other token was. That is where the texts part, or one before it where
    one token's text begins as the other's: "```\\n" and "```"."""
    steps = list(zip(plain["texts"], plain["others"], strict=True))
    parted = next((i for i, (text, _) in enumerate(steps) if not answer.startswith(text)), len(steps) - 1)
    others = [other for _, others in steps[max(parted - 1, 0) : parted + 1] for other in others]
    found = [gap for gap, text, ends in others if (answer == text if ends else answer.startswith(text))]
    return round(min(found, default=math.inf), 3)

"""`prediction`: from the body to the engine's request, and back as usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twospeed.api.body import parse
from twospeed.api.chat import ChatCompletionRequest
from twospeed.api.completions import CompletionRequest
from twospeed.api.wire import Tally
from twospeed.config import SamplingDefaults, TierPolicy
from twospeed.errors import ApiError
from twospeed.gateway.auth import ANYONE
from twospeed.gateway.calls import Call
from twospeed.types import Chunk, TextPrompt, Timings, Usage

BODIES: list[tuple[type[Any], dict[str, Any]]] = [
    (ChatCompletionRequest, {"model": "fast", "messages": [{"role": "user", "content": "a"}]}),
    (CompletionRequest, {"model": "fast", "prompt": "a"}),
]


def read(kind: type[Any], body: dict[str, Any], prediction: Any) -> Any:
    return parse(json.dumps(body | {"prediction": prediction}).encode(), kind)


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_a_prediction_is_text_or_text_parts(kind: type[Any], body: dict[str, Any]) -> None:
    parts = [{"type": "text", "text": "x = "}, {"type": "text", "text": "1\n", "more": 1}]
    assert read(kind, body, {"type": "content", "content": "x = 1\n"}).predicted == "x = 1\n"
    assert read(kind, body, {"type": "content", "content": parts}).predicted == "x = 1\n"
    assert read(kind, body, {"type": "content", "content": []}).predicted == ""
    assert read(kind, body, None).predicted == ""


@pytest.mark.parametrize(("kind", "body"), BODIES)
@pytest.mark.parametrize(
    ("prediction", "code", "param"),
    [
        ("text", "invalid_value", "prediction"),
        ({"content": "a"}, "missing_required_parameter", "prediction.type"),
        ({"type": "content"}, "missing_required_parameter", "prediction.content"),
        ({"type": "text", "content": "a"}, "invalid_value", "prediction.type"),
        ({"type": "content", "content": None}, "invalid_value", "prediction.content"),
        ({"type": "content", "content": 5}, "invalid_value", "prediction.content"),
        ({"type": "content", "content": ["a"]}, "invalid_value", "prediction.content[0]"),
        (
            {"type": "content", "content": [{"type": "image_url", "text": ""}]},
            "invalid_value",
            "prediction.content[0].type",
        ),
        (
            {"type": "content", "content": [{"type": "text"}]},
            "missing_required_parameter",
            "prediction.content[0].text",
        ),
    ],
)
def test_a_wrong_shape_names_the_field(
    kind: type[Any], body: dict[str, Any], prediction: Any, code: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read(kind, body, prediction)
    assert (caught.value.code, caught.value.param, caught.value.status) == (code, param, 400)


def test_it_reaches_the_engine_with_every_prompt() -> None:
    prompts: Any = [TextPrompt("a"), TextPrompt("b")]
    call = Call(id="c", model="fast", prompts=prompts, principal=ANYONE, started=0.0, prediction="abc")
    requests = call.requests("fast", "default", SamplingDefaults(), TierPolicy())
    assert [request.prediction for request in requests] == ["abc", "abc"]


def test_accepted_and_rejected_tokens_are_told_and_rejected_ones_count() -> None:
    tally = Tally(n=2)
    timings = Timings(queue_ms=0, cache_n=0, prompt_n=5, prompt_ms=1, predicted_n=7, predicted_ms=1)
    for index, (accepted, rejected) in enumerate([(3, 2), (1, 4)]):
        usage = Usage(
            prompt_tokens=5,
            completion_tokens=7,
            cached_tokens=0,
            accepted_prediction=accepted,
            rejected_prediction=rejected,
        )
        tally.add(Chunk(index=index, text="", tokens=0, finish_reason="stop", usage=usage, timings=timings))
    told = tally.usage()
    assert (told.completion_tokens, told.total_tokens) == (14 + 6, 5 + 14 + 6)
    details = told.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (4, 6)
    written = tally.timings()
    assert written is not None
    assert written.predicted_n == 14


def test_a_prediction_changes_no_text(server: Any) -> None:
    body = {"model": "fast", "messages": [{"role": "user", "content": "abc def"}], "temperature": 0}
    guess = {"prediction": {"type": "content", "content": "abc xyz"}}
    texts = []
    for more in ({}, guess):
        answer = server.http.post("/v1/chat/completions", json=body | more)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]["completion_tokens_details"]
        assert usage.keys() >= {"accepted_prediction_tokens", "rejected_prediction_tokens"}
        texts.append(answer.json()["choices"][0]["message"]["content"])
    assert texts == ["abc def", "abc def"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_request_chooses_its_own_speculation(server: Any, path: str) -> None:
    text = "one two three one two three one two three"
    asked = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    body = {"model": "fast", "max_tokens": 40, "temperature": 0} | asked
    plain = server.http.post(path, json=body | {"speculation": "off"}).json()
    eager = server.http.post(path, json=body | {"speculation": "eager"}).json()
    assert plain["timings"]["draft_n"] == 0
    assert eager["timings"]["draft_n_accepted"] > 0
    assert plain["choices"] == eager["choices"]
    refused = server.http.post(path, json=body | {"speculation": "wild"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "speculation")

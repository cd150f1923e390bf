"""/livez, /readyz, /metrics and /v1/models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from twospeed.models.store import Progress, StoreError


class Gate:
    """Stands in for the store: a download that goes on until told."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.asked: list[str] = []

    def ensure(self, name: str, model: Any, progress: Any, *, cancelled: threading.Event) -> Path:
        self.asked.append(name)
        progress(Progress(name, "downloading", 500_000_000, 1_000_000_000))
        while not self.opened.wait(0.01):
            if cancelled.is_set():
                raise StoreError("cancelled")
        raise StoreError("no such file anywhere")


MODELS = {
    "fast": {"backend": "fake"},
    "smart": {"sources": ["file:/nowhere.gguf"], "role": "smart", "aliases": ["gpt-4o"]},
    "later": {"backend": "fake", "preload": False},
}


@pytest.fixture(scope="module")
def halfway(serve: Any) -> Iterator[Any]:
    """A server whose fast model is ready while its smart one downloads."""
    with serve({"models": MODELS, "server": {"load_wait_s": 0.1}}, files=Gate()) as running:
        running.wait_ready("fast")
        yield running


def test_ready_means_that_a_model_answers(halfway: Any) -> None:
    assert halfway.http.get("/livez").json() == {"status": "ok"}
    answer = halfway.http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    states = {name: state["state"] for name, state in answer.json()["models"].items()}
    assert states == {"fast": "ready", "smart": "downloading", "later": "idle"}
    smart = halfway.http.get("/readyz", params={"model": "gpt-4o"})
    assert (smart.status_code, smart.json()["error"]["code"]) == (503, "model_not_ready")
    assert smart.headers["retry-after"]
    assert smart.json()["models"]["smart"]["progress"] == 0.5
    assert halfway.http.get("/readyz", params={"model": "auto"}).status_code == 200
    assert halfway.http.get("/readyz", params={"model": "nope"}).status_code == 404


def test_a_model_that_is_not_there_yet_is_waited_for_a_while_and_then_refused(halfway: Any) -> None:
    answer = halfway.http.post("/v1/completions", json={"model": "smart", "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")
    assert "50%" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"]


def test_a_model_without_preload_is_loaded_by_the_first_request(start_server: Any) -> None:
    running = start_server({"models": MODELS}, files=Gate())
    answer = running.http.post("/v1/completions", json={"model": "later", "prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert running.http.get("/v1/models/later").json()["state"] == "ready"


def test_a_failed_download_is_told_with_its_reason(start_server: Any) -> None:
    gate = Gate()
    gate.opened.set()
    running = start_server({"models": {"smart": MODELS["smart"]}}, files=gate)
    answer = running.http.post("/v1/completions", json={"model": "smart", "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    assert "no such file anywhere" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0
    assert running.http.get("/v1/models/smart").json()["state"] == "failed"
    assert running.http.get("/readyz").status_code == 503
    assert gate.asked == ["smart"], "not tried again at once"


def test_models_are_openais_with_state_and_size_beside(halfway: Any) -> None:
    client = halfway.openai()
    models = {model.id: model for model in client.models.list()}
    assert list(models) == ["fast", "smart", "later", "auto"]
    fast = models["fast"]
    assert (fast.object, fast.owned_by, fast.ready, fast.state, fast.context_length) == (
        "model", "twospeed", True, "ready", 4096,
    )  # fmt: skip
    auto = client.models.retrieve("auto")
    assert (auto.id, auto.ready, auto.detail) == ("auto", True, "chooses for each request: smart, fast")
    alias = client.models.retrieve("gpt-4o")
    assert (alias.id, alias.ready, alias.state, alias.progress) == ("smart", False, "downloading", 0.5)


def test_metrics_count_by_model_and_tier_and_never_by_what_clients_send(server: Any) -> None:
    def counted() -> tuple[float, ...]:
        names = ("requests_total", "completion_tokens_total", "time_to_first_token_seconds_count")
        return tuple(server.metric(name, model="fast", tier="default") for name in names)

    before = counted()
    body = {"model": "fast", "prompt": "a", "max_tokens": 5}
    assert server.http.post("/v1/completions", json=body, headers={"x-request-id": "needle"}).status_code == 200
    server.http.post("/v1/completions", json=body | {"model": "needle"})
    after = counted()
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 5, 1]
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "needle" not in answer.text
    for name in (
        "step_seconds_count",
        "step_rows_count",
        "kv_total_tokens",
        "inter_token_seconds_count",
        "model_ready",
    ):
        assert server.metric(name, model="fast") > 0, name
    openmetrics = server.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.text.endswith("# EOF\n")

"""GET /v1/tiers: what a running server says, and what an engine's steps and first tokens become."""

from __future__ import annotations

from typing import Any

import pytest

from twospeed.types import StepStats, TierStep

TIERS = ["ultrafast", "priority", "default", "flex"]
KEY = "0123456789abcdef"


@pytest.fixture
def alone(start_server: Any) -> Any:
    running = start_server({"service_tiers": {"ultrafast": {"seats": 2}}})
    running.wait_ready("fast")
    return running


def test_all_tiers_and_models_are_there_and_a_request_shows(alone: Any) -> None:
    before = alone.http.get("/v1/tiers").json()
    assert [tier["tier"] for tier in before["tiers"]] == TIERS
    assert [tier["models"][0]["seats"] for tier in before["tiers"]] == [2, 16, 16, 16]
    assert sum(tier["share_promised"] for tier in before["tiers"]) == pytest.approx(1, abs=0.001)
    assert before["models"][0]["state"] == "ready"
    assert before["models"][0]["step_ms"] is None

    body = {"model": "fast", "prompt": "abc", "max_tokens": 20}
    assert alone.http.post("/v1/completions", json=body).status_code == 200
    after = alone.http.get("/v1/tiers").json()
    first = after["tiers"][2]["models"][0]["ttft_ms"]
    assert (first["samples"], first["p50"]) == (1, first["p95"])
    assert first["p50"] > 0
    model = after["models"][0]
    assert model["steps_per_second"] > 0
    assert model["kv_total_tokens"] == 4096
    assert after["tiers"][2]["models"][0]["seats_in_use"] == 0


def test_who_runs_and_who_waits_is_counted_and_so_it_is_for_prometheus(slow_server: Any) -> None:
    stream = {"model": "fast", "prompt": "abc", "max_tokens": 2000, "stream": True, "n": 3}
    with slow_server.http.stream("POST", "/v1/completions", json=stream) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()  # kept: dropped, it would end the stream
        next(lines)

        def standing() -> tuple[int, int, int]:
            default = slow_server.http.get("/v1/tiers").json()["tiers"][2]["models"][0]
            return default["seats"], default["seats_in_use"], default["queue"]

        # the first step is the first sequence's alone: its siblings wait for the prompt they share
        slow_server.wait_until(lambda: standing() == (2, 2, 1), "two run and one waits")
        assert slow_server.metric("tier_seats_in_use", model="fast", tier="default") == 2
        assert slow_server.metric("tier_queue_depth", model="fast", tier="default") == 1
    slow_server.wait_idle()
    assert slow_server.metric("tier_seats_in_use") == 0
    assert slow_server.metric("tier_share_promised", tier="ultrafast") == 0.9


def test_a_steps_tiers_become_speed_and_share(alone: Any) -> None:
    for listener in alone.gateway._engine._listeners:
        listener(
            StepStats(
                model="fast",
                ms=50,
                predicted_ms=50,
                decode_rows=3,
                prefill_rows=0,
                running=2,
                waiting=0,
                kv_used=1,
                kv_total=2,
                tiers=[TierStep("ultrafast", 40, 4, 1, 0), TierStep("default", 10, 1, 1, 0)],
            )
        )
    shown = alone.http.get("/v1/tiers").json()
    ultrafast, _, default, _ = shown["tiers"]
    assert ultrafast["share_used"] == pytest.approx(4 * default["share_used"], abs=0.001)
    assert ultrafast["tokens_per_second"] > default["tokens_per_second"] > 0
    assert alone.metric("tier_device_seconds_total", tier="ultrafast") == 0.04


def test_it_needs_a_key_where_there_are_keys(start_server: Any) -> None:
    running = start_server({"server": {"api_keys": [{"name": "k", "key": KEY}]}})
    answer = running.http.get("/v1/tiers")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert running.http.get("/v1/tiers", headers={"x-api-key": KEY}).status_code == 200


def test_the_document_describes_it(server: Any) -> None:
    document = server.http.get("/openapi.json").json()
    reply = document["paths"]["/v1/tiers"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply == {"$ref": "#/components/schemas/TierBoard"}
    assert "tiers" in document["components"]["schemas"]["TierBoard"]["properties"]

"""The server that a benchmark starts for itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from twospeed.bench.child import serving, until_ready
from twospeed.config import Config


def test_a_model_brings_its_draft_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSPEED_HOME", str(tmp_path))
    fake = {"backend": "fake", "context": 512}
    models = {"other": fake, "small": fake, "large": fake | {"draft": {"model": "small"}}}
    config = Config.model_validate({"version": 1, "models": models})
    with serving(config, ["large"], None) as endpoint:
        asyncio.run(until_ready(endpoint, ["large"], lambda _: None))
        with httpx.Client(base_url=endpoint.url, timeout=20) as http:
            assert {model["id"] for model in http.get("/v1/models").json()["data"]} >= {"small", "large"}
            body = {"model": "large", "messages": [{"role": "user", "content": "as it was"}], "temperature": 0}
            answer = http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "as it was"

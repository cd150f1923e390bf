"""Loading a draft model beside its model: what fits, what is refused, and through the real engine process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from twospeed.config import Model
from twospeed.engine import messages, worker
from twospeed.engine.client import EngineClient
from twospeed.engine.draft_model import vocab_difference
from twospeed.engine.interface import DraftSource
from twospeed.engine.runner.base import RunnerError
from twospeed.engine.runner.fake import FakeRunner, FakeVocab
from twospeed.types import ChatPrompt, GenerateRequest, Sampling

BIG = Model.model_validate({"backend": "fake", "draft": {"model": "small", "tokens": 5}, "kv_tokens": 8192})
SMALL = Model(backend="fake", context=512, slots=1)


class OtherPiece(FakeVocab):
    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"?" if token == 77 else super().piece(token, special=special)


class OtherEnd(FakeVocab):
    eog = frozenset({258})


class Sized(FakeVocab):
    def __init__(self, size: int) -> None:
        self.size = size

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return super().piece(token, special=special) if token < FakeVocab.size else b"[PAD]"


def load_job(small: Model = SMALL) -> messages.Load:
    draft = messages.DraftFile("small", None, small.model_dump(mode="json"))
    return messages.Load("big", None, BIG.model_dump(mode="json"), draft)


def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **of_draft: Any) -> tuple[Any, list[FakeRunner]]:
    """What the worker makes of `load_job` where the draft's runner has these attributes; and all runners it made."""
    made: list[FakeRunner] = []

    class Closing(FakeRunner):
        closed = False

        def close(self) -> None:
            self.closed = True

    def loader(path: Path | None, model: Model, *, max_seqs: int) -> FakeRunner:
        made.append(Closing(path, model, max_seqs=max_seqs))
        if model.draft is None:
            for name, value in of_draft.items():
                setattr(made[-1], name, value)
        return made[-1]

    monkeypatch.setattr(worker, "loader", lambda backend: loader)
    try:
        loaded, _ = worker._load(load_job(), worker.Settings(1.0, tmp_path), threading.Event())
    except RunnerError as error:
        assert all(getattr(runner, "closed", False) for runner in made)
        return str(error), made
    return loaded, made


def test_a_draft_has_a_cache_and_sequence_ids_as_its_model_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded, (big, small) = load(monkeypatch, tmp_path)
    assert small.info.kv_tokens == big.info.kv_tokens == 8192
    assert len(small._seqs) == len(big._seqs)
    assert loaded.draft.runner is small
    assert loaded.draft.tokens == 5


@pytest.mark.parametrize(
    ("vocab", "problem"),
    [
        (OtherPiece(), "their vocabularies differ: token 77 is b'M' and b'?'"),
        (OtherEnd(), "their vocabularies differ: only one of them ends with token 257, b'<|end|>'"),
        (Sized(264 + 129), "their vocabularies differ: 264 tokens and 393"),
    ],
)
def test_another_vocabulary_is_refused_in_one_line(
    vocab: FakeVocab, problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error, _ = load(monkeypatch, tmp_path, vocab=vocab)
    assert error == f"small can't draft for big: {problem}"


def test_padding_behind_the_last_token_makes_no_difference() -> None:
    assert vocab_difference(FakeVocab(), Sized(264 + 128)) is None
    assert vocab_difference(Sized(264 + 128), FakeVocab()) is None


def test_a_cache_that_cannot_be_cut_back_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = FakeRunner(None, SMALL, max_seqs=1).info._replace(partial_prefix=False)
    error, _ = load(monkeypatch, tmp_path, info=info)
    assert error == "small can't draft for big: small's cache can't take back what was drafted wrong"


def test_the_engine_process_serves_a_model_with_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        client = EngineClient(template_timeout_s=1, costs_folder=tmp_path / "costs")
        await client.start()
        try:
            async with asyncio.timeout(60):
                await client.load("big", None, BIG, DraftSource("small", None, SMALL))
                prompt = ChatPrompt([{"role": "user", "content": "the answer"}])
                request = GenerateRequest(id="r", model="big", prompt=prompt, sampling=Sampling(temperature=0))
                chunks = [chunk async for chunk in client.generate(request)]
            assert "".join(chunk.text for chunk in chunks) == "the answer"
            assert chunks[-1].finish_reason == "stop"
        finally:
            await client.close()

    asyncio.run(test())

"""The engine process from the gateway's side: real child processes with the fake model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from twospeed.config import Model
from twospeed.engine.client import EngineClient
from twospeed.errors import ApiError
from twospeed.types import ChatPrompt, Chunk, GenerateRequest, Sampling, StepStats, TextPrompt

LONG = "0123456789" * 20
DEADLINE_S = 20


@asynccontextmanager
async def engine(tmp_path: Path, *, load: bool = True) -> AsyncIterator[EngineClient]:
    client = EngineClient(template_timeout_s=1, costs_folder=tmp_path / "costs")
    await client.start()
    try:
        if load:
            await client.load("fast", None, Model(backend="fake"))
        yield client
    finally:
        await client.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(bounded())


def chat(text: str, *, request_id: str = "r", **options: object) -> GenerateRequest:
    return GenerateRequest(
        id=request_id,
        model="fast",
        prompt=ChatPrompt([{"role": "user", "content": text}]),
        sampling=Sampling(temperature=0),
        **options,  # type: ignore[arg-type]
    )


def endless(request_id: str = "r") -> GenerateRequest:
    return GenerateRequest(
        id=request_id, model="fast", prompt=TextPrompt("la"), sampling=Sampling(temperature=0), max_tokens=4000
    )


async def text_of(client: EngineClient, request: GenerateRequest) -> str:
    return "".join([chunk.text async for chunk in client.generate(request)])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - another process does it and nobody is told
        await asyncio.sleep(0.01)


def test_a_chat_streams_to_its_end_with_usage_and_timings(tmp_path: Path) -> None:
    async def test() -> None:
        async with engine(tmp_path) as client:
            chunks = [chunk async for chunk in client.generate(chat("hello"))]
            assert "".join(c.text for c in chunks) == "hello"
            last = chunks[-1]
            assert last.finish_reason == "stop"
            assert last.usage is not None
            assert last.usage.completion_tokens == len(b"hello") + 1 == sum(c.tokens for c in chunks)
            assert last.timings is not None
            assert last.timings.cache_n + last.timings.prompt_n == last.usage.prompt_tokens

    run(test)


def test_many_requests_at_once_each_get_their_own_text(tmp_path: Path) -> None:
    async def test() -> None:
        async with engine(tmp_path) as client:
            requests = [chat(f"request {i}", request_id=str(i)) for i in range(64)]
            texts = await asyncio.gather(*(text_of(client, r) for r in requests))
            assert texts == [f"request {i}" for i in range(64)]

    run(test)


def test_closing_the_iterator_frees_the_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSPEED_FAKE_STEP_MS", "5")

    async def test() -> None:
        steps: list[StepStats] = []
        async with engine(tmp_path) as client:
            client.on_step(steps.append)
            stream = client.generate(endless())
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert await text_of(client, chat("next", request_id="n")) == "next"
            assert steps[-1].running == 0
            after = [s for s in steps[-len("next") :] if s.running > 1]
            assert not after

    run(test)


def test_bad_requests_are_refused_with_the_field(tmp_path: Path) -> None:
    async def test() -> None:
        async with engine(tmp_path) as client:
            with pytest.raises(ApiError) as too_long:
                await text_of(client, chat("x" * 5000))
            assert too_long.value.code == "context_length_exceeded"
            assert "4096" in too_long.value.message
            nobody = ChatPrompt([{"role": "nobody", "content": "x"}])
            with pytest.raises(ApiError) as role:
                await text_of(client, GenerateRequest(id="b", model="fast", prompt=nobody))
            assert (role.value.code, role.value.param) == ("invalid_template", "messages")
            with pytest.raises(ApiError) as unknown:
                await text_of(client, GenerateRequest(id="u", model="smart", prompt=TextPrompt("x")))
            assert unknown.value.code == "model_not_ready"
            assert await text_of(client, chat("still here", request_id="s")) == "still here"

    run(test)


def test_a_killed_engine_fails_its_streams_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSPEED_FAKE_STEP_MS", "5")

    async def test() -> None:
        async with engine(tmp_path) as client:
            first = client.pid
            assert first is not None
            stream = client.generate(endless())
            assert (await anext(stream)).text
            os.kill(first, signal.SIGKILL)
            with pytest.raises(ApiError) as died:
                async for _ in stream:
                    pass
            assert died.value.code == "engine_died"
            with pytest.raises(ApiError) as meanwhile:
                await text_of(client, chat("now?"))
            assert meanwhile.value.code == "model_not_ready"
            await until(lambda: client.status("fast").state == "ready")  # type: ignore[union-attr]
            assert client.pid not in (None, first)
            assert await text_of(client, chat("back", request_id="b")) == "back"

    run(test)


def test_a_crash_loop_is_given_up_in_a_clear_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twospeed.engine.supervisor._FIRST_PAUSE_S", 0.01)

    async def test() -> None:
        async with engine(tmp_path) as client:
            seen: set[int] = set()
            while client.status("fast").state != "failed":  # type: ignore[union-attr]
                pid = client.pid
                if pid is not None and pid not in seen:
                    seen.add(pid)
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.01)
            assert len(seen) == 5
            with pytest.raises(ApiError) as failed:
                await text_of(client, chat("anybody?"))
            assert failed.value.code == "engine_failed"

    run(test)


def test_a_model_that_cannot_load_says_why_and_the_engine_lives(tmp_path: Path) -> None:
    async def test() -> None:
        not_a_model = tmp_path / "broken.gguf"
        not_a_model.write_bytes(b"GGUF" + bytes(100))
        async with engine(tmp_path) as client:
            with pytest.raises(ApiError) as failed:
                await client.load("broken", not_a_model, Model(sources=[f"file:{not_a_model}"]))
            assert failed.value.code == "model_failed"
            assert "broken.gguf" in failed.value.message
            assert client.status("broken").state == "failed"  # type: ignore[union-attr]
            assert await text_of(client, chat("fine")) == "fine"

    run(test)


def test_the_engine_ends_with_its_parent(tmp_path: Path) -> None:
    async def test() -> None:
        script = (
            "import asyncio, os, pathlib\n"
            "from twospeed.engine.client import EngineClient\n"
            "async def main():\n"
            "    client = EngineClient(template_timeout_s=1, costs_folder=pathlib.Path('costs'))\n"
            "    await client.start()\n"
            "    print(client.pid, flush=True)\n"
            "    await asyncio.sleep(60)\n"
            "asyncio.run(main())\n"
        )
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
        )
        assert parent.stdout is not None
        child = psutil.Process(int(await parent.stdout.readline()))
        parent.kill()
        await parent.wait()
        await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)

    run(test)


def test_close_fails_what_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSPEED_FAKE_STEP_MS", "5")

    async def test() -> None:
        async with engine(tmp_path) as client:
            chunks: list[Chunk] = []

            async def consume() -> None:
                async for chunk in client.generate(endless()):
                    chunks.append(chunk)  # noqa: PERF401 - one by one, as the test waits for the first

            task = asyncio.create_task(consume())
            await until(lambda: bool(chunks))
            await client.close()
            with pytest.raises(ApiError) as closed:
                await task
            assert closed.value.code == "shutting_down"

    run(test)

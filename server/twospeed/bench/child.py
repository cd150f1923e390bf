"""The processes a benchmark needs: a `twospeed serve` of its own, and the bare decode loop it is held against.

Both are ended by their own pid, whatever happens.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import Config, Model
from ..configfile import effective_text
from .client import BenchError, Endpoint

_LISTEN_S = 60.0
_STOP_S = 10.0
_READY_S = 300.0  # the first load of a model on a machine also measures what its steps cost
_POLL_S = 0.2
_BARE_S = 120.0
_BARE_CONTEXT = 2048  # room for prompt and output; a small cache can only make the bare loop faster
_LISTENING = re.compile(r"Listening on (http\S+)")


@contextmanager
def serving(config: Config, names: list[str], key: str | None) -> Iterator[Endpoint]:
    """A server on a free port for these models of `config`, in a process of its own. Raises BenchError."""
    drafts = [draft for name in names if (draft := config.draft_of(name))]
    models = {draft: config.models[draft].model_copy(update={"preload": False}) for draft in drafts}
    models |= {name: config.models[name].model_copy(update={"preload": True}) for name in names}
    cut = config.model_copy(update={"models": models})
    with tempfile.TemporaryDirectory(prefix="twospeed-bench-") as folder:
        file = Path(folder) / "models.yaml"
        file.write_text(effective_text(cut), "utf-8")
        command = [sys.executable, "-m", "twospeed", "serve", "--config", str(file)]
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        log = _Log(server)
        try:
            yield Endpoint(log.url(), key)
        finally:
            _end(server)
            log.close()


class _Log:
    """Reads what the server says, so that it never blocks on a full pipe; keeps the end of it."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        assert server.stderr is not None
        self._stream = server.stderr
        self._tail: deque[str] = deque(maxlen=8)
        self._url: str | None = None
        self._known = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self._tail.append(line.rstrip())
            if found := _LISTENING.search(line):
                self._url = found[1]
                self._known.set()
        self._known.set()

    def url(self) -> str:
        self._known.wait(_LISTEN_S)
        if self._url is None:
            raise BenchError("the server did not start: " + " / ".join(self._tail))
        return self._url

    def close(self) -> None:
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():  # else an engine still holds the pipe, and closing would wait for its lock
            self._stream.close()


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its engine ends with it
        process.wait()


async def until_ready(endpoint: Endpoint, names: list[str], progress: Callable[[str], None]) -> None:
    """Wait until all of `names` answer requests. Raises BenchError."""
    shown = ""
    try:
        async with asyncio.timeout(_READY_S):
            while True:
                _, state = await endpoint.get("/readyz")
                models = {name: state.get("models", {}).get(name) for name in names}
                if missing := [name for name, model in models.items() if model is None]:
                    raise BenchError(f"the server at {endpoint.url} has no model {missing[0]!r}")
                if failed := [f"{name}: {m['detail']}" for name, m in models.items() if m["state"] == "failed"]:
                    raise BenchError("; ".join(failed))
                # A model that waits for its first request is loaded by the warm-up.
                if all(model["state"] in ("ready", "idle") for model in models.values()):
                    return
                now = ", ".join(f"{name} {model['state']}" for name, model in models.items())
                if now != shown:
                    progress(now)
                    shown = now
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise BenchError(f"the models were not ready after {_READY_S:g} s ({shown})") from None


async def bare_decode(path: Path, model: Model, prompt: str, tokens: int) -> dict[str, Any]:
    """What the bare loop of engine.runner.llama_jobs says: `prompt_tokens`, `prefill_s`, `tokens`, `decode_s`.

    Raises BenchError.
    """
    small = model.model_copy(update={"context": _BARE_CONTEXT, "kv_tokens": _BARE_CONTEXT})
    spec = {"path": str(path), "model": small.model_dump(mode="json"), "prompt": prompt, "tokens": tokens}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "twospeed.engine.runner.llama_jobs", "--bare-decode", json.dumps(spec)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_BARE_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise BenchError(f"the bare decode loop took longer than {_BARE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise BenchError(f"the bare decode loop failed: {last[0]}")
    answer: dict[str, Any] = json.loads(out)
    return answer

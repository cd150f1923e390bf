"""The engine process: three threads around one Core.

- I/O: receives messages, hands them on.
- prepare: renders templates, tokenizes, has models loaded; may be slow without holding up anybody's tokens.
- compute (the main thread): owns every model's context, runs the steps, sends one message a step.

Each sending thread has its own zmq socket, as sockets may not be shared. The process ends with its parent:
the parent holds the other end of stdin.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from traceback import format_tb
from typing import NamedTuple

import msgspec
import zmq

from ..config import Model
from ..types import GenerateRequest, ModelInfo
from . import calibrate, messages
from .core import Core, max_seqs
from .cost import Curves, StepCost
from .draft_model import Draft, load_draft
from .lanes import Limits
from .memo import TokenMemo
from .prepare import Prepared, Preparer, RejectedError
from .recorder import recording
from .runner.base import Loader, Runner, RunnerError
from .scheduler import Scheduler
from .template import ChatTemplate, TemplateError

_log = logging.getLogger("twospeed.engine")


class Settings(NamedTuple):
    """What the parent decides for the whole process."""

    template_timeout_s: float
    costs_folder: Path


class _Model(NamedTuple):
    """A loaded model on its way to the compute thread."""

    name: str
    runner: Runner
    memo: TokenMemo
    limits: Limits
    info: ModelInfo
    costs_folder: Path
    draft: Draft | None
    settled: threading.Event


_Inbox = queue.SimpleQueue[Prepared | messages.Cancel | messages.Tiers | messages.Stop | _Model]
_Work = queue.SimpleQueue[messages.Load | messages.Generate | messages.Cancel]


class _Sender:
    """One thread's way to the gateway."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # a slow gateway must not stop the compute thread
        self._socket.connect(address)

    def __call__(self, message: messages.FromEngine) -> None:
        self._socket.send(messages.encode(message), copy=True)


def loader(backend: str) -> Loader:
    """The runner for `backend`; imports llama.cpp only when it is asked for."""
    if backend == "fake":
        from .runner.fake import FakeRunner

        return FakeRunner
    from .runner.llama import LlamaRunner

    return LlamaRunner


class _Prepare:
    """The prepare thread, and a thread for each model that is being loaded."""

    def __init__(self, inbox: _Inbox, senders: Callable[[], _Sender], settings: Settings) -> None:
        self.work: _Work = queue.SimpleQueue()
        self._inbox = inbox
        self._senders = senders
        self._settings = settings
        self._preparers: dict[str, Preparer] = {}
        self._settled = threading.Event()
        self._settled.set()

    def run(self) -> None:
        send = self._senders()
        while True:
            job = self.work.get()
            if isinstance(job, messages.Cancel):
                self._inbox.put(job)  # once more, now surely behind the request it means
            elif isinstance(job, messages.Load):
                # One after the other, each measured before the next is loaded: loading takes all cores, and what
                # steps cost would be measured wrong, and kept.
                before, self._settled = self._settled, threading.Event()
                threading.Thread(target=self._load, args=(job, before, self._settled), daemon=True).start()
            else:
                self._prepare(job.request, send)

    def _prepare(self, request: GenerateRequest, send: _Sender) -> None:
        try:
            preparer = self._preparers.get(request.model)
            if preparer is None:
                raise RejectedError("model_not_ready", f"{request.model} is not loaded")
            self._inbox.put(preparer.prepare(request))
        except RejectedError as error:
            send(messages.Failed(request.id, error.code, str(error), error.param))
        except Exception as error:
            # Frames and type only: an exception's message may hold the prompt.
            kind, frames = type(error).__name__, "".join(format_tb(error.__traceback__))
            _log.error("preparing a request failed: %s\n%s", kind, frames)
            send(messages.Failed(request.id, "engine_error", f"the engine failed: {kind}"))

    def _load(self, job: messages.Load, before: threading.Event, settled: threading.Event) -> None:
        before.wait()
        try:
            loaded, self._preparers[job.name] = _load(job, self._settings, settled)
            self._inbox.put(loaded)
        except Exception as error:  # whatever it was: those who wait for this model and the next must be told
            settled.set()
            self._senders()(messages.LoadFailed(job.name, str(error) or type(error).__name__))


def _load(job: messages.Load, settings: Settings, settled: threading.Event) -> tuple[_Model, Preparer]:
    """Raises RunnerError, TemplateError."""
    model = Model.model_validate(job.model)
    runner = loader(model.backend)(Path(job.path) if job.path else None, model, max_seqs=max_seqs(model.slots))
    vocab, facts = runner.vocab, runner.info
    try:
        source = _template_source(model.chat_template) or vocab.chat_template
        template = source and ChatTemplate(
            source, bos_text=vocab.bos_text, eos_text=vocab.eos_text, timeout_s=settings.template_timeout_s
        )
        draft, seqs = None, max_seqs(model.slots)
        if job.draft is not None and model.draft is not None:
            tokens = model.draft.tokens
            draft = load_draft(job.name, runner, job.draft, loader, max_seqs=seqs, tokens=tokens)
    except (TemplateError, RunnerError):
        runner.close()
        raise
    memo = TokenMemo()
    info = ModelInfo(
        description=facts.description,
        context=facts.context,
        kv_tokens=facts.kv_tokens,
        slots=model.slots,
        vocab_size=vocab.size,
        parameters=facts.parameters,
        size_bytes=facts.size_bytes,
        chat_template=template is not None,
        infill=vocab.fim is not None,
        fingerprint=facts.fingerprint,
    )
    limits = Limits(
        slots=model.slots,
        max_rows=facts.max_rows,
        max_step_ms=None if model.max_step_ms == "auto" else model.max_step_ms,
        max_prefill_step_ms=model.max_prefill_step_ms,
        spill_tokens=model.spill_mb * 2**20 // facts.token_bytes if facts.token_bytes else 0,
    )
    loaded = _Model(job.name, runner, memo, limits, info, settings.costs_folder, draft, settled)
    return loaded, Preparer(vocab, facts.context, template or None, memo)


def _template_source(setting: str | None) -> str | None:
    """Jinja text, from a file where models.yaml names one. Raises TemplateError."""
    if setting is None or not setting.startswith("file:"):
        return setting
    try:
        return Path(setting.removeprefix("file:")).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise TemplateError(f"cannot read the chat template: {error}") from error


class _Compute:
    """The compute thread's loop. New models are measured between the steps of those that serve."""

    def __init__(self, inbox: _Inbox, send: _Sender, scheduler: Scheduler | None) -> None:
        self._inbox = inbox
        self._send = send
        self._core = Core(scheduler=scheduler)
        self._measuring: list[Iterator[None]] = []

    def run(self) -> None:
        while self._drain():
            if self._measuring:
                try:
                    next(self._measuring[0])
                except StopIteration:
                    self._measuring.pop(0)
            done = self._core.step()
            if done:
                self._send(messages.Progress(*done))
        self._core.close()

    def _drain(self) -> bool:
        """Take in all messages, waiting for one when there is nothing to do; False: stop."""
        wait = self._core.idle and not self._measuring
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            match message:
                case Prepared():
                    self._core.submit(message)
                case messages.Cancel(request_id):
                    self._core.cancel(request_id)
                case messages.Tiers(shares):
                    self._core.share(shares)
                case _Model():
                    self._measuring.append(self._take_in(message))
                case messages.Stop():
                    return False

    def _take_in(self, model: _Model) -> Iterator[None]:
        curves = yield from _measured(model.runner, model.costs_folder)
        draft = model.draft
        if draft is not None:
            try:
                draft = draft._replace(curves=(yield from _measured(draft.runner, model.costs_folder)))
            except RunnerError as error:
                _log.warning("%s goes without its draft model, which failed: %s", model.name, error)
                draft.runner.close()
                draft = None
        self._core.add_model(model.name, model.runner, model.memo, curves, model.limits, draft=draft)
        model.settled.set()
        cost = StepCost(curves)
        stream_ms = [round(cost.ms(n, n), 3) for n in range(1, model.limits.slots + 1)]
        self._send(messages.Loaded(model.name, msgspec.structs.replace(model.info, stream_ms=stream_ms)))


def _measured(runner: Runner, folder: Path) -> Generator[None, None, Curves]:
    """What the steps of `runner` cost, as it was kept or measured now."""
    file = calibrate.cache_file(folder, runner)
    curves = calibrate.load(file)
    if curves is None:
        curves = Curves({}, {})
        yield from calibrate.measure(runner, curves)
        calibrate.keep(file, curves)
    return curves


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main(to_engine: str, from_engine: str, template_timeout_s: str, costs_folder: str, trace_file: str = "") -> None:
    """The process's life. `to_engine`, `from_engine`: zmq addresses that the parent has bound. `trace_file`: record
    the scheduler there."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = Settings(float(template_timeout_s), Path(costs_folder))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox: _Inbox = queue.SimpleQueue()
    prepare = _Prepare(inbox, lambda: _Sender(context, from_engine), settings)
    threading.Thread(target=prepare.run, daemon=True).start()

    def receive() -> None:
        socket = context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(to_engine)
        while True:
            message = messages.decode_to_engine(socket.recv())
            if isinstance(message, messages.Cancel | messages.Tiers | messages.Stop):
                inbox.put(message)
            if not isinstance(message, messages.Tiers | messages.Stop):
                prepare.work.put(message)

    threading.Thread(target=receive, daemon=True).start()
    with recording(Path(trace_file) if trace_file else None) as scheduler:
        _Compute(inbox, _Sender(context, from_engine), scheduler).run()
    # Not sys.exit: the other threads sit in blocking calls, and nothing is left that needs tidying up.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

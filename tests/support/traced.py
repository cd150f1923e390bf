"""A Core whose scheduler is recorded, on a clock of its own: two models without weights, and whatever comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from twospeed.config import Model
from twospeed.engine import trace
from twospeed.engine.core import Core, max_seqs
from twospeed.engine.cost import Curves
from twospeed.engine.lanes import Limits
from twospeed.engine.memo import TokenMemo
from twospeed.engine.prepare import Preparer
from twospeed.engine.recorder import Recorder
from twospeed.engine.runner.base import Logits, Row, RunnerError
from twospeed.engine.runner.fake import FakeRunner
from twospeed.engine.template import ChatTemplate
from twospeed.types import TIERS, ChatPrompt, GenerateRequest, Sampling, Share, TextPrompt

TEXTS = ["the secret word is xylophone, ", "def f(x):\n    return x\n", "aaaaaaaa", "0123456789 "]


class _Runner(FakeRunner):
    """Its steps take 2 ms and 1 ms a row, more or less as `chance` has it."""

    def __init__(self, engine: Traced, model: Model, seqs: int) -> None:
        super().__init__(None, model, max_seqs=seqs)
        self._step_s = self._row_s = 0.0  # whatever servers of other tests were told
        self._engine = engine

    def run(self, rows: Sequence[Row]) -> Logits:
        self._engine.now += (2 + len(rows)) * self._engine.chance.choice(self._engine.slowness) / 1000
        return super().run(rows)

    def restore(self, seq: int, state: bytes) -> None:
        self._engine.restores += 1
        if self._engine.restores_fail and self._engine.restores % 2:
            raise RunnerError("no room in one piece")
        super().restore(seq, state)


class Traced:
    def __init__(self, seed: int = 0, *, slots: int = 3, kv_tokens: int = 512, **options: Any) -> None:
        self.chance = random.Random(seed)
        self.slowness: list[float] = options.pop("slowness", [1.0])
        self.restores_fail: bool = options.pop("restores_fail", False)  # the first one, the third one ..
        self.restores = 0
        self.now = 50.0
        self.lines: list[bytes] = []
        self.core = self._core()
        self._count = 0
        for name in ("fast", "smart"):
            model = Model(backend="fake", slots=slots, kv_tokens=kv_tokens, **options)
            runner = _Runner(self, model, max_seqs(slots))
            vocab = runner.vocab
            assert vocab.chat_template
            template = ChatTemplate(vocab.chat_template, bos_text="<|bos|>", eos_text="<|end|>", timeout_s=5)
            memo = TokenMemo()
            self.preparer = Preparer(vocab, runner.info.context, template, memo)
            curves = Curves({1: 3.0, 64: 66.0}, {1: 3.0, 64: 66.0})
            self.core.add_model(name, runner, memo, curves, Limits(slots, 512, None, 600, 400))

    def _core(self) -> Core:
        def tell(event: trace.Event) -> None:
            self.lines.append(trace.encode(event))

        tell(trace.Header(trace.FORMAT, "test"))
        return Core(lambda: self.now, Recorder(tell, clock=lambda: self.now))

    @property
    def events(self) -> list[trace.Event]:
        return [event for _, event in trace.decode(self.lines)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def submit(self, text: str, *, model: str = "fast", chat: bool = False, **fields: Any) -> str:
        self._count += 1
        prompt = ChatPrompt([{"role": "user", "content": text}]) if chat else TextPrompt(text)
        request = GenerateRequest(
            id=f"r{self._count}", model=model, prompt=prompt, sampling=Sampling(temperature=0), **fields
        )
        self.core.submit(self.preparer.prepare(request))
        return request.id

    def drain(self, each: Callable[[], None] = lambda: None) -> None:
        while self.core.step():
            each()

    def random_run(self, actions: int) -> None:
        """Adds, cancels, other shares and steps, in a random order; then all that is left."""
        chance = self.chance
        for _ in range(actions):
            kind = chance.choice(["add", "add", "cancel", "share", "step", "step", "step", "idle"])
            if kind == "add":
                self.submit(
                    chance.choice(TEXTS) * chance.randint(1, 4),
                    model=chance.choice(["fast", "smart"]),
                    chat=chance.random() < 0.5,
                    tier=chance.choice(TIERS),
                    n=chance.choice([1, 1, 1, 3]),
                    max_tokens=chance.randint(1, 120),
                    namespace=chance.choice(["", "bob"]),
                    cache_prompt=chance.random() < 0.8,
                    prediction=chance.choice(["", "the secret word is xylophone, the"]),
                    speculation=chance.choice([None, None, "eager", "off"]),
                )
            elif kind == "cancel":
                self.core.cancel(f"r{chance.randint(1, max(1, self._count))}")
            elif kind == "share":
                speculation = chance.choice(["off", "auto", "eager"])
                self.core.share({tier: Share(weight=chance.random() + 0.1, speculation=speculation) for tier in TIERS})
            elif kind == "idle":
                self.now += chance.random()
            else:
                for _ in range(chance.randint(1, 12)):
                    self.core.step()
        self.drain()

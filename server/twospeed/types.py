"""The words all rooms share: what a client asked for and what comes back.

These structs cross the process border to the engine (msgpack, through msgspec), so they hold plain
data only. They know nothing of HTTP, keys or llama.cpp.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ServiceTier = Literal["default", "flex", "priority", "ultrafast"]
TIERS: tuple[ServiceTier, ...] = ("ultrafast", "priority", "default", "flex")
"""All service tiers, the most urgent first."""
Speculation = Literal["off", "auto", "eager"]
FinishReason = Literal["stop", "length"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen.

    Defaults are OpenAI's; `top_k=0`, `min_p=0` and `repetition_penalty=1` switch those off.
    `temperature=0` is greedy. `seed=None` draws a fresh one for each sequence.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    ignore_eos: bool = False


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """Messages for the model's chat template, each with a `role` and a string `content`."""

    messages: list[dict[str, Any]]
    template_kwargs: dict[str, Any] = {}


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """Raw text, tokenized as it is (beginning-of-sequence token added where the model wants one)."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids, used as they are."""

    tokens: list[int]


class InfillPrompt(msgspec.Struct, frozen=True, tag="infill"):
    """Fill in the middle: the model writes what stands between `prefix` and `suffix`."""

    prefix: str
    suffix: str


Prompt = ChatPrompt | TextPrompt | TokenPrompt | InfillPrompt


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How a service tier's sequences share the device: what config.TierPolicy says of it, for the engine."""

    precedence: Literal["first", "shared", "last"] = "shared"
    share: float = 0.5
    weight: float = 1.0
    speculation: Speculation = "auto"


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One client call for the engine: `n` sequences of one prompt.

    `max_tokens=None` means up to `output_cap` or, without, the model's context; unlike `max_tokens`, the cap need not
    fit beside the prompt. `namespace` bounds prefix sharing: two requests share cached prefixes only when it is equal,
    and not at all without `cache_prompt`. `echo` makes the prompt's text the head of each sequence's text.
    `prediction` is text the client expects in the output. `speculation=None` leaves it
    to the tier. `max_context` is a lower limit than the model's own, of this request's tier.
    """

    id: str
    model: str
    prompt: Prompt
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    output_cap: int | None = None
    stop: list[str] = []
    n: int = 1
    tier: ServiceTier = "default"
    namespace: str = ""
    cache_prompt: bool = True
    echo: bool = False
    prediction: str = ""
    speculation: Speculation | None = None
    max_context: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one sequence. `cached_tokens` of the prompt were not prefilled again. Of the drafts that came
    from the client's prediction, `accepted_prediction` became output and `rejected_prediction` did not."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    accepted_prediction: int = 0
    rejected_prediction: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where one sequence's time went, in milliseconds, measured in the engine.

    `queue_ms`: from arrival in the engine until its first row ran. `prompt_ms`: from then until its first
    token. `predicted_ms`: from its first to its last token, so it spans `predicted_n - 1` gaps.
    `cache_n + prompt_n` is the prompt's length.
    """

    queue_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int = 0
    draft_n_accepted: int = 0


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """New text of one sequence (`index` among the request's `n`).

    `tokens` counts the tokens behind this text; it may be 1 with empty text, while bytes of a character or
    of a possible stop string are held back. The last chunk of a sequence has `finish_reason`, `usage` and
    `timings`; the request is over when all its sequences have had theirs.
    """

    index: int
    text: str
    tokens: int
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None


ModelState = Literal["idle", "downloading", "loading", "ready", "failed"]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model says of itself. `context` and `kv_tokens` are in tokens. `stream_ms[n - 1]`: milliseconds of
    a step in which `n` streams each decode one token, as measured when it was loaded."""

    description: str
    context: int
    kv_tokens: int
    slots: int
    vocab_size: int
    parameters: int
    size_bytes: int
    chat_template: bool
    infill: bool
    fingerprint: str
    stream_ms: list[float] = []


class ModelStatus(msgspec.Struct, kw_only=True):
    """A model as /readyz, /v1/models and the CLI report it.

    `idle`: configured, not loaded until the first request asks for it. `progress` is 0..1 while downloading.
    """

    name: str
    state: ModelState
    detail: str = ""
    progress: float | None = None
    info: ModelInfo | None = None


class TierStep(msgspec.Struct, frozen=True, array_like=True):
    """What a step did for one service tier: its part of the step's milliseconds, the tokens it wrote, and the tier's
    sequences of this model after it."""

    tier: ServiceTier
    ms: float
    tokens: int
    running: int
    waiting: int


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """One step, for metrics: milliseconds, rows and the state after it. `tiers`: those with any sequence then."""

    model: str
    ms: float
    predicted_ms: float
    decode_rows: int
    prefill_rows: int
    running: int
    waiting: int
    kv_used: int
    kv_total: int
    draft_rows: int = 0
    tiers: list[TierStep] = []

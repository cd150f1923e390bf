"""POST /v1/completions: OpenAI's plain completion format, with infill by `suffix`. Knows no policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.responses import Response

from ..errors import ApiError
from ..gateway.calls import Call
from ..types import Chunk, FinishReason, InfillPrompt, Prompt, TextPrompt, TokenPrompt
from .body import read
from .context import Context
from .deps import Deps
from .exchange import Generation
from .facts import facts_of
from .fields import MAX_TOKEN_ID, GenerationFields, PositiveTokens, branch, by, refuse
from .openapi import operation
from .patience import patience
from .wire import Collected, Envelope, Tally, WireTimings, WireUsage, encode, new_id, sequence_timings

DEFAULT_MAX_TOKENS = 16  # OpenAI's


def _prompt_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list) or not value:
        return None
    if isinstance(value[0], str):
        return "texts"
    return "token lists" if isinstance(value[0], list) else "tokens"


Tokens = Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]], Field(min_length=1)]
PromptField = Annotated[
    Annotated[str, branch("text")]
    | Annotated[list[str], branch("texts")]
    | Annotated[Tokens, branch("tokens")]
    | Annotated[list[Tokens], branch("token lists")],
    by(_prompt_kind, "a string, a list of strings, a list of token ids or a list of those"),
]


class CompletionRequest(GenerationFields):
    prompt: PromptField
    suffix: str | None = Field(None, description="what follows: the model fills in between prompt and suffix")
    echo: bool | None = Field(None, description="begin the text with the prompt")
    max_tokens: PositiveTokens | None = Field(None, description=f"default: {DEFAULT_MAX_TOKENS}")
    best_of: int | None = Field(None, description="not supported beyond n")
    logprobs: int | None = Field(None, description="not supported yet: null")


def to_prompts(request: CompletionRequest) -> list[Prompt]:
    """One prompt per completion asked for. Raises ApiError for a suffix to token ids."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [_text_prompt(prompt, request.suffix)]
    prompts: list[Prompt] = []
    tokens: list[int] = []
    for item in prompt:
        if isinstance(item, str):
            prompts.append(_text_prompt(item, request.suffix))
        elif isinstance(item, int):
            tokens.append(item)
        else:
            prompts.append(TokenPrompt(item))
    if tokens:
        prompts.append(TokenPrompt(tokens))
    if request.suffix and not isinstance(prompt[0], str):
        raise ApiError("invalid_value", "A suffix needs a prompt of text, not of token ids.", param="suffix")
    return prompts


def _text_prompt(text: str, suffix: str | None) -> Prompt:
    # Editors send an empty suffix at the end of a file: there is nothing to fill in up to.
    return InfillPrompt(text, suffix) if suffix else TextPrompt(text)


class CompletionChoice(msgspec.Struct, frozen=True):
    text: str
    index: int
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Completion(msgspec.Struct, frozen=True):
    """The whole response, and each chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: WireUsage | UnsetType | None = UNSET
    timings: WireTimings | UnsetType = UNSET


class CompletionWire:
    """The plain format of one response."""

    def __init__(self, *, include_usage: bool) -> None:
        self._usage: UnsetType | None = None if include_usage else UNSET

    def events(self, envelope: Envelope, chunk: Chunk) -> list[bytes]:
        if not chunk.text and chunk.finish_reason is None:
            return []
        choice = CompletionChoice(chunk.text, chunk.index, finish_reason=chunk.finish_reason)
        timings = UNSET if chunk.timings is None else sequence_timings(chunk.timings)
        return [encode(_completion(envelope, [choice], self._usage, timings))]

    def last_events(self, envelope: Envelope, tally: Tally) -> list[bytes]:
        if self._usage is UNSET:
            return []
        return [encode(_completion(envelope, [], tally.usage(), tally.timings() or UNSET))]

    def body(self, envelope: Envelope, sequences: Sequence[Collected], tally: Tally) -> bytes:
        choices = [
            CompletionChoice(sequence.text, index, finish_reason=sequence.finish_reason)
            for index, sequence in enumerate(sequences)
        ]
        return encode(_completion(envelope, choices, tally.usage(), tally.timings() or UNSET))


def _completion(
    envelope: Envelope,
    choices: list[CompletionChoice],
    usage: WireUsage | UnsetType | None,
    timings: WireTimings | UnsetType,
) -> Completion:
    return Completion(
        envelope.id,
        "text_completion",
        envelope.created,
        envelope.model,
        envelope.tier,
        envelope.fingerprint,
        choices,
        usage,
        timings,
    )


def router(deps: Deps) -> APIRouter:
    """The endpoint."""
    routes = APIRouter()

    @routes.post("/v1/completions", **operation("Completion", CompletionRequest, Completion))
    async def completions(request: Request) -> Response:
        principal = deps.authenticate(request)
        body = await read(request, CompletionRequest, limit=deps.server.max_body_bytes)
        n = body.n or 1
        refuse(body, {"best_of": lambda value: value == n, "logprobs": lambda value: False})
        prompts = to_prompts(body)
        call = Call(
            id=new_id("cmpl"),
            model=body.model,
            prompts=prompts,
            principal=principal,
            started=Context.of(request.scope).started,
            wanted=body.wanted(),
            max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
            max_tokens_param="" if body.max_tokens is None else "max_tokens",
            stop=body.stops,
            n=n,
            service_tier=body.service_tier or "auto",
            patience_s=patience(request, body),
            echo=bool(body.echo),
            cache_prompt=body.cache_prompt is not False,
            prediction=body.predicted,
            speculation=body.speculation,
            facts=facts_of(request, prompts, body.metadata),
        )
        wire = CompletionWire(include_usage=body.include_usage)
        return Generation(deps.gateway, call, wire, stream=bool(body.stream))

    return routes

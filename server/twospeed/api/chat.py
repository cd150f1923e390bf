"""POST /v1/chat/completions: OpenAI's chat format, both ways. Knows no policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType
from pydantic import AfterValidator, Field, JsonValue
from starlette.responses import Response

from ..errors import ApiError
from ..gateway.calls import Call
from ..types import ChatPrompt, Chunk, FinishReason
from .body import read
from .context import Context
from .deps import Deps
from .exchange import Generation
from .facts import facts_of
from .fields import GenerationFields, PositiveTokens, WireModel, branch, by, refuse, text_or_list
from .openapi import operation
from .patience import patience
from .wire import Collected, Envelope, Tally, WireTimings, WireUsage, encode, new_id, sequence_timings


class ContentPart(WireModel):
    type: str = Field(description="text; an assistant's may be refusal")
    text: str | None = None
    refusal: str | None = None


class FunctionCall(WireModel):
    name: str
    arguments: str = Field(description="JSON, as a string")


class ToolCall(WireModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


Content = Annotated[
    Annotated[str, branch("text")] | Annotated[list[ContentPart], branch("list")],
    by(text_or_list, "a string or a list of content parts"),
]


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = Field(None, description="null only for an assistant that calls tools")
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


def _usable(value: dict[str, Any]) -> dict[str, Any]:
    if taken := value.keys() & {"messages", "self"}:
        raise ValueError(f"the template's own {sorted(taken)[0]!r} can't be replaced")
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise ValueError("an integer in it needs more than 64 bits")
        if isinstance(item, (dict, list)):
            todo.extend(item.values() if isinstance(item, dict) else item)
    return value


class ChatCompletionRequest(GenerationFields):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: PositiveTokens | None = None
    max_tokens: PositiveTokens | None = Field(None, description="the old name of max_completion_tokens")
    chat_template_kwargs: Annotated[dict[str, JsonValue], AfterValidator(_usable)] | None = Field(
        None, description="more variables for the model's chat template"
    )
    tools: list[Any] | None = Field(None, description="not supported yet: null or empty")
    tool_choice: Any = Field(None, description="not supported yet: null, none or auto")
    functions: list[Any] | None = Field(None, description="not supported: null or empty")
    function_call: Any = Field(None, description="not supported: null, none or auto")
    response_format: Any = Field(None, description='not supported yet: null or {"type": "text"}')
    logprobs: bool | None = Field(None, description="not supported yet: null or false")
    top_logprobs: int | None = Field(None, description="not supported yet: null or 0")
    modalities: Any = Field(None, description='not supported: null or ["text"]')
    audio: Any = Field(None, description="not supported: null")
    web_search_options: Any = Field(None, description="not supported: null")


_HARMLESS = {
    "tools": lambda value: not value,
    "tool_choice": lambda value: value in ("none", "auto"),
    "functions": lambda value: not value,
    "function_call": lambda value: value in ("none", "auto"),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "logprobs": lambda value: not value,
    "top_logprobs": lambda value: not value,
    "modalities": lambda value: value == ["text"],
    "audio": lambda value: False,
    "web_search_options": lambda value: False,
}


def to_prompt(request: ChatCompletionRequest) -> ChatPrompt:
    """The messages as a chat template wants them: string contents, and one system message at the head.

    `developer` becomes `system`, `function` becomes `tool`. Raises ApiError that names the message.
    """
    messages: list[dict[str, Any]] = []
    leading: list[str] = []
    for index, message in enumerate(request.messages):
        content = _text(message, index)
        role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
        if role == "system" and not messages:
            leading.append(content)  # templates that know one system message refuse a second
            continue
        out: dict[str, Any] = {"role": role, "content": content}
        if message.name is not None:
            out["name"] = message.name
        if message.tool_call_id is not None:
            out["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            out["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
        messages.append(out)
    if leading:
        messages.insert(0, {"role": "system", "content": "\n\n".join(leading)})
    return ChatPrompt(messages=messages, template_kwargs=dict(request.chat_template_kwargs or {}))


def _text(message: ChatMessage, index: int) -> str:
    content = message.content
    where = f"messages[{index}].content"
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "assistant" and message.tool_calls:
            return ""
        raise ApiError("invalid_value", f"Invalid value for '{where}': it should be a string.", param=where)
    texts: list[str] = []
    for number, part in enumerate(content):
        text = part.text if part.type == "text" else part.refusal if part.type == "refusal" else None
        if text is None:
            field = f"{where}[{number}]." + (part.type if part.type in ("text", "refusal") else "type")
            problem = "it should be a string" if part.type in ("text", "refusal") else "only text parts are supported"
            raise ApiError("invalid_value", f"Invalid value for '{field}': {problem}.", param=field)
        texts.append(text)
    return "\n".join(texts)


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: WireUsage | UnsetType | None = UNSET
    timings: WireTimings | UnsetType = UNSET


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    index: int
    message: Message
    finish_reason: FinishReason | None
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[Choice]
    usage: WireUsage
    timings: WireTimings | None


class ChatWire:
    """The chat format of one response."""

    def __init__(self, *, include_usage: bool) -> None:
        self._usage: UnsetType | None = None if include_usage else UNSET
        self._begun: set[int] = set()

    def events(self, envelope: Envelope, chunk: Chunk) -> list[bytes]:
        events = []
        if chunk.index not in self._begun:
            self._begun.add(chunk.index)
            events.append(self._event(envelope, ChunkChoice(chunk.index, Delta(role="assistant", content=""))))
        if chunk.text:
            events.append(self._event(envelope, ChunkChoice(chunk.index, Delta(content=chunk.text))))
        if chunk.finish_reason is not None:
            choice = ChunkChoice(chunk.index, Delta(), finish_reason=chunk.finish_reason)
            timings = UNSET if chunk.timings is None else sequence_timings(chunk.timings)
            events.append(self._event(envelope, choice, timings))
        return events

    def last_events(self, envelope: Envelope, tally: Tally) -> list[bytes]:
        if self._usage is UNSET:
            return []
        return [encode(_chunk(envelope, [], tally.usage(), tally.timings() or UNSET))]

    def body(self, envelope: Envelope, sequences: Sequence[Collected], tally: Tally) -> bytes:
        return encode(
            ChatCompletion(
                id=envelope.id,
                object="chat.completion",
                created=envelope.created,
                model=envelope.model,
                service_tier=envelope.tier,
                system_fingerprint=envelope.fingerprint,
                choices=[
                    Choice(index, Message("assistant", sequence.text), sequence.finish_reason)
                    for index, sequence in enumerate(sequences)
                ],
                usage=tally.usage(),
                timings=tally.timings(),
            )
        )

    def _event(self, envelope: Envelope, choice: ChunkChoice, timings: WireTimings | UnsetType = UNSET) -> bytes:
        return encode(_chunk(envelope, [choice], self._usage, timings))


def _chunk(
    envelope: Envelope,
    choices: list[ChunkChoice],
    usage: WireUsage | UnsetType | None,
    timings: WireTimings | UnsetType,
) -> ChatCompletionChunk:
    return ChatCompletionChunk(
        envelope.id,
        "chat.completion.chunk",
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

    @routes.post("/v1/chat/completions", **operation("Chat completion", ChatCompletionRequest, ChatCompletion))
    async def chat_completions(request: Request) -> Response:
        principal = deps.authenticate(request)
        body = await read(request, ChatCompletionRequest, limit=deps.server.max_body_bytes)
        refuse(body, _HARMLESS)
        prompt = to_prompt(body)
        tools = bool(body.tools or body.functions) and body.tool_choice != "none"
        limits = ("max_completion_tokens", "max_tokens")
        limit = next((name for name in limits if getattr(body, name) is not None), "")
        call = Call(
            id=new_id("chatcmpl"),
            model=body.model,
            prompts=[prompt],
            principal=principal,
            started=Context.of(request.scope).started,
            wanted=body.wanted(),
            max_tokens=getattr(body, limit) if limit else None,
            max_tokens_param=limit,
            stop=body.stops,
            n=body.n or 1,
            cache_prompt=body.cache_prompt is not False,
            service_tier=body.service_tier or "auto",
            prediction=body.predicted,
            speculation=body.speculation,
            facts=facts_of(request, [prompt], body.metadata, tools=tools, response_format=body.response_format),
            patience_s=patience(request, body),
        )
        return Generation(deps.gateway, call, ChatWire(include_usage=body.include_usage), stream=bool(body.stream))

    return routes

"""What a router may know of a request, taken from its prompts, headers and metadata. Chooses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from ..gateway.route import HEADER, Facts
from ..types import ChatPrompt, InfillPrompt, Prompt, TextPrompt

# Of a prompt of token ids the text is not known here; this is about what a token of English or code has.
_CHARS_PER_TOKEN = 4


def facts_of(
    request: Request,
    prompts: list[Prompt],
    metadata: Mapping[str, Any] | None,
    *,
    tools: bool = False,
    response_format: Any = None,
) -> Facts:
    """The facts of a request. Of several prompts the longest one counts, and the first one's text."""
    first = prompts[0]
    return Facts(
        tools=tools,
        schema=isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema"),
        infill=isinstance(first, InfillPrompt),
        prompt_chars=max(_chars(prompt) for prompt in prompts),
        last_user=_last_user(first),
        turns=_turns(first),
        metadata={key: value for key, value in (metadata or {}).items() if isinstance(value, str)},
        header=(request.headers.get(HEADER) or "").strip() or None,
    )


def _chars(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt():
            return sum(len(message["content"]) for message in prompt.messages)
        case TextPrompt():
            return len(prompt.text)
        case InfillPrompt():
            return len(prompt.prefix) + len(prompt.suffix)
        case _:
            return _CHARS_PER_TOKEN * len(prompt.tokens)


def _last_user(prompt: Prompt) -> str:
    match prompt:
        case ChatPrompt():
            texts = (message["content"] for message in reversed(prompt.messages) if message["role"] == "user")
            return next(texts, "")
        case TextPrompt():
            return prompt.text
        case InfillPrompt():
            return prompt.prefix
        case _:
            return ""


def _turns(prompt: Prompt) -> int:
    if not isinstance(prompt, ChatPrompt):
        return 1
    return sum(message["role"] == "user" for message in prompt.messages)

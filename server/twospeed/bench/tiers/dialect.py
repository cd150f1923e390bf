"""How to ask this server: which fields it takes, and what it left out or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..client import BenchError, Endpoint, RefusedError
from .results import Tier
from .workloads import Message

_OPTIONAL = ("service_tier", "prediction")  # OpenAI's, but not every server's
_BAD_REQUEST = (400, 422)


class Dialect:
    """Makes requests for one model of one server. `own`: it is a twospeed server, which takes a few fields more.

    `prompts_are_reusable`: a prompt can be sent twice without the second finding the first in a cache.
    """

    def __init__(self, endpoint: Endpoint, model: str, own: bool, note: Callable[[str], None]) -> None:
        self.endpoint = endpoint
        self.model = model
        self.own = own
        self.prompts_are_reusable = own
        self._note = note
        self._refused: set[str] = set()

    def body(
        self,
        messages: list[Message],
        tier: Tier,
        tokens: int,
        *,
        prediction: str | None = None,
        fixed: bool = False,
        cache: bool = False,
        drafts: bool = True,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": tokens, "service_tier": tier}
        if prediction is not None:
            body["prediction"] = {"type": "content", "content": prediction}
        if self.own:
            body["ignore_eos"] = fixed
            body["cache_prompt"] = cache
            if not drafts:
                body["speculation"] = "off"
        return body

    def fit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Without what this server is known to refuse."""
        return {key: value for key, value in body.items() if key not in self._refused}

    def learn(self, error: BenchError, sent: dict[str, Any]) -> bool:
        """Whether what was refused is worth another try with less in it."""
        if self.own or not isinstance(error, RefusedError) or error.status not in _BAD_REQUEST:
            return False
        if any(field in sent for field in self._refused):  # learned meanwhile, from another request
            return True
        there = [field for field in _OPTIONAL if field in sent]
        named = [field for field in there if field in str(error)] or there[:1]
        for field in named:
            self._refused.add(field)
            self._note(f"the server refuses `{field}`, so it was left out: {error}")
        return bool(named)


async def known_server(endpoint: Endpoint) -> bool:
    """Whether a twospeed answers there. Raises BenchError where nobody does."""
    answer = await (await endpoint.open("GET", "/readyz")).answer()
    return answer.status in (200, 503) and b'"models"' in answer.body

"""The `routes:` part of models.yaml: which model answers `model: auto`. Choosing by it is gateway/route.py's job."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer, model_validator

from .strict import Strict

AUTO = "auto"
"""The name that clients ask for when they leave the choice of a model to the server."""

ROLES = ("fast", "smart")
"""Names that always stand for some model in a rule, see `Config.targets`."""

LONG_PROMPT_CHARS = 8000

# It goes into a response header, whose parts are separated by `;`.
RuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/+<>=-]{0,63}$")]
Target = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class Range(Strict):
    """A number's bounds, both inclusive."""

    min: int | None = Field(None, ge=0)
    max: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min: must not be above max, or the rule could never hold")
        return self

    def holds(self, value: int) -> bool:
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        low = "" if self.min is None else f">={self.min}"
        high = "" if self.max is None else f"<={self.max}"
        return low + high


class Rule(Strict):
    """Requests for which all of its conditions hold go to `model`. Conditions that are left out hold for all."""

    name: RuleName | None = Field(None, description="what x-twospeed-route says; default: made of the conditions")
    model: Target = Field(description="a model, an alias or a role")
    tools: bool | None = Field(None, description="the request offers tools")
    wants_schema: bool | None = Field(None, alias="schema", description="the answer has to be JSON")
    code: bool | None = Field(None, description="there is code or a stack trace in the last user message")
    infill: bool | None = Field(None, description="fill in the middle: a completion with a suffix")
    prompt_chars: Range | None = Field(None, description="characters of the prompt, all messages together")
    turns: Range | None = Field(None, description="user messages in the conversation")
    metadata: dict[str, str] = Field(
        default_factory=dict, description="values that the request's metadata must have, all of them"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.conditions():
            raise ValueError("a rule needs a condition; what all other requests get is `default`")
        return self

    def conditions(self) -> list[str]:
        """The conditions in words, for a rule without a name."""
        flags = {"tools": self.tools, "schema": self.wants_schema, "code": self.code, "infill": self.infill}
        words = [word if wanted else f"no-{word}" for word, wanted in flags.items() if wanted is not None]
        ranges = {"prompt_chars": self.prompt_chars, "turns": self.turns}
        words += [f"{word}{bounds}" for word, bounds in ranges.items() if bounds is not None]
        return words + (["metadata"] if self.metadata else [])

    @property
    def title(self) -> str:
        return self.name or "+".join(self.conditions())

    @model_serializer(mode="wrap")
    def _only_what_is_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value not in (None, {})}


def _rules() -> list[Rule]:
    given: list[dict[str, Any]] = [
        {"name": "tools", "tools": True},
        {"name": "schema", "schema": True},
        {"name": "infill", "infill": True},
        {"name": "code", "code": True},
        {"name": "long", "prompt_chars": {"min": LONG_PROMPT_CHARS}},
    ]
    return [Rule.model_validate(rule | {"model": "smart"}) for rule in given]


class AutoRoute(Strict):
    """How `model: auto` is answered: by the first rule that holds, or by `default`."""

    rules: list[Rule] = Field(default_factory=_rules, max_length=100, description="tried in order")
    default: Target = Field("fast", description="who answers where no rule holds: a model, an alias or a role")


class Routes(Strict):
    """Names that stand for no one model."""

    auto: AutoRoute = Field(default_factory=AutoRoute)

"""`model: auto`: which model answers a request, from plain facts about it. Pure; knows no wire format.

A Router takes facts and who is ready, and gives a Route. The one here goes by the rule table of models.yaml; one
that has measured what each model is good at can stand in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from ..config import Config
from ..errors import ApiError
from ..routes import AUTO, Rule
from .code import holds_code

METADATA_KEY = "twospeed-route"
HEADER = "x-twospeed-route"
"""A request may name its first choice in its metadata, under METADATA_KEY, or in this header. The response has the
header too: it says what decided."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a choice may be made from. `header` is what the request said in HEADER."""

    tools: bool = False
    schema: bool = False
    infill: bool = False
    prompt_chars: int = 0
    last_user: str = field(default="", repr=False)  # a prompt: never to be logged
    turns: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)
    header: str | None = None

    @cached_property
    def code(self) -> bool:
        return holds_code(self.last_user)


class Route(NamedTuple):
    """The model that answers, the rule that said so, and better ones that were passed over as they are not ready."""

    model: str
    rule: str
    passed_over: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        """Such as `code`, or `code; smart not ready`."""
        return "; ".join([self.rule, *(f"{name} not ready" for name in self.passed_over)])


class Router(Protocol):
    @property
    def models(self) -> list[str]:
        """All models that a route may lead to, at least one."""
        ...

    def route(
        self, facts: Facts, ready: Callable[[str], bool], allowed: Callable[[str], bool] = lambda model: True
    ) -> Route:
        """Choose a model. `ready`: whether a model, by its name, could begin now; `allowed`: whether the client may
        use it. Where it may use none, the choice is as if it might use all. Raises ApiError `invalid_value`
        for a wish that names no model."""
        ...


class RuleRouter:
    """Goes by `routes.auto` of the configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._auto = config.routes.auto
        targets = [*(rule.model for rule in self._auto.rules), self._auto.default]
        self._models = list(dict.fromkeys(name for target in targets for name in config.targets(target)))

    @property
    def models(self) -> list[str]:
        return self._models

    def route(
        self, facts: Facts, ready: Callable[[str], bool], allowed: Callable[[str], bool] = lambda model: True
    ) -> Route:
        name, target = self._choose(facts)
        # who else the rule's role stands for, then who else answers anything by this table: first whoever a later
        # rule or the default would have chosen
        later = [rule.model for rule in self._auto.rules if holds(rule, facts)] + [self._auto.default]
        choices = self._config.targets(target)
        choices += [model for other in later for model in self._config.targets(other)] + self._models
        choices = [model for model in dict.fromkeys(choices) if allowed(model)] or choices
        for number, model in enumerate(choices):
            if ready(model):
                return Route(model, name, tuple(choices[:number]))
        return Route(choices[0], name)

    def _choose(self, facts: Facts) -> tuple[str, str]:
        """What decided, and the model, alias or role it asks for."""
        # The body says more of this one request than a header, which many clients set once for all.
        wishes = [
            ("metadata", f"metadata.{METADATA_KEY}", facts.metadata.get(METADATA_KEY)),
            ("header", HEADER, facts.header),
        ]
        for name, where, wish in wishes:
            if wish and wish != AUTO:
                if not self._config.targets(wish):
                    raise ApiError("invalid_value", f"'{where}' is no model, alias or role here.", param=where)
                return name, wish
        for rule in self._auto.rules:
            if holds(rule, facts):
                return rule.title, rule.model
        return "default", self._auto.default


def holds(rule: Rule, facts: Facts) -> bool:
    """Whether all conditions of `rule` hold. Whether there is code is asked last, as it takes longest."""
    return (
        rule.tools in (None, facts.tools)
        and rule.wants_schema in (None, facts.schema)
        and rule.infill in (None, facts.infill)
        and (rule.prompt_chars is None or rule.prompt_chars.holds(facts.prompt_chars))
        and (rule.turns is None or rule.turns.holds(facts.turns))
        and all(facts.metadata.get(key) == value for key, value in rule.metadata.items())
        and (rule.code is None or rule.code == facts.code)
    )

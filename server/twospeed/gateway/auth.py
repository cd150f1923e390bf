"""Who may talk to this server: API keys, and the Host header of a loopback server.

Knows the configuration and plain header values; knows nothing of HTTP frameworks or bodies.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass

from ..access import ApiKey, tiers_of
from ..config import Config, Server
from ..errors import ApiError
from ..types import TIERS, ServiceTier


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may use; None: as much as there is. `concurrent` counts sequences in flight."""

    concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """A client that has been let in, and what it may ask for.

    `namespace` bounds what cached prefixes it may share. `models` are names, no aliases; None: all.
    """

    name: str
    namespace: str
    models: frozenset[str] | None = None
    tiers: frozenset[ServiceTier] = frozenset(TIERS)
    default_tier: ServiceTier = "default"
    limits: Limits = Limits()

    def may_use(self, model: str) -> bool:
        """Whether `model` (no alias) exists for this client."""
        return self.models is None or model in self.models


ANYONE = Principal(name="", namespace="")


class StartRefusedError(Exception):
    """The configuration would open the server to people it should not be open to."""


class Keys:
    """The configured API keys. Without any, everybody is let in: only a loopback server may be so."""

    def __init__(self, config: Config) -> None:
        self._keys: list[tuple[str, Principal]] = []
        for key in config.server.api_keys:
            digest = key.sha256 or _sha256(key.key or "")
            self._keys.append((digest, _principal(key, digest, config)))

    def check(self, authorization: str | None, x_api_key: str | None) -> Principal:
        """The principal of an `Authorization: Bearer` or `x-api-key` value. Raises `invalid_api_key`."""
        if not self._keys:
            return ANYONE
        scheme, _, token = (authorization or "").partition(" ")
        presented = token.strip() if scheme.lower() == "bearer" else (x_api_key or "")
        if not presented:
            raise ApiError("invalid_api_key", "This server needs an API key: send `Authorization: Bearer KEY`.")
        digest = _sha256(presented)
        found = None
        for known, principal in self._keys:  # all of them, so the time taken tells nothing
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise ApiError("invalid_api_key", "Incorrect API key provided.")
        return found


def _principal(key: ApiKey, digest: str, config: Config) -> Principal:
    models = None if key.models is None else {config.resolve(name) for name in key.models}
    return Principal(
        name=key.name,
        namespace=_sha256(digest)[:16],  # it goes to the engine, so it is not the key's hash but a hash of that
        # None: a model that a reload brought, which is there after the next start only
        models=None if models is None else frozenset(name for name in models if name is not None),
        tiers=tiers_of(key, config.preview),
        default_tier=key.default_tier,
        limits=Limits(key.max_concurrent, key.requests_per_minute, key.tokens_per_minute),
    )


class Hosts:
    """Which Host headers are served.

    A web page can point its own domain at 127.0.0.1 and then read answers as its own origin (DNS rebinding);
    its requests carry its domain in Host, which is how we tell.
    """

    def __init__(self, server: Server) -> None:
        self._allowed = frozenset(host.lower().rstrip(".") for host in server.allowed_hosts)
        self._checked = is_loopback(server.host) or bool(self._allowed)

    def check(self, header: str | None) -> None:
        """Raises `invalid_host` for a Host header that isn't loopback's or in `server.allowed_hosts`."""
        if not self._checked:
            return
        header = (header or "").strip().lower()
        host = _without_port(header).rstrip(".")
        if header in self._allowed or host in self._allowed or (host and is_loopback(host)):
            return
        raise ApiError("invalid_host", "This Host isn't served here. Add it to server.allowed_hosts if it should be.")


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address (IPv6 with or without brackets), is this machine only."""
    host = host.strip("[]").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(server: Server) -> None:
    """Raises StartRefusedError where a server would listen beyond loopback without any key."""
    if not is_loopback(server.host) and not server.api_keys:
        raise StartRefusedError(
            f"refusing to listen on {server.host} without server.api_keys: anybody who reaches it could use it. "
            "Add a key, or listen on 127.0.0.1"
        )


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0] if header.count(":") == 1 else header


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

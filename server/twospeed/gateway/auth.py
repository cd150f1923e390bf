"""Who may talk to this server: API keys, and the Host header of a loopback server.

Knows the configuration and plain header values; knows nothing of HTTP frameworks or bodies.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass

from ..config import Server
from ..errors import ApiError


@dataclass(frozen=True, slots=True)
class Principal:
    """A client that has been let in. `namespace` bounds what cached prefixes it may share."""

    name: str
    namespace: str


ANYONE = Principal(name="", namespace="")


class StartRefusedError(Exception):
    """The configuration would open the server to people it should not be open to."""


class Keys:
    """The configured API keys. Without any, everybody is let in: only a loopback server may be so."""

    def __init__(self, server: Server) -> None:
        self._keys: list[tuple[str, Principal]] = []
        for key in server.api_keys:
            digest = key.sha256 or _sha256(key.key or "")
            # The namespace goes to the engine, so it is not the key's hash but a hash of that.
            self._keys.append((digest, Principal(name=key.name, namespace=_sha256(digest)[:16])))

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

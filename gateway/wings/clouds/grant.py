"""The authorization of requests for a while, and its sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Unsigned(NamedTuple):
    """The parts of a request that a signature covers, and the service and the region of AWS that it is for."""

    method: str
    url: str
    body: bytes
    service: str
    region: str


@dataclass(frozen=True)
class Grant:
    """Authorizes requests until it expires. Its `repr` shows nothing of it."""

    head: str | Callable[[Unsigned], str] = field(repr=False)
    """The lines of the head that authorize a request, each with its line break; or their function."""
    secrets: tuple[str, ...] = field(repr=False)
    """The parts of it that are secret."""
    expires_at: float | None = None
    """Unix time; None: it does not expire, or it is not known when."""
    ask_every_s: float | None = None
    """How often its source is asked again, where that knows better when to renew; None: by `expires_at`."""


class NoGrant(Exception):
    """There is no new grant. The text is the reason, and holds no secret."""


class GrantSource(Protocol):
    """Obtains the grants of upstreams with the same `auth`."""

    async def obtain(self) -> Grant:
        """A new grant, or the one of before where it is still good. Raises `NoGrant`."""


def bearer(token: str, expires_at: float | None) -> Grant:
    """The grant of a bearer token. Raises `NoGrant` where no header can hold it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise NoGrant("the token is empty, or holds characters that no header may hold")
    return Grant(f"Authorization: Bearer {token}\r\n", (token,), expires_at)

"""Callers that a wing knows beside the keys and tokens of the trunk: people whom an identity provider names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

from aiohttp import web

from gateway.config import Config
from gateway.keys.registry import Registry
from gateway.pipeline import Services
from gateway.records import Key
from gateway.wings import parts

from .admin.permissions import Principal


class Visitor(NamedTuple):
    """The author of a request of the admin API that has no token."""

    principal: Principal
    csrf: str
    """The token that the page sends back with each change."""
    with_member_settings: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
    """Returns the settings of a key that she makes for herself. Raises `Forbidden`."""


class Callers(Protocol):
    """The callers of one worker that a wing knows; to be closed."""

    async def key_of(self, secret: str, services: Services, remote: str | None) -> Key | None:
        """The key of calls with this secret; None: the wing does not know it. Raises `Unauthorized`, `Unavailable`."""

    async def visitor(self, request: web.Request) -> Visitor | None:
        """The author of a request without a token; None: no one can sign in. Raises `GatewayError`."""

    async def close(self) -> None: ...


class WingCallers(NamedTuple):
    """The callers that a wing knows."""

    open: Callable[[Registry], Callers]


class WingSignIn(NamedTuple):
    """Work of a wing when the identity provider names a person."""

    note: Callable[[Registry, Config, str, str | None], Awaitable[None]]
    """Is given her name and role (`key`: she calls with a token); None: she lacks a group. May raise `Forbidden`."""
    groups: Callable[[Registry, Config, str], Awaitable[Collection[str]]] | None = None
    """Returns groups of hers that the identity provider does not name in its token."""


def callers_of_wings(registry: Registry) -> list[Callers]:
    return [each.open(registry) for each in parts(WingCallers, "callers")]


@cache
def sign_in_notes() -> list[WingSignIn]:
    return parts(WingSignIn, "sign_in")

"""Authentication: finds the key of a secret and checks that it may be used. Keys are looked up by the SHA-256 of the
whole secret; secrets are not stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase, translate
from typing import NamedTuple

from gateway.config import Config, FileKey, KeySettings, is_expired, is_pattern
from gateway.errors import Unauthorized
from gateway.records import Key

from .client_ip import read_address

NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY). Ask the operator of this gateway for a key."
)


API_KEY_PATTERN = r"(?<![A-Za-z0-9])sk-[\w.-]{6,}"
"""Matches API keys in other text, which are never shown or stored."""

NEW_ONE = "Ask the operator of this gateway for a new one."
REVOKED = "This API key has been revoked."
REPLACED = "This API key has been replaced by a new one."
PAUSED = "This API key is paused."
LEFT = "This API key belongs to a person whose access has ended."
NO_TEAM = "This API key belongs to a team that no longer exists."


class KnownSecret(NamedTuple):
    """The key of a secret, and limits of the secret."""

    key: Key
    until: float | None = None
    """Unix time at which the secret expires, before its key does; None: it does not."""
    refusal: str | None = None
    """Why the key is refused independently of the time: revoked or paused."""


def digest(secret: str) -> bytes:
    """The hash by which a secret is looked up."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def index(keys: Iterable[FileKey]) -> Mapping[bytes, Key]:
    """The configured keys by the hash of their secrets."""
    return {key.digest: read(key) for key in keys}


def read(key: KeySettings) -> Key:
    """The settings of a key that a call needs, from the configuration file or the store."""
    return Key(
        id=key.id,
        team=key.team,
        models=key.models,
        expires=key.expires,
        ips=key.ips,
        max_parallel=key.max_parallel,
        limits=key.limits,
        quotas=key.quotas,
        is_shadow=key.on_exceeded == "shadow",
        priority=key.priority,
        weight=key.weight,
        max_wait_s=key.max_wait_s,
        owner=key.owner,
        labels=tuple(key.labels.items()),
    )


BEARER = frozenset({"bearer"})
"""The schemes of Authorization that every path takes, in lower case."""


def bearer(authorization: list[str], schemes: Collection[str] = BEARER) -> str:
    """The token in the Authorization headers of a request. Raises `Unauthorized` unless there is exactly one."""
    if not authorization:
        raise Unauthorized(NO_KEY)
    if len(authorization) > 1:
        raise Unauthorized("The request has more than one Authorization header. Send exactly one.")
    scheme, _, token = authorization[0].partition(" ")
    token = token.strip()
    if scheme.lower() not in schemes or not token:
        raise Unauthorized(NO_KEY)
    return token


KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
"""Where Anthropic's, Azure's and Google's clients put the key, in lower case."""


def only_key(authorization: list[str], others: list[str], schemes: Collection[str] = BEARER) -> str:
    """The key of a request, from its Authorization headers with one of these schemes, and from other places.

    Raises `Unauthorized` unless there is exactly one; the same key in two places is one.
    """
    if not others:
        return bearer(authorization, schemes)
    given = {value.strip() for value in others}
    if authorization:
        given.add(bearer(authorization, schemes))
    if len(given) > 1:
        raise Unauthorized(
            "The request has different keys in Authorization, x-api-key, api-key, x-goog-api-key, another header or "
            "its address. Send one key, in one place."
        )
    if not (key := given.pop()):
        raise Unauthorized(NO_KEY)
    return key


def admit(known: KnownSecret | None, secret: str, *, now: float, remote: str | None) -> Key:
    """The key of this secret at the Unix time `now`, for a client at this address. Raises `Unauthorized`.

    `known`: the key with this secret; None: no key has it.
    """
    if known is None:
        raise Unauthorized(f"Incorrect API key provided: {mask(secret)}.{_hint(secret)}", code="invalid_api_key")
    key, until, refusal = known
    if until is not None and now >= until:
        refusal = refusal or REPLACED
    if refusal is not None:
        hint = "Ask its owner or the operator of this gateway to resume it." if refusal == PAUSED else NEW_ONE
        raise Unauthorized(f"{refusal} {hint}", code="invalid_api_key")
    if key.expires is not None and is_expired(key.expires, now):
        raise Unauthorized(
            "This API key has expired. Ask the operator of this gateway for a new one.", code="invalid_api_key"
        )
    if key.ips and not _is_from(key, remote):
        raise Unauthorized("This API key may not be used from your network address.", code="ip_not_authorized")
    return key


def _hint(secret: str) -> str:
    """Advice for a client with the key of a provider, which does not begin as those that the gateway makes."""
    if secret.startswith("sk-gw-") or not secret.startswith(("sk-", "gsk_", "AIza", "xai-", "pplx-")):
        return ""
    return " Keys of this gateway begin with sk-gw-; ask its operator for one: keys of a provider are not used here."


def mask(secret: str) -> str:
    """A few characters of a wrong secret: enough to recognise it, too few to use it."""
    if len(secret) < 24 or not secret.isascii() or not secret.isprintable():
        return "***"
    return f"{secret[:3]}***{secret[-2:]}"


def _is_from(key: Key, remote: str | None) -> bool:
    address = read_address(remote or "")
    return address is not None and any(address in network for network in key.ips)


def may_use(key: Key, model: str) -> bool:
    """Whether one of the key's model patterns matches."""
    return "*" in key.models or any(fnmatchcase(model, pattern) for pattern in key.models)


def offered(key: Key, config: Config) -> list[str]:
    """The configured models and aliases that this key may use, by name. Models that a pattern serves are not listed.

    All patterns are one expression: a thousand of them for each of two thousand models took seconds one by one.
    """
    matches = re.compile("|".join(map(translate, key.models)) or "(?!)").match
    models = [name for name in config.models if not is_pattern(name) and matches(name)]
    aliases = [alias for alias, name in config.aliases.items() if matches(alias) or matches(name)]
    return sorted({*models, *aliases})

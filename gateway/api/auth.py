"""Authentication: finds the key of a secret and checks that it may be used. Keys are looked up by the SHA-256 of the
whole secret; secrets are not stored.

A client's address behind proxies is that of X-Forwarded-For, as far as it is trustworthy. Each proxy appends the
address that it was called from, so the list is only as good as its writers, from the right: what a trusted proxy has
appended is true, and everything left of the first address that is not a trusted proxy's may have been made up by the
client. (The same reading as nginx's real_ip_recursive.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple, get_args

from gateway.config import Config, FileKey, KeySettings, Priority, is_expired, is_pattern
from gateway.config.sections import folded_name
from gateway.errors import InvalidRequest, Unauthorized
from gateway.records import Key

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


MAX_HOPS = 32
"""Proxies behind each other that a client's address is looked for behind: a head has room for thousands."""


def client_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str | None:
    """The client's address, given that of the connection and the values of X-Forwarded-For in their order.

    None: a trusted proxy does not know it (`unknown`), or sent a text that is no address. All trusted: the first.
    """
    address = read_address(peer or "")
    if address is None or not forwarded or not _is_in(address, trusted):
        return peer
    for hop in reversed(",".join(forwarded).rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        address = read_address(_without_port(hop.strip(" \t")))
        if address is None or not _is_in(address, trusted):
            break
    return None if address is None else str(address)


@lru_cache(maxsize=1024)
def read_address(text: str) -> Address | None:
    """The address that this is, IPv4 where it is mapped into IPv6; None where it is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def place_of(remote: str | None) -> str:
    """The unit in which guesses of secrets are counted: an IPv4 address, or the /64 network of an IPv6 address, which
    one customer owns (RFC 6177). Clients with an unknown address share one."""
    address = read_address(remote or "")
    if address is None or isinstance(address, IPv4Address):
        return str(address or "")
    return str(IPv6Network((int(address), 64), strict=False))


def _without_port(hop: str) -> str:
    """Some proxies add one: `192.0.2.1:4711`, `[2001:db8::1]:4711`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, colon, port = hop.partition(":")
    return host if colon and ":" not in port else hop


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY). Ask the operator of this gateway for a key."
)


API_KEY_PATTERN = r"(?<![A-Za-z0-9])sk-[\w.-]{6,}"
"""Matches API keys in other text, which are never shown or stored."""

TRUSTED_S = 1.0
"""A key is looked up again where its call has waited longer, for its body, a hook, or room at an upstream: the key
may be revoked by now, or have other limits."""

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
        id=key.id, team=key.team, models=key.models, expires=key.expires, ips=key.ips,
        max_parallel=key.max_parallel, limits=key.limits, quotas=key.quotas,
        is_shadow=key.on_exceeded == "shadow", priority=key.priority, weight=key.weight, max_wait_s=key.max_wait_s,
        owner=key.owner and folded_name(key.owner), labels=tuple(key.labels.items()),
    )  # fmt: skip


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


def may_use(key: Key, *names: str) -> bool:
    """Whether one of the key's model patterns matches one of the names of a model."""
    return "*" in key.models or any(fnmatchcase(name, pattern) for pattern in key.models for name in names)


def offered(key: Key, config: Config) -> list[str]:
    """The configured models and aliases that this key may use, by name. Models that a pattern serves are not listed.

    All patterns are one expression: a thousand of them for each of two thousand models took seconds one by one.
    """
    matches = re.compile("|".join(map(translate, key.models)) or "(?!)").match
    models = [name for name in config.models if not is_pattern(name) and matches(name)]
    aliases = [alias for alias, name in config.aliases.items() if matches(alias) or matches(name)]
    return sorted({*models, *aliases})


# ---------------------------------------------------------------------------------------------------- classes of calls

FACTORS: Mapping[Priority, int] = {"interactive": 16, "normal": 4, "batch": 1}
"""How much of an upstream each class gets where calls of several wait. A class is a factor on the weight of a key and
no strict precedence: an interactive call goes before batch calls unless its key has had more than 16 times the service
per weight, and batch is never starved."""

PRIORITY_HEADER = "X-Gateway-Priority"


def lowered(own: Priority, asked: str) -> Priority:
    """The class of a call whose client asked for one: the lower one of that and the key's own.

    Raises `InvalidRequest` for a word that is no class.
    """
    for priority in get_args(Priority):
        if asked.strip().lower() == priority:
            return min(own, priority, key=FACTORS.__getitem__)
    raise InvalidRequest(
        f"The header {PRIORITY_HEADER} must be one of {', '.join(get_args(Priority))}. Send one of them, or leave it "
        "out."
    )

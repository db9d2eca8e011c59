"""Checks of a signed token (JWT, RFC 7519 and RFC 8725): signature, issuer, audience and times.

The header's `jku`, `jwk` and `x5u` are never looked at: keys come from the configured issuer alone.

The name and the groups of a person follow from the claims. `settings.py` has the rules of the configuration for them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway import untrusted_json
from gateway.config.sections import BAD_SIGNS, MAX_PERSON

from .key_set import ALGORITHMS, KeySet
from .settings import NotAllowed


def name_of(claims: Mapping[str, Any], claim: str) -> str:
    """The name of a person. Raises `NotAllowed`; an e-mail address that the provider has not verified is no name,
    because anyone can claim it."""
    name = claims.get(claim)
    if not isinstance(name, str) or not name or len(name) > MAX_PERSON or BAD_SIGNS.search(name):
        raise NotAllowed(f"Your identity provider does not name you (claim '{claim}').")
    if claim == "email" and claims.get("email_verified", True) not in (True, "true"):
        raise NotAllowed("Your e-mail address is not verified at your identity provider.")
    return name


def groups_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """The groups of a person: a list of names, or one name."""
    given = claims.get(claim)
    return frozenset(each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str))


MAX_CHARACTERS = 16_384
"""Maximum length of a token in characters. Tokens of providers with very many groups have about 8,000."""


class TokenRefused(Exception):
    """Why a token is not accepted, in words that may be shown: they have nothing of the token."""


class TokenExpired(TokenRefused):
    """A newer token of the same person would be accepted."""


class ExpectedToken(NamedTuple):
    """The required claims of a token."""

    issuer: str
    audiences: tuple[str, ...]
    skew_s: float
    nonce: str | None = None
    client_id: str | None = None
    """The party that an ID token must be authorized for (`azp`) if it has several audiences."""


def read_header(token: str) -> dict[str, Any]:
    """The header of a token in compact form. Raises `TokenRefused`."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > MAX_CHARACTERS:
        raise TokenRefused("it is no signed token, or too long")
    try:
        written = base64.b64decode(parts[0] + "=" * (-len(parts[0]) % 4), altchars=b"-_", validate=True)
        header = untrusted_json.parse_object(written)
    except ValueError:
        raise TokenRefused("its header cannot be read") from None
    if not isinstance(header.get("alg"), str) or header["alg"] not in ALGORITHMS:
        raise TokenRefused("its algorithm is not accepted")
    if "crit" in header:
        raise TokenRefused("its header has extensions that are not known")
    return header


async def check_token(token: str, keys: KeySet, expected: ExpectedToken, now: float) -> dict[str, Any]:
    """The claims of a token that is good at the Unix time `now`. Raises `TokenRefused`, `ProviderUnavailable`."""
    header = read_header(token)
    key = await keys.find(header)
    if key is None:
        raise TokenRefused("it is signed with an unknown key")
    from joserfc import jws
    from joserfc.errors import JoseError

    algorithm = str(header["alg"])
    try:
        registry = jws.JWSRegistry(algorithms=[algorithm])
        claims = untrusted_json.parse(jws.deserialize_compact(token, key, registry=registry).payload)
    except (JoseError, ValueError, TypeError):
        raise TokenRefused("its signature is wrong") from None
    if not isinstance(claims, dict):
        raise TokenRefused("its claims cannot be read")
    check_claims(claims, expected, now)
    return claims


def check_claims(claims: Mapping[str, Any], expected: ExpectedToken, now: float) -> None:
    """Raises `TokenRefused` if a claim is missing, expired or not the expected one."""
    if claims.get("iss") != expected.issuer:
        raise TokenRefused("it is of another issuer")
    given = claims.get("aud")
    audiences = given if isinstance(given, list) else [given]
    if not set(expected.audiences) & {each for each in audiences if isinstance(each, str)}:
        raise TokenRefused("it is for another audience")
    if expected.client_id is not None:
        party = claims.get("azp")
        if party not in (expected.client_id, None) or (party is None and len(audiences) > 1):
            raise TokenRefused("it is for another party")
    expires, begins, issued = (_moment(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise TokenRefused("it has no expiry")
    if now >= expires + expected.skew_s:
        raise TokenExpired("it has expired")
    if any(moment is not None and moment > now + expected.skew_s for moment in (begins, issued)):
        raise TokenRefused("it is not valid yet")
    if expected.nonce is not None and claims.get("nonce") != expected.nonce:
        raise TokenRefused("it answers another sign-in")
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise TokenRefused("it does not name a person (claim 'sub')")


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TokenRefused(f"its '{name}' is no time")
    return float(value)

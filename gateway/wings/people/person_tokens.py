"""Calls with signed tokens (JWT) of an identity provider in place of API keys.

1. A token is checked once and its verdict kept for `KEPT_S` at most, and never beyond its expiry.
2. The person of a token has a record, which is a key without a secret: its settings, quotas, pause and revocation hold
   for her calls like those of any key, within the same time. The record is made at her first call, from
   `defaults.keys`.
3. The team of the token becomes the team of the record; a token without one changes no team, so that a person
   cannot leave a team whose quota is spent. Models of the token narrow those of the record, for this token.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gateway.api import auth
from gateway.api.auth import KnownSecret
from gateway.config.sections import folded_name
from gateway.config.sections.values import is_glob
from gateway.errors import Conflict, Forbidden, InvalidRequest, Unauthorized, Unavailable
from gateway.keys.cache import KeyCache
from gateway.keys.token_bucket import TokenBucket, TokenBuckets
from gateway.pipeline import Services
from gateway.quota.issued import person_digest, person_id
from gateway.records import Key
from gateway.store import StoreUnavailable
from gateway.web.callers import sign_in_notes

from .id_tokens import ExpectedToken, TokenExpired, TokenRefused, check_token, groups_of, name_of
from .key_set import KeySet, ProviderUnavailable
from .provider import HttpFetcher
from .records import PeopleRecords
from .settings import JwtSettings, NotAllowed

log = logging.getLogger("gateway")

KEPT_S = 300.0
MAX_KEPT = 10_000
RECORDS_PER_S, RECORDS_AT_ONCE = 5, 100
"""Records that this worker makes."""
MOVES_PER_S, MOVES_AT_ONCE = 0.1, 5
"""Moves of one person to another team at this worker: her tokens may name two teams by turns."""


def is_signed_token(secret: str) -> bool:
    """Whether a secret has the form of a signed token: three parts, of which the first is JSON in base64url."""
    return secret.startswith("eyJ") and secret.count(".") == 2


class _Checked(NamedTuple):
    """The claims of a valid token."""

    name: str
    team: str | None
    models: frozenset[str] | None
    """None: not in the token."""
    until: float
    """Unix time until which the verdict holds."""


class _Issuer(NamedTuple):
    """The keys of the configuration that is in force."""

    settings: JwtSettings
    http: HttpFetcher
    keys: KeySet


class PersonTokens:
    """Finds the key of a token. Private to a worker; to be closed."""

    def __init__(self, registry: PeopleRecords) -> None:
        self._registry = registry
        self._issuer: _Issuer | None = None
        self._checked: OrderedDict[bytes, _Checked] = OrderedDict()
        self._records = TokenBucket(RECORDS_PER_S, RECORDS_AT_ONCE)
        self._moves = TokenBuckets(MOVES_PER_S, MOVES_AT_ONCE)
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<PersonTokens {len(self._checked)} checked>"

    async def close(self) -> None:
        if self._issuer is not None:
            await self._issuer.http.close()
            self._issuer = None

    async def caller(self, token: str, settings: JwtSettings, parts: Services, remote: str | None) -> Key:
        """The key that calls with this token are made with. Raises `Unauthorized`, `Unavailable`."""
        key_cache = parts.key_cache
        person = await self._check(token, settings, parts)
        if person.team is not None and person.team not in key_cache.teams:
            raise _refused("its team does not exist here")
        known = await _known(settings.issuer, person.name, key_cache)
        if known is None or (person.team is not None and known.key.team != person.team):
            await self._record(settings.issuer, person, parts)
            known = await _known(settings.issuer, person.name, key_cache)
            if known is None:
                raise _refused("there is another key with the id of your record")
        key = auth.admit(known, "", now=parts.clock.now(), remote=remote)
        if person.team is not None and key.team != person.team:
            raise Unavailable(
                "Your record is being moved to another team. Please try again.", code="too_many_unknown_keys"
            )
        return key if person.models is None else replace(key, models=_narrowed(key, person.models))

    async def _check(self, token: str, settings: JwtSettings, parts: Services) -> _Checked:
        issuer, now, digest = await self._current(settings), parts.clock.now(), auth.digest(token)
        known = self._checked.get(digest)
        if known is not None and now < known.until:
            return known
        expected = ExpectedToken(settings.issuer, settings.audiences, settings.clock_skew_s)
        try:
            claims = await check_token(token, issuer.keys, expected, now)
            person = _read(claims, settings, now)
        except (TokenRefused, NotAllowed) as error:
            raise _refused(str(error).rstrip("."), may_be_renewed=isinstance(error, TokenExpired)) from None
        except ProviderUnavailable as error:
            log.warning("tokens cannot be checked: %s", error)
            raise Unavailable("Tokens cannot be checked right now.", code="identity_provider_unavailable") from None
        for wing in sign_in_notes():
            with suppress(Conflict, Forbidden, StoreUnavailable):  # her record is refused, if she is
                await wing.note(self._registry, parts.config, person.name, "key")
        self._checked[digest] = person
        if len(self._checked) > MAX_KEPT:
            self._checked.popitem(last=False)
        return person

    async def _current(self, settings: JwtSettings) -> _Issuer:
        if self._issuer is None or self._issuer.settings != settings:
            await self.close()
            self._checked.clear()
            http = HttpFetcher(settings.ca_file)
            self._issuer = _Issuer(settings, http, KeySet(lambda: http.get(settings.jwks_url)))
        return self._issuer

    async def _record(self, issuer: str, person: _Checked, parts: Services) -> None:
        """Make the record of a person, or move it to the team that her token names."""
        async with self._lock:
            try:
                ids = [person_id(each) for each in _spellings(person.name)]
                present = [each for each in ids if await self._registry.key_facts(each) is not None]
                if not present:
                    _spend(self._records, "Too many people are new here. Please try again.")
                    await self._registry.create_person(issuer, person.name, person.team)
                elif person.team is not None:
                    name = present[0]
                    _spend(self._moves.of(name), "Your tokens name several teams. Please try again later.")
                    await self._registry.update_key(name, {"team": person.team}, f"person {person.name}, token")
            except Conflict:
                pass  # another worker was faster; a revoked record is refused by its key
            except InvalidRequest as error:
                log.error("no record can be made for a person: %s", error.message)
                raise Unavailable("Your record cannot be made. Inform the operator.", code="no_record") from None
            except StoreUnavailable:
                raise Unavailable(
                    "The gateway cannot reach its store of keys right now.", code=StoreUnavailable.code
                ) from None
            await parts.key_cache.hear()


def _spellings(name: str) -> tuple[str, ...]:
    """The names under which a person may have her record: as gateways before 0.3 wrote it, which made one for each
    spelling, and as names are compared."""
    return tuple(dict.fromkeys((name, folded_name(name))))


async def _known(issuer: str, name: str, key_cache: KeyCache) -> KnownSecret | None:
    """The record of a person; None: there is none. Raises `Unavailable`.

    A record that is in the cache needs no store, though it may have another spelling than the token.
    """
    refusal: Unavailable | None = None
    for each in _spellings(name):
        digest = person_digest(issuer, each)
        try:
            if (found := key_cache.known.get(digest) or await key_cache.look_up_digest(digest)) is not None:
                return found
        except Unavailable as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return None


def _spend(allowance: TokenBucket, why_not: str) -> None:
    """Takes one unit of the allowance. Raises `Unavailable` if there is none left."""
    if allowance.is_spent(time.monotonic()):
        raise Unavailable(why_not, code="too_many_unknown_keys")
    allowance.spend(1)


def _read(claims: Mapping[str, Any], settings: JwtSettings, now: float) -> _Checked:
    """Returns the checked claims. Raises `NotAllowed` or `TokenRefused`."""
    name = name_of(claims, settings.person_claim)
    team = None if settings.team_claim is None else claims.get(settings.team_claim)
    if team is not None and (not isinstance(team, str) or not team):
        raise TokenRefused("its team is no name")
    models: frozenset[str] | None = None
    if settings.models_claim is not None and settings.models_claim in claims:
        models = groups_of(claims, settings.models_claim)
    return _Checked(name, team, models, min(claims["exp"] + settings.clock_skew_s, now + KEPT_S))


def _narrowed(key: Key, models: frozenset[str]) -> tuple[str, ...]:
    """The models of a token that the record allows. A token has names of models, no patterns."""
    plain = [name for name in sorted(models) if not is_glob(name)]
    return tuple(name for name in plain if any(fnmatchcase(name, pattern) for pattern in key.models))


def _refused(why: str, *, may_be_renewed: bool = False) -> Unauthorized:
    message = f"Your token is not accepted: {why}."
    return Unauthorized(message, code="invalid_api_key", may_be_renewed=may_be_renewed)

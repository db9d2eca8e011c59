"""Sign-in of people by OpenID Connect: authorization code with PKCE, and a session in a signed cookie.

1. `GET /admin/sign-in` keeps state, nonce and the PKCE verifier in a signed cookie of ten minutes, and sends the
   browser to the provider. `GET /admin/sign-in/callback` needs that cookie, so a sign-in that another browser began
   cannot be finished here; its state is claimed in the store, so it is finished once, at whichever worker or gateway.
2. A browser is always sent back to the dashboard: no parameter names another address.
3. A session is read by every worker of every gateway with the same `oidc.session_key`. `POST /admin/sign-out` claims
   its id in the store for the rest of its life; a session whose id is claimed is over everywhere. While the
   store is unavailable, sessions are refused with 503; tokens work on.
4. A code costs a question to the provider, so one address may present `CODES_AT_ONCE`, and `CODES_PER_S` then: else
   anyone could fill the few connections to the provider, and no person could sign in.
5. A change by session needs the header `X-CSRF-Token`, which `GET /admin/api/session` returns.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
import uuid
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

from aiohttp import hdrs, web

from gateway.api import auth
from gateway.errors import Conflict, Forbidden, GatewayError, NotFound, Unauthorized, Unavailable
from gateway.keys.token_bucket import TokenBuckets
from gateway.pipeline import Services
from gateway.store import StoreUnavailable
from gateway.web.admin.common import AWAY_WHILE_READING
from gateway.web.admin.permissions import Role
from gateway.web.callers import Visitor, sign_in_notes
from gateway.web.middleware import CONTEXT, Handler
from gateway.web.responses import Whole, json_response
from gateway.web.static_page import HEADERS

from . import sessions
from .id_tokens import TokenRefused, groups_of, name_of
from .key_set import ProviderUnavailable
from .provider import OidcProvider
from .records import PeopleRecords
from .sessions import Session
from .settings import NotAllowed, OidcSettings, settings_of

log = logging.getLogger("gateway")

UNDER_WAY_S = 600.0
"""How long a person may take at the provider."""

CODES_PER_S, CODES_AT_ONCE = 1.0, 30
"""Codes that this worker takes from one address, which may be that of an office."""
CSRF = "X-CSRF-Token"
READING = (hdrs.METH_GET, hdrs.METH_HEAD)
FAILED = Template((Path(__file__).parent / "sign_in_failed.html").read_text(encoding="utf-8"))
NO_STORE = ("Cache-Control", "no-store")


class SignInRequired(Unauthorized):
    """401 that signing in can mend."""

    code = "sign_in_required"


class _Provider(NamedTuple):
    """The provider of the configuration that is in force."""

    settings: OidcSettings
    client: OidcProvider


class SignIn:
    """Sign-in, sign-out and the check of sessions. Private to a worker; to be closed."""

    def __init__(self, registry: PeopleRecords) -> None:
        self._provider: _Provider | None = None
        self._registry = registry
        self._codes = TokenBuckets(CODES_PER_S, CODES_AT_ONCE)
        """The remaining codes of each address."""

    async def close(self) -> None:
        if self._provider is not None:
            await self._provider.client.close()
            self._provider = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/sign-in", _for_people(self.begin, "../")),
            web.get("/admin/sign-in/callback", _for_people(self.finish, "../../")),
            web.post("/admin/sign-out", self.sign_out),
        ]

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Redirects the browser to the identity provider."""
        settings = _settings(request)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        try:
            address = await (await self._client(settings)).sign_in_url(state, nonce, verifier)
        except ProviderUnavailable as error:
            raise _away(error) from None
        values = {"state": state, "nonce": nonce, "verifier": verifier, "exp": _now(request) + UNDER_WAY_S}
        cookie = sessions.sign("sign-in", values, _key(settings))
        headers = [(hdrs.LOCATION, address), NO_STORE, _cookie(settings, "sign-in", cookie, UNDER_WAY_S)]
        return Whole(302, headers, b"")

    async def finish(self, request: web.Request) -> web.StreamResponse:
        """Back from the provider: the session begins."""
        settings, now = _settings(request), _now(request)
        query = request.query
        state = _value_of(request, _name(settings, "sign-in"))
        begun = sessions.read("sign-in", state, _key(settings), now)
        if begun is None or not secrets.compare_digest(query.get("state", "").encode(), begun["state"].encode()):
            raise _failed("it was not begun in this browser, or too long ago")
        try:
            client = await self._client(settings)
            await client.check_answer(query)
            if "code" not in query:
                raise _failed("your identity provider refused it")
            self._spend_code(request)
            if not await _claim(_services(request), f"sign-in:{begun['state']}", UNDER_WAY_S):
                raise _failed("it was finished before")
            claims = await client.claims_of(query["code"], begun["verifier"], begun["nonce"], now)
            name, config = name_of(claims, settings.person_claim), _services(request).config
            groups = [await wing.groups(self._registry, config, name) for wing in sign_in_notes() if wing.groups]
            given = settings.find_role(name, groups_of(claims, settings.groups_claim).union(*groups))
        except ProviderUnavailable as error:
            raise _away(error) from None
        except TokenRefused as error:
            log.warning("sign-in refused: %s", error)
            raise _failed(str(error)) from None
        except NotAllowed as error:
            if error.lacking is not None:
                await self._note(request, error.lacking, None)
            raise Forbidden(str(error), code="sign_in_refused") from None
        session = Session(Session.new_id(now), name, given.role, given.team, settings.rules, now + settings.session_s)
        await self._note(request, name, given.role)
        log.info("%s signed in as %s", session.principal.name, given.role)
        cookie = _cookie(settings, "session", session.encode(_key(settings)), settings.session_s)
        headers = [(hdrs.LOCATION, "../../dashboard"), NO_STORE, cookie, _cookie(settings, "sign-in", "", 0)]
        return Whole(302, headers, b"")

    def _spend_code(self, request: web.Request) -> None:
        """Count a code. Raises `Unauthorized` where too many came from this address."""
        left = self._codes.of(auth.place_of(request[CONTEXT].remote))
        if left.is_spent(time.monotonic()):
            raise _failed("too many were tried from your address; wait a minute")
        left.spend(1)

    async def _note(self, request: web.Request, name: str, role: Role | None) -> None:
        with contextlib.suppress(Conflict, StoreUnavailable):  # she signs in again, or another sign-in notes it
            if role is not None:
                await self._registry.note_role(name, role)
        for wing in sign_in_notes():
            with contextlib.suppress(Conflict, StoreUnavailable):
                await wing.note(self._registry, _services(request).config, name, role)

    async def sign_out(self, request: web.Request) -> web.StreamResponse:
        """The session is over, everywhere; the answer has the address to sign out of the provider, too."""
        settings = _settings(request)
        session = await self.session_of(request)
        if session is None:
            raise SignInRequired("You are not signed in.")
        await _claim(_services(request), _revoked(session), max(1.0, session.exp - _now(request)))
        try:
            address = await (await self._client(settings)).sign_out_url()
        except ProviderUnavailable:
            address = None
        body = json.dumps({"object": "sign_out", "provider_url": address}).encode()
        return json_response(body, headers=[NO_STORE, _cookie(settings, "session", "", 0)])

    async def visitor(self, request: web.Request) -> Visitor | None:
        """The person whose session a request has; None: no one can sign in. Raises as `session_of`, and `Unauthorized`
        for a request without a session, or with one that was ended."""
        settings = settings_of(_services(request).config, OidcSettings)
        if settings is None:
            return None
        if (session := await self.session_of(request)) is None:
            raise SignInRequired("Sign in, or present a token.")
        try:
            if await self._registry.are_sessions_ended(session.person, session.begun):
                raise SignInRequired("Your session was ended by an operator. Sign in again.")
        except StoreUnavailable:
            raise Unavailable(AWAY_WHILE_READING, code=StoreUnavailable.code) from None
        new_key = partial(self._registry.with_member_settings, session.principal)
        return Visitor(session.principal, session.csrf_token(_key(settings)), new_key)

    async def session_of(self, request: web.Request) -> Session | None:
        """The session of a request; None: it has none. Raises `Unauthorized` for one that is over, `Forbidden` for a
        change without the CSRF token, `Unavailable` while the store is."""
        settings = settings_of(_services(request).config, OidcSettings)
        cookie = _value_of(request, _name(settings, "session")) if settings is not None else None
        if settings is None or not cookie:
            return None
        key = _key(settings)
        session = Session.decode(cookie, key, settings.rules, _now(request))
        try:
            if session is None or not await _is_free(_services(request), _revoked(session)):
                raise SignInRequired("Your session is over. Sign in again.")
        except StoreUnavailable:
            raise Unavailable("The store does not answer.", code=StoreUnavailable.code) from None
        if request.method not in READING:
            token = request.headers.get(CSRF, "")
            if not secrets.compare_digest(token.encode("utf-8", "surrogateescape"), session.csrf_token(key).encode()):
                raise Forbidden(
                    f"A change by session needs the header {CSRF} with the value 'csrf' of GET /admin/api/session.",
                    code="csrf_token_missing",
                )
        return session

    async def _client(self, settings: OidcSettings) -> OidcProvider:
        if self._provider is None or self._provider.settings != settings:
            await self.close()
            self._provider = _Provider(settings, OidcProvider(settings))
        return self._provider.client


def _value_of(request: web.Request, name: str) -> str:
    """A cookie's value. With the length of the header the time of aiohttp's parser grows by the square."""
    pairs = [part.strip().partition("=") for part in request.headers.get(hdrs.COOKIE, "").split(";")]
    return {key: value for key, _, value in pairs}.get(name, "")


def _for_people(handler: Handler, up: str) -> Handler:
    """The handler for browsers, which get an error as a page with the ways back. `up` leads to the gateway's root."""

    async def enter(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except GatewayError as error:
            if "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
                raise
            facts = {"why": str(error), "id": request[CONTEXT].id}
            links = {"up": f"{up}dashboard/", "page": f"{up}dashboard", "begin": f"{up}admin/sign-in"}
            body = FAILED.substitute({name: escape(text) for name, text in {**facts, **links}.items()})
            headers = [("Content-Type", "text/html; charset=utf-8"), NO_STORE, *HEADERS]
            return Whole(error.status, headers, body.encode())

    return enter


def _settings(request: web.Request) -> OidcSettings:
    settings = settings_of(_services(request).config, OidcSettings)
    if settings is None:
        raise NotFound("This gateway has no sign-in: oidc is not set.")
    return settings


def _services(request: web.Request) -> Services:
    return request[CONTEXT].parts


def _now(request: web.Request) -> float:
    return _services(request).clock.now()


def _key(settings: OidcSettings) -> bytes:
    return settings.session_key.get_secret_value().encode()


def _is_secure(settings: OidcSettings) -> bool:
    return settings.redirect_url.startswith("https:")


def _name(settings: OidcSettings, what: str) -> str:
    """Returns the name of a cookie. With the prefix `__Host-`, browsers keep the cookie for this host alone, and only
    if it came over TLS (RFC 6265bis, 4.1.3)."""
    return f"{'__Host-' if _is_secure(settings) else ''}gateway-{what}"


def _cookie(settings: OidcSettings, what: str, value: str, age_s: float) -> tuple[str, str]:
    secure = "; Secure" if _is_secure(settings) else ""
    attributes = f"Path=/; Max-Age={int(age_s)}; HttpOnly; SameSite=Lax{secure}"
    return hdrs.SET_COOKIE, f"{_name(settings, what)}={value}; {attributes}"


def _revoked(session: Session) -> str:
    return f"session-over:{session.id}"


async def _claim(parts: Services, name: str, seconds: float) -> bool:
    """Claim a name; whether it was free. Raises `Unavailable`."""
    try:
        return (await parts.accounting.ledger.claim(uuid.uuid4().hex, {name: seconds}))[name] == 0
    except StoreUnavailable:
        raise Unavailable("The store does not answer.", code=StoreUnavailable.code) from None


async def _is_free(parts: Services, name: str) -> bool:
    """Whether a name is free. Raises `StoreUnavailable`."""
    return (await parts.accounting.ledger.claim(uuid.uuid4().hex, {name: 0}))[name] == 0


def _failed(why: str) -> Unauthorized:
    return Unauthorized(f"The sign-in failed: {why}. Begin again at the dashboard.", code="sign_in_failed")


def _away(error: ProviderUnavailable) -> Unavailable:
    log.warning("the identity provider cannot be used: %s", error)
    return Unavailable("The identity provider cannot be used right now.", code="identity_provider_unavailable")

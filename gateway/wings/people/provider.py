"""An OpenID Connect provider, as a client sees it: discovery, the address to sign in at, the exchange of a code.

Sources: OpenID Connect Core 1.0 and Discovery 1.0, RFC 6749 (OAuth 2.0), RFC 7636 (PKCE), RFC 9207 (`iss` in answers),
RP-Initiated Logout 1.0. Answers are bounded in size and time; redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp

from gateway import __version__, untrusted_json
from gateway.config.sections import is_safe_url
from gateway.tasks import to_its_end

from .id_tokens import ExpectedToken, TokenRefused, check_token
from .key_set import KeySet, ProviderUnavailable
from .settings import OidcSettings

WITHIN_S = 10.0
MAX_BYTES = 262_144
DISCOVERED_S = 3600.0


class HttpFetcher:
    """A client for small JSON documents. Its connections are made when there is something to fetch; to be closed."""

    def __init__(self, ca_file: str | None = None) -> None:
        self._ca_file = ca_file
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, method: str, url: str, **more: Any) -> tuple[int, bytes]:
        """Status and body. Raises `ProviderUnavailable`."""
        if self._session is None:
            context = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, limit=4),
                headers={"Accept": "application/json", "User-Agent": f"completions-gateway/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        try:
            async with (
                asyncio.timeout(WITHIN_S),
                self._session.request(method, url, allow_redirects=False, **more) as answer,
            ):
                body = await answer.content.read(MAX_BYTES + 1)
                while len(body) <= MAX_BYTES and (piece := await answer.content.read(MAX_BYTES + 1)):
                    body += piece
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ProviderUnavailable(f"{urlsplit(url).netloc} does not answer ({type(error).__name__})") from None
        if len(body) > MAX_BYTES:
            raise ProviderUnavailable(f"{urlsplit(url).netloc} answers with more than {MAX_BYTES} bytes")
        return answer.status, body

    async def get(self, url: str) -> bytes:
        """The body of a good answer. Raises `ProviderUnavailable`."""
        status, body = await self.fetch("GET", url)
        if status != 200:
            raise ProviderUnavailable(f"{urlsplit(url).netloc} answers with status {status}")
        return body

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class OidcProvider:
    """The provider of one configuration. Private to a worker; to be closed."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self._http = HttpFetcher(settings.ca_file)
        self._known: dict[str, Any] = {}
        self._read_at = self._asked_at = -DISCOVERED_S
        self._turn = asyncio.Lock()
        self._keys = KeySet(self._fetch_keys)

    async def close(self) -> None:
        await self._http.close()

    async def discover(self) -> Mapping[str, Any]:
        """The provider's own description. All that wait for it go by one answer: anyone may begin a sign-in, and there
        are few connections. Raises `ProviderUnavailable`."""
        if (came := time.monotonic()) - self._read_at > DISCOVERED_S:
            async with self._turn:
                if self._asked_at <= came:
                    await to_its_end(self._describe(), "read-description-of-the-provider")
            if came - self._read_at > DISCOVERED_S:
                raise ProviderUnavailable("its description could not be read just now")
        return self._known

    async def _describe(self) -> None:
        issuer = self.settings.issuer
        try:
            body = await self._http.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            self._known, self._read_at = read_discovery(body, issuer), time.monotonic()
        finally:
            self._asked_at = time.monotonic()

    async def _fetch_keys(self) -> bytes:
        return await self._http.get((await self.discover())["jwks_uri"])

    async def sign_in_url(self, state: str, nonce: str, verifier: str) -> str:
        """Where a person signs in. Raises `ProviderUnavailable`."""
        address = (await self.discover())["authorization_endpoint"]
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        query = urlencode({
            "response_type": "code", "client_id": self.settings.client_id, "redirect_uri": self.settings.redirect_url,
            "scope": " ".join(self.settings.scopes), "state": state, "nonce": nonce, "code_challenge": challenge,
            "code_challenge_method": "S256",
        })  # fmt: skip
        return f"{address}{'&' if urlsplit(address).query else '?'}{query}"

    async def check_answer(self, query: Mapping[str, str]) -> None:
        """Whether an answer is of this provider (RFC 9207). Raises `TokenRefused`, `ProviderUnavailable`."""
        given = query.get("iss")
        is_promised = (await self.discover()).get("authorization_response_iss_parameter_supported") is True
        if (given is None and is_promised) or (given is not None and given != self.settings.issuer):
            raise TokenRefused("the answer is of another issuer")

    async def claims_of(self, code: str, verifier: str, nonce: str, now: float) -> dict[str, Any]:
        """The provider's claims about the person behind a code, which are valid at this Unix time. Raises
        `TokenRefused`, `ProviderUnavailable`."""
        known, settings = await self.discover(), self.settings
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": settings.redirect_url,
            "code_verifier": verifier, "client_id": settings.client_id,
        }  # fmt: skip
        headers: dict[str, str] = {}
        if settings.client_secret is not None:
            secret = settings.client_secret.get_secret_value()
            methods = known.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            if not isinstance(methods, list) or "client_secret_basic" in methods:
                pair = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = secret
        status, body = await self._http.fetch("POST", known["token_endpoint"], data=form, headers=headers)
        answer = _json(body)
        if status != 200:
            if status in (400, 401) and answer.get("error") == "invalid_grant":
                raise TokenRefused("the code was used before, or is too old")
            raise ProviderUnavailable(f"the token endpoint answers with status {status}")
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ProviderUnavailable("the token endpoint gives no ID token")
        expected = ExpectedToken(
            settings.issuer, (settings.client_id,), settings.clock_skew_s, nonce, client_id=settings.client_id
        )
        claims = await check_token(token, self._keys, expected, now)
        return await self._completed(claims, answer.get("access_token"))

    async def _completed(self, claims: dict[str, Any], access_token: Any) -> dict[str, Any]:
        """The claims, with those that the provider keeps for its userinfo endpoint."""
        wanted = {self.settings.person_claim, self.settings.groups_claim}
        address = (await self.discover()).get("userinfo_endpoint")
        if wanted <= claims.keys() or not isinstance(access_token, str) or not isinstance(address, str):
            return claims
        status, body = await self._http.fetch("GET", address, headers={"Authorization": f"Bearer {access_token}"})
        more = _json(body)
        if status != 200 or more.get("sub") != claims["sub"]:
            raise TokenRefused("the provider describes another person")
        return {**more, **claims}

    async def sign_out_url(self) -> str | None:
        """Where a person signs out of the provider, too; None: it has no such place. Raises `ProviderUnavailable`."""
        address = (await self.discover()).get("end_session_endpoint")
        if not isinstance(address, str):
            return None
        return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode({'client_id': self.settings.client_id})}"


def read_discovery(body: bytes, issuer: str) -> dict[str, Any]:
    """The description of this issuer, and of no other. Raises `ProviderUnavailable`."""
    known = _json(body)
    if known.get("issuer") != issuer:
        raise ProviderUnavailable("its description names another issuer than oidc.issuer")
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint", "end_session_endpoint"):
        address = known.get(name)
        if address is None and name in ("userinfo_endpoint", "end_session_endpoint"):
            continue
        if not isinstance(address, str) or not is_safe_url(address):
            raise ProviderUnavailable(f"its description has no safe '{name}'")
    return known


def _json(body: bytes) -> dict[str, Any]:
    try:
        return untrusted_json.parse_object(body)
    except ValueError:
        raise ProviderUnavailable("its answer is no JSON object") from None

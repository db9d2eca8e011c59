"""An identity provider for tests of attacks: it signs any token that a test asks for.

Sign-in with a real provider is tested in tests/browser/slow/test_sign_in.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from joserfc import jwk, jws

CLIENT = "gateway"


def rsa(kid: str) -> jwk.RSAKey:
    return jwk.RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


KEY, OTHER_KEY = rsa("one"), rsa("two")
"""Made once, because it takes a while."""


def sign(claims: dict[str, Any], key: Any = KEY, **header: Any) -> str:
    head = {"alg": "RS256", "kid": "one", **header}
    registry = jws.JWSRegistry(algorithms=[head["alg"]], strict_check_header=False)
    return jws.serialize_compact(head, json.dumps(claims).encode(), key, registry=registry)


def unsigned(claims: dict[str, Any], header: dict[str, Any], signature: str = "") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in (header, claims)]
    return ".".join([*parts, signature])


class IdentityProvider:
    """What it says can be changed at any time."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [KEY.as_dict(private=False)]
        self.discovery: dict[str, Any] = {}
        """Changes of its description."""
        self.claims: dict[str, Any] = {"sub": "sub-1", "email": "alice@example.org", "email_verified": True}
        self.userinfo: dict[str, Any] | None = None
        self.make_token: Any = sign
        self.codes: dict[str, dict[str, str]] = {}
        self.hits: list[str] = []
        self.is_away = False
        app = web.Application(middlewares=[self._count])
        app.add_routes([
            web.get("/.well-known/openid-configuration", self._describe), web.get("/keys", self._keys),
            web.post("/token", self._token), web.get("/me", self._me),
        ])  # fmt: skip
        self.server = TestServer(app)

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def good_claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": self.issuer, "aud": CLIENT, "exp": now + 300, "iat": now, **self.claims, **more}

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "issuer": self.issuer, "client_id": CLIENT, "client_secret": "client-secret",
            "redirect_url": "http://127.0.0.1/admin/sign-in/callback", "session_key": "s" * 32, **more,
        }  # fmt: skip

    def approve(self, address: str, code: str = "code-1") -> str:
        """A person signs in at the address that the gateway sent her to; returns the query that leads back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["code_challenge_method"] == "S256"
        self.codes[code] = asked
        return f"code={code}&state={asked['state']}"

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> Any:
        self.hits.append(request.path)
        return web.Response(status=503) if self.is_away else await handler(request)

    async def _describe(self, _: web.Request) -> web.Response:
        endpoints = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/keys",
                     "userinfo_endpoint": "/me", "end_session_endpoint": "/end"}  # fmt: skip
        known = {"issuer": self.issuer, **{name: self.issuer + path for name, path in endpoints.items()}}
        return web.json_response(known | self.discovery)

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": self.keys})

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = self.codes.pop(str(form["code"]), None)
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        token = self.make_token(self.good_claims(nonce=asked["nonce"]))
        return web.json_response({"id_token": token, "access_token": "access", "token_type": "Bearer"})

    async def _me(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer access"
        return web.json_response(self.userinfo if self.userinfo is not None else {"sub": self.claims["sub"]})


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    provider = IdentityProvider()
    await provider.server.start_server()
    yield provider
    await provider.server.close()


class Browser:
    """Keeps cookies like a browser; a test can read them out, as an attacker would."""

    def __init__(self, client: TestClient[Any, Any]) -> None:
        self.client = client
        self.cookies: dict[str, str] = {}

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any, Any]:
        """Status, headers, and the JSON of the answer."""
        self.client.session.cookie_jar.clear()
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {**({"Cookie": cookie} if cookie else {}), **more.pop("headers", {})}
        async with self.client.request(method, path, headers=headers, allow_redirects=False, **more) as answer:
            for line in answer.headers.getall("Set-Cookie", []):
                (name, morsel), *_ = SimpleCookie(line).items()
                assert morsel["httponly"]
                assert (morsel["samesite"], morsel["path"]) == ("Lax", "/")
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]
            text = await answer.text()
            return answer.status, answer.headers, json.loads(text) if text else None

    async def begin(self) -> str:
        status, headers, _ = await self.ask("GET", "/admin/sign-in")
        assert status == 302
        return str(headers["Location"])

    async def sign_in(self, provider: IdentityProvider) -> tuple[int, Any]:
        status, headers, received = await self.ask(
            "GET", f"/admin/sign-in/callback?{provider.approve(await self.begin())}"
        )
        if status == 302:
            assert headers["Location"] == "../../dashboard"
        return status, received

    async def session(self) -> Any:
        status, _, received = await self.ask("GET", "/admin/api/session")
        return received if status == 200 else (status, received["error"]["code"])

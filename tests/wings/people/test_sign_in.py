"""Sign-in of people: the attacks of docs/security.md, through a whole gateway and a provider with false answers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp.test_utils import TestClient
from joserfc import jwk

from gateway.store import StoreUnavailable
from gateway.wings.people import key_set, signing_in
from gateway.wings.people.sessions import Session
from tests.browser.stores import filled
from tests.fakes.identity_provider import KEY, OTHER_KEY, Browser, IdentityProvider, sign, unsigned
from tests.flows.gateway_process import key
from tests.web.conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
Client = TestClient[Any, Any]


async def gateway_client(inside: Inside, provider: IdentityProvider, admin: Any = None, **oidc: Any) -> Client:
    return await inside(
        NOWHERE, oidc=provider.settings(**oidc), admin=admin or {"token": ADMIN_TOKEN},
        keys=[key("hers", owner="alice@example.org", team="ours"), key("his", owner="bob@example.org", team="ours")],
        teams={"ours": {}},
    )  # fmt: skip


async def test_a_person_signs_in_sees_her_own_keys_and_signs_out(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    assert await browser.session() == (401, "sign_in_required")
    assert await browser.sign_in(provider) == (302, None)
    received = await browser.session()
    assert (received["role"], received["name"], received["team"]) == ("member", "person alice@example.org", None)
    _, _, keys = await browser.ask("GET", "/admin/api/keys")
    assert [each["id"] for each in keys["data"]] == ["hers"]
    assert (await browser.ask("GET", "/admin/api/keys/his"))[0] == 404
    assert (await browser.ask("GET", "/admin/api/audit"))[0] == 403
    status, _, answer = await browser.ask("POST", "/admin/sign-out", headers={"X-CSRF-Token": received["csrf"]})
    assert (status, answer["provider_url"]) == (200, f"{provider.issuer}/end?client_id=gateway")
    assert "gateway-session" not in browser.cookies


async def test_without_oidc_there_is_no_sign_in(inside: Inside) -> None:
    browser = Browser(await inside(NOWHERE))
    for method, path in (("GET", "/admin/sign-in"), ("GET", "/admin/sign-in/callback"), ("POST", "/admin/sign-out")):
        assert (await browser.ask(method, path))[0] == 404
    assert await browser.session() == (401, None)


async def test_sign_in_alone_is_an_admin_api(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await inside(NOWHERE, admin={}, oidc=provider.settings()))
    assert (await browser.sign_in(provider))[0] == 302
    assert (await browser.session())["role"] == "member"


def poisoned(claims: dict[str, Any]) -> str:
    """Signed with a key that is part of the token."""
    return sign(claims, OTHER_KEY, kid="two", jwk=OTHER_KEY.as_dict(private=False))


def by_secret(claims: dict[str, Any]) -> str:
    """The public key as the secret of HS256."""
    signed = unsigned(claims, {"alg": "HS256", "kid": "one"})[:-1]
    digest = hmac.new(KEY.as_pem(private=False), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def with_header(header: Any) -> str:
    """A token with this header, as JSON or as text."""
    text = header if isinstance(header, str) else json.dumps(header)
    return ".".join([base64.urlsafe_b64encode(text.encode()).decode().rstrip("="), "e30", "c2ln"])


BAD_TOKENS = {
    "a list of algorithms": lambda claims: with_header({"alg": [], "kid": "k"}),
    "an object as its algorithm": lambda claims: with_header({"alg": {"a": 1}}),
    "brackets without end": lambda claims: with_header("[" * 1500),
    "wrong issuer": lambda claims: sign(claims | {"iss": "https://evil.example"}),
    "no issuer": lambda claims: sign({**claims, "iss": None}),
    "issuer with a slash": lambda claims: sign(claims | {"iss": claims["iss"] + "/"}),
    "wrong audience": lambda claims: sign(claims | {"aud": "another"}),
    "wrong audiences": lambda claims: sign(claims | {"aud": ["another", "third"]}),
    "another party": lambda claims: sign(claims | {"aud": ["gateway", "another"], "azp": "another"}),
    "several audiences without a party": lambda claims: sign(claims | {"aud": ["gateway", "another"]}),
    "expired": lambda claims: sign(claims | {"exp": claims["iat"] - 61}),
    "without an expiry": lambda claims: sign({name: each for name, each in claims.items() if name != "exp"}),
    "an expiry that is no number": lambda claims: sign(claims | {"exp": "9999999999"}),
    "not yet valid": lambda claims: sign(claims | {"nbf": claims["iat"] + 90}),
    "of the future": lambda claims: sign(claims | {"iat": claims["iat"] + 90}),
    "another nonce": lambda claims: sign(claims | {"nonce": "another"}),
    "no nonce": lambda claims: sign({name: each for name, each in claims.items() if name != "nonce"}),
    "no subject": lambda claims: sign(claims | {"sub": ""}),
    "alg none": lambda claims: unsigned(claims, {"alg": "none"}),
    "alg None": lambda claims: unsigned(claims, {"alg": "None", "kid": "one"}),
    "no alg": lambda claims: unsigned(claims, {"kid": "one"}),
    "alg confusion": by_secret,
    "signature taken away": lambda claims: sign(claims).rpartition(".")[0] + ".",
    "signature of another token": lambda claims: ".".join(
        [*sign(claims | {"email": "boss@example.org"}).split(".")[:2], sign(claims).split(".")[2]]
    ),
    "unknown kid": lambda claims: sign(claims, OTHER_KEY, kid="two"),
    "known kid, another key": lambda claims: sign(claims, OTHER_KEY, kid="one"),
    "kid that is no text": lambda claims: unsigned(claims, {"alg": "RS256", "kid": ["one"]}, "AAAA"),
    "a key of its own": poisoned,
    "unknown extension": lambda claims: unsigned(claims, {"alg": "RS256", "kid": "one", "crit": ["b64"]}, "AAAA"),
    "no token": lambda _: "hello",
    "claims that are no object": lambda _: sign([1]),  # type: ignore[arg-type] # on purpose
    "far too long": lambda claims: sign(claims | {"more": "x" * 20_000}),
}


async def test_a_bad_id_token_is_refused(inside: Inside, provider: IdentityProvider) -> None:
    client = await gateway_client(inside, provider)
    for name, make_token in BAD_TOKENS.items():
        browser = Browser(client)
        provider.make_token = make_token
        status, received = await browser.sign_in(provider)
        assert (status, received["error"]["code"]) == (401, "sign_in_failed"), name
        assert "gateway-session" not in browser.cookies, name
        assert await browser.session() == (401, "sign_in_required"), name


async def test_clocks_may_differ_a_little(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    for change in ({"exp": -30}, {"nbf": 30}, {"iat": 30}):
        provider.make_token = lambda claims, change=change: sign(
            claims | {name: claims["iat"] + by for name, by in change.items()}
        )
        assert (await browser.sign_in(provider))[0] == 302


async def test_keys_rotate(inside: Inside, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_set, "REFETCH_S", 0.0)
    browser = Browser(await gateway_client(inside, provider))
    assert (await browser.sign_in(provider))[0] == 302
    fetched = provider.hits.count("/keys")
    assert (await browser.sign_in(provider))[0] == 302
    assert provider.hits.count("/keys") == fetched == 1
    provider.keys = [OTHER_KEY.as_dict(private=False)]
    provider.make_token = lambda claims: sign(claims, OTHER_KEY, kid="two")
    assert (await browser.sign_in(provider))[0] == 302
    provider.make_token = sign  # with the removed key
    assert (await browser.sign_in(provider))[0] == 401


async def test_unknown_keys_are_not_asked_for_again_and_again(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    assert (await browser.sign_in(provider))[0] == 302
    provider.make_token = lambda claims: sign(claims, OTHER_KEY, kid="two")
    for _ in range(5):
        assert (await browser.sign_in(provider))[0] == 401
    assert provider.hits.count("/keys") <= 2


POISONED = {
    "a secret": [jwk.OctKey.generate_key(256, {"kid": "oct"}).as_dict()],
    "a private key": [KEY.as_dict(private=True)],
    "two keys of one id": [KEY.as_dict(private=False), {**OTHER_KEY.as_dict(private=False), "kid": "one"}],
    "a small key": [{**KEY.as_dict(private=False), "n": str(KEY.as_dict(private=False)["n"])[:171]}],
    "a key for encryption": [{**KEY.as_dict(private=False), "use": "enc"}],
    "too many keys": [{**KEY.as_dict(private=False), "kid": str(number)} for number in range(33)],
    "no keys": [],
}


@pytest.mark.parametrize("name", sorted(POISONED))
async def test_a_poisoned_key_set_is_refused(inside: Inside, provider: IdentityProvider, name: str) -> None:
    provider.keys = POISONED[name]
    status, received = await Browser(await gateway_client(inside, provider)).sign_in(provider)
    assert (status, received["error"]["code"]) == (503, "identity_provider_unavailable")


@pytest.mark.parametrize(
    "change",
    [{"issuer": "https://evil.example"}, {"jwks_uri": "http://evil.example/keys"}, {"token_endpoint": None},
     {"authorization_endpoint": "javascript:alert(1)"}, {"jwks_uri": "file:///etc/passwd"}],
    ids=str,
)  # fmt: skip
async def test_a_description_of_another_issuer_is_refused(
    inside: Inside, provider: IdentityProvider, change: dict[str, Any]
) -> None:
    provider.discovery = change
    status, _, received = await Browser(await gateway_client(inside, provider)).ask("GET", "/admin/sign-in")
    assert (status, received["error"]["code"]) == (503, "identity_provider_unavailable")


async def test_many_who_begin_at_once_ask_the_provider_once(inside: Inside, provider: IdentityProvider) -> None:
    """Anyone may begin; the exchange of a person's code would wait behind all of their questions."""
    client = await gateway_client(inside, provider)
    begun = await asyncio.gather(*[Browser(client).ask("GET", "/admin/sign-in") for _ in range(50)])
    assert {status for status, _, _ in begun} == {302}
    assert provider.hits == ["/.well-known/openid-configuration"]


async def test_an_answer_of_another_issuer_is_refused(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    back = provider.approve(await browser.begin())
    for issuer in ("https://evil.example", ""):
        status, _, received = await browser.ask("GET", f"/admin/sign-in/callback?{back}&iss={issuer}")
        assert (status, received["error"]["code"]) == (401, "sign_in_failed")
    assert "/token" not in provider.hits  # the code was sent to no other server
    assert (await browser.ask("GET", f"/admin/sign-in/callback?{back}&iss={provider.issuer}"))[0] == 302


async def test_a_promised_issuer_must_be_there(inside: Inside, provider: IdentityProvider) -> None:
    provider.discovery = {"authorization_response_iss_parameter_supported": True}
    assert (await Browser(await gateway_client(inside, provider)).sign_in(provider))[0] == 401


async def test_state_and_code_are_good_once(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    back = provider.approve(await browser.begin())
    begun = dict(browser.cookies)
    assert (await browser.ask("GET", f"/admin/sign-in/callback?{back}"))[0] == 302
    thief = Browser(browser.client)
    thief.cookies = begun
    provider.approve(f"http://x/?{urlsplit('?' + back).query}&code_challenge_method=S256", "code-2")
    for replayed in (back, back.replace("code-1", "code-2")):
        status, _, received = await thief.ask("GET", f"/admin/sign-in/callback?{replayed}")
        assert (status, received["error"]["message"]) == (
            401, "The sign-in failed: it was finished before. Begin again at the dashboard.",
        )  # fmt: skip


async def test_a_sign_in_of_another_browser_is_not_finished_here(inside: Inside, provider: IdentityProvider) -> None:
    """Login CSRF: an attacker sends her own answer to a victim."""
    client = await gateway_client(inside, provider)
    attacker, victim = Browser(client), Browser(client)
    back = provider.approve(await attacker.begin())
    assert (await victim.ask("GET", f"/admin/sign-in/callback?{back}"))[0] == 401
    await victim.begin()
    assert (await victim.ask("GET", f"/admin/sign-in/callback?{back}"))[0] == 401
    assert "/token" not in provider.hits


async def test_a_stolen_code_is_worth_nothing_without_the_verifier(inside: Inside, provider: IdentityProvider) -> None:
    client = await gateway_client(inside, provider)
    victim, thief = Browser(client), Browser(client)
    provider.approve(await victim.begin(), "stolen")
    mine = parse_qs(urlsplit(await thief.begin()).query)["state"][0]
    status, _, received = await thief.ask("GET", f"/admin/sign-in/callback?code=stolen&state={mine}")
    assert (status, received["error"]["code"]) == (401, "sign_in_failed")


async def test_no_parameter_says_where_to(inside: Inside, provider: IdentityProvider) -> None:
    client = await gateway_client(inside, provider)
    for name in ("return_to", "next", "redirect_uri", "post_logout_redirect_uri"):
        browser = Browser(client)
        _, headers, _ = await browser.ask("GET", f"/admin/sign-in?{name}=https://evil.example")
        assert "evil" not in headers["Location"], name
        back = provider.approve(headers["Location"])
        _, headers, _ = await browser.ask("GET", f"/admin/sign-in/callback?{back}&{name}=https://evil.example")
        assert headers["Location"] == "../../dashboard", name


async def test_a_stolen_session_is_over_when_its_owner_signs_out(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    await browser.sign_in(provider)
    thief = Browser(browser.client)
    thief.cookies = dict(browser.cookies)
    csrf = (await thief.session())["csrf"]
    assert (await browser.ask("POST", "/admin/sign-out", headers={"X-CSRF-Token": csrf}))[0] == 200
    assert await thief.session() == (401, "sign_in_required")
    assert (await thief.ask("POST", "/admin/sign-out", headers={"X-CSRF-Token": csrf}))[0] == 401


@pytest.mark.parametrize("kind", ["embedded", "redis"])
async def test_an_operator_ends_the_sessions_of_one_person(
    inside: Inside, provider: IdentityProvider, tmp_path: Path, kind: str
) -> None:
    """At every gateway at once; another person stays signed in, and she may sign in again."""
    operator = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with filled(kind, tmp_path, {}) as url:
        store = {"url": url, "journal_dir": str(tmp_path / "journal")}
        gateways = [await inside(NOWHERE, oidc=provider.settings(), store=store) for _ in range(2)]
        laptop, phone, other = Browser(gateways[0]), Browser(gateways[1]), Browser(gateways[0])
        for browser in (laptop, phone):
            assert (await browser.sign_in(provider))[0] == 302
        provider.claims = {**provider.claims, "sub": "sub-2", "email": "bob@example.org"}
        assert (await other.sign_in(provider))[0] == 302
        provider.claims = {**provider.claims, "sub": "sub-1", "email": "alice@example.org"}
        of_older_gateway = Browser(gateways[0])
        name = "gateway-session"
        rules = json.loads(base64.urlsafe_b64decode(laptop.cookies[name].partition(".")[0] + "=="))["rules"]
        session = Session("an-id-without-a-time", "alice@example.org", "member", None, rules, time.time() + 60)
        of_older_gateway.cookies[name] = session.encode(provider.settings()["session_key"].encode())
        hers = [laptop, phone, of_older_gateway]
        assert [(await each.session())["role"] for each in [*hers, other]] == ["member"] * 4

        path = "/admin/api/people/alice%40example.org/end_sessions"
        assert (await other.ask("POST", path))[0] == 403
        status, _, received = await Browser(gateways[1]).ask("POST", path, headers=operator)
        assert (status, received["name"]) == (200, "alice@example.org")
        for browser, gateway in itertools.product(hers, gateways):
            browser.client = gateway
            assert await browser.session() == (401, "sign_in_required")
        for gateway in gateways:
            other.client = gateway
            assert (await other.session())["name"] == "person bob@example.org"
        assert (await laptop.sign_in(provider))[0] == 302
        assert (await laptop.session())["name"] == "person alice@example.org"
        _, _, log = await Browser(gateways[0]).ask("GET", "/admin/api/audit", headers=operator)
        assert [(each["kind"], each["name"], each["action"], each["actor"]) for each in log["data"]] == [
            ("person", "alice@example.org", "end_sessions", "admin.token from 127.0.0.1")
        ]
        for bad in ("x" * 300, "a%0Ab"):
            status, _, _ = await other.ask("POST", f"/admin/api/people/{bad}/end_sessions", headers=operator)
            assert status == 400
        for gateway in gateways:
            await gateway.close()


async def test_a_change_by_session_needs_the_csrf_token(inside: Inside, provider: IdentityProvider) -> None:
    roles = [{"person": "alice@example.org", "role": "operator"}]
    client = await gateway_client(inside, provider, roles=roles)
    browser, other = Browser(client), Browser(client)
    await browser.sign_in(provider)
    await other.sign_in(provider)
    mine, foreign = (await browser.session())["csrf"], (await other.session())["csrf"]
    for token in (None, "", "x", foreign, "ä", mine[:-1]):
        headers = {} if token is None else {"X-CSRF-Token": token}
        for method, path in (
            ("POST", "/admin/api/keys"),
            ("DELETE", "/admin/api/keys/his"),
            ("POST", "/admin/sign-out"),
        ):
            status, _, received = await browser.ask(method, path, json={"id": "made"}, headers=headers)
            assert (status, received["error"]["code"]) == (403, "csrf_token_missing"), (token, path)
    status, _, _ = await browser.ask("POST", "/admin/api/keys", json={"id": "made"}, headers={"X-CSRF-Token": mine})
    assert status == 201
    _, _, audit = await browser.ask("GET", "/admin/api/audit?limit=1")
    assert audit["data"][0]["actor"] == "person alice@example.org from 127.0.0.1"


async def test_a_session_cannot_be_forged(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    await browser.sign_in(provider)
    good = browser.cookies["gateway-session"]
    body, _, signature = good.partition(".")
    begun = Browser(browser.client)
    await begun.begin()
    state = begun.cookies["gateway-sign-in"]
    for forged in (
        "x",
        ".",
        f"{body}.",
        f"{body}A.{signature}",
        f"{body}.{signature[:-1]}0x",
        state,
        "ä.b",
        "a" * 5000,
    ):
        browser.cookies["gateway-session"] = forged
        status, _, received = await browser.ask("GET", "/admin/api/session")
        assert (status, received["error"]["code"]) == (401, "sign_in_required"), forged


async def test_a_session_ends_with_the_rules_that_made_it(inside: Inside, provider: IdentityProvider) -> None:
    roles = [{"group": "heads", "role": "lead", "team": "ours"}]
    provider.claims["groups"] = ["heads"]
    before = Browser(await gateway_client(inside, provider, roles=roles))
    await before.sign_in(provider)
    assert (await before.session())["team"] == "ours"
    for change in (
        {"roles": []},
        {"roles": roles, "session_key": "t" * 32},
        {"roles": roles, "domains": ["other.org"]},
    ):
        after = Browser(await gateway_client(inside, provider, **change))
        after.cookies = dict(before.cookies)
        assert await after.session() == (401, "sign_in_required"), change
    same = Browser(await gateway_client(inside, provider, roles=roles))  # another gateway on the same configuration
    same.cookies = dict(before.cookies)
    assert (await same.session())["role"] == "lead"


async def test_without_a_store_sessions_are_refused_and_tokens_work(
    inside: Inside, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.accounting import LedgerClient

    browser = Browser(await gateway_client(inside, provider))
    await browser.sign_in(provider)

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(LedgerClient, "claim", away)
    assert await browser.session() == (503, "store_unavailable")
    browser.cookies.clear()
    status, _, _ = await browser.ask("GET", "/admin/api/session", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    assert status == 200


@pytest.mark.parametrize(
    ("settings", "claims", "expected"),
    [
        ({}, {}, "member"),
        ({"default_role": "viewer"}, {}, "viewer"),
        ({"default_role": None}, {}, None),
        ({"domains": ["example.org"]}, {}, "member"),
        ({"domains": ["Example.ORG"]}, {}, "member"),
        ({"domains": ["example.com"]}, {}, None),
        ({"domains": ["org"]}, {}, None),
        ({"domains": ["example.org"]}, {"email": "alice@example.org@evil.com"}, None),
        ({"domains": ["example.org"]}, {"email": "alice.example.org"}, None),
        ({}, {"email_verified": False}, None),
        ({}, {"email": None}, None),
        ({}, {"email": "a\nb@example.org"}, None),
        ({"groups": ["staff"]}, {}, None),
        ({"groups": ["staff"]}, {"groups": ["staff", "other"]}, "member"),
        ({"groups": ["staff"]}, {"groups": "staff"}, "member"),
        ({"groups": ["staff"]}, {"groups": "staffing"}, None),
        ({"groups": ["staff"]}, {"groups": {"staff": 1}}, None),
        ({"roles": [{"group": "ops", "role": "operator"}]}, {"groups": ["ops"]}, "admin"),
        ({"roles": [{"group": "ops", "role": "operator"}]}, {"groups": ["Ops"]}, "member"),
        ({"roles": [{"person": "alice@example.org", "role": "viewer"}]}, {}, "viewer"),
        ({"person_claim": "sub"}, {"email": None}, "member"),
    ],
    ids=str,
)
async def test_who_may_sign_in_as_what(
    inside: Inside, provider: IdentityProvider, settings: dict[str, Any], claims: dict[str, Any], expected: str | None
) -> None:
    browser = Browser(await gateway_client(inside, provider, **settings))
    provider.claims |= claims
    provider.userinfo = {**provider.claims}
    status, received = await browser.sign_in(provider)
    if expected is None:
        assert (status, received["error"]["code"]) == (403, "sign_in_refused")
    else:
        assert (await browser.session())["role"] == expected


async def test_claims_come_from_the_userinfo_of_the_same_person(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider, groups=["staff"]))
    provider.userinfo = {"sub": "sub-1", "groups": ["staff"]}
    assert (await browser.sign_in(provider))[0] == 302
    provider.userinfo = {"sub": "sub-2", "groups": ["staff"]}
    assert (await browser.sign_in(provider))[0] == 401
    provider.userinfo = {"sub": "sub-1", "groups": ["staff"], "email": "boss@example.org"}
    assert (await browser.sign_in(provider))[0] == 302
    assert (await browser.session())["name"] == "person alice@example.org"  # the signed name wins


async def test_a_provider_that_is_away(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(await gateway_client(inside, provider))
    back = provider.approve(await browser.begin())
    provider.is_away = True
    status, _, received = await browser.ask("GET", f"/admin/sign-in/callback?{back}")
    assert (status, received["error"]["code"]) == (503, "identity_provider_unavailable")


async def test_cookies_of_an_address_with_tls_are_secure(inside: Inside, provider: IdentityProvider) -> None:
    browser = Browser(
        await gateway_client(inside, provider, redirect_url="https://gateway.example.org/admin/sign-in/callback")
    )
    _, headers, _ = await browser.ask("GET", "/admin/sign-in")
    assert headers["Set-Cookie"].startswith("__Host-gateway-sign-in=")
    assert headers["Set-Cookie"].endswith("; HttpOnly; SameSite=Lax; Secure")


async def test_one_address_cannot_make_the_gateway_ask_the_provider_without_an_end(
    inside: Inside, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone can begin sign-ins, and present codes that the provider did not give."""
    monkeypatch.setattr(signing_in, "CODES_AT_ONCE", 3)
    monkeypatch.setattr(signing_in, "CODES_PER_S", 0.0)
    client = await gateway_client(inside, provider)
    for number in range(6):
        browser = Browser(client)
        state = parse_qs(urlsplit(await browser.begin()).query)["state"][0]
        status, _, received = await browser.ask("GET", f"/admin/sign-in/callback?code=guess-{number}&state={state}")
        assert (status, received["error"]["code"]) == (401, "sign_in_failed")
        assert ("too many" in received["error"]["message"]) == (number >= 3)
    assert provider.hits.count("/token") == 3

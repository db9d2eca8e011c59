"""Signed tokens in place of API keys on the data plane: owner, permissions, refusals."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.errors import Unavailable
from gateway.quota.issued import person_digest, person_id
from gateway.wings.people import key_set, person_tokens
from tests.fakes.identity_provider import OTHER_KEY, IdentityProvider, sign
from tests.flows.gateway_process import key, secret
from tests.web.conftest import ADMIN_TOKEN, Inside

from .test_sign_in import BAD_TOKENS

Client = TestClient[Any, Any]
ALICE = person_id("alice@example.org")
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        return web.json_response({"choices": [], "usage": usage})

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}/v1"


async def gateway(inside: Inside, provider: IdentityProvider, upstream: str, **jwt: Any) -> Client:
    route = {"routes": [{"upstream": "up"}], "max_output_tokens": 100}
    settings = {"issuer": provider.issuer, "audiences": ["gateway"], "jwks_url": f"{provider.issuer}/keys", **jwt}
    return await inside(
        upstream, jwt=settings, keys=[key("alice")], teams={"ours": {}, "others": {}},
        models={"m": route, "n": route, "other": route},
        defaults={"keys": {"quotas": [{"requests": 3, "per": "day"}], "expires_after_s": 5}},
    )  # fmt: skip


async def call(client: Client, token: str, model: str = "m", **headers: str) -> tuple[int, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    given = headers or {"Authorization": f"Bearer {token}"}
    async with client.post("/v1/chat/completions", json=body, headers=given) as answer:
        return answer.status, await answer.json()


async def admin(client: Client, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with client.request(method, f"/admin/api/{path}", headers=ADMIN, json=body) as answer:
        return answer.status, await answer.json()


async def test_a_person_who_was_never_seen_gets_her_record_at_the_first_call(
    inside: Inside, provider: IdentityProvider, upstream: str
) -> None:
    client = await gateway(inside, provider, upstream)
    assert (await admin(client, "GET", f"keys/{ALICE}"))[0] == 404
    assert (await call(client, sign(provider.good_claims())))[0] == 200
    status, record = await admin(client, "GET", f"keys/{ALICE}")
    assert (status, record["owner"], record["expires"]) == (200, "alice@example.org", None)
    assert record["quotas"] == [{"requests": 3, "per": "day"}]
    _, calls = await admin(client, "GET", "calls")
    assert [each["key"] for each in calls["data"]] == [ALICE]
    _, changes = await admin(client, "GET", "audit")
    assert changes["data"][0]["actor"] == "person alice@example.org, first token"
    # Another token of hers is the same person: the quota of three holds over all of them.
    assert [(await call(client, sign(provider.good_claims(jti=str(n)))))[0] for n in range(3)] == [200, 200, 429]
    assert (await call(client, secret("alice")))[0] == 200  # keys work as before
    assert provider.hits.count("/keys") == 1


async def test_many_first_calls_at_once_make_one_record(
    inside: Inside, provider: IdentityProvider, upstream: str
) -> None:
    client = await gateway(inside, provider, upstream)
    tokens = [sign(provider.good_claims(jti=str(number))) for number in range(20)]
    statuses = [status for status, _ in await asyncio.gather(*(call(client, token) for token in tokens))]
    assert sorted(statuses) == [200] * 3 + [429] * 17
    _, changes = await admin(client, "GET", "audit")
    assert [each["action"] for each in changes["data"]] == ["create"]


# A token that is no answer to a sign-in has no nonce and no authorized party.
OF_SIGN_IN = {"another nonce", "no nonce", "another party", "several audiences without a party", "no token",
              "far too long"}  # fmt: skip


async def test_a_bad_token_is_refused(inside: Inside, provider: IdentityProvider, upstream: str) -> None:
    client = await gateway(inside, provider, upstream)
    for name in sorted(BAD_TOKENS.keys() - OF_SIGN_IN):
        token = BAD_TOKENS[name](provider.good_claims())
        status, received = await call(client, token)
        assert (status, received["error"]["code"]) == (401, "invalid_api_key"), name
        assert token[:100] not in received["error"]["message"], name
        assert (await admin(client, "GET", "keys"))[1]["data"][0]["id"] == "alice", name  # no further record was made
        assert (await call(client, token))[0] == 401, name


async def test_a_verdict_ends_with_its_token(
    inside: Inside, provider: IdentityProvider, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ahead_s = time.time, 0.0
    monkeypatch.setattr("gateway.store.clock.time.time", lambda: now() + ahead_s)
    client = await gateway(inside, provider, upstream, clock_skew_s=0)
    token = sign(provider.good_claims(exp=time.time() + 1000))
    assert (await call(client, token))[0] == 200
    ahead_s = 1001.0
    status, received = await call(client, token)
    assert (status, received["error"]["message"]) == (401, "Your token is not accepted: it has expired.")


async def test_a_withdrawn_key_ends_its_tokens(
    inside: Inside, provider: IdentityProvider, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_set, "FRESH_S", 0.0)
    monkeypatch.setattr(key_set, "REFETCH_S", 0.0)
    monkeypatch.setattr("gateway.wings.people.person_tokens.KEPT_S", 0.0)
    client = await gateway(inside, provider, upstream)
    token = sign(provider.good_claims())
    assert (await call(client, token))[0] == 200
    provider.keys = [OTHER_KEY.as_dict(private=False)]
    assert (await call(client, token))[0] == 401


async def test_an_issuer_that_is_away(inside: Inside, provider: IdentityProvider, upstream: str) -> None:
    client = await gateway(inside, provider, upstream)
    provider.is_away = True
    status, received = await call(client, sign(provider.good_claims()))
    assert (status, received["error"]["code"]) == (503, "identity_provider_unavailable")
    assert (await call(client, secret("alice")))[0] == 200


async def test_a_record_is_revoked_like_a_key_and_has_no_secret(
    inside: Inside, provider: IdentityProvider, upstream: str
) -> None:
    client = await gateway(inside, provider, upstream)
    token = sign(provider.good_claims())
    assert (await call(client, token))[0] == 200
    status, received = await admin(client, "POST", f"keys/{ALICE}/rotate")
    assert (status, received["error"]["code"]) == (409, "no_secret")
    assert (await admin(client, "DELETE", f"keys/{ALICE}"))[0] == 200
    for _ in range(200):
        status, received = await call(client, token)
        if status == 401:
            assert "revoked" in received["error"]["message"]
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a revoked person still calls")


async def test_the_id_of_a_person_cannot_be_taken(inside: Inside, provider: IdentityProvider, upstream: str) -> None:
    client = await gateway(inside, provider, upstream)
    status, received = await admin(client, "POST", "keys", {"id": ALICE, "owner": "alice@example.org"})
    assert (status, received["error"]["param"]) == (400, "id")


async def test_the_team_of_a_token(inside: Inside, provider: IdentityProvider, upstream: str) -> None:
    client = await gateway(inside, provider, upstream, team_claim="team")
    assert (await call(client, sign(provider.good_claims(team="ours"))))[0] == 200
    assert (await admin(client, "GET", f"keys/{ALICE}"))[1]["team"] == "ours"
    assert (await call(client, sign(provider.good_claims(team="others"))))[0] == 200
    assert (await admin(client, "GET", f"keys/{ALICE}"))[1]["team"] == "others"
    _, calls = await admin(client, "GET", "calls")
    assert [each["team"] for each in calls["data"]] == ["others", "ours"]
    assert (await call(client, sign(provider.good_claims())))[0] == 200
    assert (await admin(client, "GET", f"keys/{ALICE}"))[1]["team"] == "others"  # a token cannot leave a team
    for team in ("none-such", "", ["ours"]):
        assert (await call(client, sign(provider.good_claims(team=team))))[0] == 401


async def test_a_person_whose_tokens_name_two_teams_keeps_no_new_one_out(
    inside: Inside, provider: IdentityProvider, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(person_tokens, "RECORDS_PER_S", 0)
    monkeypatch.setattr(person_tokens, "RECORDS_AT_ONCE", 2)
    client = await gateway(inside, provider, upstream, team_claim="team")
    tokens = [sign(provider.good_claims(team=team)) for team in ("ours", "others")]
    for number in range(100):
        status, received = await call(client, tokens[number % 2])
        if status == 503:
            break
    assert received["error"]["code"] == "too_many_unknown_keys"
    bob = provider.good_claims(team="ours") | {"email": "bob@example.org", "sub": "bob"}
    assert (await call(client, sign(bob)))[0] == 200


async def test_models_of_a_token_narrow_those_of_the_record(
    inside: Inside, provider: IdentityProvider, upstream: str
) -> None:
    client = await gateway(inside, provider, upstream, models_claim="models")
    narrow = sign(provider.good_claims(models=["m", "o*", "*", "unknown"]))
    assert [(await call(client, narrow, model))[0] for model in ("m", "n", "other")] == [200, 404, 404]
    assert (await admin(client, "PATCH", f"keys/{ALICE}", {"models": ["n"], "quotas": []}))[0] == 200
    wide = sign(provider.good_claims())
    for _ in range(200):
        if (await call(client, narrow))[0] == 404:
            break
        await asyncio.sleep(0.05)
    assert [(await call(client, wide, model))[0] for model in ("m", "n")] == [404, 200]
    nothing = sign(provider.good_claims(models=[]))
    assert (await call(client, nothing, "n"))[0] == 404


async def test_the_token_may_stand_in_other_headers(inside: Inside, provider: IdentityProvider, upstream: str) -> None:
    client = await gateway(inside, provider, upstream)
    token = sign(provider.good_claims())
    assert (await call(client, token, **{"x-api-key": token}))[0] == 200
    assert (await call(client, token, **{"api-key": token}))[0] == 200
    both = {"x-api-key": token, "Authorization": f"Bearer {secret('alice')}"}
    assert (await call(client, token, **both))[0] == 401


async def test_without_the_setting_a_token_is_an_unknown_key(
    inside: Inside, provider: IdentityProvider, upstream: str
) -> None:
    client = await inside(upstream)
    status, received = await call(client, sign(provider.good_claims()))
    assert (status, received["error"]["message"].partition(":")[0]) == (401, "Incorrect API key provided")
    assert provider.hits == []


@pytest.mark.rest
def test_a_start_without_identity_settings_loads_nothing_of_it() -> None:
    """Neither joserfc nor cryptography."""
    code = "import sys, json, gateway.process.worker, gateway.web.app; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"joserfc", "cryptography"}


async def test_a_person_has_one_record_however_her_name_is_written(
    inside: Inside, provider: IdentityProvider, upstream: str
) -> None:
    """Else each spelling would have the quotas of `defaults.keys` again."""
    client = await gateway(inside, provider, upstream)
    for spelling in ("Alice@example.org", "alice@example.org", "ALICE@EXAMPLE.ORG"):
        assert (await call(client, sign(provider.good_claims(email=spelling))))[0] == 200
    status, refused = await call(client, sign(provider.good_claims(email="aLICE@example.org")))
    assert (status, refused["error"]["type"]) == (429, "insufficient_quota")
    status, record = await admin(client, "GET", f"keys/{ALICE}")
    assert (status, record["owner"]) == (200, "Alice@example.org")
    assert (await admin(client, "DELETE", f"keys/{ALICE}"))[0] == 200
    while (await call(client, sign(provider.good_claims(email="AliCE@example.org"))))[0] != 401:
        pass


async def test_a_record_of_an_older_gateway_stays_that_of_its_spelling(
    inside: Inside, provider: IdentityProvider, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await gateway(inside, provider, upstream)
    written = "Alice@example.org"
    with monkeypatch.context() as older:
        older.setattr("gateway.wings.people.records.folded_name", lambda name: name)
        assert (await call(client, sign(provider.good_claims(email=written))))[0] == 200
    assert (await admin(client, "GET", f"keys/{ALICE}"))[0] == 404
    assert (await call(client, sign(provider.good_claims(email=written, jti="2"))))[0] == 200
    assert (await admin(client, "GET", f"keys/{ALICE}"))[0] == 404
    assert (await admin(client, "DELETE", f"keys/{person_id(written)}"))[0] == 200
    while (await call(client, sign(provider.good_claims(email=written, jti="3"))))[0] != 401:
        pass
    assert (await admin(client, "GET", f"keys/{ALICE}"))[0] == 404


async def test_a_record_in_the_cache_is_found_while_other_spellings_cannot_be_sought() -> None:
    """Many unknown keys use up the look-ups, or the store is away."""

    async def refuse(_: bytes) -> None:
        raise Unavailable("away", code="away")

    known = {person_digest("https://id.example.org", "alice"): "her record"}
    cache: Any = SimpleNamespace(known=known, look_up_digest=refuse)
    assert await person_tokens._known("https://id.example.org", "Alice", cache) == "her record"
    with pytest.raises(Unavailable):
        await person_tokens._known("https://id.example.org", "Bob", cache)

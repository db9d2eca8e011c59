"""Access that ends at a sign-in without a group, and comes back with one, through a gateway."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.errors import Conflict
from gateway.wings.people.records import PeopleRecords
from tests.fakes.identity_provider import Browser, IdentityProvider, sign
from tests.flows.gateway_process import key, secret
from tests.web.conftest import ADMIN_TOKEN, Inside, models, until

NOWHERE = "http://127.0.0.1:9/v1"
ALICE = "alice@example.org"
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
RULES: dict[str, Any] = {"roles": [{"group": "staff", "role": "member"}], "default_role": None}


async def gateway(inside: Inside, provider: IdentityProvider, **leavers: Any) -> TestClient[Any, Any]:
    return await inside(
        NOWHERE, oidc=provider.settings(**RULES), leavers=leavers, keys=[key("hers", owner=ALICE), key("his")],
        jwt={"issuer": provider.issuer, "audiences": ["gateway"], "jwks_url": f"{provider.issuer}/keys"},
    )  # fmt: skip


async def audit(client: TestClient[Any, Any]) -> list[tuple[str, str]]:
    async with client.get("/admin/api/audit", headers=ADMIN) as answer:
        rows = (await answer.json())["data"]
    return [(row["action"], row["actor"]) for row in rows if row["kind"] == "person"]


async def test_a_sign_in_without_a_group_ends_keys_and_one_with_a_group_gives_them_back(
    inside: Inside, provider: IdentityProvider
) -> None:
    client = await gateway(inside, provider, by_groups=True)
    browser = Browser(client)
    provider.claims = {**provider.claims, "groups": ["staff"]}
    assert (await browser.sign_in(provider))[0] == 302
    assert await models(client, secret("hers")) == 200
    provider.claims = {**provider.claims, "groups": ["guests"]}
    status, answer = await Browser(client).sign_in(provider)
    assert (status, answer["error"]["code"]) == (403, "sign_in_refused")
    await until(client, secret("hers"), 401)
    assert await models(client, secret("his")) == 200
    assert await browser.session() == (401, "sign_in_required")
    provider.claims = {**provider.claims, "groups": ["staff"]}
    assert (await browser.sign_in(provider))[0] == 302
    await until(client, secret("hers"), 200)
    person = f"person {ALICE}, sign-in"
    assert await audit(client) == [("give_access", person), ("end_access", person), ("sign_in", person)]


async def test_a_change_at_the_same_time_loses_no_note(
    inside: Inside, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role of a sign-in is noted in the document in which others note theirs."""

    async def changed_meanwhile(*_: Any) -> None:
        raise Conflict("changed")

    monkeypatch.setattr(PeopleRecords, "note_role", changed_meanwhile)
    client = await gateway(inside, provider, by_groups=True)
    provider.claims = {**provider.claims, "groups": ["staff"]}
    assert (await Browser(client).sign_in(provider))[0] == 302
    assert await audit(client) == [("sign_in", f"person {ALICE}, sign-in")]


async def test_a_refused_sign_in_ends_nothing_unless_it_is_set(inside: Inside, provider: IdentityProvider) -> None:
    client = await gateway(inside, provider)
    assert (await Browser(client).sign_in(provider))[0] == 403
    assert await audit(client) == []


async def test_a_call_with_a_fresh_token_counts_as_a_sign_in(inside: Inside, provider: IdentityProvider) -> None:
    client = await gateway(inside, provider, inactive_after="30d", exempt=["*"])
    assert await models(client, sign(provider.good_claims())) == 200
    assert await audit(client) == [("sign_in", f"person {ALICE}, token")]


async def test_tokens_of_someone_whose_access_has_ended_are_refused(inside: Inside, provider: IdentityProvider) -> None:
    """The one that was presented before, and a new one; another person's is good."""
    client = await gateway(inside, provider)
    known, other = sign(provider.good_claims()), sign(provider.good_claims(email="bob@example.org"))
    assert [await models(client, token) for token in (known, other)] == [200, 200]
    for verb, status in (("end_access", 401), ("give_access", 200)):
        async with client.post(f"/admin/api/people/{ALICE}/{verb}", headers=ADMIN) as answer:
            assert answer.status == 200
        fresh = sign(provider.good_claims(jti=verb))
        for token in (known, fresh):
            await until(client, token, status)
        assert await models(client, other) == 200

"""A person's role and team follow her groups in the directory, without a sign-in."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import ConfigError, build
from gateway.store import StoreUnavailable
from gateway.wings.people.records import PeopleRecords
from gateway.wings.scim.directory import Directory
from gateway.wings.scim.sign_in import note
from tests.fakes.identity_provider import Browser, IdentityProvider, provider
from tests.flows.gateway_process import key
from tests.keys.conftest import Scenario
from tests.web.conftest import ADMIN_TOKEN, Inside

from .test_endpoints import ALICE, NOWHERE, TOKEN, Provider, audit

__all__ = ["provider"]

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
OIDC: dict[str, Any] = {
    "roles": [{"group": "Operators", "role": "operator"}, {"group": "Leads", "role": "lead", "team": "red"}],
    "default_role": None,
}
TEAMS = [{"group": "Red", "team": "red"}, {"group": "Blue", "team": "blue"}]
PEOPLE = {"role:lead": {"quotas": [{"usd": 100, "per": "month"}]}, "defaults": {"quotas": ["1 USD/day"]}}


async def start(inside: Inside, identity: IdentityProvider, **more: Any) -> Provider:
    scim = {"token": TOKEN, "groups_give_roles": True, "teams": TEAMS, **more}
    teams: dict[str, Any] = {"red": {}, "blue": {}, "green": {}}
    keys = [key("in-file", owner=ALICE)]
    return Provider(
        await inside(NOWHERE, oidc=identity.settings(**OIDC), scim=scim, teams=teams, people=PEOPLE, keys=keys)
    )


async def admin(provider: Provider, method: str, path: str, body: Any = None) -> Any:
    async with provider.client.request(method, f"/admin/api/{path}", headers=ADMIN, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def group(scim: Provider, name: str, *members: str) -> str:
    status, made = await scim.ask("POST", "Groups", {"displayName": name, "members": [{"value": m} for m in members]})
    assert status == 201, made
    return f"Groups/{made['id']}"


async def role(scim: Provider) -> tuple[str | None, Any]:
    found = await admin(scim, "GET", f"people/{ALICE}")
    return found["role"], found["quotas"]


async def test_a_role_follows_groups_and_ends_sessions(inside: Inside, provider: IdentityProvider) -> None:
    """The identity provider's token names no groups here: the directory does."""
    scim = await start(inside, provider)
    alice = await scim.user()
    status, refused = await Browser(scim.client).sign_in(provider)
    assert (status, refused["error"]["code"]) == (403, "sign_in_refused")
    leads = await group(scim, "Leads", alice)
    assert await role(scim) == ("lead", [{"usd": 100, "per": "month"}])
    browser = Browser(scim.client)
    assert (await browser.sign_in(provider))[0] == 302
    session = await browser.session()
    assert (session["role"], session["team"]) == ("lead", "red")
    await scim.patch(leads, {"op": "replace", "path": "displayName", "value": "Operators"})
    assert (await role(scim))[0] == "operator"
    assert await browser.session() == (401, "sign_in_required")
    assert (await browser.sign_in(provider))[0] == 302
    assert (await browser.session())["role"] == "admin"  # as the session calls operators
    await scim.patch(leads, {"op": "add", "path": "externalId", "value": "x"})  # which changes no role
    assert (await browser.session())["role"] == "admin"  # as the session calls operators
    await scim.patch(leads, {"op": "remove", "path": f'members[value eq "{alice}"]'})
    assert (await role(scim))[0] is None
    assert await browser.session() == (401, "sign_in_required")
    assert (await Browser(scim.client).sign_in(provider))[0] == 403
    roles = [each for each in await audit(scim.client) if each[0] == ALICE and each[1] == "update"]
    assert {each[2].partition(" ")[0] for each in roles} >= {"scim.token"}


async def test_a_deleted_group_gives_nothing_any_more(inside: Inside, provider: IdentityProvider) -> None:
    scim = await start(inside, provider)
    leads = await group(scim, "Leads", await scim.user())
    assert (await role(scim))[0] == "lead"
    assert (await scim.ask("DELETE", leads))[0] == 204
    assert (await role(scim))[0] is None


async def test_keys_follow_to_the_team_of_a_group(inside: Inside, provider: IdentityProvider) -> None:
    scim = await start(inside, provider)
    for name, team in (("without", None), ("in-blue", "blue"), ("in-green", "green")):
        await admin(scim, "POST", "keys", {"id": name, "owner": ALICE, **({"team": team} if team else {})})

    async def teams() -> dict[str, Any]:
        return {row["id"]: row.get("team") for row in (await admin(scim, "GET", "keys"))["data"]}

    alice = await scim.user()
    red = await group(scim, "Red", alice)
    moved = {"in-file": None, "without": "red", "in-blue": "red", "in-green": "green"}
    assert await teams() == moved
    await scim.patch(red, {"op": "remove", "path": f'members[value eq "{alice}"]'})
    assert await teams() == moved  # no key is without limits because a group is gone
    await group(scim, "Blue", alice)
    assert await teams() == {**moved, "without": "blue", "in-blue": "blue"}


async def test_a_record_that_is_newer_than_her_groups_follows_at_the_next_check_of_its_token(
    scenario: Scenario,
) -> None:
    values = {"upstreams": {"up": {"base_url": NOWHERE}}, "models": {"m": {"routes": [{"upstream": "up"}]}}}
    config = build({**values, "teams": {"red": {}, "blue": {}}, "scim": {"token": TOKEN, "teams": TEAMS}})
    scenario.config = config
    directory = Directory(scenario.store, scenario.registry, "scim.token", "userName", lambda: 1.0, config)
    user = await directory.create("User", {"userName": ALICE})
    await directory.create("Group", {"displayName": "Blue", "members": [{"value": user.id}]})
    await scenario.registry.viewed_as(PeopleRecords).create_person("https://issuer.example", ALICE, None)
    for _ in range(2):
        await note(scenario.registry, config, ALICE, "key")
        (key_of_hers,) = (await scenario.registry.list_keys()).rows
        assert (key_of_hers["owner"], key_of_hers["team"]) == (ALICE, "blue")


async def test_other_users_are_not_read_for_the_groups_of_one(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of a token asks for them."""
    directory = Directory(scenario.store, scenario.registry, "scim.token", "userName", lambda: 1.0)
    users = [await directory.create("User", {"userName": name}) for name in (ALICE, "bob@example.com", "carol@x.org")]
    members = [{"value": user.id} for user in users[:2]]
    await directory.create("Group", {"displayName": "Blue", "members": members})
    page, asked = type(scenario.store).page, list[str]()

    async def noted(self: Any, kind: str, after: str = "", limit: int = 1000) -> Any:
        asked.append(after.partition(":")[0])
        return await page(self, kind, after, limit)

    monkeypatch.setattr(type(scenario.store), "page", noted)
    assert await directory.names_of_groups(ALICE.upper()) == {"Blue"}
    assert asked == ["Group"]
    await directory.change("User", users[1].id, lambda values: {**values, "userName": "ben@example.com"})
    assert await directory.names_of_groups("ben@example.com") == {"Blue"}
    assert await directory.names_of_groups("bob@example.com") == frozenset()
    assert await directory.names_of_groups("carol@x.org") == frozenset()


async def test_a_sign_in_while_the_store_is_away_is_refused_for_now(
    inside: Inside, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without her groups she would get another role."""
    scim = await start(inside, provider)

    async def away(*_: Any) -> frozenset[str]:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(Directory, "groups_of", away)
    status, refused = await Browser(scim.client).sign_in(provider)
    assert (status, refused["error"]["code"]) == (503, "store_unavailable")


async def test_an_inactive_user_gets_nothing(inside: Inside, provider: IdentityProvider) -> None:
    scim = await start(inside, provider)
    await group(scim, "Operators", await scim.user(active=False))
    assert (await role(scim))[0] is None


async def test_groups_give_nothing_where_that_is_not_set(inside: Inside, provider: IdentityProvider) -> None:
    scim = await start(inside, provider, groups_give_roles=False, teams=[])
    await group(scim, "Operators", await scim.user())
    assert (await role(scim))[0] is None
    assert (await Browser(scim.client).sign_in(provider))[0] == 403


@pytest.mark.parametrize(
    ("scim", "fault"),
    [
        ({"groups_give_roles": True}, "scim.groups_give_roles: there are no roles to give: oidc is not set"),
        ({"teams": [{"group": "g", "team": "gone"}]}, "scim.teams[0].team: there is no such team in the file"),
    ],
)
def test_what_cannot_be_followed_is_refused(scim: dict[str, Any], fault: str) -> None:
    values = {"upstreams": {"up": {"base_url": NOWHERE}}, "models": {"m": {"routes": [{"upstream": "up"}]}}}
    with pytest.raises(ConfigError) as refused:
        build({**values, "scim": scim})
    assert [str(each) for each in refused.value.faults] == [fault]

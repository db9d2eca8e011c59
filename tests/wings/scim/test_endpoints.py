"""SCIM through a gateway: users, groups, what they end, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.store import StoreUnavailable
from gateway.wings.scim.directory import Directory
from gateway.wings.scim.resources import MAX_DEPTH
from tests.flows.gateway_process import key, secret
from tests.web.conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
TOKEN, BEFORE = "scim-token-of-the-provider", "scim-token-of-last-month-"
ALICE, BOB = "alice@example.org", "bob@example.org"
PATCH_OP = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
OKTA = {
    "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": ALICE,
    "name": {"givenName": "Alice", "familyName": "A"},
    "emails": [{"primary": True, "value": ALICE, "type": "work"}],
    "displayName": "Alice A", "locale": "en-US", "externalId": "00ujl29u0le5T6Aj10h7",
    "groups": [], "password": "1mz050nq", "active": True,
}  # fmt: skip
"""As Okta's reference of SCIM 2.0 has it ("Create the User")."""


class Provider:
    """An identity provider's client."""

    def __init__(self, client: TestClient[Any, Any], token: str = TOKEN) -> None:
        self.client = client
        self.token = token

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/scim+json"}
        async with self.client.request(method, f"/scim/v2/{path}", headers=headers, json=body, **more) as answer:
            text = await answer.read()
            assert answer.headers["Content-Type"] == "application/scim+json"
            return answer.status, await answer.json(content_type=None) if text else None

    async def patch(self, path: str, *operations: Any) -> tuple[int, Any]:
        return await self.ask("PATCH", path, {"schemas": [PATCH_OP], "Operations": operations})

    async def user(self, **more: Any) -> str:
        status, made = await self.ask("POST", "Users", {**OKTA, **more})
        assert status == 201, made
        return str(made["id"])

    async def call(self, name: str) -> int:
        async with self.client.get("/v1/models", headers={"Authorization": f"Bearer {secret(name)}"}) as answer:
            return answer.status


@pytest.fixture
async def provider(inside: Inside) -> Provider:
    keys = [key("hers", owner=ALICE), key("his", owner=BOB), key("nobodys")]
    return Provider(await inside(NOWHERE, keys=keys, scim={"token": TOKEN, "previous_token": BEFORE}))


async def audit(client: TestClient[Any, Any]) -> list[tuple[str, str, str]]:
    async with client.get("/admin/api/audit", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as answer:
        return [(row["name"], row["action"], row["actor"]) for row in (await answer.json())["data"]]


async def test_a_user_is_made_found_and_shown(provider: Provider) -> None:
    status, none = await provider.ask("GET", "Users", params={"filter": f'userName eq "{ALICE}"'})
    assert (status, none["totalResults"], none["Resources"]) == (200, 0, [])
    status, made = await provider.ask("POST", "Users", OKTA)
    assert (status, made["userName"], made["active"], made["groups"]) == (201, ALICE, True, [])
    assert "password" not in made
    assert made["meta"]["location"].endswith(f"/scim/v2/Users/{made['id']}")
    assert await provider.ask("GET", f"Users/{made['id']}") == (200, made)
    for text in (f'userName eq "{ALICE.upper()}"', 'externalId eq "00ujl29u0le5T6Aj10h7"',
                 f'emails[type eq "work"].value eq "{ALICE}"'):  # fmt: skip
        status, page = await provider.ask("GET", "Users", params={"filter": text})
        assert (page["totalResults"], page["Resources"]) == (1, [made]), text
    status, refused = await provider.ask("POST", "Users", OKTA)
    assert (status, refused["scimType"], refused["status"]) == (409, "uniqueness", "409")
    assert await audit(provider.client) == []


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "value": {"active": False}},  # Okta
        {"op": "Replace", "path": "active", "value": "False"},  # Entra
    ],
)
async def test_a_deactivated_person_is_refused_and_comes_back_when_she_is_activated(
    provider: Provider, operation: dict[str, Any]
) -> None:
    user = await provider.user()
    assert [await provider.call(name) for name in ("hers", "his", "nobodys")] == [200, 200, 200]
    status, changed = await provider.patch(f"Users/{user}", operation)
    assert (status, changed["active"]) == (200, False)
    assert [await provider.call(name) for name in ("hers", "his", "nobodys")] == [401, 200, 200]
    status, page = await provider.ask("GET", "Users", params={"filter": f'userName eq "{ALICE}"'})
    assert page["Resources"][0]["active"] is False
    assert (await provider.patch(f"Users/{user}", operation))[0] == 200
    status, changed = await provider.ask("PUT", f"Users/{user}", OKTA)
    assert (status, changed["active"], await provider.call("hers")) == (200, True, 200)
    actor = "scim.token from 127.0.0.1"
    assert await audit(provider.client) == [(ALICE, "give_access", actor), (ALICE, "end_access", actor)]


async def test_a_deleted_user_is_refused_and_gone(provider: Provider) -> None:
    user = await provider.user()
    assert await provider.ask("DELETE", f"Users/{user}") == (204, None)
    assert await provider.call("hers") == 401
    status, fault = await provider.ask("GET", f"Users/{user}")
    assert (status, fault["schemas"]) == (404, ["urn:ietf:params:scim:api:messages:2.0:Error"])
    assert (await provider.ask("DELETE", f"Users/{user}"))[0] == 404
    assert await provider.user() == user
    assert await provider.call("hers") == 200


async def test_a_user_who_is_made_inactive_is_refused(provider: Provider) -> None:
    await provider.user(active=False)
    assert await provider.call("hers") == 401


async def test_a_user_who_gets_another_name_leaves_the_keys_of_the_former(provider: Provider) -> None:
    user = await provider.user()
    status, changed = await provider.patch(f"Users/{user}", {"op": "Replace", "path": "userName", "value": BOB})
    assert (status, changed["id"], changed["userName"]) == (200, user, BOB)
    assert [await provider.call(name) for name in ("hers", "his")] == [401, 200]
    status, page = await provider.ask("GET", "Users", params={"filter": f'userName eq "{BOB}"'})
    assert [each["id"] for each in page["Resources"]] == [user]
    assert (await provider.ask("POST", "Users", {**OKTA, "userName": BOB}))[0] == 409
    assert await provider.user() != user
    assert await provider.call("hers") == 200


async def test_groups_have_members_and_users_show_their_groups(provider: Provider) -> None:
    ids = [await provider.user(), await provider.user(userName=BOB)]
    body = {"schemas": ["urn:ietf:params:scim:schemas:core:2.0:Group"], "displayName": "Staff", "members": []}
    status, group = await provider.ask("POST", "Groups", body)
    assert (status, group["displayName"], group["members"]) == (201, "Staff", [])
    path = f"Groups/{group['id']}"
    members = [{"$ref": None, "value": each} for each in ids]
    status, changed = await provider.patch(path, {"op": "Add", "path": "members", "value": members})
    assert [each["value"] for each in changed["members"]] == ids
    _, shown = await provider.ask("GET", f"Users/{ids[0]}")
    assert shown["groups"] == [{"value": group["id"], "display": "Staff"}]
    status, changed = await provider.patch(path, {"op": "Remove", "path": "members", "value": members[:1]})
    assert [each["value"] for each in changed["members"]] == ids[1:]
    _, shown = await provider.ask("GET", path, params={"excludedAttributes": "members"})
    assert "members" not in shown
    _, page = await provider.ask("GET", "Groups", params={"filter": 'displayName eq "staff"'})
    assert page["totalResults"] == 1
    assert (await provider.ask("DELETE", path))[0] == 204
    assert [await provider.call(name) for name in ("hers", "his")] == [200, 200]


async def test_a_list_comes_in_pages(provider: Provider) -> None:
    for number in range(5):
        await provider.user(userName=f"user-{number}")
    found = []
    for start in (1, 3, 5, 7):
        status, page = await provider.ask("GET", "Users", params={"startIndex": start, "count": 2})
        assert (status, page["totalResults"], page["startIndex"]) == (200, 5, start)
        assert page["itemsPerPage"] == len(page["Resources"])
        found += [each["userName"] for each in page["Resources"]]
    assert sorted(found) == [f"user-{number}" for number in range(5)]
    _, page = await provider.ask("GET", "Users", params={"startIndex": "0", "count": "-1"})
    assert (page["totalResults"], page["startIndex"], page["Resources"]) == (5, 1, [])


@pytest.mark.parametrize("kind", ["object", "list"])
async def test_a_user_whose_values_are_deep_could_not_be_changed_any_more(provider: Provider, kind: str) -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = {"a": value} if kind == "object" else [value]
        return value

    path = f"Users/{await provider.user(nickName=nested(MAX_DEPTH - 2))}"
    for deep in (nested(MAX_DEPTH), nested(600)):
        assert (await provider.ask("POST", "Users", {**OKTA, "userName": BOB, "nickName": deep}))[0] == 400
        assert (await provider.patch(path, {"op": "add", "path": "title", "value": deep}))[0] == 400
        assert (await provider.ask("PUT", path, {**OKTA, "title": deep}))[0] == 400
    status, shown = await provider.patch(path, {"op": "replace", "path": "active", "value": False})
    assert (status, shown["active"]) == (200, False)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "Users", {}, 400, "invalidValue"),
        ("POST", "Users", [], 400, "invalidSyntax"),
        ("POST", "Users", {"userName": "x", "active": "perhaps"}, 400, "invalidValue"),
        ("POST", "Users", {"userName": "x", "emails": "x"}, 400, "invalidValue"),
        ("POST", "Groups", {"displayName": "x", "members": [{}]}, 400, "invalidValue"),
        ("GET", "Users?filter=userName+co+%22a%22", None, 400, "invalidFilter"),
        ("GET", "Users?count=many", None, 400, "invalidValue"),
        ("PUT", "Users/x", {"userName": "x"}, 404, None),
        ("PATCH", "Groups/x", {}, 404, None),
    ],
)
async def test_a_bad_request_has_an_error_of_scim(
    provider: Provider, method: str, path: str, body: Any, status: int, kind: str | None
) -> None:
    found, fault = await provider.ask(method, path, body)
    assert (found, fault["status"], fault.get("scimType")) == (status, str(status), kind)
    assert fault["detail"]


async def test_only_its_own_token_opens_it(provider: Provider) -> None:
    for path in ("Users", "Groups/x", "ServiceProviderConfig"):
        for token in (ADMIN_TOKEN, secret("hers"), "wrong-token-0123456789abc"):
            status, fault = await Provider(provider.client, token).ask("GET", path)
            assert (status, fault["status"]) in ((401, "401"), (429, "429")), token


async def test_the_token_before_works_on(provider: Provider) -> None:
    await Provider(provider.client, BEFORE).user(active=False)
    assert (await audit(provider.client))[0][2] == "scim.previous_token from 127.0.0.1"


async def test_without_a_token_there_is_no_scim(inside: Inside) -> None:
    status, fault = await Provider(await inside(NOWHERE)).ask("GET", "Users")
    assert (status, fault["detail"]) == (404, "This gateway has no SCIM: scim.token is not set.")


async def test_a_store_that_is_away_is_a_503(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> None:
        raise StoreUnavailable("redis://secret-host cannot be reached")

    monkeypatch.setattr(Directory, "create", away)
    status, fault = await provider.ask("POST", "Users", OKTA)
    assert (status, fault["detail"]) == (503, "The store does not answer. Repeat the request.")


async def test_what_is_supported_is_described(provider: Provider) -> None:
    _, config = await provider.ask("GET", "ServiceProviderConfig")
    assert (config["patch"], config["bulk"]["supported"]) == ({"supported": True}, False)
    assert config["authenticationSchemes"][0]["type"] == "oauthbearertoken"
    _, types = await provider.ask("GET", "ResourceTypes")
    assert [each["endpoint"] for each in types["Resources"]] == ["/Users", "/Groups"]
    _, schemas = await provider.ask("GET", "Schemas")
    assert [each["id"].rpartition(":")[2] for each in schemas["Resources"]] == ["User", "Group"]


@pytest.mark.parametrize(
    ("person", "user"),
    [("email", {"userName": "a123"}), ("externalId", {"userName": "a123", "externalId": ALICE})],
)
async def test_another_attribute_may_name_people(inside: Inside, person: str, user: dict[str, Any]) -> None:
    scim = {"token": TOKEN, "person": person}
    provider = Provider(await inside(NOWHERE, keys=[key("hers", owner=ALICE)], scim=scim))
    await provider.user(**user, active=False)
    assert await provider.call("hers") == 401


DEEP: Any = 1
for _ in range(MAX_DEPTH):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "given",
    [{"title": "\ud800"}, {"\udc00": 1}, {"userName": "\ud800"}, {"x": DEEP}, {"n" * 1001: 1}],
    ids=["value", "name", "userName", "depth", "long name"],
)
async def test_a_body_that_cannot_be_kept_is_refused(provider: Provider, given: dict[str, Any]) -> None:
    status, refused = await provider.ask("POST", "Users", {**OKTA, **given})
    assert (status, refused["scimType"]) == (400, "invalidSyntax")
    made = await provider.user()
    status, refused = await provider.patch(f"Users/{made}", {"op": "add", "value": given})
    assert (status, refused["scimType"]) == (400, "invalidSyntax")


async def test_half_of_a_character_in_a_filter(provider: Provider) -> None:
    status, refused = await provider.ask("GET", "Users", params={"filter": 'userName eq "\\ud800"'})
    assert (status, refused["scimType"]) == (400, "invalidFilter")


async def test_names_are_found_as_people_are_compared(provider: Provider) -> None:
    """By the case of letters and their Unicode form, and no further: a provider changes the user that it finds."""
    ids = {name: await provider.user(userName=name) for name in ("strauß@example.org", "STRAUSS@example.org")}
    for name, found in {
        "STRAUß@example.org": "strauß@example.org",
        "strauss@example.org": "STRAUSS@example.org",
    }.items():
        _, page = await provider.ask("GET", "Users", params={"filter": f'userName eq "{name}"'})
        assert [each["id"] for each in page["Resources"]] == [ids[found]]


async def test_members_by_another_spelling_of_value(provider: Provider) -> None:
    user = await provider.user()
    await provider.ask("POST", "Groups", {"displayName": "g", "members": [{"Value": user}]})
    assert [each["display"] for each in (await provider.ask("GET", f"Users/{user}"))[1]["groups"]] == ["g"]

"""People at run time: their quotas, windows and roles, and what of them a gateway's calls go by."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.config import ConfigError
from gateway.errors import Conflict, InvalidRequest, NotFound, Unauthorized
from gateway.keys import cache as under_test
from gateway.quota import labels
from gateway.quota.issued import Overlay, Pause
from gateway.records import Call, Claim, Document, Key, Params
from gateway.store import DocumentKind, StoreChange
from gateway.web.admin.permissions import Principal, Scope
from gateway.wings.budgets.people import limits_of
from gateway.wings.leavers.access import Access
from tests.keys.conftest import BY, Scenario, settings
from tests.keys.people import ANN, DAILY, MORE, limits, with_two_keys
from tests.store.worker import Worker


async def test_people_are_the_owners_of_keys_and_the_names_of_the_file(scenario: Scenario) -> None:
    await with_two_keys(scenario)
    rows = (await limits_of(scenario.registry).list_people()).rows
    assert [(row["name"], row["keys"], row["quotas"], row["managed_by"]) for row in rows] == [
        (ANN, ["one", "two"], DAILY, None), ("named", [], DAILY, "file"),
    ]  # fmt: skip
    assert [row["scope"] for row in rows[0]["windows"]] == [f"person:{ANN}", f"member:red/{ANN}"]
    page = await limits_of(scenario.registry).list_people("", 1)
    assert ([row["name"] for row in page.rows], page.next) == ([ANN], ANN)
    assert await limits_of(scenario.registry).show_person(ANN) == rows[0]
    with pytest.raises(NotFound):
        await limits_of(scenario.registry).show_person("stranger")


async def test_quotas_that_a_person_is_given_bind_all_her_keys(scenario: Scenario) -> None:
    secrets = await with_two_keys(scenario)
    shown = await limits_of(scenario.registry).update_person(ANN, {"quotas": MORE}, BY)
    assert (shown["quotas"], shown["managed_by"]) == (MORE, "store")
    for secret in secrets:
        assert (f"person:{ANN}", 9) in await limits(scenario, secret)
    (entry,) = (await scenario.registry.audit(1)).rows
    assert (entry["kind"], entry["name"], entry["action"], entry["actor"]) == ("person", ANN, "update", BY)
    assert (entry["before"]["quotas"], entry["after"]["quotas"]) == (DAILY, MORE)
    await limits_of(scenario.registry).update_person(ANN, {"quotas": None}, BY)
    assert (f"person:{ANN}", 5) in await limits(scenario, secrets[0])
    with pytest.raises(Conflict):
        await limits_of(scenario.registry).update_person("named", {"quotas": MORE}, BY)
    with pytest.raises(InvalidRequest) as error:
        await limits_of(scenario.registry).update_person(ANN, {"quotas": [*DAILY, *DAILY]}, BY)
    assert error.value.param == "quotas[1]"


@pytest.mark.parametrize("scope", [f"person:{ANN}", f"member:red/{ANN}"])
async def test_top_ups_and_resets_of_a_person(scenario: Scenario, scope: str) -> None:
    _, secret = await with_two_keys(scenario)
    cache = scenario.book()
    await cache.hear()
    key = await scenario.caller(cache, secret)
    windows = [each.window(scenario.now) for each in cache.terms.of(key)]
    await Worker(scenario.store).granted(*[Claim(window, 3) for window in windows], time=scenario.now)
    (row,) = await scenario.registry.top_up(scope, {"requests": 2, "per": "day"}, BY)
    assert (row["scope"], row["limit"], row["used"] + row["reserved"]) == (scope, 7, 3)
    assert (scope, 7) in await limits(scenario, secret)
    (row,) = await scenario.registry.reset_quotas(scope, {}, BY)
    assert row["used"] == 0
    with pytest.raises(NotFound):
        await scenario.registry.top_up(scope, {"tokens": 2, "per": "day"}, BY)


async def test_a_key_with_another_owner_leaves_its_use_behind(scenario: Scenario) -> None:
    secret, _ = await with_two_keys(scenario)
    cache = scenario.book()
    await cache.hear()
    (window,) = [each.window(scenario.now) for each in cache.terms.of(await scenario.caller(cache, secret))]
    await Worker(scenario.store).granted(Claim(window, 3), time=scenario.now)
    await scenario.registry.update_key("one", {"owner": "bob"}, BY)
    used = {
        row["name"]: row["windows"][0]["reserved"] for row in (await limits_of(scenario.registry).list_people()).rows
    }
    assert used == {ANN: 3, "bob": 0, "named": 0}
    assert await limits(scenario, secret) == [("person:bob", 5)]


async def test_quotas_of_her_own_replace_quotas_alone(scenario: Scenario) -> None:
    scenario.config = settings(people={"defaults": {"quotas": DAILY, "max_parallel": 4, "on_exceeded": "shadow"}})
    await scenario.registry.create_key({"id": "one", "owner": ANN}, BY)
    shown = await limits_of(scenario.registry).update_person(ANN, {"quotas": MORE}, BY)
    assert (shown["quotas"], shown["max_parallel"], shown["on_exceeded"]) == (MORE, 4, "shadow")


async def test_a_team_made_again_leaves_its_members_and_labels_nothing(scenario: Scenario) -> None:
    """Neither use nor top-ups of the people of a team that was deleted come back with its name, nor those of labels."""
    scenario.config = settings()
    labelled = {"requests": 5, "per": "day", "label": "project"}
    scopes = (
        f"member:again/{ANN}",
        "team_tag:again/project=web",
        "team_tag:again/project",
        "team_label:again/project=ops",
    )
    secret = ""
    for round_ in ("first", "second"):
        await scenario.registry.create_team({"name": "again", "member_quotas": DAILY, "quotas": [labelled]}, BY)
        made = await scenario.registry.create_key(
            {"id": round_, "owner": ANN, "team": "again", "labels": {"project": "ops"}}, BY
        )
        cache, secret = scenario.book(), made.secret
        await cache.hear()
        key = replace(await scenario.caller(cache, secret), labels=())
        call = Call(
            "c", scenario.now, key, "chat", Params(Document("", {}), "m"), scenario.config.models["gpt-4o"], "m", 0.0,
            tags="project=web",
        )  # fmt: skip
        await cache.know(call)
        for scope in scopes:
            (row,) = await scenario.registry.top_up(scope, {"requests": 1, "per": "day"}, BY)
            assert (row["used"], row["limit"]) == (0, 6), (round_, scope)
            (window,) = await scenario.registry._windows(scope, scenario.now)
            await Worker(scenario.store).granted(Claim(window, 3), time=scenario.now)
        await scenario.registry.revoke_key(round_, BY)
        await scenario.registry.delete_team("again", BY)


def a_call(scenario: Scenario, value: str) -> Call:
    """A call with this value of the tag `project`."""
    return Call(
        "c", scenario.now, Key("k"), "chat", Params(Document("", {}), "m"), scenario.config.models["gpt-4o"], "m",
        0.0, tags=f"project={value}",
    )  # fmt: skip


async def test_workers_agree_on_the_values_of_a_label(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gives the first values windows of their own, whichever worker notes them; others share one."""
    monkeypatch.setattr(labels, "MAX_VALUES", 3)
    scenario.config = settings(quotas=[{"requests": 5, "per": "day", "label": "project"}])
    caches = [scenario.book(), scenario.book()]

    values = [f"v{number}" for number in range(6)]
    await asyncio.gather(*[
        cache.know(a_call(scenario, value))
        for cache, some in zip(caches, (values, values[::-1]), strict=True)
        for value in some
    ])  # fmt: skip
    seen = [
        [each.scope for value in values for each in cache.terms.of_call(a_call(scenario, value)).each]
        for cache in caches
    ]
    assert seen[0] == seen[1]
    assert seen[0].count("tag:project") == 3
    assert len(set(seen[0])) == 4


@pytest.mark.parametrize(
    "kept", [{"of_a_wing": [1]}, {"top_ups": [["requests", "day", None, 5]]}], ids=["more", "newer"]
)
async def test_what_others_keep_with_the_values_of_a_tag_stays(scenario: Scenario, kept: dict[str, Any]) -> None:
    """Of a wing, and of a newer gateway: what this one cannot read it leaves alone."""
    scenario.config = settings(quotas=[{"requests": 5, "per": "day", "label": "project"}])
    text = json.dumps({"revoked_at": None, "top_ups": [], **kept})
    assert await scenario.store.change(StoreChange("overlay", "tag:project", None, text, ""))
    cache = scenario.book()
    await cache.know(a_call(scenario, "web"))
    (found,) = await scenario.store.read("overlay", ["tag:project"])
    assert found is not None
    assert {name: json.loads(found)[name] for name in kept} == kept
    (limit,) = cache.terms.of_call(a_call(scenario, "web")).each
    assert limit.scope == ("tag:project=web" if "of_a_wing" in kept else "tag:project")


class Hanging:
    """A store that answers no more until it `may_answer`, and counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked = 0
        self.may_answer = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, kind: DocumentKind, names: Sequence[str]) -> list[str | None]:
        self.asked += 1
        await self.may_answer.wait()
        found: list[str | None] = await self._store.read(kind, names)
        return found


async def test_calls_do_not_queue_for_a_store_that_hangs(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """All wait for one answer at most; then new values share the windows of all others, until it is asked again."""
    monkeypatch.setattr(under_test, "NOTED_WITHIN_S", 0.01)
    scenario.config = settings(quotas=[{"requests": 5, "per": "day", "label": "project"}])
    scenario.store = hanging = Hanging(scenario.store)
    cache = scenario.book()
    await asyncio.gather(*[cache.know(a_call(scenario, f"v{number}")) for number in range(20)])
    await cache.know(a_call(scenario, "late"))
    assert hanging.asked == 1
    assert [each.scope for each in cache.terms.of_call(a_call(scenario, "late")).each] == ["tag:project"]
    hanging.may_answer.set()
    monkeypatch.undo()
    scenario.now += 1
    await cache.know(a_call(scenario, "late"))
    assert [each.scope for each in cache.terms.of_call(a_call(scenario, "late")).each] == ["tag:project=late"]


SPELLINGS = [("Ada@X.com", "ada@x.com"), ("zo\u00eb@x.com", "ZOE\u0308@x.com"), ("ada@x.com", "ADA@X.COM")]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
async def test_spellings_of_a_name_are_one_person(scenario: Scenario, one: str, other: str) -> None:
    """Her access, her quotas, her sessions and what is her own: neither case nor Unicode form counts."""
    scenario.config = settings(
        people={other: {"quotas": MORE}, "defaults": {"quotas": DAILY}}, teams={"red": {"member_quotas": DAILY}}
    )
    made = [
        await scenario.registry.create_key({"id": f"key-{place}", "owner": name, "team": "red"}, BY)
        for place, name in enumerate((one, other))
    ]
    first, second = [await limits(scenario, each.secret) for each in made]
    assert first == second
    assert [limit for _, limit in first] == [9, 5]
    (row,) = (await limits_of(scenario.registry).list_people()).rows
    assert (row["name"], row["keys"], row["quotas"], len(row["windows"])) == (one, ["key-0", "key-1"], MORE, 2)
    assert await limits_of(scenario.registry).show_person(other) == row
    await scenario.registry.set_access(other, "scim", BY)
    cache = scenario.book()
    await cache.hear()
    for each in made:
        with pytest.raises(Unauthorized):
            await scenario.caller(cache, each.secret)
    await scenario.registry.set_access(one, None, BY)
    await cache.hear()
    assert {(await scenario.caller(cache, each.secret)).id for each in made} == {"key-0", "key-1"}
    stored = [(await scenario.registry.show_key(f"key-{place}"))["owner"] for place in (0, 1)]
    assert stored == [one, other]  # as they were written
    scope = Scope("own", Principal("person", "member", owner=one))
    found = await scenario.registry.list_keys("", 9, None, scope.covers, scope.groups)
    assert [row["id"] for row in found.rows] == ["key-0", "key-1"]
    if one != "ada@x.com":
        (topped,) = await scenario.registry.top_up(f"person:{one}", {"requests": 1, "per": "day"}, BY)
        assert topped["limit"] == 10
        assert (await limits(scenario, made[1].secret))[0][1] == 10
        (topped,) = await scenario.registry.top_up(f"member:red/{one}", {"requests": 1, "per": "day"}, BY)
        assert [limit for _, limit in await limits(scenario, made[1].secret)] == [10, topped["limit"]] == [10, 6]


async def test_the_name_of_a_team_is_as_it_is_written(scenario: Scenario) -> None:
    """In the scope of a member stands the name of her team, too, whose case counts."""
    scenario.config = settings(teams={"Red": {"member_quotas": DAILY}})
    made = await scenario.registry.create_key({"id": "hers", "owner": "Ada@x.com", "team": "Red"}, BY)
    for more in (1, 2):
        (topped,) = await scenario.registry.top_up("member:Red/ADA@x.com", {"requests": 1, "per": "day"}, BY)
        assert await limits(scenario, made.secret) == [("member:Red/ada@x.com", topped["limit"])]
        assert topped["limit"] == 5 + more
    assert await scenario.registry.reset_quotas("member:Red/ada@x.com", {}, BY)


async def test_two_spellings_of_a_person_in_the_file_are_a_fault() -> None:
    with pytest.raises(ConfigError, match="one person"):
        settings(people={"Ada@x.com": {"quotas": DAILY}, "ada@x.com": {"quotas": MORE}})


async def test_what_older_gateways_wrote_under_spellings_counts(scenario: Scenario) -> None:
    """Of two, the one whose access has ended. It counts for keys before it was copied to the name that is compared."""
    made = await scenario.registry.create_key({"id": "hers", "owner": "ada@x.com"}, BY)
    ended = Overlay(paused=Pause(scenario.now, "operator")).encode()
    for name, text in (("ADA@x.com", Overlay().encode()), ("Ada@X.com", ended)):
        assert await scenario.store.change(StoreChange("overlay", f"person:{name}", None, text, ""))
    cache = scenario.book()
    await cache.hear()
    with pytest.raises(Unauthorized):
        await scenario.caller(cache, made.secret)
    access: Access = scenario.registry.viewed_as(Access)
    for _ in range(2):  # another gateway begins, too
        await access.fold_names()
    assert (await limits_of(scenario.registry).show_person("Ada@x.com"))["access_ended_by"] == "operator"
    await scenario.registry.set_access("ADA@x.com", None, BY)
    await access.fold_names()
    for book in (cache, scenario.book()):
        await book.hear()
        assert (await scenario.caller(book, made.secret)).id == "hers"

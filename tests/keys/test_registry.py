"""Changes of keys, teams and quotas at run time: their effect, refusals, and the audit log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import Conflict, GatewayError, InvalidRequest, NotFound
from gateway.quota.issued import may_be_issued
from gateway.records import Claim
from tests.store.worker import Worker

from .conftest import BY, Scenario, settings


async def received(scenario: Scenario) -> list[tuple[str, str, str]]:
    """The audit log, oldest first: (action, target)."""
    return [(row["action"], row["kind"], row["name"]) for row in reversed((await scenario.registry.audit()).rows)]


async def test_a_key_is_made_and_its_secret_is_shown_once(scenario: Scenario) -> None:
    made = await scenario.registry.create_key({"id": "alice", "quotas": [{"tokens": 5, "per": "day"}]}, BY)
    assert may_be_issued(made.secret)
    assert made.secret.startswith("sk-gw-alice-")
    assert made.key["status"] == "active"
    assert made.key["managed_by"] == "store"
    assert made.key["quotas"] == [{"tokens": 5, "per": "day"}]
    everything = [await scenario.registry.show_key("alice"), (await scenario.registry.list_keys()).rows]
    everything += [(await scenario.registry.audit()).rows, await scenario.store.page("key")]
    assert made.secret not in str(everything)


async def test_a_new_key_has_the_defaults_of_the_file_written_into_it(scenario: Scenario) -> None:
    defaults = {"keys": {"models": ["gpt-*"], "quotas": [{"requests": 5, "per": "day"}], "expires_after_s": 60}}
    scenario.config = settings(defaults=defaults)
    made = await scenario.registry.create_key({"id": "alice"}, BY)
    scenario.config = settings()
    shown = await scenario.registry.show_key("alice")
    assert shown["models"] == made.key["models"] == ["gpt-*"]
    assert shown["quotas"] == [{"requests": 5, "per": "day"}]
    assert shown["expires"] is not None
    assert made.warnings == ()


async def test_a_default_expiry_ends_where_the_calendar_does(scenario: Scenario) -> None:
    scenario.config = settings(defaults={"keys": {"expires_after_s": 10**15}})
    made = await scenario.registry.create_key({"id": "alice"}, BY)
    assert str(made.key["expires"]).startswith("9999-12-31T23:59:59")


DEFAULT = [{"requests": 5, "per": "day"}, {"usd": 20, "per": "month"}]


@pytest.mark.parametrize(
    ("given", "quotas"),
    [
        ({"quota_changes": {"tokens": ["1k/day"]}}, [*DEFAULT, {"tokens": 1000, "per": "day"}]),
        ({"quota_changes": {"requests": ["7/day"]}}, [{"requests": 7, "per": "day"}, DEFAULT[1]]),
        ({"quota_changes": {"usd": ["none/month"]}}, DEFAULT[:1]),
        ({"quota_changes": {}}, DEFAULT),
        ({"quotas": [{"tokens": 9, "per": "day"}]}, [{"tokens": 9, "per": "day"}]),
        ({"quotas": []}, []),
    ],
)
async def test_quota_changes_are_beside_the_defaults_and_quotas_in_their_place(
    scenario: Scenario, given: dict[str, Any], quotas: list[Any]
) -> None:
    scenario.config = settings(defaults={"keys": {"quotas": DEFAULT}})
    assert (await scenario.registry.create_key({"id": "alice", **given}, BY)).key["quotas"] == quotas


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"quota_changes": {"usd": ["none/day"]}}, "there is no quota of usd per day to take away"),
        ({"quota_changes": {"days": ["1/day"]}}, "'days': quotas are in requests, tokens, usd."),
        ({"quota_changes": {"requests": ["5/day"], "days": 1}}, "'days': quotas are in requests, tokens, usd."),
        ({"quota_changes": {"usd": ["much/day"]}}, "expected an amount in US dollars"),
        ({"quota_changes": {"usd": ["5/day"]}, "quotas": []}, "not both"),
    ],
)
async def test_quota_changes_that_cannot_be_made(scenario: Scenario, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await scenario.registry.create_key({"id": "alice", **given}, BY)


QUOTAS = [{"requests": 5, "per": "day"}]
TEAM = {"crew": {"quotas": QUOTAS}}
ZOE = {"id": "zoe", "secret": "s" * 24, "quotas": QUOTAS}


@pytest.mark.parametrize(
    ("others", "wish", "is_warned"),
    [
        ({}, {}, False),  # no quota anywhere
        ({"keys": [ZOE]}, {}, True),
        ({"keys": [ZOE]}, {"quotas": QUOTAS}, False),
        ({"keys": [ZOE], "quotas": QUOTAS}, {}, False),
        ({"teams": TEAM}, {}, True),
        ({"teams": TEAM}, {"team": "crew"}, False),
        ({"keys": [ZOE], "people": {"defaults": {"quotas": QUOTAS}}}, {}, True),
        ({"keys": [ZOE], "people": {"defaults": {"quotas": QUOTAS}}}, {"owner": "ann"}, False),
        ({"teams": {"crew": {"member_quotas": QUOTAS}}, "keys": [ZOE]}, {"owner": "ann", "team": "crew"}, False),
    ],
    ids=str,
)
async def test_a_key_without_a_quota_is_pointed_out_where_others_have_one(
    scenario: Scenario, others: dict[str, Any], wish: dict[str, Any], is_warned: bool
) -> None:
    scenario.config = settings(**{"keys": [], "teams": {}, **others})
    made = await scenario.registry.create_key({"id": "alice", **wish}, BY)
    assert bool(made.warnings) is is_warned


@pytest.mark.parametrize("quotas", [[], QUOTAS], ids=["no other has one", "others have"])
async def test_the_warning_for_a_lead_does_not_depend_on_other_teams(scenario: Scenario, quotas: list[Any]) -> None:
    scenario.config = settings(keys=[], teams={"rival": {"quotas": quotas}})
    made = await scenario.registry.create_key({"id": "alice"}, BY, sees_all=False)
    assert "may spend without limit" in made.warnings[0]
    assert bool((await scenario.registry.create_key({"id": "bob"}, BY)).warnings) is bool(quotas)


async def test_quotas_of_the_store_count_as_those_of_others(scenario: Scenario) -> None:
    scenario.config = settings(keys=[], teams={})
    await scenario.registry.create_key({"id": "bob", "quotas": QUOTAS}, BY)
    assert "may spend without limit" in (await scenario.registry.create_key({"id": "alice"}, BY)).warnings[0]


@pytest.mark.parametrize(
    ("wish", "param", "says"),
    [
        ({}, "id", "is required"),
        ({"id": "Alice"}, "id", "pattern"),
        ({"id": "other"}, "id", "choose another id"),
        ({"id": "a", "team": "nobody"}, "team", "there is no team 'nobody'"),
        ({"id": "a", "quota": []}, "quota", "did you mean 'quotas'?"),
        ({"id": "a", "quotas": [{"tokens": 5}]}, "quotas[0].per", "is required"),
        ({"id": "a", "quotas": [{"tokens": 5, "per": "day"}, {"tokens": 6, "per": "day"}]}, "quotas[1]", "keep one"),
        ({"id": "a", "expires": "2027-13-01"}, "expires", "expected a day such as 2027-01-01"),
        ({"id": "a", "expires": "99999999999d"}, "expires", "expected a day such as 2027-01-01"),
        ({"id": "a", "secret": "x" * 30}, "secret", "no such setting"),
        ({"id": "a", "limits": {"n": 1, "m": 2}}, "limits.m", "no such setting"),
    ],
)
async def test_faults_of_a_request_are_reported_with_their_path(
    scenario: Scenario, wish: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says.replace("?", r"\?")) as caught:
        await scenario.registry.create_key(wish, BY)
    assert caught.value.param == param
    assert await received(scenario) == []


async def test_a_quota_of_tokens_needs_a_limit_for_the_output_of_its_models(scenario: Scenario) -> None:
    scenario.config = settings(models={"gpt-4o": {"routes": [{"upstream": "u"}]}}, teams={}, keys=[])
    with pytest.raises(InvalidRequest, match="has no max_output_tokens"):
        await scenario.registry.create_key({"id": "a", "quotas": [{"tokens": 5, "per": "day"}]}, BY)
    await scenario.registry.create_key({"id": "b", "quotas": [{"requests": 5, "per": "day"}]}, BY)
    await scenario.registry.create_key({"id": "c", "models": ["o1"], "quotas": [{"tokens": 5, "per": "day"}]}, BY)


async def test_a_name_is_never_used_again(scenario: Scenario) -> None:
    await scenario.registry.create_key({"id": "alice"}, BY)
    await scenario.registry.revoke_key("alice", BY)
    for name in ("alice", "ci-bot"):
        with pytest.raises(Conflict) as caught:
            await scenario.registry.create_key({"id": name}, BY)
        assert caught.value.code == "already_exists"


async def test_of_two_who_make_the_same_key_one_does(scenario: Scenario) -> None:
    made = await asyncio.gather(
        *[scenario.registry.create_key({"id": "alice"}, BY) for _ in range(10)], return_exceptions=True
    )
    assert len([each for each in made if isinstance(each, Conflict)]) == 9
    assert await received(scenario) == [("create", "key", "alice")]


async def test_settings_are_changed_one_by_one_and_taken_back_to_their_defaults(scenario: Scenario) -> None:
    await scenario.registry.create_key({"id": "alice", "max_parallel": 3, "quotas": [{"usd": 1, "per": "day"}]}, BY)
    changed = await scenario.registry.update_key("alice", {"team": "platform", "max_parallel": None}, BY)
    assert (changed["team"], changed["max_parallel"]) == ("platform", None)
    assert changed["quotas"] == [{"usd": 1, "per": "day"}]
    (entry,) = (await scenario.registry.audit(limit=1)).rows
    assert (entry["actor"], entry["action"]) == (BY, "update")
    assert (entry["before"]["team"], entry["after"]["team"]) == (None, "platform")
    with pytest.raises(InvalidRequest) as caught:
        await scenario.registry.update_key("alice", {"id": "bob"}, BY)
    assert caught.value.param == "id"


async def test_what_the_file_manages_is_only_read_but_can_be_revoked(scenario: Scenario) -> None:
    for change in (
        scenario.registry.update_key("ci-bot", {"max_parallel": 1}, BY),
        scenario.registry.rotate_key("ci-bot", 0, BY),
        scenario.registry.update_team("platform", {"quotas": []}, BY),
        scenario.registry.delete_team("platform", BY),
    ):
        with pytest.raises(Conflict) as caught:
            await change
        assert caught.value.code == "managed_by_file"
    assert (await scenario.registry.show_key("ci-bot"))["status"] == "active"
    for _ in range(2):  # the second time changes nothing
        assert (await scenario.registry.revoke_key("ci-bot", BY))["status"] == "revoked"
    assert await received(scenario) == [("revoke", "key", "ci-bot")]


async def test_a_revoked_key_stays_revoked(scenario: Scenario) -> None:
    await scenario.registry.create_key({"id": "alice"}, BY)
    revoked = await scenario.registry.revoke_key("alice", BY)
    assert (revoked["status"], revoked["revoked_at"]) == ("revoked", "2027-01-15T08:00:00Z")
    for change in (scenario.registry.update_key("alice", {}, BY), scenario.registry.rotate_key("alice", 0, BY)):
        with pytest.raises(Conflict) as caught:
            await change
        assert caught.value.code == "revoked"


@pytest.mark.parametrize("overlap_s", [-1, 31 * 86400, float("nan")])
async def test_an_overlap_has_its_bounds(scenario: Scenario, overlap_s: float) -> None:
    await scenario.registry.create_key({"id": "alice"}, BY)
    with pytest.raises(InvalidRequest) as caught:
        await scenario.registry.rotate_key("alice", overlap_s, BY)
    assert caught.value.param == "overlap_s"


async def test_keys_are_listed_in_pages_of_file_and_store_together(scenario: Scenario) -> None:
    names = sorted(["ci-bot", *[f"{letter}-{number}" for letter in "az" for number in range(12)]])
    for name in names:
        if name != "ci-bot":
            await scenario.registry.create_key({"id": name, "team": "platform" if name < "b" else None}, BY)
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        rows, after = await scenario.registry.list_keys(after, limit=5)
        found += [row["id"] for row in rows]
    assert found == names
    assert len((await scenario.registry.list_keys(team="platform")).rows) == 12
    assert sorted([key.id async for some in scenario.registry.every_key() for key in some]) == names
    assert [key.id async for some in scenario.registry.every_key("a-1") for key in some] == ["a-1"]
    assert [key.id async for some in scenario.registry.every_key("nobody") for key in some] == []


async def test_a_team_is_made_changed_and_deleted_when_empty(scenario: Scenario) -> None:
    await scenario.registry.create_team({"name": "red", "quotas": [{"usd": 5, "per": "day"}]}, BY)
    await scenario.registry.create_key({"id": "alice", "team": "red"}, BY)
    changed = await scenario.registry.update_team("red", {"quotas": [{"usd": 7, "per": "day"}]}, BY)
    assert changed["quotas"] == [{"usd": 7, "per": "day"}]
    assert [row["name"] for row in (await scenario.registry.list_teams()).rows] == ["platform", "red"]
    with pytest.raises(Conflict, match="alice") as caught:
        await scenario.registry.delete_team("red", BY)
    assert caught.value.code == "team_in_use"
    await scenario.registry.revoke_key("alice", BY)
    await scenario.registry.delete_team("red", BY)
    with pytest.raises(NotFound):
        await scenario.registry.show_team("red")


@pytest.mark.parametrize("wish", [{}, {"name": "Red"}, {"name": 5}, {"name": "red", "keys": []}])
async def test_a_team_needs_a_name_and_nothing_unknown(scenario: Scenario, wish: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await scenario.registry.create_team(wish, BY)


async def test_a_top_up_raises_the_window_of_today_and_is_over_tomorrow(scenario: Scenario) -> None:
    (row,) = await scenario.registry.top_up("key:ci-bot", {"requests": 3, "per": "day"}, BY)
    assert (row["limit"], row["remaining"]) == (8, 8)
    (row,) = await scenario.registry.top_up("key:ci-bot", {"requests": 2, "per": "day"}, BY)
    assert row["limit"] == 10
    assert (await scenario.registry.show_key("ci-bot"))["top_ups"] == [
        {"unit": "requests", "per": "day", "model": None, "window": "2027-01-15", "amount": 5}
    ]
    scenario.now += 86400
    (row,) = await scenario.registry.top_up("key:ci-bot", {"requests": 1, "per": "day"}, BY)
    assert row["limit"] == 6


@pytest.mark.parametrize(
    ("scope", "grant", "code"),
    [
        ("key:ci-bot", {"tokens": 3, "per": "day"}, "quota_not_found"),
        ("key:ci-bot", {"requests": 3, "per": "month"}, "quota_not_found"),
        ("key:ci-bot", {"requests": 3, "per": "minute"}, None),
        ("key:ci-bot", {"requests": -3, "per": "day"}, None),
        ("key:ci-bot", {"requests": 2**53 - 3, "per": "day"}, None),
        ("key:nobody", {"requests": 3, "per": "day"}, "key_not_found"),
        ("team:nobody", {"requests": 3, "per": "day"}, "team_not_found"),
        ("gateway", {"requests": 3, "per": "day"}, "quota_not_found"),
    ],
)
async def test_only_a_quota_that_there_is_can_be_topped_up(
    scenario: Scenario, scope: str, grant: dict[str, Any], code: str | None
) -> None:
    with pytest.raises(GatewayError) as caught:
        await scenario.registry.top_up(scope, grant, BY)
    assert caught.value.code == code
    assert await received(scenario) == []


async def test_a_team_of_the_file_and_one_of_the_store_are_topped_up_alike(scenario: Scenario) -> None:
    await scenario.registry.create_team({"name": "red", "quotas": [{"usd": 10, "per": "month"}]}, BY)
    for name in ("red", "platform"):
        (row,) = await scenario.registry.top_up(f"team:{name}", {"usd": 2.5, "per": "month"}, BY)
        assert (row["scope"], row["limit"]) == (f"team:{name}", 12.5)
        assert (await scenario.registry.show_team(name))["top_ups"][0]["amount"] == 2.5


async def test_two_parallel_top_ups_both_count_or_one_gets_a_conflict(scenario: Scenario) -> None:
    done = await asyncio.gather(
        *[scenario.registry.top_up("key:ci-bot", {"requests": 1, "per": "day"}, BY) for _ in range(10)],
        return_exceptions=True,
    )
    refused = [each for each in done if isinstance(each, Conflict)]
    (row,) = await scenario.registry.top_up("key:ci-bot", {"requests": 1, "per": "day"}, BY)
    assert row["limit"] == 5 + 10 - len(refused) + 1
    assert {each.code for each in refused} <= {"changed_meanwhile"}


async def test_the_audit_log_is_read_in_pages_newest_first(scenario: Scenario) -> None:
    for number in range(7):
        await scenario.registry.create_key({"id": f"key-{number}"}, BY)
    found: list[str] = []
    before: str | None = None
    while True:
        rows, before = await scenario.registry.audit(3, before)
        found += [row["name"] for row in rows]
        if before is None:
            break
    assert found == [f"key-{number}" for number in reversed(range(7))]
    with pytest.raises(InvalidRequest):
        await scenario.registry.audit(3, "no position")


async def test_a_team_made_again_under_an_old_name_starts_at_zero(scenario: Scenario) -> None:
    """The windows of the first key are unused and not topped up."""
    wish = {"name": "again", "quotas": [{"requests": 5, "per": "month"}, {"tokens": 9, "per": "hour"}]}
    for _ in range(2):
        await scenario.registry.create_team(wish, BY)
        rows = await scenario.registry.top_up("team:again", {"requests": 5, "per": "month"}, BY)
        assert [(row["used"], row["limit"]) for row in rows] == [(0, 10), (0, 9)]
        windows = await scenario.registry._windows("team:again", scenario.now)
        await Worker(scenario.store).granted(*[Claim(window, 3) for window in windows], time=scenario.now)
        await scenario.registry.delete_team("again", BY)

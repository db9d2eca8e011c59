"""Keys that are paused and resumed, and keys that are deleted because they were never used."""

from __future__ import annotations

import pytest

from gateway.errors import Conflict, NotFound, Unauthorized
from gateway.quota.issued import IssuedKey, Overlay
from gateway.quota.ledger_entry import encode
from gateway.records import Settlement
from gateway.store import Batch, Settle
from tests.browser.stores import days
from tests.flows.planted import record
from tests.store.test_contract_bonds import bond
from tests.store.test_contract_refusals import entry

from .conftest import BY, SECRET, Scenario, settings


def nothing(_: str) -> None:
    """Every role may resume."""


async def refusal(scenario: Scenario, secret: str) -> str | None:
    book = scenario.books[-1]
    await book.hear()
    try:
        await scenario.caller(book, secret)
    except Unauthorized as error:
        return error.message
    return None


QUOTAS = [{"tokens": 10, "per": "day"}]
PAUSED = "This API key is paused. Ask its owner or the operator of this gateway to resume it."


@pytest.mark.parametrize("kind", ["file", "store"])
async def test_a_paused_key_is_refused_until_it_is_resumed(scenario: Scenario, kind: str) -> None:
    book = scenario.book()
    await book.hear()
    name, secret = "ci-bot", SECRET
    if kind == "store":
        name = "alice"
        secret = (await scenario.registry.create_key({"id": name}, BY)).secret
    assert await refusal(scenario, secret) is None
    for _ in range(2):  # the second time changes nothing
        shown = await scenario.registry.pause_key(name, "lead", lambda _: False, BY)
        assert (shown["status"], shown["paused_at"]) == ("paused", "2027-01-15T08:00:00Z")
        assert await refusal(scenario, secret) == PAUSED
    if kind == "store":  # what is changed meanwhile does not resume it
        await scenario.registry.update_key(name, {"note": "x"}, BY)
        await scenario.registry.rotate_key(name, 60, BY)
        assert await refusal(scenario, secret) == PAUSED
    asked: list[str] = []
    shown = await scenario.registry.resume_key(name, asked.append, BY)
    assert (shown["status"], shown["paused_at"], asked) == ("active", None, ["lead"])
    assert await refusal(scenario, secret) is None
    await scenario.registry.resume_key(name, asked.append, BY)
    actions = [row["action"] for row in (await scenario.registry.audit()).rows]
    assert (actions.count("pause"), actions.count("resume")) == (1, 1)


async def test_a_revoked_key_stays_revoked(scenario: Scenario) -> None:
    await scenario.registry.create_key({"id": "alice"}, BY)
    await scenario.registry.pause_key("alice", "operator", lambda _: True, BY)
    await scenario.registry.revoke_key("alice", BY)
    for change in (
        scenario.registry.resume_key("alice", nothing, BY),
        scenario.registry.pause_key("alice", "lead", lambda _: True, BY),
    ):
        with pytest.raises(Conflict):
            await change
    assert (await scenario.registry.show_key("alice"))["status"] == "revoked"


async def test_documents_without_a_pause_are_those_of_the_version_before(scenario: Scenario) -> None:
    """So that gateways of both versions read them while one replaces the other."""
    await scenario.registry.create_key({"id": "alice"}, BY)
    (text,) = await scenario.store.read("key", ["alice"])
    assert text is not None
    assert not [name for name in ("paused", "owner", "note", "labels") if f'"{name}"' in text]
    assert "paused" not in Overlay(revoked_at=1.0).encode()
    await scenario.registry.pause_key("alice", "operator", lambda _: True, BY)
    (text,) = await scenario.store.read("key", ["alice"])
    assert text is not None
    assert IssuedKey.decode(text).paused == (scenario.now, "operator")


async def test_a_key_that_was_never_used_is_deleted_and_made_again(scenario: Scenario) -> None:
    book = scenario.book()
    await book.hear()
    wish = {"id": "typo", "quotas": [{"tokens": 10, "per": "day"}]}
    old = (await scenario.registry.create_key(wish, BY)).secret
    await scenario.registry.top_up("key:typo", {"tokens": 5, "per": "day"}, BY)
    assert await refusal(scenario, old) is None
    await scenario.registry.delete_key("typo", BY)
    assert "Incorrect API key" in str(await refusal(scenario, old))
    with pytest.raises(NotFound):
        await scenario.registry.show_key("typo")
    made = await scenario.registry.create_key(wish, BY)
    assert made.key["top_ups"] == (await scenario.registry.show_key("typo"))["top_ups"] == []
    assert await refusal(scenario, made.secret) is None
    assert "Incorrect API key" in str(await refusal(scenario, old))


async def test_a_key_that_was_used_is_not_deleted(scenario: Scenario) -> None:
    secret = (await scenario.registry.create_key({"id": "used"}, BY)).secret
    await settle(scenario, "used")
    with pytest.raises(Conflict) as received:
        await scenario.registry.delete_key("used", BY)
    assert received.value.code == "key_was_used"
    book = scenario.book()
    await book.hear()
    assert await refusal(scenario, secret) is None


async def test_a_key_with_refusals_or_kept_objects_alone_was_used(scenario: Scenario) -> None:
    for name in ("refused", "keeps"):
        await scenario.registry.create_key({"id": name}, BY)
    await scenario.store.add_refusals([entry(1, key="refused", time=scenario.now)], scenario.now)
    await scenario.store.add_bond(bond(key="keeps", kind="file"), scenario.now)
    for name in ("refused", "keeps"):
        with pytest.raises(Conflict) as received:
            await scenario.registry.delete_key(name, BY)
        assert received.value.code == "key_was_used"


async def test_the_id_of_a_removed_key_of_the_file_is_not_made_again_if_it_was_used(scenario: Scenario) -> None:
    """Whatever it has left: a new key of this id would read it."""
    names = ("counted", "refused", "keeps", "topped-up", "untouched")
    file_keys = [{"id": name, "secret": f"sk-{name}-0123456789abcdef", "quotas": QUOTAS} for name in names]
    scenario.config = settings(keys=file_keys)
    await scenario.registry.top_up("key:topped-up", {"tokens": 5, "per": "day"}, BY)
    await scenario.store.add_refusals([entry(1, key="refused", time=scenario.now)], scenario.now)
    await scenario.store.add_bond(bond(key="keeps"), scenario.now)
    await settle(scenario, "counted")
    scenario.config = settings()
    for name in names[:-1]:
        with pytest.raises(Conflict) as received:
            await scenario.registry.create_key({"id": name}, BY)
        assert (received.value.code, received.value.param) == ("id_was_used", "id")
    await scenario.registry.create_key({"id": "untouched"}, BY)
    with pytest.raises(Conflict) as received:
        await scenario.registry.create_key({"id": "untouched"}, BY)
    assert received.value.code == "already_exists"


async def settle(scenario: Scenario, name: str) -> None:
    call = Settlement(record(days(1)[0], name), ())
    await scenario.store.apply(Batch(f"worker-of-{name}", 1, 0, [Settle(1, *call, encode(*call))]))


async def test_keys_of_the_file_are_not_deleted(scenario: Scenario) -> None:
    with pytest.raises(Conflict) as received:
        await scenario.registry.delete_key("ci-bot", BY)
    assert received.value.code == "managed_by_file"


async def test_owner_note_and_labels_are_settings(scenario: Scenario) -> None:
    more = {"owner": "alice@example.org", "note": "for the crawler", "labels": {"cost-center": "x"}}
    made = await scenario.registry.create_key({"id": "alice", **more}, BY)
    assert {name: made.key[name] for name in more} == more
    changed = await scenario.registry.update_key("alice", {"labels": {}, "note": None}, BY)
    assert (changed["owner"], changed["note"], changed["labels"]) == ("alice@example.org", None, {})

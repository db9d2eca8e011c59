"""What a worker knows of keys: looked up once, forgotten when something was changed, not trusted without news."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.api import auth
from gateway.errors import Unauthorized, Unavailable
from gateway.keys import cache as under_test
from gateway.quota.issued import format_secret
from gateway.records import Key
from gateway.store import StoreChange, StoreUnavailable

from .conftest import BY, SECRET, Scenario, settings


class Counted:
    """A store that counts what it is asked, and can be sent away."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.looks: list[int] = []
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away and name != "close":
            raise StoreUnavailable("it is away")
        return getattr(self._store, name)

    async def find_keys(self, digests: Sequence[str]) -> list[str | None]:
        if self.is_away:
            raise StoreUnavailable("it is away")
        self.looks.append(len(digests))
        found: list[str | None] = await self._store.find_keys(digests)
        return found


@pytest.fixture
def counted(scenario: Scenario) -> Counted:
    scenario.store = counted = Counted(scenario.store)
    return counted


def wrong(number: int = 0) -> str:
    return format_secret("nobody", f"{number:043}")


async def test_a_key_made_by_one_is_known_to_all(scenario: Scenario) -> None:
    book = scenario.book()
    await book.hear()
    secret = (await scenario.registry.create_key({"id": "alice", "max_parallel": 2}, BY)).secret
    assert (await scenario.caller(book, secret)).max_parallel == 2


async def test_a_key_is_looked_up_once(scenario: Scenario, counted: Counted) -> None:
    secrets = [(await scenario.registry.create_key({"id": f"key-{n}"}, BY)).secret for n in range(5)]
    book = scenario.book()
    await book.hear()
    for _ in range(3):
        found = await asyncio.gather(*[scenario.caller(book, secret) for secret in secrets for _ in range(10)])
        assert {key.id for key in found} == {f"key-{n}" for n in range(5)}
    assert counted.looks == [5]


async def test_a_revoked_key_is_refused_with_the_next_news(scenario: Scenario) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, secret)
    await scenario.registry.revoke_key("alice", BY)
    await book.hear()
    with pytest.raises(Unauthorized, match="revoked"):
        await scenario.caller(book, secret)


async def test_changes_of_a_wing_among_the_news_change_no_key(scenario: Scenario) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    assert await scenario.store.change(StoreChange("notes", "alice", None, "text", '{"action": "noted"}'))
    await book.hear()
    assert (await scenario.caller(book, secret)).id == "alice"


async def test_a_revoked_key_of_the_file_is_refused_with_the_next_news_and_from_the_start(scenario: Scenario) -> None:
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, SECRET)
    await scenario.registry.revoke_key("ci-bot", BY)
    await book.hear()
    later = scenario.book()
    await later.hear()
    for each in (book, later):
        with pytest.raises(Unauthorized, match="revoked"):
            await scenario.caller(each, SECRET)
        each.configure(scenario.config)  # a reload does not bring it back
        with pytest.raises(Unauthorized, match="revoked"):
            await scenario.caller(each, SECRET)


async def test_both_secrets_work_during_the_overlap_and_the_old_one_ends_by_itself(scenario: Scenario) -> None:
    old = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, old)
    new = (await scenario.registry.rotate_key("alice", 3, BY)).secret
    await book.hear()
    assert await scenario.caller(book, old) == await scenario.caller(book, new)
    scenario.now += 3
    await book.hear()
    await scenario.caller(book, new)
    with pytest.raises(Unauthorized, match="replaced"):
        await scenario.caller(book, old)


async def test_without_overlap_the_old_secret_is_unknown(scenario: Scenario) -> None:
    old = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, old)
    await scenario.registry.rotate_key("alice", 0, BY)
    await book.hear()
    with pytest.raises(Unauthorized, match="Incorrect API key"):
        await scenario.caller(book, old)


async def test_changed_limits_bind_with_the_next_news(scenario: Scenario) -> None:
    secret = (await scenario.registry.create_key({"id": "alice", "quotas": [{"requests": 5, "per": "day"}]}, BY)).secret
    book = scenario.book()
    await book.hear()

    async def limits() -> dict[str, int]:
        await book.hear()
        terms = book.terms.of(await scenario.caller(book, secret))
        return {term.scope: term.window(scenario.now).limit for term in terms}

    assert await limits() == {"key:alice": 5}
    await scenario.registry.create_team({"name": "red", "quotas": [{"requests": 50, "per": "day"}]}, BY)
    await scenario.registry.update_key("alice", {"quotas": [{"requests": 7, "per": "day"}], "team": "red"}, BY)
    assert await limits() == {"key:alice": 7, "team:red": 50}
    await scenario.registry.update_team("red", {"quotas": [{"requests": 60, "per": "day"}]}, BY)
    await scenario.registry.top_up("key:alice", {"requests": 10, "per": "day"}, BY)
    assert await limits() == {"key:alice": 17, "team:red": 60}
    scenario.now += 86400
    assert await limits() == {"key:alice": 7, "team:red": 60}


async def test_a_key_whose_team_is_gone_is_refused_and_not_without_limits(scenario: Scenario) -> None:
    await scenario.registry.create_key({"id": "alice", "team": "platform"}, BY)
    secret = (await scenario.registry.rotate_key("alice", 0, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, secret)
    book.configure(settings(teams={}))
    with pytest.raises(Unauthorized, match="team"):
        await scenario.caller(book, secret)


async def test_a_key_of_a_team_made_a_moment_ago_works_at_once(scenario: Scenario) -> None:
    book = scenario.book()
    await book.hear()
    await scenario.registry.create_team({"name": "red", "quotas": [{"requests": 5, "per": "day"}]}, BY)
    secret = (await scenario.registry.create_key({"id": "alice", "team": "red"}, BY)).secret
    key = await scenario.caller(book, secret)
    assert [term.scope for term in book.terms.of(key)] == ["team:red"]


async def test_what_the_file_says_of_an_id_counts(scenario: Scenario) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, secret)
    in_file = "sk-another-in-the-file-0123"
    book.configure(settings(keys=[{"id": "alice", "secret": in_file}]))
    await scenario.caller(book, in_file)
    for gone in (secret, SECRET):
        with pytest.raises(Unauthorized):
            await scenario.caller(book, gone)


async def test_what_is_no_secret_of_ours_is_not_looked_up(scenario: Scenario, counted: Counted) -> None:
    book = scenario.book()
    await book.hear()
    for secret in ("sk-proj-" + "x" * 80, "hunter2", "sk-gw-x", "x" * 100_000, "sk-gw-\udcff-" + "x" * 43):
        with pytest.raises(Unauthorized):
            await scenario.caller(book, secret)
    assert counted.looks == []


async def test_unknown_secrets_are_looked_up_once_and_at_a_bounded_rate(scenario: Scenario, counted: Counted) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    late = (await scenario.registry.create_key({"id": "bob"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, secret)
    refused: list[type[Exception]] = []
    for number in range(under_test.UNKNOWN_AT_ONCE + 100):
        for _ in range(2):
            try:
                await scenario.caller(book, wrong(number))
            except (Unauthorized, Unavailable) as error:
                refused.append(type(error))
    assert refused.count(Unauthorized) == 2 * under_test.UNKNOWN_AT_ONCE
    assert refused.count(Unavailable) == 2 * 100
    assert sum(counted.looks) == under_test.UNKNOWN_AT_ONCE + 1
    await scenario.caller(book, secret)  # who is known is served meanwhile
    with pytest.raises(Unavailable, match="unknown keys"):
        await scenario.caller(book, late)
    scenario.now += 1
    await scenario.caller(book, late)


async def test_who_guesses_keys_stops_no_other_address(scenario: Scenario, counted: Counted) -> None:
    """A worker has no key of the store in its cache when it starts, and none after a change of the teams."""
    secrets = [(await scenario.registry.create_key({"id": f"key-{number}"}, BY)).secret for number in range(3)]
    book = scenario.book()
    await book.hear()
    guesses = [scenario.caller(book, wrong(number), "192.0.2.1") for number in range(2 * under_test.UNKNOWN_AT_ONCE)]
    await asyncio.gather(*guesses, return_exceptions=True)
    with pytest.raises(Unavailable, match="unknown keys"):
        await scenario.caller(book, secrets[0], "192.0.2.1")
    await scenario.caller(book, secrets[0], "192.0.2.2")
    assert (await book.look_up_digest(auth.digest(secrets[1]))) is not None  # of a person with a signed token


async def test_all_addresses_together_ask_at_a_bounded_rate(
    scenario: Scenario, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "UNKNOWN_AT_ONCE", 2)
    monkeypatch.setattr(under_test, "UNKNOWN_OF_ALL", 3)
    book = scenario.book()
    await book.hear()
    for number in range(3 * 2):
        with pytest.raises(Unauthorized):
            await scenario.caller(book, wrong(number), f"192.0.2.{number}")
    with pytest.raises(Unavailable, match="unknown keys"):
        await scenario.caller(book, wrong(7), "192.0.2.7")


async def test_a_key_made_after_its_secret_was_tried_works(scenario: Scenario) -> None:
    """A store that knows a secret only now is asked for it again."""
    book = scenario.book()
    await book.hear()
    made = await scenario.registry.create_key({"id": "alice"}, BY)
    text = (await scenario.store.read("key", ["alice"]))[0]
    assert text is not None
    book._unknown[auth.digest(made.secret)] = None
    with pytest.raises(Unauthorized):
        await scenario.caller(book, made.secret)
    await book.hear()
    await scenario.caller(book, made.secret)


async def test_a_change_during_a_look_up_is_not_remembered_as_it_was(
    scenario: Scenario, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    finding = counted.find_keys
    is_first = True

    async def find_slowly(digests: Sequence[str]) -> list[str | None]:
        nonlocal is_first
        found = await finding(digests)
        if is_first:  # between its answer and its arrival the key is revoked, and the news of it come
            is_first = False
            await scenario.registry.revoke_key("alice", BY)
            await book.hear()
        return found

    monkeypatch.setattr(counted, "find_keys", find_slowly)
    with pytest.raises(Unauthorized, match="revoked"):
        await scenario.caller(book, secret)


async def test_only_so_many_are_remembered(
    scenario: Scenario, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "REMEMBERED", 3)
    monkeypatch.setattr(under_test, "UNKNOWN_REMEMBERED", 3)
    secrets = [(await scenario.registry.create_key({"id": f"key-{n}"}, BY)).secret for n in range(5)]
    book = scenario.book()
    await book.hear()
    for secret in secrets:
        await scenario.caller(book, secret)
    for number in range(5):
        with pytest.raises(Unauthorized):
            await scenario.caller(book, wrong(number))
    assert sorted(key.id for key in book.known_keys()) == ["ci-bot", "key-2", "key-3", "key-4"]
    assert len(book._unknown) == 3
    await scenario.caller(book, secrets[0])
    assert len(book.known) == 4


async def test_without_news_nothing_is_trusted_where_the_store_is_needed(scenario: Scenario, counted: Counted) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, secret)
    counted.is_away = True
    scenario.now += under_test.FRESH_S
    assert not await book.hear()
    await scenario.caller(book, secret)
    scenario.now += 0.1
    for each in (secret, SECRET, wrong()):
        with pytest.raises(Unavailable) as caught:
            await scenario.caller(book, each)
        assert caught.value.code == "store_unavailable"
    counted.is_away = False
    assert await book.hear()
    await scenario.caller(book, secret)


async def test_where_an_outage_is_allowed_known_keys_stay_good_and_others_are_no_401(
    scenario: Scenario, counted: Counted
) -> None:
    seen, unseen = [(await scenario.registry.create_key({"id": name}, BY)).secret for name in ("alice", "bob")]
    scenario.config = settings(store={"on_outage": "allow", "outage_max_s": 60})
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, seen)
    counted.is_away = True
    scenario.now += 60
    await book.hear()
    for known in (seen, SECRET):
        assert isinstance(await scenario.caller(book, known), Key)
    with pytest.raises(Unavailable):
        await scenario.caller(book, unseen)
    scenario.now += 1
    with pytest.raises(Unavailable):
        await scenario.caller(book, seen)


async def test_a_store_that_forgot_makes_everything_be_read_again(scenario: Scenario, counted: Counted) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, secret)
    book._position = "999999999"
    await book.hear()
    await scenario.caller(book, secret)
    assert counted.looks == [1, 1]


async def test_an_unreadable_team_refuses_its_keys_and_no_others(scenario: Scenario) -> None:
    await scenario.registry.create_team({"name": "red"}, BY)
    lost = (await scenario.registry.create_key({"id": "alice", "team": "red"}, BY)).secret
    good = (await scenario.registry.create_key({"id": "bob"}, BY)).secret
    (text,) = await scenario.store.read("team", ["red"])
    assert text is not None
    await scenario.store.change(StoreChange("team", "red", text, text.replace('"quotas"', '"from_the_future"'), "{}"))
    book = scenario.book()
    assert await book.hear()
    await scenario.caller(book, good)
    with pytest.raises(Unauthorized, match="team"):
        await scenario.caller(book, lost)


async def test_an_unreadable_document_is_no_key_and_breaks_nothing(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    secret = (await scenario.registry.create_key({"id": "alice"}, BY)).secret
    text = (await scenario.store.read("key", ["alice"]))[0]
    assert text is not None
    newer = text.replace('"max_parallel":null', '"from_the_future":1')
    assert newer != text
    await scenario.store.change(changed(text, newer))
    book = scenario.book()
    await book.hear()
    with pytest.raises(Unauthorized):
        await scenario.caller(book, secret)
    assert "cannot be read" in caplog.text
    assert secret not in caplog.text


def changed(before: str, after: str) -> StoreChange:

    return StoreChange("key", "alice", before, after, "{}")


async def test_all_keys_of_a_person_end_with_her_access_and_come_back_with_it(scenario: Scenario) -> None:
    """Those of the file and of the store, known and unknown to the worker, and those that are made later."""
    scenario.config = settings(keys=[{"id": "ci-bot", "secret": SECRET, "owner": "ann"}])
    keys = [(await scenario.registry.create_key({"id": f"key-{n}", "owner": "ann"}, BY)).secret for n in range(2)]
    other = (await scenario.registry.create_key({"id": "key-of-bob", "owner": "bob"}, BY)).secret
    book = scenario.book()
    await book.hear()
    await scenario.caller(book, keys[0])
    assert await scenario.registry.set_access("ann", "operator", BY)
    keys.append((await scenario.registry.create_key({"id": "later", "owner": "ann"}, BY)).secret)
    await book.hear()
    begun_later = scenario.book()
    await begun_later.hear()
    for worker in (book, begun_later):
        for _ in range(2):
            for each in (*keys, SECRET):
                with pytest.raises(Unauthorized, match="access has ended"):
                    await scenario.caller(worker, each)
            worker.configure(scenario.config)  # a reload does not bring them back
        await scenario.caller(worker, other)
    assert not await scenario.registry.set_access("ann", None, BY, found=("scim",))
    assert await scenario.registry.set_access("ann", None, BY)
    await book.hear()
    for each in (*keys, SECRET):
        await scenario.caller(book, each)
    log = [row for row in (await scenario.registry.audit()).rows if row["kind"] == "person"]
    assert [(row["name"], row["action"], row["after"]) for row in log] == [
        ("ann", "give_access", {"ended_by": None}), ("ann", "end_access", {"ended_by": "operator"}),
    ]  # fmt: skip

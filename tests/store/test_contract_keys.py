"""The promises of every store about keys, teams and overlays (gateway/store/key_store.py). Nothing here knows which one
it is."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.records import Claim
from gateway.store import SILENT_S, ChangeFeed, DocumentKind, SecretTaken, Store, StoreChange
from gateway.store.key_store import CHANGES_AT_ONCE
from gateway.store.redis import keys as redis_keys
from gateway.store.sqlite import keys as sqlite_keys
from tests.amounts import amount

from .changes import HOUR_S, Clock, daily, draw, parallel, slow, tokens
from .conftest import OpensStores
from .worker import Worker, endings, levels, standing

NOVEMBER = {"per": "month", "starts": "2026-11"}
ODD = (
    "a.b-c", "Zoë & Co", "key:a", "tab\there", "=x", "(a", "[a", "-", "+", "?", "100%", "🦊", "'; --", "{tag}", "a b",
)  # fmt: skip
"""Names that a store might mistake for something else."""


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


async def put(
    store: Store, name: str, after: str | None, before: str | None = None, kind: DocumentKind = "key", **more: Any
) -> bool:
    """A change whose entry in the audit log says what it does."""
    return await store.change(StoreChange(kind, name, before, after, f"{name}: {before} -> {after}", **more))


async def everything(store: Store, clock: Clock, *claims: Claim) -> object:
    """All that can be seen of keys and their like, and these windows."""
    pages = [await store.page(kind) for kind in ("key", "team", "overlay")]
    return pages, await store.audit(1000), await levels(store, clock, *claims)


# --------------------------------------------------------------------------------------------------------- documents


async def test_documents_are_kept_by_kind_and_name(store: Store, open_store: OpensStores) -> None:
    assert await put(store, "a", "a key")
    assert await put(store, "a", "a team", kind="team")
    assert await put(store, "b", "")
    for each in (store, await open_store()):
        assert await each.read("key", ["b", "c", "a", "a"]) == ["", None, "a key", "a key"]
        assert await each.read("team", ["a", "b"]) == ["a team", None]
        assert await each.read("overlay", ["a"]) == [None]
        assert await each.read("key", []) == []


async def test_a_wing_has_documents_of_its_own(store: Store, open_store: OpensStores) -> None:
    other = await open_store()
    assert await put(store, "a", "one", kind="notes")
    assert not await put(other, "a", "two", kind="notes")
    assert await put(other, "a", "two", "one", kind="notes")
    assert await store.page("notes") == [("a", "two")]
    assert await store.page("key") == []
    assert [(each.kind, each.name) for each in await store.audit(1)] == [("notes", "a")]


async def test_a_change_is_applied_only_to_what_was_read(store: Store, clock: Clock) -> None:
    assert not await put(store, "a", "one", before="none")
    assert await put(store, "a", "one")
    before = await everything(store, clock)
    for read in (None, "", "One", "one "):
        assert not await put(store, "a", "other", before=read, secrets_added=(digest("other"),))
        assert not await put(store, "a", None, before=read)
    assert await everything(store, clock) == before
    assert await store.find_keys([digest("other")]) == [None]
    assert await put(store, "a", "two", before="one")
    assert await put(store, "a", None, before="two")
    assert not await put(store, "a", None, before="two")
    assert await put(store, "a", "three")
    assert await store.read("key", ["a"]) == ["three"]


async def test_of_changes_made_at_once_one_is_applied_each_time(open_store: OpensStores) -> None:
    stores = [await open_store() for _ in range(4)]
    text = None
    for turn in range(12):
        wishes = [f"{turn}-{number}" for number in range(20)]
        won = await asyncio.gather(*(
            put(stores[number % 4], "a", wish, before=text, secrets_added=(digest(wish),))
            for number, wish in enumerate(wishes)
        ))  # fmt: skip
        assert won.count(True) == 1
        text = wishes[won.index(True)]
        assert await stores[0].read("key", ["a"]) == [text]
        assert await stores[1].find_keys(list(map(digest, wishes))) == [text if each else None for each in won]
    assert len(await stores[2].audit(100)) == 12


async def test_odd_names_are_names_like_any_other(store: Store) -> None:
    for name in ODD:
        assert await put(store, name, f"of {name}", secrets_added=(digest(name),))
        assert await put(store, name, f"team {name}", kind="team")
    assert await store.read("key", ODD) == [f"of {name}" for name in ODD]
    assert await store.find_keys(list(map(digest, ODD))) == [f"of {name}" for name in ODD]
    names = sorted(ODD, key=str.encode)
    assert await store.page("team") == [(name, f"team {name}") for name in names]
    for before, name in itertools.pairwise(names):
        assert await store.page("team", before, 1) == [(name, f"team {name}")]
    assert [received.name for received in await store.audit(4)] == [ODD[-1], ODD[-1], ODD[-2], ODD[-2]]


async def test_documents_are_kept_to_the_last_letter(store: Store) -> None:
    text = "".join(map(chr, range(1, 0x3000))) * 20 + '\r\n\x00 {"a": 1.10}'
    assert await put(store, "a", text)
    assert await store.read("key", ["a"]) == [text]
    assert await put(store, "a", "short", before=text)
    assert (await store.audit(1))[0].audit == f"a: {text} -> short"


# ----------------------------------------------------------------------------------------------------------- secrets


async def test_secrets_lead_where_they_should_after_rotations(store: Store) -> None:
    first, second, third = map(digest, ("first", "second", "third"))
    await put(store, "a", "1", secrets_added=(first,))
    await put(store, "b", "of b", secrets_added=(digest("b"),))
    await put(store, "a", "2", before="1", secrets_added=(second,))
    assert await store.find_keys([first, second, third]) == ["2", "2", None]
    await put(store, "a", "3", before="2", secrets_added=(third,), secrets_removed=(first,))
    assert await store.find_keys([first, second, third, digest("b")]) == [None, "3", "3", "of b"]
    await put(store, "a", None, before="3", secrets_removed=(second, third))
    await put(store, "a", "again")
    assert await store.find_keys([first, second, third, digest("b")]) == [None, None, None, "of b"]
    assert await put(store, "c", "of c", secrets_added=(first,))
    assert await store.find_keys([first]) == ["of c"]


async def test_a_secret_of_a_deleted_key_is_unknown(store: Store) -> None:
    await put(store, "a", "1", secrets_added=(digest("a"),))
    await put(store, "a", None, before="1")
    assert await store.find_keys([digest("a")]) == [None]


async def test_a_secret_that_leads_elsewhere_is_not_taken_and_nothing_is_changed(
    store: Store, worker: Worker, clock: Clock
) -> None:
    await put(store, "a", "of a", secrets_added=(digest("a"),))
    await put(store, "b", "1", secrets_added=(digest("b"),))
    await worker.settle(await worker.granted(tokens(100, 50)), 40)
    before = await everything(store, clock, tokens())
    for name, read in (("b", "1"), ("c", None)):
        with pytest.raises(SecretTaken):
            await put(
                store, name, "2", before=read, secrets_added=(digest("new"), digest("a")),
                secrets_removed=(digest("b"),), resets=(tokens().window,),
            )  # fmt: skip
    assert await everything(store, clock, tokens()) == before
    assert await store.find_keys(list(map(digest, ("a", "b", "new")))) == ["of a", "1", None]
    # Whose document is another hears of that first.
    assert not await put(store, "b", "2", before="0", secrets_added=(digest("a"),))


async def test_of_keys_that_want_one_secret_at_once_one_has_it(open_store: OpensStores) -> None:
    stores = [await open_store() for _ in range(4)]
    made = await asyncio.gather(
        *(put(stores[n % 4], f"key-{n}", f"{n}", secrets_added=(digest("a"),)) for n in range(40)),
        return_exceptions=True,
    )
    assert made.count(True) == 1
    assert sum(isinstance(each, SecretTaken) for each in made) == 39
    winner = str(made.index(True))
    assert await stores[0].find_keys([digest("a")]) == [winner]
    assert await stores[0].page("key") == [(f"key-{winner}", winner)]


async def test_what_is_no_secret_of_a_key_is_not_taken_from_another(store: Store) -> None:
    await put(store, "a", "of a", secrets_added=(digest("a"),))
    await put(store, "b", "of b", secrets_removed=(digest("a"), digest("unknown")))
    assert await store.find_keys([digest("a")]) == ["of a"]
    # It may be given what it has; and what goes and comes is there.
    assert await put(store, "a", "2", before="of a", secrets_added=(digest("a"),))
    assert await put(store, "a", "3", before="2", secrets_added=(digest("a"),), secrets_removed=(digest("x"),))
    assert await store.find_keys([digest("a")]) == ["3"]


# ----------------------------------------------------------------------------------------------------- many of them


def scattered_names(number: int) -> list[str]:
    """Of letters that sort differently as bytes, as UTF-16 and in a dictionary."""
    numbers = random.Random(7)
    names: set[str] = set()
    while len(names) < number:
        names.add("".join(numbers.choices("aAzZ09.-_éß\uffee🦊", k=numbers.randint(3, 9))))
    return list(names)


@pytest.mark.shortened
async def test_many_names_are_paged_in_the_order_of_their_bytes(store: Store) -> None:
    page = amount(1000, 100)  # 1000 is what the store returns at once
    few = page * 6 // 10
    names = scattered_names(page * 5 // 2)
    for name in names:
        assert await put(store, name, f"of {name}", kind="team", secrets_added=(digest(name),))
    await put(store, "a", "another kind")
    rows = [(name, f"of {name}") for name in sorted(names, key=str.encode)]
    assert await paged(store, page) == [rows[:page], rows[page : 2 * page], rows[2 * page :], []]
    assert await paged(store, len(rows) - 1) == [rows[:-1], rows[-1:], []]
    assert await store.page("team", limit=9000) == rows
    assert await store.page("team") == rows[:1000]
    assert await store.page("team", rows[7][0], 2) == rows[8:10]
    assert await store.page("team", rows[7][0] + "\x01", 1) == rows[8:9], "behind a name that is none"
    for name, text in rows[few : 2 * few]:
        await put(store, name, None, before=text, kind="team")
    left = rows[:few] + rows[2 * few :]
    assert await paged(store, page) == [left[:page], left[page:], []]
    # And read by their names, with others between.
    asked = [name for pair in zip(names, (f"no {name}" for name in names), strict=True) for name in pair]
    known = dict(left)
    assert await store.read("team", asked) == [known.get(name) for name in asked]


async def paged(store: Store, limit: int) -> list[list[tuple[str, str]]]:
    """All pages, to the first that is empty."""
    pages, after = [], ""
    while True:
        pages.append(await store.page("team", after, limit))
        if not pages[-1]:
            return pages
        after = pages[-1][-1][0]


async def test_many_secrets_are_found_at_once(store: Store) -> None:
    for number in range(300):
        await put(store, f"key-{number}", f"{number}", secrets_added=(digest(f"{number}"), digest(f"{number} too")))
    asked = [f"{number}{which}" for number in range(400) for which in ("", " too", " not")]
    found = await store.find_keys(list(map(digest, asked)))
    assert found == [
        str(number) if number < 300 and which != " not" else None
        for number in range(400) for which in ("", " too", " not")
    ]  # fmt: skip
    assert await store.find_keys([]) == []
    assert await store.find_keys([digest("7")] * 3) == ["7"] * 3


# ------------------------------------------------------------------------------------------------- news and audit log


async def received(store: Store, since: str) -> tuple[Sequence[tuple[DocumentKind, str]], str]:
    """What is new, of which nothing was missed; and where to go on."""
    news = await store.changes_since(since)
    assert news.is_complete
    return list(news.changed), news.position


async def test_changes_since_a_position_are_listed(store: Store, open_store: OpensStores) -> None:
    other = await open_store()
    empty = await store.changes_since(None)
    assert empty == ChangeFeed(empty.position)
    assert await received(other, empty.position) == ([], empty.position)
    await put(store, "a", "1")
    await put(other, "red", "1", kind="team")
    await put(store, "a", "2", before="1")
    assert not await put(store, "b", "2", before="1")
    changed, position = await received(store, empty.position)
    assert changed == [("key", "a"), ("team", "red")]
    assert await received(other, position) == ([], position)
    assert await other.changes_since(None) == ChangeFeed(position)
    await put(other, "a", None, before="2")
    await put(other, "key:a", "1", kind="overlay")
    changed, last = await received(store, position)
    assert changed == [("key", "a"), ("overlay", "key:a")]
    assert await received(store, last) == ([], last)
    # A position is good for as long as it is known.
    assert await received(store, position) == (changed, last)
    assert await received(store, empty.position) == ([("key", "a"), ("team", "red"), ("overlay", "key:a")], last)


@pytest.mark.parametrize("position", ["9999999999", "1-1", "9999999999999-0", "", "nonsense", "-1", "٣", "9" * 30])
async def test_an_unknown_position_is_of_a_store_that_has_lost_data(store: Store, position: str) -> None:
    assert await store.changes_since(position) == ChangeFeed(
        (await store.changes_since(None)).position, is_complete=False
    )
    await put(store, "a", "1")
    news = await store.changes_since(position)
    assert news == ChangeFeed((await store.changes_since(None)).position, is_complete=False)
    assert await received(store, news.position) == ([], news.position)


async def test_too_many_changes_are_marked_incomplete(store: Store) -> None:
    empty = (await store.changes_since(None)).position
    await put(store, "a", "0")
    first = (await store.changes_since(None)).position
    for number in range(CHANGES_AT_ONCE):
        await put(store, "a", f"{number + 1}", before=f"{number}")
    last = (await store.changes_since(None)).position
    assert await received(store, first) == ([("key", "a")], last)
    assert await store.changes_since(empty) == ChangeFeed(last, is_complete=False)
    await put(store, "b", "1")
    latest = (await store.changes_since(None)).position
    assert await store.changes_since(first) == ChangeFeed(latest, is_complete=False)
    assert await received(store, last) == ([("key", "b")], latest)
    entries = await store.audit(1000)
    assert [entry.audit for entry in entries[1:]] == [f"a: {n - 1 if n else None} -> {n}" for n in range(500, -1, -1)]


async def test_the_audit_log_is_trimmed_and_readers_that_missed_changes_notice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite_keys, redis_keys):
        monkeypatch.setattr(module, "AUDIT_KEPT", 20)
    await put(store, "a", "0")
    first = (await store.changes_since(None)).position
    for number in range(400):
        await put(store, "a", f"{number + 1}", before=f"{number}")
    entries = await store.audit(1000)
    assert 20 <= len(entries) <= 250
    assert [entry.audit for entry in entries[:20]] == [f"a: {n - 1} -> {n}" for n in range(400, 380, -1)]
    last = entries[0].position
    assert await store.changes_since(first) == ChangeFeed(last, is_complete=False)
    assert await received(store, entries[19].position) == ([("key", "a")], last)


async def test_the_audit_log_is_read_from_its_newest_entry(store: Store, open_store: OpensStores) -> None:
    assert await store.audit(10) == []
    for number in range(30):
        await put(store, f"{number}", "1", kind="team" if number % 2 else "key")
    await put(await open_store(), "29", "2", before="1", kind="team")
    entries = await store.audit(100)
    assert [(entry.kind, entry.name, entry.audit) for entry in entries[:3]] == [
        ("team", "29", "29: 1 -> 2"), ("team", "29", "29: None -> 1"), ("key", "28", "28: None -> 1"),
    ]  # fmt: skip
    assert len({entry.position for entry in entries}) == len(entries) == 31
    assert entries[0].position == (await store.changes_since(None)).position
    pages, before = [], None
    while page := await store.audit(7, before):
        pages += page
        before = page[-1].position
    assert pages == entries
    assert await store.audit(0) == []


@pytest.mark.parametrize("position", ["", "nonsense", "-1", "1-", "1-1-1", "٣", "9" * 30, "+", "0x1", "1 "])
async def test_what_is_no_position_is_no_place_in_the_audit_log(store: Store, position: str) -> None:
    await put(store, "a", "1")
    with pytest.raises(ValueError, match="is no position in the audit log"):
        await store.audit(10, position)


async def test_nothing_is_older_than_an_empty_log(store: Store) -> None:
    empty = (await store.changes_since(None)).position
    await put(store, "a", "1")
    assert await store.audit(10, empty) == []


# ------------------------------------------------------------------------------------------------------------ resets


async def test_of_windows_that_are_reset_nothing_is_used(worker: Worker, store: Store, clock: Clock) -> None:
    claims = [tokens(100, 100), tokens(500, 100, **NOVEMBER), slow(60, 60)]
    await worker.settle(await worker.granted(*claims), 100)
    await worker.refused(tokens(100, 1))
    assert await put(store, "key:k", "1", kind="overlay", resets=tuple(claim.window for claim in claims))
    assert await levels(store, clock, *claims) == [(0, 0), (0, 0), (0, 0)]
    await worker.settle(await worker.granted(*claims), 70)
    assert await levels(store, clock, *claims) == [(70, 0), (70, 0), (70, 0)]


async def test_what_running_calls_have_reserved_stays_and_their_end_is_charged(
    worker: Worker, other: Worker, store: Store, clock: Clock
) -> None:
    claims = [tokens(200, 40), slow(200, 40), parallel(5)]
    await worker.settle(await worker.granted(*claims), 30)
    cheap, dear, voided = [await worker.granted(*claims) for _ in range(3)]
    await Worker(store).granted(*claims)  # this worker never settles it
    assert await levels(store, clock, *claims) == [(30, 160), (190, 0), (4, 0)]
    assert await put(store, "k", "1", resets=tuple(claim.window for claim in claims))
    assert await levels(store, clock, *claims) == [(0, 160), (0, 0), (4, 0)]
    await worker.refused(tokens(200, 41))
    await worker.settle(cheap, 25)
    assert await levels(store, clock, *claims) == [(25, 120), (0, 0), (3, 0)]
    await worker.settle(dear, 65)
    assert await levels(store, clock, *claims) == [(90, 80), (25, 0), (2, 0)]
    await worker.void(voided)
    assert (await levels(store, clock, *claims))[::2] == [(90, 40), (1, 0)]
    await other.listen(clock, SILENT_S + 1)
    assert (await other.send()).lost == 1
    assert (await levels(store, clock, *claims))[::2] == [(130, 0), (0, 0)]
    assert await endings(store) == ["lost", "done", "done", "done"]


async def test_a_rate_that_is_reset_has_no_credit(worker: Worker, store: Store, clock: Clock) -> None:
    await worker.granted(slow(60, 60))
    clock.advance(30 * HOUR_S)
    assert await put(store, "k", "1", resets=(slow(60).window,))
    await worker.granted(slow(60, 60))
    await worker.refused(slow(60, 1))
    clock.advance(10 * HOUR_S)
    await worker.granted(slow(60, 10))
    await worker.refused(slow(60, 1))


async def test_windows_that_are_not_named_or_not_known_stay_as_they_are(
    worker: Worker, store: Store, clock: Clock
) -> None:
    others = [daily(10), tokens(100, 20, scope="team:red"), slow(60, 20, model="gpt-*"), tokens(90, 20, **NOVEMBER)]
    await worker.settle(await worker.granted(tokens(100, 20), *others), 20)
    before = await levels(store, clock, *others)
    unknown = tokens(starts="2026-10-01"), tokens(scope="key:nobody"), slow(scope="key:nobody"), parallel()
    resets = tuple(claim.window for claim in (tokens(), *unknown))
    assert await put(store, "k", "1", resets=resets)
    assert await levels(store, clock, tokens(), *unknown) == [(0, 0)] * 5
    assert await levels(store, clock, *others) == before == [(1, 0), (20, 0), (20, 0), (20, 0)]


async def test_windows_are_reset_without_another_document_or_with_none_at_all(
    worker: Worker, store: Store, clock: Clock
) -> None:
    for text in (None, "1"):
        if text is not None:
            assert await put(store, "gateway", text, kind="overlay")
        await worker.settle(await worker.granted(tokens(100, 50)), 50)
        assert await put(store, "gateway", text, before=text, kind="overlay", resets=(tokens().window,))
        assert await standing(store, tokens(), clock) == (0, 0)
        assert await store.read("overlay", ["gateway"]) == [text]
        assert await store.page("overlay") == ([("gateway", text)] if text else [])
        assert (await store.audit(1))[0].audit == f"gateway: {text} -> {text}"


async def test_a_change_that_comes_too_late_resets_nothing(worker: Worker, store: Store, clock: Clock) -> None:
    claims = [tokens(100, 50), slow(60, 50)]
    await worker.settle(await worker.granted(*claims), 50)
    await put(store, "k", "2")
    assert not await put(store, "k", "3", before="1", resets=tuple(claim.window for claim in claims))
    assert await levels(store, clock, *claims) == [(50, 0), (50, 0)]


async def test_windows_that_are_reset_while_they_are_drawn_on_keep_their_reservations(
    open_store: OpensStores, clock: Clock
) -> None:
    """Every call is charged at its end, or forgotten by a reset; and at last nothing is reserved."""
    workers = [Worker(await open_store()) for _ in range(3)]
    claims = [tokens(10**6, 10), parallel(1000)]
    stop = False

    async def call(worker: Worker) -> None:
        while not stop:
            running = [await worker.granted(*claims) for _ in range(3)]
            for wish in running:
                await worker.settle(wish, 10)

    async def reset() -> None:
        nonlocal stop
        for _ in range(30):
            assert await put(workers[0].store, "k", None, resets=(tokens().window,))
        stop = True

    await asyncio.gather(reset(), *map(call, workers))
    await put(workers[0].store, "k", None, resets=(tokens().window,))
    assert await levels(workers[1].store, clock, *claims) == [(0, 0), (0, 0)]
    wish = draw(*claims)
    await workers[2].draw(wish)
    await workers[2].settle(wish, 7)
    assert await standing(workers[0].store, tokens(), clock) == (7, 0)

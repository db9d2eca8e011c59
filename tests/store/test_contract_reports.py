"""The contract of every store for its reports: usage, calls, window levels. The tests do not depend on the store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.quota.measures import FAILED
from gateway.records import KeyInTeam, Settlement, Usage, WindowStatus
from gateway.store import (
    ATTRIBUTED_OF_KEY,
    RETURNED_MODEL_GROUPS,
    USAGE_COLUMNS,
    USAGE_GROUPS,
    CallFilter,
    ReportScope,
    Settle,
    Store,
    Where,
)

from .changes import HOUR, HOUR_S, NOON, SECOND, Clock, draw, parallel, record, settlement, slow, tokens
from .conftest import OpensStores
from .worker import Worker, about, pass_days, standings

DAY_S = 86_400


async def fill(worker: Worker) -> None:
    """Seven calls over three days, two months, three keys."""
    for day, key, team, model, upstream, endpoint, status in (
        (0, "a", "red", "m1", "up", "chat", 200),
        (0, "a", "red", "m2", "up", "chat", 200),
        (1, "a", "red", "m1", "other", "completions", 200),
        (1, "b", None, "m1", "up", "chat", 500),
        (15, "b", None, "m2", "up", "embeddings", 200),
        (15, "c", "blue", "m1", "up", "chat", 200),
        (15, "c", "blue", "m1", "up", "chat", 200),
    ):
        wish = await worker.granted()
        usage = Usage(10, 5, 4, 2, source="reported" if day else "estimated")
        ended = "done" if status == 200 else "error"
        await worker.settle(
            wish, time=NOON / SECOND + day * 86_400, key=key, team=team, label_model=model, model="as-asked",
            upstream=upstream, endpoint=endpoint, status=status, usage=usage, ended=ended,
        )  # fmt: skip


@pytest.mark.parametrize("group_by", [["model"], ["day"], ["key"], []])
async def test_a_call_that_ends_days_later_is_in_the_next_report(
    open_store: OpensStores, clock: Clock, group_by: list[str]
) -> None:
    """A report of days that are over is as fresh as one of today, whichever worker closes the call."""
    first, second = Worker(await open_store()), Worker(await open_store())
    began = clock.now
    await first.settle(await first.granted(), time=began)
    clock.advance(3 * DAY_S)
    await first.settle(await first.granted(), time=clock.now)

    async def requests(of: Worker) -> int:
        return sum(row["requests"] for row in await of.store.usage(group_by, "2026-11-19", "2026-11-21"))

    assert [await requests(first), await requests(second)] == [1, 1]
    await first.settle(await first.granted(), time=began)
    assert [await requests(first), await requests(second)] == [2, 2]
    assert sum(row["requests"] for row in await second.store.usage(group_by)) == 3


@pytest.mark.parametrize("name", ["a", "a*", "[a]", "a?", "a\\b", "^a"])
async def test_usage_of_one_key_whatever_its_name(worker: Worker, store: Store, name: str) -> None:
    for key in (name, "ab", f"{name}b"):
        await worker.settle(await worker.granted(), key=key, label_model=f"of {key}")
    (row,) = await store.usage(["model"], where=(("key", name),))
    assert (row["model"], row["requests"]) == (f"of {name}", 1)
    only = ReportScope(keys=frozenset({KeyInTeam(name, "red")}))
    (row,) = await store.usage(["day", "key"], only=only)
    assert (row["key"], row["requests"]) == (name, 1)


@pytest.mark.parametrize(
    ("group_by", "requests"),
    [
        (["key"], {("a",): 3, ("b",): 2, ("c",): 2}),
        (["team"], {("",): 2, ("blue",): 2, ("red",): 3}),
        (["model"], {("m1",): 5, ("m2",): 2}),
        (["upstream"], {("other",): 1, ("up",): 6}),
        (["endpoint"], {("chat",): 5, ("completions",): 1, ("embeddings",): 1}),
        (["day"], {("2026-11-20",): 2, ("2026-11-21",): 2, ("2026-12-05",): 3}),
        (["month"], {("2026-11",): 4, ("2026-12",): 3}),
        (["month", "key"], {("2026-11", "a"): 3, ("2026-11", "b"): 1, ("2026-12", "b"): 1, ("2026-12", "c"): 2}),
        ([], {(): 7}),
    ],
)
async def test_usage_by_group(
    worker: Worker, store: Store, group_by: list[str], requests: dict[tuple[str, ...], int]
) -> None:
    await fill(worker)
    rows = await store.usage(group_by)
    assert {tuple(row[name] for name in group_by): row["requests"] for row in rows} == requests
    assert [tuple(row[name] for name in group_by) for row in rows] == sorted(requests)
    for row in rows:
        assert row["total_tokens"] == row["prompt_tokens"] + row["completion_tokens"] == 15 * row["requests"]
        assert row["cached_tokens"] == 4 * row["requests"]
        assert row["reasoning_tokens"] == 2 * row["requests"]
    assert sum(row["errors"] for row in rows) == 1
    assert sum(row["estimated_tokens"] for row in rows) == 30


@pytest.mark.parametrize(
    ("where", "group_by", "requests"),
    [
        ((("key", "a"),), ["model"], None),
        ((("team", "red"),), ["key"], None),
        ((("team", ""),), ["key"], None),
        ((("model", "m1"), ("upstream", "up")), ["day"], None),
        ((("upstream", "other"),), [], {(): 1}),
        ((("key", "nobody"),), ["day"], {}),
        ((("key", "nobody"),), [], {}),
    ],
)
async def test_usage_narrowed_to_names(
    worker: Worker, store: Store, where: Where, group_by: list[str], requests: dict[tuple[str, ...], int] | None
) -> None:
    await fill(worker)
    if requests is None:
        requests = {}
        for row in await store.usage([*group_by, *[name for name, _ in where]]):
            if all(row[name] == wanted for name, wanted in where):
                place = tuple(row[name] for name in group_by)
                requests[place] = requests.get(place, 0) + row["requests"]
        assert requests
    for since in (None, "2026-11-01T00"):
        rows = await store.usage(group_by, since, where=where)
        if since is None or rows:
            assert {tuple(row[name] for name in group_by): row["requests"] for row in rows} == requests
    blue = ReportScope(teams=frozenset({"blue"}))
    narrowed = await store.usage(group_by, only=blue, where=where)
    assert sum(row["requests"] for row in narrowed) <= sum(requests.values())
    portions = [row async for some in store.usage_portions(group_by, where=where) for row in some]
    assert portions == await store.usage(group_by, where=where)


async def test_every_group_can_be_asked_for_at_once(worker: Worker, store: Store) -> None:
    await fill(worker)
    assert len(await store.usage(USAGE_GROUPS)) == 6


@pytest.mark.parametrize(
    ("since", "until", "limit", "days"),
    [
        (None, None, None, ["2026-11-20", "2026-11-21", "2026-12-05"]),
        ("2026-11-21", None, None, ["2026-11-21", "2026-12-05"]),
        (None, "2026-11-21", None, ["2026-11-20", "2026-11-21"]),
        ("2026-11-21", "2026-11-21", None, ["2026-11-21"]),
        ("2026-11-22", "2026-12-01", None, []),
        ("2026-12-31", "2026-01-01", None, []),
        (None, None, 2, ["2026-11-20", "2026-11-21"]),
        (None, None, 0, []),
    ],
)
async def test_usage_of_some_days(
    worker: Worker, store: Store, since: str | None, until: str | None, limit: int | None, days: list[str]
) -> None:
    await fill(worker)
    assert [row["day"] for row in await store.usage(["day"], since, until, limit)] == days


@pytest.mark.parametrize(
    ("group_by", "since", "until", "requests"),
    [
        (["hour"], None, None, {("2026-11-20T12",): 2, ("2026-11-20T13",): 1, ("2026-11-21T00",): 3}),
        (["hour", "key"], "2026-11-21", None, {("2026-11-21T00", "a"): 1, ("2026-11-21T00", "b"): 2}),
        (["hour"], None, "2026-11-20", {("2026-11-20T12",): 2, ("2026-11-20T13",): 1}),
        (["key"], "2026-11-20T13", "2026-11-21T00", {("a",): 2, ("b",): 2}),
        (["day"], "2026-11-20T13", None, {("2026-11-20",): 1, ("2026-11-21",): 3}),
        (["month"], "2026-11-20T13", "2026-11-20T13", {("2026-11",): 1}),
        ([], "2026-11-20T13", None, {(): 4}),
        (["day"], None, None, {("2026-11-20",): 3, ("2026-11-21",): 3}),
    ],
)
async def test_usage_by_hour(
    worker: Worker, store: Store, group_by: list[str], since: str | None, until: str | None,
    requests: dict[tuple[str, ...], int],
) -> None:  # fmt: skip
    for hours, key in ((0, "a"), (0.9, "b"), (1, "a"), (12, "a"), (12.5, "b"), (12.99, "b")):
        await worker.settle(await worker.granted(), time=NOON / SECOND + hours * HOUR_S, key=key)
    rows = await store.usage(group_by, since, until)
    assert {tuple(row[name] for name in group_by): row["requests"] for row in rows} == requests


async def test_a_batch_over_midnight_counts_in_both_days(worker: Worker, store: Store) -> None:
    wishes = [draw() for _ in range(4)]
    await worker.draw_all(wishes)
    await worker.settle_all(
        settlement(wish, 1, time=NOON / SECOND + 11.5 * HOUR_S + number * HOUR_S / 4)
        for number, wish in enumerate(wishes)
    )
    assert [(row["day"], row["requests"]) for row in await store.usage(["day"])] == [
        ("2026-11-20", 2), ("2026-11-21", 2),
    ]  # fmt: skip
    assert [row["requests"] for row in await store.usage(["hour"])] == [2, 2]


async def test_hours_are_kept_for_two_weeks(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store(sums_days=100)
    worker = Worker(store)
    for days in (0, 10, 10):
        await pass_days(worker, clock, days)
        await worker.settle(await worker.granted(), time=clock.now)
    await pass_days(worker, clock, 1)
    assert [row["day"] for row in await store.usage(["day"])] == ["2026-11-20", "2026-11-30", "2026-12-10"]
    assert [row["hour"][:10] for row in await store.usage(["hour"])] == ["2026-11-30", "2026-12-10"]


async def measured(worker: Worker, hours: float = 0, **changes: Any) -> None:
    """A stream of 101 tokens: the first after 0.5 s, the others in 2 s."""
    values = {
        "stream": True, "first_byte_s": 0.5, "duration_s": 2.5, "usage": Usage(9, 101, source="reported"),
        "time": NOON / SECOND + hours * HOUR_S, **changes,
    }  # fmt: skip
    await worker.settle(await worker.granted(), **values)


async def test_what_is_measured_by_model_upstream_hour_and_day(worker: Worker, other: Worker, store: Store) -> None:
    assert await store.measures(["model"]) == {}
    await measured(worker)
    await measured(other)
    await measured(worker, 1, upstream="second", failed="up:timeout up:status")
    await measured(worker, 12, label_model="gpt-z", first_byte_s=8.0, duration_s=10.0)
    one = {136: 1, 236: 1, 346: 1}
    slow_one = {152: 1, 236: 1, 354: 1}
    twice = dict.fromkeys(one, 2)
    assert await store.measures(["upstream", "hour"]) == {
        ("up", "2026-11-20T12"): twice,
        ("up", "2026-11-20T13"): {FAILED: 2},
        ("second", "2026-11-20T13"): one,
        ("up", "2026-11-21T00"): slow_one,
    }
    assert await store.measures(["model", "day"]) == {
        ("gpt-x", "2026-11-20"): {FAILED: 2, 136: 3, 236: 3, 346: 3},
        ("gpt-z", "2026-11-21"): slow_one,
    }
    assert await store.measures([], "2026-11-20T13", "2026-11-20T13") == {(): {FAILED: 2, **one}}
    assert await store.measures(["month"], "2026-11-21") == {("2026-11",): slow_one}


async def test_many_measures_of_two_hours_in_one_batch_are_added_to_few(worker: Worker, store: Store) -> None:
    def closings() -> list[Settle]:
        return [
            worker.closing(settlement(
                draw(), stream=False, duration_s=0.001 * 1.2**number, usage=Usage(9, 1, source="reported"),
                time=NOON / SECOND + number % 2 * HOUR_S,
            ))
            for number in range(40)
        ]  # fmt: skip

    await worker.send(*closings())
    (once,) = (await store.measures([])).values()
    assert (len(once) > 30, sum(once.values())) == (True, 40)
    for closing in closings():
        await worker.send(closing)
    await worker.send(*closings())
    assert await store.measures([]) == {(): {counter: 3 * number for counter, number in once.items()}}
    by_hour = await store.measures(["hour"])
    assert [sum(numbers.values()) for _, numbers in sorted(by_hour.items())] == [60, 60]


async def test_measures_are_of_whole_answers_only(worker: Worker, store: Store) -> None:
    await measured(worker, ended="error", status=502, failed="up:timeout")
    await measured(worker, ended="client_gone")
    await measured(worker, status=400)
    assert await store.measures([]) == {(): {FAILED: 1}}
    await measured(worker, stream=False, first_byte_s=2.4, usage=Usage(9, 1, source="reported"))
    await measured(worker, stream=False, usage=Usage(9, 50, source="estimated"))
    await measured(worker, stream=False, usage=Usage(9, 50, source="reported"))
    assert await store.measures([]) == {(): {FAILED: 1, 231: 1, 346: 3}}


async def test_measures_of_hours_are_kept_for_two_weeks(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store(sums_days=30)
    worker = Worker(store)
    for days in (0, 10, 10, 15):
        await pass_days(worker, clock, days)
        await measured(worker, time=clock.now)
    await pass_days(worker, clock, 1)
    assert sorted(await store.measures(["day"])) == [("2026-11-30",), ("2026-12-10",), ("2026-12-25",)]
    assert [hour[:10] for (hour,) in await store.measures(["hour"])] == ["2026-12-25"]


async def test_usage_by_user_and_tag(worker: Worker, other: Worker, store: Store) -> None:
    assert await store.usage(["user"]) == []
    for by, key, user, tags, days in (
        (worker, "a", "ada", "project=atlas\x1fstage=test", 0),
        (other, "a", "ada", "project=atlas", 0),
        (worker, "b", "bob", "project=zeus", 1),
        (other, "b", "", "", 1),
    ):
        wish = await by.granted()
        when = NOON / SECOND + days * DAY_S
        usage = Usage(10, 5, source="reported")
        await by.settle(wish, key=key, user=user, tags=tags, time=when, team=None, cost_nusd=7, usage=usage)

    async def requests(*group_by: str, **more: Any) -> dict[tuple[str, ...], int]:
        rows = await store.usage(group_by, **more)
        assert all(row["total_tokens"] == 15 * row["requests"] for row in rows)
        return {tuple(row[name] for name in group_by): row["requests"] for row in rows}

    assert await requests("user") == {("ada",): 2, ("bob",): 1}
    assert await requests("tag:project", "day") == {("atlas", "2026-11-20"): 2, ("zeus", "2026-11-21"): 1}
    assert await requests("key", "tag:stage", "month") == {("a", "test", "2026-11"): 1}
    assert await requests("user", since="2026-11-21T10") == {("bob",): 1}
    assert await requests("user", only=ReportScope(keys=frozenset({KeyInTeam("a", None)}))) == {("ada",): 2}
    assert await requests("user", only=ReportScope(keys=frozenset({KeyInTeam("a", "blue")}))) == {}
    assert await requests("tag:none") == {}
    (row,) = await store.usage(["user"], limit=1, after=["ada"])
    assert (row["user"], row["cost_usd"]) == ("bob", 7e-9)
    assert await requests() == {(): 4}


async def test_a_key_has_a_bounded_number_of_users_a_day(worker: Worker, store: Store) -> None:
    wishes = [draw() for _ in range(ATTRIBUTED_OF_KEY + 50)]
    await worker.draw_all(wishes)
    await worker.settle_all(settlement(wish, 1, user=f"user-{number:04}") for number, wish in enumerate(wishes))
    await worker.settle(await worker.granted(), user="user-0001")
    await worker.settle(await worker.granted(), user="late")
    await worker.settle(await worker.granted(), user="late", key="another")
    rows = {row["user"]: row["requests"] for row in await store.usage(["user"])}
    assert len(rows) == ATTRIBUTED_OF_KEY + 2
    assert (rows["other"], rows["user-0001"], rows["late"]) == (51, 2, 1)


async def test_sums_by_user_are_kept_as_long_as_the_daily_ones(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store(sums_days=20)
    worker = Worker(store)
    for days in (0, 15, 15):
        await pass_days(worker, clock, days)
        await worker.settle(await worker.granted(), time=clock.now, user="ada")
    await pass_days(worker, clock, 1)
    assert [row["day"] for row in await store.usage(["user", "day"])] == ["2026-12-05", "2026-12-20"]


async def test_an_unknown_cost_is_not_0(worker: Worker, store: Store) -> None:
    for key, cost in (("a", 1_500_000_000), ("a", None), ("a", 1), ("b", None), ("c", 0)):
        await worker.settle(await worker.granted(), key=key, cost_nusd=cost)
    rows = await store.usage(["key"])
    assert [(row["key"], row["cost_usd"], row["unpriced"]) for row in rows] == [
        ("a", 1.500000001, 1), ("b", None, 1), ("c", 0.0, 0),
    ]  # fmt: skip
    (row,) = await store.usage([])
    assert (row["requests"], row["cost_usd"], row["unpriced"]) == (5, 1.500000001, 2)
    assert [call["cost_nusd"] for call in await store.calls(9)] == [0, None, 1, None, 1_500_000_000]


@pytest.mark.parametrize(
    ("since", "until", "rows"),
    [
        (
            "2026-11-20",
            "2026-12-05",
            [
                ("2026-11-20", "m1", "", "asked-for", 1),
                ("2026-11-20", "m1", "up", "asked-for", 2),
                ("2026-11-20", "m1", "up", "m1-0613", 1),
                ("2026-11-20", "m2", "up", "m2-0613", 1),
                ("2026-11-21", "m1", "up", "m1-0613", 2),
            ],
        ),
        ("2026-11-21", "2026-11-21", [("2026-11-21", "m1", "up", "m1-0613", 2)]),
        ("2026-11-01", "2026-11-19", []),
        ("2026-11-22", "2026-12-05", []),
    ],
)
async def test_what_upstreams_called_their_models(
    worker: Worker, store: Store, since: str, until: str, rows: list[tuple[str, str, str, str, int]]
) -> None:
    for day, model, upstream, returned, usage, ended, cost in (
        (0, "m1", "up", "m1-0613", Usage(10, 5, 4, 2, "reported"), "done", 7),
        (0, "m2", "up", "m2-0613", Usage(1, 1, source="reported"), "done", None),
        (0, "m1", "up", None, Usage(3, 4, source="estimated"), "lost", 5),
        (0, "m1", "up", "", Usage(), "error", None),
        (0, "m1", "", None, Usage(), "error", 0),
        (1, "m1", "up", "m1-0613", Usage(10, 5, source="reported"), "done", 1),
        (1, "m1", "up", "m1-0613", Usage(20, 5, 1, source="reported"), "done", 2),
    ):
        await worker.settle(
            await worker.granted(), time=NOON / SECOND + day * DAY_S, label_model=model, model="as-asked",
            routed_model="asked-for", returned_model=returned, upstream=upstream, usage=usage, ended=ended,
            cost_nusd=cost,
        )  # fmt: skip
    found = await store.usage_by_returned_model(since, until)
    assert [(*(row[name] for name in RETURNED_MODEL_GROUPS), row["requests"]) for row in found] == rows
    assert [set(row) for row in found] == [{*RETURNED_MODEL_GROUPS, *USAGE_COLUMNS}] * len(rows)
    if len(found) == 5:  # and together they are what the sums are
        (whole,) = await store.usage([])
        for name in set(USAGE_COLUMNS) - {"cost_usd", "estimated_percent"}:
            assert sum(row[name] for row in found) == whole[name], name
        assert [row["cost_usd"] for row in found] == [0, 5e-9, 7e-9, None, 3e-9]
        assert [row["estimated_percent"] for row in found] == [0, 100, 0, 0, 0]


async def test_a_model_with_half_a_surrogate_pair_in_its_name_can_be_printed(worker: Worker, store: Store) -> None:
    await worker.settle(await worker.granted(), time=NOON / SECOND, returned_model="m\ud83d")
    (row,) = await store.usage_by_returned_model("2026-01-01", "2026-12-31")
    assert row["returned_model"] == "m?"


async def test_very_many_records_are_reported_in_full(worker: Worker, store: Store) -> None:
    wishes = [draw() for _ in range(450)]
    await worker.draw_all(wishes)
    await worker.settle_all(settlement(wish, 1) for wish in wishes)
    (row,) = await store.usage_by_returned_model("2026-11-20", "2026-11-20")
    assert (row["returned_model"], row["requests"], row["total_tokens"]) == ("gpt-y", 450, 450)


async def test_no_calls_no_rows(store: Store) -> None:
    assert await store.usage_by_returned_model("2026-01-01", "2026-12-31") == []
    assert await store.usage([]) == []
    assert await store.usage(["key"]) == []
    assert await store.calls(10) == []


async def test_calls_are_listed_newest_first(worker: Worker, store: Store) -> None:
    wishes = [await worker.granted() for _ in range(6)]
    for number, wish in enumerate(wishes):
        await worker.settle(wish, key="ab"[number % 2])
    ids = [wish.record.id for wish in wishes]
    assert [row["id"] for row in await store.calls(4)] == ids[:1:-1]
    assert [row["id"] for row in await store.calls(2, "a")] == [ids[4], ids[2]]
    assert [row["id"] for row in await store.calls(9, "b")] == [ids[5], ids[3], ids[1]]
    assert await store.calls(9, "nobody") == []
    assert await store.calls(0) == []


async def test_calls_are_filtered(worker: Worker, store: Store) -> None:
    changes: list[dict[str, Any]] = [
        {"team": "red", "model": "alias", "upstream": "up", "status": 200},
        {"team": "blue", "model": "m2", "label_model": "m2", "upstream": "up", "status": 503, "ended": "error"},
        {
            "team": None,
            "model": "m3",
            "upstream": "other",
            "status": 429,
            "time": NOON / SECOND + 60,
            "user": "zoë",
            "tags": "project=atlas\x1fstage=test",
            "failed": "up:status other:timeout",
        },
        {"team": "red", "model": "gpt-x", "upstream": "", "status": 499, "ended": "client_gone"},
    ]
    ids = []
    for each in changes:
        wish = await worker.granted()
        ids.append(wish.record.id)
        await worker.settle(wish, **each)
    for wanted, places in (
        (CallFilter(), [3, 2, 1, 0]),
        (CallFilter(team="red"), [3, 0]),
        (CallFilter(model="alias"), [0]),
        (CallFilter(model="gpt-x"), [3, 2, 0]),
        (CallFilter(upstream="up"), [1, 0]),
        (CallFilter(status=(400, 499)), [3, 2]),
        (CallFilter(status=(200, 200)), [0]),
        (CallFilter(ended="error"), [1]),
        (CallFilter(since=NOON / SECOND + 1), [2]),
        (CallFilter(until=NOON / SECOND), [3, 1, 0]),
        (CallFilter(id=ids[2]), [2]),
        (CallFilter(team="red", status=(499, 499)), [3]),
        (CallFilter(team="re"), []),
        (CallFilter(user="zoë"), [2]),
        (CallFilter(tag="stage=test"), [2]),
        (CallFilter(tag="project=atl"), []),
        (CallFilter(failed_at="up"), [2]),
        (CallFilter(failed_at="other"), [2]),
        (CallFilter(failed_at="p"), []),
    ):
        assert [row["id"] for row in await store.calls(9, wanted=wanted)] == [ids[place] for place in places], wanted
    for only, wanted, places in (
        (ReportScope(frozenset({"red", "none"})), CallFilter(), [3, 0]),
        (ReportScope(frozenset({"red", "blue"})), CallFilter(status=(400, 599)), [3, 1]),
        (ReportScope(frozenset({"red", "blue"})), CallFilter(status=(500, 599)), [1]),
        (ReportScope(keys=frozenset({KeyInTeam("k", None), KeyInTeam("other", "red")})), CallFilter(), [2]),
        (ReportScope(frozenset({"blue", "red"})), CallFilter(until=NOON / SECOND - 1), []),
        (ReportScope(), CallFilter(), []),
    ):
        assert [row["id"] for row in await store.calls(9, only=only, wanted=wanted)] == [ids[place] for place in places]
    (first,) = await store.calls(1, wanted=CallFilter(team="red"))
    (second,) = await store.calls(9, "k", first["position"], wanted=CallFilter(team="red"))
    assert (first["id"], second["id"]) == (ids[3], ids[0])


async def test_a_record_is_kept_as_it_was(worker: Worker, store: Store) -> None:
    wish = await worker.granted()
    received = record(
        wish.record.id, model='od"d \u2028 \0', returned_model="gpt-z \ud800", team=None, stream=True,
        ended="client_gone", usage=Usage(9, 2, 3, 4, "estimated", (("cache_write", 2), ("calls", 1))),
        first_byte_s=None, truncated=True, client_request_id="theirs", cost_nusd=5, price="1.5 0.75 2",
        failed="up:timeout other:status", user="zoë", tags="a=b c\x1fd=e", timeline="up:0:9:timeout other:9:12:status",
    )  # fmt: skip
    await worker.send(worker.closing(Settlement(received, wish.claims)))
    (row,) = await store.calls(1)
    usage = row["usage"]
    assert {name: usage[name] for name in Usage._fields} == received.usage._asdict()
    kept = received._replace(
        returned_model="gpt-z ?"
    )  # half a character is none, and no upstream has a model of that name
    for name in set(kept._fields) - {"usage"}:
        assert row[name] == getattr(kept, name), name
    json.dumps(row)


async def test_only_the_newest_calls_are_kept(open_store: OpensStores) -> None:
    store = await open_store(usage_records_max=50)
    worker = Worker(store)
    wishes = [draw() for _ in range(3000)]
    await worker.draw_all(wishes)
    await worker.settle_all(settlement(wish, 1) for wish in wishes)
    calls = await store.calls(100_000)
    assert 50 <= len(calls) < 2000  # looked after now and then, not at each call
    assert [row["id"] for row in calls] == [wish.record.id for wish in wishes[: -len(calls) - 1 : -1]]
    (row,) = await store.usage([])
    assert row["requests"] == 3000


async def test_old_sums_are_forgotten_and_younger_ones_are_not(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store(usage_records_max=50, sums_days=10)
    worker = Worker(store)
    for days in (0, 5, 15, 8):
        await pass_days(worker, clock, days)
        for _ in range(4):
            wishes = [draw() for _ in range(250)]
            await worker.draw_all(wishes)
            await worker.settle_all(settlement(wish, 1, time=clock.now) for wish in wishes)
    assert [(row["day"], row["requests"]) for row in await store.usage(["day"])] == [
        ("2026-12-10", 1000),
        ("2026-12-18", 1000),
    ]
    assert [row["month"] for row in await store.usage(["team", "month"])] == ["2026-12"]


async def test_the_status_of_unused_windows(store: Store, clock: Clock) -> None:
    for found in await standings(store, [tokens(100), slow(60), parallel(2)], clock):
        assert isinstance(found, WindowStatus)
        assert (found.used, found.reserved, found.remaining) == (0, 0, found.window.limit)
    assert await store.window_statuses([], clock.now) == []


async def test_standings_leak_without_a_draw(worker: Worker, store: Store, clock: Clock) -> None:
    await worker.granted(slow(60, 30))
    (found,) = await store.window_statuses([slow(60).window], clock.now + 10.5 * HOUR_S)
    assert (found.used, found.reset_us) == (20, about(19.5 * HOUR))

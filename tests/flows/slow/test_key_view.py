"""What a member sees of itself, with its own key: every limit that binds it, at every moment of a call, on each kind of
store."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import other_time
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import error_json, ok_json, stream
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.test_quota import Under, go_seconds, held, is_rate_limited, is_spent, used

Store = RedisServer | None
"""The Redis of a gateway; None for the embedded store."""

WINDOWS = {
    "quotas": [{"tokens": 1_000_000, "per": "day"}],
    "teams": {
        "crew": {"quotas": [{"requests": 10, "per": "day"}]},
        "pacers": {"quotas": [{"requests": 4, "per": "day"}]},
    },
}
KEYS = [
    key(
        "member",
        team="crew",
        models=["gpt-*"],
        limits={"max_tokens": 900, "n": 2},
        expires="2099-01-01T00:00:00Z",
        max_parallel=3,
        quotas=[
            {"requests": 60, "per": "hour"},
            {"tokens": 1000, "per": "day"},
            {"tokens": 500, "per": "month", "model": "gpt-3.5*"},
            {"tokens": 300, "per": "day", "model": "gpt-4*"},
            {"usd": 5, "per": "month"},
        ],
    ),
    key("watched", team="crew", quotas=[{"requests": 1, "per": "day"}], on_exceeded="shadow"),
    key("pacer", team="pacers", quotas=[{"requests": 60, "per": "hour"}, {"tokens": 1000, "per": "day"}]),
    key("unbound"),
]


@pytest.fixture(scope="module", params=["embedded", "redis"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "embedded":
        yield None
        return
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly="everysec") as server:
        yield server


def configured(upstream: ScriptedUpstream, store: Store, namespace: str, **changes: Any) -> dict[str, Any]:
    where = {} if store is None else {"store": {"url": store.url, "namespace": namespace}}
    models = {COMPLETIONS: model("completions", price={"input": 10, "output": 100})}
    return settings(upstream.url, models=models, **where, **changes)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store: Store) -> Gateway:
    return start_shared_gateway(configured(shared_upstream, store, "gateway", keys=KEYS, **WINDOWS))


def view(gateway: Gateway, who: str) -> dict[tuple[str, str, str | None, str | None], dict[str, Any]]:
    """The windows that a key sees, by what they are of."""
    shown = gateway.get("/v1/key", key=who)
    assert shown.status == 200
    rows = shown.json["quotas"]
    found = {(row["scope"], row["unit"], row["per"], row["model"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def amounts(row: dict[str, Any]) -> tuple[float, float, float, float]:
    return row["limit"], row["used"], row["reserved"], row["remaining"]


def next_of(per: str, now: datetime) -> str:
    """When this day or month ends."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    after = day + timedelta(days=1) if per == "day" else (day.replace(day=28) + timedelta(days=4)).replace(day=1)
    return after.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_every_window_is_shown_before_within_and_after_a_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    own, now = "key:member", datetime.now(UTC)
    names = [
        (own, "requests", "hour", None), (own, "tokens", "day", None), (own, "tokens", "month", "gpt-3.5*"),
        (own, "tokens", "day", "gpt-4*"), (own, "usd", "month", None), ("team:crew", "requests", "day", None),
        ("gateway", "tokens", "day", None), (own, "parallel", None, None),
    ]  # fmt: skip
    before = view(gateway, "member")
    assert list(before) == names
    assert [amounts(before[name]) for name in names] == [
        (60, 0, 0, 60), (1000, 0, 0, 1000), (500, 0, 0, 500), (300, 0, 0, 300), (5, 0, 0, 5), (10, 0, 0, 10),
        (1_000_000, 0, 0, 1_000_000), (3, 0, 0, 3),
    ]  # fmt: skip
    assert before[own, "requests", "hour", None]["reset_at"] is None  # it is full
    for name in names:
        if name[2] in ("day", "month"):
            assert before[name]["reset_at"] == next_of(name[2], now)
            assert 0 < before[name]["reset_s"] <= 31 * 86_400

    with held(upstream, used(20, 30)) as let_go:
        call = Under(lambda: gateway.complete("member", prompt=[7] * 10, max_tokens=400))
        eventually(lambda: upstream.hits == 1)
        within = view(gateway, "member")
        # 10 tokens as estimated and 400 at most: $0.0401. A rate counts as used what running calls have drawn of it.
        assert [amounts(within[name]) for name in names] == [
            (60, 1, 0, 59), (1000, 0, 410, 590), (500, 0, 410, 90), (300, 0, 0, 300), (5, 0, 0.0401, 4.9599),
            (10, 0, 1, 9), (1_000_000, 0, 410, 999_590), (3, 1, 0, 2),
        ]  # fmt: skip
        refused = gateway.complete("member", prompt=[7] * 2, max_tokens=100)
        assert is_rate_limited(refused, "tokens") == 1
        assert (
            "your key on tokens per month for models gpt-3.5*: Limit 500, Used 0, Reserved 410, Requested 102."
            in (refused.error["message"])
        )
        assert (refused.headers["x-ratelimit-limit-tokens"], refused.headers["x-ratelimit-limit-requests"]) == (
            "500", "10",
        )  # fmt: skip
        assert list(map(amounts, view(gateway, "member").values())) == list(map(amounts, within.values()))
        let_go()
        assert call.end().status == 200

    after = view(gateway, "member")
    assert [amounts(after[name]) for name in names] == [
        (60, 1, 0, 59), (1000, 50, 0, 950), (500, 50, 0, 450), (300, 0, 0, 300), (5, 0.0032, 0, 4.9968),
        (10, 1, 0, 9), (1_000_000, 50, 0, 999_950), (3, 0, 0, 3),
    ]  # fmt: skip
    rate = after[own, "requests", "hour", None]
    assert 0 < rate["reset_s"] <= 60
    assert rate["reset_at"] <= (datetime.now(UTC) + timedelta(seconds=61)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_key_sees_itself_and_nothing_of_others(gateway: Gateway) -> None:
    shown = gateway.get("/v1/key", key="member").json
    assert {name: value for name, value in shown.items() if name != "quotas"} == {
        "object": "key", "id": "member", "team": "crew", "models": ["gpt-*"], "expires": "2099-01-01T00:00:00+00:00",
        "limits": {"max_tokens": 900, "n": 2}, "on_exceeded": "deny",
    }  # fmt: skip
    assert [scope for scope, *_ in view(gateway, "unbound")] == ["gateway"]
    assert {scope for scope, *_ in view(gateway, "watched")} == {"key:watched", "team:crew", "gateway"}


def test_what_only_counts_is_marked(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=used(1, 1))
    assert [gateway.complete("watched").status for _ in range(2)] == [200, 200]
    shown = view(gateway, "watched")
    assert {row["enforced"] for row in shown.values()} == {False}
    assert amounts(shown["key:watched", "requests", "day", None]) == (1, 2, 0, 0)
    assert {row["enforced"] for row in view(gateway, "member").values()} == {True}
    # The headers of a limit that is not enforced would slow down a client for no reason.
    assert not [name for name in gateway.complete("watched").headers if name.startswith("x-ratelimit")]


def test_headers_of_every_answer_describe_the_window_that_ends_first(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    """Of plain answers, streams, failures and refusals: here its team's, of which less is left than of its own."""
    piece = {"choices": [{"text": "a", "index": 0, "finish_reason": "stop"}]}
    upstream.answer_with(used(5, 5), stream([piece]), error_json(500), always=used(1, 1))
    answers = [gateway.complete("pacer")]
    with gateway.stream("pacer") as client:
        answers.append(client.read_head())
        client.read_chunks()
    answers += [gateway.complete("pacer", max_tokens=900), gateway.complete("pacer"), gateway.complete("pacer")]
    assert [answer.status for answer in answers] == [200, 200, 502, 200, 429]
    own, now = view(gateway, "pacer"), [answer.headers for answer in answers]
    assert {each["x-ratelimit-limit-requests"] for each in now} == {"4"}
    assert [each["x-ratelimit-remaining-requests"] for each in now] == ["3", "2", "1", "0", "0"]
    assert {each["x-ratelimit-limit-tokens"] for each in now} == {"1000"}
    assert int(now[-1]["x-ratelimit-remaining-tokens"]) == own["key:pacer", "tokens", "day", None]["remaining"]
    for each in now:
        for unit in ("requests", "tokens"):
            received = each[f"x-ratelimit-reset-{unit}"]
            assert re.fullmatch(r"(\d+h)?(\d+m)?[\d.]+s", received)
            assert (
                abs(go_seconds(received) - own["team:pacers", "requests", "day", None]["reset_s"]) < 60
            )  # to midnight
    is_spent(answers[-1])
    assert (
        "the quota of your team pacers of requests per day: Limit 4, Used 4, Reserved 0, Requested 1. It starts"
        in (answers[-1].error["message"])
    )


def test_without_a_key_nothing_is_shown(gateway: Gateway) -> None:
    assert gateway.get("/v1/key", key=None).refusal == (401, "invalid_request_error", None, None)
    assert gateway.get("/v1/key", key="nobody").refusal == (401, "invalid_request_error", None, "invalid_api_key")
    assert gateway.post("/v1/key", {}, key="member").status == 405


def test_while_the_store_is_away_nothing_is_made_up(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, redis_server: RedisServer
) -> None:
    gateway = start_gateway(configured(upstream, redis_server, "away", keys=KEYS, **WINDOWS))
    assert len(view(gateway, "member")) == 8
    redis_server.stop()
    try:
        refused = gateway.get("/v1/key", key="member")
    finally:
        redis_server.cont()
    assert refused.refusal == (503, "server_error", None, "store_unavailable")
    assert refused.headers["retry-after"] == "1"
    eventually(lambda: gateway.get("/v1/key", key="member").status == 200)


# ------------------------------------------------------------------------------------------------------- another day


@pytest.fixture
def new_years_eve(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, store: Store, tmp_path: Path
) -> tuple[Gateway, Callable[[int], None]]:
    """A gateway five minutes before the end of a year, and how to let seconds pass in it."""
    eve = datetime(datetime.now(UTC).year, 12, 31, 23, 55, tzinfo=UTC)
    offset_s, file = int(eve.timestamp() - time.time()), tmp_path / "other-time"

    def pass_s(seconds: int) -> None:
        written = file.with_suffix(".new")
        written.write_text(str(offset_s + seconds))
        written.replace(file)  # whole: the gateway reads it at any moment

    pass_s(0)
    path = os.pathsep.join([*other_time.__path__, *filter(None, [os.environ.get("PYTHONPATH")])])
    quotas = [{"requests": 2, "per": "day"}, {"tokens": 100, "per": "month"}, {"usd": 1, "per": "day"}]
    config = configured(upstream, store, "eve", keys=[key("alice", quotas=quotas)])
    gateway = start_gateway(config, env={"PYTHONPATH": path, "OTHER_TIME": str(file)})
    return gateway, pass_s


def test_a_call_belongs_to_the_day_in_which_it_began(
    new_years_eve: tuple[Gateway, Callable[[int], None]], upstream: ScriptedUpstream
) -> None:
    gateway, pass_s = new_years_eve
    year = datetime.now(UTC).year
    names = [("key:alice", *each, None) for each in (("requests", "day"), ("tokens", "month"), ("usd", "day"))]

    def seen() -> list[tuple[float, float, str]]:
        return [
            (row["used"], row["reserved"], row["reset_at"]) for row in map(view(gateway, "alice").get, names) if row
        ]

    with held(upstream, ok_json({"usage": {"prompt_tokens": 10, "completion_tokens": 5}})) as let_go:
        call = Under(lambda: gateway.complete(prompt=[7] * 2, max_tokens=70))
        eventually(lambda: upstream.hits == 1)
        midnight = f"{year + 1}-01-01T00:00:00Z"
        assert seen() == [(0, 1, midnight), (0, 72, midnight), (0, 0.00702, midnight)]
        assert gateway.complete(prompt=[7] * 2, max_tokens=10).status == 200
        spent = gateway.complete(prompt=[7] * 2, max_tokens=10)
        assert is_rate_limited(spent) == 1  # the first call is still running
        pass_s(600)
        next_month, next_day = f"{year + 1}-02-01T00:00:00Z", f"{year + 1}-01-02T00:00:00Z"
        assert seen() == [(0, 0, next_day), (0, 0, next_month), (0, 0, next_day)]
        let_go()
        assert call.end().status == 200
        assert seen() == [(0, 0, next_day), (0, 0, next_month), (0, 0, next_day)]
        assert gateway.complete(prompt=[7] * 2, max_tokens=10).status == 200
    assert seen()[0] == (1, 0, next_day)
    pass_s(0)  # and back, where all of the old year still stands
    assert seen() == [(2, 0, midnight), (30, 0, midnight), (0.0012, 0, midnight)]
    spent = gateway.complete(prompt=[7] * 2, max_tokens=10)
    is_spent(spent)
    assert f", at {midnight}; ask the operator of the gateway" in spent.error["message"]
    days = {row["day"]: row["requests"] for row in gateway.usage(group_by="day")}
    assert days == {f"{year}-12-31": 2, f"{year + 1}-01-01": 1}

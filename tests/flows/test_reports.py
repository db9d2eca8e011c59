"""The admin API's reports: usage, calls and quotas are complete as soon as an answer has ended."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.store import USAGE_COLUMNS
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json, stalled_stream, stream

from .gateway_process import ADMIN_TOKEN, CHAT, COMPLETIONS, Gateway, eventually, key, model, run, settings
from .planted import plant, record

PRICE = {"input": 2, "output": 4, "cached_input": 1}
KEYS = [
    key("reader"),
    key("writer", team="crew"),
    key("talker"),
    key("bound", team="crew", max_parallel=3, quotas=[
        {"requests": 10, "per": "day"}, {"tokens": 1000, "per": 864000, "model": "gpt-*"},
        {"tokens": 50, "per": "hour", "model": "nothing-*"}, {"usd": 0.5, "per": "month"},
    ]),
    key("shadow", quotas=[{"requests": 1, "per": "day"}], on_exceeded="shadow"),
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    models = {
        COMPLETIONS: model("completions", price=PRICE, unpriced="allow"),
        CHAT: model("chat", routes=[{"upstream": "main", "model": "gpt-4o-mini-2024"}], unpriced="allow"),
    }
    teams = {"crew": {"quotas": [{"tokens": 5000, "per": "month"}]}, "nobody": {"quotas": [{"usd": 1, "per": "day"}]}}
    everybody = [{"requests": 100_000, "per": "month"}]
    return start_shared_gateway(
        settings(shared_upstream.url, store={"url": store_url}, models=models, keys=KEYS, teams=teams, quotas=everybody)
    )


def counted(prompt: int, completion: int, **more: Any) -> Any:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return ok_json({"model": "model-of-the-upstream", "choices": [], "usage": usage})


# --------------------------------------------------------------------------------------------------------------- calls


def test_a_call_is_reported_in_full(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    upstream.answer_with(counted(10, 5, **details))
    before = time.time()
    answer = gateway.post(
        "/v1/completions", {"model": COMPLETIONS, "prompt": "Hi"}, key="writer", headers={"X-Client-Request-Id": "mine"}
    )
    call = gateway.call(answer.id)
    measured = {name: call.pop(name) for name in ("time", "first_byte_s", "duration_s")}
    assert call == {
        "id": answer.id, "key": "writer", "team": "crew", "endpoint": "completions", "model": COMPLETIONS,
        "served_model": COMPLETIONS,
        "routed_model": COMPLETIONS, "returned_model": "model-of-the-upstream", "upstream": "main", "status": 200,
        "stream": False, "prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4, "reasoning_tokens": 2,
        "usage_source": "reported", "units": {}, "cost_usd": 3.6e-05,
        "price": {"input": 2.0, "cached_input": 1.0, "output": 4.0}, "price_source": "configured",
        "price_tier": None, "price_variant": None,
        "attempts": 1, "truncated": False, "client_gone": False,
        "ended": "done", "client_request_id": "mine", "failed": [], "user": "", "tags": {}, "model_reason": "",
        "amended": "",
        "timeline": [], "cost_parts": [
            {"unit": "prompt", "amount": 6, "per": 1_000_000, "price_usd": 2.0, "cost_usd": 1.2e-05},
            {"unit": "cached", "amount": 4, "per": 1_000_000, "price_usd": 1.0, "cost_usd": 4e-06},
            {"unit": "completion", "amount": 3, "per": 1_000_000, "price_usd": 4.0, "cost_usd": 1.2e-05},
            {"unit": "reasoning", "amount": 2, "per": 1_000_000, "price_usd": 4.0, "cost_usd": 8e-06},
        ],
    }  # fmt: skip
    assert before - 1 <= measured["time"] <= time.time() + 1
    assert 0 < measured["first_byte_s"] <= measured["duration_s"]


def test_call_with_further_units(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(counted(10, 5, prompt_tokens_details={"cache_write_tokens": 6, "audio_tokens": 1}))
    call = gateway.call(gateway.chat("writer").id)
    assert call["units"] == {"cache_write": 6, "audio_in": 1}
    text = gateway.admin("calls", format="csv", key="writer").body.decode()
    (line,) = [line for line in csv.DictReader(io.StringIO(text)) if line["id"] == call["id"]]
    assert line["units"] == "cache_write=6 audio_in=1"


def test_call_of_a_model_with_another_name_and_no_price(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(counted(10, 5))
    call = gateway.call(gateway.chat("writer").id)
    assert (call["model"], call["routed_model"], call["cost_usd"]) == (CHAT, "gpt-4o-mini-2024", None)
    assert call["price"] is None


def test_call_whose_client_left(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stalled_stream([{"choices": [{"index": 0, "text": "He", "finish_reason": None}]}]))
    with gateway.stream("writer") as raw:
        raw.read_head()
        raw.read_until(b"He")
    eventually(lambda: gateway.calls("writer")[0]["ended"] == "client_gone")
    call = gateway.calls("writer")[0]
    assert (call["client_gone"], call["stream"], call["usage_source"]) == (True, True, "estimated")
    assert call["cost_usd"] > 0


def test_newest_calls_stand_first(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(counted(1, 1), counted(1, 1), error_json(400, message="no"), counted(1, 1))
    ids = [gateway.complete(name).id for name in ("reader", "talker", "reader", "talker")]
    eventually(lambda: {call["id"] for call in gateway.calls(limit=4)} == set(ids))
    assert [call["id"] for call in gateway.calls("reader", limit=2)] == [ids[2], ids[0]]
    assert [call["status"] for call in gateway.calls("reader", limit=2)] == [400, 200]
    assert len(gateway.calls(limit=3)) == 3
    assert gateway.calls("nobody-of-this-name") == []


def test_a_hundred_calls_unless_more_are_asked_for(
    gateway: Gateway, upstream: ScriptedUpstream, store_url: str
) -> None:
    plant(store_url, [record("2026-01-01", "many") for _ in range(130)])
    assert len(gateway.admin("calls", key="many").json["data"]) == 100
    assert len(gateway.calls("many", limit=1000)) == 130


# --------------------------------------------------------------------------------------------------------------- usage


def test_unreported_tokens_are_estimated_and_count(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    pieces = [
        {"choices": [{"index": 0, "text": text, "finish_reason": end}]} for text, end in (("a", None), ("", "stop"))
    ]
    upstream.answer_with(stream(pieces), counted(100, 10))
    with gateway.stream("talker") as raw:
        raw.read_head()
        raw.read_chunks()
    gateway.complete("talker")
    eventually(lambda: [call["usage_source"] for call in gateway.calls("talker", limit=2)] == ["reported", "estimated"])
    row = next(row for row in gateway.usage(group_by="key") if row["key"] == "talker")
    assert 0 < row["estimated_tokens"] < 100
    assert row["total_tokens"] == row["prompt_tokens"] + row["completion_tokens"]
    assert row["total_tokens"] >= 110 + row["estimated_tokens"]
    assert row["estimated_percent"] == round(100 * row["estimated_tokens"] / row["total_tokens"], 2)


def test_user_and_tags_of_a_request_are_in_its_record(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(counted(2, 1))
    tags = {"x-gateway-tag-project": "atlas", "X-Gateway-Tag-Stage": "test"}
    body = {"model": COMPLETIONS, "prompt": "Hello", "user": "ada"}
    good = gateway.post("/v1/completions", body, key="reader", headers=tags)
    assert good.status == 200
    assert not [name for name in upstream.requests[-1].headers if name.lower().startswith("x-gateway")]
    call = gateway.call(good.headers["x-request-id"])
    assert (call["user"], call["tags"]) == ("ada", {"project": "atlas", "stage": "test"})
    found = gateway.admin("calls", tag="project:atlas", user="ada").json["data"]
    assert [row["id"] for row in found] == [call["id"]]
    assert gateway.admin("calls", tag="project:atl").json["data"] == []
    assert gateway.admin("calls", tag="project").error["param"] == "tag"
    refused = gateway.post("/v1/completions", body, key="reader", headers={"x-gateway-tag-a": "x" * 65})
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "invalid_tag", "x-gateway-tag-a")


@pytest.mark.parametrize("kept", [{"user": False, "tags": False}, {"user": False}, {"tags": False}], ids=str)
def test_user_and_tags_are_kept_out_of_records(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, store_url: str, tmp_path: Path, kept: dict[str, bool]
) -> None:
    """Out of every file of the gateway, too; the upstream gets the user."""
    upstream.answer_with(counted(2, 1))
    name = "-".join(kept)
    store = {"url": store_url if "redis" in store_url else f"embedded:{tmp_path}/data", "journal_dir": f"{tmp_path}/j"}
    if "redis" in store_url:
        store["namespace"] = f"kept-{name}"
    gateway = start_gateway(settings(upstream.url, store=store, records=kept))
    body = {"model": COMPLETIONS, "prompt": "Hello", "user": "ada-in-private"}
    answer = gateway.post("/v1/completions", body, headers={"x-gateway-tag-project": "atlas-in-private"})
    assert (answer.status, upstream.requests[-1].json["user"]) == (200, "ada-in-private")
    call = gateway.call(answer.headers["x-request-id"])
    assert call["user"] == ("ada-in-private" if kept.get("user", True) else "")
    assert call["tags"] == ({"project": "atlas-in-private"} if kept.get("tags", True) else {})
    for group, text in (("user", "ada-in-private"), ("tag:project", "atlas-in-private")):
        is_kept = kept.get(group.partition(":")[0].replace("tag", "tags"), True)
        assert (text in {row[group] for row in gateway.usage(group_by=group)}) == is_kept
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert any(text.encode() in content for content in files) == is_kept


def test_reports_by_user_tag_and_label(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    wish = {"id": "labelled", "labels": {"cost-center": "c-7"}, "owner": "ann"}
    made = gateway.send("POST", "/admin/api/keys", wish, key=None, headers=admin)
    assert made.status == 201, made
    upstream.answer_with(counted(2, 1))
    own = {"Authorization": f"Bearer {made.json['secret']}", "x-gateway-tag-project": "reported"}
    body = {"model": COMPLETIONS, "prompt": "Hello", "user": "somebody"}
    done = gateway.post("/v1/completions", body, key=None, headers=own)
    assert done.status == 200, done
    gateway.call(done.headers["x-request-id"])
    for group, name in (
        ("user", "somebody"),
        ("tag:project", "reported"),
        ("label:cost-center", "c-7"),
        ("person", "ann"),
    ):
        rows = [row for row in gateway.usage(group_by=f"{group},day") if row[group] == name]
        assert [(row["requests"], row["total_tokens"]) for row in rows] == [(1, 3)], group
        received = run("usage", "--config", str(gateway.file), "--by", f"{group},day", "--format", "json")
        assert [row for row in json.loads(received.stdout) if row[group] == name] == rows
        text = gateway.admin("usage", group_by=group, format="csv").body.decode()
        assert next(iter(csv.DictReader(io.StringIO(text)))).keys() == {group, *USAGE_COLUMNS}
    assert gateway.admin("usage", group_by="user,hour").error["param"] == "group_by"


def test_report_is_as_new_as_the_last_answer(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    def used() -> int:
        return sum(row["total_tokens"] for row in gateway.usage(group_by="key") if row["key"] == "reader")

    before = used()
    for turn in range(1, 6):
        upstream.answer_with(counted(2, 1))
        assert gateway.complete("reader").status == 200
        eventually(lambda turn=turn: used() == before + 3 * turn)  # type: ignore[misc]


@pytest.fixture(scope="module")
def years(gateway: Gateway, store_url: str) -> Gateway:
    """A call a day for 700 days, by a key of its own for each day of the month: more rows than any page has."""
    first = datetime.now(UTC) - timedelta(days=700)
    days = [(first + timedelta(days=number)).strftime("%Y-%m-%d") for number in range(700)]
    plant(store_url, [record(day, f"past-{day[8:]}", cost_nusd=500_000_000) for day in days])
    return gateway


def test_everything_that_is_kept_and_never_cut(years: Gateway, upstream: ScriptedUpstream) -> None:
    past = [row for row in years.usage(group_by="day,key") if row["key"].startswith("past-")]
    assert len(past) == 700
    assert sum(row["cost_usd"] for row in past) == 350
    assert len(years.usage(group_by="day,key", limit="20")) == 20
    text = years.admin("usage", group_by="day,key", format="csv").body.decode()
    read = list(csv.DictReader(io.StringIO(text)))
    assert list(read[0]) == ["day", "key", *USAGE_COLUMNS]
    assert len([row for row in read if row["key"].startswith("past-")]) == 700


def test_days_of_a_report_are_both_included(years: Gateway, upstream: ScriptedUpstream) -> None:
    first, last = ((datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d") for days in (600, 598))
    rows = years.usage(group_by="day", since=first, until=last)
    assert [row["day"] for row in rows] == sorted({row["day"] for row in rows})
    assert (rows[0]["day"], rows[-1]["day"], len(rows)) == (first, last, 3)
    assert [set(row) for row in rows] == [{"day", *USAGE_COLUMNS}] * 3


def test_cost_of_what_has_a_price_and_the_number_of_what_has_none(
    gateway: Gateway, upstream: ScriptedUpstream, store_url: str
) -> None:
    plant(store_url, [record("2026-02-01", "mixed", cost_nusd=cost) for cost in (1_500_000_000, None, None, 0)])
    plant(store_url, [record("2026-02-01", "priceless") for _ in range(2)])
    found = {
        row["key"]: (row["cost_usd"], row["unpriced"], row["requests"]) for row in gateway.usage(since="2026-02-01")
    }
    assert found["mixed"] == (1.5, 2, 4)
    assert found["priceless"] == (None, 2, 2)


# -------------------------------------------------------------------------------------------------------------- quotas


def quotas(gateway: Gateway, **query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = gateway.admin("quotas", **query).json["data"]
    return rows


def spelt(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["scope"], row["unit"], row["per"], row["model"], row["limit"]) for row in rows]


def test_every_limit_stands_there_used_or_not(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    rows = quotas(gateway)
    assert spelt(rows) == [
        ("gateway", "requests", "month", None, 100_000),
        ("team:crew", "tokens", "month", None, 5000),
        ("team:nobody", "usd", "day", None, 1),
        ("key:bound", "requests", "day", None, 10),
        ("key:bound", "tokens", "864000", "gpt-*", 1000),
        ("key:bound", "tokens", "hour", "nothing-*", 50),
        ("key:bound", "usd", "month", None, 0.5),
        ("key:bound", "parallel", None, None, 3),
        ("key:shadow", "requests", "day", None, 1),
    ]
    assert [row["enforced"] for row in rows] == [True] * 8 + [False]
    unused = rows[2]
    assert unused.pop("reset_at") == (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT00:00:00Z")
    assert 0 < unused.pop("reset_s") <= 86400
    assert unused == {
        "key": None, "team": "nobody", "person": None, "scope": "team:nobody", "unit": "usd", "per": "day",
        "model": None, "limit": 1, "used": 0, "reserved": 0, "remaining": 1, "enforced": True,
    }  # fmt: skip


def test_what_is_used_and_reserved_of_each(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(
        counted(100, 20), stalled_stream([{"choices": [{"index": 0, "text": "He", "finish_reason": None}]}])
    )
    team = quotas(gateway, team="crew")[0]["used"]
    assert gateway.complete("bound").status == 200
    with gateway.stream("bound", max_tokens=40) as raw:
        raw.read_head()

        def received() -> list[dict[str, Any]]:
            rows = quotas(gateway, key="bound")
            return rows if rows[4]["used"] == 1 and rows[0]["used"] == 1 else []

        requests, tokens, others, money, parallel = eventually(received)
    assert (requests["used"], requests["reserved"], requests["remaining"]) == (1, 1, 8)
    assert 120 + 20 <= tokens["used"] <= 120 + 20 + 10  # a rate: what is drawn is used, and calls have used 20
    assert (others["used"], others["remaining"], others["reset_s"], others["reset_at"]) == (0, 50, 0, None)
    assert money["used"] == pytest.approx(100 * 2e-6 + 20 * 4e-6)
    assert 40 * 4e-6 <= money["reserved"] < 60 * 4e-6
    assert (parallel["used"], parallel["remaining"], parallel["per"]) == (1, 2, None)
    eventually(lambda: quotas(gateway, key="bound")[4]["used"] == 0)
    assert quotas(gateway, team="crew")[0]["used"] >= team + 120


def test_quotas_of_one_key_or_one_team(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert {row["scope"] for row in quotas(gateway, key="bound")} == {"key:bound"}
    crew = quotas(gateway, team="crew")
    assert {row["scope"] for row in crew} == {"team:crew", "key:bound"}
    assert {row["team"] for row in crew} == {"crew"}
    assert spelt(quotas(gateway, team="crew", key="bound")) == spelt(quotas(gateway, key="bound"))
    assert quotas(gateway, key="reader") == quotas(gateway, key="x") == quotas(gateway, team="bound") == []


def test_every_window_that_binds_a_key(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    rows = quotas(gateway, key="bound", binding="true")
    received = gateway.get("/v1/key", key="bound").json["quotas"]
    assert spelt(rows) == spelt(received)
    owners = {row["scope"]: (row["key"], row["team"]) for row in rows}
    assert owners == {"key:bound": ("bound", "crew"), "team:crew": (None, "crew"), "gateway": (None, None)}
    assert [row["enforced"] for row in quotas(gateway, key="shadow", binding="true")] == [False, False]
    assert quotas(gateway, key="x", binding="true") == []
    for refused in ({"binding": "true"}, {"binding": "false", "key": "bound"}):
        answer = gateway.admin("quotas", **refused)
        assert (answer.status, answer.json["error"]["param"]) == (400, "binding")


def test_a_key_and_its_operator_see_the_same(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    own = gateway.get("/v1/key", key="shadow").json["quotas"]
    operators = [row for row in quotas(gateway) if row["scope"] in ("key:shadow", "gateway")]
    moving = ("reset_s", "reset_at")
    assert sorted([(row["scope"], row["used"], row["limit"], row["enforced"]) for row in operators])[1:] == [
        (row["scope"], row["used"], row["limit"], row["enforced"]) for row in own if row["scope"] == "key:shadow"
    ]
    assert {*operators[0]} - {"key", "team", "person"} == {*own[0]}
    assert all(name in own[0] for name in moving)


def test_reports_are_for_the_operator(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    for path in ("usage", "calls", "quotas"):
        assert gateway.get(f"/admin/api/{path}").refusal == (401, "invalid_request_error", None, "invalid_api_key")
        assert gateway.get(f"/admin/api/{path}", key=None).status == 401
        assert gateway.get(f"/admin/api/{path}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}).status == 200

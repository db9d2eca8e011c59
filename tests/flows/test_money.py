"""What a caller lives through who pays in dollars: what a call costs, where it shows, and when the money is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Behaviour, error_json, ok_json, silent, stream

from .gateway_process import CHAT, COMPLETIONS, EMBEDDINGS, Gateway, eventually, key, model, settings
from .test_quota import Under, burst, held, is_rate_limited, is_spent

PRICE = {"input": 1.50, "output": 2.00, "cached_input": 0.75}
MYSTERY = "nobody-knows-its-price"
HASTY = "hasty"
"""A model of an upstream with a short time limit, for answers that never come."""
TOLERATED = "nobody-minds-its-price"

MODELS = {
    COMPLETIONS: model("completions", price=PRICE),
    CHAT: model("chat", price={"input": 0.15, "output": 0.60}),
    EMBEDDINGS: model("embeddings", price={"input": 0.02}),
    MYSTERY: model("completions"),
    TOLERATED: model("completions", unpriced="allow"),
}


def usd_per(per: str | int, limit: float, **more: Any) -> dict[str, Any]:
    return {"usd": limit, "per": per, **more}


KEYS = [
    key("payer", quotas=[usd_per("month", 50)]),
    key("reserver", quotas=[usd_per("day", 0.002)]),
    key("spender", quotas=[usd_per("month", 0.0005)]),
    key("rate", quotas=[usd_per(1000, 0.0001)]),
    key("small", quotas=[usd_per("day", 0.0001)]),
    key("bounded", quotas=[usd_per("day", 5)]),
    key("watched", quotas=[usd_per("day", 0.000001)], on_exceeded="shadow"),
    key("by-model", quotas=[usd_per("day", 5, model="gpt-*")]),
    key("crew-1", team="crew"),
    key("crew-2", team="crew"),
    key("free"),
    key("failing"),
]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    hasty = {"base_url": shared_upstream.url, "timeouts": {"head_s": 0.5}}
    teams = {"crew": {"quotas": [usd_per("day", 0.0001)]}}
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            keys=KEYS,
            models=MODELS | {HASTY: MODELS[COMPLETIONS] | {"routes": [{"upstream": HASTY}]}},
            teams=teams,
            upstreams={HASTY: hasty},
        )
    )


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=used(10, 5))
    yield
    upstream.answer_with()


def used(prompt: int, completion: int, cached: int = 0) -> Behaviour:
    """An answer that reports these tokens."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return ok_json({"model": "up", "usage": usage})


def purse(gateway: Gateway, who: str) -> dict[str, Any]:
    """The money of a key as its owner sees it, which is in dollars."""
    (only,) = [quota for quota in gateway.get("/v1/key", key=who).json["quotas"] if quota["unit"] == "usd"]
    return dict(only)


def test_a_call_costs_the_same_wherever_it_is_shown(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(100, 50), used(100, 50, cached=40), used(1000, 100), used(8, 0))
    calls = [
        (lambda: gateway.complete("payer"), 0.00025),
        (lambda: gateway.complete("payer"), 0.00022),
        (lambda: gateway.chat("payer"), 0.00021),
        (lambda: gateway.post("/v1/embeddings", {"model": EMBEDDINGS, "input": "Hello"}, key="payer"), 0.00000016),
    ]
    for ask, cost in calls:
        answer = ask()
        assert answer.status == 200
        assert gateway.call(answer.id)["cost_usd"] == cost
        assert gateway.line(id=answer.id)["cost_usd"] == cost
    rows = {row["model"]: row for row in gateway.usage(group_by="key,model") if row["key"] == "payer"}
    assert {name: row["cost_usd"] for name, row in rows.items()} == {
        COMPLETIONS: 0.00047, CHAT: 0.00021, EMBEDDINGS: 0.00000016,
    }  # fmt: skip
    assert [row["unpriced"] for row in rows.values()] == [0, 0, 0]
    for name, row in rows.items():
        assert gateway.metric("gateway_cost_usd_total", key="payer", model=name) == pytest.approx(row["cost_usd"])
    now = purse(gateway, "payer")
    assert (now["limit"], now["used"], now["reserved"], now["remaining"]) == (50, 0.00068016, 0, 49.99931984)
    assert gateway.metric("gateway_quota_used", key="payer", unit="usd", per="month") == pytest.approx(0.00068016)
    assert gateway.metric("gateway_quota_limit", key="payer", unit="usd", per="month") == 50


def test_the_most_that_it_can_cost_is_reserved(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with held(upstream, used(10, 500)) as let_go:
        call = Under(lambda: gateway.complete("reserver", prompt="x" * 40, max_tokens=900))
        eventually(lambda: upstream.hits == 1)
        now = purse(gateway, "reserver")
        assert (now["used"], now["reserved"], now["remaining"]) == (0, 0.001815, 0.000185)
        refused = gateway.complete("reserver", max_tokens=900)
        is_rate_limited(refused, "requests")  # only a reservation is in the way
        assert (
            "on US dollars per day: Limit $0.002, Used $0.00, Reserved $0.001815, Requested $0.001803."
            in (refused.error["message"])
        )
        assert not [name for name in refused.headers if name.startswith("x-ratelimit")]
        let_go()
        assert call.end().status == 200
    now = purse(gateway, "reserver")
    assert (now["used"], now["reserved"]) == (0.001015, 0)


def test_spent_money(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(100, 150), always=used(1, 1))
    assert gateway.complete("spender", max_tokens=200).status == 200
    refused = gateway.complete("spender", max_tokens=100)
    is_spent(refused)
    assert (
        "your key of US dollars per month: Limit $0.0005, Used $0.00045, Reserved $0.00, Requested $0.000203"
        in (refused.error["message"])
    )
    assert gateway.complete("spender", max_tokens=20).status == 200  # what is left may still be used
    assert purse(gateway, "spender")["used"] == 0.0004535


def test_rate_of_money_refills(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=used(20, 20))
    assert gateway.complete("rate", max_tokens=40).status == 200
    wait_s = is_rate_limited(gateway.complete("rate", max_tokens=40))  # 70 of 100 are used, 43 drawn: output as before
    assert 0 < wait_s <= 130


def test_what_can_never_be_paid(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    refused = gateway.complete("small", max_tokens=51)
    assert refused.refusal == (400, "invalid_request_error", "max_tokens", "quota_too_small")
    assert (
        "may cost up to $0.000102 (51 tokens for each of 1 outputs), more than the whole quota of $0.0001 per day"
        in (refused.error["message"])
    )
    assert gateway.chat("small").refusal == (400, "invalid_request_error", "max_completion_tokens", "quota_too_small")
    assert gateway.complete("small", prompt=[5] * 70).refusal[2:] == ("prompt", "quota_too_small")
    assert upstream.hits == 0


def test_chat_is_sent_with_the_limit_that_was_reserved(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert gateway.chat("bounded").status == 200
    assert gateway.chat("bounded", max_tokens=9).status == 200
    assert gateway.chat("free").status == 200
    sent = [{name: value for name, value in each.json.items() if "max" in name} for each in upstream.requests]
    assert sent == [{"max_completion_tokens": 4096}, {"max_tokens": 9}, {}]


@pytest.mark.parametrize("who", ["payer", "crew-1"])
def test_without_a_price_nothing_is_bought(gateway: Gateway, upstream: ScriptedUpstream, who: str) -> None:
    before = gateway.metric("gateway_rejections_total", reason="model_not_priced")
    refused = gateway.complete(who, model=MYSTERY)
    assert refused.refusal == (403, "invalid_request_error", "model", "model_not_priced")
    assert f"`{MYSTERY}`" in refused.error["message"]
    assert upstream.hits == 0
    assert gateway.metric("gateway_rejections_total", reason="model_not_priced") == before + 1


@pytest.mark.parametrize(
    ("who", "name"), [("free", MYSTERY), ("watched", MYSTERY), ("payer", TOLERATED), ("by-model", MYSTERY)]
)
def test_cost_without_a_price_is_unknown(gateway: Gateway, who: str, name: str) -> None:
    before = [quota["used"] for quota in gateway.get("/v1/key", key=who).json["quotas"]]
    answer = gateway.complete(who, model=name)
    assert answer.status == 200
    assert gateway.call(answer.id)["cost_usd"] is None
    assert "cost_usd" not in gateway.line(id=answer.id)
    (row,) = [row for row in gateway.usage(group_by="key,model") if (row["key"], row["model"]) == (who, name)]
    assert (row["cost_usd"], row["unpriced"]) == (None, row["requests"])
    assert [quota["used"] for quota in gateway.get("/v1/key", key=who).json["quotas"]] == before


def test_shadow_counts_money_and_never_blocks(gateway: Gateway) -> None:
    before = purse(gateway, "watched")["used"]
    assert [gateway.complete("watched").status for _ in range(3)] == [200] * 3
    now = purse(gateway, "watched")
    assert now["used"] == pytest.approx(before + 0.000075)
    assert now["remaining"] == 0


def test_team_purse_is_shared(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(20, 20), always=used(1, 1))
    assert gateway.complete("crew-1").status == 200
    refused = gateway.complete("crew-2", max_tokens=30)
    is_spent(refused)
    assert "the quota of your team crew of US dollars per day: Limit $0.0001, Used $0.00007" in refused.error["message"]


@pytest.mark.parametrize(
    ("script", "status", "cost"),
    [
        (error_json(400), 400, 0),
        (error_json(500), 502, 0),
        (silent, 504, 35e-6),  # it was sent: 2 tokens of the prompt, and completions' default of 16
    ],
)
def test_what_failed_costs_nothing_or_what_it_may_have_cost(
    gateway: Gateway, upstream: ScriptedUpstream, script: Behaviour, status: int, cost: float
) -> None:
    upstream.answer_with(*[script] * 3)
    answer = gateway.complete("failing", model=HASTY if script is silent else COMPLETIONS)
    assert answer.status == status
    assert gateway.call(answer.id)["cost_usd"] == cost
    upstream.answer_with()


def test_stream_is_paid_before_its_end_leaves(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    choice = {"text": "a", "index": 0, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    upstream.answer_with(stream([{"choices": [choice]}, {"choices": [], "usage": usage}]))
    before = purse(gateway, "bounded")["used"]
    with gateway.stream("bounded") as client:
        client.read_head()
        while client.read_chunk() != b"data: [DONE]\n\n":
            pass
        now = purse(gateway, "bounded")
    assert round(now["used"] - before, 9) == 0.000011  # 1 x 1.5 + 2 x 0.75 + 4 x 2
    assert now["reserved"] == 0


def test_stream_whose_client_leaves_is_paid_as_far_as_it_came(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    pieces = [{"choices": [{"text": "abcd", "index": 0, "finish_reason": None}]}] * 50
    upstream.answer_with(stream(pieces, delay_s=0.05))
    with gateway.stream("failing") as client:
        client.read_head()
        client.read_chunk()
    call = eventually(lambda: next((c for c in gateway.calls("failing") if c["ended"] == "client_gone"), None))
    assert call["usage_source"] == "estimated"
    tokens_nusd = 1500 * call["prompt_tokens"] + 2000 * call["completion_tokens"]
    assert call["cost_usd"] == tokens_nusd / 1e9 > 0


async def test_no_more_is_spent_than_there_is(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """Each call reserves 1 x 1.5 + 10 x 2 millionths and pays 1 x 1.5 + 5 x 2."""
    keys = [key("alice", quotas=[usd_per("month", 0.0005)]), key("bob")]
    gateway = start_gateway(
        settings(upstream.url, keys=keys, models=MODELS, quotas=[usd_per("day", 0.0023)], server={"workers": 2})
    )
    upstream.answer_with(always=used(1, 5))
    statuses = await burst(gateway, "alice", 200)
    now = purse_of(gateway, "alice", "key:alice")
    assert now["reserved"] == 0
    assert now["used"] == round(0.0000115 * statuses.count(200), 9) <= 0.0005
    assert set(statuses) == {200, 429}
    statuses += await burst(gateway, "bob", 300)
    whole = purse_of(gateway, "bob", "gateway")
    assert whole["reserved"] == 0
    assert whole["used"] == round(0.0000115 * statuses.count(200), 9) <= 0.0023
    assert sum(row["cost_usd"] for row in gateway.usage(group_by="model")) == whole["used"]


def purse_of(gateway: Gateway, who: str, scope: str) -> dict[str, Any]:
    (only,) = [quota for quota in gateway.get("/v1/key", key=who).json["quotas"] if quota["scope"] == scope]
    return dict(only)


@pytest.fixture(params=["embedded", "redis"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a store is that outlives its gateways."""
    if request.param == "embedded":
        yield f"embedded:{tmp_path / 'kept'}"
        return
    with RedisServer(tmp_path / "redis") as server:
        yield server.url


def test_a_record_keeps_the_price_it_was_charged_at(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, kept: str
) -> None:
    """Three gateways one after the other, each with another price; what was charged stays what it was."""
    upstream.answer_with(always=used(10, 5, cached=4))
    config = settings(
        upstream.url, store={"url": kept}, models=MODELS, keys=[key("alice", quotas=[usd_per("month", 1)])]
    )
    expected: list[tuple[dict[str, float], float]] = []
    for price, shown, nusd in (
        (PRICE, {"input": 1.5, "cached_input": 0.75, "output": 2.0}, 6 * 1500 + 4 * 750 + 5 * 2000),
        ({"input": 3, "output": 4}, {"input": 3.0, "cached_input": 3.0, "output": 4.0}, 10 * 3000 + 5 * 4000),
        ({"input": 0, "output": 0}, {"input": 0.0, "cached_input": 0.0, "output": 0.0}, 0),
    ):
        config["models"] = {**config["models"], COMPLETIONS: model("completions", price=price)}
        config["keys"][0]["quotas"] = [usd_per("month", 2 + len(expected))]  # changing a limit keeps what was used
        gateway = start_gateway(config)
        assert gateway.complete().status == 200
        expected.insert(0, (shown, nusd / 1e9))
        calls = eventually(lambda: found if len(found := gateway.calls()) == len(expected) else None)  # noqa: B023
        assert [(call["price"], call["cost_usd"]) for call in calls] == expected
        for call in calls:  # each explains itself
            tokens = {
                "input": call["prompt_tokens"] - call["cached_tokens"],
                "cached_input": call["cached_tokens"],
                "output": call["completion_tokens"],
            }
            assert round(sum(call["price"][kind] * tokens[kind] for kind in tokens) / 1e6, 9) == call["cost_usd"]
        total = round(sum(call["cost_usd"] for call in calls), 9)
        assert [row["cost_usd"] for row in gateway.usage(group_by="")] == [total]
        assert purse(gateway, "alice")["used"] == total
        gateway.stop()
    assert total == 0.000072


def test_a_price_stands_on_a_record_of_a_failed_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(silent, *[error_json(500)] * 3)
    call = gateway.call(gateway.complete("failing", model=HASTY).id)
    assert (call["cost_usd"], call["price"]) == (35e-6, {"input": 1.5, "cached_input": 0.75, "output": 2.0})
    answer = gateway.complete("free", model=MYSTERY)
    assert gateway.call(answer.id)["price"] is None
    upstream.answer_with()

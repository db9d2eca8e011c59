"""The budget of a person over her keys and her signed tokens, at several workers and gateways: never exceeded, and what
is charged to her is the sum of what is charged to her keys, also after kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.quota.issued import person_id
from tests.conftest import ScriptedUpstream, StartsGateways, start_pair
from tests.fakes.identity_provider import IdentityProvider, sign
from tests.fakes.scripted import ok_json
from tests.flows.crowd import Call, statuses
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, model, run, secret, settings

ANN = "ann@example.org"
FILE_KEYS = ("laptop", "ci")
CALLS, LIMIT = 500, 100


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    """In a thread of its own, beside the gateways' processes."""
    loop, provider = asyncio.new_event_loop(), IdentityProvider()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(provider.server.start_server(), loop).result()
    yield provider
    asyncio.run_coroutine_threadsafe(provider.server.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def gateways(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, provider: IdentityProvider, store_url: str
) -> list[Gateway]:
    config = settings(
        shared_upstream.url,
        server={"workers": 2},
        store={"url": store_url},
        keys=[key("laptop", owner=ANN, quotas=["100 USD/month"]), key("ci", owner=ANN, team="red"), key("bob")],
        teams={"red": {"member_quotas": ["1000 USD/month"]}},
        people={ANN: {"quotas": [{"requests": LIMIT, "per": "day"}, "1000 USD/month"]}},
        defaults={"keys": {"quotas": ["100 USD/month"]}},
        jwt={"issuer": provider.issuer, "audiences": ["gateway"], "jwks_url": f"{provider.issuer}/keys"},
        models={COMPLETIONS: model("completions", price={"input": 1.7, "output": 3.1})},
    )
    return start_pair(start_shared_gateway, config, store_url)


@pytest.fixture(scope="module")
def secrets(gateways: list[Gateway], provider: IdentityProvider) -> list[str]:
    """Of three keys and a token, all hers; one key is made while the gateways run."""
    made = gateways[0].send(
        "POST", "/admin/api/keys", {"id": "made", "owner": ANN}, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
    )
    assert made.status == 201
    return [*map(secret, FILE_KEYS), made.json["secret"], sign(provider.good_claims(email=ANN))]


def windows(gateway: Gateway) -> list[dict[str, Any]]:
    return list(gateway.admin("quotas").json["data"])


def test_exactly_100_of_500_calls_with_whatever_she_has(
    gateways: list[Gateway], secrets: list[str], upstream: ScriptedUpstream
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    upstream.answer_with(always=ok_json({"model": "up", "usage": usage, "choices": [{"text": "a", "index": 0}]}))
    body = {"model": COMPLETIONS, "prompt": "Hello", "max_tokens": 5}
    calls: list[Call] = [
        (gateways[number % 2].port, "/v1/completions", secrets[number % len(secrets)], body) for number in range(CALLS)
    ]
    received = statuses(calls, 4)
    for _ in range(20):
        if not (again := [number for number, status in enumerate(received) if status == 503]):
            break  # a busy machine; they come again, as the SDKs do
        for number, status in zip(again, statuses([calls[number] for number in again], 1), strict=True):
            received[number] = status
    assert Counter(received) == {200: LIMIT, 429: CALLS - LIMIT}
    assert upstream.hits == LIMIT
    for gateway in gateways:
        (row,) = [row for row in windows(gateway) if row["person"] == ANN and row["unit"] == "requests"]
        assert (row["scope"], row["used"], row["reserved"]) == (f"person:{ANN}", LIMIT, 0)
    assert gateways[0].complete("bob").status == 200
    refused = gateways[1].complete("ci")
    assert refused.refusal == (429, "insufficient_quota", None, "insufficient_quota")
    assert f"the person {ANN} over all her keys" in refused.error["message"]
    assert refused.headers["x-gateway-limit"].startswith(f"person:{ANN}; unit=requests; per=day; limit={LIMIT}; used=")


def test_what_a_person_is_charged_is_the_sum_of_her_keys_after_kills(
    gateways: list[Gateway], secrets: list[str], upstream: ScriptedUpstream
) -> None:
    """Money to the billionth, with calls that ended, and calls whose workers were killed."""
    reset = gateways[0].send(
        "POST", f"/admin/api/people/{ANN}/reset", {"unit": "requests"},
        headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
    )  # fmt: skip
    assert reset.status == 200
    let_go = threading.Event()
    answer = ok_json({"model": "up", "usage": {"prompt_tokens": 7, "completion_tokens": 3}})

    async def hold(wire: Any) -> None:
        if upstream.hits % 3:
            await asyncio.to_thread(let_go.wait, 20)
        await answer(wire)

    upstream.answer_with(always=hold)
    body = {"model": COMPLETIONS, "prompt": "Hello", "max_tokens": 5}
    calls: list[Call] = [
        (gateways[number % 2].port, "/v1/completions", secrets[number % len(secrets)], body) for number in range(40)
    ]
    threads = [threading.Thread(target=_quietly, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    eventually(lambda: upstream.hits >= 10)
    for gateway in {id(each): each for each in gateways}.values():
        os.kill(gateway.workers()[0], signal.SIGKILL)
    let_go.set()
    for thread in threads:
        thread.join()

    def is_settled() -> bool:
        return not any(row["reserved"] for row in windows(gateways[0]))

    eventually(is_settled, 60)
    (of_person,) = [row for row in windows(gateways[0]) if row["scope"] == f"person:{ANN}" and row["unit"] == "usd"]
    usage = {row["key"]: row["cost_usd"] for row in gateways[0].usage(group_by="key")}
    hers = (*FILE_KEYS, "made", person_id(ANN))
    assert of_person["used"] > 0
    assert round(of_person["used"] * 1e9) == sum(round(usage[name] * 1e9) for name in hers)


def _quietly(call: Call) -> None:
    """A call whose connection may be cut."""
    try:
        statuses([call], 1)
    except (AssertionError, ValueError):
        return


def test_a_budget_is_given_watched_and_raised_by_commands(gateways: list[Gateway]) -> None:
    """The same over the network as on the store."""
    env = {"GATEWAY_TOKEN": ADMIN_TOKEN}

    def people(*arguments: str) -> str:
        done = run("people", *arguments, "--url", gateways[0].url, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ops = "ops@example.org"
    assert run("keys", "create", "--id", "ops", "--owner", ops, "--url", gateways[0].url, env=env).returncode == 0
    people("update", ops, "--usd", "30/month", "--requests", "2/day")
    listed = people("list")
    assert ops in listed
    assert "0% of 30 usd/month" in listed
    shown = json.loads(people("show", ops, "--json"))
    assert (shown["keys"], shown["managed_by"], len(shown["windows"])) == (["ops"], "store", 2)
    (topped,) = [
        row for row in json.loads(people("top-up", ops, "--usd", "10/month", "--json")) if row["unit"] == "usd"
    ]
    assert topped["limit"] == 40
    assert json.loads(people("update", ops, "--usd", "50/month", "--json"))["quotas"] == [
        {"requests": 2, "per": "day"}, {"usd": 50, "per": "month"},
    ]  # fmt: skip
    assert json.loads(people("update", ops, "--as-everyone", "--json"))["managed_by"] is None
    in_team = json.loads(people("reset", ANN, "--team", "red", "--json"))
    assert [(row["scope"], row["used"]) for row in in_team] == [(f"member:red/{ANN}", 0)]
    refused = run("people", "update", ANN, "--usd", "9/day", "--url", gateways[0].url, env=env)
    assert refused.returncode != 0
    assert "configuration file" in refused.stderr

"""A 429 holds for the key that it refused, and for others when there is evidence that it concerns them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json
from tests.flows.client import Answer, Raw
from tests.flows.gateway_process import Gateway, eventually, key, settings

GOOD = ok_json({"model": "up", "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
WAIT = ("retry-after", "500")
ROOM = [
    ("x-ratelimit-limit-requests", "500"), ("x-ratelimit-remaining-requests", "499"),
    ("x-ratelimit-limit-tokens", "30000"), ("x-ratelimit-remaining-tokens", "29980"),
]  # fmt: skip
NOTHING = [("anthropic-ratelimit-requests-limit", "50"), ("anthropic-ratelimit-requests-remaining", "0")]

LIMITS: dict[str, dict[str, Any]] = {
    "learn": {"requests": "900/2h"},
    "fixed": {"requests": "900/2h", "learn": False},
    "none": {},
}
"""Limits of an upstream: learned, not learned, and none."""
FEW = {name: {"requests": "4/2h"} for name in ("few", "two-few", "few-flex", "few-waits")}


CASES = ("alone", "two", "nothing", "room", "service", "waits", "two-wait")


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    url = shared_upstream.url
    limits = {f"{case}.{name}": of for case in CASES for name, of in LIMITS.items()} | FEW
    upstreams = {name: {"base_url": url, "api_key": "sk-up", "limits": of} for name, of in limits.items()}
    models = {name: {"routes": [{"upstream": name}], "max_output_tokens": 50} for name in upstreams}
    keys = [key(who, max_wait_s=0) for who in ("alice", "bob", "carol")] + [key("ann"), key("ben"), key("cleo")]
    queue, server, store = {"max_wait_s": 3600}, {"workers": 1}, {"url": store_url}
    return start_shared_gateway(
        settings(url, upstreams=upstreams, models=models, keys=keys, queue=queue, server=server, store=store)
    )


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=GOOD)
    yield
    upstream.answer_with()


def ask(gateway: Gateway, model: str, who: str, **more: Any) -> Answer:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **more}
    return gateway.post("/v1/chat/completions", body, key=who)


def statuses(gateway: Gateway, model: str, *callers: str, **more: Any) -> list[int]:
    return [ask(gateway, model, who, **more).status for who in callers]


def refuse(upstream: ScriptedUpstream, *headers: tuple[str, str]) -> None:
    upstream.answer_with(always=error_json(429, headers=list(headers)))


@pytest.mark.parametrize("limits", LIMITS)
def test_others_are_served_while_one_key_is_refused(gateway: Gateway, upstream: ScriptedUpstream, limits: str) -> None:
    model = f"alone.{limits}"
    refuse(upstream, WAIT)
    for _ in range(12):  # so that the only API key counts as unavailable
        assert ask(gateway, model, "alice").status == 429
    upstream.answer_with(always=GOOD)
    hits = upstream.hits
    assert statuses(gateway, model, "alice", "bob", "carol", "bob", "alice") == [429, 200, 200, 200, 429]
    assert upstream.hits == hits + 3


@pytest.mark.parametrize("limits", LIMITS)
def test_a_second_key_that_is_refused_pauses_all_of_them(
    gateway: Gateway, upstream: ScriptedUpstream, limits: str
) -> None:
    model = f"two.{limits}"
    refuse(upstream, WAIT)
    assert statuses(gateway, model, "alice", "bob") == [429, 429]
    upstream.answer_with(always=GOOD)
    hits = upstream.hits
    assert ask(gateway, model, "carol").status == (429 if limits == "learn" else 200)  # others do not heed it
    assert upstream.hits == hits + (limits != "learn")


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(("case", "headers", "status"), [("nothing", NOTHING, 429), ("room", ROOM, 200)])
def test_headers_are_evidence(
    gateway: Gateway, upstream: ScriptedUpstream, limits: str, case: str, headers: list[tuple[str, str]], status: int
) -> None:
    model = f"{case}.{limits}"
    refuse(upstream, WAIT, *headers)
    assert statuses(gateway, model, *(["alice"] if case == "nothing" else ["alice", "bob"])) in ([429], [429, 429])
    upstream.answer_with(always=GOOD)
    assert ask(gateway, model, "carol").status == (status if limits == "learn" else 200)


@pytest.mark.parametrize("limits", LIMITS)
def test_a_service_that_two_keys_ask_for_pauses_no_ordinary_call(
    gateway: Gateway, upstream: ScriptedUpstream, limits: str
) -> None:
    model = f"service.{limits}"
    refuse(upstream, WAIT, *NOTHING)
    assert statuses(gateway, model, *("alice", "bob") * 6, service_tier="flex") == [429] * 12
    upstream.answer_with(always=GOOD)
    assert statuses(gateway, model, "alice", "bob", "carol") == [200] * 3
    assert statuses(gateway, model, "carol", service_tier="flex") == [429]
    assert statuses(gateway, model, "carol", service_tier="priority") == [200]


def test_refusals_of_one_key_lower_no_limit_for_others(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    refuse(upstream)
    assert ask(gateway, "few", "alice").status == 429  # three of four count for her now
    upstream.answer_with(always=GOOD)
    assert statuses(gateway, "few", "bob", "bob", "alice", "bob", "bob") == [200, 200, 429, 200, 429]


def test_refusals_of_two_keys_lower_it_for_all(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    refuse(upstream)
    assert statuses(gateway, "two-few", "alice", "bob") == [429, 429]
    upstream.answer_with(always=GOOD)
    assert statuses(gateway, "two-few", "carol", "carol") == [200, 429]


def test_refusals_of_a_service_lower_no_limit_for_ordinary_calls(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    refuse(upstream, *NOTHING)
    assert statuses(gateway, "few-flex", "alice", "bob", service_tier="flex") == [429, 429]
    upstream.answer_with(always=GOOD)
    assert statuses(gateway, "few-flex", "carol", "carol", "carol") == [200, 200, 429]


def waiting(gateway: Gateway) -> int:
    return sum(row["waiting"] for row in gateway.admin("upstreams").json["data"])


def begin(gateway: Gateway, model: str, who: str) -> Raw:
    return gateway.stream(
        who, path="/v1/chat/completions", model=model, messages=[{"role": "user", "content": "Hello"}]
    )


@pytest.mark.parametrize("limits", LIMITS)
def test_others_pass_a_call_that_waits_after_its_429(gateway: Gateway, upstream: ScriptedUpstream, limits: str) -> None:
    model = f"waits.{limits}"
    upstream.answer_with(error_json(429, headers=[WAIT]), always=GOOD)
    hits = upstream.hits
    with begin(gateway, model, "ann"):
        eventually(lambda: waiting(gateway) == 1)
        with begin(gateway, model, "ann"):
            eventually(lambda: waiting(gateway) == 2)  # the Retry-After holds for all calls of this key
            assert statuses(gateway, model, "ben", "cleo", "ben") == [200, 200, 200]
            assert waiting(gateway) == 2
    eventually(lambda: waiting(gateway) == 0)
    assert upstream.hits == hits + 4


@pytest.mark.parametrize("limits", LIMITS)
def test_all_calls_wait_when_two_keys_were_refused(gateway: Gateway, upstream: ScriptedUpstream, limits: str) -> None:
    model = f"two-wait.{limits}"
    refuse(upstream, WAIT)
    hits = upstream.hits
    with begin(gateway, model, "ann"):
        eventually(lambda: waiting(gateway) == 1)
        with begin(gateway, model, "ben"):
            eventually(lambda: waiting(gateway) == 2)
            with begin(gateway, model, "cleo"):
                eventually(lambda: waiting(gateway) == 3)
    eventually(lambda: waiting(gateway) == 0)
    assert upstream.hits == hits + 2


def test_others_pass_a_call_that_waits_for_a_limit_of_its_key_alone(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(error_json(429), always=GOOD)
    assert statuses(gateway, "few-waits", "ann", "ann", "ann") == [429, 200, 200]
    with begin(gateway, "few-waits", "ann"):  # three of four count for her
        eventually(lambda: waiting(gateway) == 1)
        assert ask(gateway, "few-waits", "ben").status == 200
    eventually(lambda: waiting(gateway) == 0)

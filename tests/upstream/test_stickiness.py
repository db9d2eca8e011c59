"""Which calls belong together, and where they go: always to one place, and with few moves when places come and go."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from gateway.api.json_document import parse
from gateway.config import Route, Sticky
from gateway.records import Document, Failure, Fault, LargeBody, Phase
from gateway.upstream.credentials import Credentials
from gateway.upstream.stickiness import LIGHT_LOAD, affinity, ranked, ranks

KEYS = [f"key-{number}".encode() for number in range(2000)]


def route(name: str, **more: Any) -> Route:
    return Route.model_validate({"upstream": name, **more})


def idle(_: Route) -> int:
    return 0


def of(members: dict[str, Any], headers: dict[str, str] | None = None, **settings: Any) -> bytes | None:
    document = parse(json.dumps(members).encode())
    return affinity(Sticky.model_validate(settings), document, (headers or {}).get)


def chat(*texts: str, system: str = "Be kind.", **more: Any) -> dict[str, Any]:
    roles = ["user", "assistant"] * 9
    turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"messages": [{"role": "system", "content": system}, *turns], **more}


def test_the_turns_of_one_conversation_belong_together() -> None:
    assert of(chat("Hi")) == of(chat("Hi", "Hello!", "More")) == of(chat("Hi", temperature=1))
    assert of(chat("Hi")) != of(chat("Ho"))
    assert of(chat("Hi")) != of(chat("Hi", tools=[{"type": "function"}]))


def test_calls_with_the_same_long_beginning_belong_together() -> None:
    assert of(chat("Hi", system="x" * 2000)) == of(chat("Ho", system="x" * 2000))
    assert of(chat("Hi", system="x" * 2000), prefix_bytes=4096) != of(chat("Ho", system="x" * 2000), prefix_bytes=4096)


def test_a_header_counts_before_a_cache_key_and_that_before_the_prompt() -> None:
    named = {"X-Gateway-Conversation": "c1"}
    assert of(chat("Hi"), named) == of(chat("Ho", prompt_cache_key="k"), named)
    assert of(chat("Hi", prompt_cache_key="k")) == of(chat("Ho", prompt_cache_key="k"))
    assert of(chat("Hi"), named, by=["prefix"]) == of(chat("Hi"))
    assert of(chat("Hi"), named, by=["prompt_cache_key"]) is None
    assert of(chat("Hi"), {"X-Chat": "c"}, header="X-Chat") == of(chat("Ho"), {"X-Chat": "c"}, header="X-Chat")
    assert of(chat("Hi", prompt_cache_key="c1")) != of(chat("Hi"), named)


@pytest.mark.parametrize("members", [{"input": "text"}, {"prompt": [1, 2]}, {"input": [{"role": "user"}]}, {}])
def test_other_formats_have_a_beginning_as_well(members: dict[str, Any]) -> None:
    assert of(members) == of(members)


def test_of_a_large_body_its_first_bytes_count() -> None:
    def large(text: bytes) -> Document:
        return Document("", {}, LargeBody([text, b"rest"], 1, {}))

    one, same, other = (affinity(Sticky(), large(text), {}.get) for text in (b"a" * 2000, b"a" * 1500, b"b" * 2000))
    assert one == same != other


def test_calls_spread_by_weight_and_each_stays() -> None:
    routes = [route("a"), route("b"), route("c", weight=2)]
    first = Counter(ranked(routes, key, idle)[0].upstream for key in KEYS)
    assert first == Counter(ranked(routes[::-1], key, idle)[0].upstream for key in KEYS)
    assert [400 < first[name] < 600 for name in "ab"] == [True, True]
    assert 900 < first["c"] < 1100


def test_a_place_that_leaves_moves_its_own_calls_only() -> None:
    routes = [route(name) for name in "abcd"]
    for key in KEYS[:300]:
        before, after = ranked(routes, key, idle), ranked(routes[1:], key, idle)
        assert [each for each in before if each.upstream != "a"] == after


def test_priority_counts_first_and_a_crowded_route_last() -> None:
    near, far = route("near"), route("far", priority=2)
    assert all(ranked([far, near], key, idle)[0] is near for key in KEYS[:50])
    a, b = route("a"), route("b")
    key = next(key for key in KEYS if ranked([a, b], key, idle)[0] is a)
    for under_way, first in ((0, a), (LIGHT_LOAD - 1, a), (20, b)):
        load = {"a": under_way, "b": 0}
        assert ranked([a, b], key, lambda each, load=load: load[each.upstream])[0] is first  # type: ignore[misc]


def test_api_keys_are_ranked_and_one_in_cooldown_is_passed_over() -> None:
    credentials = Credentials(3)
    for key in KEYS[:20]:
        order = sorted(range(3), key=ranks(key, 3).__getitem__)
        assert [credentials.take("m", 0, affinity=key) for _ in range(3)] == [order[0]] * 3
        assert credentials.in_order("m", 0, key) == order
        assert credentials.take("m", 0, [order[0]], key) == order[1]
    first = ranks(KEYS[0], 3).index(0)
    credentials.refused(first, "m", Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429), 0, 0)
    assert credentials.take("m", 0.5, affinity=KEYS[0]) == ranks(KEYS[0], 3).index(1)
    assert credentials.take("m", 60, affinity=KEYS[0]) == first

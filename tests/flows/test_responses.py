"""OpenAI's Responses API through a whole gateway: what passes, how it ends, what is charged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.scripted import CHUNKED, Behaviour, Wire, chunk, error_json, ok_json, silent

from .client import Answer
from .gateway_process import Gateway, key, model, secret, settings

MODEL = "gpt-4.1"
PRICE = {"input": 2, "cached_input": 1, "output": 8, "cache_write": 3}
REPORTED = {"prompt_tokens": 30, "completion_tokens": 12, "cached_tokens": 10, "reasoning_tokens": 5}
COST = (16 * 2 + 10 * 1 + 4 * 3 + 12 * 8) / 1e6
TEXT = "All is said."
GOOD = api.stream(TEXT)
OUTPUT = [api.message(TEXT)]
QUOTAS = [{"tokens": 10**9, "per": "month"}]


def sent(*pieces: bytes, is_cut: bool = False) -> Behaviour:
    """A stream of these bytes."""

    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED + b"".join(map(chunk, filter(None, pieces))) + (b"" if is_cut else b"0\r\n\r\n"))
        if is_cut:
            wire.close()

    return behaviour


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    upstream = {"base_url": shared_upstream.url}
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            upstreams={
                "main": upstream, "none": upstream | {"capabilities": {"responses": False}},
                "hasty": upstream | {"timeouts": {"idle_s": 0.5}},
            },
            models={
                MODEL: model("responses", price=PRICE),
                "o3": model("responses", price=PRICE),
                "hasty": model("responses", "hasty", price=PRICE),
                "mapped": model("responses", routes=[{"upstream": "main", "model": "own-name"}]),
                "elsewhere": model("responses", "none"),
            },
            keys=[
                key("alice", quotas=QUOTAS), key("bob"), key("small", limits={"max_tokens": 100}),
                key("spent", quotas=[{"tokens": 40, "per": "month"}]),
            ],
            server={"access_log": "off"},
        )
    )  # fmt: skip


def ask(gateway: Gateway, who: str = "alice", path: str = "/v1/responses", **members: Any) -> Answer:
    return gateway.post(path, {"model": MODEL, "input": "Hello", "store": False} | members, key=who)


def ask_stream(gateway: Gateway, **members: Any) -> tuple[Answer, bytes]:
    """Head and bytes of a stream, or a plain answer."""
    raw = gateway.connect()
    with raw:
        body = json.dumps({"model": MODEL, "input": "Hello", "stream": True} | members).encode()
        raw.post("/v1/responses", body, secret("alice"))
        head = raw.read_head()
        if head.headers.get("transfer-encoding") == "chunked":
            return head, raw.read_chunks()
        return head, raw.read(int(head.headers["content-length"]))


def data_of(event: bytes) -> Any:
    return json.loads(event.partition(b"data: ")[2])


def check(record: dict[str, Any], source: str = "reported", **expected: Any) -> None:
    wanted = {"endpoint": "responses", "usage_source": source} | expected
    assert {name: record[name] for name in wanted} == wanted


def test_a_plain_response(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    said = api.response(OUTPUT)
    upstream.answer_with(ok_json(said, headers=[("x-codex-turn-state", "abc")]))
    given = b'{ "model":"gpt-4.1", "input":"Hello",  "unknown":{"kept":[1.50, 2e3]}, "max_output_tokens": 64}'
    received = gateway.post("/v1/responses?beta=true&api_key=no", given, headers={"x-codex-turn-state": "before"})
    assert (received.status, received.json) == (200, said)
    assert received.headers["x-codex-turn-state"] == "abc"
    request = upstream.requests[-1]
    assert (request.path, request.body) == ("/v1/responses?beta=true", given)
    assert request.headers["x-codex-turn-state"] == "before"
    record = gateway.call(received.id)
    check(record, **REPORTED, status=200, stream=False, returned_model="gpt-4o-mini-2024")
    assert record["cost_usd"] == pytest.approx(COST)
    assert record["units"] == {"cache_write": 4}


@pytest.mark.parametrize("kind", ["completed", "incomplete"])
@pytest.mark.parametrize("ends", [b"", b"data: [DONE]\n\n"])
def test_a_stream(gateway: Gateway, upstream: ScriptedUpstream, kind: str, ends: bytes) -> None:
    end = api.response(OUTPUT, status=kind)
    text = api.written(api.events(OUTPUT, end, f"response.{kind}", api.response()))
    upstream.answer_with(sent(text[:1000], text[1000:], ends))
    head, passed = ask_stream(gateway)
    assert passed == text
    record = gateway.call(head.id)
    check(record, **REPORTED, status=200, stream=True, ended="done")
    assert record["cost_usd"] == pytest.approx(COST)


def test_an_end_of_megabytes(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    end = api.response(OUTPUT, instructions="y" * 3_000_000)
    text = api.written(api.events(OUTPUT, end, start=api.response()))
    upstream.answer_with(sent(*[text[at : at + 50_000] for at in range(0, len(text), 50_000)]))
    head, passed = ask_stream(gateway)
    assert passed == text
    check(gateway.call(head.id), **REPORTED, ended="done")


@pytest.mark.parametrize("is_long", [False, True])
def test_a_failed_response_is_charged_and_reported_once(
    gateway: Gateway, upstream: ScriptedUpstream, is_long: bool
) -> None:
    error = {"code": "server_error", "message": "sorry, at sk-upstream-key-that-nobody-may-see"}
    end = api.response(OUTPUT, status="failed", error=error, instructions="y" * (100_000 if is_long else 0))
    text = api.written(api.events(OUTPUT, end, "response.failed", api.response()))
    upstream.answer_with(sent(text))
    head, passed = ask_stream(gateway)
    *events, last, rest = passed.split(b"\n\n")
    assert rest == b""
    assert passed.startswith(text[: text.index(b"event: response.failed")])
    received = data_of(last)
    assert (received["type"], received["sequence_number"]) == ("response.failed", len(events))
    assert received["response"]["id"] == "resp_1"
    assert received["response"]["model"] == "gpt-4o-mini-2024"
    assert received["response"]["error"]["code"] == "upstream_error"
    assert b"nobody-may-see" not in passed
    check(gateway.call(head.id), **REPORTED, ended="error")


def test_a_failure_without_usage_is_charged_what_was_shown(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    end = api.response([], usage=None, status="failed", error={"code": "server_error", "message": "sorry"})
    upstream.answer_with(sent(api.written(api.events(OUTPUT, end, "response.failed", api.response()))))
    head, _ = ask_stream(gateway)
    record = gateway.call(head.id)
    check(record, "estimated", ended="error")
    assert record["prompt_tokens"] > 0
    assert record["completion_tokens"] >= 2


def test_a_refusal_inside_a_stream_keeps_its_code(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    error = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
    end = api.response([], usage=None, status="failed", error=error)
    upstream.answer_with(sent(api.written(api.events(OUTPUT, end, "response.failed", api.response()))))
    _, passed = ask_stream(gateway)
    assert data_of(passed.split(b"\n\n")[-2])["response"]["error"] == error


@pytest.mark.parametrize(
    ("code", "status"), [("context_length_exceeded", 400), ("rate_limit_exceeded", 429), ("server_error", 502)]
)
def test_an_error_before_anything_else_is_a_status(
    gateway: Gateway, upstream: ScriptedUpstream, code: str, status: int
) -> None:
    end = api.response([], usage=None, status="failed", error={"code": code, "message": "no"})
    upstream.answer_with(always=sent(api.one({"type": "response.failed", "sequence_number": 0, "response": end})))
    head, body = ask_stream(gateway)
    assert head.status == status
    assert "error" in json.loads(body)
    check(gateway.call(head.id), "none", status=status, prompt_tokens=0)
    revive(gateway, upstream)


@pytest.mark.parametrize("behaviour", ["cut", "ended", "silent"])
def test_a_stream_that_breaks_ends_with_one_failure(
    gateway: Gateway, upstream: ScriptedUpstream, behaviour: str
) -> None:
    text = GOOD[: GOOD.index(b"event: response.completed") + 400]

    async def stalled(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(text))
        await wire.until_gone()

    before = upstream.hits
    upstream.answer_with(stalled if behaviour == "silent" else sent(text, is_cut=behaviour == "cut"))
    asked = "hasty" if behaviour == "silent" else MODEL
    head, passed = ask_stream(gateway, model=asked)
    whole = text[: text.index(b"event: response.completed")]
    assert passed.startswith(whole)
    last = passed.removeprefix(whole)
    assert data_of(last)["response"]["status"] == "failed"
    assert data_of(last)["sequence_number"] == whole.count(b"\n\n")
    assert last.count(b"event: ") == 1
    assert upstream.hits - before <= 1
    check(gateway.call(head.id), "estimated", ended="error", truncated=True)
    revive(gateway, upstream, asked)


def test_a_plain_answer_to_a_stream_request_becomes_events(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(api.response(OUTPUT)))
    head, passed = ask_stream(gateway)
    assert head.headers["content-type"] == "text/event-stream"
    kinds = [data_of(event)["type"] for event in passed.split(b"\n\n")[:-1]]
    assert kinds == [
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    check(gateway.call(head.id), **REPORTED)


def test_a_plain_answer_that_failed(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    error = {"code": "invalid_prompt", "message": "no"}
    upstream.answer_with(ok_json(api.response([], status="failed", error=error)))
    received = ask(gateway)
    assert received.refusal == (400, "invalid_request_error", None, "invalid_prompt")
    check(gateway.call(received.id), **REPORTED)


def revive(gateway: Gateway, upstream: ScriptedUpstream, to: str = MODEL) -> None:
    """Good answers until the circuit is closed again."""
    from .gateway_process import eventually

    upstream.answer_with(always=ok_json(api.response()))
    eventually(lambda: ask(gateway, model=to).status == 200)


def test_a_safety_identifier_of_128_characters_is_taken(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """A SHA-512 in hex (openai-python 3.57, response_create_params.py)."""
    upstream.answer_with(ok_json(api.response()))
    assert ask(gateway, safety_identifier="x" * 128).status == 200


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value"),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"top_p": -0.1}, "top_p", "decimal_below_min_value"),
        ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"safety_identifier": "x" * 129}, "safety_identifier", "string_above_max_length"),
        ({"truncation": "some"}, "truncation", "invalid_value"),
        ({"context_management": []}, "context_management", "empty_array"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"tools": [{}]}, "tools[0].type", "missing_required_parameter"),
        ({"Input": "x"}, "Input", "unknown_parameter"),
        ({"conversation": {"name": "x"}}, "conversation", "invalid_value"),
        ({"conversation": "conv_1", "previous_response_id": "a"}, "conversation", "mutually_exclusive_parameters"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id", "missing_required_parameter"),
        ({"input": [{"id": 1, "type": "item_reference"}]}, "input[0].id", "missing_required_parameter"),
    ],
)
def test_what_is_refused_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, members: dict[str, Any], param: str, code: str
) -> None:
    before = upstream.hits
    assert ask(gateway, **members).refusal == (400, "invalid_request_error", param, code)
    long = {"instructions": "x" * 70_000} | members
    assert ask(gateway, **long).refusal == (400, "invalid_request_error", param, code)
    assert upstream.hits == before


def test_the_model_has_to_be_there(gateway: Gateway) -> None:
    assert gateway.post("/v1/responses", {"input": "x"}).refusal[2:] == ("model", "missing_required_parameter")
    assert ask(gateway, model="elsewhere").status == 404


def test_limits_of_a_key(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json(api.response()))
    assert ask(gateway, "small", max_output_tokens=101).refusal[2:] == ("max_output_tokens", "integer_above_max_value")
    ask(gateway, "small")
    assert upstream.requests[-1].json["max_output_tokens"] == 100
    ask(gateway, "alice")  # its tokens are counted
    assert upstream.requests[-1].json["max_output_tokens"] == 4096
    ask(gateway, "bob")
    assert "max_output_tokens" not in upstream.requests[-1].json
    ask(gateway, model="mapped")
    assert upstream.requests[-1].json["model"] == "own-name"


def test_a_spent_quota(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json(api.response()))
    assert ask(gateway, "spent", max_output_tokens=16).status == 200
    received = ask(gateway, "spent", max_output_tokens=16)
    assert (received.status, received.error["code"], received.headers["x-should-retry"]) == (
        429,
        "insufficient_quota",
        "false",
    )


def test_a_tool_whose_use_is_not_reported_has_no_known_cost(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    items = [{"type": "web_search_call", "id": "ws_1"}, *OUTPUT]
    upstream.answer_with(ok_json(api.response(items)))
    record = gateway.call(ask(gateway, tools=[{"type": "web_search"}]).id)
    check(record, "estimated", cost_usd=None)
    assert record["units"] == {"cache_write": 4, "web_searches": 1}


def test_searches_of_hosted_tools_may_make_the_prompt_long(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {"input_tokens": 500_000, "output_tokens": 10}
    upstream.answer_with(always=ok_json(api.response(OUTPUT, usage)))
    check(gateway.call(ask(gateway, tools=[{"type": "web_search"}]).id), prompt_tokens=500_000)
    check(gateway.call(ask(gateway).id), "estimated")


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_upstream_without_the_format_is_no_server_error(
    gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool
) -> None:
    """Codex repeats a server's error four times."""
    upstream.answer_with(always=error_json(404, message="Invalid URL (POST /v1/responses)"))
    before = upstream.hits
    received = ask(gateway, stream=is_stream)
    assert (received.status, received.error["code"]) == (404, "upstream_error")
    assert "does not have this URL" in received.error["message"]
    assert upstream.hits == before + 1


def test_tokens_are_counted_for_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    counted = {"object": "response.input_tokens", "input_tokens": 11}
    upstream.answer_with(ok_json(counted))
    received = ask(gateway, path="/v1/responses/input_tokens")
    assert (received.status, received.json) == (200, counted)
    assert upstream.requests[-1].path == "/v1/responses/input_tokens"
    assert "max_output_tokens" not in upstream.requests[-1].json
    record = gateway.call(received.id)
    assert (record["endpoint"], record["prompt_tokens"], record["completion_tokens"]) == ("input_tokens", 0, 0)
    assert record["cost_usd"] == 0
    received = ask(gateway, path="/v1/responses/input_tokens", previous_response_id="resp_unknown")
    assert received.refusal[2:] == ("previous_response_id", "previous_response_not_found")


def test_a_compaction_is_charged(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    compacted = {
        "id": "resp_2",
        "object": "response.compaction",
        "output": [{"type": "compaction"}],
        "usage": api.USAGE,
    }
    upstream.answer_with(ok_json(compacted))
    received = ask(gateway, path="/v1/responses/compact")
    assert (received.status, received.json) == (200, compacted)
    assert "max_output_tokens" not in upstream.requests[-1].json
    check(gateway.call(received.id), **REPORTED, endpoint="compact")


def test_a_socket_is_refused_by_426_and_a_list_by_405(gateway: Gateway) -> None:
    received = gateway.get("/v1/responses", headers={"Upgrade": "websocket", "Connection": "Upgrade"})
    assert received.refusal == (426, "invalid_request_error", None, "websocket_not_supported")
    received = gateway.get("/v1/responses")
    assert (received.status, received.headers["allow"]) == (405, "POST")


def test_a_silent_upstream_is_kept_alive_by_comments_until_the_error(
    start_shared_gateway: StartsGateways, upstream: ScriptedUpstream, shared_upstream: ScriptedUpstream
) -> None:
    own = start_shared_gateway(
        settings(
            shared_upstream.url,
            upstreams={"main": {"base_url": shared_upstream.url, "timeouts": {"head_s": 3}}},
            models={MODEL: model("responses")},
            server={"keepalive_comment_s": 0.2},
        )
    )
    upstream.answer_with(always=silent)
    head, passed = ask_stream(own)
    assert head.status == 200
    *comments, last = passed.split(b"\n\n")[:-1]
    assert set(comments) == {b": keepalive"}
    assert data_of(last)["response"]["error"]["code"] == "upstream_timeout"
    upstream.answer_with(always=error_json(400, message="no", code="x"))


# --------------------------------------------------------------------------------------------------------- other models


IMAGE_TOOL = {"type": "image_generation", "model": "picture", "size": "auto"}


@pytest.fixture(scope="module")
def painter(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {
        MODEL: model("responses", price=PRICE),
        "picture": model("images", routes=[{"upstream": "main", "model": "gpt-image-1"}]),
        "elsewhere": model("images", "other"),
    }
    one = {"base_url": shared_upstream.url}
    keys = [key("alice"), key("bob", models=[MODEL])]
    return start_shared_gateway(
        settings(shared_upstream.url, models=models, keys=keys, upstreams={"main": one, "other": one})
    )


@pytest.mark.parametrize("length", [1, 100_000], ids=["short", "long"])
def test_models_of_tools_and_of_the_moderation_are_mapped(
    painter: Gateway, upstream: ScriptedUpstream, length: int
) -> None:
    """A long body is read by another process."""
    upstream.answer_with(ok_json(api.response(OUTPUT)))
    tools = [{"type": "web_search"}, IMAGE_TOOL]
    asked: dict[str, Any] = {"tools": tools, "moderation": {"model": "picture"}, "input": "x" * length}
    assert ask(painter, **asked).status == 200
    sent = upstream.requests[-1].json
    assert sent["tools"] == [{"type": "web_search"}, IMAGE_TOOL | {"model": "gpt-image-1"}]
    assert sent["moderation"] == {"model": "gpt-image-1"}


@pytest.mark.parametrize(
    ("who", "members", "status", "said"),
    [
        ("bob", {"tools": [IMAGE_TOOL]}, 404, "The model `picture` does not exist"),
        ("bob", {"moderation": {"model": "picture"}}, 404, "The model `picture` does not exist"),
        ("alice", {"tools": [IMAGE_TOOL | {"model": "unknown"}]}, 404, "The model `unknown` does not exist"),
        ("alice", {"tools": [IMAGE_TOOL | {"model": "elsewhere"}]}, 400, "'elsewhere' is not served by the same upstr"),
        ("alice", {"tools": [IMAGE_TOOL | {"model": 5}]}, 400, "Invalid value for 'tools[0].model'"),
        ("alice", {"moderation": {"model": ""}}, 400, "Invalid value for 'moderation.model'"),
        ("alice", {"input": [{"type": "additional_tools", "tools": [IMAGE_TOOL]}]}, 400, "'input' names or runs"),
    ],
)  # fmt: skip
def test_models_that_the_key_or_the_upstream_has_not_are_refused(
    painter: Gateway, upstream: ScriptedUpstream, who: str, members: dict[str, Any], status: int, said: str
) -> None:
    upstream.answer_with()
    received = ask(painter, who, **members)
    assert received.status == status
    assert said in received.json["error"]["message"]
    assert not upstream.requests


def test_a_tool_without_a_model_passes(painter: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(api.response(OUTPUT)))
    assert ask(painter, "bob", tools=[{"type": "image_generation"}]).status == 200


# ---------------------------------------------------------------------------------------------------------- one account


ACCOUNTS = ["sk-first-account-of-the-upstream", "sk-second-account-of-the-upstream"]
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
ASKS = {"include": ["reasoning.encrypted_content"]}


@pytest.fixture(scope="module")
def accounts(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """A model with two routes, of which each has two API keys."""
    upstreams = {
        name: {"base_url": shared_upstream.url, "api_key": None, "api_keys": ACCOUNTS} for name in ("main", "other")
    }
    routes = [{"upstream": name, "model": f"at-{name}"} for name in upstreams]
    return start_shared_gateway(
        settings(shared_upstream.url, models={MODEL: model("responses", routes=routes)}, upstreams=upstreams)
    )


def places_of(
    gateway: Gateway, upstream: ScriptedUpstream, *calls: dict[str, Any], path: str = "/v1/responses"
) -> list[Any]:
    """Where these calls went: the route, and the API key."""
    upstream.answer_with(always=ok_json(api.response(OUTPUT)))
    before = len(upstream.requests)
    for members in calls:
        assert ask(gateway, path=path, **members).status == 200
    return [(each.json["model"], each.headers["authorization"]) for each in upstream.requests[before:]]


def turns(first: str, number: int) -> list[dict[str, Any]]:
    """The input of this turn of a conversation."""
    return [{"role": "user", "content": first}, *[THOUGHT, {"role": "user", "content": "More"}] * number]


@pytest.mark.parametrize(
    "calls",
    [
        [{"prompt_cache_key": "c", "input": turns("Hi", number)} | ASKS for number in range(8)],
        [{"input": turns("Hi", number)} | ASKS for number in range(8)],
        [{"input": turns("Hi", number)} for number in range(1, 9)],
        [{"input": [*turns("Hi", number), {"role": "user", "content": "x" * 70_000}]} | ASKS for number in range(8)],
        [{"input": "Hi", "context_management": [{"type": "compaction"}]}] * 8,
    ],
    ids=["cache-key", "asks", "brings", "large", "compacts"],
)  # fmt: skip
def test_a_conversation_with_encrypted_parts_stays_with_one_account(
    accounts: Gateway, upstream: ScriptedUpstream, calls: list[dict[str, Any]]
) -> None:
    """Another account refuses what the first one has encrypted. The model is not `sticky`."""
    assert len(set(places_of(accounts, upstream, *calls))) == 1


def test_large_and_compacted_turns_stay_with_the_account_of_the_small_ones(
    accounts: Gateway, upstream: ScriptedUpstream
) -> None:
    for first in "abc":
        (small,) = places_of(accounts, upstream, {"input": turns(first, 1)})
        large = [*turns(first, 1), {"role": "user", "content": "x" * 70_000}]
        assert places_of(accounts, upstream, {"input": large}) == [small]
        assert places_of(accounts, upstream, {"input": turns(first, 1)}, path="/v1/responses/compact") == [small]


def test_conversations_spread_over_the_accounts(accounts: Gateway, upstream: ScriptedUpstream) -> None:
    named = [{"prompt_cache_key": f"c{number}"} | ASKS for number in range(40)]
    unnamed = [{"input": [{"role": "user", "content": f"Number {number}"}]} | ASKS for number in range(40)]
    assert len(set(places_of(accounts, upstream, *named))) == len(set(places_of(accounts, upstream, *unnamed))) == 4


def test_other_calls_take_the_accounts_in_turn(accounts: Gateway, upstream: ScriptedUpstream) -> None:
    places = places_of(accounts, upstream, *[{"prompt_cache_key": "c"}] * 40)
    assert len(set(places)) == 4

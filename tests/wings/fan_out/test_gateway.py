"""`/v1/completions` on an upstream that has nothing but chat, through a whole gateway: right, or refused."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, StartsProcesses
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import (
    CHUNKED,
    Behaviour,
    Scripted,
    Wire,
    answer,
    chunk,
    close_without_answer,
    error_json,
    event,
    ok_json,
    raw,
    stream,
    until,
)
from tests.flows.client import Answer, Raw
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings
from tests.wings.fan_out.golden import CREATED, FIT, GOLDEN, ID, capabilities, is_stream

if TYPE_CHECKING:  # imported where it is used: importing an SDK costs every collecting process
    from openai import OpenAI

ABLE = {"completions": "via_chat"}
QUOTAS = [{"tokens": 1_000_000, "per": "day"}, {"requests": 1_000_000, "per": "day"}]


def prompt_of(wire: Wire) -> Any:
    """The prompt that a request holds, chat or not."""
    body = wire.request.json
    return body["messages"][0]["content"] if "messages" in body else body["prompt"]


def by_prompt(scripts: dict[Any, Behaviour]) -> Behaviour:
    """Another behaviour for each prompt, in whatever order they come."""

    async def behaviour(wire: Wire) -> None:
        await scripts[prompt_of(wire)](wire)

    return behaviour


def when(condition: Callable[[], object], behaviour: Behaviour) -> Behaviour:
    """Another behaviour, as soon as the condition holds."""

    async def waiting(wire: Wire) -> None:
        await until(condition)
        await behaviour(wire)

    return waiting


def said(text: str, finish: str = "stop", usage: tuple[int, int] | None = (3, 2), **more: Any) -> dict[str, Any]:
    """A plain answer to a chat."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    report = None if usage is None else {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "up",
        "choices": [choice],
        "usage": report,
        **more,
    }


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    """A chunk of a chat."""
    return {
        "id": "chatcmpl-1",
        "model": "up",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
    }


def report(prompt: int = 3, completion: int = 2) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"id": "chatcmpl-1", "model": "up", "choices": [], "usage": usage}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """Models whose upstreams, which are all the same, differ in what they are said to be able to do."""
    ups = {name: {"base_url": shared_upstream.url, "capabilities": able} for name, able in UPSTREAMS.items()}
    models = {name: model("completions", name, endpoints=["completions", "chat"]) for name in ups}
    keys = [key("alice", quotas=QUOTAS, max_parallel=50), key("bob"), key("single", max_parallel=1)]
    return start_shared_gateway(settings(shared_upstream.url, upstreams=ups, models=models, keys=keys))


UPSTREAMS: dict[str, dict[str, Any]] = {
    "m": ABLE,
    "old": {**ABLE, "max_tokens_field": "max_tokens"},
    "silent": {**ABLE, "stream_usage": False},
    "single": {"prompt_arrays": False},
}


def ask(gateway: Gateway, who: str = "alice", **members: Any) -> Answer:
    return gateway.post("/v1/completions", {"model": "m", "prompt": "Hi", **members}, key=who)


def used(gateway: Gateway, who: str = "alice") -> dict[str, int]:
    """What this key has used of its windows, when nothing is reserved any more."""

    def look() -> dict[str, int] | None:
        rows = [row for row in gateway.get("/v1/key", key=who).json["quotas"] if row["scope"] == f"key:{who}"]
        is_open = any(row["reserved"] or (row["unit"] == "parallel" and row["used"]) for row in rows)
        return None if is_open else {row["unit"]: row["used"] for row in rows}

    return eventually(look)


async def until_answered(gateway: Gateway, before: float) -> None:
    """Until the gateway has taken one more whole answer of an upstream; for those who fail behind it."""
    await asyncio.to_thread(eventually, lambda: answers(gateway) > before)


def answers(gateway: Gateway) -> float:
    """How many whole answers of upstreams it has taken."""
    return gateway.metric("gateway_upstream_attempts_total", outcome="ok")


def events_of(answer: Answer) -> list[Any]:
    """The events of a stream; its `[DONE]` as the text it is."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.body.decode().split("\n\n")
    assert blocks.pop() == ""
    datas = [block.removeprefix("data: ") for block in blocks]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


# -------------------------------------------------------------------------------------------------------- golden files


def scripts_of(name: str) -> dict[Any, Behaviour]:
    golden = GOLDEN[name]
    prompts = [each["messages"][0]["content"] for each in golden["sent"]]
    script = stream if is_stream(name) else ok_json
    return {prompt: script(answer) for prompt, answer in zip(prompts, golden["answers"], strict=True)}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    golden = GOLDEN[name]
    upstream.answer_with(always=by_prompt(scripts_of(name)))
    before = used(gateway)
    asked = golden["request"] | {"model": "old" if capabilities(name) != ABLE else "m"}
    given = gateway.post("/v1/completions", asked)
    sent = [{**request.json, "model": "m"} for request in upstream.requests]
    assert {request.path for request in upstream.requests} == {"/v1/chat/completions"}
    record = gateway.call(given.id)
    assert record["endpoint"] == "completions"
    after = used(gateway)
    assert after["requests"] == before["requests"] + 1
    if name in FIT:
        assert sorted(sent, key=json.dumps) == sorted(golden["sent"], key=json.dumps)
        assert (
            sum(row["prompt_tokens"] + row["completion_tokens"] for row in [record])
            == after["tokens"] - before["tokens"]
        )
        assert (record["status"], record["ended"], record["attempts"]) == (200, "done", len(sent))
        assert given.headers["x-gateway-attempts"] == str(len(sent)) or is_stream(name)
        check_answer(given, name)
    elif is_stream(name):
        *_, last = events_of(given)
        assert last["error"]["code"] == "upstream_error"
        assert (record["status"], record["ended"], record["truncated"]) == (502, "error", True)
    else:
        assert given.refusal == (502, "server_error", None, "upstream_error")
        assert (record["ended"], record["usage_source"]) == ("error", "reported")


def check_answer(given: Answer, name: str) -> None:
    """The client has got what stands in the golden file."""
    golden = GOLDEN[name]
    number = given.id.removeprefix("req_")

    def normal(one: Any) -> Any:
        assert one["id"] == f"cmpl-{number}"
        model = "m" if one["model"] == "old" else one["model"]
        return one | {"id": ID, "created": CREATED, "model": model}

    assert given.status == 200
    if not is_stream(name):
        assert given.headers["content-type"] == "application/json"
        assert normal(given.json) == golden["answer"]
        return
    *received, done = events_of(given)
    assert done == "[DONE]"
    received = [normal(one) for one in received]
    if golden["usage_chunk"] is not None:
        assert received.pop() == golden["usage_chunk"]
    n = golden["request"].get("n", 1)
    for prompt, chunks in enumerate(golden["chunks"]):
        assert [one for one in received if one["choices"][0]["index"] // n == prompt] == chunks
    assert len(received) == sum(map(len, golden["chunks"]))


# ----------------------------------------------------------------------------------------------------- the official SDK


@pytest.fixture(scope="module")
def sdk(gateway: Gateway) -> Iterator[OpenAI]:
    from openai import OpenAI

    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as made:
        yield made


@pytest.mark.parametrize("name", [name for name in FIT if "null" not in name and "special" not in name])
def test_the_sdk_reads_it(sdk: OpenAI, upstream: ScriptedUpstream, name: str) -> None:
    """As a whole and as a stream: each choice has its text, its end and its log probabilities."""
    golden = GOLDEN[name]
    upstream.answer_with(always=by_prompt(scripts_of(name)))
    asked = golden["request"]
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    offsets: dict[int, list[int]] = {}
    given = sdk.completions.create(**asked)
    for one in given if is_stream(name) else [given]:
        assert one.object == "text_completion"
        for choice in one.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                offsets.setdefault(choice.index, []).extend(choice.logprobs.text_offset or [])
    prompts = asked["prompt"] if isinstance(asked["prompt"], list) else [asked["prompt"]]
    count = len(prompts) * asked.get("n", 1)
    assert sorted(texts) == sorted(ends) == list(range(count))
    assert [ends[index] for index in range(count)] == EXPECTED_ENDS[len(prompts), asked.get("n", 1)]
    for index, found in offsets.items():
        start = len(prompts[index // asked.get("n", 1)])
        assert found[0] == start
        assert found == sorted(found)
        assert found[-1] < start + len(texts[index])


EXPECTED_ENDS = {
    (1, 1): ["stop"],
    (1, 2): ["stop", "length"],
    (2, 1): ["stop", "length"],
    (2, 2): ["stop", "length", "length", "stop"],
}


def test_the_simulator_answers_completions_by_chat(start_gateway: StartsGateways, process: StartsProcesses) -> None:
    """Batches, choices, log probabilities and streams agree with each other and with the upstream's ledger."""
    import openai

    simulator = process("simulate", "--port", "0")
    address = simulator.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    models = {"gpt-4o-mini": model("completions", endpoints=["completions"])}
    made = start_gateway(settings(address, upstreams={"main": {"capabilities": ABLE}}, models=models))
    with openai.OpenAI(base_url=f"{made.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as sdk:
        asked: dict[str, Any] = {
            "model": "gpt-4o-mini", "prompt": [f"Prompt {number}" for number in range(20)], "n": 2, "logprobs": 3,
            "seed": 7, "max_tokens": 12,
        }  # fmt: skip
        whole = sdk.completions.create(**asked)
        assert [choice.index for choice in whole.choices] == list(range(40))
        pieces: dict[int, str] = {}
        logprobs: dict[int, list[Any]] = {}
        usage = None
        for part in sdk.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
            usage = part.usage or usage
            for choice in part.choices:
                pieces[choice.index] = pieces.get(choice.index, "") + choice.text
                assert choice.logprobs is not None
                logprobs.setdefault(choice.index, []).extend(zip(*choice.logprobs.model_dump().values(), strict=True))
        assert usage == whole.usage
        for choice in whole.choices:
            assert pieces[choice.index] == choice.text
            assert choice.logprobs is not None
            assert logprobs[choice.index] == list(zip(*choice.logprobs.model_dump().values(), strict=True))
            assert "".join(choice.logprobs.tokens or []) == choice.text
            for token, offset in zip(choice.logprobs.tokens or [], choice.logprobs.text_offset or [], strict=True):
                received = asked["prompt"][choice.index // 2] + choice.text
                assert received[offset : offset + len(token)] == token
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.completions.create(**asked, echo=True)
        assert (caught.value.param, caught.value.code) == ("echo", "unsupported_parameter")
        with pytest.raises(openai.NotFoundError):
            sdk.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "x"}])
    (row,) = made.usage(group_by="month")
    assert whole.usage is not None
    assert (row["requests"], row["errors"], row["estimated_tokens"]) == (3 - 1, 0, 0)
    assert row["total_tokens"] == 2 * whole.usage.total_tokens


# ------------------------------------------------------------------------------------------- one prompt after the other


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("prompts", [["a", "b"], [[1], [2, 3]], ["a"]])
def test_an_upstream_of_single_prompts_gets_them_one_by_one(
    gateway: Gateway, upstream: ScriptedUpstream, prompts: list[Any], is_stream: bool
) -> None:
    """All else stays as the client said it, and as the upstream answered it."""
    offsets = {"text_offset": [9], "tokens": ["x"], "token_logprobs": [-1], "top_logprobs": [{"x": -1}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    received = {"id": "cmpl-up", "object": "text_completion", "created": 1, "model": "up"}
    choices = [
        {"text": "x", "index": index, "logprobs": offsets, "finish_reason": "stop", "odd": 1} for index in (0, 1)
    ]
    chunks = [received | {"choices": [choice]} for choice in choices] + [received | {"choices": [], "usage": usage}]
    upstream.answer_with(
        always=stream(chunks) if is_stream else ok_json(received | {"choices": choices, "usage": usage})
    )
    more: dict[str, Any] = {"n": 2, "logprobs": 1, "echo": True, "suffix": "s", "unknown": {"x": None}}
    more |= {"stream": True} if is_stream else {"best_of": 2}
    given = ask(gateway, model="single", prompt=prompts, **more)
    assert {request.path for request in upstream.requests} == {"/v1/completions"}
    usage_asked = {"stream_options": {"include_usage": True}} if is_stream else {}
    expected = [{"model": "single", "prompt": prompt, **more, **usage_asked} for prompt in prompts]
    assert sorted([r.json for r in upstream.requests], key=str) == sorted(expected, key=str)
    found = [e["choices"] for e in events_of(given)[:-1]] if is_stream else [given.json["choices"]]
    flat = sorted([choice for each in found for choice in each], key=lambda choice: choice["index"])
    assert flat == [choices[0] | {"index": index} for index in range(2 * len(prompts))]
    if not is_stream:
        assert given.json["usage"]["total_tokens"] == 5 * len(prompts)
    record = gateway.call(given.id)
    assert record["prompt_tokens"] == 3 * len(prompts)
    assert record["attempts"] == len(prompts)
    times = record["timeline"]
    assert [(each["upstream"], each["fault"]) for each in times] == [("single", None)] * (len(prompts) - 1) * 2
    assert all(0 <= each["began_s"] <= each["ended_s"] <= record["duration_s"] + 0.001 for each in times)


# ------------------------------------------------------------------------------------------------------------- failures


def test_a_refusal_speaks_of_the_prompt(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    refusal: dict[str, Any] = {
        "type": "invalid_request_error", "param": "messages[0].content", "code": "string_above_max_length",
        "message": "Invalid 'messages[0].content': string too long.",
    }  # fmt: skip
    upstream.answer_with(always=error_json(400, **refusal))
    before = used(gateway)
    given = ask(gateway)
    assert given.refusal == (400, "invalid_request_error", "prompt", "string_above_max_length")
    assert given.error["message"] == "Invalid 'prompt': string too long."
    assert given.headers["x-gateway-attempts"] == "1"
    assert used(gateway)["tokens"] == before["tokens"]
    both = lambda: upstream.hits == 2  # noqa: E731
    upstream.answer_with(always=by_prompt({"a": ok_json(said("A")), "b": when(both, error_json(400, **refusal))}))
    assert ask(gateway, prompt=["a", "b"]).error["param"] == "prompt[1]"
    upstream.answer_with(always=stream([{"error": refusal}], done=False))
    (event,) = events_of(ask(gateway, stream=True))
    assert event["error"]["param"] == "prompt"


def test_one_prompt_that_fails_fails_the_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Completed prompts are charged their reported usage, the others their estimate; no prompt continues."""
    gone = threading.Event()
    before_all = answers(gateway)

    async def hangs(wire: Wire) -> None:
        await wire.until_gone()
        gone.set()

    async def ends(wire: Wire) -> None:
        await ok_json(said("A", usage=(100, 10)))(wire)

    async def fails(wire: Wire) -> None:
        await until_answered(gateway, before_all)
        await error_json(500)(wire)

    upstream.answer_with(always=by_prompt({"ends": ends, "hangs": hangs, "fails": fails}))
    before = used(gateway)
    given = ask(gateway, prompt=["ends", "hangs", "fails"])
    assert given.refusal == (502, "server_error", None, "upstream_error")
    assert gone.wait(30), "a prompt that nobody waits for was not cut off"
    record = gateway.call(given.id)
    assert (record["status"], record["ended"], record["usage_source"]) == (502, "error", "estimated")
    assert record["prompt_tokens"] > 100
    assert record["completion_tokens"] >= 10
    assert used(gateway)["tokens"] - before["tokens"] == record["prompt_tokens"] + record["completion_tokens"]
    assert used(gateway)["requests"] == before["requests"] + 1


def test_prompts_that_wait_for_their_turn_are_not_sent_after_a_failure(start_gateway: StartsGateways) -> None:
    with Scripted(always=error_json(404, code="model_not_found")) as upstream:
        ups = {"main": {"capabilities": ABLE}}
        made = start_gateway(settings(upstream.url, upstreams=ups, models={"m": model("completions")}))
        given = ask(made, prompt=[f"number {number}" for number in range(200)])
        assert given.status == 404
        made.stop()
        assert upstream.hits <= 16


def test_a_prompt_of_unknown_cost_makes_the_sum_an_estimate(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    before_all = answers(gateway)

    async def ends(wire: Wire) -> None:
        await ok_json(said("A", usage=(100, 10)))(wire)

    async def hangs_up(wire: Wire) -> None:
        await until_answered(gateway, before_all)
        wire.close()

    upstream.answer_with(always=by_prompt({"a": ends, "b": hangs_up}))
    given = ask(gateway, prompt=["a", "b"])
    assert given.refusal == (502, "server_error", None, "upstream_error")
    record = gateway.call(given.id)
    assert (record["prompt_tokens"], record["usage_source"]) == (100 + 5, "estimated")  # and what `b` may have cost


def test_nothing_is_heard_of_a_stream_that_is_no_answer(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Not even what comes in the same moment."""
    called = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}
    sent = [piece("before"), called, piece("after"), piece("", "stop"), "[DONE]"]
    upstream.answer_with(always=raw(CHUNKED + b"".join(chunk(event(each)) for each in sent) + b"0\r\n\r\n"))
    first, last = events_of(ask(gateway, stream=True))
    assert first["choices"][0]["text"] == "before"
    assert last["error"]["code"] == "upstream_error"


@pytest.mark.parametrize("how", ["cut", "error", "without an end"])
def test_a_stream_of_which_one_prompt_is_cut_ends_with_an_error(
    gateway: Gateway, upstream: ScriptedUpstream, how: str
) -> None:
    before_all = answers(gateway)

    async def good(wire: Wire) -> None:
        await stream([piece("A"), piece("", "stop"), report(100, 10)])(wire)

    async def bad(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(event(piece("B"))))
        await until_answered(gateway, before_all)
        match how:
            case "cut":
                wire.close()
            case "error":
                await wire.write(chunk(event({"error": {"message": "no", "type": "server_error", "code": None}})))
                wire.close()
            case _:
                await wire.write(chunk(event("[DONE]")) + b"0\r\n\r\n")

    upstream.answer_with(always=by_prompt({"good": good, "bad": bad}))
    given = ask(gateway, prompt=["good", "bad"], stream=True)
    *chunks, last = events_of(given)
    assert sorted(last["error"]) == ["code", "message", "param", "type"]
    assert b"[DONE]" not in given.body
    texts = {choice["index"]: choice["text"] for each in chunks for choice in each["choices"] if choice["text"]}
    assert texts == {0: "A", 1: "B"}
    record = gateway.call(given.id)
    assert (record["status"], record["ended"], record["truncated"]) == (502, "error", True)
    assert record["usage_source"] == "estimated"
    assert record["completion_tokens"] > 10


def test_a_prompt_is_tried_again_alone(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """What failed before a byte of it came is sent once more; what has been answered is not."""
    turns: dict[str, int] = {}

    async def script(wire: Wire) -> None:
        prompt = prompt_of(wire)
        turns[prompt] = turns.get(prompt, 0) + 1
        if prompt == "b" and turns[prompt] == 1:
            await error_json(429, [("Retry-After", "0.2")])(wire)
        else:
            await ok_json(said(prompt.upper()))(wire)

    upstream.answer_with(always=script)
    given = ask(gateway, prompt=["a", "b", "c"])
    assert [choice["text"] for choice in given.json["choices"]] == ["A", "B", "C"]
    assert turns == {"a": 1, "b": 2, "c": 1}
    assert given.headers["x-gateway-attempts"] == "4"
    assert gateway.call(given.id)["attempts"] == 4


def test_the_rest_goes_elsewhere(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """To an upstream that has completions, too: each prompt in the words that its upstream knows."""

    async def native(wire: Wire) -> None:
        body = wire.request.json
        assert isinstance(body["prompt"], str)
        choice = {"text": f" native {body['prompt']}", "index": 0, "logprobs": None, "finish_reason": "length"}
        usage = {"prompt_tokens": 5, "completion_tokens": 4}
        await ok_json({"id": "cmpl-n", "model": "native-1", "choices": [choice], "usage": usage})(wire)

    with Scripted(always=native) as other:
        upstream.answer_with(
            always=by_prompt({"a": ok_json(said("chat a")), "b": close_without_answer, "c": error_json(503)})
        )
        ups = {"main": {"capabilities": ABLE}, "other": {"base_url": other.url}}
        routes = [{"upstream": "main", "priority": 1}, {"upstream": "other", "priority": 2, "model": "native"}]
        models = {"m": {"endpoints": ["completions"], "routes": routes, "repeat_when_waiting": True}}
        made = start_gateway(settings(upstream.url, upstreams=ups, models=models))
        given = ask(made, prompt=["a", "b", "c"])
        assert [choice["text"] for choice in given.json["choices"]] == ["chat a", " native b", " native c"]
        assert {request.json["model"] for request in other.requests} == {"native"}
        assert other.requests[0].json.keys() == {"model", "prompt"}
        record = made.call(given.id)
        # `b` was sent twice, and nothing is known of the first time: its estimate, and completions' default of 16.
        assert (record["prompt_tokens"], record["completion_tokens"]) == (3 + 5 + 5 + 5, 2 + 4 + 4 + 16)
        assert record["usage_source"] == "estimated"
        # What a chat has no words for goes there at once, and whole.
        upstream.answer_with()
        assert ask(made, prompt="x", echo=True).json["choices"][0]["text"] == " native x"
        assert other.requests[-1].json == {"model": "native", "prompt": "x", "echo": True}


def test_a_native_upstream_that_is_down_is_replaced_by_a_chat(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    with Scripted(always=error_json(503)) as other:
        upstream.answer_with(always=by_prompt({"a": ok_json(said("A")), "b": ok_json(said("B"))}))
        ups = {"main": {"capabilities": ABLE}, "other": {"base_url": other.url}}
        routes = [{"upstream": "other", "priority": 1}, {"upstream": "main", "priority": 2}]
        made = start_gateway(
            settings(upstream.url, upstreams=ups, models={"m": {"endpoints": ["completions"], "routes": routes}})
        )
        given = ask(made, prompt=["a", "b"])
        assert [choice["text"] for choice in given.json["choices"]] == ["A", "B"]
        assert (other.hits, upstream.hits) == (1, 2)
        assert given.headers["x-gateway-attempts"] == "3"
        assert given.headers["x-gateway-upstream"] == "main"


# ------------------------------------------------------------------------------------------------------ clients that go


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_is_charged_once(gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool) -> None:
    """Plain answers are read on for their usage; of streams, what came is estimated."""
    go_on = threading.Event()
    begun: list[Any] = []

    async def script(wire: Wire) -> None:
        begun.append(prompt_of(wire))
        if is_stream:
            await wire.write(CHUNKED + chunk(event(piece("word"))))
            await wire.until_gone()
            return
        while not go_on.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
        await ok_json(said("A", usage=(100, 10)))(wire)

    upstream.answer_with(always=script)
    before = used(gateway)
    calls = len(gateway.calls("alice", limit=1000))
    with Raw(gateway.port) as raw:
        body = {"model": "m", "prompt": ["a", "b", "c"], "stream": is_stream}
        raw.post("/v1/completions", json.dumps(body).encode(), secret("alice"))
        eventually(lambda: len(begun) == 3)
    if not is_stream:
        eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)
        go_on.set()
    eventually(lambda: len(gateway.calls("alice", limit=1000)) == calls + 1)
    (record, *_) = gateway.calls("alice")
    assert (record["status"], record["ended"], record["attempts"]) == (499, "client_gone", 3)
    after = used(gateway)
    assert after["requests"] == before["requests"] + 1
    assert after["tokens"] - before["tokens"] == record["prompt_tokens"] + record["completion_tokens"]
    if is_stream:
        assert record["usage_source"] == "estimated"
        assert record["truncated"]
    else:
        assert (record["prompt_tokens"], record["completion_tokens"]) == (300, 30)
        assert record["usage_source"] == "reported"


# ------------------------------------------------------------------------------------------------------------- streams


def test_prompts_are_heard_as_they_speak(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The second is not kept back until the first has ended."""
    heard = threading.Event()

    async def first(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(event(piece("one"))))
        while not heard.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
        await wire.write(chunk(event(piece("", "stop"))) + chunk(event("[DONE]")) + b"0\r\n\r\n")

    upstream.answer_with(always=by_prompt({"a": first, "b": stream([piece("two"), piece("", "stop")])}))
    with Raw(gateway.port) as raw:
        body = {"model": "m", "prompt": ["a", "b"], "stream": True}
        raw.post("/v1/completions", json.dumps(body).encode(), secret("alice"))
        received = b""
        while not (b'"one"' in received and b'"two"' in received and received.count(b'"stop"') == 1):
            received += raw.socket.recv(65536)
        assert b"[DONE]" not in received
        heard.set()
        while b"[DONE]" not in received:
            received += raw.socket.recv(65536)
    assert received.count(b"[DONE]") == 1
    assert received.count(b'"finish_reason":"stop"') == 2


def test_a_stream_that_comes_as_a_plain_answer_is_a_stream_all_the_same(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(
        always=by_prompt({"a": ok_json(said("A")), "b": stream([piece("B"), piece("", "stop"), report()])})
    )
    *chunks, done = events_of(ask(gateway, prompt=["a", "b"], stream=True))
    assert done == "[DONE]"
    texts = {choice["index"]: choice["text"] for each in chunks for choice in each["choices"] if choice["text"]}
    assert texts == {0: "A", 1: "B"}
    upstream.answer_with(always=ok_json(said("A")))
    assert ask(gateway, stream=True, n=2).refusal == (
        502,
        "server_error",
        None,
        "upstream_error",
    )  # one of them is missing


def test_usage_reported_by_some_parts_only_is_left_out(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """A partial sum would be wrong. The gateway's record has an estimate."""
    good, other = stream([piece("A"), piece("", "stop"), report()]), stream([piece("B"), piece("", "stop")])
    upstream.answer_with(always=by_prompt({"a": good, "b": other}))
    given = ask(gateway, model="silent", prompt=["a", "b"], stream=True, stream_options={"include_usage": True})
    assert all(each["usage"] is None for each in events_of(given)[:-1])
    assert gateway.call(given.id)["usage_source"] == "estimated"


def test_an_answer_of_many_is_as_long_as_one_may_be(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """`max_response_bytes` bounds the whole answer, not each part of it."""
    upstream.answer_with(always=ok_json(said("x" * 3000)))
    made = start_gateway(
        settings(
            upstream.url,
            server={"max_response_bytes": 10_000},
            upstreams={"main": {"capabilities": ABLE}},
            models={"m": model("completions")},
        )
    )
    assert ask(made, prompt=["a", "b"]).status == 200
    assert ask(made, prompt=["a", "b", "c", "d"]).refusal == (502, "server_error", None, "upstream_error")


@pytest.mark.rest
def test_a_client_that_reads_late_gets_all_of_it(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The upstreams wait for it meanwhile: they have sent far less than they have to say."""
    words, count = "x" * 10_000, 1000
    sent = 0

    async def talks(wire: Wire) -> None:
        nonlocal sent
        await wire.write(CHUNKED)
        for _ in range(count):
            await wire.write(chunk(event(piece(words))))
            sent += 1
        await wire.write(chunk(event(piece("", "stop"))) + chunk(event("[DONE]")) + b"0\r\n\r\n")

    upstream.answer_with(always=talks)
    with Raw(gateway.port) as raw:
        body = {"model": "m", "prompt": ["a", "b", "c"], "stream": True}
        raw.post("/v1/completions", json.dumps(body).encode(), secret("bob"))
        received = raw.socket.recv(1000)
        before = -1
        while sent != before:  # until nothing moves any more
            before = sent
            time.sleep(0.2)
        assert sent < 3 * count
        while not received.endswith(b"0\r\n\r\n"):
            received += raw.socket.recv(1_000_000)
    assert received.count(b"x") >= 3 * count * len(words)
    assert received.count(b"[DONE]") == 1


def test_a_call_of_many_prompts_is_one_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """For the parallel limit of its key, and in the records; not too many are under way at once."""
    now = most = 0

    async def script(wire: Wire) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        await ok_json(said(prompt_of(wire)))(wire)

    upstream.answer_with(always=script)
    prompts = [f"prompt {number}" for number in range(50)]
    given = ask(gateway, who="single", prompt=prompts)
    assert [choice["text"] for choice in given.json["choices"]] == prompts
    assert 2 <= most <= 8
    assert used(gateway, "single") == {"parallel": 0}


def test_a_message_of_the_upstream_in_error_stays_clean(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=answer(b"<html>", 200, [("Content-Type", "text/html")]))
    assert ask(gateway).refusal == (502, "server_error", None, "upstream_error")


# ----------------------------------------------------------------------------------------------------- the other store


def test_the_sums_in_redis_are_equal(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, redis_server: RedisServer
) -> None:
    upstream.answer_with(always=by_prompt({"a": ok_json(said("A")), "b": ok_json(said("B")), "c": error_json(400)}))
    made = start_gateway(
        settings(
            upstream.url,
            store={"url": redis_server.url},
            upstreams={"main": {"capabilities": ABLE}},
            models={"m": model("completions")},
            keys=[key("alice", quotas=QUOTAS, max_parallel=1)],
        )
    )
    assert ask(made, prompt=["a", "b"]).status == 200
    assert used(made) == {"tokens": 10, "requests": 1, "parallel": 0}
    assert ask(made, prompt=["c"]).status == 400
    assert used(made) == {"tokens": 10, "requests": 2, "parallel": 0}

"""Reports of people who run gateways like this one, one test for each, and the same fault in every other format.

Each test names where it was reported and who says what is right. The inputs are this project's own. A letter is the
kind of the fault:

A an end that is believed too early       B parts of a prompt that overlap       C paid tools that are named elsewhere
D the served tier stands elsewhere        E reports in a vendor's own names      F one report, merged in two ways
G whose a piece of a tool call is         H what the other API refuses           I a good answer refused for its label
J a byte order mark                       K base64 counted as text               L usage in a long event
M formulas in CSV                         N a reason that is no `error`
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pytest

from gateway.formats.table import FORMATS
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.scripted import CHUNKED, Behaviour, Wire, answer, chunk, event, ok_json, stream
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, key, model, run, secret, settings

from . import usage_answers as said

if TYPE_CHECKING:  # imported where they are used: importing an SDK costs every collecting process
    import anthropic
    import openai

MESSAGES = [{"role": "user", "content": "Hello"}]
CONTENTS = [{"role": "user", "parts": [{"text": "Hello"}]}]
PRICE: dict[str, Any] = {
    "input": 1, "cached_input": 0.1, "output": 10, "audio_in": 3, "audio_out": 20, "image_in": 5, "image_out": 30,
    "web_searches_per_1000": 25,
    "variants": {"flex": {"input": 0.5, "output": 5}, "priority": {"input": 2, "output": 20}},
}  # fmt: skip
LISTED = ["org/model", "hf.example/org/sub/model:7B-Q4_K_M", "ft:gpt-4o-mini:acme::abc123", "模型-1", "a+b"]
NATIVE = {"messages": True, "generate_content": True, "responses": True}
ENDPOINTS = {
    "completions": "completions", "chat": "chat", "messages": "messages", "responses": "responses",
    "gemini": "generate_content", "images": "images", "image_edits": "image_edits",
    "transcriptions": "transcriptions", "translations": "translations", "embeddings": "embeddings", "rerank": "rerank",
}  # fmt: skip
OVER = {
    "messages-over-chat": ("messages", {"messages": "via_chat"}),
    "responses-over-chat": ("responses", {"responses": "via_chat"}),
    "completions-over-chat": ("completions", {"completions": "via_chat"}),
    "chat-over-messages": ("chat", {"chat": "via_messages", "messages": True}),
}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    url = shared_upstream.url
    upstreams: dict[str, Any] = {"native": {"base_url": url, "capabilities": NATIVE}}
    models: dict[str, Any] = {}
    plain: dict[str, Any] = {"max_output_tokens": 30_000, "price": PRICE}
    for name, endpoint in ENDPOINTS.items():
        models[name] = model(endpoint, "native", **plain)
    for name, (endpoint, able) in OVER.items():
        upstreams[name] = {"base_url": url, "capabilities": able}
        models[name] = model(endpoint, name, **plain)
    for name in LISTED:
        models[name] = {**model("chat", "native", **plain), "endpoints": ["chat", "messages", "generate_content"]}
    keys = [key("alice"), key("small", quotas=[{"tokens": 60_000, "per": "day"}])]
    return start_shared_gateway(settings(url, upstreams=upstreams, models=models, keys=keys))


# ------------------------------------------------------------------------------------------------------------ requests


def ask(gateway: Gateway, name: str, *, is_stream: bool = False, who: str = "alice", **members: Any) -> Answer:
    """A small call of the model with this name, in its format."""
    path, body = request(name, is_stream=is_stream, **members)
    if isinstance(body, bytes):
        return gateway.send("POST", path, body, key=who, headers=TYPE)
    return gateway.post(path, body, key=who)


def request(name: str, *, is_stream: bool = False, **members: Any) -> tuple[str, Any]:
    endpoint = ENDPOINTS.get(name) or OVER[name][0]
    streamed: dict[str, Any] = {"stream": True} if is_stream else {}
    given = {"model": name, **members}
    match endpoint:
        case "chat":
            options = {"stream_options": {"include_usage": True}} if is_stream else {}
            return "/v1/chat/completions", {"messages": MESSAGES, **given, **streamed, **options}
        case "completions":
            options = {"stream_options": {"include_usage": True}} if is_stream else {}
            return "/v1/completions", {"prompt": "Hello", **given, **streamed, **options}
        case "messages":
            return "/v1/messages", {"max_tokens": 20_000, "messages": MESSAGES, **given, **streamed}
        case "responses":
            return "/v1/responses", {"input": "Hello", "store": False, **given, **streamed}
        case "generate_content":
            verb = "streamGenerateContent?alt=sse" if is_stream else "generateContent"
            return f"/v1beta/models/{name}:{verb}", {"contents": CONTENTS, **members}
        case "images":
            return "/v1/images/generations", {"prompt": "a cat", **given, **streamed}
        case "embeddings":
            return "/v1/embeddings", {"input": "Hello", **given}
        case "rerank":
            return "/v1/rerank", {"query": "which?", "documents": ["one", "two"], **given}
    file = ("image", b"\x89PNG\r\n\x1a\n" + bytes(40)) if endpoint == "image_edits" else ("file", wav(2))
    fields: list[tuple[str, str | bytes]] = [
        ("model", name),
        *([("stream", "true")] if is_stream else []),
        ("prompt", "a cat"),
        file,
    ]
    path = {"image_edits": "/v1/images/edits"}.get(endpoint, f"/v1/audio/{endpoint}")
    return path, form(*fields)


def cost_of(record: Mapping[str, Any]) -> int | None:
    """In billionths of a US dollar."""
    return None if record["cost_usd"] is None else round(record["cost_usd"] * 1e9)


def chat_chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = more.pop("choices", [{"index": 0, "delta": delta or {}, "finish_reason": finish}])
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def chat_usage(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **more}


def gemini_chunk(*parts: Mapping[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    ended = {} if finish is None else {"finishReason": finish}
    beside = {name: more.pop(name) for name in ("groundingMetadata",) if name in more}
    candidate = {"index": index, "content": {"role": "model", "parts": list(parts)}, **ended, **beside}
    return {"candidates": [candidate], **more}


def gemini_events(*chunks: Mapping[str, Any]) -> Behaviour:
    return stream([f"data: {json.dumps(each)}\r\n\r\n".encode() for each in chunks], done=False)


def gemini_usage(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": output, "totalTokenCount": prompt + output}
    return {"usageMetadata": {**counts, **more}}


def gemini_text(body: bytes) -> str:
    candidates = [each["candidates"][0] for each in said.data_of(body) if each.get("candidates")]
    parts = [part for each in candidates for part in (each.get("content") or {}).get("parts", [])]
    return "".join([part.get("text", "") for part in parts])


def chat_text(body: bytes) -> str:
    chunks = [each for each in said.data_of(body.removeprefix(b"\xef\xbb\xbf")) if each["choices"]]
    pieces = [each["choices"][0] for each in chunks]
    return "".join([(each.get("delta") or each.get("message") or {}).get("content") or "" for each in pieces])


def sdk(gateway: Gateway) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0)


def anthropic_sdk(gateway: Gateway) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=gateway.url, api_key=secret("alice"), max_retries=0)


# ------------------------------------------------------------------------------------- A: an end is the end of a stream

USED = {"prompt_tokens": 50, "completion_tokens": 70}


class Ended(NamedTuple):
    """A stream that names its end before it is there."""

    model: str
    chunks: Behaviour
    text: Callable[[bytes], str]
    whole: str = "Hello there, friend."


def _last_text(body: bytes) -> str:
    """Of a stream of Responses."""
    last = said.data_of(body)[-1]["response"]
    return "".join([part["text"] for item in last["output"] for part in item.get("content", []) if "text" in part])


def _messages_text(body: bytes) -> str:
    deltas = [each["delta"] for each in said.data_of(body) if each["type"] == "content_block_delta"]
    return "".join([each.get("text", "") for each in deltas])


def _completions_text(body: bytes) -> str:
    return "".join([choice["text"] for each in said.data_of(body) for choice in each["choices"]])


def _second_candidate_text(body: bytes) -> str:
    """Of both candidates, the first one first."""
    texts = {0: "", 1: ""}
    for each in said.data_of(body):
        for candidate in each.get("candidates", []):
            for part in (candidate.get("content") or {}).get("parts", []):
                texts[candidate.get("index", 0)] += part.get("text", "")
    return texts[0] + texts[1]


def _repeated(*texts: str) -> list[dict[str, Any]]:
    return [
        gemini_chunk({"text": text}, finish="STOP", **gemini_usage(50, 10 * number))
        for number, text in enumerate(texts, 5)
    ]


CHAT_ENDS = {
    "each chunk": stream([chat_chunk({"content": "Hello"}, "stop"), chat_chunk({"content": " there"}, "stop"),
                          chat_chunk({"content": ", friend."}, "stop"),
                          chat_chunk(choices=[], usage=chat_usage(50, 70))]),
    "a chunk in the middle": stream([chat_chunk({"content": "Hello"}), chat_chunk({"content": " there"}, "stop"),
                                     chat_chunk({"content": ", friend."}),
                                     chat_chunk(choices=[], usage=chat_usage(50, 70))]),
    "usage behind the end": stream([chat_chunk({"content": "Hello there, friend."}), chat_chunk({}, "stop"),
                                    chat_chunk({}, usage=None), chat_chunk(choices=[], usage=chat_usage(50, 70))]),
}  # fmt: skip
COMPLETION_ENDS = stream([
    {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    for text in ("Hello", " there", ", friend.")
] + [{"object": "text_completion", "choices": [], "usage": chat_usage(50, 70)}])  # fmt: skip
ENDS: dict[str, Ended] = {
    # songquanpeng/one-api#1477, router-for-me/CLIProxyAPI#5651; google-genai reads the stream to its end.
    "gemini names it in each chunk": Ended("gemini", gemini_events(*_repeated("Hello", " there", ", friend.")),
                                           gemini_text),
    "gemini names it before the last text": Ended(
        "gemini", gemini_events(gemini_chunk({"text": "Hello"}), gemini_chunk({"text": " there"}, finish="STOP"),
                                gemini_chunk({"text": ", friend."}, finish="STOP", **gemini_usage(50, 70))),
        gemini_text),
    "gemini's built-in tool between two texts": Ended(
        "gemini", gemini_events(
            gemini_chunk({"text": "Hello"}, finish="STOP", **gemini_usage(50, 10)),
            gemini_chunk({"executableCode": {"language": "PYTHON", "code": "1"}}),
            gemini_chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}),
            gemini_chunk({"text": " there, friend."}, finish="STOP", **gemini_usage(50, 70))), gemini_text),
    "gemini's usage behind the end": Ended(
        "gemini", gemini_events(gemini_chunk({"text": "Hello there, friend."}, finish="STOP"), gemini_usage(50, 70)),
        gemini_text),
    "gemini's empty chunks first": Ended(
        "gemini", gemini_events(gemini_chunk(finish="STOP"), gemini_chunk({"text": "Hello there, friend."}),
                                gemini_chunk(finish="STOP", **gemini_usage(50, 70))), gemini_text),
    "gemini's two candidates by turns": Ended(
        "gemini", gemini_events(gemini_chunk({"text": "Hello"}, finish="STOP"),
                                gemini_chunk({"text": ", friend"}, finish="STOP", index=1),
                                gemini_chunk({"text": " there"}, finish="STOP"),
                                gemini_chunk({"text": "."}, finish="STOP", index=1, **gemini_usage(50, 70))),
        _second_candidate_text),
    **{f"chat: {name}": Ended("chat", ends, chat_text) for name, ends in CHAT_ENDS.items()},
    **{f"messages over chat: {name}": Ended("messages-over-chat", ends, _messages_text)
       for name, ends in CHAT_ENDS.items()},
    **{f"responses over chat: {name}": Ended("responses-over-chat", ends, _last_text)
       for name, ends in CHAT_ENDS.items()},
    **{f"completions over chat: {name}": Ended("completions-over-chat", ends, _completions_text)
       for name, ends in CHAT_ENDS.items()},
    "completions: each chunk": Ended("completions", COMPLETION_ENDS, _completions_text),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_36_text_and_usage_behind_an_early_finish_reason_are_not_lost(
    gateway: Gateway, upstream: ScriptedUpstream, name: str
) -> None:
    case = ENDS[name]
    upstream.answer_with(case.chunks)
    given = ask(gateway, case.model, is_stream=True)
    record = gateway.call(given.id)
    assert case.text(given.body) == case.whole
    assert {each: record[each] for each in USED} == USED
    assert (record["ended"], record["truncated"], record["usage_source"]) == ("done", False, "reported")


# ------------------------------------------------------------------------------- B: each token of a prompt is one token


def of_modality(**tokens: int) -> list[dict[str, Any]]:
    return [{"modality": modality, "tokenCount": count} for modality, count in tokens.items()]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("counts", "nusd"),
    [
        # QuantumNous/new-api#7229, BerriAI/litellm#18768; google-genai, types.py: cacheTokensDetails.
        ({"cachedContentTokenCount": 4600, "promptTokensDetails": of_modality(TEXT=1000, IMAGE=4000),
          "cacheTokensDetails": of_modality(TEXT=600, IMAGE=4000)}, 400 * 1000 + 4600 * 100 + 200 * 10_000),
        ({"cachedContentTokenCount": 4600, "promptTokensDetails": of_modality(TEXT=1000, AUDIO=4000),
          "cacheTokensDetails": of_modality(TEXT=600, AUDIO=4000)}, 400 * 1000 + 4600 * 100 + 200 * 10_000),
        ({"cachedContentTokenCount": 2600, "promptTokensDetails": of_modality(TEXT=1000, IMAGE=4000),
          "cacheTokensDetails": of_modality(TEXT=600, IMAGE=2000)},
         400 * 1000 + 2000 * 5000 + 2600 * 100 + 200 * 10_000),
        ({"cachedContentTokenCount": 600, "promptTokensDetails": of_modality(TEXT=1000, IMAGE=4000),
          "cacheTokensDetails": of_modality(TEXT=600)}, 400 * 1000 + 4000 * 5000 + 600 * 100 + 200 * 10_000),
    ],
    ids=["all pictures", "all sound", "some pictures", "text alone"],
)  # fmt: skip
def test_01_cached_tokens_of_pictures_and_sound_are_charged_once(
    gateway: Gateway, upstream: ScriptedUpstream, counts: dict[str, Any], nusd: int, *, is_stream: bool
) -> None:
    whole = gemini_chunk({"text": "A cat."}, finish="STOP", **gemini_usage(5000, 200, **counts))
    upstream.answer_with(gemini_events(whole) if is_stream else ok_json(whole))
    record = gateway.call(ask(gateway, "gemini", is_stream=is_stream).id)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (5000, 200)
    assert record["cached_tokens"] == counts["cachedContentTokenCount"]
    assert cost_of(record) == nusd


# ------------------------------------------------------------------------------------------- C: paid tools are not free


QUERIES = ["price of tea", "", "price of tea", "price of milk"]


@pytest.mark.parametrize("how", ["plain", "stream", "in two chunks"])
def test_03_unique_searches_of_gemini_are_counted(gateway: Gateway, upstream: ScriptedUpstream, how: str) -> None:
    """BerriAI/litellm#36377; ai.google.dev, grounding: unique queries that are not empty are billed."""
    grounded, some = {"webSearchQueries": QUERIES}, {"webSearchQueries": QUERIES[:2]}
    whole = gemini_chunk({"text": "Two."}, finish="STOP", groundingMetadata=grounded, **gemini_usage(100, 10))
    first = gemini_chunk({"text": ""}, groundingMetadata=some)
    chunks = [first, whole] if how == "in two chunks" else [whole]
    upstream.answer_with(ok_json(whole) if how == "plain" else gemini_events(*chunks))
    given = ask(gateway, "gemini", is_stream=how != "plain", tools=[{"google_search": {}}])
    record = gateway.call(given.id)
    assert record["units"] == {"web_searches": 2}
    assert cost_of(record) == 100 * 1000 + 10 * 10_000 + 2 * 25_000_000


CITED = [{"type": "url_citation", "url_citation": {"url": "https://news.example/a", "title": "A", "start_index": 0,
                                                   "end_index": 3}}]  # fmt: skip


@pytest.mark.parametrize("name", ["chat", "messages-over-chat", "responses-over-chat"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_10_the_search_of_a_chat_is_never_free(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, *, is_stream: bool
) -> None:
    """Helicone/helicone#4098, BerriAI/litellm#31316; OpenAI's pricing: a fee for each call of a search model."""
    message = {"role": "assistant", "content": "Yes", "annotations": CITED}
    usage: dict[str, Any] = {"usage": chat_usage(100, 10)}
    if is_stream:
        upstream.answer_with(
            stream([chat_chunk(message), chat_chunk({}, "stop"), chat_chunk(choices=[], **usage)])
        )  # fmt: skip
    else:
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        upstream.answer_with(ok_json({"object": "chat.completion", "model": "m", "choices": choices, **usage}))
    members: dict[str, Any] = {"web_search_options": {}} if name == "chat" else {}
    record = gateway.call(ask(gateway, name, is_stream=is_stream, **members).id)
    cost = cost_of(record)
    assert cost is None or cost >= 25_000_000


@pytest.mark.parametrize("is_stream", [False, True])
def test_38_grounding_in_maps_is_never_free(gateway: Gateway, upstream: ScriptedUpstream, *, is_stream: bool) -> None:
    """BerriAI/litellm#38418; ai.google.dev, pricing: each grounded prompt has a price."""
    chunks = [{"maps": {"uri": "https://maps.example/1", "title": "Cafe", "placeId": "places/1"}}]
    whole = gemini_chunk({"text": "Two cafes."}, finish="STOP", groundingMetadata={"groundingChunks": chunks},
                         **gemini_usage(100, 10))  # fmt: skip
    upstream.answer_with(gemini_events(whole) if is_stream else ok_json(whole))
    given = ask(gateway, "gemini", is_stream=is_stream, tools=[{"googleMaps": {}}])
    record = gateway.call(given.id)
    cost = cost_of(record)
    assert cost is None or cost > 1_000_000 or record["usage_source"] == "estimated"


# ---------------------------------------------------------------------------------------------- D: the tier that served


class Tier(NamedTuple):
    """Where an upstream names the tier that served."""

    model: str
    plain: Behaviour | None
    stream: Behaviour | None
    variant: str
    asked: Mapping[str, Any] = {}


def with_headers(whole: Mapping[str, Any], *headers: tuple[str, str]) -> Behaviour:
    return ok_json(whole, headers)


def events_with_headers(events: Iterable[Mapping[str, Any]], *headers: tuple[str, str]) -> Behaviour:
    async def behaviour(wire: Wire) -> None:
        more = "".join([f"{name}: {value}\r\n" for name, value in headers]).encode()
        await wire.write(CHUNKED.removesuffix(b"\r\n") + more + b"\r\n")
        for each in events:
            await wire.write(chunk(event(each)))
        await wire.write(b"0\r\n\r\n")

    return behaviour


def _gemini_tier(**counts: Any) -> dict[str, Any]:
    return gemini_chunk({"text": "Hi."}, finish="STOP", **gemini_usage(1000, 100, **counts))


def _chat_tier(tier: str) -> Behaviour:
    """The first chunk names the tier that was asked for, the last the one that served."""
    return stream([chat_chunk({"content": "Hi"}, service_tier="auto"), chat_chunk({}, "stop", service_tier="auto"),
                   chat_chunk(choices=[], usage=chat_usage(1000, 100), service_tier=tier)])  # fmt: skip


def _chat_whole(tier: str) -> dict[str, Any]:
    choices = [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]
    return {"choices": choices, "usage": chat_usage(1000, 100), "service_tier": tier}


def _response_tier(tier: str, status: str = "completed") -> dict[str, Any]:
    usage = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}  # fmt: skip
    return {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "m", "output": [item],
            "usage": usage, "service_tier": tier}  # fmt: skip


FLEX_HEADER = ("x-gemini-service-tier", "flex")
TIERS = {
    # theopenco/llmgateway#2549, BerriAI/litellm#37647; ai.google.dev, flex and priority inference.
    "gemini's usage": Tier("gemini", ok_json(_gemini_tier(serviceTier="flex")),
                           gemini_events(_gemini_tier(serviceTier="flex")), "flex", {"serviceTier": "flex"}),
    "gemini's header": Tier("gemini", with_headers(_gemini_tier(), FLEX_HEADER),
                            events_with_headers([_gemini_tier()], FLEX_HEADER), "flex", {"serviceTier": "flex"}),
    "gemini's priority": Tier("gemini", ok_json(_gemini_tier(serviceTier="priority")),
                              gemini_events(_gemini_tier(serviceTier="priority")), "priority"),
    "gemini's upper case": Tier("gemini", ok_json(_gemini_tier(serviceTier="FLEX")),
                                gemini_events(_gemini_tier(serviceTier="FLEX")), "flex"),
    "gemini's traffic type": Tier("gemini", ok_json(_gemini_tier(trafficType="ON_DEMAND_FLEX")),
                                  gemini_events(_gemini_tier(trafficType="ON_DEMAND_FLEX")), "flex"),
    "gemini's downgrade": Tier("gemini", ok_json(_gemini_tier(serviceTier="standard")),
                               gemini_events(_gemini_tier(serviceTier="standard")), "", {"serviceTier": "priority"}),
    # openai-openapi, service_tier of a chunk: the tier that was used.
    "the last chunk of a chat": Tier("chat", ok_json(_chat_whole("flex")), _chat_tier("flex"), "flex"),
    "a chat's downgrade": Tier("chat", ok_json(_chat_whole("default")), _chat_tier("default"), "",
                               {"service_tier": "priority"}),
    "the last event of a response": Tier(
        "responses", ok_json(_response_tier("flex")),
        said.events({"type": "response.created", "response": _response_tier("auto", "in_progress")},
                    {"type": "response.completed", "response": _response_tier("flex")}), "flex"),
    "a chat under a response": Tier("responses-over-chat", ok_json(_chat_whole("flex")), _chat_tier("flex"), "flex"),
    "a chat under a message": Tier("messages-over-chat", ok_json(_chat_whole("flex")), _chat_tier("flex"), "flex"),
}  # fmt: skip
NUSD_OF_TIER = {"flex": 1000 * 500 + 100 * 5000, "priority": 1000 * 2000 + 100 * 20_000, "": 1000 * 1000 + 100 * 10_000}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", TIERS)
def test_05_the_tier_that_served_is_charged(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, *, is_stream: bool
) -> None:
    case = TIERS[name]
    behaviour = case.stream if is_stream else case.plain
    assert behaviour is not None
    upstream.answer_with(behaviour)
    record = gateway.call(ask(gateway, case.model, is_stream=is_stream, **case.asked).id)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (1000, 100)
    assert (record["price_variant"] or "", cost_of(record)) == (case.variant, NUSD_OF_TIER[case.variant])


# ------------------------------------------------------------------------------- E, F: each number is read once, as one


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "prompt", "output", "cached"),
    [
        # vercel/ai#12352; vercel/ai, convert-moonshotai-chat-usage.ts.
        (chat_usage(1000, 10, cached_tokens=896), 1000, 10, 896),
        # discuss.ai.google.dev/t/98760, mozilla-ai/any-llm#1290: thoughts are in the total, and billed as output.
        ({"prompt_tokens": 758, "completion_tokens": 102, "total_tokens": 1725}, 758, 967, 0),
    ],
    ids=["07 cached_tokens beside the counts", "09 thoughts in the total"],
)
def test_07_09_a_vendors_own_names_and_sums_are_read(
    gateway: Gateway, upstream: ScriptedUpstream, usage: Any, prompt: int, output: int, cached: int, *, is_stream: bool
) -> None:
    places = [("last", {"usage": usage})]
    upstream.answer_with(said.chat_stream(places) if is_stream else said.chat_plain({"usage": usage}))
    record = gateway.call(ask(gateway, "chat", is_stream=is_stream).id)
    counts = (record["prompt_tokens"], record["completion_tokens"], record["cached_tokens"])
    assert counts == (prompt, output, cached)
    assert cost_of(record) == (prompt - cached) * 1000 + cached * 100 + output * 10_000


def test_11_caches_that_come_in_the_last_report_replace_the_first(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """rossoctl/cortex#811, Osmantic/ODS#4561; anthropic-sdk, `accumulate_event`: each count replaces its own."""
    first = {"input_tokens": 9, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    last = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 9000, "output_tokens": 50}
    upstream.answer_with(said.messages_stream([("begin", {"usage": first}), ("finish", {"usage": last})]))
    client = anthropic_sdk(gateway)
    asked: Any = {"model": "messages", "max_tokens": 99, "messages": MESSAGES}
    with client.messages.stream(**asked) as events:
        shown, call_id = events.get_final_message().usage, str(events.response.headers["x-request-id"])
    record = gateway.call(call_id)
    prompt = shown.input_tokens + (shown.cache_creation_input_tokens or 0) + (shown.cache_read_input_tokens or 0)
    assert record["prompt_tokens"] == prompt == 9009
    assert record["cached_tokens"] == shown.cache_read_input_tokens == 9000
    assert cost_of(record) == 9 * 1000 + 9000 * 100 + 50 * 10_000


# ---------------------------------------------------------------------------------------- G: whose a piece of a call is


def piece(index: int | None = None, **more: Any) -> dict[str, Any]:
    placed = {} if index is None else {"index": index}
    return chat_chunk({"tool_calls": [{**placed, **more}]})


def opened(index: int | None, call_id: str | None, arguments: Any = "", name: str | None = "look") -> dict[str, Any]:
    named = {} if call_id is None else {"id": call_id}
    return piece(index, **named, type="function", function={"name": name, "arguments": arguments})


def more_of(index: int | None, arguments: str, **more: Any) -> dict[str, Any]:
    return piece(index, function={"arguments": arguments, **more})


HERE, THERE = '{"at":"here"}', '{"at":"there"}'
BOTH = [("call_a", {"at": "here"}), ("call_b", {"at": "there"})]
PIECES: dict[str, list[dict[str, Any]]] = {
    # praxis-proxy/ai#266, Wei-Shaw/sub2api#4302; openai-openapi, tool_calls of a chunk: pieces belong by `index`.
    "13 by turns": [opened(0, "call_a"), opened(1, "call_b"), more_of(0, '{"at":'), more_of(1, '{"at":'),
                    more_of(0, '"here"}'), more_of(1, '"there"}')],
    # vercel/ai#14277, huggingface/smolagents#1958, BerriAI/litellm#37792: Ollama gives each call `index: 0`.
    "43 one index for all": [opened(0, "call_a", HERE), opened(0, "call_b", THERE)],
    "one index for all, in pieces": [opened(0, "call_a", '{"at":'), more_of(0, '"here"}'),
                                     opened(0, "call_b", '{"at":'), more_of(0, '"there"}')],
    "both opened in one chunk": [
        chat_chunk({"tool_calls": [{"index": at, "id": call_id, "type": "function",
                                    "function": {"name": "look", "arguments": ""}}
                                   for at, call_id in enumerate(("call_a", "call_b"))]}),
        more_of(0, HERE), more_of(1, THERE)],
    "both whole in one chunk": [
        chat_chunk({"tool_calls": [{"index": at, "id": call_id, "type": "function",
                                    "function": {"name": "look", "arguments": arguments}}
                                   for at, (call_id, arguments) in enumerate((("call_a", HERE), ("call_b", THERE)))]})],
    "pieces of both in one chunk": [
        opened(0, "call_a"), opened(1, "call_b"),
        *[chat_chunk({"tool_calls": [{"index": at, "function": {"arguments": text}} for at, text in enumerate(pair)]})
          for pair in (('{"at":', '{"at":'), ('"here"}', '"there"}'))]],
    "without an index": [opened(None, "call_a", HERE), opened(None, "call_b", THERE)],
    "an index that is null": [piece(index=None, id="call_a", function={"name": "look", "arguments": HERE}),
                              piece(index=None, id="call_b", function={"name": "look", "arguments": THERE})],
    "without an index, in pieces": [opened(None, "call_a"), more_of(None, HERE), opened(None, "call_b"),
                                    more_of(None, THERE)],
    "an index that begins at 1": [opened(1, "call_a", HERE), opened(2, "call_b", THERE)],
    "the id in each piece": [opened(0, "call_a", '{"at":'), opened(0, "call_a", '"here"}', None),
                             opened(1, "call_b", '{"at":'), opened(1, "call_b", '"there"}', None)],
    "id and name in each piece": [opened(0, "call_a", '{"at":'), opened(0, "call_a", '"here"}'),
                                  opened(1, "call_b", '{"at":'), opened(1, "call_b", '"there"}')],
    "empty ids and names behind": [
        opened(0, "call_a", '{"at":'), piece(0, id="", function={"name": "", "arguments": '"here"}'}),
        opened(1, "call_b", '{"at":'), piece(1, id="", function={"name": "", "arguments": '"there"}'})],
    "nulls behind": [
        opened(0, "call_a", '{"at":'), piece(0, id=None, function={"name": None, "arguments": '"here"}'}),
        opened(1, "call_b", THERE)],
    "an id that comes late": [opened(0, None, ""), piece(0, id="call_a", function={"arguments": HERE}),
                              opened(1, None, ""), piece(1, id="call_b", function={"arguments": THERE})],
    "a name that comes late": [piece(0, id="call_a", type="function", function={"arguments": ""}),
                               more_of(0, HERE, name="look"), opened(1, "call_b", THERE)],
    "a text between": [opened(0, "call_a", '{"at":'), chat_chunk({"content": "and"}), more_of(0, '"here"}'),
                       opened(1, "call_b", THERE)],
    "a thought between": [opened(0, "call_a", '{"at":'), chat_chunk({"reasoning_content": "hm"}),
                          more_of(0, '"here"}'), opened(1, "call_b", THERE)],
    "arguments as an object": [opened(0, "call_a", {"at": "here"}), opened(1, "call_b", {"at": "there"})],
    "the second before the first": [opened(0, "call_a"), opened(1, "call_b"), more_of(1, THERE), more_of(0, HERE)],
    "a first piece of null": [piece(0, id="call_a", type="function", function={"name": "look", "arguments": None}),
                              more_of(0, HERE), opened(1, "call_b", THERE)],
}  # fmt: skip
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def _calls_of_message(body: bytes) -> list[tuple[str, Any]]:
    """By anthropic-sdk."""
    sdks = said.SDKs()
    content = sdks.message(body).content
    return [(block.id, block.input) for block in content if block.type == "tool_use"]


def _calls_of_response(body: bytes) -> list[tuple[str, Any]]:
    last = said.data_of(body)[-1]
    assert last["type"] == "response.completed"
    items = [item for item in last["response"]["output"] if item["type"] == "function_call"]
    return [(item["call_id"], json.loads(item["arguments"])) for item in items]


@pytest.mark.parametrize("name", ["messages-over-chat", "responses-over-chat"])
@pytest.mark.parametrize("case", PIECES)
def test_13_43_each_piece_goes_to_its_call(gateway: Gateway, upstream: ScriptedUpstream, case: str, name: str) -> None:
    usage = chat_chunk(choices=[], usage=chat_usage(20, 12))
    upstream.answer_with(stream([chat_chunk({"role": "assistant", "content": None}), *PIECES[case],
                                 chat_chunk({}, "tool_calls"), usage]))  # fmt: skip
    is_message = name == "messages-over-chat"
    schema = {"input_schema": TOOL["parameters"]} if is_message else {"type": "function", **TOOL}
    given = ask(gateway, name, is_stream=True, tools=[{"name": "look", **schema}])
    assert given.status == 200, given
    read = _calls_of_message if is_message else _calls_of_response
    assert read(given.body) == BOTH
    record = gateway.call(given.id)
    assert (record["ended"], record["completion_tokens"]) == ("done", 12)


@pytest.mark.parametrize("name", ["messages-over-chat", "responses-over-chat"])
@pytest.mark.parametrize("arguments", [HERE, {"at": "here"}], ids=["text", "object"])
def test_13_a_plain_answer_has_whole_calls(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, arguments: Any
) -> None:
    """Ollama and llama.cpp have written `arguments` as an object; a chat's is a text of JSON (openai-openapi)."""
    calls = [{"id": "call_a", "type": "function", "function": {"name": "look", "arguments": arguments}},
             {"id": "call_b", "type": "function", "function": {"name": "look", "arguments": THERE}}]  # fmt: skip
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    upstream.answer_with(ok_json({"choices": choices, "usage": chat_usage(20, 12)}))
    is_message = name == "messages-over-chat"
    schema = {"input_schema": TOOL["parameters"]} if is_message else {"type": "function", **TOOL}
    given = ask(gateway, name, tools=[{"name": "look", **schema}])
    assert given.status == 200, given
    if is_message:
        found = [(each["id"], each["input"]) for each in given.json["content"] if each["type"] == "tool_use"]
    else:
        items = [item for item in given.json["output"] if item["type"] == "function_call"]
        found = [(item["call_id"], json.loads(item["arguments"])) for item in items]
    assert found == BOTH


def block(at: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": f"content_block_{kind}", "index": at, **more}


def use(call_id: str, given: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": given or {}}


def part_of_input(at: int, text: str) -> dict[str, Any]:
    return block(at, "delta", delta={"type": "input_json_delta", "partial_json": text})


BEGUN = {"type": "message_start", "message": {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 20, "output_tokens": 1}}}  # fmt: skip
BLOCKS: dict[str, list[dict[str, Any]]] = {
    "in a row": [block(0, "start", content_block=use("call_a")), part_of_input(0, HERE), block(0, "stop"),
                 block(1, "start", content_block=use("call_b")), part_of_input(1, THERE), block(1, "stop")],
    "by turns": [block(0, "start", content_block=use("call_a")), block(1, "start", content_block=use("call_b")),
                 part_of_input(0, '{"at":'), part_of_input(1, '{"at":'), part_of_input(0, '"here"}'),
                 part_of_input(1, '"there"}'), block(0, "stop"), block(1, "stop")],
    "whole at the start": [block(0, "start", content_block=use("call_a", {"at": "here"})), block(0, "stop"),
                           block(1, "start", content_block=use("call_b", {"at": "there"})), block(1, "stop")],
    "a text between": [block(0, "start", content_block=use("call_a")), part_of_input(0, HERE), block(0, "stop"),
                       block(1, "start", content_block={"type": "text", "text": ""}),
                       block(1, "delta", delta={"type": "text_delta", "text": "and"}), block(1, "stop"),
                       block(2, "start", content_block=use("call_b")), part_of_input(2, THERE), block(2, "stop")],
}  # fmt: skip


@pytest.mark.parametrize("case", BLOCKS)
def test_13_each_piece_of_a_message_goes_to_its_call_of_a_chat(
    gateway: Gateway, upstream: ScriptedUpstream, case: str
) -> None:
    ended = {"stop_reason": "tool_use", "stop_sequence": None}
    upstream.answer_with(said.events(
        BEGUN, *BLOCKS[case],
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 12}}, {"type": "message_stop"},
    ))  # fmt: skip
    tools = [{"type": "function", "function": TOOL}]
    given = ask(gateway, "chat-over-messages", is_stream=True, tools=tools)
    message = said.SDKs().chat(given.body)
    calls = [(call.id, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    assert calls == BOTH


# ------------------------------------------------------------------------------------------ H: what the other API takes

ANSWERED = ok_json({"id": "msg_1", "type": "message", "role": "assistant", "model": "c",
                    "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "stop_sequence": None,
                    "usage": {"input_tokens": 3, "output_tokens": 1}})  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        {"parameters": {}}, {"parameters": {"properties": {"x": {"type": "string"}}}}, {"parameters": None}, {},
        {"parameters": {"type": "object"}}, {"parameters": {"type": None, "properties": {}}},
        {"parameters": {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False}},
    ],
    ids=["empty", "without type", "null", "missing", "without properties", "type null", "other members"],
)  # fmt: skip
def test_15_a_schema_without_type_gets_one(
    gateway: Gateway, upstream: ScriptedUpstream, function: dict[str, Any]
) -> None:
    """lidge-jun/opencodex#75; anthropic-sdk, ToolParam: `type: "object"` is required, and OpenAI takes `{}`."""
    upstream.answer_with(ANSWERED)
    given = ask(gateway, "chat-over-messages", tools=[{"type": "function", "function": {"name": "f", **function}}])
    assert given.status == 200, given
    (tool,) = upstream.requests[0].json["tools"]
    schema = tool["input_schema"]
    assert schema["type"] == "object"
    asked = function.get("parameters") or {}
    assert schema.get("properties", {}) == asked.get("properties", {})


def use_of(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    "ids",
    [
        ["functions.look:0", "functions.look:1"], ["a:b", "a.b"], ["a:b", "a_b"], ["é", "è"], ["call 1", "call_1"],
        ["x" * 200, "x" * 199 + "y"], ["plain-1", "plain_2"],
    ],
    ids=["Kimi's", "alike", "like one that is good", "letters", "a space", "long", "good ones"],
)  # fmt: skip
def test_20_ids_of_calls_are_of_the_other_alphabet(
    gateway: Gateway, upstream: ScriptedUpstream, ids: list[str]
) -> None:
    """farion1231/cc-switch#1181: Anthropic takes `^[a-zA-Z0-9_-]+$`, as its 400 there says."""
    upstream.answer_with(ANSWERED)
    asked = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [use_of(each) for each in ids]},
             *[{"role": "tool", "tool_call_id": each, "content": each} for each in ids]]  # fmt: skip
    given = ask(gateway, "chat-over-messages", messages=asked, tools=[{"type": "function", "function": TOOL}])
    assert given.status == 200, given
    _, said_before, answered = upstream.requests[0].json["messages"]
    used = [block["id"] for block in said_before["content"] if block["type"] == "tool_use"]
    results = [block for block in answered["content"] if block["type"] == "tool_result"]
    assert used == [block["tool_use_id"] for block in results]
    assert ids == [_text_of(block["content"]) for block in results]
    assert len(set(used)) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", each) for each in used)
    assert [each for each in ids if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each)] == [
        used[at] for at, each in enumerate(ids) if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each)
    ]


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join([part["text"] for part in content])


# --------------------------------------------------------------------------------- I, J, L: the label, a mark, a length


class Streamed(NamedTuple):
    """A good streamed answer of a format, and how its text is read."""

    places: Callable[[Sequence[tuple[str, Mapping[str, Any]]]], Behaviour]
    plain: Callable[[Mapping[str, Any]], Behaviour] | None
    report: Mapping[str, Any]
    place: str
    counts: tuple[int, int]


CHAT_REPORT = {"usage": chat_usage(300, 120)}
MESSAGE_REPORT = {"usage": {"input_tokens": 300, "output_tokens": 120}}
RESPONSE_REPORT = {"usage": {"input_tokens": 300, "output_tokens": 120, "total_tokens": 420}}
OF_CHAT = Streamed(said.chat_stream, said.chat_plain, CHAT_REPORT, "last", (300, 120))
OF_MESSAGES = Streamed(said.messages_stream, said.messages_plain, MESSAGE_REPORT, "finish", (300, 120))
OF_TRANSCRIPT = Streamed(said.transcriptions_stream, said.transcriptions_plain, RESPONSE_REPORT, "last", (300, 120))
STREAMS: dict[str, Streamed] = {
    "completions": Streamed(said.completions_stream, said.completions_plain, CHAT_REPORT, "last", (300, 120)),
    "chat": OF_CHAT,
    "messages": OF_MESSAGES,
    "responses": Streamed(said.responses_stream, said.responses_plain, RESPONSE_REPORT, "last", (300, 120)),
    "gemini": Streamed(said.gemini_stream, said.gemini_plain, gemini_usage(300, 120), "finish", (300, 120)),
    "images": Streamed(said.pictures_stream("image_generation"), said.images_plain, RESPONSE_REPORT, "last",
                       (300, 120)),
    "image_edits": Streamed(said.pictures_stream("image_edit"), said.images_plain, RESPONSE_REPORT, "last",
                            (300, 120)),
    "transcriptions": OF_TRANSCRIPT,
    "messages-over-chat": OF_CHAT,
    "responses-over-chat": OF_CHAT,
    "completions-over-chat": OF_CHAT,
    "chat-over-messages": OF_MESSAGES,
}  # fmt: skip
READ: dict[str, Callable[[bytes], str]] = {
    "messages": _messages_text, "responses": _last_text, "completions": _completions_text, "chat": chat_text,
}  # fmt: skip
"""The text of a stream, by endpoint."""
MARK = b"\xef\xbb\xbf"
LABELS = {
    "text/plain": "text/plain; charset=utf-8", "json": "application/json", "none": None,
    "octets": "application/octet-stream", "upper case": "Text/Event-Stream",
}  # fmt: skip


def test_every_streamed_format_is_among_those_that_are_mislabelled() -> None:
    """Realtime is a socket, and speech is bytes of any type."""
    served = {ENDPOINTS[name] for name in STREAMS if name in ENDPOINTS}
    assert served == {name for name, spec in FORMATS.items() if spec.scan is not None and not spec.is_binary}


class Heard:
    """The body of an answer that was scripted, as bytes."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.body = b""
        self._behaviour = behaviour

    async def write(self, data: bytes) -> None:
        self.body += data

    async def listen(self) -> bytes:
        await self._behaviour(self)  # type: ignore[arg-type]
        head, _, rest = self.body.partition(b"\r\n\r\n")
        if b"chunked" not in head:
            return rest
        body = b""
        while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
            start = rest.index(b"\r\n") + 2
            body += rest[start : start + size]
            rest = rest[start + size + 2 :]
        return body


def labelled(behaviour: Behaviour, label: str | None, before: bytes = b"", *, is_cut: bool = False) -> Behaviour:
    """The same body under another type, with these bytes before it."""

    async def relabelled(wire: Wire) -> None:
        body = before + await Heard(behaviour).listen()
        named = b"" if label is None else f"Content-Type: {label}\r\n".encode()
        await wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + named + b"\r\n")
        pieces = [body[:1], body[1:2], body[2:3], body[3:]] if is_cut else [body]
        for each in pieces:
            await wire.write(chunk(each))
        await wire.write(b"0\r\n\r\n")

    return relabelled


def check_good(gateway: Gateway, name: str, given: Answer, sent: Behaviour) -> None:
    """Whether the client has every event, or the whole text of a translated stream, and the report is charged."""
    assert given.status == 200, given
    body = given.body.removeprefix(MARK)
    if name in OVER:
        assert READ[OVER[name][0]](body).startswith(said.TEXT)
    else:
        assert said.data_of(body) == said.data_of(asyncio.run(Heard(sent).listen()))
    record = gateway.call(given.id)
    assert (record["prompt_tokens"], record["completion_tokens"]) == STREAMS[name].counts
    assert (record["ended"], record["usage_source"]) == ("done", "reported")


def reported_stream(name: str) -> Behaviour:
    case = STREAMS[name]
    begin = [("begin", {"usage": {"input_tokens": 300, "output_tokens": 1}})] if case.place == "finish" else []
    return case.places([*(begin if case is OF_MESSAGES else []), (case.place, case.report)])


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", STREAMS)
def test_17_events_are_events_under_any_type(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, label: str
) -> None:
    """xiaoliu10/claude-code-router-next#45: openai-python reads the events whatever their type says."""
    upstream.answer_with(labelled(reported_stream(name), LABELS[label]))
    check_good(gateway, name, ask(gateway, name, is_stream=True), reported_stream(name))


@pytest.mark.parametrize("label", ["text/plain", "none", "text/event-stream", "octets"])
@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("images", "image_edits")])
@pytest.mark.parametrize("is_stream", [False, True])
def test_17_a_plain_answer_is_one_under_any_type(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, label: str, *, is_stream: bool
) -> None:
    """To a client that asked for a plain answer, and to one that asked for a stream."""
    case = STREAMS[name]
    assert case.plain is not None
    upstream.answer_with(labelled(case.plain(case.report), LABELS.get(label, label)))
    given = ask(gateway, name, is_stream=is_stream)
    assert given.status == 200, given
    assert said.TEXT.encode() in given.body
    record = gateway.call(given.id)
    assert (record["prompt_tokens"], record["completion_tokens"]) == case.counts
    assert (record["ended"], record["usage_source"]) == ("done", "reported")


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("name", STREAMS)
def test_19_a_byte_order_mark_before_a_stream_is_taken_off(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, *, is_cut: bool
) -> None:
    """openai/openai-python#3819; WHATWG HTML, event stream interpretation: one mark at the beginning is taken off."""
    upstream.answer_with(labelled(reported_stream(name), "text/event-stream", MARK, is_cut=is_cut))
    check_good(gateway, name, ask(gateway, name, is_stream=True), reported_stream(name))


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("images", "image_edits")])
def test_19_a_byte_order_mark_before_json_changes_nothing(
    gateway: Gateway, upstream: ScriptedUpstream, name: str
) -> None:
    """RFC 8259, 8.1: a parser may ignore a mark."""
    case = STREAMS[name]
    assert case.plain is not None
    upstream.answer_with(labelled(case.plain(case.report), "application/json", MARK))
    given = ask(gateway, name)
    assert given.status == 200, given
    record = gateway.call(given.id)
    assert (record["prompt_tokens"], record["completion_tokens"], record["usage_source"]) == (*case.counts, "reported")


@pytest.mark.parametrize("name", ["completions", "chat", "messages", "responses", "gemini", "embeddings", "rerank"])
def test_19_a_byte_order_mark_before_a_request_changes_nothing(
    gateway: Gateway, upstream: ScriptedUpstream, name: str
) -> None:
    """RFC 8259, 8.1; programs on Windows write it."""
    plain = {"embeddings": said.embeddings_plain, "rerank": said.rerank_plain}.get(name) or STREAMS[name].plain
    assert plain is not None
    upstream.answer_with(plain(CHAT_REPORT))
    path, body = request(name)
    given = gateway.post(path, MARK + json.dumps(body).encode())
    assert given.status == 200, given
    assert not upstream.requests[0].body.startswith(MARK)


LONG = "word " * 21_000


def _long(name: str) -> Behaviour:
    """A stream whose last event is longer than 100,000 bytes and has the usage."""
    case = STREAMS[name]
    match ENDPOINTS.get(name, "chat" if name != "chat-over-messages" else "messages"):
        case "chat":
            return stream([chat_chunk({"role": "assistant", "content": f"{said.TEXT} {LONG}"}, "stop", **CHAT_REPORT)])
        case "completions":
            choice = {"index": 0, "text": f"{said.TEXT} {LONG}", "finish_reason": "stop"}
            return stream([{"object": "text_completion", "choices": [choice], **CHAT_REPORT}])
        case "generate_content":
            return gemini_events(gemini_chunk({"text": f"{said.TEXT} {LONG}"}, finish="STOP", **case.report))
        case "images" | "image_edits":
            kind = "image_generation" if name == "images" else "image_edit"
            done = {"type": f"{kind}.completed", "b64_json": "AAAA" * 30_000, "size": "1024x1024", **case.report}
            return said.events(done)
        case "transcriptions":
            return said.events({"type": "transcript.text.done", "text": f"{said.TEXT} {LONG}", **case.report})
        case "messages":
            extra = {"finish": {**MESSAGE_REPORT, "context_management": {"applied_edits": [], "note": LONG}}}
            first = ("begin", {"usage": {"input_tokens": 300, "output_tokens": 1}})
            return said.messages_stream([first, ("finish", extra["finish"])])
    return said.responses_stream([("last", {**RESPONSE_REPORT, "instructions": LONG})])


@pytest.mark.parametrize("name", STREAMS)
def test_23_the_usage_of_a_long_event_is_read(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    """ferro-labs/ai-gateway#129, openai/openai-go#368; openai-openapi: a chunk's `usage` counts."""
    upstream.answer_with(_long(name))
    check_good(gateway, name, ask(gateway, name, is_stream=True), _long(name))


# ---------------------------------------------------------------------------------------------- K: a picture is no text

PICTURE = "QUJDREVG" * (1 << 17)
DATA_URL = f"data:image/png;base64,{PICTURE}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": PICTURE}
NOW = {"role": "user", "content": "Now in blue."}
OF_CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
USED_TOOL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}
HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, image_url": ("chat", {"messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA_URL}}]}]}),
    "chat, an image of a tool": ("chat", {"messages": [
        *MESSAGES, {"role": "assistant", "content": None, "tool_calls": [use_of("c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {"url": DATA_URL}}]}]}),
    "chat, file_data": ("chat", {"messages": [{"role": "user", "content": [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PICTURE}"}}]}]}),
    "chat, an image of the assistant": ("chat", {"messages": [*MESSAGES, {
        "role": "assistant", "content": "Here.", "images": [{"type": "image_url", "image_url": {"url": DATA_URL}}]},
        NOW]}),
    "messages, image": ("messages", {"messages": [
        {"role": "user", "content": [{"type": "image", "source": SOURCE}]}]}),
    "messages, document": ("messages", {"messages": [{"role": "user", "content": [
        {"type": "document", "source": {**SOURCE, "media_type": "application/pdf"}}]}]}),
    "messages, an image of a tool": ("messages", {"messages": [*MESSAGES, USED_TOOL, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image", "source": SOURCE}]}]}]}),
    "responses, input_image": ("responses", {"input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": DATA_URL}]}, NOW]}),
    "responses, input_file": ("responses", {"input": [{"role": "user", "content": [
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PICTURE}"}]}]}),
    # BerriAI/litellm#32865; openai-python, response_input_item_param.py: `result` is base64.
    "21 responses, image_generation_call": ("responses", {"input": [
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PICTURE}, NOW]}),
    "responses, an image of a function": ("responses", {"input": [
        NOW, OF_CALL, {"type": "function_call_output", "call_id": "c1",
                       "output": [{"type": "input_image", "image_url": DATA_URL}]}]}),
    "responses, a screen": ("responses", {"input": [
        NOW, {"type": "computer_call", "id": "cu_1", "call_id": "c1", "status": "completed",
              "pending_safety_checks": [], "action": {"type": "screenshot"}},
        {"type": "computer_call_output", "call_id": "c1",
         "output": {"type": "computer_screenshot", "image_url": DATA_URL}}]}),
    "responses, an image of the code interpreter": ("responses", {"input": [
        NOW, {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "cntr_1",
              "code": "plot()", "outputs": [{"type": "image", "url": DATA_URL}]}]}),
    "gemini, inlineData": ("gemini", {"contents": [{"role": "user", "parts": [
        {"inlineData": {"mimeType": "image/png", "data": PICTURE}}]}]}),
    "gemini, inline_data": ("gemini", {"contents": [{"role": "user", "parts": [
        {"inline_data": {"mime_type": "image/png", "data": PICTURE}}]}]}),
    "gemini, an image of a function": ("gemini", {"contents": [*CONTENTS, {
        "role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}, {"role": "user", "parts": [
            {"functionResponse": {"name": "f", "response": {"ok": True}, "parts": [
                {"inlineData": {"mimeType": "image/png", "data": PICTURE}}]}}]}]}),
    "gemini, a signature of thoughts": ("gemini", {"contents": [*CONTENTS, {
        "role": "model", "parts": [{"text": "Hi", "thoughtSignature": PICTURE}]}, *CONTENTS]}),
    "messages, a signature of thinking": ("messages", {"messages": [*MESSAGES, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": PICTURE}, {"type": "text", "text": "Hi"}]}, NOW]}),
    "messages, redacted thinking": ("messages", {"messages": [*MESSAGES, {"role": "assistant", "content": [
        {"type": "redacted_thinking", "data": PICTURE}, {"type": "text", "text": "Hi"}]}, NOW]}),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_21_bytes_are_not_counted_as_text(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    """A megabyte of base64 would be 262,000 tokens of text; the key has 60,000 a day."""
    which, members = HELD[name]
    plain = STREAMS[which].plain
    assert plain is not None
    upstream.answer_with(plain(_small(which)))
    limit = {"chat": "max_completion_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}
    bounds: dict[str, Any] = {limit[which]: 100} if which in limit else {"generationConfig": {"maxOutputTokens": 100}}
    given = ask(gateway, which, who="small", **members, **bounds)
    assert given.status == 200, given.body[:300]


def _small(which: str) -> Mapping[str, Any]:
    return {
        "chat": {"usage": chat_usage(9, 1)}, "messages": {"usage": {"input_tokens": 9, "output_tokens": 1}},
        "responses": {"usage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}},
        "gemini": gemini_usage(9, 1),
    }[which]  # fmt: skip


# ----------------------------------------------------------------------------------------- names, forms, headers, pages


@pytest.mark.parametrize("name", LISTED)
def test_25_each_listed_model_can_be_retrieved(gateway: Gateway, name: str) -> None:
    """BerriAI/litellm#37271, ollama/ollama#10139: encoded or not, by the clients of each API."""
    for path in {f"/v1/models/{quote(name, safe='/:+')}", f"/v1/models/{quote(name, safe='')}"}:
        given = gateway.get(path)
        assert (given.status, given.json["id"]) == (200, name)
        of_anthropic = gateway.get(path, headers={"anthropic-version": "2023-06-01"})
        assert (of_anthropic.status, of_anthropic.json["id"]) == (200, name)
    for path in {f"/v1beta/models/{quote(name, safe='/:+')}", f"/v1beta/models/{quote(name, safe='')}"}:
        given = gateway.get(path)
        assert (given.status, given.json["name"]) == (200, f"models/{name}")
    client = sdk(gateway)
    assert name in [each.id for each in client.models.list()]
    assert client.models.retrieve(name).id == name


@pytest.mark.parametrize(
    ("name", "star"),
    [
        ("talk.mp3", "utf-8''talk.mp3"),
        ('"=?utf-8?B?w6kubXAz?="', "utf-8''%C3%A9.mp3"),
        ('"my talk.mp3"', "utf-8''my%20talk.mp3"),
    ],
)
def test_27_a_form_of_dotnet_is_taken(gateway: Gateway, upstream: ScriptedUpstream, name: str, star: str) -> None:
    """dotnet/runtime#72447; RFC 7578 and RFC 2046: a quoted boundary, names without quotes, typed text parts."""
    boundary, sound = "0f8c2b9e-4d7a-4c61-9a55-3f2b7c1d8e90", b"\xff\xfb\x90\x64" + bytes(413)
    text = "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=model"
    file = f"Content-Type: audio/mpeg\r\nContent-Disposition: form-data; name=file; filename={name}; filename*={star}"
    head = f"--{boundary}\r\n{text}\r\n\r\ntranscriptions\r\n--{boundary}\r\n{file}\r\n\r\n"
    upstream.answer_with(ok_json({"text": "hello", **RESPONSE_REPORT}))
    body = head.encode() + sound + f"\r\n--{boundary}--\r\n".encode()
    given = gateway.post(
        "/v1/audio/transcriptions", body, headers={"Content-Type": f'multipart/form-data; boundary="{boundary}"'}
    )
    assert given.status == 200, given
    assert sound in upstream.requests[0].body


def test_29_each_line_of_a_beta_header_is_passed_on(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """mnfst/llm-gateway#2910; code.claude.com, gateway protocol: unchanged, and so is `?beta=true`."""
    upstream.answer_with(ANSWERED)
    body = json.dumps({"model": "messages", "max_tokens": 9, "messages": MESSAGES}).encode()
    lines = ("anthropic-version: 2023-06-01", "anthropic-beta: one-2031-01-01",
             "anthropic-beta: two-2031-01-01, three-2031-01-01")  # fmt: skip
    with gateway.connect() as raw:
        head = [
            "POST /v1/messages?beta=true HTTP/1.1", "Host: gateway", f"x-api-key: {secret('alice')}",
            "Content-Type: application/json", f"Content-Length: {len(body)}", *lines, "", "",
        ]  # fmt: skip
        raw.send("\r\n".join(head).encode() + body)
        assert raw.read_head().status == 200
    (sent,) = upstream.requests
    betas = [each.strip() for name, value in sent.header_lines if name == "anthropic-beta" for each in value.split(",")]
    assert betas == ["one-2031-01-01", "two-2031-01-01", "three-2031-01-01"]
    assert sent.path.endswith("?beta=true")
    assert secret("alice") not in str(sent.header_lines)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/models"])
def test_30_a_page_of_another_origin_may_call(gateway: Gateway, path: str) -> None:
    """bricks-cloud/BricksLLM#45, lidge-jun/opencodex#1773: OpenAI answers preflights, which have no key."""
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}  # fmt: skip
    given = gateway.send("OPTIONS", path, key=None, headers=asked)
    assert given.status in (200, 204)
    assert given.headers["access-control-allow-origin"] in ("*", "https://app.example")


def test_34_a_call_without_arguments_has_an_empty_object(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """BerriAI/litellm#5063, pgEdge/pgedge-postgres-mcp#217: `{}`, and a `stop` with calls is `tool_use`."""
    ended = {"stop_reason": "tool_use", "stop_sequence": None}
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
    choices = [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                "finish_reason": "stop"}]  # fmt: skip
    upstream.answer_with(
        said.events(BEGUN, block(0, "start", content_block=use("toolu_1")),
                    part_of_input(0, ""), block(0, "stop"),
                    {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 9}}, {"type": "message_stop"}),
        ok_json({"choices": choices, "usage": chat_usage(10, 5)}),
        ok_json({"choices": choices, "usage": chat_usage(10, 5)}),
    )  # fmt: skip
    tools = [{"type": "function", "function": {"name": "look"}}]
    message = said.SDKs().chat(ask(gateway, "chat-over-messages", is_stream=True, tools=tools).body)
    assert [call.function.arguments for call in message.tool_calls or []] == ["{}"]
    schema = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    given = ask(gateway, "messages-over-chat", tools=[schema], tool_choice={"type": "tool", "name": "look"}).json
    assert (given["stop_reason"], given["content"][0]["input"]) == ("tool_use", {})
    response = ask(gateway, "responses-over-chat", tools=[{"type": "function", "name": "look", "parameters": {}}]).json
    (item,) = [each for each in response["output"] if each["type"] == "function_call"]
    assert (json.loads(item["arguments"] or "null"), response["status"]) == ({}, "completed")


# ---------------------------------------------------------------------------------------------------- M: cells of a CSV

FORMULAS = ('=HYPERLINK("https://x.example/"&A1,"open")', "@SUM(1+1)", "+1+1", "-1+1", "\t=1", "\r=1")


def dangerous(text: str) -> list[str]:
    """Cells that a spreadsheet may run (OWASP, CSV injection; CWE-1236). A number is none."""
    cells = [cell for row in list(csv.reader(io.StringIO(text, newline="")))[1:] for cell in row]
    return [cell for cell in cells if cell[:1] in tuple("=+-@\t\r") and not re.fullmatch(r"-?[0-9.]+", cell)]


def test_39_no_cell_of_an_export_is_a_formula(gateway: Gateway, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """theopenco/llmgateway#3520: a caller names its `user`, and an operator opens the report."""
    upstream.answer_with(always=said.chat_plain(CHAT_REPORT))
    answers = [ask(gateway, "chat", user=user) for user in FORMULAS]
    tagged = gateway.post(
        "/v1/chat/completions", {"model": "chat", "messages": MESSAGES}, headers={"x-gateway-tags": "job:=1+1"}
    )
    assert [each.status for each in answers] == [200] * len(FORMULAS)
    for each in (*answers, tagged):
        if each.status == 200:
            gateway.call(each.id)
    named = gateway.send(
        "POST", "/admin/api/keys", {"id": "noted", "note": "=1+1"}, key=None, headers=gateway_admin(gateway)
    )
    assert named.status in (200, 201), named
    token = tmp_path / "token"
    token.write_text(gateway.config["admin"]["token"])
    remote = ("--url", gateway.url, "--token-file", str(token))
    exports = {
        "usage": run("usage", *remote, "--by", "user,model", "--csv").stdout,
        "calls": run("calls", *remote, "--csv").stdout,
        "keys": run("keys", "list", *remote, "--csv").stdout,
        "audit": run("audit", *remote, "--csv").stdout,
        "admin usage": gateway.admin("usage", group_by="user,model", format="csv").body.decode(),
        "admin calls": gateway.admin("calls", format="csv").body.decode(),
    }
    for name, text in exports.items():
        assert len(text.splitlines()) > 1, name
    assert {name: dangerous(text) for name, text in exports.items() if dangerous(text)} == {}


def gateway_admin(gateway: Gateway) -> dict[str, str]:
    return {"Authorization": f"Bearer {gateway.config['admin']['token']}"}


# ------------------------------------------------------------------------------------------ N: a reason by another name

REASON = "too many documents: at most 1000"
REASONS: dict[str, tuple[Any, tuple[str, ...]]] = {
    # cline/cline#582, earendil-works/pi#5763; docs.cohere.com, errors.
    "Cohere's message": ({"message": REASON}, (REASON,)),
    # FastAPI, request validation errors.
    "FastAPI's list": ({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"],
                                    "msg": "Extra inputs are not permitted"}]}, ("seed", "not permitted")),
    "FastAPI's text": ({"detail": REASON}, (REASON,)),
    "a list of texts": ({"errors": [REASON]}, (REASON,)),
    "a list of objects": ({"errors": [{"message": REASON, "code": "x"}]}, (REASON,)),
    "RFC 9457": ({"type": "about:blank", "title": "Bad", "status": 400, "detail": REASON}, (REASON,)),
    "a text": (REASON, (REASON,)),
    "error as a text": ({"error": REASON}, (REASON,)),
    "msg": ({"code": 400, "msg": REASON}, (REASON,)),
}  # fmt: skip
REFUSED = ("chat", "completions", "messages", "responses", "gemini", "embeddings", "rerank", "images",
           "messages-over-chat", "responses-over-chat", "completions-over-chat", "chat-over-messages")  # fmt: skip


REFUSALS = [
    *[("chat", reason, status) for reason in REASONS for status in (400, 422)],
    *[(name, reason, 400) for name in REFUSED[1:] for reason in ("Cohere's message", "FastAPI's list")],
]


@pytest.mark.parametrize(("name", "reason", "status"), REFUSALS)
def test_41_the_reason_of_a_refusal_reaches_the_client(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, reason: str, status: int
) -> None:
    body, words = REASONS[reason]
    if isinstance(body, str):
        upstream.answer_with(answer(body.encode(), status, [("Content-Type", "text/plain")]))
    else:
        upstream.answer_with(answer(json.dumps(body).encode(), status))
    given = ask(gateway, name)
    assert 400 <= given.status < 500
    message = given.json["error"]["message"]
    assert not [word for word in words if word not in message], message
    eventually(lambda: gateway.call(given.id))

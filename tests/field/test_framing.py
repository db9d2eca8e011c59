"""Streams framed, labelled and filled as upstreams really do it: the client gets the whole answer, and it is charged by
what the upstream reports.

What counts as an event is WHATWG HTML, "event stream interpretation"; what counts as an answer is what the official
SDKs make of the same bytes.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Behaviour, chunk, raw
from tests.flows.gateway_process import Gateway, check, secret

from .played import (
    COUNTS,
    as_stream,
    ask,
    chat_chunk,
    configuration,
    counted,
    gemini_chunk,
    message_events,
    named,
    response_events,
    sse,
    usage_chunk,
)

if TYPE_CHECKING:
    import anthropic
    import openai

BOM = b"\xef\xbb\xbf"
TEXT = "Hi there"
CHUNKS = [
    chat_chunk({"role": "assistant", "content": "Hi"}), chat_chunk({"content": " there"}), chat_chunk(None, "stop"),
    usage_chunk(),
]  # fmt: skip
LINES = [json.dumps(each).encode() for each in CHUNKS]
GOOD = sse(CHUNKS)


ANNOTATION = {
    "id": "", "object": "", "created": 0, "model": "", "choices": [{
        "index": 0, "finish_reason": None, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}},
        "content_filter_offsets": {"check_offset": 44, "start_offset": 44, "end_offset": 198},
    }],
}  # fmt: skip
"""What Azure's asynchronous filter says of some text (learn.microsoft.com, content streaming)."""


class Row(NamedTuple):
    """The body of a stream of chat, under the type that an upstream gave it."""

    name: str
    source: str
    body: bytes
    content_type: str = "text/event-stream"


def of_lines(template: bytes, end: bytes = b"data: [DONE]\n\n") -> bytes:
    """Each chunk where `%s` is."""
    return b"".join([template.replace(b"%s", line) for line in LINES]) + end


def filled(*odd: Any, at: int = 1) -> bytes:
    """The good stream with these chunks in it."""
    return sse([*CHUNKS[:at], *odd, *CHUNKS[at:]])


def in_place(number: int, value: Any) -> bytes:
    """The good stream with another chunk at this place."""
    return sse([*CHUNKS[:number], value, *CHUNKS[number + 1 :]])


ROWS = (
    Row("comments first and between", "mnfst/llm-gateway#2053, openai/openai-go#227, diegosouzapw/OmniRoute#11036",
        b": OPENROUTER PROCESSING\n\n" + of_lines(b"data: %s\n\n: OPENROUTER PROCESSING\n\n")),
    Row("comments without a text and without blank lines", "mistralai/mistral-vibe#774, continuedev/continue#13144",
        b":\n" + of_lines(b":\ndata: %s\n\n:\n")),
    Row("no space behind data:", "openai/openai-python#498, davidmigloz/langchain_dart#778, lidge-jun/opencodex#1170",
        of_lines(b"data:%s\n\n", b"data:[DONE]\n\n")),
    Row("JSON on two lines of data", "SamSaffron/term-llm#454",
        b"".join([b"data: %s\n\n" % line.replace(b', "', b',\ndata: "', 1) for line in LINES]) + b"data: [DONE]\n\n"),
    Row("names of events without a space", "SamSaffron/term-llm#487", of_lines(b"event:message\ndata: %s\n\n")),
    Row("CRLF", "langchain-ai/langgraph#2560", of_lines(b"data: %s\r\n\r\n", b"data: [DONE]\r\n\r\n")),
    Row("CR alone", "langchain-ai/langgraph#2593", of_lines(b"data: %s\r\r", b"data: [DONE]\r\r")),
    Row("a byte order mark", "elizaOS/eliza#19260, Effect-TS/effect#6976, vm0-ai/vm0#24687", BOM + GOOD),
    Row("a byte order mark before a comment", "vm0-ai/vm0#24716", BOM + b": ok\n\n" + GOOD),
    Row("null for a chunk", "Kilo-Org/kilocode#3083, earendil-works/pi#2466", filled(None)),
    Row("data without a value", "lidge-jun/opencodex#1188", b"data:\n\n" + of_lines(b"data: %s\n\ndata:\n\n")),
    Row("more blank lines", "Mintplex-Labs/anything-llm#1475", of_lines(b"data: %s\n\n\n")),
    Row("blank lines first", "diegosouzapw/OmniRoute#11036", b"\n\n" + GOOD),
    Row("no [DONE]", "theopenco/llmgateway#1901, ENTERPILOT/GoModel#1017", of_lines(b"data: %s\n\n", b"")),
    Row("no blank line behind [DONE]", "ltmoerdani/opencode-copilot-chat#170",
        of_lines(b"data: %s\n\n", b"data: [DONE]")),
    Row("text/plain", "xiaoliu10/claude-code-router-next#45", GOOD, "text/plain; charset=utf-8"),
    Row("application/json", "cita-777/metapi#177, vllm-project/vllm-ascend#5033", GOOD, "application/json"),
    Row("no type", "Wei-Shaw/sub2api#2826", GOOD, ""),
    Row("comments under application/json", "diegosouzapw/OmniRoute#11036", b": wait\n\n" + GOOD, "application/json"),
    Row("choices is null", "pydantic/pydantic-ai#5170", filled(chat_chunk(choices=None))),
    Row("no choices at first", "pydantic/pydantic-ai#797",
        sse([chat_chunk(choices=[], prompt_filter_results=[{"prompt_index": 0}]), *CHUNKS])),
    Row("delta is null", "microsoft/agent-framework#5734",
        in_place(2, chat_chunk(choices=[{"index": 0, "delta": None, "finish_reason": "stop"}]))),
    Row("no delta", "openai/openai-agents-js#107",
        in_place(2, chat_chunk(choices=[{"index": 0, "finish_reason": "stop"}]))),
    Row("role and calls are null", "Effect-TS/effect#8333, Effect-TS/effect#7269",
        in_place(1, chat_chunk({"role": None, "content": " there", "tool_calls": None, "function_call": None}))),
    Row("no index", "open-webui/open-webui#27190",
        sse([{**each, "choices": [{n: v for n, v in choice.items() if n != "index"} for choice in each["choices"]]}
             for each in CHUNKS])),
    Row("an empty finish_reason", "Mintplex-Labs/anything-llm#5112",
        in_place(1, chat_chunk({"content": " there"}, ""))),
    Row("an object without choices", "Mintplex-Labs/anything-llm#5112", filled({"id": "", "object": ""}, {})),
    Row("an index of the choice that grows, ids of their own, a message beside the delta",
        "microsoft/foundry-local#144, ggml-org/llama.cpp#5876",
        sse([
            {**each, "id": f"chat.id.{number}", "choices": [
                {**choice, "index": number, "message": choice["delta"]} for choice in each["choices"]
            ]}
            for number, each in enumerate(CHUNKS)
        ])),
    Row("annotations without a delta between chunks",
        "langchain-ai/langchain#18977, microsoft/autogen#6465, openai/openai-node#1982, spring-projects/spring-ai#7014",
        filled(ANNOTATION)),
    Row("annotations without a delta at the end", "openai/openai-python#1677, uezo/aiavatarkit#124",
        filled(ANNOTATION, at=3)),
    Row("a cost at the end", "anomalyco/opencode#39606", sse([*CHUNKS, {"choices": [], "cost": "0"}])),
    Row("nothing but choices", "openvinotoolkit/model_server#3553",
        sse([*[{"choices": each["choices"]} for each in CHUNKS[:3]], {"choices": [], "usage": CHUNKS[3]["usage"]}])),
    Row("the usage beside the finish", "decolua/9router#2869",
        sse([*CHUNKS[:2], {**CHUNKS[2], "usage": usage_chunk()["usage"]}])),
    Row("the finish again with the usage", "decolua/9router#2869",
        sse([*CHUNKS[:3], {**CHUNKS[2], "usage": usage_chunk()["usage"]}])),
)  # fmt: skip
NAMES = [f"{row.name} [{row.source}]" for row in ROWS]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.fixture(scope="module")
def of_openai(gateway: Gateway) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0)


@pytest.fixture(scope="module")
def of_anthropic(gateway: Gateway) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=gateway.url, api_key=secret("alice"), max_retries=0)


def recorded(gateway: Gateway, call_id: str) -> None:
    record = gateway.call(call_id)
    prompt, output = COUNTS
    check(record, status=200, ended="done", usage_source="reported", prompt_tokens=prompt, completion_tokens=output)


def said(chunks: Any) -> str:
    """The text of a stream of chat, as programs put it together."""
    return "".join([
        choice.delta.content or "" for each in chunks for choice in (each and each.choices) or () if choice.delta
    ])  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_the_same_format(row: Row, gateway: Gateway, of_openai: openai.OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(as_stream(row.body, row.content_type))
    with of_openai.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Hello"}], stream=True
    ) as stream:
        assert said(list(stream)) == TEXT
    recorded(gateway, stream.response.headers["x-request-id"])


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_messages_over_it(
    row: Row, gateway: Gateway, of_anthropic: anthropic.Anthropic, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(as_stream(row.body, row.content_type))
    with of_anthropic.messages.stream(
        model="messages-over-chat", max_tokens=1000, messages=[{"role": "user", "content": "Hello"}]
    ) as stream:
        message = stream.get_final_message()
    assert "".join([block.text for block in message.content if block.type == "text"]) == TEXT
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", COUNTS[1])
    recorded(gateway, stream.response.headers["x-request-id"])


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_responses_over_it(row: Row, gateway: Gateway, of_openai: openai.OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(as_stream(row.body, row.content_type))
    with of_openai.responses.create(model="responses-over-chat", input="Hello", stream=True) as stream:
        *_, last = stream
    assert last.type == "response.completed"
    assert last.response.output_text == TEXT
    recorded(gateway, stream.response.headers["x-request-id"])


@pytest.mark.parametrize("name", ["chat", "messages-over-chat", "responses-over-chat"])
def test_a_compressed_stream(name: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Wei-Shaw/claude-relay-service#1027, Kong/kong#14893, epam/ai-dial-core#1646, praxis-proxy/ai#668."""
    upstream.answer_with(as_stream(gzip.compress(GOOD), Content_Encoding="gzip"))
    answer = ask(gateway, name, is_stream=True)
    assert b" there" in answer.body
    assert "content-encoding" not in answer.headers
    recorded(gateway, answer.id)


def test_a_stream_whose_last_chunk_is_missing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """DevDock-AI/claude-unlimited#1: all events have come, and the connection closes without the end of its chunks."""
    upstream.answer_with(raw(CHUNKED, chunk(GOOD), then_close=True))
    answer = ask(gateway, "chat", is_stream=True)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    recorded(gateway, answer.id)


def test_an_answer_of_http_1_0(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """npuichigo/openai_trtllm#31: the end of the connection is the end of the stream."""
    upstream.answer_with(raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + GOOD, then_close=True))
    answer = ask(gateway, "chat", is_stream=True)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    recorded(gateway, answer.id)


THOUGHTS = {
    "the same thought under two names [OpenRouterTeam/ai-sdk-provider#122, ModelTC/LightLLM#1345]": [
        {"reasoning": "I am", "reasoning_content": "I am"}, {"reasoning": " here", "reasoning_content": " here"},
    ],
    "details beside the thought [OpenRouterTeam/ai-sdk-provider#122]": [
        {"reasoning": "I am", "reasoning_details": [{"type": "reasoning.text", "text": "I am", "index": 0}]},
        {"reasoning": " here", "reasoning_details": [{"type": "reasoning.text", "text": " here", "index": 0}]},
    ],
    "details alone [UKGovernmentBEIS/inspect_ai#4184]": [
        {"reasoning_details": [{"type": "reasoning.text", "text": "I am", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": " here", "index": 0}]},
    ],
    "reasoning [oumi-ai/oumi#2465]": [{"reasoning": "I am"}, {"reasoning": " here"}],
    "reasoning_content, and null for the text [HKUDS/nanobot#3445]": [
        {"reasoning_content": "I am", "content": None}, {"reasoning_content": " here", "content": ""},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_is_shown_once(
    name: str, gateway: Gateway, of_anthropic: anthropic.Anthropic, upstream: ScriptedUpstream
) -> None:
    deltas = [chat_chunk({"role": "assistant", **each}) for each in THOUGHTS[name]]
    upstream.answer_with(as_stream(sse([*deltas, *CHUNKS])))
    with of_anthropic.messages.stream(
        model="messages-over-chat", max_tokens=3000, messages=[{"role": "user", "content": "Hello"}],
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:  # fmt: skip
        message = stream.get_final_message()
    assert [(block.type, getattr(block, block.type)) for block in message.content] == [
        ("thinking", "I am here"), ("text", TEXT),
    ]  # fmt: skip


def test_a_byte_order_mark_in_pieces(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """elizaOS/eliza#19260: its bytes come in packets of their own."""
    upstream.answer_with(raw(CHUNKED, chunk(BOM[:1]), chunk(BOM[1:]), chunk(GOOD), b"0\r\n\r\n", delay_s=0.01))
    answer = ask(gateway, "chat", is_stream=True)
    assert answer.body.count(b'"content"') == 2
    assert counted(gateway, answer) == (*COUNTS, "reported")


# ------------------------------------------------------------------------------------------------------ other formats

FORMATS: dict[str, bytes] = {
    "messages": named(*message_events(TEXT)),
    "responses": named(*response_events(TEXT)),
    "gemini": sse([gemini_chunk(TEXT)], done=False),
    "completions": sse([
        {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "up",
         "choices": [{"index": 0, "text": TEXT, "finish_reason": "stop", "logprobs": None}]},
        {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "up", "choices": [],
         "usage": usage_chunk()["usage"]},
    ]),
    "chat-over-messages": named(*message_events(TEXT)),
}  # fmt: skip


def labelled(content_type: str, body: bytes) -> Behaviour:
    return as_stream(body, content_type)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("odd", "source"),
    [
        ("bom", "vm0-ai/vm0#24687"), ("text/plain", "xiaoliu10/claude-code-router-next#45"),
        ("application/json", "cita-777/metapi#177"), ("", "Wei-Shaw/sub2api#2826"),
        ("unspaced", "odysseus-dev/odysseus#1701"), ("crlf", "vm0-ai/vm0#11949"),
        ("comments", "justlovemaki/AIClient2API#695"),
    ],
)  # fmt: skip
def test_each_format(name: str, odd: str, source: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    body = FORMATS[name]
    content_type = "text/event-stream" if odd in ("bom", "unspaced", "crlf", "comments") else odd
    match odd:
        case "bom":
            body = BOM + body
        case "unspaced":
            body = body.replace(b"data: ", b"data:").replace(b"event: ", b"event:")
        case "crlf":
            body = body.replace(b"\n", b"\r\n")
        case "comments":
            body = b": keepalive\n\n" + body.replace(b"\n\n", b"\n\n: ping\n\n")
    upstream.answer_with(labelled(content_type, body))
    answer = ask(gateway, name, is_stream=True)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"Hi there" in answer.body
    recorded(gateway, answer.id)


def without_names(*events: dict[str, Any]) -> bytes:
    return sse(events, done=False)


def test_messages_without_names_of_events(
    gateway: Gateway, of_openai: openai.OpenAI, upstream: ScriptedUpstream
) -> None:
    """earendil-works/pi#1983: a relay leaves the `event:` lines out; the type is in the data as well."""
    upstream.answer_with(as_stream(without_names(*message_events(TEXT))))
    with of_openai.chat.completions.create(
        model="chat-over-messages", messages=[{"role": "user", "content": "Hello"}], stream=True
    ) as stream:
        assert said(list(stream)) == TEXT
    recorded(gateway, stream.response.headers["x-request-id"])


START, BLOCK, DELTA, END_OF_BLOCK, MESSAGE_DELTA, STOP = message_events(TEXT)
SEEDED = {**BLOCK, "content_block": {"type": "text", "text": "Hi"}}
REST = {**DELTA, "delta": {"type": "text_delta", "text": " there"}}
ODD_MESSAGES = {
    "no end of the block [xemantic/anthropic-sdk-kotlin#147]": (START, BLOCK, DELTA, MESSAGE_DELTA, STOP),
    "text in the start of the block [earendil-works/pi#7283]": (
        START, SEEDED, REST, END_OF_BLOCK, MESSAGE_DELTA, STOP
    ),
    "an unknown event [brainlid/langchain#86]": (
        START, {"type": "ping"}, BLOCK, {"type": "vendor_note", "note": "x"}, DELTA, END_OF_BLOCK, MESSAGE_DELTA, STOP
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_MESSAGES)
@pytest.mark.parametrize("way", ["messages", "chat-over-messages"])
def test_odd_messages(
    name: str, way: str, gateway: Gateway, of_openai: openai.OpenAI, upstream: ScriptedUpstream
) -> None:
    body = named(*ODD_MESSAGES[name])
    upstream.answer_with(as_stream(body))
    if way == "messages":
        answer = ask(gateway, "messages", is_stream=True)
        assert answer.body == body
        recorded(gateway, answer.id)
        return
    with of_openai.chat.completions.create(
        model=way, messages=[{"role": "user", "content": "Hello"}], stream=True
    ) as stream:
        assert said(list(stream)) == TEXT
    recorded(gateway, stream.response.headers["x-request-id"])


# ------------------------------------------------------------------------------------------ JSON where a stream belongs


@pytest.mark.parametrize("content_type", ["text/event-stream", "text/plain", ""])
@pytest.mark.parametrize("prefix", [b"", BOM], ids=["", "bom"])
def test_plain_json_under_another_type(
    content_type: str, prefix: bytes, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    """envoyproxy/ai-gateway#2229, decolua/9router#3492: a plain answer keeps its meaning, whatever its type says."""
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice],
             "usage": usage_chunk()["usage"]}  # fmt: skip
    upstream.answer_with(as_stream(prefix + json.dumps(whole).encode(), content_type))
    answer = ask(gateway, "chat")
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == TEXT
    assert answer.headers["content-type"].startswith("application/json")  # openai-node takes any other for a text
    recorded(gateway, answer.id)


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
def test_json_for_a_stream(content_type: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """envoyproxy/ai-gateway#2229: JSON without framing where events were asked for, under either type."""
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice],
             "usage": usage_chunk()["usage"]}  # fmt: skip
    upstream.answer_with(as_stream(json.dumps(whole).encode(), content_type))
    answer = ask(gateway, "chat", is_stream=True)
    assert answer.status == 200
    assert TEXT.encode() in answer.body
    recorded(gateway, answer.id)


# --------------------------------------------------------------------------------------- events for a plain call

PLAIN_TEXTS: dict[str, Any] = {
    "chat": lambda whole: whole["choices"][0]["message"]["content"],
    "completions": lambda whole: whole["choices"][0]["text"],
    "messages": lambda whole: whole["content"][0]["text"],
    "responses": lambda whole: whole["output"][0]["content"][0]["text"],
    "gemini": lambda whole: whole["candidates"][0]["content"]["parts"][0]["text"],
    "messages-over-chat": lambda whole: whole["content"][0]["text"],
    "responses-over-chat": lambda whole: whole["output"][0]["content"][0]["text"],
    "chat-over-messages": lambda whole: whole["choices"][0]["message"]["content"],
}
"""Where a plain answer of each model has its text."""


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json", "text/plain"])
@pytest.mark.parametrize("name", PLAIN_TEXTS)
def test_events_for_a_plain_call(name: str, content_type: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """kaito-project/kaito#1880, unslothai/unsloth#6570, BerriAI/litellm#34095, headroomlabs-ai/headroom#3131,
    Wei-Shaw/sub2api#2826, quangdang46/openproxy#306: upstreams that stream whatever was asked for."""
    upstream.answer_with(as_stream(FORMATS.get(name, GOOD), content_type))
    answer = ask(gateway, name)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert PLAIN_TEXTS[name](answer.json) == TEXT
    recorded(gateway, answer.id)

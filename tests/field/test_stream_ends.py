"""Ends of streams, and long events: all that an upstream has sent reaches the client and the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, ok_json, stream
from tests.flows.gateway_process import Gateway

from .reports import (
    BLOCK,
    STOP,
    STREAMED,
    Ask,
    asks_chat,
    asks_completions,
    asks_gemini,
    asks_images,
    asks_messages,
    asks_responses,
    asks_transcription,
    candidate,
    chat_chunk,
    check,
    configuration,
    gemini,
    gemini_events,
    message_delta,
    message_start,
    named,
    play,
    response,
    response_events,
    text_of,
)

USAGE = {"prompt_tokens": 30, "completion_tokens": 252, "total_tokens": 282}
TOKENS = {"input_tokens": 30, "output_tokens": 252, "total_tokens": 282}
METADATA = {"promptTokenCount": 30, "candidatesTokenCount": 252, "totalTokenCount": 282}
REPORTED = {
    "prompt_tokens": 30, "completion_tokens": 252, "usage_source": "reported", "ended": "done", "truncated": False,
}  # fmt: skip
OF_A_PICTURE = {**REPORTED, "usage_source": "estimated", "units": {"image_out": 252}}
"""All output has the dearest price where the report does not state the tokens of the picture."""
ENDS = {"ended": "done", "truncated": False}
BROKEN = {"ended": "error", "truncated": True}
WORDS = ["Hello", " there,", " friend."]
SAID = "".join(WORDS)
LONG = "word " * 30_000
"""Longer than 64 KiB in one event."""
PICTURE = "A" * 200_000
"""Base64 of a picture."""
CHAT, RESPONSES = asks_chat(**STREAMED), asks_responses(stream=True)
MESSAGES, GEMINI = asks_messages(stream=True), asks_gemini(is_stream=True)
OVER_CHAT = {
    "messages": asks_messages("messages-over-chat", stream=True),
    "responses": asks_responses("responses-over-chat", stream=True),
}


class Row(NamedTuple):
    """A stream, the text that a client has to get, and what has to be recorded."""

    name: str
    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    ask: Ask
    said: Behaviour
    recorded: Mapping[str, Any]
    text: str = SAID


def words_in_chunks(*finishes: str | None, **last: Any) -> list[dict[str, Any]]:
    """A chunk for each word, with these reasons to finish, and a last one without text."""
    chunks = [chat_chunk(word, finish) for word, finish in zip(WORDS, finishes, strict=True)]
    return [*chunks, chat_chunk(finish="stop", **last)]


def report(choices: Any = ()) -> dict[str, Any]:
    """The chunk with the usage."""
    return chat_chunk(choices=choices, usage=USAGE)


def blocks(*words: str) -> Iterable[dict[str, Any]]:
    first, _, last = BLOCK
    return [first, *[{**BLOCK[1], "delta": {"type": "text_delta", "text": word}} for word in words], last]


PREVIEW = chat_chunk(choices=[], usage={"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34})
GROWING = [
    chat_chunk(word, usage={"prompt_tokens": 30, "completion_tokens": count, "total_tokens": 30 + count})
    for word, count in zip(WORDS, (80, 160, 250), strict=True)
]

ENDS_OF_CHAT = {
    "a report before the first word": (
        "vllm-project/semantic-router#2215",
        "openai-openapi: a chunk without choices is a report, and the stream ends with [DONE]",
        stream([PREVIEW, *words_in_chunks(None, None, None), report()]), REPORTED,
    ),
    "a report in each chunk": (
        "AtomaAI/atoma-proxy#534, rashidrazak/opencode-cmd-provider#213, mitchross/talos-argocd-proxmox#2019",
        "vLLM, `continuous_usage_stats`: running totals, of which the last counts",
        stream([*GROWING, chat_chunk(finish="stop"), report()]), REPORTED,
    ),
    "the reason to finish in the last chunk with text": (
        "NousResearch/hermes-agent#91373",
        "openai-openapi: the report follows in a chunk of its own",
        stream([*[chat_chunk(word) for word in WORDS[:2]], chat_chunk(WORDS[2], "stop"), report()]), REPORTED,
    ),
    "a report behind the finish, with an empty choice": (
        "agentjido/req_llm#781, felinics/twilight#7",
        "Azure and LiteLLM send it so; the stream ends with [DONE]",
        stream([*words_in_chunks(None, None, None), chat_chunk(usage=USAGE)]), REPORTED,
    ),
    "the report twice": (
        "Portkey-AI/gateway#1338",
        "Groq sends it with the finish and once more in a chunk of its own: one report",
        stream([*words_in_chunks(None, None, None, usage=USAGE), report()]), REPORTED,
    ),
    "a report in a chunk whose choices are null": (
        "RooCodeInc/Roo-Code#9105, cline/cline#8527",
        "MiniMax and others send it so: a report", stream([*words_in_chunks(None, None, None), report(choices=None)]),
        REPORTED,
    ),
    "a report in a chunk without choices": (
        "ROCm/ATOM#1711, Portkey-AI/gateway#1629",
        "Fireworks and ATOM send it so: a report",
        stream([*words_in_chunks(None, None, None), {"object": "chat.completion.chunk", "usage": USAGE}]),
        REPORTED,
    ),
    "a first chunk without choices": (
        "AndraxDev/speak-gpt#162",
        "Azure's results of the content filter for the prompt: no end and no report",
        stream([chat_chunk(choices=[], prompt_filter_results=[{"prompt_index": 0}]), *words_in_chunks(None, None, None),
                report()]), REPORTED,
    ),
    "thoughts before the text": (
        "router-for-me/CLIProxyAPI#1085",
        "DeepSeek's and GLM's `reasoning_content`: the text follows, and the stream ends as any",
        stream([chat_chunk(choices=[{"index": 0, "delta": {"reasoning_content": "Hm"}, "finish_reason": None}]),
                *words_in_chunks(None, None, None), report()]), REPORTED,
    ),
    "an empty reason in each chunk": (
        "farion1231/cc-switch#6541, ollama/ollama#4357",
        "openai-openapi: `finish_reason` is a reason or null; an empty one ends nothing",
        stream([*words_in_chunks("", "", ""), report()]), REPORTED,
    ),
    "a reason in each chunk": (
        "vllm-project/semantic-router#2215",
        "the stream's end is the end: openai-python reads on until [DONE]",
        stream([*words_in_chunks("stop", "stop", "stop"), report()]), REPORTED,
    ),
    "no [DONE] behind the report": (
        "Dstack-TEE/private-ai-gateway#114",
        "GMI ends so; each choice has its reason, and the message is whole",
        stream([*words_in_chunks(None, None, None), report()], done=False), REPORTED,
    ),
    "[DONE] without a reason to finish": (
        "can1357/oh-my-pi#9609, QuantumNous/new-api#7399",
        "README.md: some resellers write [DONE] themselves behind a stream that was cut, so it proves nothing",
        stream([*[chat_chunk(word) for word in WORDS], report()]), BROKEN,
    ),
}  # fmt: skip

ROWS = [
    Row(name, source, rule, CHAT, said, recorded)
    for name, (source, rule, said, recorded) in ENDS_OF_CHAT.items()
] + [
    Row(f"{name}, translated to {way}", source, rule, ask, said, recorded)
    for name, (source, rule, said, recorded) in ENDS_OF_CHAT.items()
    for way, ask in OVER_CHAT.items()
] + [
    Row(
        "a report behind [DONE]", "Continuum-AI-Corp/OrcaRouter-Lite#127",
        "openai-openapi: the stream is terminated by [DONE], and SDKs leave there: the usage is an estimate, marked so",
        CHAT, stream([*words_in_chunks(None, None, None), "[DONE]", report()], done=False),
        {**ENDS, "usage_source": "estimated"},
    ),
    Row(
        "a reason to stop that OpenAI does not have", "can1357/oh-my-pi#8563",
        "api-docs.deepseek.com: `insufficient_system_resource` ends an answer, and its client can read it", CHAT,
        stream([*[chat_chunk(word) for word in WORDS], chat_chunk(finish="insufficient_system_resource"), report()]),
        REPORTED,
    ),
    Row(
        "a client that did not ask for the usage", "tashfeenahmed/freellmapi#845, vercel/ai#2763",
        "openai-openapi: `include_usage` asks for it, and the gateway asks for itself", asks_chat(stream=True),
        stream([*words_in_chunks(None, None, None), report()]), REPORTED,
    ),
    Row(
        "usage inside the choice", "earendil-works/pi#2017, northes/go-moonshot#17",
        "Moonshot's own chunk in the thread: `choices[0].usage` beside the finish", CHAT,
        stream([*[chat_chunk(word) for word in WORDS],
                chat_chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}])]), REPORTED,
    ),
    Row(
        "a stream that ends without a reason and without [DONE]", "pydantic/pydantic-ai#6610, vercel/ai#19165",
        "openai-openapi: the last chunk has the reason; without it nothing says that the answer is whole", CHAT,
        stream([chat_chunk(word) for word in WORDS], done=False), BROKEN,
    ),
    Row(
        "a call that breaks off inside its arguments", "brightwave-inc/tidebreak#1124",
        "arguments are one JSON value (openai-openapi): half of one is no answer", CHAT,
        stream([chat_chunk(choices=[{"index": 0, "finish_reason": None, "delta": {"tool_calls": [
            {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"at"}}]}}])],
            done=False),
        BROKEN, "",
    ),
    *[
        Row(
            f"a call that breaks off inside its arguments, translated to {way}", "ENTERPILOT/GoModel#866",
            "a call whose arguments are half is never shown as complete", ask,
            stream([chat_chunk(choices=[{"index": 0, "finish_reason": None, "delta": {"tool_calls": [
                {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"at"}}]}}])],
                done=False),
            BROKEN, "",
        )
        for way, ask in OVER_CHAT.items()
    ],
    Row(
        "a response without its last event", "Wei-Shaw/sub2api#1511, BigPizzaV3/CodexPlusPlus#1545",
        "openai-openapi: a stream of a response ends with `response.completed`, `.incomplete` or `.failed`", RESPONSES,
        named({"type": "response.created", "sequence_number": 0, "response": response(None, status="in_progress")},
              {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1", "output_index": 0,
               "content_index": 0, "delta": SAID}), BROKEN,
    ),
    Row(
        "Gemini without a reason", "ding113/claude-code-hub#156",
        "google-genai, Candidate: an answer that is whole has a `finishReason`", GEMINI,
        gemini_events(*[gemini(None, candidate(word, None)) for word in WORDS]), BROKEN,
    ),
    Row(
        "`message_delta` without `message_stop`", "esengine/DeepSeek-Reasonix#8756",
        "Anthropic, streaming: the stop reason is given once, at the end", MESSAGES,
        named(message_start(TOKENS), *blocks(*WORDS), message_delta(TOKENS)), REPORTED,
    ),
    Row(
        "neither a stop reason nor `message_stop`", "SamSaffron/term-llm#955, BerriAI/litellm#32159",
        "Anthropic, streaming: `message_stop` ends a stream; an end without it is an error", MESSAGES,
        named(message_start(TOKENS), *list(blocks(*WORDS))[:-1]), BROKEN,
    ),
    Row(
        "a stop reason in the first delta, and another behind it", "tombii/better-ccflare#344",
        "Anthropic, streaming: counts of `message_delta` are cumulative, the last counts", MESSAGES,
        named(message_start({**TOKENS, "output_tokens": 1}), *blocks(*WORDS),
              message_delta({"output_tokens": 9}), message_delta({"output_tokens": 252}), STOP), REPORTED,
    ),
    Row(
        "empty chunks with STOP before the text", "Chevey339/kelivo#1003, cuplivo/cuplivo#776",
        "google-genai reads to the end of the message", GEMINI,
        gemini_events(gemini(None, candidate(None)), gemini(None, candidate(None)),
                      *[gemini(None, candidate(word, None)) for word in WORDS], gemini(METADATA, candidate(None))),
        REPORTED,
    ),
    Row(
        "a reason behind a round of a built-in tool", "0xPlaygrounds/rig#2328",
        "google-genai reads to the end of the message; rig's fixture of a live answer", GEMINI,
        gemini_events(
            gemini(None, candidate(None, content={"role": "model", "parts": [
                {"executableCode": {"language": "PYTHON", "code": "1+1"}}]})),
            *[gemini(None, candidate(word, None)) for word in WORDS[:2]], gemini(METADATA, candidate(WORDS[2])),
        ),
        REPORTED,
    ),
    Row(
        "text in the chunk with RECITATION", "topcheer/ggcode#232",
        "google-genai hands out the parts of each chunk, whatever its reason", GEMINI,
        gemini_events(*[gemini(None, candidate(word, None)) for word in WORDS[:2]],
                      gemini(METADATA, candidate(WORDS[2], "RECITATION"))), REPORTED,
    ),
    Row(
        "a last chunk without content", "agentjido/req_llm#638, pydantic/pydantic-ai#2631",
        "google-genai, Candidate: `content` is optional", GEMINI,
        gemini_events(*[gemini(None, candidate(word, None)) for word in WORDS],
                      {"candidates": [{"finishReason": "STOP"}], "usageMetadata": METADATA}), REPORTED,
    ),
    Row(
        "usage in each chunk of Gemini, and none in the last", "ankit373/hydra#858",
        "google-genai: a chunk without `usageMetadata` says nothing about it", GEMINI,
        gemini_events(*[gemini({**METADATA, "candidatesTokenCount": count}, candidate(word, None))
                        for word, count in zip(WORDS, (2, 64, 252), strict=True)], gemini(None, candidate(None))),
        REPORTED,
    ),
    Row(
        "usage behind the chunk with the reason", "metabase/metabase#80959",
        "google-genai reads to the end of the message", GEMINI,
        gemini_events(*[gemini(None, candidate(word, None)) for word in WORDS[:2]],
                      gemini(None, candidate(WORDS[2])), {"usageMetadata": METADATA}), REPORTED,
    ),
    Row(
        "a response that ends as incomplete", "maximhq/bifrost#5099",
        "openai-openapi: `response.incomplete` ends a stream and has the usage", RESPONSES,
        response_events(response(TOKENS, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
                        kind="response.incomplete"),
        REPORTED, "Hi",
    ),
    # L. Facts in a long event.
    Row(
        "a long chunk of a chat with the finish and the usage",
        "bestruirui/octopus#73, TencentCloud/tencentcloud-sdk-go#315",
        "WHATWG HTML: an event has no greatest length; openai-openapi: a chunk's `usage` counts", CHAT,
        stream([chat_chunk(LONG, "stop", usage=USAGE)]), REPORTED, LONG,
    ),
    Row(
        "a picture in a chunk of a chat", "cloudwego/hertz#1441",
        "OpenRouter's `images` in a delta are base64; openai-openapi: a chunk's `usage` counts", CHAT,
        stream([chat_chunk(SAID), chat_chunk(usage=USAGE, choices=[{"index": 0, "finish_reason": "stop", "delta": {
            "images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}]}}])]),
        OF_A_PICTURE,
    ),
    Row(
        "a long chunk of a chat that is the last of three", "SamSaffron/term-llm#347",
        "the report follows in a chunk of its own", CHAT,
        stream([chat_chunk("Hello "), chat_chunk(LONG), chat_chunk(finish="stop"), report()]), REPORTED,
        f"Hello {LONG}",
    ),
    Row(
        "a long chunk of a completion", "cloudwego/hertz#1408",
        "WHATWG HTML: an event has no greatest length", asks_completions(**STREAMED),
        stream([{"object": "text_completion", "model": "up", "usage": USAGE,
                 "choices": [{"index": 0, "text": LONG, "finish_reason": "stop"}]}]),
        REPORTED, LONG,
    ),
    Row(
        "the tier in a long chunk", "bestruirui/octopus#73",
        "openai-openapi: `service_tier` of a chunk is the tier that served", CHAT,
        stream([chat_chunk(LONG, "stop", usage=USAGE, service_tier="flex")]),
        {**REPORTED, "price_variant": "flex"}, LONG,
    ),
    Row(
        "a long event with a picture of a response", "nextlevelbuilder/goclaw#1348",
        "openai-python, ResponseImageGenCallPartialImageEvent: base64 in one event", RESPONSES,
        response_events(response(TOKENS), {
            "type": "response.image_generation_call.partial_image", "item_id": "ig_1", "output_index": 0,
            "partial_image_index": 0, "partial_image_b64": PICTURE}),
        {"prompt_tokens": 30, "completion_tokens": 252, "ended": "done", "truncated": False}, "Hi",
    ),
    Row(
        "a long last event of a response", "openai/openai-go#368, bestruirui/octopus#73",
        "openai-openapi: `response.completed` holds the whole response", RESPONSES,
        response_events(response(TOKENS, instructions=LONG, service_tier="priority")),
        {**REPORTED, "price_variant": "priority"}, "Hi",
    ),
    Row(
        "a long delta of a response", "SamSaffron/term-llm#347",
        "the usage is in the last event", RESPONSES,
        response_events(response(TOKENS), {
            "type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0,
            "delta": LONG}),
        REPORTED, f"Hi{LONG}",
    ),
    Row(
        "results of a search in a Messages stream", "achetronic/magec#45",
        "anthropic-sdk, WebSearchToolResultBlock: encrypted contents in one event", MESSAGES,
        named(message_start(TOKENS), {"type": "content_block_start", "index": 0, "content_block": {
            "type": "web_search_tool_result", "tool_use_id": "t", "content": [{
                "type": "web_search_result", "title": "t", "url": "u", "encrypted_content": PICTURE}]}},
            {"type": "content_block_stop", "index": 0}, *blocks(*WORDS), message_delta(TOKENS), STOP),
        REPORTED,
    ),
    Row(
        "a long last delta of a Messages stream", "achetronic/magec#45",
        "anthropic-sdk: each event is read whole; the usage counts", MESSAGES,
        named(message_start({**TOKENS, "output_tokens": 1}), *blocks(*WORDS),
              {**message_delta(TOKENS), "context_management": {"applied_edits": [{"type": "x", "note": PICTURE}]}},
              STOP),
        REPORTED,
    ),
    Row(
        "a picture, the reason and the usage in one chunk of Gemini", "cloudwego/hertz#1441",
        "google-genai: a chunk is an answer of its own, whatever its length", GEMINI,
        gemini_events(gemini(None, candidate(SAID, None)), gemini(METADATA, candidate(None, content={
            "role": "model", "parts": [{"inlineData": {"mimeType": "image/png", "data": PICTURE}}]}))),
        OF_A_PICTURE,
    ),
    Row(
        "a picture and the searches in one chunk of Gemini", "cloudwego/hertz#1441",
        "google-genai, GroundingMetadata; each query is paid", GEMINI,
        gemini_events(gemini(None, candidate(SAID, None)), gemini(
            METADATA, candidate(None, groundingMetadata={"webSearchQueries": ["a", "b"]}, content={
                "role": "model", "parts": [{"inlineData": {"mimeType": "image/png", "data": PICTURE}}]}))),
        {**OF_A_PICTURE, "units": {"web_searches": 2, "image_out": 252}},
    ),
    Row(
        "a picture with its usage", "nextlevelbuilder/goclaw#1349",
        "openai-python, ImageGenCompletedEvent: `b64_json` and `usage` in one event", asks_images(stream=True),
        named({"type": "image_generation.completed", "b64_json": PICTURE, "usage": TOKENS}), REPORTED, "",
    ),
    Row(
        "a long transcript with its usage", "SamSaffron/term-llm#347",
        "openai-python, TranscriptionTextDoneEvent: the whole text and the usage in one event",
        asks_transcription("transcriptions", ("stream", "true")),
        named({"type": "transcript.text.done", "text": LONG, "usage": {"type": "tokens", **TOKENS}}), REPORTED, LONG,
    ),
    Row(
        "a plain answer, long", "bestruirui/octopus#73",
        "openai-openapi: `usage` of an answer", asks_chat(),
        ok_json({"object": "chat.completion", "model": "up", "usage": USAGE, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": LONG}, "finish_reason": "stop"}]}),
        REPORTED, "",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_end_of_a_stream_is_its_end(gateway: Gateway, upstream: ScriptedUpstream, row: Row) -> None:
    answer, record = play(gateway, upstream, row.ask, row.said)
    assert answer.status == 200
    assert text_of(answer.body) == row.text
    check(record, row.recorded)

"""What a call may use is reserved, and charged where no report counts it, at the dearest row of the price that it can
have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.accounting import call_record
from gateway.config import Model, Price, Route
from gateway.formats.format import ScanInput
from gateway.formats.table import FORMATS
from gateway.quota import windows
from gateway.records import Call, Endpoint, Key, Usage
from gateway.relay import charge
from gateway.relay.charge import Charge, Ending, SentRequest

PRICE = Price.model_validate({
    "input": 1, "output": 2, "cache_write": 3, "cache_write_1h": 4, "audio_in": 10, "audio_out": 20, "image_out": 40,
    "cache_write_on_request": True,
    "variants": {"fast": {"input": 100, "output": 200}},
})  # fmt: skip
SPEAKS: dict[str, Any] = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hello"}]}
DRAWS: dict[str, Any] = {"contents": [{"parts": [{"text": "Hello"}]}]}


def call(endpoint: Endpoint, body: dict[str, Any] | bytes, price: Price = PRICE) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    params = FORMATS[endpoint].read(raw, lambda model: None)
    model = Model(routes=(Route(upstream="u"),), price=price)
    return Call("r", 0.0, Key("k"), endpoint, params, model, label_model="m", arrived=0.0)


WITHOUT_PICTURES = PRICE.model_copy(update={"image_out": None})
SOUND = json.dumps(SPEAKS | {"modalities": ["audio"]})
ONE_HOUR = json.dumps(SPEAKS | {"cache_control": {"ttl": "1h"}})


@pytest.mark.parametrize(
    ("endpoint", "body", "price", "least"),
    [
        ("chat", SOUND, WITHOUT_PICTURES, 1000 * 20_000),
        ("chat", SOUND.replace('"audio"', '"AUDIO"'), WITHOUT_PICTURES, 1000 * 20_000),
        ("chat", SOUND.replace('"audio"', '"\\u0061udio"'), WITHOUT_PICTURES, 1000 * 20_000),
        ("messages", ONE_HOUR, PRICE, 1000 * 4_000),
        ("messages", ONE_HOUR.replace('"1h"', '"\\u0031h"'), PRICE, 1000 * 4_000),
        ("generate_content", json.dumps(DRAWS), PRICE, 1000 * 40_000),
        ("generate_content", json.dumps(DRAWS | {"generationConfig": {"responseModalities": ["IMAGE"]}}), PRICE,
         1000 * 40_000),
        ("generate_content", json.dumps({"contents": [{"parts": [{"fileData": {"fileUri": "https://x/a"}}]}]}),
         PRICE, 1000 * 10_000),
        ("messages", json.dumps(SPEAKS | {"fallbacks": [{"model": "m", "speed": "fast"}]}), PRICE, 1000 * 200_000),
    ],
)  # fmt: skip
def test_what_a_call_may_use_is_reserved_however_it_is_written(
    endpoint: Endpoint, body: str, price: Price, least: int
) -> None:
    most = windows.most_nusd(call(endpoint, body.encode(), price), 1000, 1000)
    assert most is not None
    assert most >= least


def test_letters_of_other_scripts_reserve_nothing_more() -> None:
    plain, other = (SPEAKS | {"messages": [{"role": "user", "content": text}]} for text in ("Hello", "你好é"))
    most = [windows.most_nusd(call("messages", each, WITHOUT_PICTURES), 1000, 1000) for each in (plain, other)]
    assert most[0] == most[1] == 1000 * 1_000 + 1000 * 2_000


# ------------------------------------------------------------------------------------- where no report counts the use

TIERS = Price.model_validate({
    "input": 1, "output": 2, "web_searches_per_1000": 10,
    "variants": {"priority": {"input": 10, "output": 20}, "fast": {"input": 6, "output": 12}},
})  # fmt: skip
WRITES = Price.model_validate({"input": 1, "output": 2, "cache_write": 1.25, "cache_write_1h": 2})
DRAWN = PRICE.model_copy(update={"audio_out": None})
ANSWERS: list[tuple[Endpoint, dict[str, Any], Price]] = [
    ("chat", SPEAKS | {"service_tier": "priority"}, TIERS),
    ("chat", SPEAKS | {"modalities": ["audio"]}, WITHOUT_PICTURES),
    ("responses", {"model": "m", "input": "Hello", "max_output_tokens": 1000, "service_tier": "priority"}, TIERS),
    ("messages", SPEAKS | {"speed": "fast"}, TIERS),
    ("messages", SPEAKS | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, WRITES),
    ("generate_content", DRAWS | {"generationConfig": {"maxOutputTokens": 1000}}, DRAWN),
]


def sent(endpoint: Endpoint, body: dict[str, Any], price: Price) -> SentRequest:
    asked = call(endpoint, body, price)
    return SentRequest(asked, None, asked.params.output_limit, pieces=[json.dumps(body).encode()])


def cost(asked: SentRequest, charged: Charge) -> int:
    route = asked.call.model.routes[0]
    nusd = call_record.record_of(asked.call, route, 200, charged.usage, "done").cost_nusd
    assert nusd is not None
    return nusd


@pytest.mark.parametrize(("endpoint", "body", "price"), ANSWERS, ids=[f"{e[0]}{n}" for n, e in enumerate(ANSWERS)])
@pytest.mark.parametrize("ending", [Ending.BROKEN, Ending.SILENT])
def test_an_answer_of_which_nothing_came_costs_its_reservation(
    endpoint: Endpoint, body: dict[str, Any], price: Price, ending: Ending
) -> None:
    asked = sent(endpoint, body, price)
    reserved = windows.most_nusd(asked.call, asked.call.params.prompt_tokens, asked.reserved_output)
    assert cost(asked, charge.of_broken(asked, ending)) == reserved


def followed(asked: SentRequest, events: list[dict[str, Any]]) -> Charge:
    """What is charged for a stream that the client leaves behind these events."""
    make_scan = FORMATS[asked.call.endpoint].scan
    assert make_scan is not None
    scan = make_scan(ScanInput(allows=asked.allows))
    for event in events:
        scan.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    return charge.of_stream(asked, scan, Ending.STOPPED, 0.1)


def chunk(tier: str | None = None, **delta: Any) -> dict[str, Any]:
    more = {} if tier is None else {"service_tier": tier}
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


def test_text_of_a_stream_costs_what_the_service_costs() -> None:
    asked = sent("chat", SPEAKS | {"service_tier": "priority"}, TIERS)
    for tier, rate in ((None, 20_000), ("priority", 20_000), ("default", 2_000)):
        charged = followed(asked, [chunk(tier, content="word " * 10)] * 10)
        assert cost(asked, charged) >= charged.usage.completion_tokens * rate > 0
        assert cost(asked, charged) < (charged.usage.completion_tokens + 20) * rate


@pytest.mark.parametrize("size", [100, 100_000])
def test_sound_of_a_stream_costs_its_reservation(size: int) -> None:
    asked = sent("chat", SPEAKS | {"modalities": ["audio"]}, WITHOUT_PICTURES)
    charged = followed(asked, [chunk(audio={"id": "audio_1", "data": "A" * size})] * 3)
    assert dict(charged.usage.more)["audio_out"] == 1000


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_picture_of_a_stream_costs_its_reservation(size: int) -> None:
    asked = sent("generate_content", DRAWS | {"generationConfig": {"maxOutputTokens": 1000}}, DRAWN)
    parts = [{"inlineData": {"mimeType": "image/png", "data": "A" * size}}]
    charged = followed(asked, [{"candidates": [{"index": 0, "content": {"parts": parts}}]}])
    assert dict(charged.usage.more)["image_out"] == 1000


@pytest.mark.parametrize(
    "message",
    [
        {"audio": {"id": "audio_1", "data": "AAAA", "transcript": "Hello"}},
        {"images": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
    ],
)
def test_sound_and_pictures_without_a_report_cost_the_reservation(message: dict[str, Any]) -> None:
    asked = sent("chat", SPEAKS | {"modalities": ["audio", "image"]}, PRICE)
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    assert charge.of_plain(asked, None, body, "m").usage.completion_tokens == 1000


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("price", "details", "seen"),
    [
        (DRAWN, {}, [("image_out", 1290)]),
        (DRAWN, {"candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1200}]}, [("image_out", 1200)]),
        (TIERS, {}, []),
    ],
    ids=["without details", "with details", "text alone is priced"],
)
def test_a_report_that_does_not_state_the_tokens_of_a_picture(
    price: Price, details: dict[str, Any], seen: list[tuple[str, int]], is_streamed: bool
) -> None:
    asked = sent("generate_content", DRAWS | {"generationConfig": {"maxOutputTokens": 2000}}, price)
    parts = [{"inlineData": {"mimeType": "image/png", "data": "A" * 100}}]
    counts = {"promptTokenCount": 9, "candidatesTokenCount": 1290, **details}
    candidates = [{"index": 0, "content": {"parts": parts}, "finishReason": "STOP"}]
    answer = {"candidates": candidates, "usageMetadata": counts}
    if is_streamed:
        charged = followed(asked, [answer])
    else:
        body = json.dumps(answer).encode()
        charged = charge.of_plain(asked, FORMATS["generate_content"].facts(body).usage, body, "m")
    assert list(charged.usage.more) == seen
    assert charged.usage.source == ("estimated" if seen == [("image_out", 1290)] else "reported")


def test_searches_of_a_stream_are_charged_without_its_report() -> None:
    asked = sent("responses", {"model": "m", "input": "Hello"}, TIERS)
    items = [{"type": "web_search_call", "id": f"ws_{n}", "action": {"type": "search"}} for n in range(5)]
    events: list[dict[str, Any]] = [{"type": "response.output_item.done", "item": item} for item in items]
    head = {"type": "response.created", "response": {"id": "resp_1", "model": "m", "service_tier": "priority"}}
    charged = followed(asked, [head, *events])
    assert (dict(charged.usage.more), charged.usage.variant) == ({"web_searches": 5}, "priority")

    asked = sent("messages", SPEAKS, TIERS)
    message = {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}
    events = [{"type": "message_start", "message": message}]
    results = {"type": "web_search_tool_result", "content": [{"encrypted_content": "A" * 4000}]}
    for place in range(5):
        block = {"type": "server_tool_use", "id": f"s{place}", "name": "web_search", "input": {}}
        events += [{"type": "content_block_start", "index": place, "content_block": each} for each in (block, results)]
    charged = followed(asked, events)
    assert dict(charged.usage.more) == {"web_searches": 5}
    assert 5000 < charged.usage.prompt_tokens < 5500


def test_a_report_that_names_no_service_has_the_one_that_was_asked_for() -> None:
    asked = sent("chat", SPEAKS | {"service_tier": "priority"}, TIERS)
    for named, variant in (("", "priority"), ("default", "default"), ("priority", "priority")):
        report = Usage(9, 9, source="reported", variant=named)
        assert charge.of_plain(asked, report, b"{}", "m").usage.variant == variant
    cheap = TIERS.model_copy(update={"variants": {"flex": Price(input="0.5", output="1")}})
    asked = sent("chat", SPEAKS | {"service_tier": "flex"}, cheap)
    assert charge.of_plain(asked, Usage(9, 9, source="reported"), b"{}", "m").usage.variant == ""

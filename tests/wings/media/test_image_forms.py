"""Edits and variations of images, and streams of images, through a whole gateway."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import TYPE, form
from tests.fakes.scripted import Behaviour, answer, cut_stream, ok_json, raw
from tests.flows.gateway_process import Gateway, key, settings

EDITS, VARIATIONS, GENERATIONS = "/v1/images/edits", "/v1/images/variations", "/v1/images/generations"
ENDPOINTS = ["images", "image_edits", "image_variations"]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(300)
MODELS: dict[str, Any] = {
    "dall-e-2": {"endpoints": ENDPOINTS, "price": {"image": 0.02, "variants": {"auto-256x256": {"image": 0.016}}}},
    "gpt-image-1": {
        "endpoints": ENDPOINTS, "price": {"input": 5, "image_in": 10, "output": 40, "image_out": 40},
        "routes": [{"upstream": "main", "model": "gpt-image-1-2025"}],
    },
    "dall-e-3": {"endpoints": ["images"], "price": {"image": 0.04}},
}  # fmt: skip
USAGE = {
    "input_tokens": 50, "input_tokens_details": {"text_tokens": 10, "image_tokens": 40}, "output_tokens": 1000,
    "total_tokens": 1050,
}  # fmt: skip
TWO = {"created": 1, "data": [{"b64_json": "AAAA"}, {"b64_json": "BBBB", "revised_prompt": 'a {cat}, ["x"]'}]}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {name: {"routes": [{"upstream": "main"}], **rest} for name, rest in MODELS.items()}
    keys = [key("alice"), key("none", quotas=[{"usd": 0.001, "per": "month"}])]
    return start_shared_gateway(
        settings(shared_upstream.url, keys=keys, models=models, uploads={"memory_bytes": 50_000})
    )


def send(gateway: Gateway, path: str, body: bytes, who: str = "alice") -> Any:
    return gateway.post(path, body, key=who, headers=TYPE)


def charged(gateway: Gateway, got: Any) -> tuple[int, int, dict[str, int], str, Any]:
    row = gateway.call(got.headers["x-request-id"])
    return row["prompt_tokens"], row["completion_tokens"], row["units"], row["usage_source"], row["cost_usd"]


TOKENS = (50, 1000, {"image_in": 40, "image_out": 1000}, "reported", pytest.approx(10 * 5e-6 + 40 * 1e-5 + 0.04))


@pytest.mark.parametrize(
    ("path", "fields", "said", "expected"),
    [
        (EDITS, [("model", "dall-e-2"), ("image", PNG), ("prompt", "a hat"), ("n", "2")], TWO,
         (0, 0, {"images": 2}, "reported", pytest.approx(0.04))),
        (EDITS, [("model", "gpt-image-1"), ("image[]", PNG), ("image[]", PNG * 300), ("mask", PNG), ("prompt", "x")],
         TWO | {"usage": USAGE}, TOKENS),
        (VARIATIONS, [("image", PNG), ("model", "dall-e-2"), ("size", "256x256"), ("n", "2")], TWO,
         (0, 0, {"images": 2}, "reported", pytest.approx(0.032))),
    ],
)  # fmt: skip
def test_a_form_is_forwarded_as_it_is_and_charged(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, fields: Any, said: Any, expected: Any
) -> None:
    upstream.answer_with(ok_json(said))
    got = send(gateway, path, form(*fields))
    assert (got.status, got.json) == (200, said)
    (asked,) = upstream.requests
    routed = [(name, "gpt-image-1-2025" if value == "gpt-image-1" else value) for name, value in fields]
    assert (asked.path, asked.body) == (path, form(*routed))
    assert charged(gateway, got) == expected


def test_an_edit_may_be_json(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(TWO | {"usage": USAGE}))
    body = {"model": "gpt-image-1", "images": [{"image_url": "data:image/png;base64,AAAA"}], "prompt": "x"}
    got = gateway.post(EDITS, body)
    assert got.status == 200
    assert upstream.requests[0].json == body | {"model": "gpt-image-1-2025"}
    assert charged(gateway, got) == TOKENS


IMAGE, PROMPT = ("image", PNG), ("prompt", "x")


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        (EDITS, [IMAGE, PROMPT], "missing_required_parameter", "model"),
        (EDITS, [("model", "dall-e-2"), PROMPT], "missing_required_parameter", "image"),
        (EDITS, [("model", "dall-e-2"), IMAGE], "missing_required_parameter", "prompt"),
        (EDITS, [("model", "dall-e-2"), ("image", "x"), PROMPT], "invalid_type", "image[0]"),
        (EDITS, [("model", "dall-e-2"), *[("image[]", PNG)] * 17, PROMPT], "array_above_max_length", "image"),
        (EDITS, [("model", "dall-e-2"), IMAGE, PROMPT, ("n", "11")], "integer_above_max_value", "n"),
        (EDITS, [("model", "dall-e-2"), IMAGE, PROMPT, ("n", "1.5")], "invalid_type", "n"),
        (EDITS, [("model", "dall-e-2"), IMAGE, PROMPT, ("size", "big")], "invalid_value", "size"),
        (EDITS, [("model", "dall-e-2"), IMAGE, PROMPT, ("partial_images", "4")], "integer_above_max_value",
         "partial_images"),
        (EDITS, [("model", "dall-e-2"), IMAGE, ("image[]", PNG), PROMPT], "duplicate_parameter", "image"),
        (VARIATIONS, [("model", "dall-e-2")], "missing_required_parameter", "image"),
        (VARIATIONS, [("model", "dall-e-2"), ("image", b"")], "invalid_value", "image"),
    ],
)  # fmt: skip
def test_fields_are_checked_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, fields: Any, code: str, param: str
) -> None:
    got = send(gateway, path, form(*fields))
    assert (got.status, got.error["code"], got.error["param"]) == (400, code, param)
    assert upstream.requests == []


def test_a_model_without_the_endpoint_and_a_small_quota(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert send(gateway, EDITS, form(("model", "dall-e-3"), IMAGE, PROMPT)).status == 404
    got = send(gateway, EDITS, form(("model", "dall-e-2"), IMAGE, PROMPT), "none")
    assert (got.status, got.error["code"]) == (400, "quota_too_small")
    assert gateway.post(VARIATIONS, {"model": "dall-e-2"}).error["code"] == "unsupported_content_type"
    assert upstream.requests == []


PICTURE = base64.b64encode(bytes(range(256)) * 4000).decode()


def events(*said: Any) -> bytes:
    named = [(f"event: {each['type']}\n" if "type" in each else "").encode() for each in said]
    return b"".join(
        [name + b"data: " + json.dumps(each).encode() + b"\n\n" for name, each in zip(named, said, strict=1)]
    )


def stream(said: bytes) -> Behaviour:
    return answer(said, headers=[("Content-Type", "text/event-stream")])


def image_event(kind: str, picture: str = PICTURE, **more: Any) -> dict[str, Any]:
    return {"type": kind, "b64_json": picture, **more}


@pytest.mark.parametrize("picture", ["AAAA", PICTURE])
@pytest.mark.parametrize("path", [GENERATIONS, EDITS])
def test_a_stream_with_partial_images_is_charged_by_its_last_event(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, picture: str
) -> None:
    kind = "image_edit" if path == EDITS else "image_generation"
    partial = [image_event(f"{kind}.partial_image", picture, partial_image_index=n) for n in range(2)]
    said = events(*partial, image_event(f"{kind}.completed", picture, usage=USAGE))
    upstream.answer_with(stream(said))
    if path == EDITS:
        got = send(gateway, path, form(("model", "gpt-image-1"), IMAGE, PROMPT, ("stream", "true")))
    else:
        got = gateway.post(path, {"model": "gpt-image-1", "prompt": "x", "stream": True, "partial_images": 2})
    assert (got.status, got.headers["content-type"]) == (200, "text/event-stream")
    assert got.body == said
    assert charged(gateway, got) == TOKENS


@pytest.mark.parametrize("path", [GENERATIONS, EDITS])
def test_a_plain_answer_to_a_stream_is_written_as_events(
    gateway: Gateway, upstream: ScriptedUpstream, path: str
) -> None:
    """new-api drops `stream`, and OpenAI's SDKs read no JSON where they asked for events."""
    upstream.answer_with(ok_json({"created": 1, "data": [{"b64_json": "AAAA"}, {"b64_json": "BBBB"}], "usage": USAGE}))
    if path == EDITS:
        got = send(gateway, path, form(("model", "gpt-image-1"), IMAGE, PROMPT, ("stream", "true")))
    else:
        got = gateway.post(path, {"model": "gpt-image-1", "prompt": "x", "stream": True})
    kind = "image_edit.completed" if path == EDITS else "image_generation.completed"
    assert (got.status, got.headers["content-type"]) == (200, "text/event-stream")
    said = [json.loads(line[6:]) for line in got.body.splitlines() if line.startswith(b"data: ")]
    assert said == [image_event(kind, "AAAA"), image_event(kind, "BBBB", usage=USAGE)]
    assert charged(gateway, got) == TOKENS


@pytest.mark.parametrize("ends", [1, 2])
def test_each_image_of_a_stream_is_charged(gateway: Gateway, upstream: ScriptedUpstream, ends: int) -> None:
    said = events(*[image_event("image_generation.completed", "AAAA", usage=USAGE)] * ends)
    upstream.answer_with(stream(said + b"data: [DONE]\n\n"))
    got = gateway.post(GENERATIONS, {"model": "gpt-image-1", "prompt": "x", "stream": True, "n": 2})
    assert got.body == said
    assert charged(gateway, got)[:3] == (50 * ends, 1000 * ends, {"image_in": 40 * ends, "image_out": 1000 * ends})


def test_images_of_a_stream_without_a_report_are_counted(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream(events(image_event("image_generation.completed"))))
    got = gateway.post(GENERATIONS, {"model": "dall-e-2", "prompt": "x", "stream": True})
    assert charged(gateway, got)[2:] == ({"images": 1}, "reported", pytest.approx(0.02))


def test_a_stream_that_is_cut_inside_an_image_ends_with_an_error(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    said = events(image_event("image_generation.partial_image"), image_event("image_generation.completed"))
    upstream.answer_with(cut_stream([said[:-2_000]]))
    got = gateway.post(GENERATIONS, {"model": "dall-e-2", "prompt": "x", "stream": True})
    assert b'"error"' in got.body[-500:]
    row = gateway.call(got.headers["x-request-id"])
    assert (row["ended"], row["usage_source"], row["units"]) == ("error", "estimated", {"images": 1})


def test_a_plain_answer_of_tens_of_megabytes(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    big = {"created": 1, "data": [{"b64_json": PICTURE * 10}] * 2, "usage": USAGE}
    upstream.answer_with(
        ok_json(big), raw(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + b'{"data": [{"b64_json": "AAAAAA')
    )
    body = {"model": "gpt-image-1", "prompt": "x"}
    got = gateway.post(GENERATIONS, body)
    assert (got.status, got.json) == (200, big)
    assert charged(gateway, got) == TOKENS
    assert gateway.post(GENERATIONS, body).status == 502


@pytest.mark.parametrize("said", [[1], {"data": []}, {"error": {"message": "no", "type": "server_error"}}, "x"])
def test_answers_without_an_image(gateway: Gateway, upstream: ScriptedUpstream, said: Any) -> None:
    upstream.answer_with(ok_json(said))
    got = gateway.post(GENERATIONS, {"model": "dall-e-2", "prompt": "x"})
    assert got.status == (200 if said == {"data": []} else 502)

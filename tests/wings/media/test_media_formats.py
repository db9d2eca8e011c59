"""Images and speech through a whole gateway: checked, forwarded as they are, charged exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import mp3, ogg, wav
from tests.fakes.scripted import answer, error_json, ok_json, raw
from tests.flows.gateway_process import Gateway, key, secret, settings

ROUTES = [{"upstream": "main"}]
MODELS: dict[str, Any] = {
    "dall-e-3": {"endpoints": ["images"], "price": {"image": 0.04, "variants": {"hd-1024x1792": {"image": 0.12}}}},
    "gpt-image-1": {
        "endpoints": ["images"], "price": {"input": 5, "image_in": 10, "output": 40, "image_out": 40},
    },
    "tts-1": {"endpoints": ["speech"], "price": {"characters_per_million": 15}},
    "gpt-4o-mini-tts": {"endpoints": ["speech"], "price": {"input": 0.6, "audio_out": 12}, "unpriced": "allow"},
    "gpt-image-mini": {"endpoints": ["images"], "price": {"input": 2, "output": 8, "image_out": 8}},
    "unknown-tts": {"endpoints": ["speech"], "price": None, "unpriced": "allow"},
    "gpt-4o": {"endpoints": ["chat"], "max_output_tokens": 100},
}  # fmt: skip
CHAT = {"messages": [{"role": "user", "content": "x"}]}
WORDS = "Hello, wörld. " * 10


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {name: {"routes": ROUTES, **rest} for name, rest in MODELS.items()}
    keys = [
        key("alice"), key("narrow", models=["gpt-*"]), key("poor", quotas=[{"usd": 0.1, "per": "month"}]),
        key("none", quotas=[{"usd": 0.001, "per": "month"}]), key("speaker", quotas=[{"usd": 0.1, "per": "month"}]),
        key("curt", limits={"max_tokens": 10}),
    ]  # fmt: skip
    return start_shared_gateway(settings(shared_upstream.url, keys=keys, models=models))


def charged(gateway: Gateway, got: Any) -> tuple[int, int, dict[str, int], str, float | None]:
    row = gateway.call(got.headers["x-request-id"])
    return row["prompt_tokens"], row["completion_tokens"], row["units"], row["usage_source"], row["cost_usd"]


IMAGES = {"created": 1, "data": [{"b64_json": "AAAA"}, {"b64_json": "BBBB"}]}
IMAGE_USAGE = {
    "input_tokens": 30, "input_tokens_details": {"text_tokens": 10, "image_tokens": 20}, "output_tokens": 1000,
    "total_tokens": 1030,
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "upstream_path", "body", "said", "expected"),
    [
        ("/v1/images/generations", "/images/generations", {"model": "dall-e-3", "prompt": "a cat", "n": 3}, IMAGES,
         (0, 0, {"images": 2}, "reported", 0.08)),
        ("/v1/images/generations", "/images/generations",
         {"model": "dall-e-3", "prompt": "a cat", "n": 2, "quality": "hd", "size": "1024x1792"}, IMAGES,
         (0, 0, {"images": 2}, "reported", 0.24)),
        ("/v1/images/generations", "/images/generations", {"model": "gpt-image-1", "prompt": "a cat"},
         IMAGES | {"usage": IMAGE_USAGE}, (30, 1000, {"image_in": 20, "image_out": 1000}, "reported", 0.04025)),
    ],
)  # fmt: skip
def test_is_forwarded_as_it_is_and_charged(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, upstream_path: str, body: Any, said: Any, expected: Any
) -> None:
    upstream.answer_with(ok_json(said))
    given = json.dumps(body, indent=1)
    got = gateway.post(path, given.encode())
    assert (got.status, got.json) == (200, said)
    assert upstream.requests[0].path == f"/v1{upstream_path}"
    assert upstream.requests[0].body.decode() == given
    found = charged(gateway, got)
    assert found[:4] == expected[:4]
    assert found[4] == pytest.approx(expected[4])


def test_speech_is_passed_on_and_its_characters_are_charged(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    sound = bytes(range(256)) * 1000
    upstream.answer_with(answer(sound, headers=[("Content-Type", "audio/mpeg")]))
    got = gateway.post("/v1/audio/speech", {"model": "tts-1", "input": WORDS, "voice": "alloy"})
    assert (got.status, got.body, got.headers["content-type"]) == (200, sound, "audio/mpeg")
    assert charged(gateway, got) == (0, 0, {"characters": len(WORDS)}, "reported", pytest.approx(len(WORDS) * 15e-6))


AUDIO = [("Content-Type", "audio/mpeg")]
SPOKEN = {"model": "gpt-4o-mini-tts", "input": WORDS, "voice": "alloy"}
LETTERS = len(WORDS.encode())


@pytest.mark.parametrize(
    ("more", "sound", "tokens"),
    [
        ({"response_format": "pcm"}, bytes(48_000 * 2 + 1), 41),  # 2 s and a byte
        ({"response_format": "wav"}, wav(30), 600),
        ({}, mp3(1000), 522),  # 26.07 s
        ({"response_format": "opus"}, ogg(7), 140),
        ({"response_format": "aac"}, b"\xff\xf1" + bytes(50_000), int(1.5 * LETTERS) + 1),  # no length: by the text
        ({"speed": 0.5}, b"?" * 100, 3 * LETTERS + 1),
        ({"speed": 4}, b"?" * 100, int(1.5 * LETTERS) + 1),
        ({"response_format": "pcm", "stream_format": "sse"}, bytes(96_000), int(1.5 * LETTERS) + 1),
    ],
)
def test_speech_of_a_model_with_a_price_for_tokens_is_estimated(
    gateway: Gateway, upstream: ScriptedUpstream, more: Any, sound: bytes, tokens: int
) -> None:
    upstream.answer_with(answer(sound, headers=AUDIO))
    got = gateway.post("/v1/audio/speech", SPOKEN | more)
    assert (got.status, got.body) == (200, sound)
    prompt = -(-LETTERS // 4)
    cost = pytest.approx(prompt * 0.6e-6 + tokens * 12e-6)
    assert charged(gateway, got) == (prompt, tokens, {"audio_out": tokens}, "estimated", cost)


def test_speech_draws_its_audio_tokens_on_a_quota_of_money(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    sound = wav(150)  # 3,000 tokens: $0.036 of $0.10
    upstream.answer_with(*[answer(sound, headers=AUDIO)] * 4)
    body = SPOKEN | {"input": "x" * 2400}  # 3,601 tokens are reserved for it: $0.044
    assert [gateway.post("/v1/audio/speech", body, key="speaker").status for _ in range(3)] == [200, 200, 429]
    (row,) = [each for each in gateway.admin("quotas", key="speaker").json["data"] if each["unit"] == "usd"]
    assert (row["used"], row["reserved"]) == (pytest.approx(2 * (600 * 0.6e-6 + 3000 * 12e-6)), 0)


def test_speech_without_a_price_keeps_its_characters(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(wav(3), headers=AUDIO))
    got = gateway.post("/v1/audio/speech", SPOKEN | {"model": "unknown-tts"})
    assert charged(gateway, got) == (0, 0, {"characters": len(WORDS)}, "reported", None)


def test_images_without_a_report_are_estimated_where_only_tokens_have_a_price(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(*[ok_json(IMAGES)] * 2)
    body = {"model": "gpt-image-mini", "prompt": "a cat", "n": 2}
    tokens = 2 * 8192
    for who in ("alice", "curt"):  # max_tokens of a key limits text alone
        got = gateway.post("/v1/images/generations", body, key=who)
        cost = pytest.approx(2 * 2e-6 + tokens * 8e-6)
        assert charged(gateway, got) == (2, tokens, {"image_out": tokens}, "estimated", cost)


def test_speech_as_events_has_its_usage_in_the_last_one(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    done = {"type": "speech.audio.done", "usage": {"input_tokens": 20, "output_tokens": 500, "total_tokens": 520}}
    events = b'data: {"type": "speech.audio.delta", "audio": "AAAA"}\n\ndata: ' + json.dumps(done).encode() + b"\n\n"
    upstream.answer_with(answer(events, headers=[("Content-Type", "text/event-stream")]))
    body = {"model": "gpt-4o-mini-tts", "input": WORDS, "voice": {"id": "v"}, "stream_format": "sse"}
    got = gateway.post("/v1/audio/speech", body)
    assert got.body == events
    assert charged(gateway, got) == (20, 500, {"audio_out": 500}, "reported", pytest.approx(20 * 0.6e-6 + 500 * 12e-6))


def id_of(received: bytes) -> str:
    """The request id in the head of an answer."""
    return received.decode("latin-1").lower().partition("x-request-id: ")[2].split()[0]


def test_speech_that_breaks_off_ends_as_an_incomplete_message(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
    upstream.answer_with(raw(head + b"4\r\nAAAA\r\n", then_close=True))
    body = json.dumps({"model": "tts-1", "input": WORDS, "voice": "alloy"}).encode()
    with gateway.connect() as client:
        client.post("/v1/audio/speech", body, secret("alice"))
        received = client.read_until(b"AAAA\r\n")
        with pytest.raises(AssertionError, match="hung up after b''"):
            client.read(1)  # no error event inside audio, and no last chunk
    assert received.endswith(b"4\r\nAAAA\r\n")
    row = gateway.call(id_of(received))
    assert (row["ended"], row["truncated"], row["usage_source"]) == ("error", True, "estimated")
    assert row["units"] == {"characters": len(WORDS)}


def test_speech_of_a_token_price_that_breaks_off_is_charged_as_reserved(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nTransfer-Encoding: chunked\r\n\r\n"
    upstream.answer_with(raw(head + b"%x\r\n%b\r\n" % (len(wav(0.1)), wav(0.1)), then_close=True))
    with gateway.connect() as client:
        client.post("/v1/audio/speech", json.dumps(SPOKEN).encode(), secret("alice"))
        row = gateway.call(id_of(client.read_until(b"RIFF")))  # before the client closes its connection
    tokens = int(1.5 * LETTERS) + 1
    assert (row["ended"], row["usage_source"], row["completion_tokens"]) == ("error", "estimated", tokens)


def test_an_error_of_speech_is_json(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(error_json(400, message="no such voice", type="invalid_request_error", param="voice"))
    got = gateway.post("/v1/audio/speech", {"model": "tts-1", "input": "x", "voice": "nobody"})
    assert (got.status, got.error["param"]) == (400, "voice")
    row = gateway.call(got.headers["x-request-id"])
    assert (row["units"], row["usage_source"]) == ({}, "none")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/images/generations", {"prompt": "a cat"}, "model"),
        ("/v1/images/generations", {"model": "dall-e-3", "prompt": "a cat", "n": 11}, "n"),
        ("/v1/images/generations", {"model": "dall-e-3", "prompt": "a cat", "size": "big"}, "size"),
        ("/v1/images/generations", {"model": "dall-e-3", "prompt": "a cat", "stream": "yes"}, "stream"),
        ("/v1/images/generations", {"model": "dall-e-3", "prompt": ""}, "prompt"),
        ("/v1/audio/speech", {"model": "tts-1", "input": "x" * 4097, "voice": "v"}, "input"),
        ("/v1/audio/speech", {"model": "tts-1", "input": "x"}, "voice"),
        ("/v1/audio/speech", {"model": "tts-1", "input": "x", "voice": "v", "speed": 5}, "speed"),
    ],
)
def test_ranges_are_checked_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, body: Any, param: str
) -> None:
    got = gateway.post(path, body)
    assert (got.status, got.error["param"]) == (400, param)
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("who", "path", "body", "status", "code"),
    [
        ("narrow", "/v1/audio/speech", {"model": "tts-1", "input": "x", "voice": "v"}, 404, "model_not_found"),
        ("alice", "/v1/audio/speech", {"model": "gpt-4o", "input": "x", "voice": "v"}, 404, None),
        ("alice", "/v1/chat/completions", CHAT | {"model": "tts-1"}, 404, None),
        ("none", "/v1/images/generations", {"model": "dall-e-3", "prompt": "a cat"}, 400, "quota_too_small"),
        ("none", "/v1/audio/speech", {"model": "tts-1", "input": "x" * 4000, "voice": "v"}, 400, "quota_too_small"),
    ],
)  # fmt: skip
def test_is_refused_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, who: str, path: str, body: Any, status: int, code: str | None
) -> None:
    got = gateway.post(path, body, key=who)
    assert (got.status, got.error["code"]) == (status, code)
    assert upstream.requests == []


def test_a_money_quota_ends_exactly(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    image = {"created": 1, "data": [{"url": "https://example.org/1.png"}]}
    upstream.answer_with(*[ok_json(image)] * 2)
    body = {"model": "dall-e-3", "prompt": "a cat"}
    assert [gateway.post("/v1/images/generations", body, key="poor").status for _ in range(3)] == [200, 200, 429]
    (row,) = [each for each in gateway.admin("quotas", key="poor").json["data"] if each["unit"] == "usd"]
    assert (row["used"], row["reserved"]) == (pytest.approx(0.08), 0)

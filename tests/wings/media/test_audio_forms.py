"""Transcriptions and translations through a whole gateway: forms are checked, forwarded unchanged and charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import BOUNDARY, TYPE, form, part, recorded_webm, wav
from tests.fakes.scripted import Behaviour, answer, error_json, ok_json, raw, reset_without_answer
from tests.flows.gateway_process import Gateway, eventually, key, secret, settings

PATH = "/v1/audio/transcriptions"
SOUND = wav(2.5)
MODELS: dict[str, Any] = {
    "whisper-1": {"endpoints": ["transcriptions", "translations"], "price": {"audio_per_minute": 0.006}},
    "mini": {
        "endpoints": ["transcriptions"], "routes": [{"upstream": "main", "model": "a-much-longer-name"}],
        "price": {"input": 2.5, "audio_in": 6, "output": 10},
    },
    "twice": {
        "endpoints": ["transcriptions"], "routes": [{"upstream": "main", "priority": 1}, {"upstream": "other"}],
        "price": {"audio_per_hour": 0.36},
    },
    "short": {
        "endpoints": ["transcriptions"], "price": {"audio_per_hour": 0.36}, "limits": {"max_audio_s": 2},
    },
    "gpt-4o": {"endpoints": ["chat"], "max_output_tokens": 100},
}  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {name: {"routes": [{"upstream": "main"}], **rest} for name, rest in MODELS.items()}
    keys = [
        key("alice"), key("narrow", models=["gpt-*"]), key("poor", quotas=[{"usd": 0.0005, "per": "month"}]),
        key("none", quotas=[{"usd": 0.0001, "per": "month"}]), key("curt", limits={"deny": ["prompt"]}),
    ]  # fmt: skip
    upstreams = {"other": {"base_url": shared_upstream.url, "api_key": "sk-other-upstream-key"}}
    uploads = {"max_bytes": 3_000_000, "max_file_bytes": 2_500_000, "memory_bytes": 100_000, "timeout_s": 4}
    return start_shared_gateway(
        settings(shared_upstream.url, keys=keys, models=models, upstreams=upstreams, uploads=uploads)
    )


def send(gateway: Gateway, body: bytes, *, path: str = PATH, who: str = "alice", headers: dict[str, str] = TYPE) -> Any:
    return gateway.post(path, body, key=who, headers=headers)


def charged(gateway: Gateway, got: Any) -> tuple[int, int, dict[str, int], str, Any]:
    row = gateway.call(got.headers["x-request-id"])
    return row["prompt_tokens"], row["completion_tokens"], row["units"], row["usage_source"], row["cost_usd"]


TEXT = {"text": "Hello"}
TOKENS = {
    "type": "tokens", "input_tokens": 30, "input_token_details": {"audio_tokens": 25, "text_tokens": 5},
    "output_tokens": 10, "total_tokens": 40,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said", "expected"),
    [
        ([], TEXT | {"usage": {"type": "duration", "seconds": 3}}, (0, 0, {"audio_ms": 3000}, "reported", 0.0003)),
        ([], TEXT, (0, 0, {"audio_ms": 2500}, "reported", 0.00025)),
        ([("response_format", "verbose_json"), ("timestamp_granularities[]", "word")],
         TEXT | {"duration": "8.47"}, (0, 0, {"audio_ms": 8470}, "reported", 0.000847)),
        ([("temperature", "0.5"), ("language", "de"), ("stream", "false")], TEXT | {"duration": 60},
         (0, 0, {"audio_ms": 60000}, "reported", 0.006)),
        ([("unknown", "x")], TEXT | {"usage": TOKENS}, (0, 0, {"audio_ms": 2500}, "estimated", 0.00025)),
    ],
)  # fmt: skip
def test_a_form_is_forwarded_as_it_is_and_charged(
    gateway: Gateway, upstream: ScriptedUpstream, fields: Any, said: Any, expected: Any
) -> None:
    upstream.answer_with(ok_json(said))
    body = form(("file", SOUND), ("model", "whisper-1"), *fields)
    got = send(gateway, body)
    assert (got.status, got.json) == (200, said)
    (asked,) = upstream.requests
    assert (asked.path, asked.body) == ("/v1/audio/transcriptions", body)
    assert asked.headers["content-type"] == TYPE["Content-Type"]
    assert asked.headers["content-length"] == str(len(body))
    found = charged(gateway, got)
    assert found[:4] == expected[:4]
    assert found[4] == pytest.approx(expected[4])


@pytest.mark.parametrize("kind", ["text", "srt", "vtt"])
def test_text_is_charged_by_the_length_of_the_file(gateway: Gateway, upstream: ScriptedUpstream, kind: str) -> None:
    text = b"1\n00:00:00,000 --> 00:00:02,500\nHello\n"
    upstream.answer_with(answer(text, headers=[("Content-Type", "text/plain; charset=utf-8")]))
    got = send(gateway, form(("model", "whisper-1"), ("file", SOUND), ("response_format", kind)))
    assert (got.status, got.body, got.headers["content-type"]) == (200, text, "text/plain; charset=utf-8")
    assert charged(gateway, got) == (0, 0, {"audio_ms": 2500}, "reported", pytest.approx(0.00025))


def test_text_of_a_model_with_a_price_for_tokens_is_estimated(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(
        answer(b"Hello, world\n", headers=[("Content-Type", "text/plain")]), ok_json(TEXT), ok_json(TEXT)
    )
    fields = [("model", "mini"), ("file", SOUND)]
    got = send(gateway, form(*fields, ("response_format", "text")))
    assert charged(gateway, got) == (30, 6, {"audio_in": 30}, "estimated", pytest.approx(30 * 6e-6 + 6 * 10e-6))
    got = send(gateway, form(*fields, ("prompt", "Hello")))  # JSON without a report: five tokens of text a second
    cost = pytest.approx(2 * 2.5e-6 + 30 * 6e-6 + 15 * 10e-6)
    assert charged(gateway, got) == (32, 15, {"audio_in": 30}, "estimated", cost)


def test_the_length_of_a_file_without_one_is_estimated(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(TEXT))
    got = send(gateway, form(("model", "whisper-1"), ("file", b"?" * 30_000)))
    assert charged(gateway, got) == (0, 0, {"audio_ms": 15_000}, "estimated", pytest.approx(0.0015))


def test_a_recording_of_a_browser_has_a_length(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(TEXT))
    got = send(gateway, form(("model", "short"), ("file", recorded_webm(2))))  # the model allows 2 s
    assert charged(gateway, got)[2:4] == ({"audio_ms": 1980}, "reported")
    got = send(gateway, form(("model", "short"), ("file", recorded_webm(3))))
    assert (got.status, got.error["param"]) == (400, "file")
    assert "the file has 2.94 seconds" in got.error["message"]


def test_text_where_json_was_asked_for_is_no_answer(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    page = answer(b"<html>Log in</html>", headers=[("Content-Type", "text/html")])
    upstream.answer_with(answer(b"Hello"), page)
    assert send(gateway, form(("model", "whisper-1"), ("file", SOUND))).status == 502
    assert send(gateway, form(("model", "whisper-1"), ("file", SOUND), ("response_format", "text"))).status == 502


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b'"Hello"', b"7", "{}".encode("utf-16"), b'{"text": "\xff"}', b'{"text": NaN}', b"[" * 100_000],
)
def test_json_that_is_no_object_is_no_answer(gateway: Gateway, upstream: ScriptedUpstream, body: bytes) -> None:
    upstream.answer_with(answer(body, headers=[("Content-Type", "application/json")]))
    got = send(gateway, form(("model", "whisper-1"), ("file", SOUND)))
    assert (got.status, got.error["code"]) == (502, "upstream_error")
    assert gateway.call(got.headers["x-request-id"])["usage_source"] == "estimated"


def test_the_model_of_a_route_is_written_into_the_form(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(*[ok_json(TEXT | {"usage": TOKENS})] * 2)
    for fields in ([("model", "mini"), ("file", SOUND)], [("file", SOUND * 5), ("model", "mini"), ("prompt", "x")]):
        got = send(gateway, form(*fields))
        assert got.status == 200
        asked = upstream.requests[-1]
        assert asked.body == form(*[(name, "a-much-longer-name" if name == "model" else v) for name, v in fields])
        assert asked.headers["content-length"] == str(len(asked.body))
        expected = (30, 10, {"audio_in": 25}, "reported", pytest.approx(5 * 2.5e-6 + 25 * 6e-6 + 10 * 10e-6))
        assert charged(gateway, got) == expected


def test_another_route_gets_the_whole_form_again(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    body = form(("model", "twice"), ("file", wav(60)))
    upstream.answer_with(error_json(503), ok_json(TEXT))
    got = send(gateway, body)
    assert got.status == 200
    assert [asked.body == body for asked in upstream.requests] == [True, True]
    assert charged(gateway, got) == (0, 0, {"audio_ms": 60_000}, "reported", pytest.approx(0.006))


def test_an_upstream_that_refuses_inside_the_form_is_answered(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(error_json(400, message="no such language", type="invalid_request_error", param="language"))
    got = send(gateway, form(("model", "whisper-1"), ("file", wav(100)), ("language", "xx")))
    assert (got.status, got.error["param"]) == (400, "language")
    assert charged(gateway, got)[2:4] == ({}, "none")


def events(*said: Any) -> bytes:
    return b"".join([b"data: " + json.dumps(each).encode() + b"\n\n" for each in said])


def stream(said: bytes) -> Behaviour:
    return answer(said, headers=[("Content-Type", "text/event-stream")])


DELTA = {"type": "transcript.text.delta", "delta": "Hello"}
DONE = {"type": "transcript.text.done", "text": "Hello", "usage": TOKENS}


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"])
def test_a_stream_has_its_usage_in_the_last_event(gateway: Gateway, upstream: ScriptedUpstream, end: bytes) -> None:
    upstream.answer_with(stream(events(DELTA, DELTA, DONE) + end))
    got = send(gateway, form(("model", "mini"), ("file", SOUND), ("stream", "true")))
    assert (got.status, got.body) == (200, events(DELTA, DELTA, DONE))
    assert charged(gateway, got)[:4] == (30, 10, {"audio_in": 25}, "reported")


def test_a_stream_that_is_cut_ends_with_an_error(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    said = events(DELTA)
    upstream.answer_with(raw(head + f"{len(said):x}\r\n".encode() + said + b"\r\n", then_close=True))
    got = send(gateway, form(("model", "mini"), ("file", SOUND), ("stream", "true")))
    assert got.body.startswith(said)
    assert b'"error"' in got.body[len(said) :]
    row = gateway.call(got.headers["x-request-id"])
    assert (row["ended"], row["truncated"], row["usage_source"]) == ("error", True, "estimated")


def test_an_error_inside_a_stream_is_one_event(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    error = {"type": "error", "error": {"message": "overloaded", "type": "server_error", "code": None, "param": None}}
    upstream.answer_with(stream(events(DELTA, error)))
    got = send(gateway, form(("model", "mini"), ("file", SOUND), ("stream", "true")))
    assert got.body.startswith(events(DELTA))
    assert got.body.count(b'"error"') == 1


def test_translations_are_a_path_of_their_own(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(TEXT))
    body = form(("model", "whisper-1"), ("file", SOUND))
    got = send(gateway, body, path="/v1/audio/translations")
    assert (got.status, upstream.requests[0].path) == (200, "/v1/audio/translations")
    assert charged(gateway, got)[2] == {"audio_ms": 2500}
    assert send(gateway, body.replace(b"whisper-1", b"mini"), path="/v1/audio/translations").status == 404


FILE, MODEL = ("file", SOUND), ("model", "whisper-1")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ([FILE], "missing_required_parameter", "model"),
        ([MODEL], "missing_required_parameter", "file"),
        ([MODEL, ("file", "text")], "invalid_type", "file"),
        ([MODEL, ("file", b"")], "invalid_value", "file"),
        ([MODEL, FILE, FILE], "duplicate_parameter", "file"),
        ([MODEL, MODEL, FILE], "duplicate_parameter", "model"),
        ([MODEL, FILE, ("model[]", "x")], "duplicate_parameter", "model"),
        ([("model[]", "whisper-1"), FILE], "invalid_type", "model"),
        ([("model", b"whisper-1"), FILE], "invalid_type", "model"),
        ([MODEL, FILE, ("Model", "other")], "unknown_parameter", "Model"),
        ([MODEL, FILE, ("other", b"file")], "invalid_value", "other"),
        ([MODEL, FILE, ("temperature", "2")], "decimal_above_max_value", "temperature"),
        ([MODEL, FILE, ("temperature", "hot")], "invalid_type", "temperature"),
        ([MODEL, FILE, ("stream", "1")], "invalid_type", "stream"),
        ([MODEL, FILE, ("response_format", "docx")], "invalid_value", "response_format"),
        ([MODEL, FILE, ("timestamp_granularities[]", "hour")], "invalid_value", "timestamp_granularities[0]"),
        ([("model", "short"), FILE], "audio_too_long", "file"),
        ([("model", "short"), ("file", b"?" * 100)], "invalid_value", "file"),
    ],
)
def test_fields_are_checked_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, fields: Any, code: str, param: str
) -> None:
    got = send(gateway, form(*fields))
    assert (got.status, got.error["code"], got.error["param"]) == (400, code, param)
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("who", "fields", "status", "code"),
    [
        ("narrow", [MODEL, FILE], 404, "model_not_found"),
        ("alice", [("model", "gpt-4o"), FILE], 404, None),
        ("none", [MODEL, FILE], 400, "quota_too_small"),
        ("curt", [MODEL, FILE, ("prompt", "x")], 400, "unsupported_parameter"),
    ],
)
def test_is_refused_before_money_is_spent(
    gateway: Gateway, upstream: ScriptedUpstream, who: str, fields: Any, status: int, code: str | None
) -> None:
    got = send(gateway, form(*fields), who=who)
    assert (got.status, got.error["code"]) == (status, code)
    assert upstream.requests == []


def test_a_money_quota_ends_exactly(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(*[ok_json(TEXT)] * 2)
    body = form(MODEL, FILE)
    assert [send(gateway, body, who="poor").status for _ in range(3)] == [200, 200, 429]
    (row,) = [each for each in gateway.admin("quotas", key="poor").json["data"] if each["unit"] == "usd"]
    assert (row["used"], row["reserved"]) == (pytest.approx(0.0005), 0)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{}", {}, 400, "unsupported_content_type"),
        (form(MODEL, FILE), {"Content-Type": "multipart/form-data"}, 400, "invalid_form"),
        (form(MODEL, FILE), {"Content-Type": "multipart/mixed; boundary=x"}, 400, "unsupported_content_type"),
        (form(MODEL, FILE), {"Content-Type": "multipart/form-data; boundary=other"}, 400, "invalid_form"),
        (form(MODEL, FILE), TYPE | {"Content-Encoding": "gzip"}, 400, "unsupported_content_encoding"),
        (form(MODEL, FILE)[:-9], TYPE, 400, "invalid_form"),
        (form(MODEL, *[(f"f{n}", "x") for n in range(5000)]), TYPE, 400, "invalid_form"),
        (form(MODEL, ("file", bytes(2_600_000))), TYPE, 413, None),
        (form(MODEL, ("file", bytes(2_000_000)), ("more", bytes(2_000_000))), TYPE, 413, None),
        (part("file", SOUND, "X: " + "y" * 100_000) + form(MODEL), TYPE, 400, "invalid_form"),
    ],
)
def test_a_bad_form_is_refused(
    gateway: Gateway, upstream: ScriptedUpstream, body: bytes, headers: Any, status: int, code: str | None
) -> None:
    got = send(gateway, body, headers=headers)
    assert (got.status, got.error["code"]) == (status, code)
    assert upstream.requests == []


def test_a_gigabyte_is_refused_on_its_announced_length(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(head("Content-Length: 1073741824", "Expect: 100-continue"))
        assert client.read_head().status == 413
    with gateway.connect() as client:
        client.send(head("Transfer-Encoding: chunked") + b"400000\r\n" + part("file", bytes(2_700_000)))
        assert client.read_head().status == 413


def head(*lines: str) -> bytes:
    received = [
        f"POST {PATH} HTTP/1.1", "Host: gateway", f"Authorization: Bearer {secret('alice')}",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}", *lines, "", "",
    ]  # fmt: skip
    return "\r\n".join(received).encode()


def test_a_form_that_does_not_arrive_is_refused(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(head("Content-Length: 5000") + part("file", SOUND[:100])[:-2])
        assert client.read_head().status == 408
    assert upstream.requests == []


def test_a_client_that_leaves_in_the_form_leaves_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(head("Content-Length: 2000000") + part("file", bytes(500_000))[:-2])
        eventually(lambda: stored_files(gateway))
    eventually(lambda: not stored_files(gateway))
    assert upstream.requests == []


def stored_files(gateway: Gateway) -> list[str]:
    """Temporary files that its processes have open."""
    found = []
    for pid in gateway.workers():
        for each in Path(f"/proc/{pid}/fd").iterdir():
            try:
                name = str(each.readlink())
            except OSError:
                continue
            if "(deleted)" in name and "/tmp" in name and gateway.folder.name in name:
                found.append(name)
    return found


def test_no_temporary_file_outlives_its_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    body = form(MODEL, ("file", wav(60)))
    upstream.answer_with(ok_json(TEXT), error_json(400), raw(b"nonsense\r\n\r\n"), reset_without_answer)
    assert [send(gateway, body).status for _ in range(4)] == [200, 400, 502, 502]
    assert stored_files(gateway) == []

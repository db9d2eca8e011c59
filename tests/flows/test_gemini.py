"""Gemini's native API through a whole gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, answer, chunk, cut_stream, ok_json, raw

from .client import Answer
from .gateway_process import CHAT, UPSTREAM_KEY, Gateway, key, model, secret, settings

RECORDED = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parents[1] / "recorded/gemini").glob("*"))}
GEMINI = "gemini-under-test"
MAPPED = "mapped"
USAGE = {
    "promptTokenCount": 1200, "candidatesTokenCount": 18, "thoughtsTokenCount": 61, "toolUsePromptTokenCount": 40,
    "cachedContentTokenCount": 1024, "totalTokenCount": 1319,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 942}, {"modality": "IMAGE", "tokenCount": 258}],
    "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 18}],
}  # fmt: skip
GENERATED = {
    "candidates": [
        {
            "content": {"parts": [{"text": "Hello!"}], "role": "model"}, "finishReason": "STOP", "index": 0,
            "groundingMetadata": {"webSearchQueries": ["a", "b"]},
        }
    ],
    "usageMetadata": USAGE, "modelVersion": "gemini-2.5-flash", "responseId": "r",
}  # fmt: skip
SEEN = {
    "prompt_tokens": 1240, "completion_tokens": 79, "cached_tokens": 1024, "reasoning_tokens": 61,
    "units": {"image_in": 216, "web_searches": 1}, "usage_source": "reported",
}  # fmt: skip
CONTENTS = [{"role": "user", "parts": [{"text": "Hi"}]}]


def gemini_model(upstream: str = "main", **more: Any) -> dict[str, Any]:
    return model("generate_content", upstream, **more)


def gemini_settings(url: str, **changes: Any) -> dict[str, Any]:
    """A gateway before an upstream that has Gemini's API."""
    able = {"capabilities": {"generate_content": True}, "key_header": "x-goog-api-key"}
    plain = settings(url, upstreams={"main": able})
    mapped = gemini_model(routes=[{"upstream": "main", "model": "models tuned/gemini x"}])
    plain["models"] = {GEMINI: gemini_model(), MAPPED: mapped, CHAT: model("chat")}
    return plain | {"aliases": {"fast": GEMINI}} | changes


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [
        key("alice"), key("spent", quotas=[{"requests": 1, "per": "day"}]),
        key("paced", quotas=[{"requests": 1, "per": "minute"}]),
        key("counted", quotas=[{"tokens": 1_000_000, "per": "day"}]),
        key("bound", limits={"max_tokens": 64, "deny": ["topK", "tools"], "stop": 1, "n": 2}),
        key("few", models=["mapped"]),
    ]  # fmt: skip
    return start_shared_gateway(gemini_settings(shared_upstream.url, keys=keys))


def post(gateway: Gateway, method: str = "generateContent", who: str = "alice", **changes: Any) -> Answer:
    """A small call. Members that are None are left out."""
    name, version = changes.pop("model", GEMINI), changes.pop("version", "v1beta")
    members = {"contents": CONTENTS} | changes
    given = {name: value for name, value in members.items() if value is not None}
    headers = {"x-goog-api-key": secret(who)}
    return gateway.post(f"/{version}/models/{name}:{method}", given, key=None, headers=headers)


def received(answer: Answer) -> tuple[int, str, str]:
    """What an error says: status, name, message. Its shape has to be Google's."""
    assert list(answer.json) == ["error"], answer
    error = answer.json["error"]
    assert sorted(error) == ["code", "details", "message", "status"]
    assert error["code"] == answer.status
    return answer.status, error["status"], error["message"]


def detail(answer: Answer, kind: str) -> dict[str, Any]:
    """The one detail of this kind of an error."""
    (found,) = [each for each in answer.json["error"]["details"] if each["@type"].endswith(f".{kind}")]
    return found


def used(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    """What its record says."""
    call = gateway.call(answer.id)
    return {name: call[name] for name in SEEN}


@pytest.mark.parametrize("version", ["v1beta", "v1"])
def test_plain_answer_is_passed_on_and_charged(gateway: Gateway, upstream: ScriptedUpstream, version: str) -> None:
    body = json.dumps(GENERATED).encode()
    upstream.answer_with(answer(body))
    got = post(gateway, version=version)
    assert (got.status, got.body) == (200, body)
    assert used(gateway, got) == SEEN
    call = gateway.call(got.id)
    assert (call["endpoint"], call["model"], call["returned_model"]) == (
        "generate_content", GEMINI, "gemini-2.5-flash",
    )  # fmt: skip


def test_request_goes_up_as_it_came_without_the_key(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(GENERATED))
    body = b'{ "contents":[{"parts":[{"text":"\\u0048i"}]}],  "new": {"a":1.50}, "generation_config":{"top_p": 0.50} }'
    path = f"/v1beta/models/{GEMINI}:generateContent?key={secret('alice')}&prettyPrint=true"
    got = gateway.post(path, body, key=None, headers={"x-goog-api-client": "google-genai-sdk/3.4.0"})
    assert got.status == 200
    request = upstream.requests[0]
    assert (request.path, request.body) == (f"/v1/models/{GEMINI}:generateContent", body)
    assert request.headers["x-goog-api-key"] == UPSTREAM_KEY
    assert "authorization" not in request.headers
    assert request.headers["x-goog-api-client"] == "google-genai-sdk/3.4.0"
    assert secret("alice") not in request.head.decode()
    assert secret("alice") not in gateway.stdout + gateway.stderr


@pytest.mark.parametrize(("name", "sent"), [("fast", GEMINI), (MAPPED, "models%20tuned/gemini%20x")])
def test_model_of_the_path_is_mapped(gateway: Gateway, upstream: ScriptedUpstream, name: str, sent: str) -> None:
    upstream.answer_with(ok_json(GENERATED))
    assert post(gateway, model=name).status == 200
    assert upstream.requests[0].path == f"/v1/models/{sent}:generateContent"
    assert upstream.requests[0].json == {"contents": CONTENTS}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", (8, 9, 0, 0, {}, "reported")),
        ("thinking-and-tool", (120, 79, 0, 61, {}, "reported")),
        ("cached-and-searched", (5540, 6, 4096, 0, {"web_searches": 1}, "reported")),
        ("two-candidates", (4, 4, 0, 0, {}, "reported")),
        ("blocked", (11, 0, 0, 0, {}, "reported")),
        ("audio-in-image-out", (300, 1292, 0, 0, {"audio_in": 256, "image_out": 1290}, "reported")),
        ("empty-chunk-after-the-end", (3, 2, 0, 0, {}, "reported")),
        ("fewer-candidates", (3, 3, 0, 0, {}, "reported")),
        ("no-blank-line-at-the-end", (8, 2, 0, 0, {}, "reported")),
        ("reseller", (8, 2, 0, 0, {}, "reported")),
    ],
)
def test_stream_is_passed_on_and_charged(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, expected: tuple[Any, ...]
) -> None:
    upstream.answer_with(raw(CHUNKED + chunk(RECORDED[name]) + b"0\r\n\r\n"))
    choices = 2 if name in ("two-candidates", "fewer-candidates") else 1
    got = post(gateway, "streamGenerateContent?alt=sse", generationConfig={"candidateCount": choices})
    assert upstream.requests[0].path == f"/v1/models/{GEMINI}:streamGenerateContent?alt=sse"
    assert got.headers["content-type"] == "text/event-stream"
    assert chunks(got.body) == chunks(RECORDED[name].replace(b"data: [DONE]\n\n", b""))
    if name not in ("reseller", "no-blank-line-at-the-end"):
        assert got.body == RECORDED[name]
    assert b": ping" not in got.body
    assert b"[DONE]" not in got.body
    assert tuple(used(gateway, got).values()) == expected


def chunks(body: bytes) -> list[Any]:
    """The data of a stream's events."""
    lines = body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("query", ["", "?alt=json", f"?key={secret('alice')}"])
def test_stream_without_events_is_one_array(gateway: Gateway, upstream: ScriptedUpstream, query: str) -> None:
    upstream.answer_with(raw(CHUNKED + chunk(RECORDED["text"]) + b"0\r\n\r\n"))
    got = post(gateway, f"streamGenerateContent{query}")
    assert got.headers["content-type"] == "application/json; charset=UTF-8"
    assert got.json == chunks(RECORDED["text"])
    assert upstream.requests[0].path == f"/v1/models/{GEMINI}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize("query", ["?alt=sse", ""])
def test_a_long_chunk_is_read_on_its_way(gateway: Gateway, upstream: ScriptedUpstream, query: str) -> None:
    picture = {"inlineData": {"mimeType": "image/png", "data": "iVBOR\\/" * 60_000}}
    candidate = {"content": {"parts": [picture]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 1290}
    usage["candidatesTokensDetails"] = [{"modality": "IMAGE", "tokenCount": 1290}]  # type: ignore[assignment]
    long = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}
    text = b"data: " + json.dumps(long).encode() + b"\r\n\r\n"
    upstream.answer_with(raw(CHUNKED + chunk(text[:70_000]) + chunk(text[70_000:]) + b"0\r\n\r\n"))
    got = post(gateway, f"streamGenerateContent{query}")
    assert (chunks(got.body) if query else got.json) == [long]
    assert tuple(used(gateway, got).values()) == (5, 1290, 0, 0, {"image_out": 1290}, "reported")
    assert gateway.call(got.id)["returned_model"] == "m"


def test_output_limit_is_added_where_tokens_are_counted(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    for config, expected in (
        (None, {"generationConfig": {"maxOutputTokens": 4096}}),
        ({"topP": 0.5}, {"generationConfig": {"topP": 0.5, "maxOutputTokens": 4096}}),
        ({"maxOutputTokens": 7}, {"generationConfig": {"maxOutputTokens": 7}}),
    ):
        upstream.answer_with(ok_json(GENERATED))
        assert post(gateway, who="counted", generationConfig=config).status == 200
        sent = upstream.requests[0].json
        assert {name: value for name, value in sent.items() if name != "contents"} == expected
    upstream.answer_with(ok_json(GENERATED))
    assert post(gateway, who="bound", generation_config={"top_p": 0.5}).status == 200
    assert upstream.requests[0].json["generation_config"] == {"top_p": 0.5, "maxOutputTokens": 64}


def test_a_long_configuration_of_a_large_body_is_read_and_kept(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    schema = {"type": "OBJECT", "description": "x" * 10_000}
    contents = [{"parts": [{"text": "y" * 100_000}]}]
    upstream.answer_with(ok_json(GENERATED))
    got = post(gateway, who="bound", contents=contents, generationConfig={"responseSchema": schema})
    assert got.status == 200
    assert upstream.requests[0].json["generationConfig"] == {"responseSchema": schema, "maxOutputTokens": 64}
    over = {"responseSchema": schema, "maxOutputTokens": 65}
    assert received(post(gateway, who="bound", contents=contents, generationConfig=over))[:2] == (
        400,
        "INVALID_ARGUMENT",
    )


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"contents": None}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": "Hi"}, "contents"),
        ({"generationConfig": {"candidateCount": 9}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"candidate_count": 0}}, "generationConfig.candidateCount"),
        ({"generation_config": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"maxOutputTokens": "100"}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"stopSequences": list("abcdef")}}, "generationConfig.stopSequences"),
        ({"generationConfig": {"temperature": 2.5}}, "generationConfig.temperature"),
        ({"generationConfig": {"MaxOutputTokens": 5}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"maxOutputTokens": 5, "max_output_tokens": 9}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {}, "generation_config": {}}, "generationConfig"),
        ({"GenerationConfig": {}}, "generationConfig"),
        ({"cachedContent": "cachedContents/x"}, "cachedContent"),
        ({"cached_content": "cachedContents/x"}, "cachedContent"),
        ({"contents": [{"parts": [{"file_data": {"file_uri": "files/x"}}]}]}, "fileData"),
    ],
)
def test_faults_of_a_request_cost_nothing(
    gateway: Gateway, upstream: ScriptedUpstream, members: dict[str, Any], param: str
) -> None:
    upstream.answer_with()
    got = post(gateway, **members)
    assert received(got)[:2] == (400, "INVALID_ARGUMENT")
    assert detail(got, "BadRequest")["fieldViolations"][0]["field"] == param


def test_a_body_names_no_model(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with()
    body = {"model": "models/other", "contents": CONTENTS}
    for method in ("generateContent", "countTokens"):
        got = gateway.post(f"/v1beta/models/{GEMINI}:{method}", body)
        assert received(got)[:2] == (400, "INVALID_ARGUMENT")
        assert detail(got, "BadRequest")["fieldViolations"][0]["field"] == "model"


@pytest.mark.parametrize(
    "members",
    [
        {"generationConfig": {"maxOutputTokens": 65}}, {"generation_config": {"max_output_tokens": 65}},
        {"generationConfig": {"candidateCount": 3}}, {"generationConfig": {"candidate_count": 3}},
        {"generationConfig": {"stopSequences": ["a", "b"]}}, {"generationConfig": {"stop_sequences": ["a", "b"]}},
        {"generationConfig": {"topK": 3}}, {"generationConfig": {"top_k": 3}}, {"tools": [{"googleSearch": {}}]},
    ],
)  # fmt: skip
def test_limits_of_a_key_hold(gateway: Gateway, upstream: ScriptedUpstream, members: dict[str, Any]) -> None:
    upstream.answer_with()
    assert received(post(gateway, who="bound", **members))[:2] == (400, "INVALID_ARGUMENT")


# --------------------------------------------------------------------------------------------------------------- errors


def test_errors_of_the_gateway_have_the_shape_of_the_api(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with()
    assert received(post(gateway, model="gemini-unknown"))[:2] == (404, "NOT_FOUND")
    assert received(post(gateway, model="a/../b"))[:2] == (404, "NOT_FOUND")
    assert received(post(gateway, model="a%2F..%2Fb"))[:2] == (404, "NOT_FOUND")
    assert received(post(gateway, model=CHAT))[:2] == (404, "NOT_FOUND")
    assert received(post(gateway, who="few"))[:2] == (404, "NOT_FOUND")
    path = f"/v1beta/models/{GEMINI}:generateContent"
    assert received(gateway.post(path, b"{}", key=None))[:2] == (401, "UNAUTHENTICATED")
    assert received(gateway.post(f"{path}?key=sk-wrong", b"{}", key=None))[:2] == (401, "UNAUTHENTICATED")
    assert received(gateway.post(f"{path}?key=sk-other", b"{}"))[:2] == (401, "UNAUTHENTICATED")
    for root in ("/v1beta", "/v1"):
        answer = gateway.post(f"{root}/models/{GEMINI}:predict", {}, headers={"x-goog-api-key": secret("alice")})
        status, name, message = received(answer)
        assert (status, name) == (404, "NOT_FOUND")
        assert "it has generateContent, streamGenerateContent, countTokens, embedContent" in message
    assert received(gateway.send("GET", "/v1beta/files"))[:2] == (404, "NOT_FOUND")
    assert received(gateway.send("DELETE", "/v1beta/models"))[:2] == (405, "UNIMPLEMENTED")


def test_a_spent_quota_is_final_and_a_rate_says_when(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(GENERATED), ok_json(GENERATED))
    assert post(gateway, who="spent").status == 200
    got = post(gateway, who="spent")
    assert received(got)[:2] == (429, "RESOURCE_EXHAUSTED")
    assert detail(got, "QuotaFailure")["violations"][0]["quotaId"].endswith("PerDay")
    assert post(gateway, who="paced").status == 200
    got = post(gateway, "streamGenerateContent?alt=sse", who="paced")
    assert received(got)[:2] == (429, "RESOURCE_EXHAUSTED")
    delay = detail(got, "RetryInfo")["retryDelay"]
    assert delay.endswith("s")
    assert 0 < float(delay[:-1]) <= 60


GOOGLE_ERRORS = {
    "INVALID_ARGUMENT": (400, "Invalid value", (400, "INVALID_ARGUMENT")),
    "API_KEY_INVALID": (400, "API key not valid. Please pass a valid API key.", (502, "UNAVAILABLE")),
    "FAILED_PRECONDITION": (400, "User location is not supported for the API use.", (502, "UNAVAILABLE")),
    "PERMISSION_DENIED": (403, "Denied", (502, "UNAVAILABLE")),
    "NOT_FOUND": (404, "models/x is not found for API version v1beta", (404, "NOT_FOUND")),
    "RESOURCE_EXHAUSTED": (429, "You exceeded your current quota", (429, "RESOURCE_EXHAUSTED")),
    "INTERNAL": (500, "An internal error has occurred.", (502, "UNAVAILABLE")),
    "UNAVAILABLE": (503, "The model is overloaded.", (503, "UNAVAILABLE")),
}


def google_error(status: int, name: str, message: str) -> dict[str, Any]:
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.5s"}
    return {"error": {"code": status, "message": message, "status": name, "details": [retry]}}


METHODS = ("generateContent", "streamGenerateContent")


@pytest.fixture(scope="module")
def failing_gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """A model and an upstream for each error of each method: one that fails is not asked again for a while."""
    names = [f"{method}-{kind}" for method in METHODS for kind in GOOGLE_ERRORS]
    able = gemini_settings(shared_upstream.url)["upstreams"]["main"]
    upstreams = dict.fromkeys(names, able)
    models = {name: gemini_model(name, max_attempts=1) for name in names}
    return start_shared_gateway(gemini_settings(shared_upstream.url, upstreams=upstreams, models=models, aliases={}))


@pytest.mark.parametrize("kind", sorted(GOOGLE_ERRORS))
@pytest.mark.parametrize("method", METHODS)
def test_errors_of_the_upstream(failing_gateway: Gateway, upstream: ScriptedUpstream, kind: str, method: str) -> None:
    status, message, expected = GOOGLE_ERRORS[kind]
    body = google_error(status, kind, message)
    upstream.answer_with(answer(json.dumps([body] if method[0] == "s" else body).encode(), status))
    got = post(failing_gateway, method, model=f"{method}-{kind}")
    assert received(got)[:2] == expected
    if status == 429:
        assert detail(got, "RetryInfo")["retryDelay"] == "45.5s"


# -------------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("query", ["?alt=sse", ""])
@pytest.mark.parametrize("name", ["error-in-stream", "ended-early"])
def test_a_stream_that_breaks_ends_with_an_error(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, query: str
) -> None:
    upstream.answer_with(raw(CHUNKED + chunk(RECORDED[name]) + b"0\r\n\r\n"))
    got = post(gateway, f"streamGenerateContent{query}")
    *before, last = chunks(got.body) if query else got.json
    assert before == [each for each in chunks(RECORDED[name]) if "error" not in each]
    assert (last["error"]["code"], last["error"]["status"]) in ((502, "UNAVAILABLE"), (503, "UNAVAILABLE"))
    assert b"overloaded" not in got.body
    call = gateway.call(got.id)
    assert (call["prompt_tokens"], call["usage_source"], call["truncated"]) == (8, "estimated", True)
    assert call["completion_tokens"] >= 1


def test_a_connection_that_breaks_ends_with_an_error(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(cut_stream([RECORDED["ended-early"]]))
    assert "error" in chunks(post(gateway, "streamGenerateContent?alt=sse").body)[-1]


def test_an_error_before_the_first_chunk_has_its_status(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    gateway = start_gateway(gemini_settings(upstream.url, models={GEMINI: gemini_model(max_attempts=1)}, aliases={}))
    error = b"data: " + json.dumps(google_error(503, "UNAVAILABLE", "overloaded")).encode() + b"\r\n\r\n"
    upstream.answer_with(always=raw(CHUNKED + chunk(error) + b"0\r\n\r\n"))
    got = post(gateway, "streamGenerateContent?alt=sse")
    assert received(got)[1] == "UNAVAILABLE"
    assert gateway.call(got.id)["completion_tokens"] == 0


def test_a_plain_answer_where_a_stream_was_asked_for_becomes_one(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(GENERATED), ok_json(GENERATED))
    assert chunks(post(gateway, "streamGenerateContent?alt=sse").body) == [GENERATED]
    assert post(gateway, "streamGenerateContent").json == [GENERATED]


# -------------------------------------------------------------------------------------------------- tokens and models


def test_tokens_are_counted_as_a_request_without_tokens(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"totalTokens": 14}))
    got = post(gateway, "countTokens", model=MAPPED, contents=None, generateContentRequest={
        "model": f"models/{MAPPED}", "contents": CONTENTS,
    })  # fmt: skip
    assert (got.status, got.json) == (200, {"totalTokens": 14})
    assert upstream.requests[0].path == "/v1/models/models%20tuned/gemini%20x:countTokens"
    assert upstream.requests[0].json["generateContentRequest"]["model"] == "models/models tuned/gemini x"
    call = gateway.call(got.id)
    assert (call["endpoint"], call["prompt_tokens"], call["completion_tokens"]) == ("count_content_tokens", 0, 0)


def test_models_are_listed_in_the_shape_that_the_client_knows(gateway: Gateway) -> None:
    google = {"x-goog-api-key": secret("alice")}
    shown = gateway.send("GET", "/v1beta/models?pageSize=2", key=None, headers=google).json
    assert [each["name"] for each in shown["models"]] == ["models/fast", f"models/{GEMINI}"]
    rest = gateway.send("GET", f"/v1beta/models?pageToken={shown['nextPageToken']}", key=None, headers=google).json
    assert [each["name"] for each in rest["models"]] == [f"models/{MAPPED}"]
    assert "nextPageToken" not in rest
    for path in ("/v1/models", f"/v1/models?key={secret('alice')}", f"/v1beta/models?key={secret('alice')}"):
        headers = {} if "key=" in path else google
        listed = gateway.send("GET", path, key=None, headers=headers).json["models"]
        assert listed[0]["supportedGenerationMethods"] == ["generateContent", "countTokens"]
    one = gateway.send("GET", f"/v1beta/models/{GEMINI}", key=None, headers=google).json
    assert one["name"] == f"models/{GEMINI}"
    assert gateway.get("/v1/models").json["object"] == "list"
    assert received(gateway.send("GET", "/v1beta/models?pageSize=x", key=None, headers=google))[0] == 400

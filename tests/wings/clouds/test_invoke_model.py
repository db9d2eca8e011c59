"""Messages in the form of Bedrock's InvokeModel, held against botocore's decoder and its model of the service."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.eventstream import EventStreamBuffer
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import EventStreamJSONParser

from gateway.api.large_body import LARGE_BYTES
from gateway.errors import GatewayError, NotFound
from gateway.formats import sse
from gateway.formats.table import FORMATS
from gateway.wings.clouds import invoke_model
from gateway.wings.clouds.invoke_model import EXCEPTIONS, KINDS, BinaryEvents
from tests.fakes.scripted import Behaviour, Scripted, cut_stream, error_json, ok_json, stream
from tests.web.conftest import ADMIN_TOKEN, AUTH, KEY, Inside

from .fakes import message_events, message_of, plain_message

BODY: dict[str, Any] = {
    "anthropic_version": "bedrock-2023-05-31", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}],
}  # fmt: skip
EVENTS = message_events("naïve\n text")
SSE = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in EVENTS]
MODEL = "/model/m/invoke"
STREAM = "/model/m/invoke-with-response-stream"


def service() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))


def decoded(data: bytes) -> list[Any]:
    """The events of a stream, and its exceptions as (kind, text), as botocore reads them and checks their sums."""
    buffer, parser, found = EventStreamBuffer(), EventStreamJSONParser(), []
    shape = service().shape_for("ResponseStream")
    buffer.add_data(data)
    for message in buffer:
        read = message.to_response_dict()
        parsed = parser.parse(read, shape)
        if read["status_code"] == 200:
            found.append(json.loads(parsed["chunk"]["bytes"]))
        else:
            found.append((parsed["Error"]["Code"], parsed["Error"]["Message"]))
    assert buffer._data == b"", "a part of a message is left"
    return found


# ------------------------------------------------------------------------------------------------------------ framing


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_events_are_messages_in_whatever_pieces_they_come(size: int) -> None:
    framing, whole = BinaryEvents(), b": a comment\n\n" + b"".join(SSE)
    data = b"".join([framing.write(whole[at : at + size]) for at in range(0, len(whole), size)]) + framing.end()
    assert decoded(data) == EVENTS


def test_a_message_is_written_as_in_the_other_direction() -> None:
    headers = ((":event-type", "chunk"), (":message-type", "event"))
    assert invoke_model.message_of(headers, b"{}") == message_of(headers, b"{}")


def test_a_long_event_is_one_message() -> None:
    event = {"type": "x", "text": "y" * 3 * sse.LONG_EVENT}
    assert decoded(BinaryEvents().write(sse.typed_event(event))) == [event]


def test_an_event_that_no_message_can_hold_ends_the_stream() -> None:
    framing = BinaryEvents(longest=100)
    data = framing.write(SSE[0] + sse.typed_event({"type": "x", "text": "y" * 300}) + SSE[1])
    ((kind, _),) = decoded(data)
    assert kind == "modelStreamErrorException"


@pytest.mark.parametrize("name", [*EXCEPTIONS, "api_error", "no_such_error"])
def test_an_error_is_an_exception_that_ends_the_stream(name: str) -> None:
    error = sse.typed_event({"type": "error", "error": {"type": name, "message": "Töo much"}})
    kind = EXCEPTIONS.get(name, "internalServerException")
    assert decoded(BinaryEvents().write(SSE[0] + error + SSE[1])) == [EVENTS[0], (kind, "Töo much")]


def test_a_text_about_errors_is_no_error() -> None:
    events = [{"type": "x", "error": "error"}, {"type": "error"}]
    assert decoded(BinaryEvents().write(b"".join(map(sse.typed_event, events))))[0] == events[0]


def test_the_kinds_are_those_that_botocore_knows() -> None:
    known = service()
    assert {*EXCEPTIONS.values(), "internalServerException", "modelStreamErrorException"} <= known.shape_for(
        "ResponseStream"
    ).members.keys()
    shapes = {shape.name for shape in known.operation_model("InvokeModel").error_shapes}
    assert {*KINDS.values(), "ValidationException", "InternalServerException"} - shapes == {
        "UnrecognizedClientException"  # of every service (AWS, "Common error types")
    }


# -------------------------------------------------------------------------------------------------------------- calls


async def serve(
    inside: Inside, *behaviours: Behaviour, path: str = MODEL, body: Any = BODY, headers: dict[str, str] = AUTH,
    **settings: Any,
) -> tuple[int, dict[str, str], bytes, list[Any]]:  # fmt: skip
    """One call: status, headers and body of its answer, and the requests at the upstream, which has Anthropic's API."""
    with Scripted(*behaviours) as upstream:
        own = {"base_url": upstream.url, "api_key": "k", "capabilities": {"messages": True}}
        client = await inside(upstream.url, upstreams={"up": own}, **settings)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with client.post(path, data=data, headers={"Content-Type": "application/json", **headers}) as got:
            try:
                read = await got.read()
            except Exception as error:
                read = type(error).__name__.encode()
        answered = {name.lower(): value for name, value in got.headers.items()}
        return got.status, answered, read, list(upstream.requests)


async def test_a_call_is_one_of_anthropics_own_api(inside: Inside) -> None:
    body = {"anthropic_beta": ["a-1", "b-2"], **BODY, "metadata": {"user_id": "u"}}
    status, headers, read, (sent,) = await serve(inside, ok_json(plain_message()), body=body)
    assert (status, json.loads(read)) == (200, plain_message())
    assert headers["x-amzn-requestid"] == headers["x-request-id"]
    assert sent.path == "/v1/messages"
    left = {name: value for name, value in body.items() if not name.startswith("anthropic_")}
    assert sent.json == {"model": "m", **left}
    assert (sent.headers["anthropic-version"], sent.headers["anthropic-beta"]) == ("2023-06-01", "a-1,b-2")


async def test_a_stream_is_binary(inside: Inside) -> None:
    status, headers, read, (sent,) = await serve(inside, stream(SSE, done=False), path=STREAM)
    assert (status, headers["content-type"]) == (200, "application/vnd.amazon.eventstream")
    assert headers["x-amzn-bedrock-content-type"] == "application/json"
    assert decoded(read) == EVENTS
    assert sent.json == {"stream": True, "model": "m", "max_tokens": 5, "messages": BODY["messages"]}


@pytest.mark.parametrize("path", [MODEL, STREAM])
async def test_the_path_alone_says_whether_it_is_a_stream(inside: Inside, path: str) -> None:
    body = BODY | {"stream": path == MODEL, "model": "another"}
    behaviour = stream(SSE, done=False) if path == STREAM else ok_json(plain_message())
    status, _, _, (sent,) = await serve(inside, behaviour, path=path, body=body)
    assert (status, sent.json.get("stream"), sent.json["model"]) == (200, True if path == STREAM else None, "m")


async def test_a_large_body_is_changed_too(inside: Inside) -> None:
    body = BODY | {"messages": [{"role": "user", "content": "x" * LARGE_BYTES}], "anthropic_beta": ["a-1"]}
    status, _, read, (sent,) = await serve(inside, stream(SSE, done=False), path=STREAM, body=body)
    assert (status, decoded(read)) == (200, EVENTS)
    assert sent.json == {"stream": True, "model": "m", "max_tokens": 5, "messages": body["messages"]}
    assert sent.headers["anthropic-beta"] == "a-1"


@pytest.mark.parametrize(("kind", "status"), [(None, 200), ("", 400), ("text/plain", 400)])
async def test_a_body_without_a_type_is_json(inside: Inside, kind: str | None, status: int) -> None:
    """boto3's client sends none unless it is given one; to other paths it has to be named."""
    with Scripted(ok_json(plain_message())) as upstream:
        own = {"base_url": upstream.url, "api_key": "k", "capabilities": {"messages": True}}
        client = await inside(upstream.url, upstreams={"up": own})
        headers = AUTH if kind is None else AUTH | {"Content-Type": kind}
        found = []
        for path in (MODEL, "/v1/messages"):
            body = json.dumps(BODY | {"model": "m"}).encode()
            async with client.post(path, data=body, headers=headers, skip_auto_headers=["Content-Type"]) as got:
                found.append(got.status)
    assert found == [status, 400]


@pytest.mark.parametrize("named", ["m%3A1", "arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fm"])
async def test_the_names_of_models_may_be_quoted(inside: Inside, named: str) -> None:
    name = named.replace("%3A", ":").replace("%2F", "/")
    models = {name: {"routes": [{"upstream": "up", "model": "claude"}]}}
    status, _, _, (sent,) = await serve(inside, ok_json(plain_message()), path=f"/model/{named}/invoke", models=models)
    assert (status, sent.json["model"]) == (200, "claude")


async def test_an_answer_of_chat_is_translated_into_it(inside: Inside) -> None:
    """The route may lead to any upstream that serves messages, translated ones too."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    events = [{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x", "choices": [choice]}]
    with Scripted(stream(events)) as upstream:
        own = {"base_url": upstream.url, "api_key": "k", "capabilities": {"messages": "via_chat"}}
        client = await inside(upstream.url, upstreams={"up": own})
        async with client.post(STREAM, json=BODY, headers=AUTH) as got:
            found = decoded(await got.read())
        assert "anthropic_version" not in upstream.requests[0].json
    assert [each["type"] for each in found if each["type"] != "ping"][::5] == ["message_start", "message_stop"]
    assert "Hello" in json.dumps(found)


async def test_its_record_is_that_of_any_call_of_messages(inside: Inside) -> None:
    with Scripted(stream(SSE, done=False)) as upstream:
        own = {"base_url": upstream.url, "api_key": "k", "capabilities": {"messages": True}}
        client = await inside(upstream.url, upstreams={"up": own})
        async with client.post(STREAM, json=BODY, headers=AUTH) as got:
            await got.read()
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        async with client.get("/admin/api/calls?key=k", headers=headers) as got:
            (call,) = (await got.json())["data"]
    assert (call["endpoint"], call["model"], call["stream"]) == ("messages", "m", True)
    assert (call["prompt_tokens"], call["completion_tokens"]) == (9, 3)


# ------------------------------------------------------------------------------------------------------------- errors


def kind_and_text(headers: dict[str, str], read: bytes) -> tuple[str, str]:
    body = json.loads(read)
    assert list(body) == ["message"]
    return headers["x-amzn-errortype"], body["message"]


@pytest.mark.parametrize("path", [MODEL, STREAM])
async def test_a_refused_key_is_refused_in_bedrocks_words(inside: Inside, path: str) -> None:
    wrong = {"Authorization": "Bearer sk-gw-wrong"}
    status, headers, read, sent = await serve(inside, path=path, headers=wrong)
    kind, text = kind_and_text(headers, read)
    assert (status, kind, "Incorrect API key" in text, sent) == (401, "UnrecognizedClientException", True, [])


@pytest.mark.parametrize("path", [MODEL, STREAM])
async def test_a_signed_request_hears_what_to_do(inside: Inside, path: str) -> None:
    signed = AWSRequest("POST", f"http://gateway{path}", data=json.dumps(BODY))
    SigV4Auth(Credentials("AKIAFAKE", "a-secret"), "bedrock", "us-east-1").add_auth(signed)
    given = {name: signed.headers[name] for name in ("Authorization", "X-Amz-Date")}
    status, headers, read, sent = await serve(inside, path=path, headers={**given, "x-api-key": KEY})
    kind, text = kind_and_text(headers, read)
    assert (status, kind, sent) == (401, "UnrecognizedClientException", [])
    assert "AWS_BEARER_TOKEN_BEDROCK" in text
    assert "AKIAFAKE" not in read.decode()


@pytest.mark.parametrize("path", [MODEL, STREAM])
async def test_a_spent_quota_is_throttling(inside: Inside, path: str) -> None:
    with Scripted(ok_json(plain_message())) as upstream:
        own = {"base_url": upstream.url, "api_key": "k", "capabilities": {"messages": True}}
        keys = [{"id": "k", "secret": KEY, "quotas": ["1 requests/month"]}]
        client = await inside(upstream.url, upstreams={"up": own}, keys=keys)
        async with client.post(MODEL, json=BODY, headers=AUTH) as got:
            assert got.status == 200
        async with client.post(path, json=BODY, headers=AUTH) as got:
            kind, text = got.headers["x-amzn-errortype"], (await got.json())["message"]
    assert (got.status, kind, "quota" in text) == (429, "ThrottlingException", True)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "not valid JSON"),
        (b'{"a' + b"x" * 1000, "not valid JSON"),
        ({**BODY, "max_tokens": "x"}, "max_tokens"),
        ({**BODY, "anthropic_beta": "a"}, "anthropic_beta"),
        ({**BODY, "anthropic_beta": ["a\r\nx-evil: 1"]}, "anthropic_beta"),
        ({**BODY, "anthropic_beta": ["a", 1]}, "anthropic_beta"),
    ],
)
async def test_a_wrong_body_is_a_validation_exception(inside: Inside, body: Any, text: str) -> None:
    status, headers, read, sent = await serve(inside, body=body)
    kind, said = kind_and_text(headers, read)
    assert (status, kind, text in said, sent) == (400, "ValidationException", True, [])


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "says"),
    [
        ("POST", "/model/none/invoke", 404, "ResourceNotFoundException", "`none`"),
        ("GET", MODEL, 405, "ValidationException", "HTTP method"),
        ("POST", "/model/m/converse", 404, "ResourceNotFoundException", "POST /model/MODEL/invoke"),
    ],
)
async def test_other_paths_are_refused_in_bedrocks_words(
    inside: Inside, method: str, path: str, status: int, kind: str, says: str
) -> None:
    client = await inside("http://127.0.0.1:9/v1")
    async with client.request(method, path, json=BODY, headers=AUTH) as got:
        read, headers = await got.read(), {name.lower(): value for name, value in got.headers.items()}
    found, text = kind_and_text(headers, read)
    assert (got.status, found, says in text) == (status, kind, True), text


@pytest.mark.parametrize(
    ("upstream_status", "status", "kind"),
    [(400, 400, "ValidationException"), (429, 429, "ThrottlingException"), (529, 529, "ServiceUnavailableException")],
)  # fmt: skip
@pytest.mark.parametrize("path", [MODEL, STREAM])
async def test_an_error_of_the_upstream_has_bedrocks_form(
    inside: Inside, path: str, upstream_status: int, status: int, kind: str
) -> None:
    refusal = error_json(upstream_status, type="x_error", message="No")
    got, headers, read, _ = await serve(inside, *[refusal] * 4, path=path)
    assert (got, kind_and_text(headers, read)[0]) == (status, kind)


@pytest.mark.parametrize(
    ("name", "kind"), [("overloaded_error", "serviceUnavailableException"), ("api_error", "internalServerException")]
)
async def test_an_error_in_the_middle_of_a_stream_is_an_exception(inside: Inside, name: str, kind: str) -> None:
    error = f"event: error\ndata: {json.dumps({'type': 'error', 'error': {'type': name, 'message': 'No'}})}\n\n"
    status, _, read, _ = await serve(inside, stream([*SSE[:3], error.encode()], done=False), path=STREAM)
    *events, exception = decoded(read)
    assert (status, events, exception[0]) == (200, EVENTS[:3], kind)


async def test_a_stream_that_breaks_off_ends_in_an_exception(inside: Inside) -> None:
    status, _, read, _ = await serve(inside, cut_stream(SSE[:3]), path=STREAM)
    *events, exception = decoded(read)
    assert (status, events, exception[0]) == (200, EVENTS[:3], "internalServerException")


def test_a_model_of_other_endpoints_is_no_wrong_path() -> None:
    said = invoke_model.error_body(NotFound("The model is not served here."), "r")
    assert json.loads(said) == {"message": "The model is not served here."}


def test_every_status_has_a_kind() -> None:
    for status in range(400, 600):
        kind = invoke_model.kind_of(status)
        assert kind.endswith("Exception")
        error = GatewayError("a")
        error.status = status
        assert [*FORMATS["chat"].error_headers(error)] == []
        assert [*invoke_model.error_headers(error)] == [("x-amzn-errortype", kind)]

"""What the gateway's OpenAPI document promises, held against a whole gateway by schemathesis.

For each operation it makes requests that fit the document and requests that do not. Whatever it sends: no 5xx, since
nothing has failed; statuses, media types, headers and bodies as the document says; each error the OpenAI object with
its four keys; and a request id on everything. Of our own rows the document allows no member more or less.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as rules
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks, not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.transport import Response

from gateway.api.schema import Part
from gateway.config.wings import endpoint_names
from gateway.web.admin import request_bodies
from gateway.web.openapi.document import FORM, every_operation
from gateway.web.openapi.operation import JSON, Operation
from gateway.wings.billing.endpoints import CompareInvoice
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import forms
from tests.fakes import responses_api as api
from tests.fakes.scripted import Wire, answer, ok_json, stream
from tests.flows.client import ERROR_KEYS, TIMEOUT_S, events
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, secret, settings
from tests.flows.steering import Operator

OPERATIONS = {place: each for place, each in every_operation().items() if not place[1].startswith("/scim")}
"""All but SCIM, which has a token and bodies of its own: tests/wings/scim."""
FITTING, UNFIT = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
CONFORMS = (
    "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance",
)  # fmt: skip
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
MOST, MOST_OF_ADMIN = 40, 16
"""Requests of an operation that has something to vary; the others are all alike."""
BOUNDED = rules(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], database=None)
"""What fails is not made smaller: bodies of this kind take minutes to shrink."""

TAKES_BODY = [(method, path) for (method, path), operation in OPERATIONS.items() if operation.body is not None]
TAKES_QUERY = [
    (method, path)
    for (method, path), operation in OPERATIONS.items()
    if any(parameter["in"] == "query" and len(parameter["schema"]) > 1 for parameter in operation.parameters)
]
"""Where a query can be wrong: not every text is good."""


FILTERS = ("purpose", "ended")
"""Parameters of queries whose unknown values find nothing."""

MOST_OF_MANY = {"/v1/messages/batches": 8}
"""Of bodies that hold many others: each takes half a second to make."""


def most(path: str) -> int:
    """How many requests are made of an operation."""
    if path in MOST_OF_MANY:
        return MOST_OF_MANY[path]
    return MOST_OF_ADMIN if path.startswith("/admin") else MOST


TOKENS = {"input_tokens": 3, "output_tokens": 2}
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "usage": TOKENS,
    "content": [{"type": "text", "text": "Hi"}],
}  # fmt: skip
PLAIN_ANSWERS: dict[str, Any] = {
    "/v1/moderations": {"results": [{"flagged": False}]},
    "/v1/rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 3}},
    "/v1/images/generations": {"data": [{"url": "https://example.org/1.png"}]},
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": {"input_tokens": 3},
}
GENERATED = {
    "candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2},
}  # fmt: skip
EVENTS: dict[str, list[dict[str, Any]]] = {
    "/v1/images/generations": [{"type": "image_generation.completed", "b64_json": "AAAA"}],
    "/v1/messages": [
        {"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
}


async def of_form(wire: Wire) -> None:
    """A whole answer in the form that was asked for; of a stream the last event."""
    body = wire.request.body
    if "/images/" in wire.request.path:
        event = {"type": "image_edit.completed", "b64_json": "AAAA"}
        is_stream = b'name="stream"\r\n\r\ntrue\r\n' in body
        await (stream([event], done=False) if is_stream else ok_json({"data": [{"b64_json": "AAAA"}]}))(wire)
        return
    if b'name="stream"\r\n\r\ntrue\r\n' in body:
        await stream([{"type": "transcript.text.done", "text": "Hi"}], done=False)(wire)
        return
    await ok_json({"text": "Hi"})(wire)


ANSWERS_OF_GOOGLE: dict[str, Any] = {
    "countTokens": {"totalTokens": 3},
    "embedContent": {"embedding": {"values": [0.5]}},
    "batchEmbedContents": {"embeddings": [{"values": [0.5]}]},
}


async def of_google(wire: Wire, method: str) -> None:
    if method == "streamGenerateContent":
        event = f"data: {json.dumps(GENERATED)}\r\n\r\n".encode()
        await answer(event, headers=[("Content-Type", "text/event-stream")])(wire)
    else:
        await ok_json(ANSWERS_OF_GOOGLE.get(method, GENERATED))(wire)


async def of_kept(wire: Wire, path: str) -> None:
    """Files and batches, each with another id."""
    number = time.monotonic_ns()
    if path.endswith(("/content", "/results")):
        await answer(b"{}\n", headers=[("Content-Type", "application/octet-stream")])(wire)
    elif path.startswith("/v1/messages/batches"):
        await ok_json({"id": f"msgbatch_{number}", "type": "message_batch", "processing_status": "ended"})(wire)
    elif path.startswith("/v1/batches"):
        await ok_json({"id": f"batch_{number}", "object": "batch", "status": "in_progress"})(wire)
    else:
        kind = path.split("/")[2].removesuffix("s")
        await ok_json({"id": f"{kind}-{number}", "object": kind, "deleted": True})(wire)


async def agreeable(wire: Wire) -> None:
    """An upstream that answers everything as it should be answered."""
    path = wire.request.path.partition("?")[0]
    if any(kind in path for kind in ("/files", "/batches", "/conversations")):
        await of_kept(wire, path)
        return
    if wire.request.headers.get("content-type", "").startswith("multipart/form-data"):
        await of_form(wire)
        return
    asked = wire.request.json if wire.request.body else {}
    if path.startswith("/v1/models/"):
        await of_google(wire, path.rpartition(":")[2])
        return
    if (said := PLAIN_ANSWERS.get(path)) is not None and not (asked or {}).get("stream"):
        await ok_json(said)(wire)
        return
    if path.endswith("/audio/speech"):
        await answer(b"sound", headers=[("Content-Type", "audio/mpeg")])(wire)
        return
    if (received := EVENTS.get(path)) is not None:
        text = "".join([f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in received])
        await answer(text.encode(), headers=[("Content-Type", "text/event-stream")])(wire)
        return
    if path.endswith("/embeddings"):
        await ok_json({"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "usage": USAGE})(wire)
        return
    if "/responses" in path:
        whole = api.response([api.message("Hi")])
        plain = {"object": "response.input_tokens", "input_tokens": 3} if path.endswith("input_tokens") else whole
        is_stream = asked.get("stream") and path.endswith("/responses")
        end = {"type": "response.completed", "sequence_number": 0, "response": whole}
        await (stream([api.one(end)], done=False) if is_stream else ok_json(plain))(wire)
        return
    is_chat = path.endswith("/chat/completions")
    text: dict[str, Any] = {"message": {"role": "assistant", "content": "Hi"}} if is_chat else {"text": "Hi"}
    prompt = asked.get("prompt")
    many = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    places = range(many * (asked.get("n") or 1))
    if not asked.get("stream"):
        choices = [{"index": index, "finish_reason": "stop", **text} for index in places]
        await ok_json({"id": "c", "model": "m", "choices": choices, "usage": USAGE})(wire)
        return
    text = {"delta": {"content": "Hi"}} if is_chat else text
    choices = [{"index": index, "finish_reason": "stop", **text} for index in places]
    # All in one event: of a long stream schemathesis reads the beginning alone.
    await stream([{"id": "c", "choices": choices}, {"id": "c", "choices": [], "usage": USAGE}])(wire)


ENDPOINTS = list(endpoint_names())
BESIDE = {"image": 0.04, "audio_per_minute": 0.006, "characters_per_million": 15, "search_units_per_1000": 2}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    shared_upstream.answer_with(always=agreeable)
    price = {"input": 1.5, "output": 2}
    models = {
        COMPLETIONS: {"price": price},
        "*": {
            "routes": [{"upstream": "main"}],
            "max_output_tokens": 100,
            "price": price | BESIDE,
            "endpoints": ENDPOINTS,
        },
        "omni-moderation-latest": {"routes": [{"upstream": "main"}], "price": price, "endpoints": ["moderations"]},
    }
    quotas = [{unit: 10**9, "per": per} for unit in ("requests", "tokens", "usd") for per in ("minute", "month", 90)]
    quotas = [quota | ({"usd": 9000} if "usd" in quota else {}) for quota in quotas]
    keys = [key("alice", quotas=quotas, team="crew", expires="2199-01-01T00:00:00Z", limits={"deny": ["denied"]})]
    keys.append(key("hers", owner=PERSON, team="crew"))
    teams = {"crew": {"quotas": [{"requests": 10**9, "per": "day", "model": "gpt-*"}], "member_quotas": WINDOWS}}
    shared = [quota for quota in quotas if quota["per"] != 90]
    upstreams = {"main": {"capabilities": {"messages": True, "generate_content": True}}}
    files = {"upstream": "main", "max_per_key": 5000}
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            upstreams=upstreams,
            models=models,
            keys=keys,
            teams=teams,
            quotas=shared,
            files=files,
            people={"defaults": {"quotas": WINDOWS}},
        )
    )


UNITS = ("requests", "tokens", "usd")
PERSON = "ann@example.org"
WINDOWS = [{unit: 1000, "per": per} for unit in UNITS for per in ("minute", "day", "month")]


BATCH_LINE = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "Hi"}}
BATCH = (("purpose", "batch"), ("file", json.dumps(BATCH_LINE).encode()))


def upload(gateway: Gateway, *fields: forms.Field) -> str:
    """The id of a file of alice's."""
    made: str = gateway.send("POST", "/v1/files", forms.form(*fields), headers=forms.TYPE).json["id"]
    return made


def batch_of_file(gateway: Gateway) -> dict[str, str]:
    """What a batch says of its file."""
    return {"input_file_id": upload(gateway, *BATCH), "endpoint": "/v1/embeddings"}


def ended_batch(gateway: Gateway, *, is_recorded: bool) -> str:
    """A message batch of alice's; one that may be deleted, if its usage has to be recorded."""
    made = gateway.post("/v1/messages/batches", plain_body("/v1/messages/batches"))
    if is_recorded:
        eventually(lambda: any(row["id"] == made.id for row in gateway.calls("alice")), timeout_s=60)
    return str(made.json["id"])


@pytest.fixture
def there(gateway: Gateway, method: str, path: str) -> dict[str, str]:
    """What stands in a path and is there; a key or a team is made for this test."""
    operator, name = Operator(gateway), f"{method}-{path.count('/')}-{time.monotonic_ns()}".lower()
    if "{id}" in path:
        operator.create(name, quotas=WINDOWS)
    if "{person}" in path:
        name = "crew"
    elif "{name}" in path:
        operator.done("POST", "teams", {"name": name, "quotas": WINDOWS})
    request = gateway.complete().headers["x-request-id"] if "{request}" in path else ""
    stored = gateway.post("/v1/responses", {"model": "m", "input": "Hi"}).json["id"] if "{response}" in path else ""
    known = {
        "model": "m",
        "project": "p",
        "location": "global",
        "request": request,
        "response": stored,
        "person": PERSON,
        "file": "reference.js" if path.startswith("/docs") else "api.js",
    }
    if "{conversation}" in path:
        known |= {"conversation": gateway.post("/v1/conversations", {}).json["id"], "item": "msg_1"}
    if without_azure(path).startswith("/v1/files"):
        known["file"] = upload(gateway, ("purpose", "vision"), ("file", b"x"))
    if path.startswith("/v1/messages/batches"):
        known["batch"] = ended_batch(gateway, is_recorded=method == "DELETE")
    if without_azure(path).startswith("/v1/batches"):
        known["batch"] = gateway.post("/v1/batches", plain_body("/v1/batches") | batch_of_file(gateway)).json["id"]
    return {part: known.get(part, name) for part in re.findall(r"{(\w+)}", path)}


UNSURE = ("team", "ips", "expires", "model", "scope", "label", *UNITS)
"""Members that name what has to be there."""


def made_to_fit(body: Any, kind: type[Part]) -> Any:
    """A body that fits the document, made to fit what is there as well: teams, names, quotas of one unit.

    Those that are left as they are show that all else is refused as it should be."""
    if not isinstance(body, dict):
        return body
    if issubclass(kind, CompareInvoice):
        return {"text": "date,model,requests\n2026-11-20,m,1\n"}
    fitting = {name: value for name, value in body.items() if name not in UNSURE}
    if "quotas" in fitting:
        fitting["quotas"] = [{"tokens": 5, "per": 100}]
    if "overlap_s" in fitting:
        fitting["overlap_s"] = "1m" if isinstance(fitting["overlap_s"], str) else min(fitting["overlap_s"], 60)
    if fitting.get("per") not in (None, "day", "month"):
        fitting["per"] = "day"
    if issubclass(kind, request_bodies.GrantTopUp):
        fitting["per"] = "month"  # which keys, teams and the gateway have
        fitting[next((unit for unit in UNITS if unit in body), "tokens")] = 5
    for name in ("id", "name"):
        if name in fitting:
            fitting[name] = f"made-{time.monotonic_ns()}"
    return fitting


@pytest.fixture(scope="module")
def schema(gateway: Gateway) -> Any:
    load_all_checks()
    return schemathesis.openapi.from_dict(gateway.get("/openapi.json", key=None).json)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        yield made


def credentials(path: str) -> dict[str, str]:
    caller = ADMIN_TOKEN if path.startswith("/admin") else secret("alice")
    return {"Authorization": f"Bearer {caller}"}


BEDROCK = "/model/"
"""The path of Bedrock's InvokeModel begins so."""


def is_of_anthropic(path: str) -> bool:
    return without_azure(path).startswith("/v1/messages")


def without_azure(path: str) -> str:
    """The same endpoint in OpenAI's form of paths, and Vertex AI's of Claude in Anthropic's."""
    path = re.sub(r"^.*/publishers/anthropic/.*$", "/v1/messages", path)
    return re.sub(r"^/openai(/deployments/{model}|/v1)?(?=/)", "/v1", path)


def is_of_google(path: str) -> bool:
    return (
        path.startswith("/v1beta/") or "/publishers/google/" in path or (path.startswith("/v1/models/") and ":" in path)
    )


def error_keys(path: str) -> list[str]:
    if path.startswith(BEDROCK):
        return ["message"]
    if is_of_google(path):
        return ["code", "message", "status"]
    return ["message", "type"] if is_of_anthropic(path) else ERROR_KEYS


def check(case: Any, answer: Response, *more: str) -> None:
    """Whether this answer is one that the document allows."""
    checks = [not_a_server_error, *(CHECKS.get_one(name) for name in (*CONFORMS, *more))]
    case.validate_response(answer, checks=checks)
    assert answer.headers["x-request-id"][0].startswith("req_")
    if answer.headers.get("content-type") == ["text/event-stream"]:
        is_typed = without_azure(case.path) in EVENTS or without_azure(case.path).startswith(
            ("/v1/responses", "/v1/audio", "/v1/images")
        )
        is_typed = is_typed or is_of_google(case.path)
        assert is_typed or events(answer.content)[-1] == "[DONE]"
    if answer.status_code >= 400:
        error = json.loads(answer.content)
        if case.path.startswith(BEDROCK):
            assert "x-amzn-errortype" in answer.headers
            error = {"error": error}
        assert sorted(error) == (["error", "request_id", "type"] if is_of_anthropic(case.path) else ["error"])
        # Of /v1/models a request with another method may be OpenAI's as well as Google's.
        is_either = answer.status_code == 405 and case.path.startswith("/v1/models/")
        assert set(error["error"]) - {"details"} == set(ERROR_KEYS if is_either else error_keys(case.path))
        assert error["error"]["message"]


def tell(gateway: Gateway, session: requests.Session, case: Any, **more: Any) -> Response:
    # HTTP's own expectations are answered with 417 before any operation: no operation documents it.
    for name in [name for name in case.headers or () if name.lower() == "expect"]:
        del case.headers[name]
    given = {
        "base_url": gateway.url,
        "session": session,
        "timeout": TIMEOUT_S,
        "headers": credentials(case.path),
        **more,
    }
    answer: Response = case.call(**given)
    return answer


def refusals(operation: Operation, path: str) -> set[int]:
    """The statuses, other than success, of requests that are valid by the document.

    The document cannot express a rule between two fields (best_of and n); an unknown group is refused; a client turns
    the model "../x" into another path; keys, teams, quotas and stored responses may be absent; an admin token has no
    keys of its own; a pattern serves no model with a comma in its name.
    """
    if operation.caller == "admin" and operation.body is not None:
        return {400, 404, 409}
    if without_azure(path).startswith(("/v1/responses", "/v1/batches")) and operation.body is not None:
        return {400, 404}
    if is_of_google(path) or "/deployments/" in path or "/publishers/" in path or path.startswith(BEDROCK):
        return {400, 404}  # what is kept at the upstream is refused
    if any(parameter["name"] == "own" for parameter in operation.parameters):
        return {400, 404}
    if "{" in path:
        return {404}
    return {400} if operation.body is None else {400, 404, 429}  # an output limit that is a large part of a rate waits


SOCKETS = {("GET", "/v1/responses"), ("GET", "/v1/realtime")}
ANSWERED = [each for each in OPERATIONS if not each[1].startswith("/admin/sign-") and each not in SOCKETS]
"""WebSockets: tests/flows/test_responses.py, tests/wings/realtime/test_realtime.py.

Sign-in needs a provider and a browser: tests/wings/people/test_sign_in.py and tests/browser/slow/test_sign_in.py."""


@pytest.mark.parametrize(("method", "path"), ANSWERED)
def test_what_fits_the_document_is_answered_as_it_says(
    gateway: Gateway, session: requests.Session, schema: Any, method: str, path: str, there: dict[str, str]
) -> None:
    received: Counter[int] = Counter()
    operation = OPERATIONS[method, path]
    varies = bool(operation.body or operation.parameters)

    turns = itertools.cycle((True, False))
    batch: dict[str, Any] | None = None
    if (method, without_azure(path)) == ("POST", "/v1/batches"):
        batch = batch_of_file(gateway)
    elif (method, path) == ("POST", "/v1/messages/batches"):
        batch = plain_body(path)

    @given(schema[path][method].as_strategy(generation_mode=FITTING))
    @rules(BOUNDED, max_examples=most(path) if varies else 2)
    def ask(case: Any) -> None:
        # Of a model "../x" a client makes another path, which below /v1 is none of Google's.
        is_shared = is_of_google(path) and path.startswith("/v1/")
        if (is_plain := next(turns)) or is_shared or operation.caller in ("admin", "viewer"):
            case.path_parameters = there
        if is_plain and operation.caller == "admin" and operation.body is not None:
            case.body = made_to_fit(case.body, operation.body)
        if is_plain and batch is not None:
            case.body |= batch
        answer = tell(gateway, session, case)
        received[answer.status_code] += 1
        check(case, answer)

    ask()
    assert received.keys() <= {operation.status, *refusals(operation, path)}
    assert received[operation.status], received


@pytest.mark.parametrize(("method", "path"), TAKES_BODY + TAKES_QUERY)
def test_what_does_not_fit_the_document_is_refused_as_it_says(
    gateway: Gateway, session: requests.Session, schema: Any, method: str, path: str, there: dict[str, str]
) -> None:
    received: Counter[int] = Counter()
    # Where it may be the path alone that does not fit, and is made to, a good body is no fault.
    # In a form a value of another type is only another text.
    is_form = OPERATIONS[method, path].body_type == FORM
    strictly = ["negative_data_rejection"] if method == "POST" and not there and not is_form else []

    @given(schema[path][method].as_strategy(generation_mode=UNFIT))
    @rules(BOUNDED, max_examples=most(path))
    def ask(case: Any) -> None:
        case.path_parameters = there
        answer = tell(gateway, session, case)
        received[answer.status_code] += 1
        is_too_long = answer.status_code == 413  # refused before it is read
        check(case, answer, *([] if is_too_long else strictly))

    ask()
    assert received[400] or (method, path) not in TAKES_BODY


@pytest.mark.parametrize(("method", "path"), TAKES_QUERY)
def test_each_parameter_of_a_query_that_does_not_fit_is_refused(
    gateway: Gateway, session: requests.Session, method: str, path: str, there: dict[str, str]
) -> None:
    """Of random queries that do not fit it may be that only the unknown names do not, and these are left unread."""
    body = {} if OPERATIONS[method, path].body is None else {"json": {}}
    for parameter in OPERATIONS[method, path].parameters:
        if parameter["in"] != "query" or parameter["name"] in FILTERS:
            continue
        if not jsonschema_rs.is_valid(parameter["schema"], "?"):
            asked = session.request(
                method, gateway.url + path.format(**there), params={parameter["name"]: "?"},
                headers=credentials(path), timeout=TIMEOUT_S, **body,
            )  # fmt: skip
            assert asked.status_code == 400, (parameter["name"], asked.text)


JSON_VALUES = st.recursive(
    st.sampled_from(["2", "1.5", "true", 2.0, 1, 0, "", [], {}])
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def plain_body(path: str) -> dict[str, Any]:
    """A good one."""
    if is_of_google(path):
        return {"contents": [{"parts": [{"text": "Hi"}]}]}
    if path == "/v1/messages/batches":
        params = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        return {"requests": [{"custom_id": "a", "params": params}]}
    if without_azure(path) == "/v1/batches":
        return {"input_file_id": "file-0", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    if not path.startswith("/admin"):
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        asked = {
            "/v1/completions": {"prompt": "Hi"}, "/v1/messages": chat | {"max_tokens": 9},
            "/v1/images/generations": {"prompt": "Hi"}, "/v1/audio/speech": {"input": "Hi", "voice": "v"},
            **{each: {"query": "Hi", "documents": ["a"]} for each in ("/v1/rerank", "/v2/rerank", "/rerank")},
            **dict.fromkeys(("/v1/chat/completions", "/v1/messages/count_tokens"), chat),
        }  # fmt: skip
        return {"model": "m", **asked.get(without_azure(path), {"input": "Hi"})}
    name = f"plain-{time.monotonic_ns()}"
    return {"/admin/api/keys": {"id": name}, "/admin/api/teams": {"name": name}}.get(
        path, {"requests": 1, "per": "day"} if path.endswith("top_up") else {}
    )


@pytest.mark.parametrize(("method", "path"), [each for each in TAKES_BODY if OPERATIONS[each].body_type == JSON])
def test_one_member_that_is_anything(
    gateway: Gateway, session: requests.Session, schema: Any, method: str, path: str, there: dict[str, str]
) -> None:
    """A body that is otherwise good: so that nothing else hides what one member does, nor that it was let through."""
    operation = schema[path][method]
    body = OPERATIONS[method, path].body
    assert body is not None
    whole = {"$ref": f"#/components/schemas/{body.__name__}", "components": schema.raw_schema["components"]}
    fits = jsonschema_rs.Draft202012Validator(whole)
    is_open = not path.startswith("/admin")

    @given(st.sampled_from(sorted({*body.model_fields, "denied", "anything"})), JSON_VALUES)
    @rules(BOUNDED, max_examples=2 * most(path))
    def ask(name: str, value: Any) -> None:
        given = plain_body(path) | {name: value}
        case = operation.Case(body=given, path_parameters=there, media_type="application/json")
        answer = tell(gateway, session, case)
        check(case, answer)
        assert answer.status_code in ((400,) if is_open else (400, 404, 409)) or fits.is_valid(given)

    ask()


@pytest.mark.parametrize(
    ("method", "path"), [each for each in OPERATIONS if OPERATIONS[each].caller in ("key", "admin", "viewer")]
)
@pytest.mark.parametrize("who", [None, "Bearer sk-somebody-else-0123456789", "Basic YTpi", "Bearer"])
def test_other_tokens_are_refused(
    gateway: Gateway, session: requests.Session, schema: Any, method: str, path: str, who: str | None
) -> None:
    body = {"body": {}, "media_type": "application/json"} if OPERATIONS[method, path].body else {}
    there = (
        {
            "model": "m",
            "project": "p",
            "location": "global",
            "id": "alice",
            "name": "crew",
            "person": "ada@example.org",
            "request": "req_1",
            "file": "file-1",
            "conversation": "conv_1",
            "item": "msg_1",
            "batch": "batch_1",
            "response": "resp_1",
        }
        if "{" in path
        else {}
    )
    case = schema[path][method].Case(path_parameters=there, **body)
    answer = tell(gateway, session, case, headers={} if who is None else {"Authorization": who})
    is_guess = path.startswith("/admin") and who is not None and "sk-" in who
    assert answer.status_code in ((401, 429) if is_guess else (401,))
    check(case, answer)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_a_method_that_the_document_does_not_have_is_refused(
    gateway: Gateway, session: requests.Session, schema: Any, method: str
) -> None:
    for path in {path for _, path in OPERATIONS}:
        allowed = {each for each, at in OPERATIONS if at == path}
        is_of_model = is_of_google(path) and "/publishers/" not in path  # of which GET shows the model
        allowed |= {"GET"} if is_of_model else set()
        if method in allowed:
            continue
        where = gateway.url + re.sub("{.*?}", "m", path)
        answer = session.request(method, where, headers=credentials(path), timeout=TIMEOUT_S)
        assert answer.status_code == 405, (path, answer.text)
        assert allowed <= set(answer.headers["allow"].replace(" ", "").split(",")) <= allowed | {"HEAD"}
        keys = ERROR_KEYS if path.startswith("/v1/models/") else error_keys(path)  # as the caller's key is sent
        error = answer.json()
        assert set(error if path.startswith(BEDROCK) else error["error"]) - {"details"} == set(keys), path
        assert answer.headers["x-request-id"].startswith("req_")


def test_a_row_with_a_member_that_the_document_does_not_have_would_be_found(
    gateway: Gateway, session: requests.Session, schema: Any
) -> None:
    case = schema["/v1/key"]["GET"].Case()
    answer = tell(gateway, session, case)
    check(case, answer)
    answer.content = json.dumps({**json.loads(answer.content), "more": "than is told"}).encode()
    answer._deserialized = None
    with pytest.raises(FailureGroup):
        check(case, answer)

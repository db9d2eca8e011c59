"""Nothing of the upstream's account leaves in an error, whatever its status, its object and its place in an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, answer, ok_json, stream
from tests.field.usage_answers import speech_bytes
from tests.field.usage_shapes import RESPONSES
from tests.field.usage_ways import ALL_WAYS, QUOTAS, Way, configured, model_of
from tests.flows.gateway_process import Gateway, key

from .test_charged import events_of
from .test_nothing_leaves import PARTS, REASON

ERROR = {"message": REASON, "type": "server_error", "code": "a", "param": REASON, "details": [{"reason": REASON}]}
OBJECTS: Mapping[str, Mapping[str, Any]] = {
    "OpenAI's": {"error": ERROR},
    "Anthropic's": {"type": "error", "error": ERROR, "request_id": REASON},
    "Google's": {"error": {"code": 500, "message": REASON, "status": REASON, "details": [{"reason": REASON}]}},
    "a message": {"message": REASON, "detail": REASON},
    "a failed response": {
        "type": "response.failed",
        "response": {"id": "resp_1", "object": "response", "status": "failed", "error": ERROR, "output": []},
    },
    "an error of Responses": {"type": "error", "sequence_number": 0, "code": "a", "message": REASON, "param": None},
}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    config = configured(shared_upstream.url, [key("alice", quotas=QUOTAS)])
    upstreams = {f"{name}-{at}": each for name, each in config["upstreams"].items() for at in range(len(OBJECTS))}
    models = {
        f"{name}-{at}": {
            **each,
            "routes": [{**route, "upstream": f"{route['upstream']}-{at}"} for route in each["routes"]],
        }
        for name, each in config["models"].items()
        for at in range(len(OBJECTS))
    }
    return start_shared_gateway(config | {"upstreams": {**config["upstreams"], **upstreams}, "models": models})


@pytest.fixture
def upstream(shared_upstream: ScriptedUpstream) -> ScriptedUpstream:
    """The file's upstream, without a check of its requests: one for a further prompt of a call that has failed already
    may come after the end of its test."""
    return shared_upstream


def in_stream(shown: Mapping[str, Any], before: Sequence[bytes]) -> Behaviour:
    """A stream with some good events and then this one."""
    named = f"event: {shown['type']}\n" if "type" in shown else ""
    event = f"{named}data: {json.dumps(shown)}\n\n".encode()
    return stream([*[each.partition(b"\r\n")[2].removesuffix(b"\r\n") for each in before], event], done=False)


def answers(way: Way, shown: Mapping[str, Any]) -> Iterator[tuple[str, Behaviour]]:
    """The ways in which an upstream can say this."""
    body = json.dumps(shown).encode()
    for status in (400, 404, 413, 422, 500, 503):
        yield f"status {status}", answer(body, status, headers=[("Content-Type", "application/json")])
    yield "a good status", ok_json(dict(shown))
    is_event = "error" in shown or (way.upstream.shapes is RESPONSES and "type" in shown)
    if is_event and way.upstream.stream is not None and way.upstream.stream != speech_bytes:
        places = next(each.stream for each in way.upstream.shapes if each.stream is not None)
        events = events_of(way.upstream.stream(places))
        for count in (0, 1, len(events) // 2):
            yield f"behind {count} events", in_stream(shown, events[:count])
    for status in (429, 403, 401):  # what stops an account for a while comes last
        yield f"status {status}", answer(body, status, headers=[("Content-Type", "application/json")])


@pytest.mark.parametrize("shown", OBJECTS)
@pytest.mark.parametrize("name", ALL_WAYS, ids=model_of)
def test_every_way(gateway: Gateway, upstream: ScriptedUpstream, name: str, shown: str) -> None:
    way = ALL_WAYS[name]
    called = f"{model_of(name)}-{[*OBJECTS].index(shown)}"
    for what, behaviour in answers(way, OBJECTS[shown]):
        for is_stream in {False, way.upstream.stream is not None}:
            upstream.answer_with(always=behaviour)
            got = way.ask(gateway, called, is_stream=is_stream)
            said = got.body + repr(got.header_lines).encode()
            assert upstream.hits or way.requests > 1 or what[-3:] in ("429", "403", "401"), (what, is_stream)
            assert not [part for part in PARTS if part.encode() in said], (what, is_stream, got.body)

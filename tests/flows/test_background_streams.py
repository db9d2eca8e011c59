"""Streams of background responses: a stream may end before its response, which is settled once all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.flows import background as scenario
from tests.flows.background import Background, received
from tests.flows.background import begin_stream as begin

from .client import Raw
from .gateway_process import Gateway, check, eventually, secret

REPORTED = {
    "usage_source": "reported", "prompt_tokens": 30, "completion_tokens": 12, "cached_tokens": 10,
    "endpoint": "responses", "status": 200, "ended": "done", "stream": True, "truncated": False,
}  # fmt: skip
FAILED = {"code": "server_error", "message": "sorry"}


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> list[Gateway]:
    return start_pair(start_shared_gateway, scenario.config(shared_upstream.url, store_url), store_url)


@pytest.fixture
def work(upstream: ScriptedUpstream) -> Iterator[Background]:
    work = Background()
    upstream.answer_with(always=work)
    yield work
    work.shows = 0
    for made, response in work.responses.items():
        if response["status"] in ("queued", "in_progress"):
            work.end(made)


def made_id(work: Background) -> str:
    return list(work.responses)[-1]


def test_it_is_passed_on_and_settled_before_its_last_event(gateways: list[Gateway], work: Background) -> None:
    gateway = gateways[0]
    used, _ = scenario.held(gateway)
    with gateway.connect() as raw:
        work.shows = 4
        request_id = begin(gateway, raw)
        made = made_id(work)
        assert scenario.records(gateway, request_id) == []
        assert scenario.held(gateway)[1] > 0
        work.end(made)
        body = raw.read_chunks()
    assert body == api.written(work.events(made))
    check(scenario.settled(gateway, request_id), **REPORTED)
    assert scenario.held(gateway) == (used + 42, 0)
    for each in gateways:
        assert each.get(f"/v1/responses/{made}").json["status"] == "completed"
        assert each.get(f"/v1/responses/{made}", key="bob").status == 404


def test_its_client_leaves(gateways: list[Gateway], work: Background) -> None:
    gateway = gateways[0]
    used, _ = scenario.held(gateway)
    with gateway.connect() as raw:
        work.shows = 4
        request_id = begin(gateway, raw)
        raw.read_until(b"response.output_text.delta")
    made = made_id(work)
    eventually(lambda: work.polls)
    assert scenario.records(gateway, request_id) == []
    assert scenario.held(gateway)[1] > 0
    work.end(made)
    check(scenario.settled(gateways[1], request_id), **REPORTED)
    assert scenario.held(gateway) == (used + 42, 0)


def test_its_client_leaves_before_the_first_event(gateways: list[Gateway], work: Background) -> None:
    before = {row["id"] for row in gateways[0].calls("bob")}
    work.answers_after_s, work.shows = 0.5, 2
    with gateways[0].connect() as raw:
        asked = {"model": scenario.MODEL, "input": "Hello", "background": True, "stream": True}
        raw.post("/v1/responses", json.dumps(asked).encode(), secret("bob"))
        made = eventually(lambda: list(work.responses))[-1]
    work.end(made)
    (new,) = eventually(lambda: [row for row in gateways[0].calls("bob") if row["id"] not in before])
    check(new, prompt_tokens=30, completion_tokens=12, usage_source="reported", stream=True)


def test_its_upstream_breaks_off(gateways: list[Gateway], work: Background) -> None:
    """The response goes on, so that it has not failed: the error repeats the number of the last event."""
    gateway = gateways[0]
    with gateway.connect() as raw:
        work.shows, work.cut_after = 9, 4
        request_id = begin(gateway, raw)
        *passed, last = received(raw.read_chunks())
    made = made_id(work)
    assert [event["sequence_number"] for event in passed] == [0, 1, 2, 3, 4]
    assert (last["type"], last["sequence_number"], last["error"]["code"]) == ("error", 4, "stream_interrupted")
    assert f"GET /v1/responses/{made}?stream=true" in last["error"]["message"]
    assert scenario.records(gateway, request_id) == []
    work.end(made)
    check(scenario.settled(gateway, request_id), **REPORTED)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"status": "incomplete"}, REPORTED),
        ({"status": "failed", "error": FAILED}, {"status": 502, "ended": "error", "prompt_tokens": 30}),
        ({"status": "failed", "usage": None, "error": FAILED}, {"status": 502, "usage_source": "estimated"}),
    ],
)
def test_it_ends_otherwise(
    gateways: list[Gateway], work: Background, end: dict[str, Any], expected: dict[str, Any]
) -> None:
    with gateways[0].connect() as raw:
        work.shows = 9
        request_id = begin(gateways[0], raw)
        work.end(made_id(work), **end)
        events = received(raw.read_chunks())
    assert events[-1]["type"] == f"response.{end['status']}"
    assert events[-1]["response"]["id"] == made_id(work)
    check(scenario.settled(gateways[0], request_id), **expected)


def test_an_error_event_does_not_say_how_the_response_ends(gateways: list[Gateway], work: Background) -> None:
    with gateways[0].connect() as raw:
        work.shows = 9
        request_id = begin(gateways[0], raw)
        work.ends_with = {"type": "error", "code": "server_error", "message": "sorry", "param": None}
        work.end(made_id(work))
        events = received(raw.read_chunks())
    assert events[-1]["error"]["code"] == "stream_interrupted"
    check(scenario.settled(gateways[0], request_id), **REPORTED)


def test_an_upstream_that_answers_without_a_stream(gateways: list[Gateway], work: Background) -> None:
    work.ignores_stream = True
    with gateways[0].connect() as raw:
        request_id = begin(gateways[0], raw)
        events = received(raw.read_chunks())
    assert [event["type"] for event in events] == ["response.created", "response.queued", "error"]
    work.end(made_id(work))
    check(scenario.settled(gateways[0], request_id), **REPORTED)


def test_one_that_is_not_stored_is_bound_while_it_is_made(gateways: list[Gateway], work: Background) -> None:
    """OpenAI keeps it for some minutes all the same, so that it can be polled."""
    with gateways[0].connect() as raw:
        work.shows = 2
        request_id = begin(gateways[0], raw, store=False)
        raw.read_until(b"response.created")
        assert gateways[1].get(f"/v1/responses/{made_id(work)}").status == 200
    work.end(made_id(work))
    check(scenario.settled(gateways[0], request_id), **REPORTED)
    plain, made = scenario.begin(gateways[0], store=False)
    assert scenario.records(gateways[0], plain) == []
    work.end(made)
    check(scenario.settled(gateways[0], plain), **REPORTED | {"stream": False})


# --------------------------------------------------------------------------------------------------------- resumed


def resume(gateway: Gateway, made: str, after: int | None = None, who: str = "alice") -> Raw:
    """A connection over which the stream of a response is resumed."""
    raw = gateway.connect()
    query = "" if after is None else f"&starting_after={after}"
    raw.send(
        f"GET /v1/responses/{made}?stream=true{query} HTTP/1.1\r\nHost: gateway\r\n"
        f"Authorization: Bearer {secret(who)}\r\n\r\n".encode()
    )
    return raw


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_it_is_resumed_from_each_event(gateways: list[Gateway], work: Background, status: str) -> None:
    request_id, made = scenario.begin(gateways[0])
    work.end(made, status)
    before = scenario.settled(gateways[0], request_id)
    whole = work.events(made)
    for after in [None, *range(len(whole) - 1)]:
        with resume(gateways[1], made, after) as raw:
            head = raw.read_head()
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            assert raw.read_chunks() == api.written(whole[0 if after is None else after + 1 :])
    assert scenario.settled(gateways[0], request_id) == before
    assert scenario.held(gateways[0])[1] == 0


def test_another_key_cannot_resume_it(gateways: list[Gateway], work: Background) -> None:
    _, made = scenario.begin(gateways[0])
    for name in (made, "resp_unknown"):
        received = gateways[1].get(f"/v1/responses/{name}?stream=true", key="bob")
        assert received.refusal == (404, "invalid_request_error", None, None)
        assert received.error["message"] == f"Response with id '{name}' not found."
    assert gateways[0].get(f"/v1/responses/{made}?stream=true", key=None).status == 401


def test_a_cut_stream_goes_on_where_it_was_cut(gateways: list[Gateway], work: Background) -> None:
    """Through cuts of the upstream, at whichever gateway."""
    with gateways[0].connect() as raw:
        work.shows, work.cut_after = 5, 3
        request_id = begin(gateways[0], raw)
        *seen, last = received(raw.read_chunks())
    made = made_id(work)
    for cut_after in (4, None):
        work.shows, work.cut_after = 6, cut_after
        with resume(gateways[1], made, last["sequence_number"]) as raw:
            raw.read_head()
            if cut_after is None:
                seen += received(raw.read_chunk())
                work.end(made)
            *more, last = received(raw.read_chunks())
            seen += more
        if cut_after is not None:
            assert (last["type"], last["sequence_number"]) == ("error", 4)
            assert last["error"]["code"] == "stream_interrupted"
    assert last == work.events(made)[-1]
    assert [event["sequence_number"] for event in seen[:5]] == [0, 1, 2, 3, 4]
    check(scenario.settled(gateways[0], request_id), **REPORTED)


def test_a_resumed_stream_says_that_the_response_failed(gateways: list[Gateway], work: Background) -> None:
    _, made = scenario.begin(gateways[0])
    work.end(made, "failed", error=FAILED | {"message": "sorry, Bearer sk-upstream"})
    whole = work.events(made)
    with resume(gateways[0], made, len(whole) - 2) as raw:
        raw.read_head()
        (last,) = received(raw.read_chunks())
    assert (last["type"], last["response"]["id"], last["response"]["status"]) == ("response.failed", made, "failed")
    assert "sk-upstream" not in json.dumps(last)


def test_the_upstream_breaks_off_before_the_first_event(gateways: list[Gateway], work: Background) -> None:
    _, made = scenario.begin(gateways[0])
    work.shows, work.cut_after = 3, -1
    assert gateways[0].get(f"/v1/responses/{made}?stream=true").refusal[:2] == (502, "server_error")


def test_the_client_of_a_resumed_stream_leaves(gateways: list[Gateway], work: Background) -> None:
    request_id, made = scenario.begin(gateways[0])
    work.shows = 3
    with resume(gateways[0], made) as raw:
        raw.read_until(b"response.created")
    work.end(made)
    check(scenario.settled(gateways[0], request_id), **REPORTED | {"stream": False})

"""Streams of background responses: a stream may end before its response, which is settled once all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways, start_pair
from tests.fakes import responses_api as api
from tests.flows import background as scene
from tests.flows.background import Background, told
from tests.flows.background import begin_stream as begin

from .client import Raw
from .house import Gateway, check, eventually, secret

REPORTED = {
    "usage_source": "reported", "prompt_tokens": 30, "completion_tokens": 12, "cached_tokens": 10,
    "endpoint": "responses", "status": 200, "ended": "done", "stream": True, "truncated": False,
}  # fmt: skip
FAILED = {"code": "server_error", "message": "sorry"}


@pytest.fixture(scope="module")
def houses(gateways: StartsGateways, theatre: Stage, store_url: str) -> list[Gateway]:
    return start_pair(gateways, scene.config(theatre.url, store_url), store_url)


@pytest.fixture
def work(upstream: Stage) -> Iterator[Background]:
    work = Background()
    upstream.play(always=work)
    yield work
    work.shows = 0
    for made, response in work.responses.items():
        if response["status"] in ("queued", "in_progress"):
            work.end(made)


def made_id(work: Background) -> str:
    return list(work.responses)[-1]


def test_it_is_passed_on_and_settled_before_its_last_event(houses: list[Gateway], work: Background) -> None:
    house = houses[0]
    used, _ = scene.held(house)
    with house.connect() as raw:
        work.shows = 4
        request_id = begin(house, raw)
        made = made_id(work)
        assert scene.records(house, request_id) == []
        assert scene.held(house)[1] > 0
        work.end(made)
        body = raw.read_chunks()
    assert body == api.written(work.events(made))
    check(scene.settled(house, request_id), **REPORTED)
    assert scene.held(house) == (used + 42, 0)
    for each in houses:
        assert each.get(f"/v1/responses/{made}").json["status"] == "completed"
        assert each.get(f"/v1/responses/{made}", key="bob").status == 404


def test_its_client_leaves(houses: list[Gateway], work: Background) -> None:
    house = houses[0]
    used, _ = scene.held(house)
    with house.connect() as raw:
        work.shows = 4
        request_id = begin(house, raw)
        raw.read_until(b"response.output_text.delta")
    made = made_id(work)
    eventually(lambda: work.polls)
    assert scene.records(house, request_id) == []
    assert scene.held(house)[1] > 0
    work.end(made)
    check(scene.settled(houses[1], request_id), **REPORTED)
    assert scene.held(house) == (used + 42, 0)


def test_its_client_leaves_before_the_first_event(houses: list[Gateway], work: Background) -> None:
    before = {row["id"] for row in houses[0].calls("bob")}
    work.answers_after_s, work.shows = 0.5, 2
    with houses[0].connect() as raw:
        asked = {"model": scene.MODEL, "input": "Hello", "background": True, "stream": True}
        raw.post("/v1/responses", json.dumps(asked).encode(), secret("bob"))
        made = eventually(lambda: list(work.responses))[-1]
    work.end(made)
    (new,) = eventually(lambda: [row for row in houses[0].calls("bob") if row["id"] not in before])
    check(new, prompt_tokens=30, completion_tokens=12, usage_source="reported", stream=True)


def test_its_upstream_breaks_off(houses: list[Gateway], work: Background) -> None:
    """The response goes on, so that it has not failed: the error repeats the number of the last event."""
    house = houses[0]
    with house.connect() as raw:
        work.shows, work.cut_after = 9, 4
        request_id = begin(house, raw)
        *passed, last = told(raw.read_chunks())
    made = made_id(work)
    assert [event["sequence_number"] for event in passed] == [0, 1, 2, 3, 4]
    assert (last["type"], last["sequence_number"], last["error"]["code"]) == ("error", 4, "stream_interrupted")
    assert f"GET /v1/responses/{made}?stream=true" in last["error"]["message"]
    assert scene.records(house, request_id) == []
    work.end(made)
    check(scene.settled(house, request_id), **REPORTED)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"status": "incomplete"}, REPORTED),
        ({"status": "failed", "error": FAILED}, {"status": 502, "ended": "error", "prompt_tokens": 30}),
        ({"status": "failed", "usage": None, "error": FAILED}, {"status": 502, "usage_source": "estimated"}),
    ],
)
def test_it_ends_otherwise(
    houses: list[Gateway], work: Background, end: dict[str, Any], expected: dict[str, Any]
) -> None:
    with houses[0].connect() as raw:
        work.shows = 9
        request_id = begin(houses[0], raw)
        work.end(made_id(work), **end)
        events = told(raw.read_chunks())
    assert events[-1]["type"] == f"response.{end['status']}"
    assert events[-1]["response"]["id"] == made_id(work)
    check(scene.settled(houses[0], request_id), **expected)


def test_an_error_event_does_not_say_how_the_response_ends(houses: list[Gateway], work: Background) -> None:
    with houses[0].connect() as raw:
        work.shows = 9
        request_id = begin(houses[0], raw)
        work.ends_with = {"type": "error", "code": "server_error", "message": "sorry", "param": None}
        work.end(made_id(work))
        events = told(raw.read_chunks())
    assert events[-1]["error"]["code"] == "stream_interrupted"
    check(scene.settled(houses[0], request_id), **REPORTED)


def test_an_upstream_that_answers_without_a_stream(houses: list[Gateway], work: Background) -> None:
    work.ignores_stream = True
    with houses[0].connect() as raw:
        request_id = begin(houses[0], raw)
        events = told(raw.read_chunks())
    assert [event["type"] for event in events] == ["response.created", "response.queued", "error"]
    work.end(made_id(work))
    check(scene.settled(houses[0], request_id), **REPORTED)


def test_one_that_is_not_stored_is_bound_while_it_is_made(houses: list[Gateway], work: Background) -> None:
    """OpenAI keeps it for some minutes all the same, so that it can be polled."""
    with houses[0].connect() as raw:
        work.shows = 2
        request_id = begin(houses[0], raw, store=False)
        raw.read_until(b"response.created")
        assert houses[1].get(f"/v1/responses/{made_id(work)}").status == 200
    work.end(made_id(work))
    check(scene.settled(houses[0], request_id), **REPORTED)
    plain, made = scene.begin(houses[0], store=False)
    assert scene.records(houses[0], plain) == []
    work.end(made)
    check(scene.settled(houses[0], plain), **REPORTED | {"stream": False})


# --------------------------------------------------------------------------------------------------------- resumed


def resume(house: Gateway, made: str, after: int | None = None, who: str = "alice") -> Raw:
    """A connection over which the stream of a response is resumed."""
    raw = house.connect()
    query = "" if after is None else f"&starting_after={after}"
    raw.send(
        f"GET /v1/responses/{made}?stream=true{query} HTTP/1.1\r\nHost: gateway\r\n"
        f"Authorization: Bearer {secret(who)}\r\n\r\n".encode()
    )
    return raw


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_it_is_resumed_from_each_event(houses: list[Gateway], work: Background, status: str) -> None:
    request_id, made = scene.begin(houses[0])
    work.end(made, status)
    before = scene.settled(houses[0], request_id)
    whole = work.events(made)
    for after in [None, *range(len(whole) - 1)]:
        with resume(houses[1], made, after) as raw:
            head = raw.read_head()
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            assert raw.read_chunks() == api.written(whole[0 if after is None else after + 1 :])
    assert scene.settled(houses[0], request_id) == before
    assert scene.held(houses[0])[1] == 0


def test_another_key_cannot_resume_it(houses: list[Gateway], work: Background) -> None:
    _, made = scene.begin(houses[0])
    for name in (made, "resp_unknown"):
        told = houses[1].get(f"/v1/responses/{name}?stream=true", key="bob")
        assert told.told == (404, "invalid_request_error", None, None)
        assert told.error["message"] == f"Response with id '{name}' not found."
    assert houses[0].get(f"/v1/responses/{made}?stream=true", key=None).status == 401


def test_a_cut_stream_goes_on_where_it_was_cut(houses: list[Gateway], work: Background) -> None:
    """Through cuts of the upstream, at whichever gateway."""
    with houses[0].connect() as raw:
        work.shows, work.cut_after = 5, 3
        request_id = begin(houses[0], raw)
        *seen, last = told(raw.read_chunks())
    made = made_id(work)
    for cut_after in (4, None):
        work.shows, work.cut_after = 6, cut_after
        with resume(houses[1], made, last["sequence_number"]) as raw:
            raw.read_head()
            if cut_after is None:
                seen += told(raw.read_chunk())
                work.end(made)
            *more, last = told(raw.read_chunks())
            seen += more
        if cut_after is not None:
            assert (last["type"], last["sequence_number"]) == ("error", 4)
            assert last["error"]["code"] == "stream_interrupted"
    assert last == work.events(made)[-1]
    assert [event["sequence_number"] for event in seen[:5]] == [0, 1, 2, 3, 4]
    check(scene.settled(houses[0], request_id), **REPORTED)


def test_a_resumed_stream_says_that_the_response_failed(houses: list[Gateway], work: Background) -> None:
    _, made = scene.begin(houses[0])
    work.end(made, "failed", error=FAILED | {"message": "sorry, Bearer sk-upstream"})
    whole = work.events(made)
    with resume(houses[0], made, len(whole) - 2) as raw:
        raw.read_head()
        (last,) = told(raw.read_chunks())
    assert (last["type"], last["response"]["id"], last["response"]["status"]) == ("response.failed", made, "failed")
    assert "sk-upstream" not in json.dumps(last)


def test_the_upstream_breaks_off_before_the_first_event(houses: list[Gateway], work: Background) -> None:
    _, made = scene.begin(houses[0])
    work.shows, work.cut_after = 3, -1
    assert houses[0].get(f"/v1/responses/{made}?stream=true").told[:2] == (502, "server_error")


def test_the_client_of_a_resumed_stream_leaves(houses: list[Gateway], work: Background) -> None:
    request_id, made = scene.begin(houses[0])
    work.shows = 3
    with resume(houses[0], made) as raw:
        raw.read_until(b"response.created")
    work.end(made)
    check(scene.settled(houses[0], request_id), **REPORTED | {"stream": False})

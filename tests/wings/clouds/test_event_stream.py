"""Amazon Bedrock's binary event stream, read in any pieces."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from zlib import crc32

import pytest

from gateway.wings.clouds.amazon import UnreadableStream
from gateway.wings.clouds.event_stream import ERRORS, EventStreamReader

from .fakes import chunk_of, exception_of, message_events, message_of

EVENTS = message_events("naïve\n text")
WHOLE = b"".join(map(chunk_of, EVENTS))


def sse(data: bytes) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in data.decode().split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(text.removeprefix("data: "))) for name, text in blocks]


@pytest.mark.parametrize("size", [1, 3, 100, len(WHOLE)])
def test_events_are_anthropics_own_in_whatever_pieces_they_come(size: int) -> None:
    reader = EventStreamReader()
    found = b"".join([reader.read(WHOLE[at : at + size]) for at in range(0, len(WHOLE), size)])
    assert sse(found) == [(event["type"], event) for event in EVENTS]


METRICS = {
    "inputTokenCount": 9, "outputTokenCount": 3, "cacheReadInputTokenCount": 500, "cacheWriteInputTokenCount": 7,
    "invocationLatency": 900, "firstByteLatency": 300,
}  # fmt: skip
REPORT = {
    "input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 500, "cache_creation_input_tokens": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("start", "stop", "usage"),
    [
        ({}, {"amazon-bedrock-invocationMetrics": METRICS}, REPORT),
        ({"usage": {"output_tokens": 1}}, {"amazon-bedrock-invocationMetrics": METRICS}, REPORT),
        ({"usage": {"input_tokens": 9}}, {"amazon-bedrock-invocationMetrics": METRICS}, None),
        ({}, {"amazon-bedrock-invocationMetrics": METRICS, "usage": {"input_tokens": 8}}, {"input_tokens": 8}),
        ({}, {"amazon-bedrock-invocationMetrics": 7}, None),
        ({}, {"amazon-bedrock-invocationMetrics": {"inputTokenCount": None}}, None),
        ({}, {}, None),
    ],
)
def test_counts_of_bedrock_are_the_usage_where_it_is_missing(start: Any, stop: Any, usage: Any) -> None:
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": '"input_tokens": 5'}},
        {"type": "message_stop", **stop},
    ]
    found = sse(EventStreamReader().read(b"".join(map(chunk_of, events))))
    assert [event for _, event in found[:2]] == events[:2]
    assert found[2][1].get("usage") == usage
    assert {**found[2][1], "usage": None} == {**events[2], "usage": None}


@pytest.mark.parametrize("kind", [*ERRORS, "internalServerException", "modelStreamErrorException"])
def test_an_exception_is_an_error_event(kind: str) -> None:
    (found,) = sse(EventStreamReader().read(exception_of(kind, "Too many tokens")))
    error = {"type": ERRORS.get(kind, "api_error"), "message": f"{kind}: Too many tokens"}
    assert found == ("error", {"type": "error", "error": error})


def test_the_exceptions_are_those_that_botocore_knows() -> None:
    from botocore.loaders import Loader

    shape = Loader().load_service_model("bedrock-runtime", "service-2")["shapes"]["ResponseStream"]
    assert {*ERRORS} <= shape["members"].keys()


def test_other_events_are_passed_over() -> None:
    headers = (":event-type", "metadata"), (":message-type", "event")
    assert EventStreamReader().read(message_of(headers, b"{}")) == b""


@pytest.mark.parametrize("at", [0, 9, 30, len(chunk_of(EVENTS[0])) - 1])
def test_a_changed_byte_is_noticed(at: int) -> None:
    data = bytearray(chunk_of(EVENTS[0]))
    data[at] ^= 1
    with pytest.raises(UnreadableStream, match=r"event stream: (ChecksumMismatch|Invalid)"):
        EventStreamReader().read(bytes(data))


def test_good_events_before_a_bad_one_are_kept() -> None:
    """They may come in the same read: what has arrived is charged."""
    good = chunk_of(EVENTS[0])
    for bad in (
        good[:-1] + bytes([good[-1] ^ 1]),
        message_of(((":event-type", "chunk"), (":message-type", "event")), b"x"),
    ):
        with pytest.raises(UnreadableStream) as unreadable:
            EventStreamReader().read(good + chunk_of(EVENTS[1]) + bad + good)
        assert sse(unreadable.value.before) == [(event["type"], event) for event in EVENTS[:2]]


def test_lengths_that_cannot_be_and_values_that_are_too_deep_are_unreadable() -> None:
    """botocore raises struct.error for the former, json RecursionError for the latter."""
    prelude = (0).to_bytes(4) + (0).to_bytes(4)
    deep = b'{"bytes":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    chunk = ((":event-type", "chunk"), (":message-type", "event"))
    for bad in (prelude + crc32(prelude).to_bytes(4) + bytes(20), message_of(chunk, deep)):
        with pytest.raises(UnreadableStream):
            EventStreamReader().read(bad)


def test_no_line_break_of_an_event_is_one_of_the_stream() -> None:
    written = b64encode(b'{\r\n"type":\r"ping"}').decode()
    message = message_of(((":event-type", "chunk"), (":message-type", "event")), b'{"bytes": "%b"}' % written.encode())
    assert EventStreamReader().read(message).splitlines() == [b"event: ping", b'data: {  "type": "ping"}', b""]


@pytest.mark.parametrize("payload", [b"[]", b"{}", b"x", b'{"bytes": "%%"}', b'{"bytes": "e30="}'])
def test_a_chunk_without_an_event_is_unreadable(payload: bytes) -> None:
    with pytest.raises(UnreadableStream, match="without an event"):
        EventStreamReader().read(message_of(((":event-type", "chunk"), (":message-type", "event")), payload))

"""Realtime: what a client may send on, and which texts of the upstream's errors it gets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from gateway.api import file_ids
from gateway.errors import InvalidRequest
from gateway.wings.realtime import formats as realtime
from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, key, model, settings
from tests.invariants.test_foreign_ids import spellings, values
from tests.test_floors import complaints_of, impure
from tests.wings.realtime.test_realtime import session, until

OWN = "deployment-of-the-gateway"
ACCOUNT = f"{UPSTREAM_KEY} may not use {OWN}"


@pytest.fixture(scope="module")
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, upstream: RealtimeUpstream) -> Gateway:
    models = {"gpt-realtime": model("realtime") | {"routes": [{"upstream": "main", "model": OWN}]}}
    able = {"main": {"capabilities": {"realtime": True}}}
    return start_shared_gateway(settings(upstream.url, models=models, upstreams=able, keys=[key("alice")]))


@pytest.fixture(autouse=True)
def _fresh(upstream: RealtimeUpstream) -> None:
    upstream.reset()
    upstream.speaks_itself = False


@pytest.mark.parametrize("place", ["item", "response", "session"])
async def test_a_file_that_is_not_the_keys_is_not_sent_on(
    gateway: Gateway, upstream: RealtimeUpstream, place: str
) -> None:
    """In every spelling of its member, and as a value of any kind."""
    plain = json.dumps({"type": "test.x", place: {"content": [{"type": "input_image", "": 0}]}})
    async with session(gateway) as socket:
        for name in spellings("file_id"):
            for value in values("7001"):
                await socket.send_str(plain.replace('"": 0', f"{name}: {value}"))
                refused = (await until(socket, "error"))["error"]["message"]
                assert refused.startswith("No such File object"), (name, value)
    assert not [each for each in upstream.seen if each["type"] == "test.x"]


_FAILED: dict[str, Any] = {"status": "failed", "status_details": {"error": {"code": ACCOUNT, "message": ACCOUNT}}}
ERRORS: dict[str, dict[str, Any]] = {
    "an error": {"type": "error", "error": {"message": ACCOUNT, "param": ACCOUNT, "more": [{"deep": ACCOUNT}]}},
    "a failed response": {"type": "response.done", "response": {"id": "resp_1"} | _FAILED},
    "a response with a tool that failed": {
        "type": "response.done",
        "response": {"id": "resp_1", "output": [{"type": "mcp_call", "error": {"message": ACCOUNT}}]},
    },
    "a failed transcription": {
        "type": "conversation.item.input_audio_transcription.failed", "item_id": "item_1",
        "error": {"message": ACCOUNT},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
async def test_no_error_names_the_gateways_account(gateway: Gateway, name: str) -> None:
    async with session(gateway) as socket:
        await socket.send_json({"type": "test.say", "event": ERRORS[name]})
        seen = json.dumps(await until(socket, ERRORS[name]["type"]))
    assert "may not use" in seen
    assert UPSTREAM_KEY not in seen
    assert OWN not in seen


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"type": "input_audio_buffer.append", "audio": "A" * realtime.MAX_CHARACTERS}),
        json.dumps({"type": "x", "many": [0] * realtime.MAX_MEMBERS}),
        json.dumps({"type": "x", "audio": "A" * realtime.MAX_READ}),
        json.dumps({"type": "x", "text": "é" * realtime.MAX_READ_WIDE}, ensure_ascii=False),
        json.dumps({"type": "input_audio_buffer.append", "audio": "\n" + "A" * realtime.MAX_READ}),
        json.dumps({"type": "input_audio_buffer.append", "x": {"audio": "A" * realtime.MAX_READ}, "audio": ""}),
        json.dumps({"audio": "A" * realtime.MAX_READ, "type": "input_audio_buffer.append", "text": "A" * 9999}),
    ],
    ids=["long", "of many members", "not of the buffer", "wide", "with an escape", "inside", "long beside its audio"],
)
def test_an_event_that_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        realtime.read_client_event(text)
    assert caught.value.code == "event_too_large"


@pytest.mark.parametrize("beside", [{"type": "x"}, {"type": "input_audio_buffer.append", "audio": "A" * 30_000}])
def test_an_id_that_is_too_long_to_be_held_is_refused(beside: dict[str, str]) -> None:
    realtime.read_client_event(json.dumps(beside | {"event_id": "x" * realtime.MAX_EVENT_ID}))
    with pytest.raises(InvalidRequest) as caught:
        realtime.read_client_event(json.dumps(beside | {"event_id": "x" * (realtime.MAX_EVENT_ID + 1)}))
    assert caught.value.param == "event_id"


@pytest.mark.parametrize("event_id", [{}, {"event_id": "one"}])
def test_much_audio_is_taken_without_reading_it(monkeypatch: pytest.MonkeyPatch, event_id: dict[str, str]) -> None:
    """To read 15 MiB of JSON takes 60 ms and more, and holds up other calls."""
    audio, read = "A" * (realtime.MAX_CHARACTERS - 100), list[int]()
    append = {"type": "input_audio_buffer.append", **event_id, "audio": audio}
    whole, spaced = json.dumps(append), json.dumps({**dict(reversed(append.items()))}, separators=(" ,", " : "))

    def loads(text: str, **given: Any) -> Any:
        read.append(len(text))
        return json.JSONDecoder(**given).decode(text)

    def dumps(value: Any, **given: Any) -> str:
        read.append(len(text := json.JSONEncoder(**given).encode(value)))
        return text

    monkeypatch.setattr(realtime, "json", SimpleNamespace(loads=loads, dumps=dumps))
    assert realtime.read_client_event(whole) == realtime.read_client_event(spaced) == append
    assert json.loads(realtime.write_event(append)) == append
    assert max(read) < 100


@pytest.mark.parametrize("audio", ['"', "\\", "é", ""])
def test_any_event_is_written_as_it_is(audio: str) -> None:
    long = audio + "A" * realtime.MAX_READ + audio
    for event in ({"type": "x", "audio": long}, {"type": "x", "item": {"audio": "", "a": '"audio":""'}, "audio": long}):
        assert json.loads(realtime.write_event(event)) == event


def test_members_beside_much_audio_are_read_as_of_any_event() -> None:
    audio = "A" * realtime.MAX_MEMBERS
    with pytest.raises(InvalidRequest, match="more than once"):
        realtime.read_client_event(f'{{"type":"input_audio_buffer.append","audio":"{audio}","audio":""}}')
    with pytest.raises(InvalidRequest, match="could not be parsed"):
        realtime.read_client_event(f'{{"type":"input_audio_buffer.append","audio":"{audio}"')
    other = {"type": "conversation.item.create", "item": {"audio": audio}, "audio": ""}
    assert realtime.read_client_event(json.dumps(other)) == other
    escaped = {"type": "input_audio_buffer.append", "audio": f'{audio}"', "x": ""}
    assert realtime.read_client_event(json.dumps(escaped)) == escaped


def test_names_of_an_event_are_folded_once_and_only_if_one_may_be_that_of_a_file() -> None:
    """Counted in calls: the largest event that is read has about this many names."""
    names = {f"name {place}": 0 for place in range(realtime.MAX_MEMBERS // 2 - 10)}
    text = json.dumps({"type": "x", "item": names})
    assert realtime.read_client_event(text)
    with called() as calls:
        assert not [*file_ids.ids_in({"item": names})]
    assert calls.count("folded") <= 4
    assert len(calls) < 3 * len(names)
    with called() as calls:
        assert [*file_ids.ids_in({"item": {"file_id": "file-1", **names}})] == ["file-1"]
    assert calls.count("folded") <= len(names) + 1


@contextmanager
def called() -> Iterator[list[str]]:
    """The names of the functions that are called."""
    names: list[str] = []

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event in ("call", "c_call"):
            names.append(frame.f_code.co_name if event == "call" else function.__name__)

    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("text", ['{"type": "x", "FILE-ID": 7}', '{"type": "x", "\\u0066ile_id": 7}', '{"ﬁle_id": 7}'])
def test_a_file_is_found_by_any_spelling_of_its_name(text: str) -> None:
    assert [*file_ids.ids_in(json.loads(text))] == ["7"]


def test_the_format_is_pure() -> None:
    assert complaints_of(impure, ["gateway.wings.realtime.formats"]) == ""

"""Streams of the Responses API, cut at every byte, with short and with long events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.errors import UpstreamFailed
from gateway.formats import sse
from gateway.formats.format import ScanInput
from gateway.formats.openai import responses
from gateway.formats.openai.responses_reader import RESPONSE_TEXT
from gateway.formats.openai.responses_scan import ResponsesScan
from gateway.records import Failure, Fault, Phase, Usage
from tests.amounts import amount
from tests.fakes import responses_api as api

REPORTED = Usage(30, 12, 10, 5, "reported", (("cache_write", 4),))
OUTPUT = [api.function_call("look", '{"for": "a \\"b\\""}'), api.message('Said "so",\nand é.', 2)]
WHOLE = api.response(OUTPUT, tools=[{"type": "function", "name": "look", "parameters": {"type": "response.failed"}}])
EVENTS = api.events(OUTPUT, WHOLE)
FAILED = api.response([], status="failed", error={"code": "server_error", "message": "sorry"})

STREAMS: dict[str, bytes] = {
    "completed": api.written(EVENTS),
    "spaces": api.written(EVENTS, is_compact=False),
    "type last": api.written([{k: e[k] for k in sorted(e, reverse=True) if k != "type"} | e for e in EVENTS]),
    "no names": api.written(EVENTS).replace(b"event: ", b"x: "),
    "CRLF": api.written(EVENTS).replace(b"\n", b"\r\n"),
    "CR": api.written(EVENTS).replace(b"\n", b"\r"),
    "done": api.written(EVENTS).replace(b"response.completed", b"response.done"),
    "DONE": api.written(EVENTS) + b"data: [DONE]\n\n",
    "incomplete": api.written(
        api.events(OUTPUT, api.response(OUTPUT, status="incomplete"), "response.incomplete", WHOLE)
    ),
    "no blank line": api.written(EVENTS)[:-2],
}
BAD: dict[str, bytes] = {
    "failed": api.written(api.events(OUTPUT, FAILED, "response.failed", WHOLE)),
    "failed, type last": api.written(
        [
            {k: e[k] for k in sorted(e, reverse=True) if k != "type"} | e
            for e in api.events(OUTPUT, FAILED, "response.failed", WHOLE)
        ]
    ),
    "failed as completed": api.written(api.events(OUTPUT, FAILED, "response.completed", WHOLE)),
    "error event": api.written(
        [*EVENTS[:-1], {"type": "error", "sequence_number": 99, "code": "server_error", "message": "sorry"}]
    ),
    "nested error": api.written(
        [*EVENTS[:-1], {"type": "error", "error": {"code": "server_error", "message": "sorry", "type": "x"}}]
    ),
    "error without a type": api.written(EVENTS[:-1]) + b'data: {"error": {"code": "server_error", "message": "s"}}\n\n',
}
TEXTS = sum(b"delta" in event for event in STREAMS["completed"].split(b"\n\n"))


def fed(text: bytes, *cuts: int) -> tuple[ResponsesScan, bytes]:
    scan, passed = ResponsesScan(ScanInput()), b""
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        piece = text[start:end]
        if scan.is_at_start and scan.is_alike(piece):
            passed += piece
        else:
            passed += scan.feed(piece)[0]
    passed += scan.finish()
    return scan, passed


def cuts(text: bytes, name: str, longest: int) -> Sequence[int]:
    """Every byte of some streams, and of all of them with events of usual length; every ninth of the others. In
    `make test` every 131st of all of them."""
    is_every = longest == 65536 or name in ("completed", "failed")
    return [*range(0, len(text), amount(1 if is_every else 9, 131)), len(text)]


@pytest.fixture(params=[sse.LONG_EVENT, 150])
def longest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Events are long above this number of bytes."""
    monkeypatch.setattr(sse, "LONG_EVENT", request.param)
    return int(request.param)


@pytest.mark.shortened
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_every_cut_of_a_good_stream(name: str, longest: int) -> None:
    text = STREAMS[name]
    expected = text.removesuffix(b"data: [DONE]\n\n") + (b"\n\n" if name == "no blank line" else b"")
    for cut in cuts(text, name, longest):
        scan, passed = fed(text, cut)
        ended = passed + scan.last(Usage())
        assert ended == expected or (cut == len(text) - 1 and ended + b"\n" == expected), cut  # a CRLF that was cut
        assert scan.last(Usage()), cut
        assert not passed.endswith(expected[-20:]), cut
        assert scan.usage == REPORTED, cut
        assert scan.is_usage_final
        assert (scan.is_complete, scan.is_done, scan.error, scan.is_inside_event) == (True, True, None, False), cut
        assert (scan.reader.id, scan.model) == ("resp_1", "gpt-4o-mini-2024")
        assert scan.text_events() == TEXTS or longest < 65536


@pytest.mark.shortened
@pytest.mark.parametrize("name", sorted(BAD))
def test_every_cut_of_a_stream_that_fails(name: str, longest: int) -> None:
    text = BAD[name]
    events = text.split(b"\n\n")
    expected = b"\n\n".join([*events[:-2], b""])
    for cut in cuts(text, name, longest):
        scan, passed = fed(text, cut)
        assert scan.error is not None, cut
        assert scan.error["code"] == "server_error"
        assert not scan.is_complete
        last = scan.failed(UpstreamFailed.after(Failure("up", Phase.RELAYING, Fault.CUT)), "req_1")
        whole = passed + last
        kinds = [line for line in whole.split(b"\n") if line.startswith(b"event: ")]
        assert sum(kind in (b"event: response.failed", b"event: error") for kind in kinds) <= 1
        assert whole.endswith(b"}\n\n"), cut
        if b"upstream_error" in last:
            assert passed == expected
            data = json.loads(last.partition(b"data: ")[2])
            assert data["sequence_number"] == len(EVENTS) - 1
            assert data["response"]["id"] == "resp_1"
            assert data["response"]["error"] == {
                "code": "upstream_error", "message": "The upstream for this model broke off its answer.",
            }  # fmt: skip
        else:  # a long event that was known for a failure only at its end
            assert whole == text
            assert longest < 65536
        if "failed" in name:
            assert scan.usage == REPORTED
            assert scan.is_usage_final


@pytest.mark.shortened
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_a_cut_stream_is_never_complete(name: str, longest: int) -> None:
    text = STREAMS[name].removesuffix(b"data: [DONE]\n\n").rstrip(b"\r\n")
    for size in cuts(text, name, longest)[:-1]:
        scan, passed = fed(text[:size])
        assert not scan.is_complete, size
        assert scan.usage is None
        last = json.loads(scan.failed(UpstreamFailed("x"), "req_1").partition(b"data: ")[2])
        assert last["type"] == "response.failed"
        if passed and longest == 65536:
            number = passed.count(b"response.") and passed.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n\n")
            assert last["sequence_number"] == number


def test_memory_of_a_long_end_is_bounded() -> None:
    end = api.response(OUTPUT, instructions="x" * 5_000_000)
    scan, size = ResponsesScan(ScanInput()), 0
    text = api.written(api.events(OUTPUT, end, start=WHOLE))
    most = 0
    for at in range(0, len(text), 4096):
        passed, _ = scan.feed(text[at : at + 4096])
        size += len(passed)
        most = max(most, len(passed))
    assert scan.usage == REPORTED
    assert size + len(scan.last(Usage())) == len(text)
    assert most < 2 * sse.LONG_EVENT
    assert len(scan.last(Usage())) < sse.LONG_EVENT


def tools(*items: dict[str, Any], **more: Any) -> Usage | None:
    output = [{"id": f"x_{number}", **item} for number, item in enumerate(items)]
    whole = api.response(output, **more)
    plain = responses.facts(json.dumps(whole).encode()).usage
    text = api.one({"type": "response.completed", "sequence_number": 0, "response": whole})
    assert fed(text)[0].usage in (plain, plain and plain._replace(source="reported"))
    return plain


def test_hosted_tools_are_units_beside_the_tokens(longest: int) -> None:
    search, files = {"type": "web_search_call"}, {"type": "file_search_call"}
    picture, code = {"type": "image_generation_call"}, {"type": "code_interpreter_call", "container_id": "cntr_1"}
    shell = {"type": "shell_call", "environment": {"type": "container_reference", "container_id": "cntr_2"}}
    received = {"web_search": {"num_requests": 3}, "image_gen": {"input_tokens": 50, "output_tokens": 900}}
    assert tools(search, picture, tool_usage=received) == REPORTED._replace(
        more=(("cache_write", 4), ("web_searches", 3), ("image_tool_in", 50), ("image_tool_out", 900))
    )
    assert tools(search, search, picture) == REPORTED._replace(
        source="estimated", more=(("cache_write", 4), ("web_searches", 2), ("images", 1))
    )
    assert tools(search, tool_usage={"web_search": {}}) == REPORTED._replace(
        source="estimated", more=(("cache_write", 4), ("web_searches", 1))
    )
    assert tools(files, files) == REPORTED._replace(more=(("cache_write", 4), ("file_searches", 2)))
    # Billed by minute, which nothing reports.
    assert tools(files, code, code, shell) == REPORTED._replace(
        source="estimated", more=(("cache_write", 4), ("file_searches", 1), ("containers", 2))
    )
    assert tools(tool_usage={"web_search": {"num_requests": 0}}) == REPORTED


def test_long_writes_of_the_cache_and_the_tier() -> None:
    details = {"cache_write_tokens": 9, "cache_write_tokens_details": {"ttl_30m_tokens": 2, "ttl_12h_tokens": 7}}
    usage = {"input_tokens": 20, "input_tokens_details": details, "output_tokens": 1}
    assert tools(usage=usage, service_tier="flex") == Usage(
        20, 1, 0, 0, "reported", (("cache_write", 2), ("cache_write_1h", 7)), "flex"
    )


def test_texts_are_counted_when_they_come_only_at_the_end() -> None:
    text = api.written([EVENTS[0], {"type": "response.completed", "response": api.response(OUTPUT, usage=None)}])
    scan, _ = fed(text)
    assert scan.usage is None
    assert scan.has_text
    assert scan.delivered_tokens() > 5


def test_items_count_where_the_end_has_none(longest: int) -> None:
    """ChatGPT's backend ends with `output: []` behind whole items (BerriAI/litellm#32724)."""
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    ends: list[dict[str, Any]] = [{"type": "response.output_item.done", "item": item} for item in (*OUTPUT, search)]
    whole = api.response([])
    events = [*api.events([], whole)[:-1], *ends, {"type": "response.completed", "response": whole}]
    scan, _ = fed(api.written(events))
    assert scan.reader.items == (*[item["id"] for item in OUTPUT], "ws_1")
    assert scan.usage is not None
    assert dict(scan.usage.more)["web_searches"] == 1


def test_reasoning_and_fields_of_other_protocols() -> None:
    delta = {"type": "response.reasoning_text.delta", "sequence_number": 2, "delta": "hm"}
    scan, passed = fed(b": hello\n\nid: 5\n\nid: 6\nretry: 9\n" + api.one(delta) + b"event: x\n\n")
    assert passed == b": hello\n\n" + api.one(delta)
    assert scan.has_reasoned
    assert not scan.is_sign_of_life(b": hello\n\n")


def test_a_plain_answer_as_events() -> None:
    scan, passed = fed(responses.as_events(json.dumps(WHOLE).encode(), False, Usage()))
    assert scan.usage == REPORTED
    lines = (passed + scan.last(Usage())).split(b"\n")
    kinds = [json.loads(line[6:])["type"] for line in lines if line.startswith(b"data: ")]
    items = ["response.output_item.added", "response.output_item.done"]
    assert kinds == ["response.created", *items, *items, "response.completed"]


def of_item(item: dict[str, Any], *between: dict[str, Any], is_done: bool = False) -> ResponsesScan:
    """The scan of a stream that broke off in an item of its output, or behind it."""
    place = {"output_index": 0}
    events = [{"type": "response.output_item.added", **place, "item": item | {"status": "in_progress"}}]
    events += [each | place for each in between]
    if is_done:
        events.append({"type": "response.output_item.done", **place, "item": item})
    return fed(api.written([*EVENTS[:2], *events]))[0]


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("image_generation_call", "images"), ("web_search_call", "web_searches"), ("file_search_call", "file_searches"),
        ("code_interpreter_call", "containers"),
    ],
)  # fmt: skip
def test_a_tool_that_has_begun_counts_once(kind: str, unit: str) -> None:
    """The last partial picture is nearly the whole one, and its item ends behind it."""
    partial = {"type": "response.image_generation_call.partial_image", "partial_image_b64": "AAAA"}
    for is_done in (False, True):
        assert of_item({"type": kind, "id": "i"}, partial, is_done=is_done).named().more == ((unit, 1),)
    opened = {"type": "web_search_call", "id": "i", "action": {"type": "open_page"}}
    assert of_item(opened, is_done=True).named().more == ()


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        ({"type": "shell_call", "action": {"commands": ["word " * 100]}}, "shell_call_command"),
        ({"type": "apply_patch_call", "operation": {"diff": "word " * 100}}, "apply_patch_call_operation_diff"),
        ({"type": "function_call", "arguments": "word " * 100}, "function_call_arguments"),
        ({"type": "local_shell_call", "action": {"command": ["sh", "word " * 100]}}, None),
    ],
)
def test_what_a_tool_is_asked_to_do_is_text(item: dict[str, Any], kind: str | None) -> None:
    """Also where the item comes whole, without its pieces; never twice."""
    pieces = [{"type": f"response.{kind}.delta", "delta": "word " * 25}] * 4 if kind else []
    for between, is_done in ((pieces, False), (pieces, True), ([], True)):
        assert 100 <= of_item(item, *between, is_done=is_done or not kind).delivered_tokens() < 250


@pytest.mark.parametrize("has_pieces", [True, False])
def test_items_that_go_on_at_once_are_counted_once(has_pieces: bool) -> None:
    """Relays that translate a chat end all items together."""
    given = "word " * 100
    items = [{"type": "function_call", "id": f"f{place}", "arguments": given} for place in range(3)]
    places = list(enumerate(items))
    events = [{"type": "response.output_item.added", "output_index": at, "item": {"type": "x"}} for at, _ in places]
    piece = {"type": "response.function_call_arguments.delta", "delta": given}
    events += [piece | {"output_index": at} for at, _ in places if has_pieces]
    events += [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in places]
    assert 300 <= fed(api.written([*EVENTS[:2], *events]))[0].delivered_tokens() < 700


@pytest.mark.parametrize(
    "item",
    [
        {"type": "shell_call", "action": {"commands": ["word"]}},
        {"type": "apply_patch_call", "operation": {"diff": "word"}},
    ],
)
def test_it_is_text_of_a_plain_response(item: dict[str, Any]) -> None:
    assert RESPONSE_TEXT.findall(json.dumps({"output": [item]}).encode()) == [b"word"]

"""The facts of a streamed answer, and the bytes that the client gets, for any split of the upstream's bytes.

The oracle is a small parser (`read`) without code of `gateway`: it parses events by the WHATWG specification and fails
on events that openai-python cannot parse.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.format import ScanInput
from gateway.formats.openai.reader import StreamScan, as_event
from gateway.formats.sse import LONG_EVENT
from gateway.records import Usage
from tests.amounts import amount

RECORDED = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parents[1] / "recorded").glob("*.sse"))}
LINE_ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


def read(text: bytes) -> list[Any]:
    """The events of a stream as a client parses them. Fails on events that an official SDK cannot parse."""
    lines = re.split(rb"\r\n|\n|\r", text)
    assert lines.pop() == b"", "the last event lacks its blank line"
    events: list[Any] = []
    data: list[bytes] = []
    for line in lines:
        name, _, value = line.partition(b":")
        if not line:
            if data:
                events.append(json.loads(b"\n".join(data)))
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
        else:
            assert name in (b"", b"event"), f"a client stumbles over {line!r}"
    assert not data, "the last event lacks its blank line"
    return events


def facts(scan: StreamScan) -> tuple[object, ...]:
    """All facts at the end, except the measured event lengths."""
    known = scan.reader.finished, scan.usage, scan.is_usage_final, scan.error, scan.is_done, scan.model
    return *known, scan.text_events(), scan.delivered_tokens()


def run(pieces: list[bytes], choices: int = 1, *, shows: bool = False) -> tuple[bytes, StreamScan]:
    scan = StreamScan(ScanInput(choices=choices, shows_usage=shows))
    passed = b""
    for piece in pieces:
        out, is_over = scan.feed(piece)
        assert is_over == scan.is_over
        passed += out
    return passed + scan.finish(), scan


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunk(text: str = "a", finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    return event(choices=[{"index": index, "delta": {"content": text}, "finish_reason": finish}], **more)


# ------------------------------------------------------------------------------------------------- recorded answers

CHAT = {"prompt_tokens": 9, "completion_tokens": 12, "cached_tokens": 4, "reasoning_tokens": 2}
EXPECTED: dict[str, tuple[int, int, dict[str, int] | None, dict[str, Any]]] = {
    # events of a client that asked for usage, of one that did not, the usage, and other facts
    "chat-stream-usage": (5, 4, CHAT, {"is_complete": True, "is_done": True, "model": "gpt-4o-mini-2024-07-18"}),
    "completions-stream-two-choices": (5, 4, {"prompt_tokens": 5, "completion_tokens": 4}, {"finished": {0, 1}}),
    "reseller-usage-on-every-chunk": (3, 3, {"prompt_tokens": 5, "completion_tokens": 3}, {"is_complete": True}),
    "litellm-stream-usage": (3, 2, {"prompt_tokens": 7, "completion_tokens": 1}, {"is_complete": True}),
    "error-in-stream": (1, 1, None, {"is_complete": False, "is_done": False, "is_over": True}),
    "no-done": (2, 2, None, {"is_complete": True, "is_done": False, "is_over": False}),
    "no-blank-line-at-the-end": (2, 2, None, {"is_complete": True, "is_done": False, "is_over": False}),
    "truncated-with-done": (1, 1, None, {"is_complete": False, "is_done": True, "is_over": True}),
}


@pytest.mark.shortened
@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("shows", [True, False], ids=["shown", "hidden"])
@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str, shows: bool, end: str) -> None:
    """Whole, split in two at every byte (`make test`: every 11th), and byte by byte: the same events and facts each
    time."""
    shown, hidden, usage, known = EXPECTED[name]
    text = RECORDED[name].replace(b"\n", LINE_ENDS[end])
    choices = 2 if "two" in name else 1

    passed, scan = run([text], choices, shows=shows)
    events = read(passed)
    assert len(events) == (shown if shows else hidden)
    assert b"[DONE]\n" not in passed
    if not shows:
        assert all(event.get("usage") is None for event in events)
    assert scan.usage == (None if usage is None else Usage(**usage, source="reported"))
    assert {name: getattr(scan.reader if name == "finished" else scan, name) for name in known} == known

    for cut in range(1, len(text), amount(1, 11)):
        again, other = run([text[:cut], text[cut:]], choices, shows=shows)
        assert again == passed or read(again) == events  # of a split CRLF the LF may remain
        assert facts(other) == facts(scan)
    again, other = run([text[at : at + 1] for at in range(len(text))], choices, shows=shows)
    assert read(again) == events
    assert facts(other) == facts(scan)


def test_every_recorded_stream_is_expected() -> None:
    assert set(EXPECTED) == set(RECORDED)


@given(st.sampled_from(sorted(RECORDED)), st.sampled_from(sorted(LINE_ENDS)), st.booleans(), st.data())
def test_cut_at_random(name: str, end: str, shows: bool, data: st.DataObject) -> None:
    text = RECORDED[name].replace(b"\n", LINE_ENDS[end])
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=12))})
    passed, scan = run([text], 2, shows=shows)
    again, other = run([text[a:b] for a, b in zip(cuts, cuts[1:], strict=False)], 2, shows=shows)  # noqa: RUF007
    assert read(again) == read(passed)
    assert facts(other) == facts(scan)


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith(("chat", "compl", "litellm"))])
def test_who_asked_for_usage_sees_the_upstreams_own_bytes(name: str) -> None:
    passed, _ = run([RECORDED[name]], shows=True)
    assert passed == RECORDED[name].removesuffix(b"data: [DONE]\n\n")


def test_only_events_that_have_to_change_are_rewritten() -> None:
    passed, _ = run([RECORDED["chat-stream-usage"]])
    assert passed == b"".join(
        RECORDED["chat-stream-usage"].partition(b'"finish_reason":"stop"}],"usage":null}\n\n')[:2]
    )


@pytest.mark.parametrize("name", RECORDED)
def test_a_stream_that_breaks_off_leaves_no_half_event(name: str) -> None:
    """The client gets complete events only, so that it can parse the error event that follows."""
    text = RECORDED[name]
    for cut in range(len(text)):
        passed, scan = run([text[:cut]])
        for part in read(passed):
            assert isinstance(part, dict)
        if scan.is_complete:
            assert cut >= text.index(b'"finish_reason":"') + len('"finish_reason":"stop"}]')


# --------------------------------------------------------------------------------------------------- what is dropped


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        (b": PING\n\n", b": PING\n\n"),
        (b"\n\n", b""),
        (b"id: 1\n\n", b""),
        (b"retry: 1\n\n", b""),
        (b"event: x\n\n", b""),
        (b"event: x\nid: 2\n\n", b""),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data: \n\n", b""),
        (b'id: 1\ndata: {"a":1}\n\n', b'data: {"a":1}\n\n'),
        (b'data: {"a":1}\nid: 1\n\n', b'data: {"a":1}\n\n'),
        (b'data: {"a":1}\r\nretry: 1\r\n\r\n', b'data: {"a":1}\n\n'),
        (b'event: x\ndata: {"a":1}\n\n', b'event: x\ndata: {"a":1}\n\n'),
        (b'data: {"a":\ndata: 1}\n\n', b'data: {"a":\ndata: 1}\n\n'),
        (b'data:{"a":1}\n\n', b'data:{"a":1}\n\n'),
        (b"data: not JSON\n\n", b"data: not JSON\n\n"),
        (b'data: ["usage":1\n\n', b'data: ["usage":1\n\n'),
        (b'data: [{"usage": 1}]\n\n', b'data: [{"usage": 1}]\n\n'),
        (b'data: {"x":' + b"[" * 50000 + b',"usage":1}\n\n', b'data: {"x":' + b"[" * 50000 + b',"usage":1}\n\n'),
    ],
)
def test_blocks(text: bytes, passed: bytes) -> None:
    assert run([text + b": next\n\n"])[0] == passed + b": next\n\n"


USAGE = {"prompt_tokens": 1, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("chunk", "left"),
    [
        ({"choices": [], "usage": USAGE}, None),
        ({"usage": USAGE}, None),
        ({"choices": None, "usage": USAGE}, None),
        ({"choices": [{"index": 0}], "usage": USAGE}, None),
        ({"choices": [{"index": 0}, {"index": 1}], "usage": USAGE}, None),
        ({"choices": [{"index": 0, "text": "", "finish_reason": None}], "usage": USAGE}, None),
        ({"choices": [{"index": 0, "delta": {}}], "usage": USAGE}, None),
        ({"choices": [], "usage": {}}, None),
        ({"choices": [], "usage": None}, {"choices": [], "usage": None}),
        (
            {"choices": [{"index": 0, "text": "é"}], "usage": USAGE},
            {"choices": [{"index": 0, "text": "é"}], "usage": None},
        ),
        (
            {"choices": [{"index": 0, "text": "a"}], "usage": {}},
            {"choices": [{"index": 0, "text": "a"}], "usage": None},
        ),
        (
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE, "x": [1.0, 10**30]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None, "x": [1.0, 10**30]},
        ),
        ({"x": {"usage": USAGE}}, {"x": {"usage": USAGE}}),  # usage of a nested object
    ],
)
def test_usage_is_hidden_from_who_did_not_ask(chunk: dict[str, Any], left: dict[str, Any] | None) -> None:
    passed, scan = run([event(**chunk)])
    assert read(passed) == ([] if left is None else [left])
    if chunk.get("usage"):
        assert scan.usage == Usage(1, 2, source="reported")
    shown, other = run([event(**chunk)], shows=True)
    assert shown == event(**chunk)
    assert other.usage == scan.usage


def test_the_last_report_counts_and_nonsense_does_not() -> None:
    parts = [{"prompt_tokens": 1, "completion_tokens": 1}, {"prompt_tokens": 1, "completion_tokens": 5}, "x", {}, -1]
    _, scan = run([event(choices=[], usage=part) for part in parts])
    assert scan.usage == Usage(1, 5, source="reported")


# ------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE] \r\n\r\n", b"data: [DONE]"])
def test_done_is_not_passed_on_and_nothing_behind_it(done: bytes) -> None:
    passed, scan = run([chunk(finish="stop") + done + (chunk("more") if done.endswith(b"\n") else b"")])
    assert passed == chunk(finish="stop")
    assert (scan.is_done, scan.is_over, scan.text_events()) == (True, True, 1)
    assert scan.feed(chunk("and more")) == (b"", True)
    assert scan.finish() == b""


@pytest.mark.parametrize(
    ("finishes", "choices", "is_complete"),
    [
        ([], 1, False),
        ([(0, None)], 1, False),
        ([(0, "")], 1, False),  # resellers send this on every chunk
        ([(0, "stop")], 1, True),
        ([(0, "tool_calls")], 1, True),
        ([(0, "stop")], 2, False),
        ([(0, "stop"), (0, "stop")], 2, False),
        ([(1, "length"), (0, None)], 2, False),
        ([(1, "length"), (0, "stop")], 2, True),
        ([(5, "stop"), (1, "stop"), (2, "stop")], 3, True),
        ([(None, "stop")], 1, True),
        ([(None, "stop"), (1, "stop")], 2, True),
        ([("0", "stop")], 1, False),
    ],
)
@pytest.mark.parametrize("is_joined", [True, False], ids=["in one chunk", "in chunks"])
def test_every_index_has_to_finish(
    finishes: list[tuple[Any, str | None]], choices: int, is_complete: bool, is_joined: bool
) -> None:
    parts = [{"index": index, "text": "", "finish_reason": finish} for index, finish in finishes]
    text = event(choices=parts) if is_joined else b"".join(event(choices=[part]) for part in parts)
    passed, scan = run([text + b"data: [DONE]\n\n"], choices)
    assert passed == text
    assert scan.is_complete is is_complete


def test_an_empty_finish_reason_is_none_on_a_chunk_that_is_looked_at() -> None:
    _, scan = run([chunk(finish="", model="a"), chunk(finish="", usage=USAGE)])
    assert scan.model == "a"
    assert not scan.is_complete


def test_an_index_is_0_where_none_is_given() -> None:
    assert run([event(choices=[{"finish_reason": "stop"}])])[1].reader.finished == {0}


@pytest.mark.parametrize(
    ("error", "received"),
    [
        ({"message": "no", "code": 500}, {"message": "no", "code": 500}),
        ("overloaded", {"message": "overloaded"}),
        (["odd"], {"message": ["odd"]}),
        (7, {"message": 7}),
    ],
)
def test_error_ends_the_stream(error: Any, received: dict[str, Any]) -> None:
    passed, scan = run([chunk() + event(error=error, choices=[]) + chunk("more") + b"data: [DONE]\n\n"])
    assert passed == chunk()
    assert (scan.error, scan.is_over, scan.is_done) == (received, True, False)
    assert scan.feed(chunk("and more")) == (b"", True)


@pytest.mark.parametrize("nothing", [None, "", {}, False])
def test_no_error_is_none(nothing: Any) -> None:
    text = chunk(error=nothing)
    passed, scan = run([text])
    assert (passed, scan.error) == (text, None)


def test_the_first_model_is_remembered() -> None:
    assert run([event(x=1), chunk(model="a"), chunk(model="b")])[1].model == "a"
    assert run([chunk(model=None), chunk(model=5)])[1].model is None


def test_what_was_delivered_is_counted() -> None:
    _, scan = run([chunk("abcdefghi") + chunk("") + chunk("a") + chunk("b"), b"data: [DONE]\n\n", chunk("late")])
    assert (scan.text_events(), scan.delivered_tokens()) == (3, 5)
    assert scan.text_events() == 3  # the second call returns the same
    assert run([chunk("x" * 4000)])[1].delivered_tokens() == 1334


@pytest.mark.parametrize("count", [1, 5, 2000])
def test_events_with_several_texts_are_one_event_each(count: int) -> None:
    call = {"index": 0, "function": {"name": "look_up", "arguments": "{}"}}
    sent = event(choices=[{"index": 0, "delta": {"tool_calls": [call]}}])
    _, scan = run([sent] * count)
    assert (scan.text_events(), scan.delivered_tokens()) == (count, count * (3 + 1 + 2))


@pytest.mark.shortened
def test_text_is_not_held_for_long() -> None:
    scan = StreamScan(ScanInput())
    for _ in range(3):
        scan.feed(chunk("a"))
    many = amount(100_000, 10_000)
    for _ in range(many):
        assert scan.is_alike(chunk("four"))
    assert len(scan._texts) <= 4096 + 5
    assert (scan.text_events(), scan.delivered_tokens()) == (many + 3, 2 * many + 3)


@pytest.mark.parametrize(
    ("delta", "has_reasoned"),
    [
        ({"reasoning_content": "so"}, True),
        ({"reasoning": "so"}, True),
        ({"reasoning_content": "", "content": "a"}, False),
        ({"reasoning_content": None, "content": "a"}, False),
        ({"content": 'the "reasoning_content": "so"'}, False),
    ],
)
def test_reasoning_that_is_shown_is_noticed(delta: dict[str, Any], has_reasoned: bool) -> None:
    plain = chunk() * 3
    sent = event(choices=[{"index": 0, "delta": delta}])
    for text in (sent + plain, plain + sent, sent * 5):
        assert run([text])[1].has_reasoned == has_reasoned


def test_a_report_that_comes_before_the_end_is_not_the_last_word() -> None:
    used = {"prompt_tokens": 5, "completion_tokens": 1}
    _, scan = run([chunk(usage=used)])
    assert (scan.usage, scan.is_usage_final) == (Usage(5, 1, source="reported"), False)
    _, scan = run([chunk(usage=used) + chunk(finish="stop")])
    assert not scan.is_usage_final
    for last in (chunk(finish="stop", usage=used), chunk(finish="stop") + event(choices=[], usage=used)):
        assert run([chunk(usage=used) + last])[1].is_usage_final


# ------------------------------------------------------------------------------------------------- long events


def long_chunk(size: int, *finishes: tuple[int, str]) -> bytes:
    choices = [
        {"index": index, "delta": {"content": "x" * size}, "finish_reason": finish} for index, finish in finishes
    ]
    return event(choices=choices)


@pytest.mark.parametrize("step", [997, 4096, LONG_EVENT, 3 * LONG_EVENT])
@pytest.mark.parametrize("end", LINE_ENDS)
def test_long_events_pass_through(step: int, end: str) -> None:
    text = chunk() + long_chunk(3 * LONG_EVENT, (0, "stop")) + chunk("z", index=1, finish="stop")
    text = text.replace(b"\n", LINE_ENDS[end])
    passed, scan = run([text[at : at + step] for at in range(0, len(text), step)], 2)
    assert passed == text
    assert scan.is_complete
    assert scan.delivered_tokens() >= LONG_EVENT


def test_what_finishes_in_a_long_event_is_seen_wherever_it_is_cut() -> None:
    text = long_chunk(2 * LONG_EVENT, (0, "stop"))
    start = text.index(b'"finish_reason"')
    for cut in range(start - 2, len(text)):
        _, scan = run([text[: LONG_EVENT + 50], text[LONG_EVENT + 50 : cut], text[cut:]])
        assert len(scan.reader.finished) == 1


def test_several_choices_may_finish_in_one_long_event() -> None:
    text = long_chunk(LONG_EVENT, (0, "stop"), (1, "stop"), (2, "length"))
    for step in (1000, LONG_EVENT + 10, 2 * LONG_EVENT):
        _, scan = run([text[at : at + step] for at in range(0, len(text), step)], 3)
        assert scan.is_complete


def test_a_long_event_is_not_taken_for_an_index_that_has_finished() -> None:
    text = chunk(index=1, finish="stop") + long_chunk(2 * LONG_EVENT, (0, "stop"))
    _, scan = run([text[at : at + 5000] for at in range(0, len(text), 5000)], 2)
    assert scan.is_complete


def test_text_in_a_long_event_finishes_nothing() -> None:
    text = event(
        choices=[{"index": 0, "delta": {"content": '"finish_reason": "stop" ' * LONG_EVENT}, "finish_reason": None}]
    )
    _, scan = run([text[at : at + 5000] for at in range(0, len(text), 5000)])
    assert not scan.is_complete


def test_a_long_event_without_its_end() -> None:
    text = long_chunk(2 * LONG_EVENT, (0, "stop"))[:-2]
    passed, scan = run([text])
    assert passed == text + b"\n\n"
    assert scan.is_complete


BITS = [b"data: ", b'{"usage":', b'{"error":', b'"x"', b"{}", b"null", b"}", b"[DONE]", b"\n", b"\r", b"id: 1", b":"]


@given(st.binary(max_size=300) | st.lists(st.sampled_from(BITS)).map(b"".join), st.booleans())
def test_no_bytes_hurt(text: bytes, shows: bool) -> None:
    run([text], shows=shows)
    run([text[at : at + 1] for at in range(len(text))], shows=shows)


TEXT_COMPLETION = {"object": "text_completion", "choices": [{"text": "a"}]}


@pytest.mark.parametrize(
    ("answer", "received"),
    [
        (
            {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "a"}}]},
            {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]},
        ),
        (
            {"choices": [{"message": {"tool_calls": [{"id": "a"}, {"id": "b", "index": 5}, 7]}}]},
            {"choices": [{"delta": {"tool_calls": [{"id": "a", "index": 0}, {"id": "b", "index": 5}, 7]}}]},
        ),
        (
            {"choices": [7, {"message": None}, {"message": {"tool_calls": 7}}]},
            {"choices": [7, {}, {"delta": {"tool_calls": 7}}]},
        ),
        (TEXT_COMPLETION, TEXT_COMPLETION),
        ({"choices": {}}, {"choices": {}}),
        ({}, {}),
    ],
)
def test_a_whole_answer_as_an_event(answer: dict[str, Any], received: dict[str, Any]) -> None:
    for indent in (None, 1):
        text = json.dumps(answer | {"usage": USAGE}, indent=indent).encode()
        assert read(as_event(text, False, Usage())) == [received]
        assert read(as_event(text, True, Usage())) == [received | {"usage": USAGE}]


def test_a_whole_answer_that_cannot_be_read_is_an_event_all_the_same() -> None:
    text = b'{"choices": [],\r\n "odd": ' + b"1" * 5000 + b"\n}"
    assert as_event(text, False, Usage()) == b'data: {"choices": [],  "odd": ' + b"1" * 5000 + b" }\n\n"

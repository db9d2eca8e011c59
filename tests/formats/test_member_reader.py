"""Members of a long JSON text, wherever it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.member_reader import EACH, MAX_ITEMS, MAX_KEPT, MAX_OF_ITEMS, MemberReader

VALUE = {
    "before": {"usage": 1, "response": {"usage": 2}},
    "list": [{"usage": 3}, [["usage"]], "usage"],
    "response": {
        "text": 'a "usage": 7, } ] \\ \n',
        "deep": {"usage": 4, "deeper": [{"usage": {"usage": 5}}]},
        "output": [
            {"type": "one", "usage": 6},
            {"id": "x", "type": "two", "more": {"type": "no"}},
            {"type": "one"},
            "no",
            [{"type": "no"}],
        ],
        "usage": {"input": 1, "text": 'also \\" {', "list": [1, {"a": None}]},
        "status": "done\\",
    },
    "number": -12.5,
    "type": "last",
}
WANTED = (("response", "usage"), ("response", "status"), ("response", "output", EACH, "type"), ("number",), ("type",))


def check(reader: MemberReader) -> None:
    assert reader.is_whole
    assert [reader.get(*path) for path in (WANTED[0], WANTED[1], WANTED[3], WANTED[4])] == [
        VALUE["response"]["usage"], "done\\", -12.5, "last",
    ]  # type: ignore[index]  # fmt: skip
    assert reader.value() == {
        "response": {
            "usage": VALUE["response"]["usage"], "status": "done\\",  # type: ignore[index]
            "output": [{"type": "one"}, {"type": "two"}, {"type": "one"}],
        },
        "number": -12.5,
        "type": "last",
    }  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
def test_every_cut(indent: Any) -> None:
    text = json.dumps(VALUE, indent=indent).encode()
    for cut in range(len(text) + 1):
        reader = MemberReader(WANTED)
        reader.feed(text[:cut])
        assert reader.is_whole == (cut == len(text))
        reader.feed(text[cut:])
        check(reader)
    reader = MemberReader(WANTED)
    for at in range(len(text)):
        reader.feed(text[at : at + 1])
    check(reader)


def test_lines_of_one_event() -> None:
    text = b"event: x\ndata: " + json.dumps(VALUE, indent=1).encode().replace(b"\n", b"\r\ndata: ") + b"\n\n"
    reader = MemberReader(WANTED)
    reader.feed(text)
    check(reader)


def test_memory_is_bounded() -> None:
    reader = MemberReader(WANTED)
    reader.feed(b'{"response":{"usage":"')
    for _ in range(100):
        reader.feed(b"x" * MAX_KEPT)
    reader.feed(b'","status":"ok","output":[')
    for number in range(5000):
        reader.feed(b'{"type":%d},' % number)
    reader.feed(b"[" * 100_000 + b"]" * 100_000 + b"]}}")
    assert reader.is_whole
    assert reader.get("response", "usage") is None
    assert reader.get("response", "status") == "ok"
    assert reader.value()["response"]["output"] == [{"type": number} for number in range(MAX_ITEMS)]
    reader = MemberReader((("list", EACH, "name"), ("list", EACH)))
    reader.feed(b'{"list":[' + b'{"name":"%b"},' % (b"x" * (MAX_KEPT - 9)) * 30 + b"1]}")
    assert sum(len(item.get("name", "")) for item in reader.value()["list"]) < MAX_OF_ITEMS
    assert reader.counts == {("list", EACH): 30}


@pytest.mark.parametrize("text", [b"", b"null", b"[1,2]", b"}}]]", b'{"type":', b'{"type":}', b'{"type"', b"\xff{,,}"])
def test_what_is_no_object_is_no_error(text: bytes) -> None:
    reader = MemberReader(WANTED)
    reader.feed(text)
    assert reader.get("type") is None

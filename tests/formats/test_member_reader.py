"""Members of a long JSON text, wherever it is cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.formats.format import PlainFacts
from gateway.formats.member_reader import EACH, MAX_ITEMS, MAX_KEPT, MAX_OF_ITEMS, LongAnswer, MemberReader
from gateway.formats.table import FORMATS
from gateway.records import Endpoint

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


TOKEN = {"token": ' "]}', "logprob": -0.5, "bytes": [32, 34], "top_logprobs": [{"token": "{\\\\", "bytes": []}] * 5}
TOKENS = [TOKEN] * 2000
PART = {"type": "output_text", "text": "w" * 9000, "logprobs": TOKENS}
USAGE, USED = {"prompt_tokens": 5, "completion_tokens": 7}, {"input_tokens": 5, "output_tokens": 7}
LONG: Mapping[Endpoint, dict[str, Any]] = {
    "chat": {
        "model": "m", "usage": USAGE, "choices": [{"logprobs": {"content": TOKENS}, "finish_reason": "stop"}] * 2,
    },
    "embeddings": {"model": "m", "data": [{"embedding": [0.5] * 9000}] * 9, "usage": {"prompt_tokens": 5}},
    "responses": {
        "id": "resp_1", "status": "completed", "usage": USED,
        "output": [{"type": "message", "id": "i", "content": [PART]}],
    },
    "generate_content": {
        "candidates": [{"content": {"parts": [TOKENS]}, "finishReason": "STOP"}], "modelVersion": "g",
        "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 7},
    },
    "batch_embed_contents": {"embeddings": [{"values": [0.5] * 9000}] * 9, "usageMetadata": {"promptTokenCount": 5}},
}  # fmt: skip


@pytest.mark.parametrize("endpoint", LONG)
def test_a_long_answer_has_the_facts_of_a_whole_one(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens and numbers are passed over in C: 26 MB of them held up all calls for two seconds."""
    spec, steps = FORMATS[endpoint], list[int]()
    step = MemberReader._step

    def counted(self: MemberReader, sign: int) -> None:
        steps.append(sign)
        step(self, sign)

    monkeypatch.setattr(MemberReader, "_step", counted)
    body = json.dumps(LONG[endpoint]).encode()
    whole = spec.facts(body)
    assert spec.long_reader is not None
    for size in (50_000, len(body)):
        reader = spec.long_reader()
        for at in range(0, len(body), size):
            reader.feed(body[at : at + size])
        assert reader.facts() == whole._replace(has_output=True)
    assert len(steps) < (body.count(b"{") + body.count(b"[")) / 2 + 100
    broken = spec.long_reader()
    broken.feed(body[:-1])
    with pytest.raises(ValueError, match="no JSON object"):
        broken.facts()
    for strange in (
        body.replace(b"0.5", b"NaN", 1), body + b"x", b"x" + body, body[:-1] + b",}", body.replace(b"{", b"[{", 1),
        body[:-1] + b', "x": ' + b"[" * 200 + b"]" * 200 + b"}", body[:-1] + b', "\xff": 1}', body + body,
    ):  # fmt: skip
        for size in (50_000, len(strange)):
            reader = spec.long_reader()
            for at in range(0, len(strange), size):
                reader.feed(strange[at : at + size])
            with pytest.raises(ValueError, match="no JSON object"):
                reader.facts()


def read(endpoint: Endpoint, answer: dict[str, Any]) -> PlainFacts:
    """The facts of an answer that is read in pieces."""
    make = FORMATS[endpoint].long_reader
    assert make is not None
    reader = make()
    reader.feed(json.dumps(answer).encode())
    return reader.facts()


@pytest.mark.parametrize("endpoint", LONG)
def test_a_long_error_is_one(endpoint: Endpoint) -> None:
    """Upstreams repeat the request in it."""
    text = "x" * (MAX_KEPT + 1)
    for error in ({"message": text, "code": 400}, text, [text]):
        facts = read(endpoint, {"error": error})
        assert (facts.is_error, facts.has_usage) == (True, False)


def test_the_searches_of_a_long_answer_are_counted() -> None:
    """The metadata that names them may be long."""
    grounding = {
        "searchEntryPoint": {"renderedContent": "x" * (MAX_KEPT + 1)}, "webSearchQueries": ["a", "b"],
        "groundingChunks": [{"maps": {"title": "t"}}],
    }  # fmt: skip
    answer = LONG["generate_content"] | {"modelVersion": "gemini-3"}
    answer["candidates"] = [{**answer["candidates"][0], "groundingMetadata": grounding}]
    usage = read("generate_content", answer).usage
    assert usage == FORMATS["generate_content"].facts(json.dumps(answer).encode()).usage
    assert usage is not None
    assert dict(usage.more) == {"web_searches": 2, "maps_searches": 1}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=40,
    ),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(1, 40),
)
@example(["a", "b"], None, True, 40)
@example([{"a": "b", "c": "d"}, "e"], 1, True, 3)
def test_any_object_is_one_wherever_it_is_cut(value: Any, indent: int | None, is_ascii: bool, size: int) -> None:
    text = json.dumps({"x": value}, indent=indent, ensure_ascii=is_ascii).encode(errors="replace")
    reader = LongAnswer(bytes, [("usage",)])
    for at in range(0, len(text), size):
        reader.feed(text[at : at + size])
    assert reader.facts() == b"{}"


def test_what_is_below_all_wanted_members_is_passed_over_wherever_it_is_cut() -> None:
    deep = {"x": [[TOKEN, {"usage": "no"}], "]"], "y": {"z": [[]]}}
    text = json.dumps({"response": {"output": [{"type": "one", "deep": deep}] * 2, "usage": 1}, "type": "t"}).encode()
    for size in range(1, len(text)):
        reader = MemberReader(WANTED)
        for at in range(0, len(text), size):
            reader.feed(text[at : at + size])
        assert reader.is_whole
        assert reader.value() == {"response": {"output": [{"type": "one"}] * 2, "usage": 1}, "type": "t"}

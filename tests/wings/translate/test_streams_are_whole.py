"""A streamed answer that is translated says what the plain translated answer of the same content says: its text, its
thoughts, each call with its id and its whole arguments, why it stopped, and its usage. The official SDKs assemble the
stream, wherever its bytes were cut and however the upstream divided and framed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.format import ScanInput
from gateway.records import Usage
from tests.field.usage_answers import SDKs, data_of
from tests.wings.translate.translated import plain, target, writer

NAMES = ("look", "find", "tell")
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
ASKED: dict[str, dict[str, Any]] = {
    "responses": {"model": "m", "input": "x",
                  "tools": [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],
                 "thinking": {"type": "enabled", "budget_tokens": 1024},
                 "tools": [{"name": name, "input_schema": SCHEMA} for name in NAMES]},
    "anthropic": {"model": "m", "messages": [{"role": "user", "content": "x"}],
                  "stream_options": {"include_usage": True},
                  "tools": [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]},
}  # fmt: skip
"""A request of each way, as in translated.py: `anthropic` is a chat over Messages."""


class Shown(NamedTuple):
    """What a client has of an answer."""

    text: str
    thoughts: str
    calls: tuple[tuple[str, str, Any], ...]
    """Id, name and arguments of each, in order."""
    stop: str
    usage: Any


@dataclass(frozen=True)
class Content:
    """What an upstream says."""

    thoughts: str
    text: str
    calls: tuple[tuple[str, Any], ...]
    """Name and arguments of each."""
    is_cut_off: bool
    usage: tuple[int, int, int, int]
    """Fresh, cached, output and reasoning tokens."""

    def call_id(self, at: int) -> str:
        return f"call_{at}x"

    @property
    def chat_stop(self) -> str:
        return "length" if self.is_cut_off else "tool_calls" if self.calls else "stop"

    @property
    def message_stop(self) -> str:
        return "max_tokens" if self.is_cut_off else "tool_use" if self.calls else "end_turn"


Draws = Callable[[st.SearchStrategy[Any]], Any]

WORDS = st.text(st.sampled_from('ab \n"\\é☃😀{}[]:,0'), max_size=24)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(WORDS, VALUES, max_size=3)
CONTENTS = st.builds(
    Content,
    thoughts=WORDS,
    text=WORDS,
    calls=st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), max_size=3).map(tuple),
    is_cut_off=st.booleans(),
    usage=st.tuples(st.integers(1, 999), st.integers(0, 999), st.integers(60, 999), st.integers(0, 60)),
).filter(lambda content: bool(content.text or content.calls))


def divided(draw: Draws, text: str) -> list[str]:
    """The text in pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [piece for piece in pieces if piece]


def by_turns(draw: Draws, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The items of all rows, each row in its own order."""
    left = [list(row) for row in rows if row]
    found = []
    while left:
        row = left[draw(st.integers(0, len(left) - 1))]
        found.append(row.pop(0))
        left = [each for each in left if each]
    return found


# ------------------------------------------------------------------------------------------------------------ upstreams


def chat_usage(content: Content) -> dict[str, Any]:
    fresh, cached, output, reasoning = content.usage
    return {
        "prompt_tokens": fresh + cached, "completion_tokens": output, "total_tokens": fresh + cached + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }  # fmt: skip


def function_of(content: Content, at: int) -> dict[str, Any]:
    name, arguments = content.calls[at]
    return {"name": name, "arguments": json.dumps(arguments)}


def chat_plain(content: Content) -> dict[str, Any]:
    calls = [{"id": content.call_id(at), "type": "function", "function": function_of(content, at)}
             for at in range(len(content.calls))]  # fmt: skip
    message = {"role": "assistant", "content": content.text or None, "reasoning_content": content.thoughts or None,
               **({"tool_calls": calls} if calls else {})}  # fmt: skip
    choice = {"index": 0, "message": message, "finish_reason": content.chat_stop}
    return {"id": "c", "object": "chat.completion", "model": "up", "choices": [choice], "usage": chat_usage(content)}


def chat_events(draw: Draws, content: Content) -> list[dict[str, Any]]:
    """Pieces of calls come by turns where they have an index of their own, else one call behind the other."""
    numbering = draw(st.sampled_from(("index", "index", "all zero", "none")))

    def piece(at: int, **more: Any) -> dict[str, Any]:
        number: dict[str, Any] = {"index": {"index": {"index": at}, "all zero": {"index": 0}, "none": {}}[numbering]}
        return {"tool_calls": [{**number["index"], **more}]}

    rows = []
    for at in range(len(content.calls)):
        function = function_of(content, at)
        opener = piece(at, id=content.call_id(at), type="function", function={**function, "arguments": ""})
        rows.append([opener, *[piece(at, function={"arguments": each})
                               for each in divided(draw, function["arguments"])]])  # fmt: skip
    # The order of the calls is that of their openers.
    if numbering == "index" and rows:
        openers = [row.pop(0) for row in rows]
        pieces = [*openers, *by_turns(draw, rows)] if draw(st.booleans()) else [
            each for opener, row in zip(openers, rows, strict=True) for each in (opener, *row)]  # fmt: skip
    else:
        pieces = [each for row in rows for each in row]
    texts = [{"content": each} for each in divided(draw, content.text)]
    thoughts = [{"reasoning_content": each} for each in divided(draw, content.thoughts)]
    deltas = [*thoughts, *by_turns(draw, [texts, pieces])] if draw(st.booleans()) else [*thoughts, *texts, *pieces]
    named = {"id": "c", "object": "chat.completion.chunk", "model": "up"}
    chunks = [{**named, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
              for delta in [{"role": "assistant", "content": None}, *deltas]]  # fmt: skip
    ending = {**named, "choices": [{"index": 0, "delta": {}, "finish_reason": content.chat_stop}]}
    usage = {"usage": chat_usage(content)}
    if draw(st.booleans()):
        return [*chunks, {**ending, **usage}]
    return [*chunks, ending, {**named, "choices": [], **usage}]


def message_usage(content: Content) -> dict[str, Any]:
    fresh, cached, output, reasoning = content.usage
    return {"input_tokens": fresh, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
            "output_tokens": output, "output_tokens_details": {"thinking_tokens": reasoning}}  # fmt: skip


def blocks_of(content: Content) -> list[dict[str, Any]]:
    thinking = [{"type": "thinking", "thinking": content.thoughts, "signature": "sig"}] if content.thoughts else []
    text = [{"type": "text", "text": content.text}] if content.text else []
    calls = [{"type": "tool_use", "id": content.call_id(at), "name": name, "input": given}
             for at, (name, given) in enumerate(content.calls)]  # fmt: skip
    return [*thinking, *text, *calls]


def message_plain(content: Content) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": blocks_of(content),
            "stop_reason": content.message_stop, "stop_sequence": None, "usage": message_usage(content)}  # fmt: skip


def message_events(draw: Draws, content: Content) -> list[dict[str, Any]]:
    usage = message_usage(content)
    first = {**message_plain(content), "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": first}]
    for at, block in enumerate(blocks_of(content)):
        match block["type"]:
            case "thinking":
                begun = {**block, "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": each} for each in divided(draw, block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": "sig"})
            case "text":
                begun = {**block, "text": ""}
                deltas = [{"type": "text_delta", "text": each} for each in divided(draw, block["text"])]
            case _:
                begun = {**block, "input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": each}
                          for each in divided(draw, json.dumps(block["input"]))]  # fmt: skip
                if draw(st.booleans()):  # some hosts write it whole at the start
                    begun, deltas = block, []
        events.append({"type": "content_block_start", "index": at, "content_block": begun})
        events += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": at})
    ended = {"stop_reason": content.message_stop, "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}]


def written(draw: Draws, events: Sequence[dict[str, Any]], *, is_named: bool) -> bytes:
    """The bytes of a stream, in one of the ways in which the same events may be written (WHATWG HTML)."""
    line = draw(st.sampled_from((b"\n", b"\r\n")))
    ascii_only, space = draw(st.booleans()), draw(st.sampled_from((b" ", b"")))
    comment = draw(st.sampled_from((b"", b": keep-alive" + line + line)))
    data = b""
    for each in events:
        name = b"event:" + space + each["type"].encode() + line if is_named else b""
        body = json.dumps(each, ensure_ascii=ascii_only).encode()
        data += name + b"data:" + space + body + line + line + comment
    return data + (b"" if is_named else b"data:" + space + b"[DONE]" + line + line)


# -------------------------------------------------------------------------------------------------------------- clients


@cache
def sdks() -> SDKs:
    return SDKs()


def of_message(whole: Any) -> Shown:
    content = whole["content"]
    usage = {name: value for name, value in whole["usage"].items() if value is not None}
    return Shown(
        "".join([each["text"] for each in content if each["type"] == "text"]),
        "".join([each["thinking"] for each in content if each["type"] == "thinking"]),
        tuple([(each["id"], each["name"], each["input"]) for each in content if each["type"] == "tool_use"]),
        whole["stop_reason"], usage,
    )  # fmt: skip


def of_response(whole: Any) -> Shown:
    output = whole["output"]
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    thoughts = [part["text"] for item in output if item["type"] == "reasoning"
                for part in [*(item.get("content") or []), *(item.get("summary") or [])]]  # fmt: skip
    calls = [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in output
             if item["type"] == "function_call"]  # fmt: skip
    stop = json.dumps([whole["status"], whole.get("incomplete_details")])
    texts = [part["text"] for part in parts if part["type"] == "output_text"]
    return Shown("".join(texts), "".join(thoughts), tuple(calls), stop, whole["usage"])


def of_chat(whole: Any) -> Shown:
    message, choice = whole["choices"][0]["message"], whole["choices"][0]
    calls = [(each["id"], each["function"]["name"], json.loads(each["function"]["arguments"]))
             for each in message.get("tool_calls") or []]  # fmt: skip
    return Shown(message.get("content") or "", message.get("reasoning_content") or "", tuple(calls),
                choice["finish_reason"], whole["usage"])  # fmt: skip


def check_deltas(body: bytes, shown: Shown) -> None:
    """The pieces of a stream of Responses make up what its last event has."""
    events = data_of(body)
    texts = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert "".join(texts) == shown.text
    arguments: dict[str, str] = {}
    for each in events:
        if each["type"] == "response.function_call_arguments.delta":
            arguments[each["item_id"]] = arguments.get(each["item_id"], "") + each["delta"]
    done = [each for each in events if each["type"] == "response.function_call_arguments.done"]
    assert [json.loads(each["arguments"]) for each in done] == [given for _, _, given in shown.calls]
    assert [arguments.get(each["item_id"], "") for each in done] == [each["arguments"] for each in done]


def without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nones(each) for name, each in value.items() if each is not None}
    return value


@pytest.mark.parametrize("way", ["messages", "responses", "anthropic"])
@given(data=st.data(), content=CONTENTS)
def test_a_stream_says_what_the_plain_answer_says(way: str, data: st.DataObject, content: Content) -> None:
    draw = data.draw
    if way == "anthropic":
        whole, sent = message_plain(content), written(draw, message_events(draw, content), is_named=True)
    else:
        whole, sent = chat_plain(content), written(draw, chat_events(draw, content), is_named=False)
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    request = {**ASKED[way], "stream": True}
    make = target(way).scan
    assert make is not None
    scan = make(ScanInput(shows_usage=True, writer=writer(way, request), max_translated=10**6))
    body = b"".join([scan.feed(sent[start:end])[0] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)])
    body += scan.finish()
    assert scan.is_complete
    assert scan.error is None
    assert scan.usage is not None
    body += scan.last(scan.usage)
    of_plain = plain(way, ASKED[way], whole)
    if way == "messages":
        shown, expected = of_message(sdks().message(body).to_dict()), of_message(of_plain)
    elif way == "responses":
        shown, expected = of_response(data_of(body)[-1]["response"]), of_response(of_plain)
        check_deltas(body, shown)
    else:
        shown, expected = of_chat(sdks().completion(body).to_dict()), of_chat(of_plain)
    assert shown._replace(usage=without_nones(shown.usage)) == expected._replace(usage=without_nones(expected.usage))
    # Both say what the upstream said.
    calls = tuple([(content.call_id(at), name, given) for at, (name, given) in enumerate(content.calls)])
    assert (shown.text, shown.thoughts, shown.calls) == (content.text, content.thoughts, calls)
    fresh, cached, output, _ = content.usage
    assert scan.usage[:3] == Usage(fresh + cached, output, cached)[:3]

"""A stream that is scanned in the upstream's format and translated to the client's, wherever its bytes were cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamRefused
from gateway.formats.events import Unfit
from gateway.formats.format import ScanInput
from gateway.formats.openai.reader import StreamScan
from gateway.formats.sse import LONG_EVENT, LONGEST_PARSED
from gateway.records import Usage
from gateway.wings.translate.bridges import renamed
from tests.test_floors import MODULES, complaints_of, impure

from .translated import COMPLETION_TOKENS, GOLDEN, PROMPT_TOKENS, data_of, writer

NAMES = [name for name, golden in GOLDEN.items() if "chunks" in golden and not name.startswith("anthropic")]
DONE = b"data: [DONE]\n\n"


def scan_of(name: str, max_bytes: int = 10**6) -> StreamScan:
    made = writer(name.partition("/")[0], GOLDEN[name]["request"])
    return StreamScan(ScanInput(shows_usage=True, writer=made, max_translated=max_bytes))


def sent(chunks: list[Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def shown(scan: StreamScan, pieces: list[bytes]) -> list[dict[str, Any]]:
    passed = b"".join(scan.feed(piece)[0] for piece in pieces)
    passed += scan.finish()
    return data_of(passed + scan.last(scan.usage or Usage(PROMPT_TOKENS, COMPLETION_TOKENS)))


@pytest.mark.parametrize("end", [DONE, b""])
@pytest.mark.parametrize("name", NAMES)
def test_the_client_is_shown_its_own_events(name: str, end: bytes) -> None:
    scan = scan_of(name)
    assert shown(scan, [sent(GOLDEN[name]["chunks"]) + end]) == GOLDEN[name]["shown"]
    assert scan.is_complete
    assert scan.error is None
    assert scan.is_done == bool(end)
    assert scan.model == "up-1"


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_gives_the_same(name: str) -> None:
    whole = sent(GOLDEN[name]["chunks"]) + DONE
    for cut in range(1, len(whole), 7):
        assert shown(scan_of(name), [whole[:cut], whole[cut:]]) == GOLDEN[name]["shown"], cut


@given(st.sampled_from(NAMES), st.integers(1, 40))
def test_small_pieces_give_the_same(name: str, size: int) -> None:
    whole = sent(GOLDEN[name]["chunks"]) + DONE
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert shown(scan_of(name), pieces) == GOLDEN[name]["shown"]


def test_the_scan_has_the_facts_of_the_upstreams_answer() -> None:
    scan = scan_of("responses/stream-tools")
    assert not scan.has_text
    scan.feed(sent(GOLDEN["responses/stream-tools"]["chunks"][:3]))
    assert scan.has_text
    assert scan.has_reasoned
    assert not scan.is_complete
    assert not scan.is_sign_of_life(b": a comment of the upstream\n\n") or scan.feed(b": x\n\n")
    scan.feed(sent(GOLDEN["responses/stream-tools"]["chunks"][3:]))
    assert scan.usage is not None
    assert (scan.usage.prompt_tokens, scan.usage.completion_tokens) == (20, 7)
    assert scan.is_usage_final


def test_a_comment_of_the_upstream_passes_and_is_no_sign_of_life() -> None:
    scan = scan_of("messages/stream-text")
    assert scan.feed(b": keepalive\n\n") == (b": keepalive\n\n", False)
    assert not scan.is_sign_of_life(b": keepalive\n\n")
    passed, _ = scan.feed(sent(GOLDEN["messages/stream-text"]["chunks"][:1]))
    assert scan.is_sign_of_life(passed)
    assert passed.startswith(b"event: message_start")


def test_what_follows_an_error_is_not_translated() -> None:
    scan = scan_of("responses/stream-text")
    chunks = GOLDEN["responses/stream-text"]["chunks"]
    passed, is_over = scan.feed(sent([*chunks[:2], {"error": {"message": "broken"}}, *chunks[2:]]))
    assert is_over
    assert scan.error == {"message": "broken"}
    assert data_of(passed)[-1]["type"] == "response.output_text.delta"
    assert scan.finish() == b""


def test_half_an_answer_is_not_complete() -> None:
    scan = scan_of("messages/stream-text")
    scan.feed(sent(GOLDEN["messages/stream-text"]["chunks"][:3]))
    assert scan.finish() == b""
    assert not scan.is_complete


def test_an_answer_that_cannot_be_translated_is_not_complete() -> None:
    scan = scan_of("messages/stream-text")
    with pytest.raises(Unfit):
        scan.feed(
            sent([{"choices": [{"index": 0, "delta": {"function_call": {}, "content": [1]}, "finish_reason": "stop"}]}])
        )
    assert scan.reader.finished
    assert not scan.is_complete


def test_an_end_that_cannot_be_translated_is_not_complete() -> None:
    scan = scan_of("messages/stream-text")
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "["}}
    scan.feed(sent([{"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "stop"}]}]))
    assert scan.is_complete
    with pytest.raises(Unfit):
        scan.feed(DONE)
    assert not scan.is_complete


@pytest.mark.parametrize("text", [b"data: [1]\n\n", b"data: hello\n\n"])
def test_events_that_cannot_be_read_are_unfit(text: bytes) -> None:
    with pytest.raises(Unfit):
        scan_of("messages/stream-text").feed(text)


def test_a_long_event_is_translated_as_a_whole() -> None:
    text = "x" * (2 * LONG_EVENT)
    said = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}]
    events = shown(scan_of("responses/stream-text"), [sent(said) + DONE])
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text


def test_a_stream_is_bounded() -> None:
    scan = scan_of("responses/stream-text", max_bytes=300)
    with pytest.raises(Unfit):
        scan.feed(sent(GOLDEN["responses/stream-text"]["chunks"]))


RENAMED = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}


@pytest.mark.parametrize(
    ("param", "message", "own_param", "own_message"),
    [
        ("messages[2].content", "'messages[2].content': x", "input[2].content", "'input[2].content': x"),
        ("reasoning_effort", "`reasoning_effort` x", "reasoning.effort", "`reasoning.effort` x"),
        ("max_completion_tokens", "x", "max_output_tokens", "x"),
        ("messages_of", "'messages_of' x", "messages_of", "'messages_of' x"),
        ("temperature", "'temperature' of messages", "temperature", "'temperature' of messages"),
        (None, "x", None, "x"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_clients_names(
    param: str | None, message: str, own_param: str | None, own_message: str
) -> None:
    refused = renamed(UpstreamRefused(400, message, "t", param, "c", detail="d"), RENAMED)
    assert (refused.param, refused.message) == (own_param, own_message)
    assert (refused.status, refused.type, refused.code, refused.detail) == (400, "t", "c", "d")


def test_translations_are_pure() -> None:
    assert complaints_of(impure, [name for name in MODULES if name.startswith("gateway.wings.translate")]) == ""


WIDE = {
    "numbers": b"1," * 200_000 + b"1", "objects": b"{}," * 100_000 + b"{}", "strings": b'"",' * 200_000 + b'""',
    "lines": b"\ndata:" * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("wide", WIDE)
def test_an_event_of_many_parts_is_not_parsed(wide: str) -> None:
    """20 MB of them held up all other calls for 1 to 3 s, and took 500 MB."""
    with pytest.raises(Unfit, match="too many parts"):
        scan_of("responses/stream-text", max_bytes=10_000_000).feed(b'data: {"choices":[' + WIDE[wide] + b"]}\n\n")


def test_a_very_long_event_is_not_held() -> None:
    scan = scan_of("responses/stream-text", max_bytes=100_000_000)
    with pytest.raises(Unfit, match="too long"):
        scan.feed(b'data: {"x":"' + b"x" * (LONGEST_PARSED + 10))

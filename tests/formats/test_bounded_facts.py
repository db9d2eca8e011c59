"""What a scan keeps of a stream has a bound, whatever the stream has and however long it goes on."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.formats.format import ScanInput
from gateway.formats.openai import completions
from gateway.formats.openai.reader import searches_always
from gateway.formats.table import FORMATS

LONG = "x" * 60_000


def _tools(number: int) -> Any:
    return {"choices": [{"index": 0, "delta": {"executed_tools": [{"index": f"{number}{LONG}"}]}}]}


def _choices(number: int) -> Any:
    return {"choices": [{"index": 1000 * number + each, "finish_reason": "stop"} for each in range(1000)]}


def _searches(number: int) -> Any:
    grounding = {"webSearchQueries": [f"{number}{LONG}"]}
    return {"candidates": [{"index": number, "finishReason": "STOP", "groundingMetadata": grounding}]}


def _candidates(number: int) -> Any:
    return {"candidates": [{"index": 1000 * number + each, "finishReason": "STOP"} for each in range(1000)]}


def _items(number: int) -> Any:
    item = {"type": "web_search_call", "id": f"{number}{LONG}", "action": {"type": "search", "query": LONG}}
    return {"type": "response.output_item.done", "output_index": number, "item": item}


STREAMS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "tools": ("chat", _tools), "choices": ("chat", _choices), "searches": ("generate_content", _searches),
    "candidates": ("generate_content", _candidates), "items": ("responses", _items),
}  # fmt: skip


def events(make: Callable[[int], Any]) -> Iterator[bytes]:
    for number in range(200):
        yield b"data: " + json.dumps(make(number)).encode() + b"\n\n"


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_new_names_takes_no_more_memory(name: str) -> None:
    door, make = STREAMS[name]
    make_scan = FORMATS[door].scan  # type: ignore[index]
    assert make_scan is not None
    scan = make_scan(ScanInput(shows_usage=True))
    tracemalloc.start()
    try:
        for event in events(make):
            scan.feed(event)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000, f"{kept} bytes are kept"


def test_a_name_of_a_model_is_read_in_one_pass() -> None:
    """Searched from each of its beginnings to its end, one of 60,000 characters took 4 s."""
    assert searches_always("openai/gpt-4o-mini-search-preview-2025-03-11")
    assert not searches_always("gpt-" * 500_000)
    body = {"model": "gpt-" * 500_000, "choices": [{"index": 0, "message": {"content": "Hi"}}]}
    assert completions.facts(json.dumps(body).encode()).has_output

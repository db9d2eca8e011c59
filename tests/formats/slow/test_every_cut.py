"""Recorded streams of Messages, Responses and Gemini, cut in two and lost at every byte, in front of the scan alone.

Nothing but the end of an event makes a difference. Therefore tests/flows/slow cuts streams through a whole gateway
around the ends of lines, and elsewhere at some bytes only (`tests.flows.cutting.telling_cuts`). Streams of chat and
completions are cut so in tests/formats/test_stream_scan.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from gateway.formats.openai.responses_scan import ResponsesScan
from gateway.records import Usage
from tests.flows.slow.test_response_cuts import RECORDED as RESPONSES
from tests.flows.test_gemini import RECORDED as GEMINI
from tests.flows.test_messages import RECORDED as MESSAGES
from tests.formats import test_gemini_scan, test_messages_scan, test_responses_scan


def run_responses(*pieces: bytes) -> tuple[bytes, ResponsesScan]:
    text = b"".join(pieces)
    places = [sum(map(len, pieces[:number])) for number in range(1, len(pieces))]
    scan, passed = test_responses_scan.fed(text, *places)
    return passed, scan


def facts_of_responses(scan: ResponsesScan) -> tuple[object, ...]:
    known = scan.usage, scan.is_usage_final, scan.error, scan.is_done, scan.is_complete, scan.model, scan.last(Usage())
    return *known, scan.reader.id, scan.has_reasoned, scan.text_events(), scan.delivered_tokens()


FORMATS: dict[str, tuple[Callable[..., tuple[bytes, Any]], Callable[[Any], tuple[object, ...]]]] = {
    "messages": (test_messages_scan.run, test_messages_scan.facts),
    "responses": (run_responses, facts_of_responses),
    "gemini": (test_gemini_scan.run, test_gemini_scan.facts),
}
"""How a stream is scanned, and what is known of it at its end."""
STREAMS = [
    *[("messages", name, text) for name, text in MESSAGES.items()],
    ("responses", "tool", RESPONSES["tool"]),  # the others: tests/formats/test_responses_scan.py
    *[("gemini", name, text.replace(b"\r\n", b"\n")) for name, text in GEMINI.items()],
]
COMMENT = re.compile(rb"^:.*\n*", re.MULTILINE)
"""It passes as it comes, in parts too."""
each_stream = pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, _, text in STREAMS], ids=[f"{kind}-{name}" for kind, name, _ in STREAMS]
)


def same(passed: bytes) -> bytes:
    """Of a CRLF that is cut the LF may remain, or be left out."""
    return re.sub(rb"[\r\n]+", b"\n", passed)


@each_stream
def test_no_cut_makes_a_difference(kind: str, text: bytes) -> None:
    run, facts = FORMATS[kind]
    passed, scan = run(text)
    for cut in range(1, len(text)):
        again, other = run(text[:cut], text[cut:])
        assert (again, facts(other)) == (passed, facts(scan)), cut


@each_stream
def test_a_lost_connection_leaves_whole_events_and_what_they_say(kind: str, text: bytes) -> None:
    run, facts = FORMATS[kind]

    def received(end: int) -> tuple[bytes, tuple[object, ...]]:
        passed, scan = run(text[:end])
        return COMMENT.sub(b"", passed).rstrip(b"\n"), facts(scan)

    ends = [0, *[found.end() for found in re.finditer(rb"\n\n", text)]]
    for before, after in pairwise([*ends, len(text)]):
        of_before, of_after = received(before), received(after)
        for lost in range(before + 1, after):
            # An event without its blank line is whole.
            assert (found := received(lost)) == of_before or (found == of_after and after - lost <= 2), lost

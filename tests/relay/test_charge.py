"""What a call is charged, by what was asked for, what was reported, and what came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import Model, Route
from gateway.records import Call, Document, Endpoint, Key, Params, Usage
from gateway.relay import charge
from gateway.relay.sent_request import OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE, SentRequest
from gateway.relay.stream_scan import StreamScan
from gateway.relay.token_rule import Count

REPORT = {"prompt_tokens": 9, "completion_tokens": 4}
NONSENSE = {"prompt_tokens": 2**52, "completion_tokens": 2**52}
SO_FAR = {"prompt_tokens": 9, "completion_tokens": 2}


def sent(endpoint: Endpoint = "completions", model: str = "m", is_limit_sent: bool = True, **more: Any) -> SentRequest:
    """A call of 7 estimated prompt tokens, with a limit of 100 output tokens."""
    members = more.pop("members", {})
    params = Params(Document("", members), model, prompt_tokens=7, **({"output_limit": 100} | more))
    settings = Model(routes=(Route(upstream="u"),))
    call = Call("r", 0.0, Key("k"), endpoint, params, settings, label_model="m", arrived=0.0)
    return SentRequest(call, None, params.output_limit if is_limit_sent else None)


def piece(text: str, finish: str | None = None, usage: Any = None) -> bytes:
    chunk = {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": usage}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def stream(asked: SentRequest, *events: bytes) -> Usage:
    scan = StreamScan(choices=1, shows_usage=False, allows=asked.allows)
    for event in events:
        scan.feed(event)
    return charge.of_stream(asked, scan).usage


def estimated(prompt: int, completion: int) -> Usage:
    return Usage(prompt, completion, source="estimated")


DONE = b"data: [DONE]\n\n"
NO_CHOICE = b'data: {"choices": [], "usage": %s}\n\n'
WORDS = piece("one two, ")  # one, two, a comma and the space behind it
ERROR = b'data: {"error": {"message": "no"}}\n\n'


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        ([WORDS, piece("", "stop"), NO_CHOICE % json.dumps(REPORT).encode(), DONE], Usage(9, 4, source="reported")),
        ([WORDS, piece("", "stop", REPORT)], Usage(9, 4, source="reported")),
        ([], estimated(7, 0)),
        ([WORDS], estimated(7, 4)),
        ([WORDS, piece("", "stop"), DONE], estimated(7, 4)),
        ([WORDS, piece("", "stop")], estimated(7, 4)),
        ([WORDS, ERROR], estimated(7, 4)),
        ([piece("a"), piece("b"), piece("c")], estimated(7, 3)),
        # What was counted on the way is less than the truth, and may be more than the estimate.
        ([piece("a", None, SO_FAR)], estimated(9, 2)),
        ([WORDS, WORDS, piece("a", None, SO_FAR)], estimated(9, 9)),
        ([piece("a", None, SO_FAR), piece("b", "stop")], estimated(9, 2)),
        ([piece("a", None, SO_FAR), DONE], estimated(9, 2)),
        # Nothing is not the truth where something came.
        ([WORDS, piece("", "stop", {"prompt_tokens": 0, "completion_tokens": 0})], estimated(7, 4)),
        ([WORDS, piece("", "stop", {"prompt_tokens": 9, "completion_tokens": 0})], estimated(9, 4)),
        ([WORDS, piece("", "stop", {"prompt_tokens": 9})], estimated(9, 4)),
        ([piece("", "stop", {"prompt_tokens": 9, "completion_tokens": 0})], Usage(9, 0, source="reported")),
        ([piece("", "stop", {"prompt_tokens": 0, "completion_tokens": 0})], Usage(0, 0, source="reported")),
        ([piece("word " * 20_000), piece("", "stop", {"prompt_tokens": 9, "completion_tokens": 0})], estimated(9, 100)),
        # Who knows of no prompt may still have counted the completion.
        ([WORDS, piece("", "stop", {"prompt_tokens": 0, "completion_tokens": 3})], estimated(7, 3)),
        ([WORDS, piece("", "stop", {"completion_tokens": 3})], estimated(7, 3)),
        # The highest report counts.
        (
            [WORDS, piece("", "stop", REPORT), NO_CHOICE % b'{"prompt_tokens": 0, "completion_tokens": 0}', DONE],
            Usage(9, 4, source="reported"),
        ),
        (
            [WORDS, piece("", "stop", REPORT), NO_CHOICE % json.dumps(SO_FAR).encode(), DONE],
            Usage(9, 4, source="reported"),
        ),
        (
            [WORDS, piece("", "stop", SO_FAR), NO_CHOICE % json.dumps(REPORT).encode(), DONE],
            Usage(9, 4, source="reported"),
        ),
        # One that cannot be true does not.
        (
            [WORDS, piece("", "stop", REPORT), NO_CHOICE % json.dumps(NONSENSE).encode(), DONE],
            Usage(9, 4, source="reported"),
        ),
        (
            [WORDS, piece("", "stop", NONSENSE), NO_CHOICE % json.dumps(REPORT).encode(), DONE],
            Usage(9, 4, source="reported"),
        ),
        ([WORDS, piece("", "stop", NONSENSE), DONE], estimated(PROMPT_ALLOWANCE, 200 + OUTPUT_ALLOWANCE + 4 * 4)),
        ([WORDS, piece("", None, NONSENSE)], estimated(7, 4)),
        # An error in place of an answer is a refusal.
        ([ERROR], Usage()),
        ([b": patience\n\n", ERROR], Usage()),
        ([b'data: {"model": "m", "choices": []}\n\n', ERROR], estimated(7, 0)),
        ([piece(""), ERROR], estimated(7, 0)),
        ([NO_CHOICE % json.dumps(SO_FAR).encode(), ERROR], estimated(9, 2)),
    ],
)
def test_stream(events: list[bytes], usage: Usage) -> None:
    assert stream(sent(), *events) == usage


def test_text_is_not_counted_where_a_report_settles_it() -> None:
    def count(texts: bytes | bytearray) -> Count:
        raise AssertionError("this takes time, and nobody asked")

    scan = StreamScan(choices=1, shows_usage=False, count_texts=count)
    for event in (WORDS, piece("", "stop", REPORT)):
        scan.feed(event)
    assert charge.of_stream(sent(), scan).usage == Usage(9, 4, source="reported")


def test_a_limit_that_was_sent_and_obeyed_is_the_most() -> None:
    assert stream(sent(output_limit=3), piece("one two three four five")) == estimated(7, 3)
    assert stream(sent(output_limit=3, best_of=2, n=2), piece("one two three four five six seven")) == estimated(7, 6)
    assert stream(sent(output_limit=3, is_limit_sent=False), piece("one two four")) == estimated(7, 4)
    assert stream(sent(output_limit=3), *[piece("one two")] * 4) == estimated(7, 8)  # not obeyed
    assert (
        stream(sent(output_limit=3), piece("a", None, {"prompt_tokens": 1, "completion_tokens": 9})).completion_tokens
        == 9
    )


def test_an_echo_is_no_output() -> None:
    asked = sent(output_limit=2, members={"echo": True})
    assert stream(asked, *[piece("prompt ")] * 9) == estimated(7, 2)
    said_nothing = {"prompt_tokens": 9, "completion_tokens": 0}
    assert stream(asked, piece("prompt", "stop", said_nothing)) == Usage(9, 0, source="reported")


def test_where_somebody_may_think_unseen_all_that_was_reserved_counts() -> None:
    thinks = sent("chat", "o3-mini")
    assert stream(thinks, WORDS) == charge.of_nothing(thinks) == estimated(7, 100)
    assert stream(thinks, ERROR) == Usage()
    assert stream(thinks, WORDS, piece("", "stop", REPORT)) == Usage(9, 4, source="reported")
    assert stream(sent("chat", members={"reasoning_effort": "low"}), WORDS) == estimated(7, 100)
    assert stream(sent("chat", "o3", members={"reasoning_effort": "none"}), WORDS) == estimated(7, 4)
    assert charge.of_nothing(sent("chat")._replace(routed_model="gpt-5")) == estimated(7, 100)
    named = b'data: {"model": "o3-mini-2025-01-31", "choices": []}\n\n'
    assert stream(sent("chat"), named, WORDS) == estimated(7, 100)
    reasons = b'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": null}]}\n\n'
    assert stream(sent("chat"), reasons) == estimated(7, 100)
    assert stream(sent("chat"), reasons, piece("so", "stop")) == estimated(7, 2)


def plain(asked: SentRequest, *texts: str, usage: Any = None) -> Usage:
    choices = [{"index": index, "message": {"content": text}} for index, text in enumerate(texts)]
    return charge.of_plain(asked, usage, json.dumps({"choices": choices}).encode(), None).usage


def test_plain_answers() -> None:
    assert plain(sent("chat"), "one two", usage=REPORT) == Usage(9, 4, source="reported")
    assert plain(sent("chat"), "one two", "three") == estimated(7, 4)
    assert plain(sent("chat"), "one", usage={"prompt_tokens": 9, "completion_tokens": 0}) == estimated(9, 1)
    assert plain(sent("chat"), usage={"prompt_tokens": 9, "completion_tokens": 0}) == Usage(9, 0, source="reported")
    assert plain(sent(n=1, best_of=3), "one") == estimated(7, 300)
    assert plain(sent("chat", "o3"), "one") == estimated(7, 100)
    assert charge.of_nothing(sent()) == estimated(7, 0)
    assert charge.of_nothing(sent(best_of=3)) == estimated(7, 300)
    embedded = {"prompt_tokens": 5, "total_tokens": 5}
    vector = b'{"data": [{"embedding": "AAAA"}]}'
    assert charge.of_plain(sent("embeddings"), embedded, vector, None).usage == Usage(5, 0, source="reported")
    for nothing in ({"prompt_tokens": 0, "total_tokens": 0}, {"total_tokens": 5}):
        assert charge.of_plain(sent("embeddings"), nothing, vector, None).usage == estimated(7, 0)
    assert plain(sent("chat"), "one two", usage={"prompt_tokens": 0, "completion_tokens": 2}) == estimated(7, 2)


def test_counts_that_cannot_be_true_are_clamped_and_named() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 90}, "completion_tokens_details": {"reasoning_tokens": 40}}
    charged = charge.of_plain(sent("chat"), REPORT | details, b"{}", None)
    assert charged == (Usage(9, 4, 9, 4, "reported"), ("cached", "reasoning"))
    charged = charge.of_plain(sent("chat"), REPORT | {"prompt_tokens": 2**50}, b"{}", None)
    assert charged == (estimated(PROMPT_ALLOWANCE, 4), ("prompt",))
    charged = charge.of_plain(sent("chat"), REPORT | {"completion_tokens": 2**50}, b"{}", None)
    assert charged == (estimated(9, 200 + OUTPUT_ALLOWANCE), ("completion",))

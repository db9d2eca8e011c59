"""What a call is charged, by what was asked for, what was reported, and what came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import Model, Route
from gateway.formats.anthropic.reader import MessagesScan
from gateway.formats.ceilings import OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE
from gateway.formats.format import ScanInput
from gateway.formats.openai.reader import StreamScan, reported
from gateway.formats.reported_usage import plain_text
from gateway.formats.table import FORMATS
from gateway.formats.token_rule import Count
from gateway.records import Call, Document, Endpoint, Failure, Fault, Key, Params, Phase, Usage
from gateway.relay import charge
from gateway.relay.charge import Ending, SentRequest, Shown
from tests.fakes.params import SET_BY_FORMAT

REPORT = {"prompt_tokens": 9, "completion_tokens": 4}
NONSENSE = {"prompt_tokens": 2**52, "completion_tokens": 2**52}
SO_FAR = {"prompt_tokens": 9, "completion_tokens": 2}


def sent(endpoint: Endpoint = "completions", model: str = "m", is_limit_sent: bool = True, **more: Any) -> SentRequest:
    """A call of 7 estimated prompt tokens, with a limit of 100 output tokens."""
    members = more.pop("members", {})
    params = Params(
        Document("", members), model, prompt_tokens=7, **({"output_limit": 100} | SET_BY_FORMAT[endpoint] | more)
    )
    settings = Model(routes=(Route(upstream="u"),))
    call = Call("r", 0.0, Key("k"), endpoint, params, settings, label_model="m", arrived=0.0)
    return SentRequest(call, None, params.output_limit if is_limit_sent else None)


def piece(text: str, finish: str | None = None, usage: Any = None) -> bytes:
    chunk = {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": usage}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def stream(asked: SentRequest, *events: bytes) -> Usage:
    scan = StreamScan(ScanInput(allows=asked.allows))
    for event in events:
        scan.feed(event)
    ending = Ending.BROKEN
    if scan.error is not None:
        ending = Ending.ERROR if scan.has_begun else Ending.REFUSED
    return charge.of_stream(asked, scan, ending).usage


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
        ([], estimated(7, 100)),  # nothing was shown: anything may have been generated
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


@pytest.mark.parametrize("place", ["chunk", "choice"])
def test_a_report_beside_an_error_counts(place: str) -> None:
    error = {"message": "no", "code": 502}
    chunk = {"choices": [], "error": error} if place == "chunk" else {"choices": [{"index": 0, "error": error}]}

    def last(usage: dict[str, int]) -> bytes:
        return b"data: " + json.dumps(chunk | {"usage": usage}).encode() + b"\n\n"

    for words in ((WORDS,), ()):
        assert stream(sent(), *words, last({"prompt_tokens": 9, "completion_tokens": 20})) == estimated(9, 20)
    assert stream(sent(), last({"prompt_tokens": 0, "completion_tokens": 0})) == Usage()


def test_a_compaction_is_output_and_reads_the_prompt_once_more() -> None:
    """Its report comes with the end alone (platform.claude.com, "Compaction"): `iterations`, which are no sum at the
    top."""
    asked = sent("chat")
    scan = MessagesScan(ScanInput(allows=asked.allows))
    for event in (
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "word " * 20}},
    ):
        scan.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    usage = charge.of_stream(asked, scan, Ending.STOPPED).usage
    assert usage.prompt_tokens == 3 + 7
    assert 20 <= usage.completion_tokens <= 50


def test_text_is_not_counted_where_a_report_settles_it() -> None:
    def count(texts: bytes | bytearray) -> Count:
        raise AssertionError("this takes time, and nobody asked")

    scan = StreamScan(ScanInput(count_texts=count))
    for event in (WORDS, piece("", "stop", REPORT)):
        scan.feed(event)
    assert charge.of_stream(sent(), scan, Ending.WHOLE).usage == Usage(9, 4, source="reported")


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


def test_where_hidden_reasoning_is_possible_the_whole_reservation_counts() -> None:
    thinks = sent("chat", "o3-mini")
    assert stream(thinks, WORDS) == estimated(7, 100)
    assert stream(thinks, ERROR) == Usage()
    assert stream(thinks, WORDS, piece("", "stop", REPORT)) == Usage(9, 4, source="reported")
    assert stream(sent("chat", members={"reasoning_effort": "low"}), WORDS) == estimated(7, 100)
    assert stream(sent("chat", "o3", members={"reasoning_effort": "none"}), WORDS) == estimated(7, 4)
    assert stream(sent("chat")._replace(routed_model="gpt-5"), WORDS) == estimated(7, 100)
    named = b'data: {"model": "o3-mini-2025-01-31", "choices": []}\n\n'
    assert stream(sent("chat"), named, WORDS) == estimated(7, 100)
    reasons = b'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": null}]}\n\n'
    assert stream(sent("chat"), reasons) == estimated(7, 100)
    assert stream(sent("chat"), reasons, piece("so", "stop")) == estimated(7, 2)


def test_text_that_was_counted_elsewhere_is_charged_the_same() -> None:
    choices = [{"message": {"content": text, "reasoning": "hm"}} for text in ("a b", "c")]
    body, spec = json.dumps({"choices": choices}).encode(), FORMATS["chat"]
    counted = plain_text(body, spec.texts, spec.media)
    for asked in (sent("chat"), sent("chat", output_limit=3), sent("chat", "o3")):
        for report in (None, reported({"prompt_tokens": 9, "completion_tokens": 0}), reported(NONSENSE)):
            here = charge.of_plain(asked, report, body, None)
            assert charge.of_plain(asked, report, b"", None, counted=counted) == here
    empty = plain_text(b"{}", spec.texts, spec.media)
    nothing = charge.of_plain(sent("chat"), reported({"prompt_tokens": 9}), b"", None, counted=empty)
    assert nothing.usage == Usage(9, 0, source="reported")


def test_text_beyond_a_limit_that_was_sent_is_not_counted() -> None:
    body = json.dumps({"choices": [{"message": {"content": "word " * 1000}}]}).encode()
    asked, report = sent("chat", output_limit=9), reported({"prompt_tokens": 9})
    for given in (None, report):
        found = charge.counted_by_beginning(asked, given, body, 200)
        assert found is not None
        assert found.tokens < 200
        assert charge.of_plain(asked, given, body, None, counted=found) == charge.of_plain(asked, given, body, None)
        assert charge.counted_by_beginning(asked, given, body, 50) is None
    assert charge.counted_by_beginning(sent("chat", is_limit_sent=False), None, body, 200) is None
    assert charge.counted_by_beginning(asked, reported(NONSENSE), body, 200) is None


def plain(asked: SentRequest, *texts: str, usage: Any = None) -> Usage:
    choices = [{"index": index, "message": {"content": text}} for index, text in enumerate(texts)]
    return charge.of_plain(asked, reported(usage), json.dumps({"choices": choices}).encode(), None).usage


def test_plain_answers() -> None:
    assert plain(sent("chat"), "one two", usage=REPORT) == Usage(9, 4, source="reported")
    assert plain(sent("chat"), "one two", "three") == estimated(7, 4)
    assert plain(sent("chat"), "one", usage={"prompt_tokens": 9, "completion_tokens": 0}) == estimated(9, 1)
    assert plain(sent("chat"), usage={"prompt_tokens": 9, "completion_tokens": 0}) == Usage(9, 0, source="reported")
    assert plain(sent(n=1, best_of=3), "one") == estimated(7, 300)
    assert plain(sent("chat", "o3"), "one") == estimated(7, 100)
    embedded = {"prompt_tokens": 5, "total_tokens": 5}
    vector = b'{"data": [{"embedding": "AAAA"}]}'
    assert charge.of_plain(sent("embeddings"), reported(embedded), vector, None).usage == Usage(5, 0, source="reported")
    nothing = {"prompt_tokens": 0, "total_tokens": 0}
    assert charge.of_plain(sent("embeddings"), reported(nothing), vector, None).usage == estimated(7, 0)
    # Of a total alone the estimated prompt is part.
    assert plain(sent("chat"), "one two", usage={"total_tokens": 20}) == estimated(7, 13)
    assert plain(sent("chat"), "one two", usage={"total_tokens": 5}) == estimated(5, 0)
    assert plain(sent("chat"), "one two", usage={"prompt_tokens": 0, "completion_tokens": 2}) == estimated(7, 2)


def test_counts_that_cannot_be_true_are_clamped_and_named() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 90}, "completion_tokens_details": {"reasoning_tokens": 40}}
    charged = charge.of_plain(sent("chat"), reported(REPORT | details), b"{}", None)
    assert charged == (Usage(9, 4, 9, 4, "reported"), ("cached", "reasoning"))
    charged = charge.of_plain(sent("chat"), reported(REPORT | {"prompt_tokens": 2**50}), b"{}", None)
    assert charged == (estimated(PROMPT_ALLOWANCE, 4), ("prompt",))
    charged = charge.of_plain(sent("chat"), reported(REPORT | {"completion_tokens": 2**50}), b"{}", None)
    assert charged == (estimated(9, 200 + OUTPUT_ALLOWANCE), ("completion",))


NOTHING, TEXT, EVENTS = Shown(), Shown(20, 5, is_stream=True), Shown(is_stream=True)
COUNTED = Shown(20, 5, Usage(9, 30), is_stream=True)
QUICK, SLOW = Shown(elapsed_s=0.1, is_stream=True), Shown(elapsed_s=60.0, is_stream=True)


@pytest.mark.parametrize(
    ("ending", "shown", "plain", "streamed"),
    [
        # It cannot have cost anything.
        (Ending.UNSENT, NOTHING, None, None),
        (Ending.REFUSED, NOTHING, None, None),
        # The answer came whole, without a report: what it shows.
        (Ending.WHOLE, TEXT, (7, 20), (7, 20)),
        (Ending.WHOLE, NOTHING, (7, 0), (7, 0)),
        (Ending.ERROR, TEXT, (7, 20), (7, 20)),
        (Ending.ERROR, NOTHING, (7, 0), (7, 0)),
        # It broke off: a stream has shown what it generated, if it has shown anything.
        (Ending.BROKEN, NOTHING, (7, 100), (7, 100)),
        (Ending.BROKEN, EVENTS, (7, 100), (7, 100)),
        (Ending.BROKEN, TEXT._replace(is_stream=False), (7, 100), (7, 100)),
        (Ending.BROKEN, TEXT, (7, 20), (7, 20)),
        (Ending.BROKEN, COUNTED, (9, 30), (9, 30)),
        # It fell silent: it may have generated the rest meanwhile.
        (Ending.SILENT, NOTHING, (7, 100), (7, 100)),
        (Ending.SILENT, EVENTS, (7, 100), (7, 100)),
        (Ending.SILENT, TEXT, (7, 100), (7, 100)),
        (Ending.SILENT, COUNTED, (9, 100), (9, 100)),
        # The gateway stopped it.
        (Ending.STOPPED, NOTHING, (7, 100), (7, 1)),
        (Ending.STOPPED, TEXT, (7, 20), (7, 20)),
        (Ending.STOPPED, QUICK, (7, 100), (7, 21)),
        (Ending.STOPPED, SLOW, (7, 100), (7, 100)),
    ],
)
def test_every_ending(
    ending: Ending, shown: Shown, plain: tuple[int, int] | None, streamed: tuple[int, int] | None
) -> None:
    for is_stream, expected in ((False, plain), (True, streamed)):
        usage = charge.estimate(sent(stream=is_stream), ending, shown)
        assert usage == (Usage() if expected is None else estimated(*expected)), is_stream


def test_the_table_has_every_ending() -> None:
    (mark,) = test_every_ending.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in mark.args[1]} == set(Ending)


@pytest.mark.parametrize("ending", [each for each in Ending if each not in charge.FREE])
def test_all_candidates_of_which_not_all_are_shown_are_charged(ending: Ending) -> None:
    assert charge.estimate(sent(best_of=3), ending, TEXT) == estimated(7, 300)
    assert charge.estimate(sent("embeddings", output_limit=None), ending, NOTHING) == estimated(7, 0)


@pytest.mark.parametrize(
    ("phase", "fault", "status", "ending"),
    [
        (Phase.CONNECT, Fault.CONNECT, None, Ending.UNSENT),
        (Phase.CONNECT, Fault.TIMEOUT, None, Ending.UNSENT),
        (Phase.CONNECT, Fault.BUSY, None, Ending.UNSENT),
        (Phase.STALE, Fault.CUT, None, Ending.UNSENT),
        (Phase.REFUSED, Fault.RATE_LIMITED, 429, Ending.REFUSED),
        (Phase.REFUSED, Fault.STATUS, 500, Ending.REFUSED),
        (Phase.REFUSED, Fault.STATUS, 503, Ending.REFUSED),
        (Phase.REFUSED, Fault.REDIRECT, 302, Ending.REFUSED),
        (Phase.REFUSED, Fault.IN_BAND, None, Ending.REFUSED),
        (Phase.REFUSED, Fault.STATUS, 408, Ending.SILENT),
        (Phase.REFUSED, Fault.STATUS, 504, Ending.SILENT),
        (Phase.REFUSED, Fault.STATUS, 524, Ending.SILENT),
        (Phase.REFUSED, Fault.STATUS, 204, Ending.BROKEN),
        (Phase.WAITING, Fault.TIMEOUT, None, Ending.SILENT),
        (Phase.WAITING, Fault.CUT, None, Ending.BROKEN),
        (Phase.WAITING, Fault.TOO_LARGE, None, Ending.BROKEN),
        (Phase.WAITING, Fault.NOT_JSON, None, Ending.BROKEN),
        (Phase.WAITING, Fault.PROTOCOL, None, Ending.BROKEN),
        (Phase.RELAYING, Fault.TIMEOUT, None, Ending.SILENT),
        (Phase.RELAYING, Fault.CUT, None, Ending.BROKEN),
    ],
)
def test_ending_of_a_failure(phase: Phase, fault: Fault, status: int | None, ending: Ending) -> None:
    assert charge.ending_of(Failure("u", phase, fault, status=status)) is ending


def test_text_of_a_broken_answer_counts_where_no_limit_was_sent() -> None:
    body = b'{"choices": [{"text": "' + b"word " * 500
    cut = body + b'"'
    assert charge.of_broken(sent(), Ending.BROKEN, cut).usage == estimated(7, 100)
    unlimited = sent(output_limit=None)
    assert charge.of_broken(unlimited, Ending.BROKEN).usage == estimated(7, 16)
    assert charge.of_broken(unlimited, Ending.BROKEN, cut).usage.completion_tokens > 500


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"usage": {"prompt_tokens": 50, "completion_tokens": 300}}x', estimated(50, 300)),
        (
            b'{"usage": {"prompt_tokens": 50, "completion_tokens": 3, "completion_tokens_details": {"x": 1}}',
            estimated(50, 100),
        ),
        (b'{"text": "\\"usage\\": {\\"prompt_tokens\\": 50}"}x', estimated(7, 100)),
        (b'{"usage": {"prompt_tokens": 50', estimated(7, 100)),
        (b'{"usage": {prompt}}', estimated(7, 100)),
    ],
)
def test_a_report_in_a_broken_answer_is_a_lower_bound(body: bytes, expected: Usage) -> None:
    assert charge.of_broken(sent(), Ending.BROKEN, body).usage == expected

"""What a client must see of each row of the fault catalogue (tests/fakes/faults.py).

Each row has what must come of a plain call and of a streamed one, None where it cannot be asked for that.
Where two answers stand, either may come: only so where RST may overtake bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gateway.formats.anthropic.messages import type_of
from tests.fakes.faults import RETRY_S, WITH_USAGE_EVENT, Ask
from tests.fakes.good_answers import MODEL, SNOW

from .client import ERROR_KEYS, Answer

RETRYABLE = (429, 503)
BLAMING = (400, 404, 413, 422)
AT_ONCE = ("1", "1000")
"""retry-after and retry-after-ms where the upstream says nothing: a second."""

Events = Callable[[Ask], list[Any]]


def shown(ask: Ask) -> list[Any]:
    """The events that a client gets before what ends a stream: not the usage that it did not ask for."""
    return ask.events[:-1] if ask.kind in WITH_USAGE_EVENT else ask.events


def chunk_of_a_plain_answer(ask: Ask) -> list[Any]:
    """The one chunk that the gateway writes of a plain answer, without the usage, which was not asked for."""
    answer = {name: value for name, value in ask.document.items() if name != "usage"}
    choices = [
        {"delta" if name == "message" else name: value for name, value in each.items()} for each in answer["choices"]
    ]
    chat = {"object": "chat.completion.chunk"} if answer["object"] == "chat.completion" else {}
    return [answer | chat | {"choices": choices}]


def events_of_a_plain_message(ask: Ask) -> list[Any]:
    """The events that the gateway writes of one."""
    message = ask.document
    (block,) = message["content"]
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    return [
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": block | {"text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": block["text"]}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": message["usage"]},
        {"type": "message_stop"},
    ]


def events_of_a_plain_response(ask: Ask) -> list[Any]:
    """The events that the gateway writes of one."""
    response = ask.document
    place = {"output_index": 0, "item": response["output"][0]}
    started = response | {"status": "in_progress", "output": [], "usage": None}
    return [
        {"type": "response.created", "sequence_number": 0, "response": started},
        {"type": "response.output_item.added", "sequence_number": 1, **place},
        {"type": "response.output_item.done", "sequence_number": 2, **place},
        {"type": "response.completed", "sequence_number": 3, "response": response},
    ]


def content_of_chunks(ask: Ask) -> dict[str, Any]:
    """The answer of Gemini's API that the gateway puts together of chunks: their parts follow each other."""
    answer = ask.document
    (candidate,) = answer["candidates"]
    parts = [{"text": text} for text in (ask.text, SNOW, "")]
    found = candidate | {"content": candidate["content"] | {"parts": parts}}
    return {name: value for name, value in answer.items() if name != "responseId"} | {"candidates": [found]}


@dataclass(frozen=True)
class Whole:
    """Status 200 and the whole good answer."""

    has_done: bool = True
    """Of a stream: whether what ends it comes. It must come from the upstream."""
    events: Events = shown
    """Of a stream: what comes before its end."""
    document: Callable[[Ask], Any] = attrgetter("document")
    """Of a plain call: the answer."""

    def check(self, ask: Ask, answer: Answer) -> None:
        assert answer.status == 200
        if not ask.kind.is_streamed:
            assert answer.json == self.document(ask)
            return
        assert answer.headers["content-type"].lower().startswith("text/event-stream")
        end = data_of_events(ask.form.end()) if self.has_done else []
        assert data_of_events(answer.body) == [*self.events(ask), *end]


@dataclass(frozen=True)
class ErrorFields:
    """What an error says to a program, in whatever format."""

    code: Any
    param: str | None
    kind: str
    message: str


def received(ask: Ask, answer: Answer) -> ErrorFields:
    """What an answer with an error status says. Its shape has to be that of the format."""
    if ask.kind.endpoint == "generate_content":
        error = google_error(answer.json)
        assert answer.json["error"]["code"] == answer.status
        return error
    if ask.kind.endpoint != "messages":
        error = answer.error
        return ErrorFields(error["code"], error["param"], error["type"], error["message"])
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["request-id"] == answer.id
    error = anthropic_error(answer.json)
    assert error.kind == type_of(answer.status)
    return error


def anthropic_error(whole: dict[str, Any]) -> ErrorFields:
    """An error as Anthropic's SDK reads it. It has no parameter."""
    assert sorted(whole) == ["error", "request_id", "type"]
    assert whole["type"] == "error"
    error = whole["error"]
    assert set(error) - {"details"} == {"type", "message"}
    return ErrorFields(error.get("details", {}).get("error_code"), None, error["type"], error["message"])


def google_error(whole: dict[str, Any]) -> ErrorFields:
    """An error as Google's clients read it; without a code its reason is its type."""
    assert list(whole) == ["error"]
    error = whole["error"]
    assert sorted(error) == ["code", "details", "message", "status"]
    details = {each["@type"].rpartition(".")[2]: each for each in error["details"]}
    reason = details["ErrorInfo"]["reason"].lower()
    field = details.get("BadRequest", {"fieldViolations": [{"field": None}]})["fieldViolations"][0]["field"]
    return ErrorFields(None if reason == "invalid_request_error" else reason, field, error["status"], error["message"])


@dataclass(frozen=True)
class Error:
    """A true status and the error object."""

    status: int
    code: str | None
    retry: tuple[str, str] | None = None
    """retry-after and retry-after-ms; None: `AT_ONCE` where the status says to come back, else neither header."""
    message: str = ""
    """How it ends."""
    param: str | None = None
    may_repeat: bool = True
    """False: the client must not repeat the call. The models of this catalogue do not set `repeat_when_waiting`."""

    def check(self, ask: Ask, answer: Answer) -> None:
        error = received(ask, answer)
        assert (answer.status, error.code, error.param) == (self.status, self.code, self.param)
        assert error.kind
        assert len(error.message) < 250
        assert error.message.endswith(self.message)
        after = answer.headers.get("retry-after"), answer.headers.get("retry-after-ms")
        retry = self.retry or (AT_ONCE if self.status in RETRYABLE else (None, None))
        if self.retry == SOON:
            assert 0 < int(str(after[0])) <= RETRY_S
            assert 0 < int(str(after[1])) <= RETRY_S * 1000
        else:
            assert after == retry
        is_final = not self.may_repeat or self.status in BLAMING
        assert answer.headers.get("x-should-retry") == ("false" if is_final else None)


@dataclass(frozen=True)
class Passed:
    """Status 200 and the answer as the upstream has sent it."""

    def check(self, ask: Ask, answer: Answer) -> None:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.body.startswith(b"{")


@dataclass(frozen=True)
class Broken:
    """A stream that has begun and ends with an error event, behind which nothing comes."""

    code: str | None
    events: Events = shown
    """Of which the first ones come."""

    def check(self, ask: Ask, answer: Answer) -> None:
        assert answer.status == 200
        assert answer.headers["content-type"].lower().startswith("text/event-stream")
        assert b"[DONE]" not in answer.body
        assert answer.body.endswith((b"\n\n", b"\r\n\r\n"))
        *passed, last = data_of_events(answer.body)
        error = error_of_event(ask, passed, last)
        assert (error.code, error.param) == (self.code, None)
        assert len(error.message) < 250
        assert passed == self.events(ask)[: len(passed)]


def error_of_event(ask: Ask, passed: list[Any], last: Any) -> ErrorFields:
    """What the event that ends a stream with an error says, whose shape has to be that of the format."""
    match ask.kind.endpoint:
        case "messages":
            return anthropic_error(last)
        case "generate_content":
            return google_error(last)
        case "responses":
            assert last["type"] == "response.failed"
            response = last["response"]
            assert response["status"] == "failed"
            if passed and passed[0].get("type") == "response.created":
                assert (response["id"], response["model"]) == ("resp_1", MODEL)
                assert last["sequence_number"] == len(passed)
            return ErrorFields(response["error"]["code"], None, "", response["error"]["message"])
    assert list(last) == ["error"]
    assert sorted(last["error"]) == ERROR_KEYS
    return ErrorFields(last["error"]["code"], last["error"]["param"], last["error"]["type"], last["error"]["message"])


def error_at_the_end(ask: Ask, answer: Answer) -> str | None:
    """What the error event that ends this stream calls itself, by its code or else its type; None: there is none."""
    *passed, last = data_of_events(answer.body) or [None]
    is_error = isinstance(last, dict) and bool(last.get("error") or last.get("type") == "response.failed")
    if not is_error:
        return None
    error = error_of_event(ask, passed, last)
    return error.code or error.kind


Expected = Whole | Error | Passed | Broken
Either = Expected | tuple[Expected, ...] | None


def data_of_events(body: bytes) -> list[Any]:
    """The data of every event, as JSON where it is, whatever its line ends."""
    found: list[Any] = []
    for block in re.split(rb"\n\n+", body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")):
        lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if lines:
            text = b"\n".join(lines).decode()
            try:
                found.append(json.loads(text))
            except ValueError:
                found.append(text)
    return found


WHOLE, WITHOUT_DONE = Whole(), Whole(has_done=False)
FAILED, LATE = Error(502, "upstream_error"), Error(504, "upstream_timeout", may_repeat=False)
NEVER_SENT = Error(504, "upstream_timeout")
CUT, SILENT = Broken("upstream_error"), Broken("upstream_timeout")
BUSY = Error(503, "upstream_error")
LIMITED = Error(429, "upstream_rate_limited")
AUTH = Error(502, "upstream_auth_failed", may_repeat=False)
BALANCE = Error(502, "upstream_quota_exceeded", may_repeat=False)
SOON = ("soon", "soon")
CLEANED = " says no to the key ***, and so does the upstream."
RELAYED = Error(400, "some_code", message=CLEANED)

TABLE: dict[str, tuple[Either, Either]] = {
    "refused": (FAILED, FAILED),
    "never accepted": (NEVER_SENT, NEVER_SENT),
    "accepts and closes": (FAILED, FAILED),
    "accepts and resets": (FAILED, FAILED),
    "accepts and does not read": (LATE, LATE),
    "greets like a mail server": (FAILED, FAILED),
    "closes without an answer": (FAILED, FAILED),
    "resets without an answer": (FAILED, FAILED),
    "silent": (LATE, LATE),
    "closed in the status line": (FAILED, FAILED),
    "reset in the status line": (FAILED, FAILED),
    "stalled in the status line": (LATE, LATE),
    "closed in the head": (FAILED, FAILED),
    "reset in the head": (FAILED, FAILED),
    "stalled in the head": (LATE, LATE),
    "closed after the head, with a length": (FAILED, FAILED),
    "reset after the head, with a length": (FAILED, FAILED),
    "stalled after the head, with a length": (LATE, LATE),
    "closed after the head, in chunks": (FAILED, FAILED),
    "reset after the head, in chunks": (FAILED, FAILED),
    "stalled after the head, in chunks": (LATE, LATE),
    "closed in the body, with a length": (FAILED, CUT),
    "reset in the body, with a length": (FAILED, (CUT, FAILED)),
    "stalled in the body, with a length": (LATE, SILENT),
    "closed in the body, in a chunk": (FAILED, CUT),
    "reset in the body, in a chunk": (FAILED, (CUT, FAILED)),
    "stalled in the body, in a chunk": (LATE, SILENT),
    "closed in a chunk size": (FAILED, CUT),
    "reset in a chunk size": (FAILED, (CUT, FAILED)),
    "stalled in a chunk size": (LATE, SILENT),
    "closed before the last chunk": (None, WHOLE),
    "reset before the last chunk": (None, (WHOLE, FAILED)),
    "stalled before the last chunk": (None, WHOLE),
    "closed before the last chunk of JSON": (FAILED, None),
    "reset before the last chunk of JSON": (FAILED, None),
    "stalled before the last chunk of JSON": (LATE, None),
    "closed between two events": (None, CUT),
    "reset between two events": (None, (CUT, FAILED)),
    "stalled between two events": (None, SILENT),
    "closed in the first event": (None, FAILED),
    "reset in the first event": (None, FAILED),
    "stalled in the first event": (None, LATE),
    "closed in an event": (None, CUT),
    "reset in an event": (None, (CUT, FAILED)),
    "stalled in an event": (None, SILENT),
    "closed after a false DONE": (None, CUT),
    "reset after a false DONE": (None, (CUT, FAILED)),
    "stalled after a false DONE": (None, CUT),
    "closed after the finish_reason": (None, WITHOUT_DONE),
    "reset after the finish_reason": (None, (WITHOUT_DONE, FAILED)),
    "stalled after the finish_reason": (None, WITHOUT_DONE),
    "closed after the usage": (None, WITHOUT_DONE),
    "reset after the usage": (None, (WITHOUT_DONE, FAILED)),
    "stalled after the usage": (None, WITHOUT_DONE),
    # Slow.
    "a head without end, byte by byte": (LATE, LATE),
    "every byte by itself": (WHOLE, WHOLE),
    "nothing but comments": (None, SILENT),
    "nothing but comments after an event": (None, SILENT),
    "comments between events": (None, WHOLE),
    "blank lines before the JSON": (WHOLE, None),
    "blank lines for ever": (LATE, None),
    # Too much.
    "an endless body": (FAILED, None),
    "an endless stream": (None, Broken("upstream_timeout", lambda ask: [ask.piece("more ")] * 1000)),
    "a body that is too long": (FAILED, None),
    "a body announced as too long": (FAILED, None),
    "one header too long": (FAILED, FAILED),
    "a header without end": (FAILED, FAILED),
    "thousands of headers": (FAILED, FAILED),
    "a thousand headers": (WHOLE, WHOLE),
    "a chunk extension without end": (FAILED, FAILED),
    "long chunk extensions": (WHOLE, WHOLE),
    "a flood of chunk extensions": (FAILED, FAILED),
    "trailers": (WHOLE, WHOLE),
    "trailers without end": (FAILED, WHOLE),
    # Interim answers.
    "early hints": (WHOLE, WHOLE),
    "a hundred interim answers": (WHOLE, WHOLE),
    "a flood of interim answers": (FAILED, FAILED),
    "interim answers for ever": (LATE, LATE),
    "an interim answer with a body": (FAILED, FAILED),
    "an interim answer, then closed": (FAILED, FAILED),
    "101": (FAILED, FAILED),
    "offers an upgrade": (WHOLE, WHOLE),
    # Not HTTP, or hardly.
    "HTTP/2 frames": (FAILED, FAILED),
    "a TLS alert": (FAILED, FAILED),
    "an SSH banner": (FAILED, FAILED),
    "every byte there is": (FAILED, FAILED),
    "a page without a head": (FAILED, FAILED),
    "HTTP/2.0 in the status line": (FAILED, FAILED),
    "HTTP/9.9 in the status line": (FAILED, FAILED),
    "ICY in the status line": (FAILED, FAILED),
    "no status in the status line": (FAILED, FAILED),
    "status 000": (FAILED, FAILED),
    "a line break before the status line": (FAILED, FAILED),
    "a header without a colon": (FAILED, FAILED),
    "a folded header": (FAILED, FAILED),
    "NUL in a header": (FAILED, FAILED),
    "a space before the colon": (FAILED, FAILED),
    "bytes beyond ASCII in a header": (WHOLE, WHOLE),
    # HTTP/1.0, and bodies that end with the connection.
    "HTTP/1.0, until it closes": (WHOLE, WHOLE),
    "HTTP/1.1, until it closes": (WHOLE, WHOLE),
    "HTTP/1.0 that stays": (WHOLE, WHOLE),
    "says close and stays": (WHOLE, WHOLE),
    "until it closes, cut": (FAILED, CUT),
    "until it closes, reset": (FAILED, (CUT, FAILED)),
    "until it closes, stalled": (LATE, SILENT),
    # Framing that contradicts itself.
    "two lengths that differ": (FAILED, FAILED),
    "two lengths that agree": (FAILED, FAILED),
    "a length and chunks": (FAILED, FAILED),
    "a length that is negative": (FAILED, FAILED),
    "a length beyond all numbers": (FAILED, FAILED),
    "a length that is no number": (FAILED, FAILED),
    "a length that is too short": (FAILED, CUT),
    "a length that is too long, closed": (FAILED, WHOLE),
    "a length that is too long, stalled": (LATE, WHOLE),
    "a transfer coding nobody knows": (FAILED, FAILED),
    "a chunk size that is no number": (FAILED, CUT),
    "a chunk size that is negative": (FAILED, CUT),
    "a chunk size beyond all numbers": (FAILED, CUT),
    "a chunk longer than it says": (FAILED, CUT),
    "an empty chunk too early": (FAILED, CUT),
    # More than was asked for, and connections that have been used before.
    "a surplus answer": (WHOLE, WHOLE),
    "half a surplus answer": (WHOLE, WHOLE),
    "surplus bytes": (WHOLE, WHOLE),
    "a surplus line break": (WHOLE, WHOLE),
    "closes behind the answer": (WHOLE, WHOLE),
    "resets behind the answer": (WHOLE, WHOLE),
    "used again, closes": (WHOLE, WHOLE),
    "used again, resets": (WHOLE, WHOLE),
    "used again, silent": (LATE, LATE),
    "used again, closes in the status line": (FAILED, FAILED),
    # Errors that say what they are.
    "429": (LIMITED, LIMITED),
    "429 with Retry-After": (Error(429, "upstream_rate_limited", ("7", "7000")),) * 2,
    "500": (FAILED, FAILED),
    "500 with Retry-After": (FAILED, FAILED),
    "502": (FAILED, FAILED),
    "502 with Retry-After": (FAILED, FAILED),
    "503": (BUSY, BUSY),
    "503 with Retry-After": (Error(503, "upstream_error", ("7", "7000")),) * 2,
    "504": (FAILED, FAILED),
    "504 with Retry-After": (FAILED, FAILED),
    "529": (FAILED, FAILED),
    "529 with Retry-After": (FAILED, FAILED),
    "429 with Retry-After-Ms": (Error(429, "upstream_rate_limited", ("2", "1500")),) * 2,
    "429 with a past date": (Error(429, "upstream_rate_limited", ("1", "1")),) * 2,
    "429 with a date": (Error(429, "upstream_rate_limited", SOON),) * 2,
    "429 with a garbled Retry-After": (LIMITED, LIMITED),
    "429 with Retry-After 0": (Error(429, "upstream_rate_limited", ("1", "1")),) * 2,
    "429 with an endless Retry-After": (LIMITED, LIMITED),
    "503 with Retry-After-Ms": (Error(503, "upstream_error", ("2", "1500")),) * 2,
    "503 with a past date": (Error(503, "upstream_error", ("1", "1")),) * 2,
    "503 with a date": (Error(503, "upstream_error", SOON),) * 2,
    "503 with a garbled Retry-After": (BUSY, BUSY),
    "503 with Retry-After 0": (Error(503, "upstream_error", ("1", "1")),) * 2,
    "503 with an endless Retry-After": (BUSY, BUSY),
    "401": (AUTH, AUTH),
    "402": (BALANCE, BALANCE),
    "403": (AUTH, AUTH),
    "403 of a spent balance": (BALANCE, BALANCE),
    "429 of a spent balance": (BALANCE, BALANCE),
    "400": (RELAYED, RELAYED),
    "404": (Error(404, "some_code", message=CLEANED),) * 2,
    "413": (Error(413, "some_code", message=CLEANED),) * 2,
    "422": (Error(422, "some_code", message=CLEANED),) * 2,
    "400 that means the credential": (AUTH, AUTH),
    "500 that means the request": (Error(400, "invalid_request", message=CLEANED),) * 2,
    "408": (FAILED, FAILED),
    "409": (FAILED, FAILED),
    "418": (FAILED, FAILED),
    "status 299": (FAILED, FAILED),
    "status 600": (FAILED, FAILED),
    "status 999": (FAILED, FAILED),
    "400 without a body": (Error(400, None), Error(400, None)),
    "429 without a body": (LIMITED, LIMITED),
    "400 with a page": (Error(400, None), Error(400, None)),
    "400 with another kind of error": (Error(400, None, message=CLEANED),) * 2,
    "400 with only a text": (Error(400, None, message=CLEANED),) * 2,
    "400 with odd members": (Error(400, "{}", param="7"),) * 2,
    "429 cut in its body": (FAILED, FAILED),
    "500 stalled in its body": (LATE, LATE),
    "500 until it closes": (FAILED, FAILED),
    "503 as a stream": (BUSY, BUSY),
    # Answers of another kind than was asked for.
    "a page with 200": (FAILED, FAILED),
    "a page with 502": (FAILED, FAILED),
    "a page with 503": (BUSY, BUSY),
    "nothing with 200": (FAILED, FAILED),
    "no chunks with 200": (FAILED, FAILED),
    "nothing until it closes": (FAILED, FAILED),
    "204": (FAILED, FAILED),
    "205": (FAILED, FAILED),
    "206": (FAILED, FAILED),
    "304": (FAILED, FAILED),
    "301": (FAILED, FAILED),
    "302": (FAILED, FAILED),
    "303": (FAILED, FAILED),
    "307": (FAILED, FAILED),
    "308": (FAILED, FAILED),
    "302 without a Location": (FAILED, FAILED),
    "gzip": (WHOLE, WHOLE),
    "deflate": (WHOLE, WHOLE),
    "deflate without a header": (WHOLE, WHOLE),
    "an unknown content encoding": (FAILED, FAILED),
    "gzip that is none": (FAILED, FAILED),
    "half of a gzip": (FAILED, FAILED),
    "gzip in chunks, not said": (FAILED, FAILED),
    # As events, because the SDKs read nothing else of a stream.
    "JSON for a stream": (None, Whole(has_done=False, events=chunk_of_a_plain_answer)),
    "an error as JSON for a stream": (None, FAILED),
    # Some upstreams stream whether they are asked to or not (new-api#6924): the answer is put together.
    "a stream for a plain call": (Whole(document=lambda ask: ask.form.document(ask.text + SNOW)), None),
    "events said to be JSON": (None, WHOLE),
    "events said to be nothing": (None, WHOLE),
    "events in capitals, with a charset": (None, WHOLE),
    "JSON said to be text": (WHOLE, None),
    "JSON said to be nothing": (WHOLE, None),
    # JSON that is none.
    "words": (FAILED, None),
    "JSON cut in half": (FAILED, None),
    "JSON without its last byte": (FAILED, None),
    "JSON and then some": (FAILED, None),
    "two JSON texts": (FAILED, None),
    "NaN in JSON": (FAILED, None),
    "Infinity in JSON": (FAILED, None),
    "a comma too many": (FAILED, None),
    "bytes that are not UTF-8": (FAILED, None),
    "UTF-16": (FAILED, None),
    "a byte order mark": (WHOLE, None),
    "an array": (FAILED, None),
    "an empty array": (FAILED, None),
    "a number": (FAILED, None),
    "a string": (FAILED, None),
    "null": (FAILED, None),
    "true": (FAILED, None),
    "blanks": (FAILED, None),
    "brackets without end": (FAILED, None),
    "brackets too deep": (FAILED, None),
    # Errors inside a 200.
    "an error in a 200": (FAILED, None),
    "an error as the first event": (None, CUT),
    "an error as a later event": (None, CUT),
    "an error with a status as its code in a 200": (FAILED, None),
    "an error with a status as its code as the first event": (None, CUT),
    "an error with a status as its code as a later event": (None, CUT),
    "a spent balance in a 200": (BALANCE, None),
    "a spent balance as the first event": (None, Broken("upstream_quota_exceeded")),
    "a spent balance as a later event": (None, Broken("upstream_quota_exceeded")),
    "a refused credential in a 200": (AUTH, None),
    "a refused credential as the first event": (None, Broken("upstream_auth_failed")),
    "a refused credential as a later event": (None, Broken("upstream_auth_failed")),
    "a rate limit in a 200": (LIMITED, None),
    "a rate limit as the first event": (None, Broken("upstream_rate_limited")),
    "a rate limit as a later event": (None, Broken("upstream_rate_limited")),
    "the client's fault in a 200": (RELAYED, None),
    "the client's fault as the first event": (None, Broken("some_code")),
    "the client's fault as a later event": (None, Broken("some_code")),
    "an error in a 200 that is only a text": (FAILED, None),
    "an error in a 200 beside an answer": (FAILED, None),
    "an event with an error that is only a text": (None, CUT),
    "an event named error": (None, CUT),
    "an error behind the finish_reason": (None, CUT),
    "an error behind DONE": (None, WHOLE),
    "an error, then closed": (None, CUT),
    "an error, then stalled": (None, CUT),
    # Streams that end oddly, or are written oddly.
    "DONE without a finish_reason": (None, CUT),
    "only DONE": (None, FAILED),
    "only a comment": (None, CUT),
    "only the usage": (None, FAILED),
    "an empty finish_reason": (None, Broken("upstream_error", lambda ask: [ask.piece("x", "")])),
    "an end without a finish_reason": (None, CUT),
    "an end without DONE": (None, WITHOUT_DONE),
    "an end inside an event": (None, CUT),
    "an end inside the finish_reason": (None, CUT),
    "DONE without its blank line": (None, WHOLE),
    "DONE without a line end": (None, WHOLE),
    "a finish_reason without its blank line": (None, WITHOUT_DONE),
    "bytes behind DONE": (None, WHOLE),
    "DONE twice": (None, WHOLE),
    "CRLF": (None, WHOLE),
    "bare CR": (None, WHOLE),
    "no space behind the colon": (None, WHOLE),
    "ids, retries and named events": (None, WHOLE),
    "a chunk for every byte": (None, WHOLE),
    "everything in one chunk": (None, WHOLE),
    "an event that is not JSON": (
        None, Whole(events=lambda ask: [ask.events[0], "{oops", *shown(ask)[1:]])
    ),
    "a page as events": (None, FAILED),
    "an answer as one event": (
        None, Whole(events=lambda ask: [{**ask.form.document(ask.text), "usage": None}])
    ),
    "a stream with a length": (None, WHOLE),
    "DONE, then stalled": (None, WHOLE),
    "DONE, then bytes for ever": (None, WHOLE),
    "DONE, then a bad chunk": (None, WHOLE),
    "many words in its headers": (WHOLE, WHOLE),
}  # fmt: skip

NAMELESS = Error(400, None, message=CLEANED)
"""Anthropic's errors have a type and no code."""
OVERLOADED, OVERLOADED_FOR_LONG = Error(529, "upstream_error", AT_ONCE), Error(529, "upstream_error", ("7", "7000"))


def first_event_is(error: Error) -> tuple[Either, Either]:
    """A response whose first event is an error has a true status: its clients repeat by the status."""
    return None, error


def image_as_event(ask: Ask) -> list[Any]:
    """The event that the gateway writes of a plain answer with an image."""
    answer = ask.document
    return [{"type": "image_generation.completed", **answer["data"][0], "usage": answer["usage"]}]


OF_MEDIA: dict[str, tuple[Either, Either]] = {
    "a stream for a plain call": (FAILED, None),
    # `[DONE]` is dropped and ends nothing.
    "stalled after a false DONE": (None, SILENT),
    # The event that completes the answer is the end: what follows is not read.
    "an error behind the finish_reason": (None, WHOLE),
    "an answer as one event": (None, Broken("upstream_error", lambda ask: [ask.form.document(ask.text)])),
}
OF_FORMAT: dict[str, dict[str, tuple[Either, Either]]] = {
    # OpenAI itself answers a request for a stream of whisper-1 in JSON (API reference, `stream`).
    "transcriptions": OF_MEDIA | {"JSON for a stream": (None, Passed())},
    "images": OF_MEDIA | {
        # As events, because OpenAI's SDKs read nothing else.
        "JSON for a stream": (None, Whole(events=image_as_event)),
        # Read while they arrive, because they are long, and not checked to be JSON throughout.
        **dict.fromkeys(
            (
                "JSON and then some", "two JSON texts", "a comma too many", "NaN in JSON", "Infinity in JSON",
                "bytes that are not UTF-8", "brackets too deep",
            ),
            (Passed(), None),
        ),
    },
    "messages": {
        "JSON for a stream": (None, Whole(has_done=False, events=events_of_a_plain_message)),
        # Clients of the API wait and repeat at 529; other gateways' clients do not know it.
        "529": (OVERLOADED, OVERLOADED),
        "529 with Retry-After": (OVERLOADED_FOR_LONG, OVERLOADED_FOR_LONG),
        "400": (NAMELESS, NAMELESS),
        "404": (Error(404, None, message=CLEANED),) * 2,
        "413": (Error(413, None, message=CLEANED),) * 2,
        "422": (Error(422, None, message=CLEANED),) * 2,
        "500 that means the request": (NAMELESS, NAMELESS),
        "400 with odd members": (Error(400, "{}"), Error(400, "{}")),  # it has no place for a parameter
        "the client's fault in a 200": (NAMELESS, None),
        "the client's fault as the first event": (None, Broken(None)),
        "the client's fault as a later event": (None, Broken(None)),
        # No event of the API, so it does not end the stream.
        "an answer as one event": (None, Broken("upstream_error", lambda ask: [ask.form.document(ask.text)])),
    },
    "responses": {
        # `[DONE]` is dropped and ends nothing.
        "stalled after a false DONE": (None, SILENT),
        "DONE without a finish_reason": (None, CUT),
        # As events, because its clients read nothing else.
        "JSON for a stream": (None, Whole(events=events_of_a_plain_response)),
        # Its events repeat the answer, so that half of them holds a whole event.
        "half of a gzip": (FAILED, (CUT, FAILED)),
        "an error as the first event": first_event_is(FAILED),
        "an error with a status as its code as the first event": first_event_is(FAILED),
        "a spent balance as the first event": first_event_is(BALANCE),
        "a refused credential as the first event": first_event_is(AUTH),
        "a rate limit as the first event": first_event_is(LIMITED),
        "the client's fault as the first event": first_event_is(Error(400, "invalid_prompt", message=CLEANED)),
        "the client's fault as a later event": (None, Broken("invalid_prompt")),
        # `response.completed` is the end: what follows is not read.
        "an error behind the finish_reason": (None, WHOLE),
        "an answer as one event": (None, Broken("upstream_error", lambda ask: [ask.form.document(ask.text)])),
    },
    "generate_content": {
        # `[DONE]` is dropped, and ends nothing but a complete answer.
        "stalled after a false DONE": (None, SILENT),
        "DONE without a finish_reason": (None, CUT),
        # The end of its message is the end, whatever has finished.
        "an error behind DONE": (None, CUT),
        "a stream for a plain call": (Whole(document=content_of_chunks), None),
        "JSON for a stream": (None, Whole(events=lambda ask: [ask.document])),
        "an answer as one event": (None, Whole(events=lambda ask: [ask.document])),
        # Comments do not leave, so that the stream has not begun.
        "nothing but comments": (None, LATE),
        "only a comment": (None, FAILED),
        "an error as the first event": first_event_is(FAILED),
        "an error with a status as its code as the first event": first_event_is(FAILED),
        "a spent balance as the first event": first_event_is(BALANCE),
        "a refused credential as the first event": first_event_is(AUTH),
        "a rate limit as the first event": first_event_is(LIMITED),
        "the client's fault as the first event": first_event_is(RELAYED),
    },
}  # fmt: skip
"""Rows of which a format makes something else, and why."""

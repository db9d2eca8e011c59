"""Values of any type in any place of an upstream's answer: it is read, or is unfit, and nothing else is raised.

An exception in a read callback would be logged with its traceback, and of a plain answer the client would get 500.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.formats.events import Unfit
from gateway.formats.format import ScanInput
from gateway.formats.table import FORMATS
from gateway.upstream.connection import Head
from gateway.upstream.provider_errors import judge, judge_in_band
from tests.amounts import amount
from tests.fakes.good_answers import FORMS
from tests.fakes.scripted import event
from tests.wings.translate import translated
from tests.wings.translate.translated import GOLDEN

pytestmark = pytest.mark.shortened

STRANGE: tuple[Any, ...] = ([["x"]], {"type": ["x"]}, {"a": 1}, [], 1, "x", None, True, [{"type": {}}], -1.5)
STEP = amount(1, 5)
"""Every place, or each fifth one."""

Places = Iterator[tuple[Any, ...]]


def places_of(value: Any, above: tuple[Any, ...] = ()) -> Places:
    """The ways to all values inside one."""
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield (*above, name)
        yield from places_of(inner, (*above, name))


def with_strange(value: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a value with something strange in one place of each; and the name of the place."""
    text = json.dumps(value)
    for *above, last in list(places_of(value))[::STEP]:
        for strange in STRANGE:
            inner = copied = json.loads(text)
            for name in above:
                inner = inner[name]
            inner[last] = strange
            yield f"{(*above, last)}: {strange}", copied


NO_FORM = (Unfit, ValueError)
"""The errors of an answer that cannot be passed on, and of one that has no form that is known."""


def raised_by(read: Callable[[], object], expected: tuple[type[Exception], ...] = NO_FORM) -> str:
    try:
        read()
    except expected:
        return ""
    except Exception as error:
        return repr(error)
    return ""


@pytest.mark.parametrize("name", GOLDEN)
def test_an_answer_that_is_translated(name: str) -> None:
    golden, way = GOLDEN[name], name.partition("/")[0]
    found = {}
    if "answer" in golden:
        for place, answer in with_strange(golden["answer"]):
            found[place] = raised_by(lambda answer=answer: translated.plain(way, golden["request"], answer))  # type: ignore[misc]
    else:
        for place, chunks in with_strange(golden["chunks"]):
            if all(isinstance(each, dict) for each in chunks):  # a scan hands nothing else to a reader
                found[place] = raised_by(lambda chunks=chunks: translated.streamed(way, golden["request"], chunks))  # type: ignore[misc]
    assert {place: error for place, error in found.items() if error} == {}


SEARCHED = {
    "id": "resp_1", "object": "response", "status": "completed", "model": "m", "service_tier": "default",
    "output": [
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "code_interpreter_call", "container_id": "c", "environment": {"container_id": "c"}},
        {"type": "message", "content": [{"type": "output_text", "text": "Hi", "annotations": [{"type": "x"}]}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
    ],
    "usage": {"input_tokens": 1, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 1}},
    "tool_usage": {"web_search": {"num_requests": 1}},
}  # fmt: skip
GROUNDED = {
    "candidates": [{
        "content": {"role": "model", "parts": [{"text": "Hi", "thought": False}, {"functionCall": {"name": "f"}}]},
        "finishReason": "STOP", "groundingMetadata": {"webSearchQueries": ["q"], "groundingChunks": [{"web": {}}]},
    }],
    "usageMetadata": {"promptTokenCount": 1, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1}]},
}  # fmt: skip
WHOLE = [
    *[(name, form.document("Hi")) for name, form in FORMS.items()],
    ("responses", SEARCHED), ("generate_content", GROUNDED),
    ("embeddings", {"data": [{"embedding": [0.1], "index": 0}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}),
    ("rerank", {"results": [{"index": 0, "relevance_score": 0.5}], "meta": {"billed_units": {"search_units": 1}}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "document"), WHOLE)
def test_an_answer_that_is_passed_on(name: Any, document: dict[str, Any]) -> None:
    spec, found = FORMATS[name], {}
    for place, strange in with_strange(document):
        body = json.dumps(strange).encode()

        def read(body: bytes = body) -> None:
            reader = spec.facts_reader() if spec.facts_reader is not None else None
            if reader is not None:
                reader.feed(body)
            spec.facts(body)

        found[place] = raised_by(read)
    assert {place: error for place, error in found.items() if error} == {}


@pytest.mark.parametrize("name", [name for name in FORMS if FORMATS[name].scan is not None])
def test_a_stream_that_is_passed_on(name: Any) -> None:
    spec, form, found = FORMATS[name], FORMS[name], {}
    make = spec.scan
    assert make is not None
    events = [*form.pieces("Hi"), *form.finish("Hi")]
    for place, strange in with_strange(events):
        text = b"".join(map(event, strange)) + form.end()

        def read(text: bytes = text) -> None:
            scan = make(ScanInput())
            scan.feed(text)
            scan.finish()
            if spec.gather is not None:
                spec.gather(text)

        found[place] = raised_by(read)
    assert {place: error for place, error in found.items() if error} == {}


BATCHES = [
    ("batches", {"id": "b", "status": "completed", "output_file_id": "out", "error_file_id": "err", "error": None}),
    ("message_batches", {"id": "b", "processing_status": "ended", "results_url": "u", "cancel_initiated_at": None}),
]  # fmt: skip
LINES = [
    ("batches", "chat", {"custom_id": "1", "response": {"status_code": 200, "body": FORMS["chat"].document("Hi")}}),
    ("message_batches", "messages",
     {"custom_id": "1", "result": {"type": "succeeded", "message": FORMS["messages"].document("Hi")}}),
]  # fmt: skip


def test_a_batch_and_its_results() -> None:
    """A poll that raised would log its traceback until the batch is given up, after three days."""
    found = {}
    for name, batch in BATCHES:
        spec = FORMATS[name]  # type: ignore[index]
        assert spec.batch is not None
        for place, strange in [*with_strange(batch), ("deep", "deep")]:
            body = json.dumps(strange).encode() if strange != "deep" else b"[" * 100_000
            for read in (spec.batch.state, spec.facts):
                found[name, place] = raised_by(lambda read=read, body=body: read(body))  # type: ignore[misc]
    for name, endpoint, line in LINES:
        batches = FORMATS[name].batch  # type: ignore[index]
        assert batches is not None
        for place, strange in with_strange(line):
            body = json.dumps(strange).encode()
            found[name, place] = raised_by(lambda batches=batches, body=body, of=endpoint: batches.line(body, of))  # type: ignore[misc]
    assert {place: error for place, error in found.items() if error} == {}


ERRORS: tuple[Any, ...] = (
    {"error": {"message": "m", "type": "t", "code": "c", "param": "p", "status": "INVALID_ARGUMENT",
               "details": [{"@type": "x", "reason": "r", "retryDelay": "1s"}],
               "innererror": {"code": "x", "content_filter_result": {"hate": {"filtered": True}}}}},
    {"type": "error", "error": {"type": "rate_limit_error", "message": "m"}},
    [{"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}],
    {"detail": [{"loc": ["body", "a"], "msg": "m", "type": "t"}]},
    {"message": "m", "code": "c"}, {"error": "m"}, {"errors": [{"message": "m", "field": "f"}]},
)  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_an_error_of_an_upstream(error: Any, status: int) -> None:
    """The call would be charged its reservation besides, which a refused one does not cost."""
    found = {}
    for place, strange in with_strange(error):
        head, body = Head(status, (("content-type", "application/json"),)), json.dumps(strange).encode()
        found[place] = raised_by(lambda head=head, body=body: judge("up", head, body, now=0, hide=[("secret", "***")]))  # type: ignore[misc]
        if isinstance(strange, dict) and isinstance(inner := strange.get("error"), dict):
            found[place] += raised_by(lambda inner=inner: judge_in_band("up", inner, hide=[("secret", "***")]))  # type: ignore[misc]
    assert {place: error for place, error in found.items() if error} == {}

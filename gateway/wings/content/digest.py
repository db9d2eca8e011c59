"""The exported form of a kept call: its facts, and its messages without what is left out. Pure.

It runs in a process of its own (`process.py`), because a long body takes its time, and a pattern may take forever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gateway.formats.event_scan import parsed
from gateway.formats.table import FORMATS
from gateway.observe.span_attributes import SCHEMA
from gateway.records import Endpoint

from .messages import Instructed, Messages, of_answer, of_raw, of_request, of_stream
from .redaction import Redactor

UNSURE = 512
"""Characters before a cut that are left out: what a pattern would have matched may be cut in half there."""


class KeptBody(NamedTuple):
    """A request, or an answer as its upstream sent it."""

    endpoint: Endpoint
    """The name of its format."""
    data: bytes
    is_stream: bool = False
    is_cut: bool = False
    """Whether its end is missing."""


class KeptCall(NamedTuple):
    """A call that has ended."""

    facts: Mapping[str, Any]
    """They have the span's `name`, `trace_id`, `span_id`, `began`, `duration_s`, `is_error` and `attributes`."""
    request: KeptBody
    answers: Sequence[KeptBody] = ()
    """Several, where each prompt of the call has its own."""

    @property
    def size(self) -> int:
        return sum([len(each.data) for each in (self.request, *self.answers)])


def exported(call: KeptCall, redact: Redactor) -> dict[str, Any]:
    """The call as it is exported, as JSON has it."""
    asked = _asked(call.request)
    answered = [message for each in call.answers for message in _answered(each)]
    kept = redact({"system": asked.system, "input": asked.messages, "output": answered})
    facts = dict(call.facts)
    began = datetime.fromtimestamp(facts.pop("began"), UTC)
    content = {
        "gen_ai.system_instructions": kept["system"],
        "gen_ai.input.messages": kept["input"],
        "gen_ai.output.messages": kept["output"],
        "gen_ai.response.finish_reasons": [each["finish_reason"] for each in answered],
        "gateway.content_cut": any(each.is_cut for each in (call.request, *call.answers)),
    }
    attributes = {**facts.pop("attributes"), **{name: value for name, value in content.items() if value}}
    return {"schema_url": SCHEMA, "time": began.isoformat(), **facts, "attributes": attributes}


def _asked(body: KeptBody) -> Instructed:
    members = None if body.is_cut else parsed(body.data)
    return Instructed([], of_raw(_shown(body), "user")) if members is None else of_request(body.endpoint, members)


def _answered(body: KeptBody) -> Messages:
    """The messages of an answer; of one that has none that is known, nothing."""
    if body.is_stream and FORMATS[body.endpoint].scan is not None:
        return of_stream(body.endpoint, body.data, is_cut=body.is_cut)
    members = None if body.is_cut else parsed(body.data)
    if members is not None:
        return of_answer(body.endpoint, members)
    return of_raw(_shown(body), "assistant") if body.is_cut else []


def _shown(body: KeptBody) -> str:
    text = body.data.decode("utf-8", "replace")
    return text[:-UNSURE] if body.is_cut else text


def line_of(call: Mapping[str, Any]) -> bytes:
    """The call as a line of a file."""
    return json.dumps(call, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"

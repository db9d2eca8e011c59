"""Calls in a format that their upstream lacks: the request in the upstream's format, and its answers in the client's.

`WAYS` has the formats that can be reached from each format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.api import large_body
from gateway.api.capabilities import Adaptation
from gateway.config import Capabilities
from gateway.errors import GatewayError, InvalidRequest, UpstreamRefused
from gateway.formats.bridges import Adapted, Bridge
from gateway.formats.event_scan import parsed
from gateway.formats.events import Unfit
from gateway.formats.format import Format, Scan, ScanInput, Writer
from gateway.formats.openai.frame import Frame
from gateway.formats.table import FORMATS
from gateway.quota import windows
from gateway.records import Call, Document, Endpoint, Params, Rewriting, Usage

from . import chat_request, messages_request, responses_request
from .chat_answer import ChatWriter
from .fields import TranslatedRequest
from .messages_answer import MessageWriter
from .responses_answer import ResponseWriter

ANTHROPIC_VERSION = ("anthropic-version", "2023-06-01")
"""The version of Messages that the translation writes (platform.claude.com/docs, "Versioning")."""
_KIND = "translated"
MAX_NOTE_BYTES = 262_144
"""Maximum size in bytes of the facts of a request that the answer of a translated call needs."""


class _Way(NamedTuple):
    """The differences between the ways. `asked` is the translated request."""

    target: Endpoint
    ask: Callable[[Mapping[str, Any], str, int | None], TranslatedRequest]
    """Translates the members of a request, given the member for an output limit in chat, and the limit of a call that
    gives none; None: it is added later."""
    write: Callable[[Any, Frame], Writer]
    names: Mapping[str, str]
    """Parameters of the upstream's format, as the client's has them."""
    fail: Callable[[GatewayError, Scan | None, str], bytes | None] | None = None
    """The client's event for an error, given the scan of what it has of the answer, and the request id; None: that of
    its own format."""
    limits: Callable[[TranslatedRequest], dict[str, Any]] = lambda asked: {}
    """Fields of `Params` for the output limit that the translation has written."""
    of_note: Callable[[Mapping[str, Any], dict[str, Any]], TranslatedRequest] = TranslatedRequest.of_note
    headers: tuple[tuple[str, str], ...] = ()


def translate(call: Call, capabilities: Capabilities, max_bytes: int) -> Adapted:
    """This call for an upstream with these capabilities. Raises `InvalidRequest`, but not after `refusal` was None.

    `max_bytes` bounds a streamed answer.
    """
    way = WAYS[call.endpoint]
    spec = FORMATS[call.endpoint]
    if call.params.document.large is None:
        asked = way.ask(call.params.document.members, capabilities.max_tokens_field, windows.output_limit(call))
        document = Document(json.dumps(asked.body, separators=(",", ":")), asked.body)
    else:
        asked, document = _of_large(way, call, capabilities)
    params = call.params._replace(
        document=document, n=1, best_of=1, prompts=1, include_usage=False, **way.limits(asked)
    )
    headers = [each for each in call.forwarded_headers if each[0].lower() not in spec.request_headers]
    sent = call._replace(endpoint=way.target, params=params, forwarded_headers=(*headers, *way.headers), query="")
    return Adapted(sent, _format(way, asked, call, max_bytes), asked.left_out)


def refusal(endpoint: Endpoint, params: Params, capabilities: Capabilities) -> InvalidRequest | None:
    """Why this call cannot be translated exactly; None: it can be."""
    large = params.document.large
    if large is not None:
        found = large.rewritten.get(Rewriting(_KIND, capabilities.max_tokens_field))
        return found if isinstance(found, InvalidRequest) else None
    try:
        WAYS[endpoint].ask(params.document.members, capabilities.max_tokens_field, 1)
    except InvalidRequest as refused:
        return refused
    return None


def _make(endpoint: Endpoint, members: Mapping[str, Any], field: str) -> tuple[dict[str, Any], bytes]:
    asked = WAYS[endpoint].ask(members, field, None)
    note = asked.noted()
    if len(json.dumps(note)) > MAX_NOTE_BYTES:
        note = asked.noted(is_short=True)
        if len(json.dumps(note)) > MAX_NOTE_BYTES:
            raise InvalidRequest("The body has too many tools, or too long names of tools.", param="tools")
    known, body = large_body.written(asked.body)
    return {"note": note, **known}, body


def _of_large(way: _Way, call: Call, capabilities: Capabilities) -> tuple[TranslatedRequest, Document]:
    """The translation of a large body, which was made before, with the output limit that its format requires."""
    large = call.params.document.large
    assert large is not None
    note, document = large.rewritten[Rewriting(_KIND, capabilities.max_tokens_field)]
    if way.target == "messages" and "max_tokens" not in document.members:
        document = large_body.with_first(document, "max_tokens", windows.output_limit(call))
    return way.of_note(note, document.members), document


class _Plain(NamedTuple):
    """A plain answer, which is translated for a client of this endpoint."""

    endpoint: Endpoint
    asked: TranslatedRequest
    frame: Frame

    def answer(self, body: bytes, charged: Usage) -> bytes:
        return json.dumps(self._written(body)[0].whole(charged), separators=(",", ":")).encode()

    def as_events(self, body: bytes, shows_usage: bool, charged: Usage) -> bytes:
        writer, written = self._written(body)
        return written + writer.close(charged)

    def _written(self, body: bytes) -> tuple[Writer, bytes]:
        """The writer of the answer, and its events but for the end. Raises `Unfit`."""
        way = WAYS[self.endpoint]
        make_reader = FORMATS[way.target].reader
        assert make_reader is not None
        reader, writer = make_reader(), way.write(self.asked, self.frame)
        if (answer := parsed(body)) is None:
            raise Unfit("an answer that is no JSON object")
        reader.facts(answer)
        events = [*reader.events(answer), *reader.rest()]
        return writer, writer.feed(events, reader.model) + writer.end()


def _format(way: _Way, asked: TranslatedRequest, call: Call, max_bytes: int) -> Format:
    """The upstream's format, with answers for this call's client."""
    target, own = FORMATS[way.target], FORMATS[call.endpoint]
    assert target.scan is not None
    scan_target = target.scan

    def scan(given: ScanInput) -> Scan:
        return scan_target(given._replace(writer=way.write(asked, Frame.of(call)), max_translated=max_bytes))

    made = _Plain(call.endpoint, asked, Frame.of(call))
    return replace(
        target,
        scan=scan,
        answer=made.answer,
        as_events=made.as_events,
        error_event=way.fail or (lambda error, _, request_id: own.error_event(error, None, request_id)),
        reword=lambda refused: renamed(refused, way.names),
        response_headers=frozenset(),
        streams_only_events=True,
        error_keeps_status=own.error_keeps_status,
    )


def renamed(refused: UpstreamRefused, names: Mapping[str, str]) -> UpstreamRefused:
    """The refusal of a translated call, with the client's names of parameters: in `param`, and quoted in the message.

    `names` are the upstream's parameters, each with the client's own.
    """
    message = refused.message
    for name, own in names.items():
        message = re.sub(rf"(['\"`]){re.escape(name)}\b", rf"\g<1>{own}", message)
    param = refused.param
    if param is not None:
        found = next((name for name in names if re.match(rf"{re.escape(name)}(?!\w)", param)), None)
        param = param if found is None else names[found] + param[len(found) :]
    return UpstreamRefused(refused.status, message, refused.type, param, refused.code, detail=refused.detail)


def _fail_response(error: GatewayError, scan: Scan | None, request_id: str) -> bytes | None:
    writer = getattr(scan, "writer", None)
    if isinstance(writer, ResponseWriter):
        return writer.fail(error)
    return FORMATS["responses"].error_event(error, None, request_id)


_NAMES_OF_RESPONSES = {
    "messages": "input", "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format", "reasoning_effort": "reasoning.effort", "verbosity": "text.verbosity",
}  # fmt: skip
_NAMES_OF_MESSAGES = {
    "max_completion_tokens": "max_tokens", "stop": "stop_sequences", "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort", "user": "metadata.user_id",
}  # fmt: skip

WAYS: Mapping[Endpoint, _Way] = {
    "responses": _Way(
        target="chat",
        ask=lambda members, field, _: responses_request.translate(members, limit_field=field),
        of_note=responses_request.AskedResponse.of_note,
        write=ResponseWriter,
        fail=_fail_response,
        names=_NAMES_OF_RESPONSES,
    ),
    "messages": _Way(
        target="chat",
        ask=lambda members, field, _: messages_request.translate(members, limit_field=field),
        write=MessageWriter,
        names=_NAMES_OF_MESSAGES,
    ),
    "chat": _Way(
        target="messages",
        ask=lambda members, _, limit: chat_request.translate(members, output_limit=limit),
        write=ChatWriter,
        names={"stop_sequences": "stop", "output_config.format": "response_format", "metadata.user_id": "user"},
        limits=lambda asked: {"output_limit": asked.body["max_tokens"], "is_output_limit_added": False},
        headers=(ANTHROPIC_VERSION,),
    ),
}

TRANSLATE = Bridge(
    Adaptation.TRANSLATED, translate, _KIND, _make,
    take=lambda known, pieces: (known["note"], large_body.from_written(known, pieces)),
    detail=lambda capabilities: capabilities.max_tokens_field, refusal=refusal,
)  # fmt: skip

"""Calls in a format that their upstream lacks: the request in the upstream's format, and its answers in the client's.

`WAYS` has the formats that can be reached from each format. The translations themselves are in `translate/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.api import large_body
from gateway.config import Capabilities
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats import FORMATS
from gateway.formats.anthropic.messages import MESSAGES
from gateway.formats.format import Format, Scan, ScanInput, Writer
from gateway.formats.unfit import Unfit
from gateway.quota import windows
from gateway.records import Call, Document, Endpoint, Params, Rewriting, Usage

from .refusal import renamed
from .translate import chat_request, messages_request, responses_answer, responses_request
from .translate.chat_answer import ChatFrame, ChatWriter
from .translate.messages_answer import MessageFrame, MessageWriter
from .translate.responses_answer import ResponseFrame, ResponseWriter

ANTHROPIC_VERSION = ("anthropic-version", "2023-06-01")
"""The version of Messages that the translation writes (platform.claude.com/docs, "Versioning")."""


class Translated(NamedTuple):
    """A call for an upstream with another format."""

    call: Call
    """In the upstream's format."""
    format: Format
    """The upstream's, with answers for the client."""
    left_out: tuple[str, ...] = ()
    """Features of the request that are not sent to the upstream."""


class _Way(NamedTuple):
    """The differences between the ways. `asked` is the translated request."""

    target: Endpoint
    ask: Callable[[Mapping[str, Any], str, int | None], Any]
    """Translates the members of a request. The others are the member for an output limit in chat, and the output limit
    of a call that gives none; None: it is added later."""
    of_note: Callable[[Mapping[str, Any], dict[str, Any]], Any]
    """The result of `ask`, from its note and the members of its body that are not long."""
    write: Callable[[Any, Call], Writer]
    """The writer of the client's answer."""
    fail: Callable[[GatewayError, Scan | None, str], bytes | None]
    """The client's event for an error, given the scan of what it has of the answer, and the request id."""
    names: Mapping[str, str]
    """Parameters of the upstream's format, as the client's has them."""
    limits: Callable[[Any], dict[str, Any]] = lambda asked: {}
    """Fields of `Params` for the output limit that the translation has written."""
    headers: tuple[tuple[str, str], ...] = ()


def translate(call: Call, capabilities: Capabilities, max_bytes: int) -> Translated:
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
    return Translated(sent, _format(way, asked, call, max_bytes), asked.left_out)


def refusal(endpoint: Endpoint, params: Params, capabilities: Capabilities) -> InvalidRequest | None:
    """Why this call cannot be translated exactly; None: it can be."""
    large = params.document.large
    if large is not None:
        found = large.rewritten.get(Rewriting("translated", capabilities.max_tokens_field))
        return found if isinstance(found, InvalidRequest) else None
    try:
        WAYS[endpoint].ask(params.document.members, capabilities.max_tokens_field, 1)
    except InvalidRequest as refused:
        return refused
    return None


def _of_large(way: _Way, call: Call, capabilities: Capabilities) -> tuple[Any, Document]:
    """The translation of a large body, which was made before, with the output limit that its format requires."""
    large = call.params.document.large
    assert large is not None
    note, document = large.rewritten[Rewriting("translated", capabilities.max_tokens_field)]
    if FORMATS[way.target] is MESSAGES and "max_tokens" not in document.members:
        document = large_body.with_first(document, "max_tokens", windows.output_limit(call))
    return way.of_note(note, document.members), document


def _format(way: _Way, asked: Any, call: Call, max_bytes: int) -> Format:
    """The upstream's format, with answers for this call's client."""
    target, own = FORMATS[way.target], FORMATS[call.endpoint]
    assert target.scan is not None
    scan_target = target.scan

    def scan(given: ScanInput) -> Scan:
        return scan_target(given._replace(writer=way.write(asked, call), max_translated=max_bytes))

    def whole(body: bytes) -> tuple[Writer, bytes]:
        """The writer of a plain answer, and its events but for the end."""
        assert target.reader is not None
        reader, writer = target.reader(), way.write(asked, call)
        answer = _read(body)
        reader.facts(answer)
        events = [*reader.events(answer), *reader.rest()]
        return writer, writer.feed(events, reader.model) + writer.end()

    def answer(body: bytes, charged: Usage) -> bytes:
        return json.dumps(whole(body)[0].whole(charged), separators=(",", ":")).encode()

    def as_events(body: bytes, shows_usage: bool, charged: Usage) -> bytes:
        writer, written = whole(body)
        return written + writer.close(charged)

    return replace(
        target,
        scan=scan,
        answer=answer,
        as_events=as_events,
        error_event=way.fail,
        reword=lambda refused: renamed(refused, way.names),
        response_headers=frozenset(),
        streams_only_events=True,
        error_keeps_status=own.error_keeps_status,
    )


def _read(body: bytes) -> dict[str, Any]:
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise Unfit("an answer that is no JSON object")
    return answer


def _base(call: Call) -> str:
    return call.id.removeprefix("req_")


# -------------------------------------------------------------------------------------------- Responses through chat


def _ask_response(members: Mapping[str, Any], limit_field: str, _: int | None) -> Any:
    return responses_request.translate(members, limit_field=limit_field)


def _response_frame(call: Call) -> ResponseFrame:
    return ResponseFrame(_base(call), int(call.started), call.params.model)


def _fail_response(error: GatewayError, scan: Scan | None, request_id: str) -> bytes | None:
    writer = getattr(scan, "writer", None)
    if isinstance(writer, ResponseWriter):
        return writer.fail(*responses_answer.failure(error))
    return FORMATS["responses"].error_event(error, None, request_id)


_RESPONSES = _Way(
    target="chat",
    ask=_ask_response,
    of_note=responses_request.AskedResponse.of_note,
    write=lambda asked, call: ResponseWriter(asked, _response_frame(call)),
    fail=_fail_response,
    names={
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "verbosity": "text.verbosity",
    },
)

# --------------------------------------------------------------------------------------------- Messages through chat


def _ask_message(members: Mapping[str, Any], limit_field: str, _: int | None) -> Any:
    return messages_request.translate(members, limit_field=limit_field)


def _message_frame(call: Call) -> MessageFrame:
    return MessageFrame(_base(call), call.params.model, call.params.prompt_tokens)


_MESSAGES = _Way(
    target="chat",
    ask=_ask_message,
    of_note=messages_request.AskedMessage.of_note,
    write=lambda asked, call: MessageWriter(asked, _message_frame(call)),
    fail=lambda error, _, request_id: FORMATS["messages"].error_event(error, None, request_id),
    names={
        "max_completion_tokens": "max_tokens",
        "stop": "stop_sequences",
        "response_format": "output_config.format",
        "reasoning_effort": "output_config.effort",
        "user": "metadata.user_id",
    },
)

# --------------------------------------------------------------------------------------------- chat through Messages


def _ask_anthropic(members: Mapping[str, Any], _: str, output_limit: int | None) -> Any:
    """`output_limit` is that of the key or the model, where the client gave none."""
    return chat_request.translate(members, output_limit=output_limit)


def _chat_frame(call: Call) -> ChatFrame:
    return ChatFrame(_base(call), int(call.started), call.params.model, call.params.include_usage)


_CHAT = _Way(
    target="messages",
    ask=_ask_anthropic,
    of_note=chat_request.AskedAnthropic.of_note,
    write=lambda asked, call: ChatWriter(_chat_frame(call), asked.names),
    fail=lambda error, _, request_id: FORMATS["chat"].error_event(error, None, request_id),
    names={"stop_sequences": "stop", "output_config.format": "response_format", "metadata.user_id": "user"},
    limits=lambda asked: {"output_limit": asked.body["max_tokens"], "is_output_limit_added": False},
    headers=(ANTHROPIC_VERSION,),
)

WAYS: Mapping[Endpoint, _Way] = {"responses": _RESPONSES, "messages": _MESSAGES, "chat": _CHAT}
"""By the client's format."""

"""Messages in the form of Bedrock's InvokeModel, for its clients: Anthropic's AnthropicBedrock, and Claude Code with
CLAUDE_CODE_USE_BEDROCK. Pure, but for `AsMessages`.

- The path has the model, and whether the answer is a stream; the body has `anthropic_version` and perhaps
  `anthropic_beta`, and no `model` and `stream` (anthropic-sdk-python, lib/bedrock/_client.py).
- A stream is of messages of `application/vnd.amazon.eventstream`, in each of which a `chunk` has one of Anthropic's
  events as base64; an error inside it is a message of the type `exception` (lib/bedrock/_stream_decoder.py; botocore,
  data/bedrock-runtime, shape `ResponseStream`; AWS, "Event Stream Encoding").
- An error has its kind in the header `x-amzn-errortype`, and `message` alone in its body (Smithy, "AWS restJson1
  protocol", "Operation error serialization").
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

from gateway import untrusted_json
from gateway.errors import GatewayError, InvalidRequest, NotFound
from gateway.formats import sse
from gateway.formats.table import FORMATS
from gateway.observe.tracing import Trace
from gateway.pipeline.services import Amendment, Services
from gateway.records import Amended, Call

from .addresses import rewritten

MEDIA_TYPE = "application/vnd.amazon.eventstream"
LONGEST_EVENT = 16 * 1024**2
"""Bytes of an event which as base64 are fewer than botocore's most, 24 MiB (botocore, eventstream.py)."""

ANTHROPIC_VERSION = ("anthropic-version", "2023-06-01")
"""Anthropic's own API needs this header; the clients of clouds name their version in the body."""

_BETA = re.compile(r"[\w.:-]{1,100}", re.ASCII)

# ----------------------------------------------------------------------------------------------------------- requests


class AsMessages(Amendment):
    """Makes a body of Anthropic's own API of one for a cloud: `anthropic_version` goes, `anthropic_beta` becomes the
    header `anthropic-beta`. The upstream of the route may be that API, or a cloud, which gets its own version again."""

    def __init__(self, *, is_stream: bool | None) -> None:
        """`is_stream`: None where the body itself has it."""
        self._is_stream = is_stream

    async def amend(self, call: Call, parts: Services, trace: Trace) -> Amended | None:
        document = call.params.document
        members, headers = document.members, [ANTHROPIC_VERSION]
        if (betas := members.get("anthropic_beta")) is not None:
            headers.append(("anthropic-beta", ",".join(_betas(betas))))
        removed = ["anthropic_version", "anthropic_beta", *(["stream"] if self._is_stream is not None else [])]
        added: dict[str, object] = {"stream": True} if self._is_stream else {}
        if not added and members.keys().isdisjoint(removed):
            return Amended(headers=tuple(headers))
        large = document.large
        raw = document.text.encode() if large is None else b"".join(large.pieces)
        made = rewritten(raw, removed, added, None if large is None else large.places)
        return Amended(headers=tuple(headers), body=[made[1]])


def _betas(given: Any) -> list[str]:
    """The values of `anthropic_beta`. Raises `InvalidRequest` for what is no list of names."""
    if not isinstance(given, list) or not all(isinstance(each, str) and _BETA.fullmatch(each) for each in given):
        raise InvalidRequest(
            "anthropic_beta: Input should be a list of names of betas", param="anthropic_beta", code="invalid_type"
        )
    return given


# ------------------------------------------------------------------------------------------------------------- errors

KINDS: Mapping[int, str] = {
    401: "UnrecognizedClientException",
    402: "ServiceQuotaExceededException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    429: "ThrottlingException",
    502: "ServiceUnavailableException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
    529: "ServiceUnavailableException",
}
"""Kinds of errors by the gateway's status, which stays; else as below (botocore, data/bedrock-runtime, errors of
`InvokeModel`; AWS, "Common error types")."""

EXCEPTIONS: Mapping[str, str] = {
    "rate_limit_error": "throttlingException",
    "overloaded_error": "serviceUnavailableException",
    "timeout_error": "modelTimeoutException",
    "invalid_request_error": "validationException",
    "request_too_large": "validationException",
}
"""Kinds of exceptions inside a stream by Anthropic's types of errors; others: `internalServerException`."""


def kind_of(status: int) -> str:
    return KINDS.get(status) or ("ValidationException" if status < 500 else "InternalServerException")


ELSEWHERE = (
    "Of Bedrock's runtime the gateway has InvokeModel and its stream, with the bodies of Claude: POST "
    "/model/MODEL/invoke and /model/MODEL/invoke-with-response-stream."
)
"""Advice for clients of Converse and other operations."""


def error_body(error: GatewayError, request_id: str) -> bytes:
    message = error.message
    if type(error) is NotFound and message.startswith("Invalid URL"):  # others are of models
        message += f". {ELSEWHERE}"
    return json.dumps({"message": message}, ensure_ascii=False).encode("utf-8", "replace")


def error_headers(error: GatewayError) -> Iterable[tuple[str, str]]:
    return (("x-amzn-errortype", kind_of(error.status)),)


# ------------------------------------------------------------------------------------------------------------ streams


def message_of(headers: Iterable[tuple[str, str]], payload: bytes) -> bytes:
    """One message: lengths and their sum, headers of texts, the payload, the sum of all."""
    lines = b"".join([_header(name, value) for name, value in headers])
    prelude = (len(lines) + len(payload) + 16).to_bytes(4) + len(lines).to_bytes(4)
    whole = prelude + crc32(prelude).to_bytes(4) + lines + payload
    return whole + crc32(whole).to_bytes(4)


def _header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2) + value.encode()


_JSON = (":content-type", "application/json")
_OF_CHUNKS = ((":event-type", "chunk"), _JSON, (":message-type", "event"))


def chunk_of(event: bytes) -> bytes:
    """One event of Anthropic's as a message."""
    return message_of(_OF_CHUNKS, b'{"bytes":"%b"}' % b64encode(event))


def exception_of(kind: str, text: str) -> bytes:
    headers = ((":exception-type", kind), _JSON, (":message-type", "exception"))
    return message_of(headers, json.dumps({"message": text}).encode())


class BinaryEvents:
    """Writes server-sent events of Anthropic's as messages. It takes whole events or pieces of them."""

    headers = (("content-type", MEDIA_TYPE), ("x-amzn-bedrock-content-type", "application/json"))

    def __init__(self, longest: int = LONGEST_EVENT) -> None:
        self._splitter = sse.EventSplitter(longest)
        self._is_over = False
        """An exception was written: nothing may follow."""

    def write(self, data: bytes) -> bytes:
        return b"".join([self._message(piece, is_whole) for piece, is_whole in self._splitter.split(data)])

    def end(self) -> bytes:
        return b""

    def _message(self, piece: bytes, is_whole: bool) -> bytes:
        if self._is_over:
            return b""
        if not is_whole:
            self._is_over = True
            return exception_of("modelStreamErrorException", "The answer has an event that is too long for this API.")
        if (event := sse.data_of(piece)) is None:
            return b""
        if b'"error"' in event and (error := _error_in(event)) is not None:
            self._is_over = True
            kind = EXCEPTIONS.get(str(error.get("type")), "internalServerException")
            return exception_of(kind, str(error.get("message")))
        return chunk_of(event)


def _error_in(event: bytes) -> dict[str, Any] | None:
    """The error that an event is; None: it is another one."""
    try:
        read = untrusted_json.parse_object(event)
    except ValueError:
        return None
    if read.get("type") != "error":
        return None
    error = read.get("error")
    return error if isinstance(error, dict) else {}


INVOKE = replace(
    FORMATS["messages"],
    error_body=error_body,
    error_headers=error_headers,
    framing=lambda query: BinaryEvents(),
    id_header="x-amzn-requestid",
    default_type="application/json",  # boto3's client sends none unless it is given one (API reference, "InvokeModel")
)
"""Messages for Bedrock's clients: calls, limits and records are those of the endpoint `messages`."""

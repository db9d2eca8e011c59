"""The binary event stream of Amazon Bedrock (`application/vnd.amazon.eventstream`) as the server-sent events that
Anthropic's own API sends.

`message_stop` has Bedrock's counts of tokens (`amazon-bedrock-invocationMetrics`; `inputTokenCount` does not include
the cache: BerriAI/litellm#34373, #36878). Where the answer had no input tokens before, they become its usage.

botocore reads the messages and checks their sums. A message of the type `event` has a chunk: `{"bytes": BASE64}`, which
is one event of Anthropic's. One of the type `exception` ends the answer (botocore, data/bedrock-runtime, shape
`ResponseStream`).
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from botocore.eventstream import EventStreamBuffer, ParserError

from gateway import untrusted_json

from .amazon import UnreadableStream

MEDIA_TYPE = "application/vnd.amazon.eventstream"

ERRORS: Mapping[str, str] = {
    "throttlingException": "rate_limit_error",
    "serviceUnavailableException": "overloaded_error",
    "modelTimeoutException": "timeout_error",
    "validationException": "invalid_request_error",
}
"""Anthropic's types of errors (platform.claude.com, "Errors") for exceptions inside a stream; others: `api_error`."""

METRICS = "amazon-bedrock-invocationMetrics"
COUNTS: Mapping[str, str] = {
    "inputTokenCount": "input_tokens",
    "outputTokenCount": "output_tokens",
    "cacheReadInputTokenCount": "cache_read_input_tokens",
    "cacheWriteInputTokenCount": "cache_creation_input_tokens",
}
"""Anthropic's names of the counts."""
_HAS_INPUT = re.compile(rb'"input_tokens"\s*:\s*\d')


class EventStreamReader:
    """Reads the messages of one answer."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()
        self._has_input = False
        """Whether an event had a count of input tokens."""

    def read(self, data: bytes) -> bytes:
        """The server-sent events that these bytes complete. Raises `UnreadableStream`, which has those before."""
        self._buffer.add_data(data)
        events: list[bytes] = []
        try:
            for message in self._buffer:
                events.append(self._event(message.to_response_dict()))  # noqa: PERF401 - they are kept if one fails
        except ParserError as error:
            raise UnreadableStream(f"event stream: {type(error).__name__}", b"".join(events)) from None
        except Exception:  # botocore's struct.error and a RecursionError of json among them
            text = "event stream: a message without an event of Anthropic's"
            raise UnreadableStream(text, b"".join(events)) from None
        return b"".join(events)

    def _event(self, message: Mapping[str, Any]) -> bytes:
        headers, payload = message["headers"], untrusted_json.parse(message["body"] or b"{}")
        kind = headers.get(":message-type")
        if kind == "event":
            if headers.get(":event-type") != "chunk":
                return b""
            event = b64decode(payload["bytes"], validate=True)
            read = untrusted_json.parse(event)
            name = read["type"]
            self._has_input = self._has_input or (
                name in ("message_start", "message_delta") and _HAS_INPUT.search(event) is not None
            )
            if not self._has_input and (usage := _usage_of(read)):
                event = json.dumps({**read, "usage": usage}).encode()
            return f"event: {name}\ndata: ".encode() + event.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"
        name = headers.get(":exception-type") or headers.get(":error-code") or ""
        text = payload.get("message") or headers.get(":error-message") or name
        error = {"type": "error", "error": {"type": ERRORS.get(name, "api_error"), "message": f"{name}: {text}"}}
        return b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"


def _usage_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Bedrock's counts of an answer, by Anthropic's names, that its last event has without a usage."""
    given = event.get(METRICS)
    if event.get("type") != "message_stop" or not isinstance(given, dict) or event.get("usage") is not None:
        return {}
    return {name: given[counted] for counted, name in COUNTS.items() if given.get(counted) is not None}

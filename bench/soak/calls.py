"""One call over HTTP by a client that knows the expected answer."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.flows.gateway_process import secret

from .observed import PATHS, ObservedCall

_TEXT = re.compile(rb'"(?:content|text)": ?"([^"]*)"')
_DONE = b"data: [DONE]\n\n"


def carry(
    received: ObservedCall,
    connection: http.client.HTTPConnection,
    body: Mapping[str, Any],
    listen: Callable[[ObservedCall, http.client.HTTPResponse], bytes | None],
) -> None:
    """Sends it and calls `listen`; compares its result with the expected answer, unless it is None."""
    headers = {
        "Authorization": f"Bearer {secret(received.who)}",
        "Content-Type": "application/json",
        "X-Client-Request-Id": received.client_id,
    }
    try:
        connection.request("POST", PATHS[received.endpoint], json.dumps(body).encode(), headers)
        if received.kind == "leaves_early":
            received.has_left = True
            time.sleep(received.number % 5 * 0.004)
            return
        with connection.getresponse() as response:
            received.status = response.status
            received.id = response.headers["x-request-id"] or ""
            said = listen(received, response)
            if said is not None:
                _understand(received, said, is_complete=response.length in (0, None))
    finally:
        connection.close()


def whole(_received: ObservedCall, response: http.client.HTTPResponse) -> bytes:
    """Everything, as it comes."""
    said = bytearray()
    while data := response.read1(-1):
        said += data
    return bytes(said)


def _understand(received: ObservedCall, said: bytes, *, is_complete: bool) -> None:
    if received.is_stream and received.status == 200:
        _understand_stream(received, said)
    elif is_complete:
        received.is_whole = True
        if received.status == 200:
            _compare(received, said)
        else:
            _read_error(received, said)


def _understand_stream(received: ObservedCall, said: bytes) -> None:
    """How it has ended."""
    last = said[said.rstrip(b"\n").rfind(b"\n\n") :].strip()
    if said.endswith(_DONE):
        received.is_whole = True
        _compare(received, said)
    elif last.startswith(b'data: {"error"'):
        _read_error(received, last.removeprefix(b"data: "))


def _read_error(received: ObservedCall, said: bytes) -> None:
    try:
        received.code = json.loads(said)["error"]["code"] or "none"
    except (ValueError, LookupError, TypeError):
        received.code, received.fault = (
            "none",
            f"status {received.status} with what is no error of the API: {said[:300]!r}",
        )


def _compare(received: ObservedCall, said: bytes) -> None:
    heard = json.loads(said)["data"][0]["embedding"] if received.endpoint == "embeddings" else _text(said)
    if heard != received.truth.heard:
        received.fault = f"heard something else: {said[:300]!r}...{said[-300:]!r}"


def _text(said: bytes) -> str:
    return b"".join(_TEXT.findall(said)).decode()

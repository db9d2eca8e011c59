"""One call over HTTP by a client that knows the expected answer."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.flows.house import secret

from .observed import PATHS, ObservedCall

_TEXT = re.compile(rb'"(?:content|text)": ?"([^"]*)"')
_DONE = b"data: [DONE]\n\n"


def carry(
    told: ObservedCall,
    connection: http.client.HTTPConnection,
    body: Mapping[str, Any],
    listen: Callable[[ObservedCall, http.client.HTTPResponse], bytes | None],
) -> None:
    """Sends it and calls `listen`; compares its result with the expected answer, unless it is None."""
    headers = {
        "Authorization": f"Bearer {secret(told.who)}",
        "Content-Type": "application/json",
        "X-Client-Request-Id": told.client_id,
    }
    try:
        connection.request("POST", PATHS[told.endpoint], json.dumps(body).encode(), headers)
        if told.kind == "leaves_early":
            told.has_left = True
            time.sleep(told.number % 5 * 0.004)
            return
        with connection.getresponse() as response:
            told.status = response.status
            told.id = response.headers["x-request-id"] or ""
            said = listen(told, response)
            if said is not None:
                _understand(told, said, is_complete=response.length in (0, None))
    finally:
        connection.close()


def whole(_told: ObservedCall, response: http.client.HTTPResponse) -> bytes:
    """Everything, as it comes."""
    said = bytearray()
    while data := response.read1(-1):
        said += data
    return bytes(said)


def _understand(told: ObservedCall, said: bytes, *, is_complete: bool) -> None:
    if told.is_stream and told.status == 200:
        _understand_stream(told, said)
    elif is_complete:
        told.is_whole = True
        if told.status == 200:
            _compare(told, said)
        else:
            _read_error(told, said)


def _understand_stream(told: ObservedCall, said: bytes) -> None:
    """How it has ended."""
    last = said[said.rstrip(b"\n").rfind(b"\n\n") :].strip()
    if said.endswith(_DONE):
        told.is_whole = True
        _compare(told, said)
    elif last.startswith(b'data: {"error"'):
        _read_error(told, last.removeprefix(b"data: "))


def _read_error(told: ObservedCall, said: bytes) -> None:
    try:
        told.code = json.loads(said)["error"]["code"] or "none"
    except (ValueError, LookupError, TypeError):
        told.code, told.fault = "none", f"status {told.status} with what is no error of the API: {said[:300]!r}"


def _compare(told: ObservedCall, said: bytes) -> None:
    heard = json.loads(said)["data"][0]["embedding"] if told.endpoint == "embeddings" else _text(said)
    if heard != told.truth.heard:
        told.fault = f"heard something else: {said[:300]!r}...{said[-300:]!r}"


def _text(said: bytes) -> str:
    return b"".join(_TEXT.findall(said)).decode()

"""What hooks of the gateway have in common, in the standard library alone: the signature is checked, and `decide` says
what becomes of a call. The other files here are hooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WITHIN_S = 300
"""How old a question may be: an older one may have been recorded, and is sent again by somebody else."""

ALLOW: dict[str, Any] = {"action": "allow"}

TEXTS = frozenset(
    {"messages", "input", "prompt", "system", "instructions", "contents", "systemInstruction", "requests"}
)
"""The members with what people write, in the APIs of OpenAI, Anthropic and Google."""
NO_TEXT = frozenset({"type", "role", "id", "call_id", "tool_use_id", "name", "data", "signature", "encrypted_content"})
"""Members inside them that have to stay as they are."""

Decide = Callable[[dict[str, Any]], dict[str, Any]]


def is_signed(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> bool:
    """Whether this secret signed the body lately (Standard Webhooks, https://www.standardwebhooks.com)."""
    name, sent = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent.isdecimal() or abs(now - int(sent)) > WITHIN_S:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.new(key, f"{name}.{sent}.".encode() + body, hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(signed).decode()}".encode()
    given = headers.get("webhook-signature", "").encode().split(b" ")
    return any(hmac.compare_digest(each, expected) for each in given)


def with_texts(body: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The body with each text in it changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [changed(each) for each in value]
        if isinstance(value, dict):
            return {name: each if name in NO_TEXT else changed(each) for name, each in value.items()}
        return value

    return {name: changed(value) if name in TEXTS else value for name, value in body.items()}


def texts_of(body: Mapping[str, Any]) -> list[str]:
    """Each text in the body."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    with_texts(body, note)
    return found


def server(decide: Decide, secret: str, port: int = 0) -> ThreadingHTTPServer:
    """A server on this machine; `serve_forever` runs it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # the gateway keeps its connections

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if is_signed(self.headers, body, secret, time.time()):
                self._answer(200, decide(json.loads(body)))
            else:
                self._answer(401, {"error": "not signed with the secret of this hook, or not lately"})

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Log nothing: what people write is in the questions."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)

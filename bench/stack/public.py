"""The clients of the stack: plain and streamed calls of all three endpoints through nginx, some with the official SDK.

Each call has its own connection: a reload of nginx may close a kept one at the moment of its reuse.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai

from bench.soak.callers import AFTER_TROUBLE_S, PATIENCE_S, Callers
from bench.soak.calls import carry, whole
from bench.soak.observed import ObservedCall

from .upstream import body_of, truth_of

RATE = 30.0
KINDS = {"plain": 30, "stream": 25, "long": 8, "embeddings": 10, "sdk": 8, "sdk_stream": 8, "metered": 6}
"""Kinds of calls and their weights. `long`: a stream of some seconds."""
METERED, GUEST = "metered", "guest"
"""Keys: one with a small daily quota until a reload raises it, and one that is unknown until then."""
ISSUED = "issued"
"""The SDK's key, stored in Redis only: an empty Redis has lost it."""

_ANY = (200, 502, 503)
_ALLOWED = {METERED: (200, 429, 502, 503), GUEST: (200, 401, 502, 503)}


class Public(Callers):
    """See the head of the file. `port` is that of nginx; calls may also go to a gateway. `issued`: a secret."""

    def __init__(self, port: int, ca_file: Path, issued: str, seed: int) -> None:
        super().__init__(seed, RATE)
        self._port = port
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._sdk = openai.OpenAI(
            base_url=f"https://127.0.0.1:{port}/v1", api_key=issued, max_retries=0, timeout=PATIENCE_S,
            default_headers={"Connection": "close"},
            http_client=openai.DefaultHttpxClient(verify=self._context, trust_env=False),
        )  # fmt: skip

    def stop(self) -> None:
        super().stop()
        self._sdk.close()

    def one(self) -> None:
        with self._lock:
            (kind,) = self._dice.choices([*KINDS], [*KINDS.values()])
        if self.call(self._received(kind, self._port)).status != 200:
            time.sleep(AFTER_TROUBLE_S)

    def ask(self, kind: str, port: int | None = None) -> ObservedCall:
        """Makes one call at once: through nginx, or at this port of a gateway."""
        return self.call(self._received(kind, port or self._port))

    def _received(self, kind: str, port: int) -> ObservedCall:
        with self._lock:
            number = self.number()
        is_stream = kind in ("stream", "long", "sdk_stream")
        endpoint = "embeddings" if kind in ("embeddings", METERED, GUEST) else "chat" if number % 2 else "completions"
        who = ISSUED if "sdk" in kind else kind if kind in _ALLOWED else "alice" if number % 3 else "bob"
        truth = truth_of(body_of(number, kind, endpoint, is_stream=is_stream), endpoint)
        return ObservedCall(number, kind, who, endpoint, is_stream, truth, port)

    def carry(self, received: ObservedCall) -> None:
        body = body_of(received.number, received.kind, received.endpoint, is_stream=received.is_stream)
        if received.kind.startswith("sdk"):
            self._carry_by_sdk(received, body)
        elif received.port == self._port:
            secured = http.client.HTTPSConnection("127.0.0.1", received.port, timeout=PATIENCE_S, context=self._context)
            carry(received, secured, body, whole)
        else:
            carry(received, http.client.HTTPConnection("127.0.0.1", received.port, timeout=PATIENCE_S), body, whole)

    def unheard_of(self, received: ObservedCall) -> str:
        allowed = _ALLOWED.get(received.kind, _ANY)
        return "" if received.status in allowed else f"status {received.status} ({received.code})"

    def _carry_by_sdk(self, received: ObservedCall, body: dict[str, Any]) -> None:
        create: Any = (self._sdk.chat.completions if received.endpoint == "chat" else self._sdk.completions).create
        extra = {"simulate": body.pop("simulate")}
        try:
            answer = create(**body, extra_body=extra, extra_headers={"X-Client-Request-Id": received.client_id})
            received.status, received.id = (
                200,
                answer.response.headers["x-request-id"] if received.is_stream else answer._request_id,
            )
            heard = "".join(_words(answer if received.is_stream else [answer]))
        except openai.APIStatusError as error:
            received.status, received.code, received.is_whole = error.status_code, error.code or "none", True
            received.id = error.response.headers.get("x-request-id", "")
        except openai.APIConnectionError:
            pass  # cut
        except openai.APIError as error:  # an error event
            received.code = error.code or "none"
        else:
            received.is_whole = heard == received.truth.heard
            received.fault = "" if received.is_whole else f"the SDK heard something else: {heard!r}"


def _words(answers: Any) -> Iterator[str]:
    """The text of a plain answer, or of the chunks of a stream."""
    for answer in answers:
        for choice in answer.choices:
            said = getattr(choice, "delta", None) or getattr(choice, "message", None)
            yield (said.content if said else choice.text) or ""

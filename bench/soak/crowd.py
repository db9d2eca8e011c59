"""The clients of a soak: valid calls, invalid calls, early disconnects, slow readers, junk."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable

from tests.flows.client import Raw
from tests.flows.gateway_process import secret

from .callers import AFTER_TROUBLE_S, PATIENCE_S, Callers
from .calls import carry, whole
from .market import truth
from .observed import ObservedCall, members

RATE = 80.0
LARGE_CHARACTERS = 1_500_000

KINDS = {
    "plain": 30, "stream": 30, "embeddings": 8, "large": 1, "slow": 2, "leaves": 6, "leaves_early": 3,
    "poor": 3, "fast": 6, "bad": 3, "stranger": 4, "junk": 4,
}  # fmt: skip
"""Kinds of calls and their weights."""

_STREAMS = ("stream", "slow", "leaves")
_ANY = (200, 429, 502, 503, 504)
_ALLOWED = {"bad": (400, 503), "stranger": (401, 503), "guest": (200, 401, 502, 503, 504)}
"""Permitted statuses by kind of call. 401 becomes 503 during an outage of the store."""


class Crowd(Callers):
    """See the head of the file. `ports`: of the gateways that run now."""

    def __init__(self, ports: Callable[[], list[int]], seed: int) -> None:
        super().__init__(seed, RATE)
        self.junk = 0
        self._ports = ports

    def one(self) -> None:
        with self._lock:
            (kind,) = self._dice.choices([*KINDS], [*KINDS.values()])
            number, port = self.number(), self._dice.choice(self._ports())
            noise = self._dice.randbytes(self._dice.randint(1, 3000))
        if kind == "junk":
            self._say_junk(port, noise)
            return
        endpoint = "embeddings" if kind == "embeddings" else "chat" if number % 2 else "completions"
        who = {"poor": "poor", "fast": "fast", "stranger": "stranger"}.get(kind, "alice" if number % 3 else "bob")
        if self.call(_received(number, kind, who, endpoint, port)).status not in (200, 400, 401, 429):
            time.sleep(AFTER_TROUBLE_S)

    def call_as(self, who: str, port: int) -> ObservedCall:
        """Makes a plain call at once; `who` may be an unknown key."""
        return self.call(_received(self.number(), "guest", who, "embeddings", port))

    def carry(self, received: ObservedCall) -> None:
        characters = LARGE_CHARACTERS if received.kind == "large" else 60
        body = members(
            received.number, received.kind, received.endpoint, is_stream=received.is_stream, characters=characters
        )
        if received.kind == "bad":
            body |= {"n": 200}
        carry(received, http.client.HTTPConnection("127.0.0.1", received.port, timeout=PATIENCE_S), body, _listen)

    def unheard_of(self, received: ObservedCall) -> str:
        if received.status not in _ALLOWED.get(received.kind, _ANY):
            return f"status {received.status} ({received.code})"
        if (
            received.status == 429
            and received.kind not in ("poor", "fast")
            and received.code != "upstream_rate_limited"
        ):
            return f"a quota that is wide enough refused it ({received.code})"
        return ""

    def _say_junk(self, port: int, noise: bytes) -> None:
        """Sends bytes that are no HTTP, or a valid head with a body that is no JSON."""
        self.junk += 1
        if len(noise) % 2:
            lines = [
                "POST /v1/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {secret('alice')}",
                "Content-Type: application/json", f"Content-Length: {len(noise)}", "Connection: close", "", "",
            ]  # fmt: skip
            noise = "\r\n".join(lines).encode() + noise
        try:
            with Raw(port) as raw:
                raw.send(noise)
                answer = raw.read_to_end()
        except TimeoutError:
            self.faults.append("a client of junk was kept waiting")
            return
        except OSError:
            return
        # 503: a valid head arrived while keys could not be looked up, or at a gateway that was ending.
        if answer and not re.match(rb"HTTP/1\.[01] (4\d\d|503) ", answer):
            self.faults.append(f"junk was answered with {answer[:200]!r}")


def _received(number: int, kind: str, who: str, endpoint: str, port: int) -> ObservedCall:
    return ObservedCall(number, kind, who, endpoint, kind in _STREAMS, truth(number, kind, endpoint), port)


def _listen(received: ObservedCall, response: http.client.HTTPResponse) -> bytes | None:
    """Reads like this kind of client: slowly, or only in part."""
    if received.kind not in ("slow", "leaves"):
        return whole(received, response)
    said = bytearray()
    while data := response.read1(2048 if received.kind == "slow" else -1):
        said += data
        if received.kind == "leaves":
            received.has_left = True
            return None
        if len(said) < 200_000:
            time.sleep(0.02)
    return bytes(said)

"""The clients of a soak: good and bad ones, all of them counted, none faster than it may be.

What each of them was told is written down, for the comparison with the gateway's books; what no client should ever be
told is a fault at once.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.flows.client import Raw
from tests.flows.house import CHAT, COMPLETIONS, EMBEDDINGS, secret

from .market import words_of

LIMIT = 50
"""The max_tokens of every call that has one."""
LARGE_BYTES = 1_500_000
PATIENCE_S = 60.0
THREADS = 16
RATE = 80.0
"""Calls a second, at most."""
AFTER_TROUBLE_S = 0.2

KINDS = {
    "plain": 30, "stream": 30, "embeddings": 8, "large": 1, "slow": 2, "leaves": 6, "leaves_early": 3,
    "poor": 3, "fast": 6, "bad": 3, "stranger": 4, "junk": 4,
}  # fmt: skip
"""What comes, and how often."""

_STREAMS = ("stream", "slow", "leaves")
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "embeddings": "/v1/embeddings"}
_MODELS = {"completions": COMPLETIONS, "chat": CHAT, "embeddings": EMBEDDINGS}
_TEXT = re.compile(rb'"(?:content|text)": "([^"]*)"')
_ANY = (200, 429, 502, 503, 504)
_ALLOWED = {"bad": (400, 503), "stranger": (401, 503), "guest": (200, 401, 502, 503, 504)}
"""What a call of this kind may be told, whatever happens. While the store is away, nobody's key is known."""
_DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Told:
    """One call and what its client was told."""

    number: int
    kind: str
    who: str
    endpoint: str
    is_stream: bool
    port: int
    status: int = 0
    """0: no answer at all."""
    code: str | None = None
    """Of an error, also of one inside a stream."""
    is_whole: bool = False
    has_left: bool = False
    id: str = ""
    ended: float = 0.0
    """On the monotonic clock."""
    fault: str = ""

    @property
    def is_served(self) -> bool:
        return self.status == 200 and self.is_whole and self.code is None

    @property
    def is_cut(self) -> bool:
        """The connection ended before the answer, and not by the client's will."""
        return not (self.is_whole or self.has_left or self.code)


class Callers:
    """Calls from many threads until it is stopped; may rest meanwhile."""

    def __init__(self, ports: Callable[[], list[int]], seed: int) -> None:
        self.told: list[Told] = []
        self.junk = 0
        self.faults: list[str] = []
        self._ports = ports
        self._dice = random.Random(seed)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._due = time.monotonic()
        self._may_call, self._is_over = threading.Event(), threading.Event()
        self._busy = 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def go_on(self) -> None:
        self._may_call.set()

    def rest(self) -> None:
        """No new calls; those that are under way have ended."""
        self._may_call.clear()
        end = time.monotonic() + 2 * PATIENCE_S
        while self._busy:
            if time.monotonic() > end:
                self.faults.append(f"{self._busy} clients never heard the end of their calls")
                return
            time.sleep(0.02)

    def stop(self) -> None:
        self.rest()
        self._is_over.set()
        self._may_call.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _work(self) -> None:
        while not self._is_over.is_set():
            self._may_call.wait()
            with self._lock:
                self._busy += 1
                self._due = max(self._due, time.monotonic() - 0.1) + 1 / RATE
                wait_s = self._due - time.monotonic()
            try:
                time.sleep(max(0.0, wait_s))
                if self._may_call.is_set() and not self._is_over.is_set():
                    self._one()
            finally:
                with self._lock:
                    self._busy -= 1

    def _one(self) -> None:
        with self._lock:
            (kind,) = self._dice.choices([*KINDS], [*KINDS.values()])
            number, port = next(self._numbers), self._dice.choice(self._ports())
            noise = self._dice.randbytes(self._dice.randint(1, 3000))
        if kind == "junk":
            self._say_junk(port, noise)
            return
        endpoint = "embeddings" if kind == "embeddings" else "chat" if number % 2 else "completions"
        who = {"poor": "poor", "fast": "fast", "stranger": "stranger"}.get(kind, "alice" if number % 3 else "bob")
        told = Told(number, kind, who, endpoint, kind in _STREAMS, port)
        self._call(told)
        if told.status not in (200, 400, 401, 429):
            time.sleep(AFTER_TROUBLE_S)

    def call(self, who: str, port: int) -> Told:
        """A plain call of somebody who may be a stranger, made at once."""
        told = Told(next(self._numbers), "guest", who, "embeddings", False, port)
        self._call(told)
        return told

    def _call(self, told: Told) -> None:
        self.told.append(told)
        try:
            _carry(told)
        except (OSError, http.client.HTTPException):
            pass  # cut: whether that may be is asked later
        told.ended = time.monotonic()
        told.fault = told.fault or _unheard_of(told)
        if told.fault:
            self.faults.append(f"call {told.number} ({told.kind} of {told.who}, {told.endpoint}): {told.fault}")

    def _say_junk(self, port: int, noise: bytes) -> None:
        """Bytes that are no HTTP, or a good head with bytes that are no JSON behind it."""
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
        if answer and not re.match(rb"HTTP/1\.[01] 4\d\d ", answer):
            self.faults.append(f"junk was answered with {answer[:200]!r}")


def _body(told: Told) -> bytes:
    text = f"call {told.number} {told.kind} ".ljust(LARGE_BYTES if told.kind == "large" else 60, "x")
    members: dict[str, object] = {"model": _MODELS[told.endpoint], "stream": told.is_stream}
    match told.endpoint:
        case "chat":
            members |= {"messages": [{"role": "user", "content": text}], "max_tokens": LIMIT}
        case "completions":
            members |= {"prompt": text, "max_tokens": LIMIT}
        case _:
            members = {"model": EMBEDDINGS, "input": text}
    if told.kind == "bad":
        members |= {"n": 200}
    return json.dumps(members).encode()


def _carry(told: Told) -> None:
    """Send a call, and listen until its end, or until its client has had enough."""
    headers = {
        "Authorization": f"Bearer {secret(told.who)}",
        "Content-Type": "application/json",
        "X-Client-Request-Id": f"client-{told.number}",
    }
    connection = http.client.HTTPConnection("127.0.0.1", told.port, timeout=PATIENCE_S)
    try:
        connection.request("POST", _PATHS[told.endpoint], _body(told), headers)
        if told.kind == "leaves_early":
            told.has_left = True
            time.sleep(told.number % 5 * 0.004)
            return
        with connection.getresponse() as response:
            told.status = response.status
            told.id = response.headers["x-request-id"]
            _listen(told, response)
    finally:
        connection.close()


def _listen(told: Told, response: http.client.HTTPResponse) -> None:
    said = bytearray()
    while data := response.read1(2048 if told.kind == "slow" else -1):
        said += data
        if told.kind == "leaves":
            told.has_left = True
            return
        if told.kind == "slow" and len(said) < 200_000:
            time.sleep(0.02)
    if told.is_stream and told.status == 200:
        _understand(told, bytes(said))
    elif response.length in (0, None):
        told.is_whole = True
        if told.status == 200:
            _check_words(told, bytes(said))
        else:
            told.code = json.loads(said)["error"]["code"] or "none"


def _understand(told: Told, said: bytes) -> None:
    """How a stream has ended."""
    last = said[said.rstrip(b"\n").rfind(b"\n\n") :].strip()
    if said.endswith(_DONE):
        told.is_whole = True
        _check_words(told, said)
    elif last.startswith(b'data: {"error"'):
        told.code = json.loads(last.removeprefix(b"data: "))["error"]["code"] or "none"


def _check_words(told: Told, said: bytes) -> None:
    if told.endpoint == "embeddings":
        is_right = json.loads(said)["data"][0]["embedding"] == [told.number]
    else:
        is_right = b"".join(_TEXT.findall(said)).decode() == "".join(words_of(told.number, told.kind))
    if not is_right:
        told.fault = f"heard something else: {said[:300]!r}...{said[-300:]!r}"


def _unheard_of(told: Told) -> str:
    """Why no client should be told this, whatever happens to upstreams and store."""
    if told.is_cut or told.has_left:
        return ""
    if told.status not in _ALLOWED.get(told.kind, _ANY):
        return f"status {told.status} ({told.code})"
    if told.status == 429 and told.kind not in ("poor", "fast") and told.code != "upstream_rate_limited":
        return f"a quota that is wide enough refused it ({told.code})"
    return ""

"""What is measured: the main line, and one thing after the other that is different."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import calls


@dataclass(frozen=True)
class Case:
    """A load, and the gateway that carries it. What is not named is as in the main line."""

    name: str
    endpoint: Literal["chat", "completions"] = "chat"
    request_bytes: int = 1024
    is_tls: bool = False
    """To the upstream, for nginx as well."""
    store: Literal["embedded", "redis"] = "embedded"
    workers: int = 1
    issued: int = 0
    """Keys in the store, beside those of the file."""
    callers: int = 10
    """Keys that call, in turn; those of the store where there are any."""
    models: int = 1
    windows: int = 3
    """Of each key."""
    connections: int = 64

    @property
    def path(self) -> str:
        return calls.PATH if self.endpoint == "chat" else "/v1/completions"

    @property
    def answer(self) -> bytes:
        return calls.answer() if self.endpoint == "chat" else calls.completion_answer()

    def model(self, number: int) -> str:
        return calls.MODEL if number == 0 else f"{calls.MODEL}-{number}"

    def request(self, number: int = 0) -> bytes:
        """Its body, for this model."""
        make = calls.request if self.endpoint == "chat" else calls.completion_request
        return make(self.request_bytes, self.model(number))


def key(number: int) -> str:
    """The id of a key."""
    return f"key{number:06d}"


def secret(number: int) -> str:
    """Its secret, in the form of those that are handed out."""
    return f"sk-gw-{key(number)}-{number:043d}"


MAIN = Case("the main line")

CASES = (
    MAIN,
    Case("completions", endpoint="completions"),
    Case("24 KB up", request_bytes=24 * 1024),
    Case("256 KB up", request_bytes=256 * 1024),
    Case("TLS to the upstream", is_tls=True),
    Case("Redis", store="redis"),
    Case("2 workers", workers=2),
    Case("2 workers on Redis", workers=2, store="redis"),
    Case("100,000 keys, 10 of them calling", issued=100_000),
    Case("100,000 keys, each once", issued=100_000, callers=100_000),
    Case("100 models", models=100),
    Case("1 quota window", windows=1),
    Case("6 quota windows", windows=6),
    Case("16 connections", connections=16),
    Case("256 connections", connections=256),
)

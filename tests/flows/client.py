"""Clients that show every byte: a small one for whole answers, and sockets for those who write HTTP by hand."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

TIMEOUT_S = 30.0
ERROR_KEYS = ["code", "message", "param", "type"]


@dataclass
class Answer:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    header_lines: list[tuple[str, str]] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which has to have its four keys and nothing else."""
        assert self.headers["content-type"].startswith("application/json"), self
        whole = self.json
        assert list(whole) == ["error"], self
        error: dict[str, Any] = whole["error"]
        assert sorted(error) == ERROR_KEYS, self
        assert error["message"], self
        assert self.id.startswith("req_"), self
        return error

    @property
    def refusal(self) -> tuple[int, str, str | None, str | None]:
        """What an error says to a program: status, type, param, code."""
        error = self.error
        return self.status, error["type"], error["param"], error["code"]


def request(port: int, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        return ask(connection, method, path, body, headers)
    finally:
        connection.close()


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> Answer:
    """One request on a connection that may be used again."""
    connection.request(method, path, body, dict(headers))
    with connection.getresponse() as response:
        lines = [(name.lower(), value) for name, value in response.getheaders()]
        return Answer(response.status, dict(lines), response.read(), lines)


class Raw:
    """A socket to a gateway, and what has come over it. To be closed (`with`)."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.held = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(
        self, path: str, body: bytes, secret: str, version: str = "1.1", *more: str, kind: str = "application/json"
    ) -> None:
        lines = [
            f"POST {path} HTTP/{version}", "Host: gateway", f"Authorization: Bearer {secret}",
            f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more, "", "",
        ]  # fmt: skip
        self.send("\r\n".join(lines).encode() + body)

    def read_until(self, end: bytes) -> bytes:
        """Everything up to and with these bytes."""
        while end not in self.held:
            data = self.socket.recv(65536)
            assert data, f"the gateway hung up before {end!r}, after {self.held!r}"
            self.held += data
        found, _, self.held = self.held.partition(end)
        return found + end

    def read(self, size: int) -> bytes:
        while len(self.held) < size:
            data = self.socket.recv(65536)
            assert data, f"the gateway hung up after {self.held!r}"
            self.held += data
        found, self.held = self.held[:size], self.held[size:]
        return found

    def read_head(self) -> Answer:
        """Status and headers."""
        first, *lines = self.read_until(b"\r\n\r\n").decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        pairs = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        return Answer(int(first.split(" ")[1]), dict(pairs), b"", pairs)

    def read_answer(self) -> Answer:
        """An answer of known length."""
        answer = self.read_head()
        answer.body = self.read(int(answer.headers["content-length"]))
        return answer

    def read_chunk(self) -> bytes:
        """One piece of a chunked body; empty at its end."""
        size = int(self.read_until(b"\r\n"), 16)
        data = self.read(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    def read_chunks(self) -> bytes:
        """The rest of a chunked body, whose end has to come."""
        pieces = []
        while piece := self.read_chunk():
            pieces.append(piece)
        return b"".join(pieces)

    def read_to_end(self) -> bytes:
        """Everything until the gateway hangs up."""
        pieces = [self.held]
        self.held = b""
        try:
            while data := self.socket.recv(65536):
                pieces.append(data)
        except ConnectionResetError:
            pass
        return b"".join(pieces)


def events(body: bytes) -> list[Any]:
    """The data of every event, as JSON where it is."""
    found: list[Any] = []
    for block in body.split(b"\n\n"):
        if block.startswith(b"data: "):
            text = block.removeprefix(b"data: ").decode()
            found.append(json.loads(text) if text.startswith("{") else text)
    return found

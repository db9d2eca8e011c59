"""One question to a Redis, and its answer: written by hand, it shares nothing with what is tested."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import IO

Reply = str | int | None | list["Reply"]


class Refusal(Exception):
    """The server answered with an error; its text is the server's."""


def ask(
    port: int,
    *words: str | int,
    username: str | None = None,
    password: str | None = None,
    ca_file: Path | None = None,
    timeout_s: float = 5,
) -> Reply:
    """Ask the server on 127.0.0.1 over a connection of its own.

    Raises `Refusal`, and OSError where there is no server or no answer in time.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as raw:
        wire: socket.socket = raw
        if ca_file is not None:
            wire = ssl.create_default_context(cafile=str(ca_file)).wrap_socket(raw, server_hostname="127.0.0.1")
        with wire, wire.makefile("rb") as answers:
            if password is not None:
                _send(wire, "AUTH", *([username] if username else []), password)
                _receive(answers)
            _send(wire, *words)
            return _receive(answers)


def _send(wire: socket.socket, *words: str | int) -> None:
    encoded = [str(word).encode() for word in words]
    wire.sendall(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded))


def _receive(answers: IO[bytes]) -> Reply:
    line = answers.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server hung up")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise Refusal(rest)
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else answers.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if rest == "-1" else [_receive(answers) for _ in range(int(rest))]
    return rest


def flat(reply: Reply) -> str:
    """An answer as lines of text; nothing is an empty line."""
    if isinstance(reply, list):
        return "\n".join(flat(item) for item in reply)
    return "" if reply is None else str(reply)

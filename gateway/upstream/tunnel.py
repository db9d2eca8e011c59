"""CONNECT through an HTTP proxy: turns a socket to the proxy into one to the upstream (RFC 9110, 9.3.6).

The exchange runs on the bare socket, before any transport, so that TLS and HTTP behind it are the same as without a
proxy. It need not read byte by byte: neither a TLS server nor an HTTP server sends first. A byte behind the proxy's
successful answer is therefore an error, and the tunnel is not used.
"""

from __future__ import annotations

import asyncio
import re
import socket

from gateway.config import Proxy

from .connection import MAX_HEAD_BYTES

_READ_BYTES = 4096

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?\r?\n")
_HEAD_END = re.compile(rb"\n\r?\n")
"""A bare LF ends a line too, as RFC 9112 allows: only the status of the head is used."""

_MEANING = {
    403: "does not allow this host and port",
    405: "does not allow CONNECT",
    407: "refuses the credentials",
    502: "cannot reach it",
    503: "cannot reach it now",
    504: "cannot reach it in time",
}
"""Meanings of common refusals, for the log."""


class TunnelRefused(OSError):
    """The proxy refused, or its answer is invalid. The message quotes nothing of the answer."""


async def open_tunnel(sock: socket.socket, proxy: Proxy, target: str) -> None:
    """Request a tunnel to `target` (host:port). Returns when all further bytes on the socket are those of the target.

    Raises `TunnelRefused` and other OSErrors. Has no time limit of its own. A cancellation makes the socket unusable.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, request(proxy, target))
    answer = bytearray()
    read = 0
    while True:
        before = len(answer)
        data = await loop.sock_recv(sock, _READ_BYTES)
        if not data:
            raise TunnelRefused("the proxy closed the connection before it answered")
        answer += data
        read += len(data)
        if not answer.startswith(b"HTTP/1."[: len(answer)]):
            raise TunnelRefused("the proxy does not answer in HTTP/1")
        start = max(0, before - 2)  # the end may have begun in the bytes of the last read
        while (end := _HEAD_END.search(answer, start)) is not None:
            status = _status_of(answer)
            if status >= 200:
                _check(status, len(answer) - end.end(), has_credentials=proxy.credentials is not None)
                return
            del answer[: end.end()]  # an interim answer
            start = 0
        if read >= MAX_HEAD_BYTES:
            raise TunnelRefused(f"the proxy's answer has a head of over {MAX_HEAD_BYTES} bytes")


def request(proxy: Proxy, target: str) -> bytes:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.basic is not None:
        lines.append(f"Proxy-Authorization: Basic {proxy.basic.get_secret_value()}")
    return "\r\n".join([*lines, "", ""]).encode()


def _status_of(answer: bytearray) -> int:
    line = _STATUS_LINE.match(answer)
    status = int(line[1]) if line is not None else 101
    if status == 101:  # 101 would switch to another protocol
        raise TunnelRefused("the proxy does not answer in HTTP/1")
    return status


def _check(status: int, surplus: int, *, has_credentials: bool) -> None:
    """Raises `TunnelRefused` unless this answer opens the tunnel."""
    if 200 <= status < 300:
        if surplus:
            raise TunnelRefused(f"the proxy sent {surplus} surplus bytes behind its answer")
        return
    meaning = _MEANING.get(status, "refuses")
    if status == 407 and not has_credentials:
        meaning = "requires credentials, and its address has none"
    raise TunnelRefused(f"the proxy {meaning} (status {status})")

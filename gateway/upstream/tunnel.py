"""CONNECT: from a socket that leads to a proxy to one that leads to the upstream (RFC 9110, 9.3.6).

The exchange is made on the bare socket, before any transport, so that everything behind it (TLS, the upstream's own
HTTP) is the same as without a proxy. Nothing has to be read byte by byte for that: neither a TLS server nor an HTTP one
speaks first, so a byte behind the proxy's good answer is nobody's, and the tunnel is not used.
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
"""A bare line feed counts as a line end, as RFC 9112 allows: of the head nothing is used but its status."""

_MEANING = {
    403: "does not allow this host and port",
    405: "does not allow CONNECT",
    407: "refuses the credentials",
    502: "cannot reach it",
    503: "cannot reach it now",
    504: "cannot reach it in time",
}
"""What the usual refusals mean, for the operator's log."""


class TunnelRefused(OSError):
    """The proxy has said no, or nothing that can be understood; in words that hold nothing of what it said."""


async def open_tunnel(sock: socket.socket, proxy: Proxy, target: str) -> None:
    """Ask for `target` (host:port). Returns when every further byte on the socket is the target's.

    Raises `TunnelRefused` and other OSErrors. Has no time limit of its own. Cancelled: the socket is of no more use.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, request(proxy, target))
    answer = bytearray()
    read = 0
    while True:
        before = len(answer)
        data = await loop.sock_recv(sock, _READ_BYTES)
        if not data:
            raise TunnelRefused("the proxy hung up before it had answered")
        answer += data
        read += len(data)
        if not answer.startswith(b"HTTP/1."[: len(answer)]):
            raise TunnelRefused("the proxy does not answer in HTTP/1")
        start = max(0, before - 2)  # an end may have begun in what was looked at already
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
    """The bytes that ask for a tunnel."""
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.basic is not None:
        lines.append(f"Proxy-Authorization: Basic {proxy.basic.get_secret_value()}")
    return "\r\n".join([*lines, "", ""]).encode()


def _status_of(answer: bytearray) -> int:
    line = _STATUS_LINE.match(answer)
    status = int(line[1]) if line is not None else 101
    if status == 101:  # a switch to some other protocol is not what was asked for
        raise TunnelRefused("the proxy does not answer in HTTP/1")
    return status


def _check(status: int, surplus: int, *, has_credentials: bool) -> None:
    """Raises `TunnelRefused` unless this answer opens the tunnel."""
    if 200 <= status < 300:
        if surplus:
            raise TunnelRefused(f"the proxy sent {surplus} bytes of its own behind its answer")
        return
    meaning = _MEANING.get(status, "refuses")
    if status == 407 and not has_credentials:
        meaning = "wants credentials, and there are none in its address"
    raise TunnelRefused(f"the proxy {meaning} (status {status})")

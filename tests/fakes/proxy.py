"""An HTTP proxy that is asked with CONNECT and does exactly what the test wrote down.

    with Scripted(ok_json()) as upstream, ConnectProxy(always=tunnel(upstream.port)) as proxy:
        ...                                                  # proxy.url is what `proxy` takes
    assert proxy.targets == ["api.example.com:443"]

Where a tunnel leads is the test's choice, whatever was asked for: so any name can be an upstream without a resolver.
A request that is not a CONNECT of the right form fails the test.
"""

from __future__ import annotations

import asyncio
import base64

from .scripted import Behaviour, Request, Scripted, Wire

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class ConnectProxy(Scripted):
    """See the head of the file."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url_with(self, userinfo: str) -> str:
        """Its address with this before the host, as it is written in an URL."""
        return f"http://{userinfo}@127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        """What was asked for, in this order."""
        return [request.path for request in self.requests]

    async def _read_request(self, reader: asyncio.StreamReader, number: int) -> Request | None:
        if (head := await self._read_head(reader)) is None:
            return None
        first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        method, _, target = first.removesuffix(" HTTP/1.1").partition(" ")
        names = [name for name, _ in headers]
        is_good = first == f"CONNECT {target} HTTP/1.1" and headers[:1] == [("host", target)]
        if not is_good or names not in (["host"], ["host", "proxy-authorization"]):
            self.troubles.append(f"not a good CONNECT: {head!r}")
            return None
        return Request(head, method, target, headers, number)


def tunnel(port: int, answer: bytes = ESTABLISHED, *, userinfo: str | None = None) -> Behaviour:
    """Connect to this port on 127.0.0.1; with `userinfo` (user:password), answer 407 to requests without it."""
    expected = None if userinfo is None else "Basic " + base64.b64encode(userinfo.encode()).decode()

    async def behaviour(wire: Wire) -> None:
        if wire.request.headers.get("proxy-authorization") != expected:
            await refuse(407, 'Proxy-Authenticate: Basic realm="proxy"')(wire)
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        pumps = []
        try:
            await wire.write(answer)
            pumps = [
                asyncio.ensure_future(_pump(wire.reader, writer)),
                asyncio.ensure_future(_pump(reader, wire.writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before anything is awaited: a test that ends here cancels this task a second time.
            writer.close()
            wire.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    return behaviour


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


def refuse(status: int, *lines: str) -> Behaviour:
    """Say no, with a body, and hang up."""

    async def behaviour(wire: Wire) -> None:
        body = b"<html>The proxy says no, at length.</html>"
        head = [f"HTTP/1.1 {status} No", *lines, f"Content-Length: {len(body)}", "", ""]
        await wire.write("\r\n".join(head).encode() + body)
        wire.close()

    return behaviour


async def die_in_handshake(wire: Wire) -> None:
    """Opens the tunnel, takes the first bytes of the handshake, and is gone."""
    await wire.write(ESTABLISHED)
    assert await wire.reader.read(1) == b"\x16"
    wire.reset()

"""A TCP proxy whose wire goes wrong when the test says so.

    with RedisServer(tmp_path) as server, WireProxy(server.port) as proxy:
        ...                                                  # clients connect to proxy.port
        proxy.lose_reply(of=b"EVALSHA")                      # the next such request arrives, its answer does not

It knows nothing of what it carries. Each method says what happens from now on, on open connections and new ones, and
takes the place of what was said before; when it returns, it is in force. Faults that cut happen once, to the first
request that holds the bytes `of`, and after them all is well again.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from .redis_servers import PORTS


@dataclass(frozen=True)
class _Fault:
    """What is wrong with the wire; the default is nothing."""

    cuts: str = ""
    """What is cut, once: "request" or "reply"."""
    of: bytes = b""
    after_bytes: int = 0
    delay_s: float = 0
    is_held: bool = False


class _Link:
    """One client's connection and the one that leads on."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._writers = (client, server)
        self.pumps: list[asyncio.Task[None]] = []
        self.fault: _Fault | None = None
        """What will befall the reply to the request that was passed on last."""

    def cut(self) -> None:
        """At once, whatever is on its way."""
        for writer in self._writers:
            writer.transport.abort()
        for pump in self.pumps:
            pump.cancel()

    async def run(self) -> None:
        """Until one end hangs up or the link is cut; what was passed on before still arrives."""
        await asyncio.wait(self.pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in self.pumps:
            pump.cancel()
        for writer in self._writers:
            writer.close()
        endings = [writer.wait_closed() for writer in self._writers]
        await asyncio.gather(*self.pumps, *endings, return_exceptions=True)


class WireProxy:
    """See the head of the file. Counters may be read at any time from any thread."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.connections = 0
        """Accepted so far."""
        self.request_bytes = 0
        """Come from clients so far."""
        self.reply_bytes = 0
        """Come from the server so far."""
        self.cuts = 0
        """Faults that have happened so far: connections cut in the midst of a request or a reply."""
        self._target_port = target_port
        self._fault = _Fault()
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._may_pass = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # ------------------------------------------------------------------------------------------------ what happens

    def heal(self) -> None:
        """All is passed on, also what was held."""
        self._begin(_Fault())

    def lose_reply(self, *, of: bytes = b"", after_bytes: int = 0) -> None:
        """A request arrives and is carried out; of its reply the client gets this many bytes, and no connection."""
        self._begin(_Fault(cuts="reply", of=of, after_bytes=after_bytes))

    def cut_request(self, *, of: bytes = b"", after_bytes: int = 0) -> None:
        """Of a request the server gets this many bytes, and neither end has a connection any more."""
        self._begin(_Fault(cuts="request", of=of, after_bytes=after_bytes))

    def delay(self, seconds: float) -> None:
        """Whatever the server sends comes later."""
        self._begin(_Fault(delay_s=seconds))

    def hold(self) -> None:
        """A black hole: connections are accepted and nothing passes, either way. `heal` passes on what was held, as a
        network does, however late that is and whether its sender still waits or not."""
        self._begin(_Fault(is_held=True))

    def refuse(self) -> None:
        """Close the open connections and refuse new ones."""
        self._do(self._leave)

    def cut(self) -> None:
        """Cut all open connections, now; new ones are welcome."""
        self._do(self._cut)

    # ---------------------------------------------------------------------------------------- in the proxy's thread

    def _do(self, change: Callable[[], object]) -> None:
        async def do() -> None:
            result = change()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(do(), self._loop).result(10)

    def _begin(self, fault: _Fault) -> None:
        async def begin() -> None:
            self._fault = fault
            if fault.is_held:
                self._may_pass.clear()
            else:
                self._may_pass.set()
            if self._server is None:
                self._server = await self._listen()

        self._do(begin)

    async def _listen(self) -> asyncio.Server:
        for port in [self.port] if self.port else random.sample(PORTS, 20):
            try:
                server = await asyncio.start_server(self._serve, "127.0.0.1", port)
            except OSError:
                continue
            self.port = port
            return server
        raise AssertionError("no port was free for the proxy")

    def _leave(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._cut()

    def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _end(self) -> None:
        self._leave()
        await asyncio.gather(*self._links.values(), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        link.pumps = [
            asyncio.ensure_future(self._carry_requests(link, reader, server_writer)),
            asyncio.ensure_future(self._carry_replies(link, server_reader, writer)),
        ]
        self._links[link] = asyncio.ensure_future(link.run())
        await self._links[link]
        del self._links[link]

    def _strikes(self, fault: _Fault) -> bool:
        """Whether this fault is still to happen; if so, it happens now and is over."""
        if self._fault is not fault:
            return False
        self._fault = _Fault()
        self.cuts += 1
        return True

    async def _carry_requests(self, link: _Link, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(65536):
            self.request_bytes += len(data)
            await self._may_pass.wait()
            fault = self._fault
            if fault.cuts == "request" and fault.of in data and self._strikes(fault):
                server.write(data[: fault.after_bytes])
                await server.drain()
                return
            if fault.cuts == "reply" and fault.of in data:
                link.fault = fault
            server.write(data)
            await server.drain()

    async def _carry_replies(self, link: _Link, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(65536):
            self.reply_bytes += len(data)
            await asyncio.sleep(self._fault.delay_s)
            await self._may_pass.wait()
            if link.fault is not None and self._strikes(link.fault):
                client.write(data[: link.fault.after_bytes])
                await client.drain()
                return
            client.write(data)
            await client.drain()

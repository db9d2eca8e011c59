"""An upstream that does exactly what the test wrote down, byte by byte.

It is a real server on 127.0.0.1 in a thread with an event loop of its own, so that it serves a client in the test's
loop and a gateway in another process alike. It shares no code with the gateway: bytes are written by hand.

    with Scripted(ok_json()) as upstream:                    # or: async with
        ...                                                  # upstream.url is what base_url takes
    assert upstream.hits == 1
    assert upstream.requests[0].json["model"] == "m"

Positional behaviours are a script: the first answers the first request, the second the second, whatever connection
they come on. `always=` answers every request after them. A request beyond the script, a request that is not HTTP and
an error inside a behaviour fail the test when the block is left.

A behaviour is an async function that takes a `Wire`; those with settings (`ok_json(...)`, `stream(...)`) are functions
that return one. When it returns, the connection stays open for the next request unless the behaviour closed it.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import itertools
import json
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DEFAULT_JSON = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1700000000,
    "model": "scripted",
    "choices": [{"text": " world", "index": 0, "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@dataclass
class Request:
    """One request as it came. Header names are in lower case, repeated ones are all in `header_lines`."""

    head: bytes
    method: str
    path: str
    header_lines: list[tuple[str, str]]
    connection: int
    """Number of the connection, counted from 0 in the order of arrival."""
    body: bytes = b""
    turn: int = 0
    """Number of the request on its connection, counted from 0."""

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.header_lines)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Wire:
    """What a behaviour acts on: one connection, and the request that it answers."""

    request: Request
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: Scripted

    async def write(self, data: bytes) -> None:
        """Write and wait until the kernel has it (so: for ever, when the peer does not read and buffers are full)."""
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """Hang up politely, after what was written."""
        self.writer.close()

    def reset(self) -> None:
        """Hang up rudely: the peer gets RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def until_gone(self) -> None:
        """Wait until the peer has hung up."""
        try:
            while await self.reader.read(65536):
                pass
        except OSError:
            pass


Behaviour = Callable[[Wire], Awaitable[None]]


class Scripted:
    """See the head of the file. Counters may be read at any time from any thread."""

    def __init__(
        self,
        *script: Behaviour,
        always: Behaviour | None = None,
        tls: ssl.SSLContext | None = None,
        reads_body: bool = True,
        prefix: str = "/v1",
        greeting: Behaviour | None = None,
        sock: socket.socket | None = None,
    ) -> None:
        self._script = list(script)
        self._always = always
        self._tls = tls
        self._reads_body = reads_body
        self._prefix = prefix
        self.greeting = greeting
        """Plays on every new connection before a request is read from it; its `Wire` has an empty request."""
        self._sock = sock
        self._thread = threading.Thread(target=self._run, name="scripted upstream", daemon=True)
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.port = 0
        self.requests: list[Request] = []
        self.connections = 0
        """Accepted so far."""
        self.open_now = 0
        self.most_open = 0
        self.troubles: list[str] = []
        """What the test has not foreseen."""

    @property
    def hits(self) -> int:
        return len(self.requests)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}{self._prefix}"

    def __repr__(self) -> str:
        return f"<Scripted :{self.port} {self.hits} hits, {self.open_now} of {self.connections} connections open>"

    # ------------------------------------------------------------------------------------------------ as a context

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(60), "the scripted upstream did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        if kind is None:  # only if the test itself has not failed
            assert not self.troubles, f"unexpected at {self!r}: {self.troubles}"

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.__exit__(kind, *rest)

    def expect_trouble(self, words: str) -> None:
        """Take back the troubles that hold these words; there has to be one."""
        found = [trouble for trouble in self.troubles if words in trouble]
        assert found, f"no trouble with {words!r} in {self.troubles}"
        self.troubles = [trouble for trouble in self.troubles if trouble not in found]

    # -------------------------------------------------------------------------------------------------- the server

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self.troubles.append(str(context)))
        self._stop = stop = asyncio.Event()
        talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if stop.is_set():  # accepted in the moment in which the block was left
                writer.transport.abort()
                return
            talk = asyncio.ensure_future(self._talk(reader, writer))
            talks[talk] = writer
            talk.add_done_callback(talks.pop)

        if self._sock is None:
            server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=self._tls, backlog=1024)
        else:
            server = await asyncio.start_server(accept, sock=self._sock, ssl=self._tls, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        await stop.wait()
        # What is being accepted in this moment is made, aborted and closed, each in a turn of its own. (asyncio leaks
        # a connection whose transport is made after its server was closed.)
        await asyncio.sleep(0.002)
        server.close()
        for talk, writer in talks.items():
            talk.cancel()
            writer.transport.abort()
        await asyncio.gather(*talks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            if self.greeting is not None:
                await self.greeting(Wire(Request(b"", "", "", [], number), reader, writer, self))
            for turn in itertools.count():
                if writer.is_closing():
                    break
                request = await self._read_request(reader, number)
                if request is None:
                    break
                request.turn = turn
                behaviour = self._next_behaviour(request)
                if behaviour is None:
                    break
                await behaviour(Wire(request, reader, writer, self))
        except OSError:  # the peer has hung up, which is its right
            pass
        except Exception as error:
            self.troubles.append(f"a behaviour raised {error!r}")
        finally:
            writer.close()
            # Closed is closed when the bytes and the FIN are out, not when it was wished for.
            try:
                await writer.wait_closed()
            except OSError:
                pass
            finally:
                self.open_now -= 1

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes | None:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.troubles.append(f"half a request: {error.partial[:100]!r}")
            return None

    async def _read_request(self, reader: asyncio.StreamReader, number: int) -> Request | None:
        if (head := await self._read_head(reader)) is None:
            return None
        try:
            first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
            method, path, version = first.split(" ")
            pairs = [line.split(": ", 1) for line in lines]
            request = Request(head, method, path, [(name.lower(), value) for name, value in pairs], number)
            assert version == "HTTP/1.1"
            assert request.headers["host"] == f"127.0.0.1:{self.port}" or not request.headers["host"].startswith("127.")
            length = int(request.headers.get("content-length", 0))
        except (ValueError, AssertionError, KeyError) as error:
            self.troubles.append(f"not a good request ({error!r}): {head!r}")
            return None
        if self._reads_body:
            try:
                request.body = await reader.readexactly(length)
            except asyncio.IncompleteReadError:
                return None  # aborted while sending: the client's right, and no request
        return request

    def _next_behaviour(self, request: Request) -> Behaviour | None:
        number = len(self.requests)
        self.requests.append(request)
        if number < len(self._script):
            return self._script[number]
        if self._always is None:
            self.troubles.append(f"unexpected request number {number + 1}: {request.method} {request.path}")
        return self._always


# ---------------------------------------------------------------------------------------------------------- behaviours


def answer(body: bytes, status: int = 200, headers: Sequence[tuple[str, str]] = (), reason: str = "Said") -> Behaviour:
    """A plain answer with Content-Length; headers as given, Content-Type: application/json unless among them."""

    async def behaviour(wire: Wire) -> None:
        named = {name.lower() for name, _ in headers}
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
        if "content-type" not in named:
            lines.append("Content-Type: application/json")
        lines.append(f"Content-Length: {len(body)}")
        await wire.write("\r\n".join([*lines, "", ""]).encode() + body)

    return behaviour


def ok_json(value: Any = DEFAULT_JSON, headers: Sequence[tuple[str, str]] = ()) -> Behaviour:
    return answer(json.dumps(value).encode(), headers=headers)


def error_json(status: int, headers: Sequence[tuple[str, str]] = (), **error: Any) -> Behaviour:
    """An OpenAI error object; `message`, `type`, `param` and `code` may be given."""
    fields = {"message": "scripted", "type": "server_error", "param": None, "code": None} | error
    return answer(json.dumps({"error": fields}).encode(), status, headers)


def raw(*pieces: bytes, delay_s: float = 0.0, then_close: bool = False) -> Behaviour:
    """These bytes, each piece in a packet of its own when there is a delay."""

    async def behaviour(wire: Wire) -> None:
        for number, piece in enumerate(pieces):
            if number and delay_s:
                await asyncio.sleep(delay_s)
            await wire.write(piece)
        if then_close:
            wire.close()

    return behaviour


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    """One server-sent event; bytes and text are taken as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    return b"data: " + (value if isinstance(value, str) else json.dumps(value)).encode() + b"\n\n"


def stream(events: Iterable[Any], delay_s: float = 0.0, *, done: bool = True) -> Behaviour:
    """A chunked event stream, one chunk per event; `data: [DONE]` follows them if `done`."""

    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED)
        for item in [*events, *(["[DONE]"] if done else [])]:
            await wire.write(chunk(event(item)))
            if delay_s:
                await asyncio.sleep(delay_s)
        await wire.write(b"0\r\n\r\n")

    return behaviour


def cut_stream(events: Iterable[Any], delay_s: float = 0.0) -> Behaviour:
    """An event stream whose connection closes after these events, without the last chunk."""

    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED)
        for item in events:
            await wire.write(chunk(event(item)))
            await asyncio.sleep(delay_s)
        wire.close()

    return behaviour


def stalled_stream(events: Iterable[Any]) -> Behaviour:
    """An event stream that says these events and then nothing more, until the peer hangs up."""

    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED)
        for item in events:
            await wire.write(chunk(event(item)))
        await wire.until_gone()

    return behaviour


def dribble(data: bytes, delay_s: float = 0.01) -> Behaviour:
    """These bytes one at a time: alive all the while, and never done when the peer has a time limit."""
    return raw(*(data[at : at + 1] for at in range(len(data))), delay_s=delay_s)


def dribble_head(delay_s: float = 0.01) -> Behaviour:
    return dribble(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"z" * 10000, delay_s)


def after(delay_s: float, behaviour: Behaviour) -> Behaviour:
    """Another behaviour, later."""

    async def late(wire: Wire) -> None:
        await asyncio.sleep(delay_s)
        await behaviour(wire)

    return late


async def silent(wire: Wire) -> None:
    """Takes the request and says nothing, until the peer hangs up."""
    await wire.until_gone()


async def close_without_answer(wire: Wire) -> None:
    wire.close()


async def reset_without_answer(wire: Wire) -> None:
    wire.reset()


async def not_http(wire: Wire) -> None:
    await wire.write(b"220 mail.example.com ESMTP ready\r\n")


async def cut_mid_body(wire: Wire) -> None:
    """Announces 100 bytes, writes 10, hangs up."""
    await wire.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"id": "cm')
    wire.close()


async def reset_mid_body(wire: Wire) -> None:
    await wire.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"id": "cm')
    await asyncio.sleep(0.05)  # RST takes what the peer has not read yet with it
    wire.reset()


async def keepalive_then_close(wire: Wire) -> None:
    """A good answer that promises to stay, then a closed connection: what an idle limit of the upstream looks like."""
    await ok_json()(wire)
    wire.close()


# -------------------------------------------------------------------------------------------------------------- helpers


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Let the loop run until the condition holds; fails the test when it never does."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "this never came true"
        await asyncio.sleep(0.002)


def dead_port() -> int:
    """A port on 127.0.0.1 without a listener.

    It is below the ephemeral ports, so that the system does not assign it to another socket before it is used.
    """
    for port in random.sample(range(22_000, 32_000), 50):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port was free")


@dataclass
class Authority:
    """A certificate authority made for one test, and server contexts with certificates that it has signed."""

    folder: Path
    ca_file: Path = field(init=False)

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test Authority")])
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            self._begin(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = self.folder / "ca.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _begin(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def server_file(self, *hosts: str) -> Path:
        """Key and certificate, in one PEM file, of a server that is known by these names or addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        certificate = (
            self._begin(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "upstream")]), key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"server-{certificate.serial_number}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return path

    def server_context(self, *hosts: str) -> ssl.SSLContext:
        """For a server that is known by these names or addresses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_file(*hosts))
        return context

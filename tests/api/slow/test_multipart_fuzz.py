"""A form that is accepted here is read in the same way by other parsers: aiohttp's, and the standard library's.

Forms are changed at random, in the places where parsers differ. What is refused here is no matter; what is accepted has
to have the same names, values and files everywhere.
"""

from __future__ import annotations

import asyncio
import random
from email.parser import BytesParser
from email.policy import HTTP
from unittest.mock import Mock

from aiohttp import BodyPartReader, MultipartReader, StreamReader

from gateway.api.multipart import FormParser
from gateway.errors import GatewayError
from tests.fakes.forms import BOUNDARY, form

ROUNDS = 20_000
SEEDS = [
    form(("model", "whisper-1"), ("file", b"\0\1\r\n\xff" * 9), ("prompt", "two\r\nlines")),
    form(("file", b"RIFF"), ("model", "m"), ("n", "2"), ("image[]", b"\r\n"), ("empty", "")),
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b"--", b'"', b"\\", b";", b":", b" ", b"\t", b"=", b"\0", b"\xff", b"", BOUNDARY.encode(),
    f"\r\n--{BOUNDARY}\r\n".encode(), f"\r\n--{BOUNDARY}--".encode(), b"name", b'; name="model"', b"; filename=x",
    b'Content-Disposition: form-data; name="model"\r\n', b"Content-Transfer-Encoding: base64\r\n",
    b"Content-Transfer-Encoding: quoted-printable\r\n", b"Content-Encoding: gzip\r\n", b"Content-Length: 1\r\n",
    b"Content-Type: text/plain; charset=utf-16\r\n", b"Content-Type: multipart/mixed; boundary=x\r\n", b" folded\r\n",
]  # fmt: skip

Parts = list[tuple[str, bytes, bool]]
"""Name, content, and whether it is a file."""


def changed(seed: random.Random) -> bytes:
    body = seed.choice(SEEDS)
    for _ in range(seed.randrange(1, 4)):
        at = seed.randrange(len(body) + 1)
        if seed.random() < 0.5 and (line := body.rfind(b"\r\n", 0, at)) >= 0:
            at = line + 2
        body = body[:at] + seed.choice(TOKENS) + body[at + seed.choice([0, 0, 1, 2, 5]) :]
    return body


def ours(body: bytes) -> Parts | None:
    """None: refused."""
    parser = FormParser(BOUNDARY, 10_000)
    try:
        parser.feed(body)
        parts = parser.parts()
    except GatewayError:
        return None
    return [(each.name, body[each.start : each.end], each.value is None) for each in parts]


async def of_aiohttp(body: bytes) -> Parts:
    stream = StreamReader(Mock(_reading_paused=False), 2**20, loop=asyncio.get_running_loop())
    stream.feed_data(body)
    stream.feed_eof()
    reader = MultipartReader({"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}, stream)
    found: Parts = []
    while (part := await reader.next()) is not None:
        assert isinstance(part, BodyPartReader)
        assert part.name is not None
        found.append((part.name, bytes(await part.read()), part.filename is not None))
    return found


def of_mail(body: bytes) -> Parts:
    head = f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n".encode()
    found: Parts = []
    for part in BytesParser(policy=HTTP).parsebytes(head + body).iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        filename = part.get_param("filename", header="content-disposition")  # get_filename takes that of the type, too
        found.append((str(name), content, filename is not None))
    return found


async def test_what_is_accepted_is_read_in_the_same_way_elsewhere() -> None:
    number = random.randrange(10**6)
    print(f"seed {number}")
    seed = random.Random(number)
    accepted = 0
    for _ in range(ROUNDS):
        body = changed(seed)
        if (parts := ours(body)) is None:
            continue
        accepted += 1
        assert await of_aiohttp(body) == parts, body
        names = [(name, is_file) for name, _, is_file in parts]
        assert [(name, is_file) for name, _, is_file in of_mail(body)] == names, body
    assert accepted > ROUNDS // 20

"""Multipart forms and audio files, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

BOUNDARY = "----form-5f2c"
TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}

Field = tuple[str, str | bytes]
"""A name with a text, or with the bytes of a file."""


def part(name: str, value: str | bytes, *more: str, filename: str = "a.wav") -> bytes:
    """One part, with its boundary in front."""
    is_file = isinstance(value, bytes)
    disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if is_file else "")
    lines = [f"--{BOUNDARY}", f"Content-Disposition: {disposition}", *(["Content-Type: audio/wav"] if is_file else [])]
    head = "\r\n".join([*lines, *more, "", ""]).encode()
    return head + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"


def form(*fields: Field) -> bytes:
    """A whole form."""
    return b"".join([part(*field) for field in fields]) + f"--{BOUNDARY}--\r\n".encode()


def wav(seconds: float, rate: int = 8000) -> bytes:
    """Silence of 16 bits in one channel."""
    samples = int(seconds * rate)
    body = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body += struct.pack("<4sI", b"data", 2 * samples) + bytes(2 * samples)
    return struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WAVE") + body


def flac(seconds: float, rate: int = 16000) -> bytes:
    """The header alone."""
    info = (rate << 44 | int(seconds * rate)).to_bytes(8, "big")
    return b"fLaC" + bytes(14) + info + bytes(32)


def ogg(seconds: float) -> bytes:
    """The first and the last page of Opus."""
    last = b"OggS\0\4" + struct.pack("<q", int(seconds * 48000))
    return b"OggS\0\2" + bytes(22) + b"OpusHead" + bytes(100) + last + bytes(50)


def mp3(frames: int, counted: int | None = None) -> bytes:
    """Frames of 128 kbit/s at 44.1 kHz, 417 bytes and 1152 samples each, behind an ID3 tag."""
    frame = b"\xff\xfb\x90\x00" + bytes(413)
    first = frame
    if counted is not None:
        first = frame[:36] + b"Xing" + struct.pack(">II", 1, counted) + frame[48:]
    return b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + first + frame * (frames - 1)


def mp4(seconds: float, *, is_behind: bool = False) -> bytes:
    """`ftyp`, `moov` and `mdat`; `is_behind`: `moov` comes last."""

    def box(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(body), name) + body

    movie = box(b"moov", box(b"mvhd", bytes(12) + struct.pack(">II", 1000, int(seconds * 1000)) + bytes(80)))
    data = box(b"mdat", bytes(200_000))
    return box(b"ftyp", b"M4A \0\0\0\0") + (data + movie if is_behind else movie + data)


def webm(seconds: float | None) -> bytes:
    """A header, a segment of unknown size with its information, and a cluster; None: without a length."""

    def element(name: str, body: bytes) -> bytes:
        return bytes.fromhex(name) + bytes([0x40 | len(body) >> 8, len(body) & 0xFF]) + body

    info = element("2ad7b1", (1_000_000).to_bytes(3, "big"))
    if seconds is not None:
        info += element("4489", struct.pack(">d", seconds * 1000))
    inside: Sequence[bytes] = (element("1549a966", info), bytes.fromhex("1f43b67501ffffffffffffff"), bytes(500))
    return element("1a45dfa3", bytes(10)) + bytes.fromhex("1853806701ffffffffffffff") + b"".join(inside)


def recorded_webm(seconds: int, block_bytes: int = 480, *, is_grouped: bool = False) -> bytes:
    """As browsers record it: no length, clusters of unknown size with 30 s each, a block every 60 ms."""

    def element(name: str, body: bytes) -> bytes:
        return bytes.fromhex(name) + (0x10000000 | len(body)).to_bytes(4, "big") + body

    unknown = bytes.fromhex("01ffffffffffffff")
    info = element("1549a966", element("2ad7b1", (1_000_000).to_bytes(3, "big")))
    clusters = bytearray()
    for start in range(0, seconds * 1000, 30_000):
        clusters += bytes.fromhex("1f43b675") + unknown + element("e7", start.to_bytes(3, "big"))
        for at in range(0, min(30_000, seconds * 1000 - start), 60):
            block = b"\x81" + struct.pack(">h", at) + b"\x80" + bytes(block_bytes)
            clusters += element("a0", element("a1", block)) if is_grouped else element("a3", block)
    return element("1a45dfa3", bytes(10)) + bytes.fromhex("18538067") + unknown + info + clusters

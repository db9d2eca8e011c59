"""The line format of journal entries, and reading lines back from a possibly damaged file.

    crc32 length body LF        with the body: number kind lease text

`crc32` is that of the body in hexadecimal, `length` the body's in bytes. The text is everything up to the end of the
line. A half written line is recognised by its missing end, a changed one by its checksum. If
only the end of a line is damaged, the length finds the beginning of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

EntryKind = Literal["open", "close", "void", "defer"]
LineFault = Literal["torn", "damaged"]
"""torn: the end of a file that was being written; damaged: anything else that is no entry."""

_KINDS: dict[str, EntryKind] = {"open": "open", "close": "close", "void": "void", "defer": "defer"}
_READ_AT_ONCE_BYTES = 1 << 18


class JournalEntry(NamedTuple):
    """One event of a lease."""

    number: int
    """Sequence number of the entry; numbers rise from 1."""
    kind: EntryKind
    lease: str
    text: str
    """The entry's text (quota/ledger_entry) for open and close; for defer a tab and its note behind it; nothing for
    void."""


def encode(number: int, kind: EntryKind, lease: str, text: str) -> bytes:
    """The line of an entry. Raises `ValueError` where the lease holds a space, or either the end of a line."""
    if "\n" in text or "\n" in lease or " " in lease:
        raise ValueError("a lease is one word, and an entry is one line")
    body = f"{number} {kind} {lease} {text}".encode()
    return b"%08x %d %b\n" % (crc32(body), len(body), body)


def decode(line: bytes) -> Iterator[JournalEntry | None]:
    """The entries of a line, usually one; None for a part that is no entry. Several if ends of lines are damaged."""
    while line:
        entry, line = _first(line)
        yield entry


def _first(line: bytes) -> tuple[JournalEntry | None, bytes]:
    """The entry that a line begins with, and what comes after it."""
    try:
        checksum, length, rest = line.split(b" ", 2)
        body = rest[: (end := int(length))]
        if len(body) == end and int(checksum, 16) == crc32(body):
            number, kind, lease, text = body.decode().split(" ", 3)
            return JournalEntry(int(number), _KINDS[kind], lease, text), rest[end + 1 :]
    except (ValueError, KeyError):
        pass
    return None, b""


class Position:
    """How far a file has been read, in whole lines."""

    def __init__(self, offset_bytes: int = 0) -> None:
        self.offset_bytes = offset_bytes


def read(path: Path, place: Position, until: Callable[[], int]) -> Iterator[JournalEntry | LineFault]:
    """The entries of a file from a place on, which moves along, up to a size in bytes, which may grow meanwhile.

    Raises `OSError`.
    """
    with path.open("rb", buffering=_READ_AT_ONCE_BYTES) as file:
        file.seek(place.offset_bytes)
        for line in file:
            if place.offset_bytes + len(line) > until():
                return
            place.offset_bytes += len(line)
            for entry in decode(line):
                yield entry or ("damaged" if line.endswith(b"\n") else "torn")

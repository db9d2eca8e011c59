"""The file of an export: JSON lines, the first about its source, the last with the totals of all rows between.

A file without its last line was broken off, and is refused. A name that ends with `.gz` is compressed.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from gateway import untrusted_json

from .contents import can_be_read
from .rows import ADDED, KINDS, StoreRow, Total, row_of, totals

FORMAT = "gateway-export"
VERSION = 1
MAX_LINE = 16_777_216
"""Characters: many times those of the longest row."""


class BadExport(Exception):
    """A file that cannot be imported, or not be written; the text has the reason and the remedy."""


class ExportHead(NamedTuple):
    """The first line of a file."""

    source: str
    """The id of the store that it was made of."""
    store: str
    """Address of that store, without credentials."""
    made: str
    open_calls: int
    """Calls that were under way: their usage is not in the file."""
    deferred: int
    """Work that upstreams go on with after the call, such as batches: the same."""


async def write(path: Path, head: ExportHead, rows: AsyncIterator[StoreRow]) -> dict[str, Total]:
    """Write a file that only this user may read; it has its name when it is whole, and nothing of another process is
    written to or replaced. Raises `BadExport`, `OSError`."""
    is_there = BadExport(f"{path} is there already; name another file, or move it away")
    if os.path.lexists(path):  # noqa: ASYNC240 - a command, which does nothing else
        raise is_there
    part = path.with_name(f"{path.name}.part")
    found = dict.fromkeys(KINDS, Total())
    try:  # a link that another user has put there is not followed
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BadExport(f"{part} is there: another export is under way, or was broken off; remove it then") from None
    try:
        with os.fdopen(descriptor, "wb") as raw:
            with _text(raw, path) as file:
                file.write(_line({"format": FORMAT, "version": VERSION, **head._asdict()}))
                async for row in rows:
                    file.write(_line(row))
                    found[row.kind] = found[row.kind].with_row(row.numbers if row.kind in ADDED else ())
                file.write(_line({"totals": found}))
            raw.flush()
            os.fsync(raw.fileno())
        os.link(part, path)
    except FileExistsError:
        raise is_there from None
    finally:
        part.unlink(missing_ok=True)
    return found


def read_head(path: Path) -> ExportHead:
    """The first line of a file. Raises `BadExport`, `OSError`."""
    lines = _lines(path)
    try:
        first = next(lines, None)
    finally:
        lines.close()
    if not isinstance(first, dict) or first.get("format") != FORMAT:
        raise BadExport(f"{path} is no file of gateway export: its first line has no format {FORMAT}")
    if first.get("version") != VERSION:
        raise BadExport(
            f"{path} has version {first.get('version')} of the format, and this gateway reads {VERSION}: use the "
            "gateway that wrote it, or a newer one"
        )
    head: list[Any] = [first.get(name) for name in ExportHead._fields]
    if not all(isinstance(value, str) for value in head[:3]) or not all(type(value) is int for value in head[3:]):
        raise BadExport(f"{path} is no file of gateway export: its first line does not have what such a line has")
    return ExportHead(*head)


def read_rows(path: Path) -> Iterator[StoreRow]:
    """Each row of a file in its order. Raises `BadExport`, `OSError`."""
    for number, values in enumerate(_lines(path), 1):
        if isinstance(values, list):
            row = row_of(values)
            if row is None:
                raise BadExport(
                    f"{path}, line {number}: no row of a store; it was changed, or a newer gateway wrote it"
                )
            yield row


def checked_totals(path: Path) -> dict[str, Total]:
    """The totals of the rows, after a check against those that the last line has. Raises `BadExport`, `OSError`."""
    last: Any = None
    for values in _lines(path):
        last = values
    if not isinstance(last, dict) or "totals" not in last:
        raise BadExport(f"{path} has no last line with totals: the export was broken off; run it again")
    found = totals(read_rows(path))
    written = last["totals"]
    if {kind: list(each) for kind, each in found.items()} != written:
        raise BadExport(f"{path} does not have the rows that its last line counts: it was changed; export again")
    return found


def check_contents(path: Path) -> None:
    """Look at what each row has, before any of it is taken. Raises `BadExport`, `OSError`."""
    for row in read_rows(path):
        if not can_be_read(row):
            raise BadExport(
                f"{path}: the {row.kind} {' '.join(row.names)[:100]!r} cannot be read: the file was changed, or a "
                "newer gateway wrote it; nothing is taken"
            )


def _lines(path: Path) -> Generator[Any]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            while line := file.readline(MAX_LINE):
                number += 1
                if len(line) == MAX_LINE:
                    raise BadExport(f"{path}, line {number}: it is longer than any row")
                yield untrusted_json.parse(line)
    except (EOFError, zlib.error):
        raise BadExport(f"{path} ends within its line {number + 1}: the file was broken off; export again") from None
    except (ValueError, gzip.BadGzipFile):
        raise BadExport(f"{path}, line {number}: no file of gateway export, or broken off there") from None


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _text(raw: Any, path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(raw, "wt", encoding="utf-8", newline="\n")
    return open(raw.fileno(), "w", encoding="utf-8", newline="\n", closefd=False)

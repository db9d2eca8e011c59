"""The file of an export: read as it was written, and refused where it is not whole."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.wings.transfer import file
from gateway.wings.transfer.rows import StoreRow, Total, forgotten_at

HEAD = file.ExportHead("0" * 16, "embedded:/data", "2026-11-20T12:00:00+00:00", 1, 2)
ROWS = [
    StoreRow("secret", ("ab", "zoë")),
    StoreRow("document", ("key", "zoë"), (), '{"a":"\\n"}'),
    StoreRow("day", ("2026-11-20", "zoë", "", "m", "u", "chat"), (1, 0, 2**52, 4, 5, 6, 7, 8, 9)),
    StoreRow("rate", ("w",), (5, 6)),
]


async def written(path: Path) -> Path:
    async def rows() -> AsyncIterator[StoreRow]:
        for row in ROWS:
            yield row

    await file.write(path, HEAD, rows())
    return path


@pytest.mark.parametrize("put", ["a link", "a file", "a folder"])
async def test_nothing_that_is_there_is_written_to(put: str, tmp_path: Path) -> None:
    """Another user of a shared folder may have put it there, to read the export or to have a file overwritten."""
    path, part, foreign = tmp_path / "a.jsonl", tmp_path / "a.jsonl.part", tmp_path / "foreign"
    foreign.write_text("kept")
    make: dict[str, Callable[[], None]] = {
        "a link": lambda: part.symlink_to(foreign),
        "a file": lambda: part.touch(0o666),
        "a folder": part.mkdir,
    }
    make[put]()
    with pytest.raises(file.BadExport, match="remove it"):
        await written(path)
    assert foreign.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl.part", "foreign"]  # noqa: PTH208 - an async test


async def test_a_name_that_is_taken_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    async def rows() -> AsyncIterator[StoreRow]:
        path.write_text("of another process")
        for row in ROWS:
            yield row

    with pytest.raises(file.BadExport, match="there already"):
        await file.write(path, HEAD, rows())
    assert path.read_text() == "of another process"
    assert os.listdir(tmp_path) == ["a.jsonl"]  # noqa: PTH208 - an async test


async def test_an_export_that_fails_leaves_no_part(tmp_path: Path) -> None:
    async def rows() -> AsyncIterator[StoreRow]:
        yield ROWS[0]
        raise OSError("the store is away")

    with pytest.raises(OSError, match="away"):
        await file.write(tmp_path / "a.jsonl", HEAD, rows())
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - an async test


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
async def test_it_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    path = await written(tmp_path / name)
    assert file.read_head(path) == HEAD
    assert list(file.read_rows(path)) == ROWS
    totals = file.checked_totals(path)
    assert (totals["day"], totals["rate"], totals["bond"]) == (Total(1, 2**52 + 40), Total(1, 0), Total())
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208 - an async test
    with pytest.raises(file.BadExport, match="is there already"):
        await written(path)


def read(path: Path) -> None:
    file.read_head(path)
    file.checked_totals(path)


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def without_last_line(data: bytes) -> bytes:
    return data[: data.rstrip().rindex(b"\n") + 1]


def with_another_number(data: bytes) -> bytes:
    return data.replace(b",4,5,", b",4,6,")


def of_a_newer_gateway(data: bytes) -> bytes:
    return data.replace(b'"version":1', b'"version":2')


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cut, "broken off"),
        (without_last_line, "has no last line with totals: the export was broken off"),
        (with_another_number, "does not have the rows that its last line counts"),
        (of_a_newer_gateway, "has version 2 of the format, and this gateway reads 1"),
        (lambda data: b"models:\n", "no file of gateway export"),
        (lambda data: b"{}\n", "no file of gateway export"),
    ],
)
async def test_a_file_that_is_not_whole_is_refused_with_the_reason(
    name: str, change: Callable[[bytes], bytes], says: str, tmp_path: Path
) -> None:
    path = await written(tmp_path / name)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as opened:
        data = change(opened.read())
    with opener(path, "wb") as opened:
        opened.write(data)
    with pytest.raises(file.BadExport, match=says):
        read(path)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
async def test_a_compressed_file_that_ends_early_is_refused(keep: float, tmp_path: Path) -> None:
    path = await written(tmp_path / "a.jsonl.gz")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(file.BadExport, match="broken off"):
        read(path)


async def test_each_line_is_json(tmp_path: Path) -> None:
    path = await written(tmp_path / "a.jsonl")
    first, *rows, last = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["format"] == "gateway-export"
    assert rows[0] == ["secret", ["ab", "zoë"], [], ""]
    assert last["totals"]["document"] == [1, 0]


@pytest.mark.parametrize(
    ("period", "ended"),
    [
        ("2026-11-20", 1795219200),
        ("2026-11", 1796083200),
        ("2026-12", 1798761600),
        ("2026-W47", 1795392000),
        ("2026-W53", 1799020800),
    ],
)
def test_periods_are_forgotten_when_the_store_would(period: str, ended: int) -> None:
    assert forgotten_at(period, 400) == ended + 400 * 86_400
    assert forgotten_at("2026-11-20T23", 400) == 1795219200 + 14 * 86_400


@pytest.mark.parametrize(
    "row",
    [
        ["document", ["key", "x"], []], ["document", 5, [], ""], ["document", ["key"], [], ""], ["evil", ["x"], [], ""],
        [["document"], ["key", "x"], [], ""], ["document", ["key", 5], [], ""], ["document", ["key", "x"], [], None],
        ["window", ["2026-11", "w"], ["5"], ""], ["window", ["2026-11", "w"], [True], ""],
        ["window", ["2026-11", "w"], [1.5], ""], ["window", ["2026-11", "w"], [2**63], ""], ["window", ["w"], [1], ""],
        ["day", ["2026-11-01", "a", "", "m", "up", "chat"], [1], ""], ["bond", ["b"], [], "[]"],
    ],
    ids=str,
)  # fmt: skip
async def test_a_row_of_another_form_is_refused(row: object, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    head = {"format": file.FORMAT, "version": file.VERSION, **HEAD._asdict()}
    path.write_text("".join(json.dumps(each) + "\n" for each in (head, row, {"totals": {}})))
    with pytest.raises(file.BadExport, match="line 2: no row"):
        file.checked_totals(path)


@pytest.mark.parametrize(
    "row",
    [
        StoreRow("document", ("key", "x"), (), "garbage"), StoreRow("document", ("team", "x"), (), "[]"),
        StoreRow("document", ("overlay", "person:x"), (), "null"), StoreRow("document", ("scim", "User:x"), (), "{"),
        StoreRow("record", ("1", "r"), (), "{}"), StoreRow("refusal", ("1",), (), '["a", 1]'),
        StoreRow("bond", ("b",), (1,), "[]"), StoreRow("audit", ("1", "key", "x"), (), "[]"),
        StoreRow("rate", ("w",), (5, 6)), StoreRow("window", ("never", "w"), (5,)),
        StoreRow("latency", ("2026-99-99", "m", "up", "c"), (5,)),
        StoreRow("audit", ("1", "key", "x"), (), "[" * 9999),
    ],
    ids=lambda row: f"{row.kind} {row.text[:9]}",
)  # fmt: skip
async def test_what_could_not_be_read_again_is_refused(row: StoreRow, tmp_path: Path) -> None:
    """It would fail requests of the admin API for as long as the store has it."""

    async def rows() -> AsyncIterator[StoreRow]:
        yield row

    await file.write(tmp_path / "a.jsonl", HEAD, rows())
    file.checked_totals(tmp_path / "a.jsonl")
    with pytest.raises(file.BadExport, match="cannot be read"):
        file.check_contents(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("head", "totals"),
    [({"source": ["a"]}, {}), ({"open_calls": "1"}, {}), ({"made": None}, {}), ({}, [1]), ({}, {"evil": [1, 2]})],
    ids=str,
)
async def test_a_head_or_an_end_of_another_form_is_refused(
    head: dict[str, object], totals: object, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    first = {"format": file.FORMAT, "version": file.VERSION, **HEAD._asdict(), **head}
    path.write_text(json.dumps(first) + "\n" + json.dumps({"totals": totals}) + "\n")
    with pytest.raises(file.BadExport):
        file.read_head(path) and file.checked_totals(path)


async def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await written(tmp_path / "a.jsonl.gz")
    monkeypatch.setattr(file, "MAX_LINE", 10)
    with pytest.raises(file.BadExport, match="longer than any row"):
        file.read_head(path)

"""An entry as a line, and what is left of it when the line has suffered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.journal import JournalEntry
from gateway.journal.codec import LineFault, Position, decode, encode, read

ENTRIES = [
    JournalEntry(1, "open", "call-1", '["call-1",[1,2]]\t[true]'),
    JournalEntry(2, "open", "call-2", '["call-2","größer"]\t[]'),
    JournalEntry(3, "close", "call-1", "[]\t[]"),
    JournalEntry(40, "void", "call-2", ""),
]
LINES = [encode(*entry) for entry in ENTRIES]

texts = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))
words = st.text(st.characters(exclude_characters="\n ", exclude_categories=["Cs"]), min_size=1)


def read_all(folder: Path, content: bytes) -> list[JournalEntry | LineFault]:
    (folder / "file").write_bytes(content)
    return list(read(folder / "file", Position(), lambda: len(content)))


def test_a_line_can_be_read_by_people() -> None:
    assert LINES[0] == b'2f326a87 37 1 open call-1 ["call-1",[1,2]]\t[true]\n'


@given(st.integers(1, 2**60), st.sampled_from(["open", "close", "void"]), words, texts)
def test_what_is_written_is_read(number: int, kind: str, lease: str, text: str) -> None:
    entry = JournalEntry(number, kind, lease, text)  # type: ignore[arg-type]
    line = encode(*entry)
    assert list(decode(line)) == [entry]
    assert line.count(b"\n") == 1


@pytest.mark.parametrize(("lease", "text"), [("two words", ""), ("a\n", ""), ("a", "two\nlines")])
def test_what_is_no_line_is_refused(lease: str, text: str) -> None:
    with pytest.raises(ValueError, match="one word"):
        encode(1, "open", lease, text)


def test_a_file_cut_at_any_byte_holds_every_line_before(tmp_path: Path) -> None:
    content = b"".join(LINES)
    for cut in range(len(content) + 1):
        found = read_all(tmp_path, content[:cut])
        whole = sum(cut >= len(b"".join(LINES[: n + 1])) - 1 for n in range(len(LINES)))  # the last byte only ends it
        is_torn = cut not in [len(b"".join(LINES[:n])) - end for n in range(len(LINES) + 1) for end in (0, 1)]
        assert found == [*ENTRIES[:whole], *["torn"] * is_torn], content[:cut]


def test_a_flipped_bit_costs_no_entry_but_its_own(tmp_path: Path) -> None:
    content = b"".join(LINES)
    starts = [len(b"".join(LINES[:n])) for n in range(len(LINES) + 1)]
    for bit in range(len(content) * 8):
        byte = bit // 8
        suffered = bytearray(content)
        suffered[byte] ^= 1 << bit % 8
        found = read_all(tmp_path, bytes(suffered))
        hit = next(n for n in range(len(LINES)) if starts[n] <= byte < starts[n + 1])
        good = [entry for entry in found if isinstance(entry, JournalEntry)]
        assert good in (ENTRIES, [*ENTRIES[:hit], *ENTRIES[hit + 1 :]]), suffered
        if len(good) < len(ENTRIES):
            assert any(isinstance(each, str) for each in found)


def test_zeros_that_a_power_cut_has_left_are_no_entries(tmp_path: Path) -> None:
    assert read_all(tmp_path, LINES[0] + bytes(5000)) == [ENTRIES[0], "torn"]
    assert read_all(tmp_path, LINES[0] + bytes(5000) + b"\n" + LINES[2]) == [ENTRIES[0], "damaged", ENTRIES[2]]


@given(st.binary())
def test_anything_can_be_read(content: bytes) -> None:
    assert [entry for entry in decode(content) if entry is not None] == []


def test_an_unknown_kind_is_damage(tmp_path: Path) -> None:
    assert read_all(tmp_path, encode(1, "shut", "a", "")) == ["damaged"]  # type: ignore[arg-type]


def test_what_is_being_written_is_not_read_before_it_is_whole(tmp_path: Path) -> None:
    size = len(LINES[0])
    path = tmp_path / "file"
    path.write_bytes(LINES[0] + LINES[1][:9])
    place = Position()
    assert list(read(path, place, lambda: size)) == ENTRIES[:1]
    path.write_bytes(b"".join(LINES))
    size = len(b"".join(LINES))
    assert list(read(path, place, lambda: size)) == ENTRIES[1:]

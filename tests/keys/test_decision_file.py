"""The decision journal read by one process while another one writes a line, and used by several users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.keys import decision_file
from gateway.keys.decision_file import Decision, DecisionFile
from gateway.quota.issued import Overlay
from gateway.store import StoreChange


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    writer, reader = [DecisionFile.of(tmp_path, "redis://store") for _ in range(2)]
    writer.create()
    writer.refresh()
    reader.refresh()
    (path,) = [each for each in tmp_path.iterdir() if each.name.startswith("decisions-")]
    change = StoreChange("overlay", "key:alice", None, "{}", "")
    before = path.read_bytes()
    writer.append(Decision(1, change))
    line = path.read_bytes()[len(before) :]
    for cut in (1, 40, len(line) - 1):
        with path.open("r+b") as file:  # the same file, as a reader finds it in the middle of a write
            file.truncate(len(before))
            file.seek(len(before))
            file.write(line[:cut])
        reader.refresh()
        assert reader.decisions == []
    with path.open("ab") as file:
        file.write(line[-1:])
    reader.refresh()
    assert [(each.number, each.change) for each in reader.decisions] == [(1, change)]


def test_what_keeps_a_command_from_the_journal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DecisionFile.of(tmp_path / "journal", "redis://store")
    assert "is not there" in str(file.obstacle)
    file.create()
    assert file.obstacle is None
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert str(file.obstacle).startswith(f"{tmp_path}/journal/decisions-")
    assert "may not be written by this user" in str(file.obstacle)


def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.iterdir()}


async def test_what_root_makes_belongs_to_the_user_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_file, "MAX_CHANGES", 1)
    file = DecisionFile.of(tmp_path, "redis://store")
    file.create()
    given: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda file, *owner: given.update({os.fstat(file).st_ino: owner}))
    for number in range(1, 4):  # the third change makes the file anew
        async with file.locked():
            file.append(Decision(number, StoreChange("overlay", "key:alice", None, Overlay().encode(), "")))
    assert [each.number for each in file.decisions] == [3]
    found = inodes(tmp_path)
    assert len(found) == 2  # with its lock
    assert {inode: given.get(inode) for inode in found} == dict.fromkeys(found, (os.getuid(), os.getgid()))

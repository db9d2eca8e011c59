"""Folders that are unfit for a journal. Network file systems are tested in tests/test_mounts.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.journal import directory, problem_with


def test_an_ordinary_folder_is_fine_and_need_not_exist(tmp_path: Path) -> None:
    assert problem_with(tmp_path) is None
    assert problem_with(tmp_path / "not" / "yet") is None


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert problem_with(tmp_path / "file" / "journal") == f"{tmp_path}/file is not a folder"


def test_a_folder_that_may_not_be_written_is_named() -> None:
    """Not even root can create files in /proc."""
    assert problem_with(Path("/proc/1/journal")) == "/proc/1 cannot be written by this user"


def test_a_network_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "network_file_system", lambda path: "nfs4" if path == tmp_path else None)
    assert problem_with(tmp_path / "journal") == (
        f"{tmp_path}/journal is on a network file system (nfs4), where locks and writes cannot be relied upon"
    )

"""Folders of one process: gone when it is, and what a killed one left goes with the next."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gateway import files
from gateway.accounting.changed_windows import ChangedWindows
from gateway.config import build
from gateway.web import app
from tests.flows.gateway_process import settings

HOLDER = """
import signal, sys
from gateway import files
with files.temporary("ours-") as folder:
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_temporary_folder_is_gone_with_all_that_is_in_it(place: Path) -> None:
    with files.temporary("ours-") as folder:
        (folder / "file").write_text("x")
        assert folder.parent == place
    assert list(place.iterdir()) == []


@pytest.mark.rest
def test_what_a_killed_process_left_goes_and_what_a_living_one_holds_stays(place: Path) -> None:
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(place)})
        for _ in range(2)
    ]
    try:
        dead, living = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout is not None]
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait(60)
        (place / "ours-just-being-made").mkdir()
        (place / "another").mkdir()
        with files.temporary("ours-") as folder:
            left = {path.name for path in place.iterdir()}
        assert left == {living.name, folder.name, "ours-just-being-made", "another"}
        assert dead.name not in left
    finally:
        for holder in holders:
            holder.kill()
            holder.wait(60)
            if holder.stdout is not None:
                holder.stdout.close()


async def test_a_start_with_a_full_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails names no file itself."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = {"url": f"embedded:{tmp_path / 'data'}", "journal_dir": str(tmp_path / "journal")}
    config = build(settings("http://127.0.0.1:9/v1", store=store))
    monkeypatch.setattr("gateway.journal.directory.os.write", full)
    with pytest.raises(OSError, match="No space left") as raised:
        await app._open_ledger(config, ChangedWindows(), lambda record: None)
    assert raised.value.filename == str(tmp_path / "journal")

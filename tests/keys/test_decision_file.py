"""The decision journal read by one process while another one writes a line."""

from __future__ import annotations

from pathlib import Path

from gateway.keys.decision_file import Decision, DecisionFile
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

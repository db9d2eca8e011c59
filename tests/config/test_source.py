"""A configuration is read with every file that it references; a change of any of them is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError
from gateway.config.source import Source

TEXT = """
upstreams:
  up: {{base_url: "https://api.example.com/v1", api_key: "${{file:{key}}}", headers: {{X-Org: "${{ORG}}"}}}}
models:
  m: {{routes: [{{upstream: up}}], max_output_tokens: 100}}
server: {{port: 1}}
"""


class Desk:
    """A configuration file and a secret file."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"
        self.key.write_text("first-key\n")
        self.file = folder / "gateway.yaml"
        self.file.write_text(TEXT.format(key=self.key))

    def source(self, **overrides: object) -> Source:
        return Source(str(self.file), {"ORG": "ours"}, overrides)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_everything_is_read_at_once(desk: Desk) -> None:
    reading = desk.source(port=7, host=None).read()
    assert reading.config.server.port == reading.values["server"]["port"] == 7  # the command line overrides the file
    assert reading.config.server.host == "127.0.0.1"
    key = reading.config.upstreams["up"].api_key
    assert key is not None
    assert key.get_secret_value() == "first-key"
    assert reading.referenced == {("upstreams", "up", "api_key"), ("upstreams", "up", "headers", "X-Org")}


def test_a_change_is_seen_in_the_file_and_in_what_it_refers_to(desk: Desk) -> None:
    source = desk.source()
    source.read()
    assert source.look() == source.seen
    desk.key.write_text("second-key\n")
    assert source.look() != source.seen
    source.read()
    assert source.look() == source.seen
    desk.file.write_text(desk.file.read_text() + "# a remark\n")
    assert source.look() != source.seen
    source.read()
    desk.key.unlink()
    assert source.look() != source.seen
    desk.key.write_text("second-key\n")  # the old content: content is compared, not the file time
    assert source.look() == source.seen


def test_what_is_missing_is_awaited(desk: Desk) -> None:
    """A missing file is watched: creating it removes the fault."""
    desk.key.unlink()
    source = desk.source()
    with pytest.raises(ConfigError, match="cannot read"):
        source.read()
    assert source.look() == source.seen
    desk.key.write_text("a-key")
    assert source.look() != source.seen
    assert source.read().config.upstreams["up"].api_key


@pytest.mark.parametrize(("data", "says"), [(None, "no such file"), (b"\xff\xfe", "not UTF-8 text")])
def test_a_file_that_cannot_be_read_says_why(desk: Desk, data: bytes | None, says: str) -> None:
    source = desk.source()
    source.read()
    desk.file.unlink() if data is None else desk.file.write_bytes(data)
    with pytest.raises(ConfigError, match=f"cannot read the file: {says}"):
        source.read()
    assert source.look() == source.seen  # reported once
    desk.file.write_text(TEXT.format(key=desk.key))
    assert source.look() != source.seen


def test_a_file_named_like_no_file_can_be_is_a_fault(desk: Desk) -> None:
    desk.file.write_text(TEXT.format(key="a\\0b"))
    source = desk.source()
    with pytest.raises(ConfigError):
        source.read()
    assert source.look() == source.seen

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


class ConfigFiles:
    """A configuration file and a secret file."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"
        self.key.write_text("first-key\n")
        self.file = folder / "gateway.yaml"
        self.file.write_text(TEXT.format(key=self.key))

    def source(self, **overrides: object) -> Source:
        return Source(str(self.file), {"ORG": "ours"}, overrides)


@pytest.fixture
def config_files(tmp_path: Path) -> ConfigFiles:
    return ConfigFiles(tmp_path)


def test_everything_is_read_at_once(config_files: ConfigFiles) -> None:
    reading = config_files.source(port=7, host=None).read()
    assert reading.config.server.port == reading.values["server"]["port"] == 7  # the command line overrides the file
    assert reading.config.server.host == "127.0.0.1"
    key = reading.config.upstreams["up"].api_key
    assert key is not None
    assert key.get_secret_value() == "first-key"
    assert reading.referenced == {("upstreams", "up", "api_key"), ("upstreams", "up", "headers", "X-Org")}


def test_a_change_is_seen_in_the_file_and_in_what_it_refers_to(config_files: ConfigFiles) -> None:
    source = config_files.source()
    source.read()
    assert source.look() == source.seen
    config_files.key.write_text("second-key\n")
    assert source.look() != source.seen
    source.read()
    assert source.look() == source.seen
    config_files.file.write_text(config_files.file.read_text() + "# a remark\n")
    assert source.look() != source.seen
    source.read()
    config_files.key.unlink()
    assert source.look() != source.seen
    config_files.key.write_text("second-key\n")  # the old content: content is compared, not the file time
    assert source.look() == source.seen


def test_what_is_missing_is_awaited(config_files: ConfigFiles) -> None:
    """A missing file is watched: creating it removes the fault."""
    config_files.key.unlink()
    source = config_files.source()
    with pytest.raises(ConfigError, match="cannot read"):
        source.read()
    assert source.look() == source.seen
    config_files.key.write_text("a-key")
    assert source.look() != source.seen
    assert source.read().config.upstreams["up"].api_key


@pytest.mark.parametrize(("data", "says"), [(None, "no such file"), (b"\xff\xfe", "not UTF-8 text")])
def test_a_file_that_cannot_be_read_says_why(config_files: ConfigFiles, data: bytes | None, says: str) -> None:
    source = config_files.source()
    source.read()
    config_files.file.unlink() if data is None else config_files.file.write_bytes(data)
    with pytest.raises(ConfigError, match=f"cannot read the file: {says}"):
        source.read()
    assert source.look() == source.seen  # reported once
    config_files.file.write_text(TEXT.format(key=config_files.key))
    assert source.look() != source.seen


def test_a_file_named_like_no_file_can_be_is_a_fault(config_files: ConfigFiles) -> None:
    config_files.file.write_text(TEXT.format(key="a\\0b"))
    source = config_files.source()
    with pytest.raises(ConfigError):
        source.read()
    assert source.look() == source.seen

"""A configuration in several files: what it says together, and the file and line of each fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError
from gateway.config.include import read_place
from gateway.config.source import Reading, Source

MAIN = """\
include: {include}
upstreams:
  up: {{base_url: "https://api.example.com/v1"}}
models:
  m: {{routes: [{{upstream: up}}], max_output_tokens: 100}}
"""
KEY = "- {{id: {id}, secret: a-secret-of-28-characters-{id}}}\n"


class Folder:
    """Some files, and what they say."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **texts: str) -> None:
        for name, text in texts.items():
            file = self.path / f"{name.replace('__', '/')}.yaml"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)

    def source(self) -> Source:
        return Source(str(self.path / "main.yaml"), {})

    def read(self, **texts: str) -> Reading:
        self.write(**texts)
        return self.source().read()

    def faults(self, **texts: str) -> list[tuple[str, int, str]]:
        """File, line and text."""
        with pytest.raises(ConfigError) as caught:
            self.read(**texts)
        return [(str(Path(fault.file).relative_to(self.path)), fault.line, str(fault)) for fault in caught.value.faults]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def keys(*ids: str) -> str:
    return "keys:\n" + "".join(KEY.format(id=name) for name in ids)


def test_sections_are_put_together(folder: Folder) -> None:
    reading = folder.read(
        main=MAIN.format(include='[teams.yaml, "keys/*.yaml"]') + keys("own") + "server: {port: 1}\n",
        teams="teams: {red: {quotas: [5 requests/day]}}\nserver: {workers: 2}\nx-note: {a: 1}\n",
        keys__b=keys("bob"),
        keys__a=keys("alice", "ada"),
    )
    config, whole = reading.config, reading.whole
    assert [key.id for key in config.keys] == ["own", "alice", "ada", "bob"]
    assert list(config.teams) == ["red"]
    assert (config.server.port, config.server.workers) == (1, 2)
    assert whole is not None
    names = ["main.yaml", "teams.yaml", "keys/a.yaml", "keys/b.yaml"]
    assert list(whole.texts) == [str(folder.path / name) for name in names]
    assert "include" not in reading.values


def test_files_are_relative_to_the_one_that_names_them(folder: Folder) -> None:
    reading = folder.read(main=MAIN.format(include="deep/a.yaml"), deep__a="include: b.yaml\n", deep__b=keys("bob"))
    assert [key.id for key in reading.config.keys] == ["bob"]


def test_references_work_in_every_file(folder: Folder) -> None:
    (folder.path / "secret").write_text("a-secret-out-of-its-own-file\n")
    text = f"keys: [{{id: bob, secret: '${{file:{folder.path}/secret}}'}}]\n"
    reading = folder.read(main=MAIN.format(include="keys.yaml"), keys=text)
    assert ("keys", 0, "secret") in reading.referenced
    (place, _, said) = folder.faults(keys="\nkeys: [{id: bob, secret: '${MISSING}'}]\n")[0]
    assert (place, said) == ("keys.yaml", "keys[0].secret: the environment variable MISSING is not set")


MISTAKES: list[tuple[dict[str, str], list[tuple[str, int, str]]]] = [
    ({"a": keys("bob") + "- {id: eve}\n"}, [("a.yaml", 3, "keys[1]: expected exactly one of secret, sha256")]),
    ({"a": "teams:\n  red:\n    qoutas: []\n"}, [("a.yaml", 3, "teams.red.qoutas: there is no such setting; did you")]),
    ({"a": "models:\n  m: {}\n"}, [("a.yaml", 2, "models.m: is in ")]),
    ({"a": "teams: [red]\n", "main": "teams: {blue: {}}\n"}, [("a.yaml", 1, "teams: has another form than in ")]),
    ({"a": "a: [\n"}, [("a.yaml", 0, "not valid YAML at line 2")]),
    ({"a": "include: main.yaml\n"}, [("a.yaml", 1, "include[0]: includes ")]),
    ({"a": "include: gone.yaml\n"}, [("a.yaml", 1, "include[0]: cannot read ")]),
    ({"a": "include: 5\n"}, [("a.yaml", 1, "include: expected a list of files, such as [teams.yaml,")]),
    ({"a": "include: c.yaml\n", "main": "", "c": "include: a.yaml\n"}, [("c.yaml", 1, "include[0]: includes ")]),
    ({"main": "server: {port: 99999}\n", "a": ""}, [("main.yaml", 6, "server.port: expected less than or equal")]),
    ({"a": "server: {port: 1}\n", "main": "server: {port: 2}\n"}, [("a.yaml", 1, "server.port: is in ")]),
    (
        {"a": keys("bob"), "main": keys("bob").replace("bob}", "b2b}")},
        [("main.yaml", 7, "keys[0].id: 'bob' is the id of 2 keys"), ("a.yaml", 2, "keys[1].id: 'bob' is the id of 2")],
    ),
    ({"a": "upstreams: {up2: {base_url: x}}\n"}, [("a.yaml", 1, "upstreams.up2.base_url: expected an address")]),
]


@pytest.mark.parametrize(("texts", "expected"), MISTAKES)
def test_a_fault_has_its_file_and_line(
    folder: Folder, texts: dict[str, str], expected: list[tuple[str, int, str]]
) -> None:
    texts = {**texts, "main": MAIN.format(include="[a.yaml]") + texts.get("main", "")}
    if not texts["a"].strip():
        texts["a"] = "x-nothing: 1\n"
    found = folder.faults(**texts)
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert all(said.startswith(words) for (_, _, said), (_, _, words) in zip(found, expected, strict=True)), found


def test_a_file_counts_once(folder: Folder) -> None:
    texts = {"keys__a": keys("bob"), "b": "include: keys/a.yaml\n"}
    reading = folder.read(main=MAIN.format(include='[keys/a.yaml, "keys/*.yaml"]'), **texts)
    assert len(reading.config.keys) == 1
    ((file, line, said),) = folder.faults(main=MAIN.format(include="[keys/a.yaml, b.yaml]"))
    assert (file, line) == ("b.yaml", 1)
    assert "is included by" in said


def test_a_pattern_may_match_nothing(folder: Folder) -> None:
    whole = folder.read(main=MAIN.format(include='"keys/*.yaml"')).whole
    assert whole is not None
    assert whole.unmatched == [str(folder.path / "keys/*.yaml")]


def test_every_file_is_watched_and_new_ones_too(folder: Folder) -> None:
    folder.write(main=MAIN.format(include='"keys/*.yaml"'), keys__a=keys("alice"))
    source = folder.source()
    source.read()
    assert source.look() == source.seen
    for change in ({"keys__a": keys("ada")}, {"keys__b": keys("bob")}):
        folder.write(**change)
        assert source.look() != source.seen
        source.read()
        assert source.look() == source.seen
    (folder.path / "keys/a.yaml").unlink()
    assert source.look() != source.seen


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", ()),
        ("keys[0].limits.n", ("keys", 0, "limits", "n")),
        ('models."gpt-4.1".routes[1]', ("models", "gpt-4.1", "routes", 1)),
        ('models."*"', ("models", "*")),
    ],
)
def test_a_path_is_read_back(path: str, place: tuple[Any, ...]) -> None:
    assert read_place(path) == place

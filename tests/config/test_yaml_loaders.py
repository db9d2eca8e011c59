"""The faster of the two YAML loaders reads what the slower one reads, and is used for ordinary files."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.config import ConfigError, references
from tests.amounts import amount

ROOT = Path(__file__).parent.parent.parent

SIGNS = " \n\n  ::--,[]{}##&*|>'\"%@`~\\a1$.=<+0oé\ue000_yN/"
PIECES = (
    "---\n", "...\n", "%YAML 1.1\n", "- ", "key: ", "|\n  a\n", "|-\n a\n", "|2\n   x\n", ">\n  a\n\n b\n", "&a ", "*a",
    "<<: *a\n", "'it''s'", '"a\\\n b"', '"\\x41\\u00e9"', "{a: b, c}", "[a, b: c]", '{"a":1}', "[a: b]", " #c",
    "${A:-b}", "http://x:8/v", "0o7", "012", "1_000", "1:30", "yes", "null", "2026-01-01", ": ",
    "- - a\n", "- a: 1\n  b: 2\n",
)  # fmt: skip
UNLIKE = ("a:\tb", "a: !x b", "{a? b: c}", "|#", "a: b\u2028c: d", "\ufeffa: b", "a: b\x85c: d", "a: b\r\nc: d")
"""Texts with a sign that the two may read differently."""


def loaded(text: str, loader: type[yaml.SafeLoader | yaml.CSafeLoader]) -> str | None:
    """Its values; None: it is not valid."""
    try:
        return repr(yaml.load(text, loader))
    except (yaml.YAMLError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


def texts() -> list[str]:
    """Every configuration of the repository, and the examples of its pages."""
    folders = ("config", "examples", "deploy", "tests/config/bad")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.y*ml"))]
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    return [
        *[path.read_text(encoding="utf-8") for path in files],
        *[text for page in pages for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)],
    ]


def changed(found: list[str], number: int) -> Iterator[str]:
    """Pieces of these texts with a few signs changed, the same ones each time."""
    chance = random.Random(7)
    for _ in range(number):
        lines = chance.choice(found).splitlines(keepends=True) or [""]
        first = chance.randrange(len(lines))
        signs = list("".join(lines[first : first + chance.randrange(1, 9)]))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(signs) + 1)
            signs[at : at + chance.randrange(2)] = chance.choice(chance.choice((SIGNS, PIECES)))
        yield "".join(signs)


def differing(some: list[str]) -> list[str]:
    fast = [text for text in some if not references._READ_OTHERWISE.search(text)]
    assert len(fast) > len(some) / 2
    found = [(text, loaded(text, references._FastLoader)) for text in fast]
    return [text for text, values in found if values is not None and values != loaded(text, references._Loader)]


def test_both_loaders_read_the_same_in_ordinary_files() -> None:
    assert differing(texts()) == []


@pytest.mark.shortened
def test_both_loaders_read_the_same_in_changed_files() -> None:
    assert differing([*changed(texts(), amount(20_000, 1_000))]) == []


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the slower loader has read."""
    found: list[str] = []
    begin = yaml.reader.Reader.__init__

    def noted(self: yaml.reader.Reader, stream: str) -> None:
        found.append(stream)
        begin(self, stream)

    monkeypatch.setattr(yaml.reader.Reader, "__init__", noted)
    return found


def test_ordinary_files_need_the_faster_loader_alone(slow: list[str]) -> None:
    models = [f"  model-{n}: {{routes: [{{upstream: up}}], price: {{input: 0.15, output: 0.6}}}}" for n in range(50)]
    values = references.load("\n".join(["# names of models", "models:", *models, 'url: "http://x:8/${A:-b}"', ""]))
    assert len(values["models"]) == 50
    assert slow == []


@pytest.mark.parametrize("text", UNLIKE)
def test_texts_that_may_be_read_differently_are_for_the_slower_loader(slow: list[str], text: str) -> None:
    try:
        references.load(text)
    except ConfigError:
        pass
    assert slow == [text]


def test_a_fault_has_the_words_of_the_slower_loader(slow: list[str]) -> None:
    with pytest.raises(ConfigError, match="line 2, column 1: 'a' is given twice, the second time"):
        references.load("a: 1\na: 2\n")
    assert slow == ["a: 1\na: 2\n"]

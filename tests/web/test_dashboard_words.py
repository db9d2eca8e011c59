"""The words of the page: one glossary with the docs, and none that were found hard to understand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.web import dashboard

ROOT = Path(__file__).parents[2]
SCRIPTS = {file.name: file.read_text() for file in sorted(dashboard.FOLDER.glob("*.js"))}

KINDS = "fine|near|full|bad|mild|good"
PILLS = (
    re.compile(rf'\["([A-Za-z][A-Za-z, ]*)", "(?:{KINDS})"\]'),
    re.compile(rf'\["(?:{KINDS})", "([A-Za-z][A-Za-z, ]*)"\]'),
    re.compile(rf'class: "pill (?:{KINDS})" }}, "([^"]+)"'),
)
"""The places of a word in a pill: with its kind, in either order, or as text of the element."""

HARD = (
    "being tried again", "unfit answer", "refused here", "wholly free again", "none measured", "half within",
    "Most tokens of the answer", "the API\u2019s own", "Together", "costs what it costs", "Also called",
    "The key is made",
    "Kept in", "Took", '"only")', "} on the same days", "} on the period before",
)  # fmt: skip
"""Words that a reader whose first language is another one did not understand."""


def pills() -> set[str]:
    return {word for text in SCRIPTS.values() for pattern in PILLS for word in pattern.findall(text)}


def test_every_word_in_a_pill_is_in_the_glossary() -> None:
    table = (ROOT / "docs" / "glossary.md").read_text().partition("## Words of the dashboard")[2]
    explained = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    found = pills()
    assert {"serving", "spent", "refused by gateway", "within budget"} <= found
    assert sorted(found - explained) == []


@pytest.mark.parametrize("words", HARD)
def test_hard_words_are_gone(words: str) -> None:
    assert [name for name, text in SCRIPTS.items() if words in text] == []

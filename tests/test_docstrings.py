"""A docstring is a sentence with a subject and a verb, or it is deleted because name and type have it already.

No program finds the verb, so the two usual kinds of fragments are refused: a text of a few words, and one that begins
with a preposition ("Of a CSV.").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .test_floors import MODULES

LEAST_WORDS = 5

PREPOSITIONS = frozenset({
    "above", "after", "against", "as", "at", "before", "behind", "below", "beside", "between", "beyond", "by", "during",
    "for", "from", "in", "into", "of", "on", "over", "per", "since", "through", "to", "under", "until", "with",
    "within", "without",
})  # fmt: skip

CELLS = re.compile(r"gateway\.(config\.sections|wings\.\w+\.settings)\b")
"""Modules whose docstrings are cells of the table in docs/configuration.md, as tests/test_docs.py holds."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The line and text of each docstring: of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                    yield line, " ".join(text.split())


def fragments(source: str) -> list[str]:
    return [
        f"line {line}: {text}"
        for line, text in docstrings(source)
        if len(text.split()) < LEAST_WORDS or re.split(r"\W", text, maxsplit=1)[0].lower() in PREPOSITIONS
    ]


@pytest.mark.parametrize("module", [module for module in MODULES if not CELLS.match(module)])
def test_docstrings_are_sentences(module: str) -> None:
    """Remedies: write the subject and the verb, or delete the docstring."""
    assert fragments(MODULES[module]) == []


def test_the_rule_itself() -> None:
    source = '''
"""This module has a good docstring."""
A = 1
"""As `B`."""
def f() -> None:
    """Of an operator, who may see all of it."""
class C:
    """The whole is."""
    b: int
    """Seconds until it is checked again; 0 means now."""
'''
    assert fragments(source) == [
        "line 4: As `B`.", "line 6: Of an operator, who may see all of it.", "line 8: The whole is.",
    ]  # fmt: skip

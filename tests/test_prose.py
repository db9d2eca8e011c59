"""Plain technical English: comments and docstrings of `gateway/` and `tests/` avoid words of a private language.

The list has the worst ones: personified processes, and words with another meaning in the field.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from .test_floors import MODULES, ROOT, parsed

INSTEAD = {
    "told": "logged, returned, reported, shown",
    "tell": "log, return, report, show",
    "tells": "logs, returns, reports, shows",
    "nobody": "no process, no client, unknown",
    "somebody": "another process, a client",
    "everybody": "all clients, all workers",
    "whoever": "the caller, the process that ...",
    "spelt": "formatted, written",
    "spells": "formats, writes",
    "books": "ledger, records, sums",
    "bites": "portions",
    "shelf": "cache",
    "wish": "request",
    "wishes": "requests",
    "outlet": "client stream",
    "dies": "ends, is killed",
    "died": "ended, was killed",
    "nowhere": "unknown, absent",
    "left alone": "not used, cooldown, circuit open",
    "let go": "close, release",
    "stands still": "is blocked",
}
"""The words, each with what to write instead."""

WORDS = re.compile(rf"(?<!\.)\b({'|'.join(INSTEAD)})\b", re.IGNORECASE)

POSSIBLE = re.compile(r'#.*|"""[\s\S]*?"""')
"""Comments and docstrings, roughly: parsing each source would take half a minute."""

TESTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("tests", ".ci")
    for path in sorted((ROOT / folder).rglob("*.py"))
}

CODE = re.compile("`[^`]*`")
"""Names of code in a text; they are not prose."""


def texts(source: str) -> Iterator[str]:
    """Every comment and every docstring, those of attributes included."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def complaints(source: str) -> list[str]:
    """Each word with its sentence."""
    if not any(WORDS.search(" ".join(text.split())) for text in POSSIBLE.findall(source)):
        return []
    plain = [" ".join(CODE.sub("", text).split()) for text in texts(source)]
    return [f"{word[0]!r}: {text}" for text in plain for word in WORDS.finditer(text)]


def test_comments_and_docstrings_are_plain_technical_english() -> None:
    found = [
        f"{module}: {complaint}" for module, source in {**MODULES, **TESTS}.items() for complaint in complaints(source)
    ]
    assert not found, "\n".join([*found, f"write instead: {INSTEAD}"])


def test_the_rule_itself() -> None:
    source = '"""Whoever dies."""\nx = "nobody"  # let go\n"""`told`: told to a shelf."""\n'
    assert [line.partition(":")[0] for line in complaints(source)] == [
        "'let go'",
        "'Whoever'",
        "'dies'",
        "'told'",
        "'shelf'",
    ]
    assert complaints('"""The worker ends: clients.told."""') == []

"""The examples in the README, on the pages of docs, and in the papers beside deploy/ and examples/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent

PAPERS = ("README.md", "PACKAGE.md", "CONTRIBUTING.md", "deploy/README.md", "examples/README.md")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]+)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    """One fenced block with a language."""

    page: str
    """Its path below the project's folder."""
    line: int
    """Of its fence, from 1."""
    language: str
    text: str
    """Without the indentation of the fence."""

    def __repr__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The command lines of a `console` or `sh` block, continued lines joined; output is left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip()]


def snippets(*languages: str) -> list[Snippet]:
    """Every block in one of these languages, in the order of the pages."""
    found = []
    for path in [*(ROOT / name for name in PAPERS), *sorted((ROOT / "docs").rglob("*.md"))]:
        whole = path.read_text()
        for block in _FENCE.finditer(whole):
            if block["language"] in languages:
                line = whole.count("\n", 0, block.start()) + 1
                text = re.sub(rf"^{block['indent']}", "", block["text"], flags=re.MULTILINE)
                found.append(Snippet(str(path.relative_to(ROOT)), line, block["language"], text))
    return found


def only_snippet(page: str, language: str) -> str:
    """The text of a page's only block in this language."""
    (found,) = [each.text for each in snippets(language) if each.page == page]
    return found

"""MkDocs hooks: links that leave docs/ become plain text in the site, and the changelog is read from the top level.

In the repository a page may link to code (`../gateway/...`). The site holds the pages alone, so such a link keeps
its text and loses its target. tests/test_docs.py checks that every target exists.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of one page as the site shows it."""
    if page.file.src_uri == "changelog.md":
        markdown = Path("CHANGELOG.md").read_text(encoding="utf-8")
    return _OUTSIDE.sub(r"\1", markdown)

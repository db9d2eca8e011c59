"""MkDocs hooks: links that leave docs/ become plain text in the site, and the changelog is read from the top level.

In the repository a page may link to code (`../gateway/...`). The site holds the pages alone, so such a link keeps
its text and loses its target. tests/test_docs.py checks that every target exists.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK_UP = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)[^)]+\)")

_LINK_BELOW = re.compile(r"\]\((?!https?://|#)(docs/)?")


def _seen_from_docs(markdown: str) -> str:
    """The links of a page of the top level, as a page of docs/ has them."""
    return _LINK_BELOW.sub(lambda link: "](" if link[1] else "](../", markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of one page as the site shows it."""
    if page.file.src_uri == "changelog.md":
        markdown = _seen_from_docs(Path("CHANGELOG.md").read_text(encoding="utf-8"))
    depth = page.file.src_uri.count("/")

    def keep_inside(link: re.Match[str]) -> str:
        return link[1] if link[2].count("../") > depth else link[0]

    return _LINK_UP.sub(keep_inside, markdown)

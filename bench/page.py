"""Measured tables inside a page that people write: between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, name: str, text: str) -> None:
    """Put a table in the place of the one that is there. Raises `SystemExit` where the page has no place for it."""
    before, begin, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not (begin and end):
        raise SystemExit(f"{page} has no place for {name}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}")

"""Pages of the log API of one-api and new-api (`GET /api/log/self`), as JSON: their entries as rows of text.

A file holds one page or several, one after the other or in an array: what `curl` appended. one-api puts the entries of
a page into `data`, new-api into `data.items`, beside the `total` of the query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Entry = dict[str, Any]


def is_json(start: str) -> bool:
    """Whether a file that begins like this holds JSON and no CSV."""
    return start.lstrip().startswith(("{", "["))


def entries_of(text: str) -> list[Entry]:
    """The entries of all pages. Raises `ValueError` with the reason."""
    entries: list[Entry] = []
    total = 0
    for page in _pages(text):
        found, of = _entries_of_page(page)
        entries += found
        total = max(total, of)
    if total > len(entries):
        raise ValueError(f"holds {len(entries):,} of {total:,} entries; append the other pages of the log")
    return entries


def text_of(value: Any) -> str:
    """A member of an entry as the cell of a CSV file would have it."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else ""


def _pages(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            page, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise ValueError("is no log: its JSON is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"line {error.lineno}: is no JSON: {error.msg}") from None
        if isinstance(page, list) and not any(map(_is_entry, page)):
            yield from page
        else:
            yield page


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and "data" not in value and "success" not in value


def _entries_of_page(page: Any) -> tuple[list[Entry], int]:
    """The entries of a page, and the total of the query; 0: the page does not have it."""
    if isinstance(page, dict) and page.get("success") is False:
        raise ValueError(f"is an error of the log API: {str(page.get('message'))[:200]!r}")
    data = page.get("data") if isinstance(page, dict) else page
    items = data.get("items") if isinstance(data, dict) else data
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("is JSON, but no page of a log: expected entries in `data` or in `data.items`")
    total = data.get("total") if isinstance(data, dict) else 0
    return items, total if isinstance(total, int) else 0

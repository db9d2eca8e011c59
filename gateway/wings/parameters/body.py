"""A body with some members changed and others taken out; every other byte stays the client's own. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from gateway.api import json_document, large_body
from gateway.records import Document

Piece = bytes | bytearray | memoryview

_BETWEEN = b" \t\r\n,"


def rewritten(document: Document, values: Mapping[str, Any], removed: Collection[str]) -> list[Piece]:
    """The object with these members set, new ones first, and without the removed ones."""
    head, members, tail = _parted(document)
    written = {name: json.dumps(value, separators=(",", ":")).encode() for name, value in values.items()}
    found: list[list[Piece]] = [
        [f"{json.dumps(name)}:".encode(), text] for name, text in written.items() if name not in document.members
    ]
    for name, lead, value in members:
        if name not in removed:
            found.append([lead.lstrip(_BETWEEN), *([written[name]] if name in written else value)])
    pieces: list[Piece] = [*head]
    for number, each in enumerate(found):
        pieces += each if number == 0 else [b",", *each]
    return [each for each in (*pieces, *tail) if len(each)]


def _parted(document: Document) -> tuple[Sequence[Piece], list[tuple[str, bytes, Sequence[Piece]]], Sequence[Piece]]:
    """The body up to its first member; each member with what precedes its value, and its value; and the rest."""
    large, text = document.large, document.text
    places = json_document.spans(document) if large is None else large.places
    ordered = sorted(places.items(), key=lambda each: each[1])
    opening = text.index("{") + 1 if large is None else large.opening
    ends = [0, opening, *[at for _, place in ordered for at in place]]
    if large is None:
        cut: Sequence[Sequence[Piece]] = [[text[start:end].encode()] for start, end in pairwise((*ends, len(text)))]
    else:
        size = sum(map(len, large.pieces))
        cut = large_body.cut(large.pieces, [end - start for start, end in pairwise((*ends, size))])
    head, *between, tail = cut
    leads = [b"".join(lead) for lead in between[::2]]
    members = zip(ordered, leads, between[1::2], strict=True)
    return head, [(name, lead, value) for (name, _), lead, value in members], tail

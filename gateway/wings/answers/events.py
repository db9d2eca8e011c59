"""The deploys and reloads of the last weeks: from notes of the version and the configuration that workers began to use.
Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gateway.config import Config
from gateway.reports.table import utc

PLACE = "events"
"""The place of the notes in the store."""
KEPT_S = 35 * 86_400.0
MOST = 500
"""No further note is kept beyond this number."""


class Note(NamedTuple):
    """The version and configuration that a worker used from a Unix time on."""

    time: float
    version: str
    config: str
    """A digest of the configuration, without its secrets."""


def digest_of(config: Config) -> str:
    """The digest of a configuration; it is meant to run in a thread."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]


def written(note: Note) -> str:
    return json.dumps(note)


def notes_in(posts: Iterable[str]) -> list[Note]:
    """The notes in order of time, each where version or configuration is another one than before."""
    found = list[Note]()
    for text in posts:
        try:
            time, version, config = json.loads(text)
            found.append(Note(float(time), str(version), str(config)))
        except (ValueError, TypeError):  # the empty post of a reader, or that of another version
            continue
    changes = list[Note]()
    for note in sorted(found):
        if not changes or changes[-1][1:] != note[1:]:
            changes.append(note)
    return changes


def is_kept(note: Note, notes: Sequence[Note]) -> bool:
    """Whether a note is one of something else than the newest of these."""
    return not notes or (notes[-1][1:] != note[1:] and len(notes) < MOST)


def rows_of(notes: Sequence[Note]) -> list[dict[str, Any]]:
    """The rows of the answer; before the first note nothing is known, so it is no event."""
    return [
        {
            "time": utc(note.time),
            "kind": "reload" if note.version == before.version else "deploy",
            "version": note.version,
        }
        for before, note in pairwise(notes)
    ]

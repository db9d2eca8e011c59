"""The choice of the calls that are kept, and its description for the owner of a key. Pure."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import Any

from gateway.records import Endpoint

from .settings import ContentSettings

READ: frozenset[Endpoint] = frozenset({
    "completions", "chat", "messages", "responses", "generate_content", "embeddings", "moderations", "rerank",
})  # fmt: skip
"""The endpoints whose calls are kept. The others count tokens, repeat content of these, or carry sound, pictures and
files."""


def share_of(settings: ContentSettings, key: str, team: str | None, model: str) -> float:
    """The share of such calls that is kept; 0: none."""
    if not settings.places or is_never(settings, key):
        return 0.0
    return max([each.share for each in settings.keep if each.has(key, team) and each.has_model(model)], default=0.0)


def is_kept(call_id: str, share: float) -> bool:
    """Whether this call belongs to the share: the same everywhere, and of a higher share, too."""
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8])
    return number < share * 2**64


def is_never(settings: ContentSettings, key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in settings.never)


def of_key(settings: ContentSettings, key: str, team: str | None) -> dict[str, Any] | None:
    """The calls of a key that are kept, and where; None: none is."""
    if not settings.places or is_never(settings, key):
        return None
    kept = [each for each in settings.keep if each.has(key, team)]
    if not kept:
        return None
    calls = [{"models": None if each.models is None else [*each.models], "share": each.share} for each in kept]
    return {"key": key, "to": [*settings.places], "calls": calls}

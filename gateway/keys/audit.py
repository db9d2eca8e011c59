"""The audit log: the author and content of each change."""

from __future__ import annotations

import json

from gateway.errors import InvalidRequest
from gateway.store import DocumentKind

from .documents import Documents, Page


class AuditLog(Documents):
    """Reads the audit log."""

    async def audit(self, limit: int = 100, before: str | None = None) -> Page:
        """The newest changes: `id`, `time`, `actor`, `action`, `kind`, `name`, `before`, `after`."""
        try:
            entries = await self._store.audit(limit + 1, before)
        except ValueError:
            raise InvalidRequest("Expected the id of an entry.", param="before") from None
        rows = [
            {"id": entry.position, **_owner(entry.kind, entry.name), **json.loads(entry.audit)} for entry in entries
        ]
        return Page.of(rows, limit, "id")


def _owner(kind: DocumentKind, name: str) -> dict[str, str]:
    """An overlay is logged under its key or team."""
    if kind != "overlay":
        return {"kind": kind, "name": name}
    of, _, owner = name.partition(":")
    return {"kind": of, "name": owner}

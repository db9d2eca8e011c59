"""Files that the simulated upstream keeps (/v1/files). All belong to its one account."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from aiohttp import BodyPartReader, web

from gateway.simulator.requests import APIError

MAX_BYTES = 209_715_200
"""Of one file: as much as OpenAI takes for a batch."""


@dataclass(slots=True)
class KeptFile:
    """One file."""

    name: str
    purpose: str
    content: bytes
    kept_s: int | None = None
    id: str = field(default_factory=lambda: f"file-{uuid4().hex}")
    made: int = field(default_factory=lambda: int(time.time()))

    def as_json(self) -> dict[str, Any]:
        """The file object."""
        return {
            "id": self.id, "object": "file", "bytes": len(self.content), "created_at": self.made,
            "filename": self.name, "purpose": self.purpose, "status": "processed",
            "expires_at": None if self.kept_s is None else self.made + self.kept_s,
        }  # fmt: skip


class FileStore:
    """The files by their ids, the newest last."""

    def __init__(self) -> None:
        self._files: dict[str, KeptFile] = {}

    def __repr__(self) -> str:
        return f"<FileStore: {len(self._files)} files>"

    def add(self, name: str, purpose: str, content: bytes, kept_s: int | None = None) -> KeptFile:
        """Keep a file."""
        made = KeptFile(name, purpose, content, kept_s)
        self._files[made.id] = made
        return made

    def find(self, name: str) -> KeptFile:
        """The file of this id. Raises `APIError`."""
        if (found := self._files.get(name)) is None:
            raise APIError(404, f"No such File object: {name}", param="id")
        return found

    def remove(self, name: str) -> dict[str, Any]:
        """Delete a file; the answer. Raises `APIError`."""
        self.find(name)
        del self._files[name]
        return {"id": name, "object": "file", "deleted": True}

    def as_json(self) -> dict[str, Any]:
        """The list of all files, the newest first."""
        return {
            "object": "list",
            "data": [each.as_json() for each in reversed(self._files.values())],
            "has_more": False,
        }


async def read(request: web.Request, store: FileStore) -> KeptFile:
    """Keep the file of a form. Raises `APIError`."""
    fields: dict[str, str] = {}
    name, content = None, b""
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            raise APIError(400, "A part of the form cannot be read.")
        if part.filename is None:
            fields[part.name or ""] = await part.text()
            continue
        name, pieces = part.filename, []
        while piece := await part.read_chunk(65_536):
            pieces.append(bytes(piece))
        content = b"".join(pieces)
    if name is None or "purpose" not in fields:
        raise APIError(400, "'file' and 'purpose' are required.", param="file")
    if len(content) > MAX_BYTES:
        raise APIError(413, f"The file is longer than {MAX_BYTES} bytes.")
    seconds = fields.get("expires_after[seconds]")
    return store.add(name, fields["purpose"], content, int(seconds) if seconds is not None else None)

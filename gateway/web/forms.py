"""Multipart forms: read while they arrive, and stored for as long as their call lasts.

A short form is held in memory. A longer one is written to a temporary file without a name, which the kernel deletes
when it is closed or when the process ends in any way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading

from aiohttp import hdrs, web

from gateway.api import form, multipart
from gateway.api.multipart import FormPart
from gateway.api.prompt_tokens import FindsCounter
from gateway.config import UploadSettings
from gateway.errors import BodyTimeout, BodyTooLarge, InvalidRequest, Unavailable
from gateway.formats.format import Format
from gateway.records import Params, StoredBytes

from .bodies import send_continue
from .capacity import Capacity, buffers_full
from .middleware import RequestContext

log = logging.getLogger("gateway")

WRITE_BYTES = 262_144
"""Bytes per write to a file, by a thread."""


class StoredForm:
    """The bytes of one form, counted for this key. To be closed."""

    def __init__(self, settings: UploadSettings, capacity: Capacity, key: str) -> None:
        self.size = 0
        self._settings = settings
        self._capacity = capacity
        self._key = key
        self._memory = bytearray()
        """The bytes that are not in the file; all, if there is no file."""
        self._file: int | None = None
        self._written = 0
        self._held = 0
        self._lock = threading.Lock()
        """Guards the file: it must not be closed while a thread writes."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<StoredForm of {self.size} bytes, {'in memory' if self._file is None else 'in a file'}>"

    async def add(self, data: bytes) -> None:
        """Append these bytes. Raises `Unavailable` if the disk or the buffer is full."""
        self.size += len(data)
        self._memory += data
        if self._file is None and self.size <= self._settings.memory_bytes:
            self._hold(len(data))
        elif self._file is None or len(self._memory) >= WRITE_BYTES:
            await self._write_memory()

    async def end(self) -> None:
        """Call after the last bytes of the form."""
        if self._file is not None and self._memory:
            await self._write_memory()

    def read(self, start: int, size: int) -> bytes:
        """This many bytes from this position. Only after `end`."""
        if self._file is None:
            return bytes(memoryview(self._memory)[start : start + size])
        return os.pread(self._file, size, start)

    def close(self) -> None:
        """Deletes the stored bytes and releases the room that they held."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None
        self._capacity.disk.release(self._written, self._key)
        self._capacity.memory.release(self._held, self._key)
        self._memory, self._written, self._held = bytearray(), 0, 0

    def _hold(self, size: int) -> None:
        if not self._capacity.memory.hold(size, self._key):
            raise buffers_full()
        self._held += size

    async def _write_memory(self) -> None:
        data, self._memory = self._memory, bytearray()
        if not self._capacity.disk.hold(len(data), self._key):
            raise Unavailable("The gateway stores too many uploads right now. Please try again.", code="uploads_full")
        self._written += len(data)
        self._capacity.memory.release(self._held, self._key)
        self._held = 0
        try:
            await asyncio.to_thread(self._write, data)
        except OSError as error:
            log.error("uploads: cannot write to %s: %s", self._folder, error.strerror or error)
            raise Unavailable("The gateway cannot store uploads right now.", code="uploads_full") from None

    @property
    def _folder(self) -> str:
        return self._settings.folder or tempfile.gettempdir()

    def _write(self, data: bytearray) -> None:
        with self._lock:
            if self._is_closed:
                return
            if self._file is None:
                with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                    self._file = os.dup(file.fileno())
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]


class FormReader:
    """Reads and stores forms; their bytes count for a request context."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity

    async def read(
        self,
        request: web.BaseRequest,
        context: RequestContext,
        spec: Format,
        boundary: str,
        find_counter: FindsCounter,
        model: str | None = None,
    ) -> Params:
        """The checked parameters of a form; `model` is that of the path, which the form need not name. Raises as
        `store`."""
        stored: StoredBytes
        stored, parts = await self.store(request, context, boundary)
        if model is not None and all(part.name != "model" for part in parts):
            stored = form.WithField(stored, boundary, "model", model)
            parts = stored.moved(parts)
        assert spec.read_form is not None
        return spec.read_form(stored, parts, find_counter)

    async def store(
        self, request: web.BaseRequest, context: RequestContext, boundary: str
    ) -> tuple[StoredForm, list[FormPart]]:
        """A form, stored in the name of the context, and its parts. Raises `GatewayError`, and aiohttp's errors for a
        body that is not framed as HTTP."""
        settings = context.parts.config.uploads
        announced = request.content_length
        if announced is not None and announced > settings.max_bytes:
            raise _too_large(settings, f" ({announced} bytes announced)")
        if hdrs.EXPECT in request.headers and not request.content.is_eof():
            send_continue(request)
        stored = context.form = StoredForm(settings, self._capacity, context.key)
        parser = multipart.FormParser(boundary, settings.max_file_bytes)
        try:
            with self._capacity.wait_for_body(context.key, has_place=context.has_place):
                async with asyncio.timeout(settings.timeout_s):
                    while piece := await request.content.readany():
                        if stored.size + len(piece) > settings.max_bytes:
                            raise _too_large(settings)
                        parser.feed(piece)
                        await stored.add(piece)
                    await stored.end()
        except TimeoutError:
            raise BodyTimeout(f"The form did not arrive within {settings.timeout_s:g} seconds.") from None
        return stored, parser.parts()


def _too_large(settings: UploadSettings, detail: str = "") -> BodyTooLarge:
    return BodyTooLarge(f"Maximum content size limit ({settings.max_bytes}) exceeded{detail}")


def boundary_of(request: web.BaseRequest) -> str:
    given = request.headers.getall(hdrs.CONTENT_TYPE)
    if len(given) > 1:
        raise InvalidRequest("The request has several Content-Type headers. Send one.", code="invalid_form")
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise InvalidRequest(
            "Unsupported Content-Encoding. Send forms without compression.", code="unsupported_content_encoding"
        )
    return multipart.boundary_of(given[0])

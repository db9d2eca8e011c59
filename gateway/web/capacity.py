"""The capacity of one worker: its share of the whole gateway's concurrent calls and buffered bytes.

Requests beyond it are refused at once, not queued. Private to a worker; unused capacity is not shared with other
workers.
"""

from __future__ import annotations

from gateway.config import ServerSettings, UploadSettings
from gateway.errors import Unavailable


class Capacity:
    """How many calls may be under way; the bytes of request bodies and of answers that are not streamed; and the bytes
    of forms in temporary files."""

    def __init__(self, server: ServerSettings, uploads: UploadSettings) -> None:
        self._bytes = 0
        self._stored_bytes = 0
        self.resize(server, uploads)

    def resize(self, server: ServerSettings, uploads: UploadSettings) -> None:
        """Replace the limits. Held bytes stay counted."""
        self._max_stored_bytes = max(uploads.max_stored_bytes // server.workers, uploads.max_bytes)
        self.max_calls = server.max_in_flight // server.workers
        # A request that is allowed has to be possible, however small the share.
        self._max_bytes = max(server.max_buffered_bytes // server.workers, server.max_request_bytes)

    def __repr__(self) -> str:
        return f"<Capacity at most {self.max_calls} calls, {self._bytes} of {self._max_bytes} bytes>"

    def refuse_when_full(self, calls: int) -> None:
        """Raises `Unavailable` if the calls under way are as many as the limit."""
        if calls >= self.max_calls:
            raise Unavailable("The gateway has too many calls under way. Please try again.", code="too_many_calls")

    def hold(self, size: int) -> bool:
        """Hold these bytes if there is room, and return whether there was; `release` gives them back."""
        if self._bytes + size > self._max_bytes:
            return False
        self._bytes += size
        return True

    def hold_unchecked(self, size: int) -> None:
        """For an answer: it is paid for, and so not sent away. Requests are, until there is room again."""
        self._bytes += size

    def release(self, size: int) -> None:
        self._bytes -= size

    def store(self, size: int) -> bool:
        """The same for bytes in temporary files; `remove` gives them back."""
        if self._stored_bytes + size > self._max_stored_bytes:
            return False
        self._stored_bytes += size
        return True

    def remove(self, size: int) -> None:
        """These bytes of temporary files are deleted."""
        self._stored_bytes -= size

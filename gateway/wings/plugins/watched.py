"""The client's side of an attempt whose stream plug-ins see: it hands them each event before the client gets it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.formats import sse
from gateway.relay.client_stream import ClientStream, Headers, InterruptibleWriter, StreamWriter

from .faults import PluginFailed

Seen = Callable[[bytes], bytes]
"""Shows bytes for the client, and returns those that it gets."""


class EventCutter:
    """Cuts the bytes for the client into events, and shows those with data. An answer that is no stream of events is
    shown as it comes."""

    def __init__(self, show: Callable[[bytes], None], *, is_binary: bool) -> None:
        self._show = show
        self._splitter = None if is_binary else sse.EventSplitter()

    def feed(self, data: bytes) -> tuple[bytes, PluginFailed | None]:
        """Shows the next bytes; returns those that the client gets, and the fault. The event with a fault is withheld,
        unless a part of it has gone to the client."""
        splitter = self._splitter
        is_between = splitter is None or not (splitter.held or splitter.is_inside_long)
        shown = 0
        for piece, is_whole in [(data, True)] if splitter is None else splitter.split(data):
            try:
                if not is_whole or splitter is None or sse.data_of(piece):
                    self._show(piece)
            except PluginFailed as error:
                return (data[:shown] if is_between and is_whole else data), error
            shown += len(piece)
        return data, None


class WatchedStream(ClientStream):
    """Replaces the client's side `inner` in an attempt. `seen` gets all bytes of the attempt for it."""

    def __init__(self, inner: ClientStream, seen: Seen) -> None:
        self._inner = inner
        self._seen = seen
        self._watched: WatchedWriter | None = None
        # Not the base's own __init__, which would write its beginnings into `inner`.
        self.hold, self.loop = inner.hold, inner.loop
        self.reads_plain, self.position = inner.reads_plain, inner.position

    def _watch(self, writer: StreamWriter) -> StreamWriter:
        if self._watched is None or self._watched.inner is not writer:
            self._watched = WatchedWriter(writer, self._seen)
        return self._watched

    @property
    def writer(self) -> StreamWriter | None:
        writer = self._inner.writer
        return None if writer is None else self._watch(writer)

    @writer.setter
    def writer(self, writer: StreamWriter | None) -> None:
        pass

    @property
    def speaker(self) -> InterruptibleWriter | None:
        return self._inner.speaker

    @speaker.setter
    def speaker(self, speaker: InterruptibleWriter | None) -> None:
        self._inner.speaker = speaker

    @property
    def spoke_at(self) -> float:
        return self._inner.spoke_at

    @spoke_at.setter
    def spoke_at(self, at: float) -> None:
        self._inner.spoke_at = at

    def open(self, headers: Headers) -> StreamWriter:
        writer = self._inner.open(headers)
        return self._watch(writer) if self._inner.writer is writer else writer  # another route serves the client


class WatchedWriter:
    """Writes to `inner`, after plug-ins have seen it."""

    def __init__(self, inner: StreamWriter, seen: Seen) -> None:
        self.inner = inner
        self._seen = seen

    @property
    def is_congested(self) -> bool:
        return self.inner.is_congested

    def write(self, data: bytes) -> bool:
        passed = self._seen(data)
        return self.inner.write(passed) if passed else self.inner.is_congested

    def write_last(self, data: bytes) -> None:
        self.inner.write_last(data)

    async def wait_until_writable(self) -> None:
        await self.inner.wait_until_writable()

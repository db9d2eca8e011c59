"""The content of one call while it is carried: its request, and the bytes of its answers as they come."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from gateway.accounting.call_log import CallLog
from gateway.formats import sse
from gateway.observe import span_attributes
from gateway.observe.tracing import HEDGED, PassingTrace, Trace
from gateway.records import Call, Record
from gateway.relay.attempt import Attempt

from .digest import KeptBody, KeptCall
from .keeper import Keeper

log = logging.getLogger("gateway")


class _Answer:
    """The bytes of one attempt's answer, as its upstream sends them."""

    def __init__(self, calls: Collecting, draft: Attempt) -> None:
        self._call = calls
        self._endpoint = draft.format.name
        self._data = bytearray()
        self._is_cut = False

    def take(self, data: bytes) -> None:
        """Keep the next bytes, as far as there is room."""
        kept = data[: self._call.most - len(self._data)]
        self._is_cut = self._is_cut or len(kept) < len(data)
        if self._call.hold(len(kept)):
            self._data += kept

    def forget(self) -> None:
        """Release the bytes, which are not exported."""
        self._call.release(len(self._data))
        self._data.clear()

    def body(self) -> KeptBody:
        data = bytes(self._data)
        return KeptBody(self._endpoint, data, bool(sse.begins_stream(data)), self._is_cut)


class Collecting:
    """The kept content of one call. Its bytes are held by the keeper until it is exported, or dropped."""

    def __init__(self, call: Call, keeper: Keeper, most: int) -> None:
        self.most = most
        self._call = call
        self._keeper = keeper
        self._has_room = True
        self._held = 0
        self._answers: dict[CallLog, _Answer] = {}
        """That of the last attempt of each part of the call, or of the call."""
        self._request = _request(call, most)
        self.hold(len(self._request.data))

    def hold(self, size: int) -> bool:
        """Whether there is room for `size` bytes more. Without, nothing of the call is kept."""
        if self._has_room and not self._keeper.hold(size, self._call.key.id):
            self._drop()
        elif self._has_room:
            self._held += size
        return self._has_room

    def release(self, size: int) -> None:
        self._held -= size
        self._keeper.release(size, self._call.key.id)

    def attempted(self, draft: Attempt) -> Attempt:
        """An attempt begins: its answer takes the place of the last one's."""
        if (before := self._answers.pop(draft.log, None)) is not None:
            before.forget()
        answer = self._answers[draft.log] = _Answer(self, draft)
        return draft._replace(readers=(*draft.readers, answer.take))

    def ended(self, record: Record, error: str | None, trace: str | None) -> None:
        """The call has ended, with an answer or without."""
        if not self._has_room:
            return
        bodies = []
        for part, answer in self._answers.items():
            if part.is_open or part.stopped_as == HEDGED:  # it failed, or another one was faster
                answer.forget()
            else:
                bodies.append(answer.body())
        facts = _facts(self._call, record, error, trace)
        self._keeper.put(KeptCall(facts, self._request, [each for each in bodies if each.data]), self._call.key.id)

    def _drop(self) -> None:
        self._has_room = False
        for answer in self._answers.values():
            answer.forget()
        self.release(self._held)
        self._keeper.dropped()


class KeptTrace(PassingTrace):
    """The trace of a call that is kept: it learns of its end."""

    def __init__(self, before: Trace, collecting: Collecting) -> None:
        super().__init__(before)
        self.collecting = collecting

    def recorded(self, record: Record, error: str | None) -> None:
        super().recorded(record, error)
        try:
            self.collecting.ended(record, error, self.id)
        except Exception as fault:  # keeping fails no call; its text may be the client's
            log.error("the content of call %s cannot be kept (%s)", record.id, type(fault).__name__)


def _request(call: Call, most: int) -> KeptBody:
    """The request as the client sent it: of a large body, whose values are placeholders, from its bytes."""
    document = call.params.document
    if document.large is None:
        return KeptBody(call.endpoint, document.text.encode("utf-8", "replace"))
    data = bytearray()
    for piece in document.large.pieces:
        data += piece[: most - len(data)]
    return KeptBody(call.endpoint, bytes(data), is_cut=len(data) < sum(map(len, document.large.pieces)))


def _facts(call: Call, record: Record, error: str | None, trace: str | None) -> dict[str, Any]:
    """The span's members beside content. The ids are made of the call's, so that all stores name one call alike."""
    attributes = {**span_attributes.begun(call.endpoint, call.id), **span_attributes.recorded(record)}
    if error is not None:
        attributes[span_attributes.ERROR] = error
    digest = hashlib.sha256(call.id.encode()).hexdigest()
    return {
        "call": call.id,
        "name": span_attributes.name(attributes),
        "trace_id": trace or digest[:32],
        "span_id": digest[32:48],
        "began": call.started,
        "duration_s": round(record.duration_s, 6),
        "is_error": record.status >= 400,
        "attributes": attributes,
    }

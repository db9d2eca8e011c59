"""Where the ids of generations are seen: a rider reads them in the heads of a provider's answers, and the call's trace
learns of its record."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import Config
from gateway.observe.tracing import PassingTrace, Trace
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.stack import WingRider
from gateway.records import Call, Record
from gateway.relay.attempt import Attempt, Rider
from gateway.upstream.connection import Head
from gateway.upstream.health import AttemptHandle

from .account import PROVIDERS
from .generations import GenerationNotes
from .settings import BillingSettings, BillSource


class _NotingTrace(PassingTrace):
    """Notes the record of a call."""

    generation: str | None = None

    def __init__(self, before: Trace, notes: GenerationNotes) -> None:
        super().__init__(before)
        self._notes = notes

    def recorded(self, record: Record, error: str | None) -> None:
        super().recorded(record, error)
        self._notes.note(self.generation, record)


class NoteGeneration(Rider):
    """Reads the id of what one attempt generates."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        services = active.services
        self._sources = services.config.section(BillingSettings).upstreams
        self._notes = services.accounting.of_wing(GenerationNotes)
        self._trace: _NotingTrace | None = None
        self._header = ""

    def request(self, draft: Attempt) -> Attempt:
        header = _header(self._sources, draft.route.upstream)
        if header is None:
            return draft
        self._header, self._trace = header, draft.log.trace.within(_NotingTrace)
        if self._trace is None:
            self._trace = _NotingTrace(draft.log.trace, self._notes)
            draft.log.traced_by(self._trace)
        return draft._replace(riders=(*draft.riders, self))

    def head(self, head: Head) -> None:
        assert self._trace is not None
        self._trace.generation = head.get(self._header)


def _header(sources: Mapping[str, BillSource], upstream: str) -> str | None:
    """The header with the id, of an upstream whose provider has one."""
    source = sources.get(upstream)
    return getattr(PROVIDERS[source.provider], "GENERATION_HEADER", None) if source is not None else None


def _may_be_noted(config: Config, call: Call) -> bool:
    sources = config.section(BillingSettings).upstreams
    return call.passed is None and any(_header(sources, route.upstream) is not None for route in call.model.routes)


RIDER = WingRider(NoteGeneration, _may_be_noted)

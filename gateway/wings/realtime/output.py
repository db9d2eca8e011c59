"""Changes to the events of a Realtime session: ids, and the output limit, which the gateway keeps at the upstream
where output is limited or counted.

A session has no limit by itself (`inf`), and with voice detection a response begins without an event of the client. So
the gateway sends a `session.update` of its own, with as many tokens as are reserved for a response. The
`session.updated` that answers it is not for the client. Upstreams answer updates in order. Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.api import validation_errors

from . import formats as realtime

MAX_SENT = 4_096
"""The largest limit that the API takes (openai-python, `types/realtime/realtime_session_create_request.py`)."""


class Bound(NamedTuple):
    """The largest output limit that a client may set."""

    owner: str
    """Whose limit it is: key or model."""
    tokens: int


class _Update(NamedTuple):
    """A `session.update` without an answer."""

    event_id: str
    is_own: bool


class OutputLimits:
    """The output limits of one session. `is_kept`: the gateway sends them to the upstream."""

    def __init__(self, bounds: Sequence[Bound], *, is_kept: bool, is_beta: bool) -> None:
        self.is_kept = is_kept
        self.is_bound = bool(bounds)
        self._bounds = bounds
        self._is_beta = is_beta
        self._sent: int | str | None = realtime.NO_LIMIT
        self._updates: deque[_Update] = deque()
        self._number = 0

    def __repr__(self) -> str:
        return f"<OutputLimits {self._sent} sent, {len(self._updates)} updates without an answer>"

    def check(self, settings: dict[str, Any]) -> bool:
        """Whether settings of the client had to be changed, which is done in place: where the limit is kept, they may
        not lift it. Raises `InvalidRequest` for a limit beyond the bounds."""
        found = realtime.output_limit(settings)
        if found is None:
            return False
        name, tokens = found
        if tokens is None:
            if self.is_kept:
                del settings[name]
            return self.is_kept
        for owner, bound in self._bounds:
            if tokens > bound:
                raise validation_errors.above(name, tokens, bound, f"This {owner} allows")
        return False

    def note_update(self, event: dict[str, Any]) -> bool:
        """A `session.update` of the client is sent. Whether it had to be changed, in place: it needs an id."""
        if not self.is_kept:
            return False
        found = realtime.output_limit(event["session"]) if isinstance(event.get("session"), dict) else None
        self._sent = self._sent if found is None else found[1]
        has_id = isinstance(event.get("event_id"), str)
        if not has_id:
            event["event_id"] = self._new_id()
        self._updates.append(_Update(event["event_id"], is_own=False))
        return not has_id

    def own_update(self, reserved: int | None) -> dict[str, Any] | None:
        """The event that makes what is reserved for a response its limit; None: it is."""
        if not self.is_kept or reserved is None:
            return None
        tokens = min(reserved, MAX_SENT) if self.is_bound or reserved <= MAX_SENT else realtime.NO_LIMIT
        if tokens == self._sent:
            return None
        self._sent = tokens
        update = _Update(self._new_id(), is_own=True)
        self._updates.append(update)
        settings = {realtime.OUTPUT_LIMITS[self._is_beta]: tokens}
        session = settings if self._is_beta else {"type": "realtime", **settings}
        return {"type": realtime.UPDATE, "event_id": update.event_id, "session": session}

    def answered(self) -> bool:
        """`session.updated` has come. Whether it answers an update of the gateway's own."""
        return self._updates.popleft().is_own if self._updates else False

    def refused(self, event: Mapping[str, Any]) -> bool:
        """`error` has come. Whether it is about an update of the gateway's own: the limit is not kept any more."""
        error = event.get("error")
        about = error.get("event_id") if isinstance(error, dict) else None
        found = next((each for each in self._updates if each.event_id == about), None)
        if found is None:
            return False
        self._updates.remove(found)
        self._sent = None
        self.is_kept &= not found.is_own
        return found.is_own

    def _new_id(self) -> str:
        self._number += 1
        return f"{realtime.OWN_ID}{self._number}"


MAX_KNOWN = 4_096
"""Ids that are remembered; errors follow their events at once."""


class EventIds:
    """The ids of one session's events, so that an error of the upstream is about one event.

    The upstream names the client's event by its id (openai-python, `types/realtime/realtime_error.py`). A client need
    not give one, and may give one twice: then the upstream gets an id of the gateway, and the client its own again.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[int, None] = OrderedDict()
        """Their hashes, because an id may be long."""
        self._given: OrderedDict[str, str | None] = OrderedDict()
        """The client's, by the gateway's own."""
        self._number = 0

    def __repr__(self) -> str:
        return f"<EventIds {len(self._used)} used, {len(self._given)} given by the gateway>"

    def name(self, event: dict[str, Any]) -> bool:
        """Give an event of the client an id of its own, in place, where it needs one. Whether it did."""
        given = event.get("event_id")
        given = given if isinstance(given, str) else None
        if given is None and event["type"] not in realtime.WITH_FATE:
            return False
        if given is not None and not given.startswith(realtime.OWN_ID) and hash(given) not in self._used:
            self._used[hash(given)] = None
            _keep_newest(self._used)
            return False
        self._number += 1
        event["event_id"] = own = f"{realtime.OWN_ID}of_client_{self._number}"
        self._given[own] = given
        _keep_newest(self._given)
        return True

    def given(self, event_id: str) -> str | None:
        """The id that the client has given the event that the upstream knows by this one."""
        return self._given.get(event_id) if event_id.startswith(realtime.OWN_ID) else event_id


def _keep_newest(known: OrderedDict[Any, Any]) -> None:
    if len(known) > MAX_KNOWN:
        known.popitem(last=False)

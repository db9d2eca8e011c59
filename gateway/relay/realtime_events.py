"""Ids of a client's events in a Realtime session, so that an error of the upstream is about one event. Pure.

The upstream names the client's event by its id (openai-python, `types/realtime/realtime_error.py`). A client need not
give one, and may give one twice: then the upstream gets an id of the gateway, and the client its own again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from gateway.formats.openai import realtime

MAX_KNOWN = 4_096
"""Ids that are remembered; errors follow their events at once."""


class EventIds:
    """The ids of one session."""

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

"""Refuses prompts with a marker, names the caller's team to the upstream, and counts the events of streams."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.wings.plugins import AttemptEnd, CallEnd, Plugin, PluginAttempt, PluginCall, Refuse


class MarkerGuard(Plugin):
    """`marker`: the text that no prompt may have; `header`: the name of the header for the team."""

    interface = 1
    name = "marker-guard"
    version = "1.0"

    def __init__(self, marker: str, header: str = "x-team") -> None:
        if not marker:
            raise ValueError("marker is empty: name the text that prompts may not have")
        self._marker = marker
        self._header = header
        self.events: Counter[str] = Counter()
        """Events of finished streams, by team."""

    async def around_call(self, call: PluginCall, carry: Callable[[], Awaitable[CallEnd]]) -> None:
        """Looks at the prompt once for each call. A long one is parsed in a thread, so that no other call waits."""
        if call.is_whole:
            is_marked = has_text(call.request, self._marker)
        else:
            is_marked = await asyncio.to_thread(self._is_marked, call)
        if is_marked:
            raise Refuse("Prompts with this marker may not leave the house.", status=422, code="marked_prompt")
        await carry()

    def before_attempt(self, attempt: PluginAttempt) -> Mapping[str, str]:
        attempt.notes["events"] = 0
        return {self._header: attempt.call.team or "none"}

    def event(self, attempt: PluginAttempt, event: bytes) -> None:
        attempt.notes["events"] += 1

    def end(self, attempt: PluginAttempt, end: AttemptEnd) -> None:
        if end.error is None and attempt.call.stream:
            self.events[attempt.call.team or "none"] += attempt.notes["events"]

    def _is_marked(self, call: PluginCall) -> bool:
        body = call.body()  # a form has none, and its files are not looked at
        return has_text(json.loads(body) if body else call.request, self._marker)


def has_text(value: Any, marker: str) -> bool:
    """Whether a text at any depth of a JSON value has the marker."""
    if isinstance(value, str):
        return marker in value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(has_text(each, marker) for each in inside)

"""The plug-in by itself: no gateway is started."""

from __future__ import annotations

import asyncio

import pytest
from marker_guard import MarkerGuard

from gateway.wings.plugins import AttemptEnd, CallEnd, PluginAttempt, PluginCall, Refuse

GUARD = {"marker": "TOP SECRET"}


def call(text: str, **more: object) -> PluginCall:
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    return PluginCall(id="req_1", key="ci-bot", team="red", members={"messages": messages}, **more)


def is_carried(asked: PluginCall) -> bool:
    async def carry() -> CallEnd:
        carried.append(asked.id)
        return CallEnd(200)

    carried: list[str] = []
    asyncio.run(MarkerGuard(**GUARD).around_call(asked, carry))
    return carried == ["req_1"]


def test_a_plain_prompt_is_carried() -> None:
    assert is_carried(call("hello"))


def test_a_marked_prompt_is_refused() -> None:
    with pytest.raises(Refuse) as refused:
        is_carried(call("this is TOP SECRET"))
    assert (refused.value.status, refused.value.code) == (422, "marked_prompt")


def test_a_marker_in_a_long_body_is_found_in_its_bytes() -> None:
    with pytest.raises(Refuse):
        is_carried(
            call("a placeholder", is_whole=False, read_body=lambda: b'{"messages": [{"content": "TOP SECRET"}]}')
        )


def test_the_team_is_named_to_the_upstream() -> None:
    assert MarkerGuard(**GUARD).before_attempt(PluginAttempt(call("hello"))) == {"x-team": "red"}


def test_events_of_good_streams_are_counted_by_team() -> None:
    guard = MarkerGuard(**GUARD)
    for error in (None, "cut"):
        attempt = PluginAttempt(call("hello", stream=True))
        guard.before_attempt(attempt)
        guard.event(attempt, b"data: {}\n\n")
        guard.event(attempt, b"data: [DONE]\n\n")
        guard.end(attempt, AttemptEnd(200, error))
    assert guard.events == {"red": 2}


def test_an_empty_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="marker is empty"):
        MarkerGuard(marker="")

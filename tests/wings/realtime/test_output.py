"""The output limit that a gateway keeps for a Realtime session."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wings.realtime.output import Bound, OutputLimits


def limits(*bounds: int, is_kept: bool = True) -> OutputLimits:
    return OutputLimits([Bound("key", tokens) for tokens in bounds], is_kept=is_kept, is_beta=False)


def sent(made: OutputLimits, reserved: int | None) -> Any:
    event = made.own_update(reserved)
    return None if event is None else event["session"]["max_output_tokens"]


def test_each_number_is_sent_once() -> None:
    made = limits()
    assert [sent(made, tokens) for tokens in (None, 500, 500, 176, 500)] == [None, 500, None, 176, 500]


@pytest.mark.parametrize(("bounds", "first"), [([], None), ([9000], 4096)])
def test_more_than_the_api_takes(bounds: list[int], first: int | None) -> None:
    assert sent(limits(*bounds), 8000) == first
    made = limits(*bounds)
    assert [sent(made, 500), sent(made, 8000)] == [500, first or "inf"]


def test_nothing_is_sent_where_no_limit_is_kept() -> None:
    made, settings = limits(is_kept=False), {"max_output_tokens": "inf"}
    assert (sent(made, 500), made.check(settings), made.note_update({"type": "session.update"})) == (None, False, False)
    assert settings == {"max_output_tokens": "inf"}


def test_only_answers_to_the_clients_updates_are_shown() -> None:
    made = limits()
    sent(made, 500)
    made.note_update({"type": "session.update", "event_id": "mine", "session": {}})
    nameless: dict[str, Any] = {"type": "session.update", "session": {}}
    assert made.note_update(nameless)
    sent(made, 300)
    assert not made.refused({"error": {"event_id": nameless["event_id"]}})
    assert [made.answered() for _ in range(4)] == [True, False, True, False]


def test_the_number_is_sent_again_when_the_clients_was_refused() -> None:
    made = limits()
    sent(made, 500)
    made.note_update({"type": "session.update", "event_id": "mine", "session": {"max_output_tokens": 30}})
    assert sent(made, 30) is None
    assert not made.refused({"error": {"event_id": "mine"}})
    assert sent(made, 30) == 30


def test_an_upstream_that_refuses_it_is_not_asked_again() -> None:
    made = limits()
    own = made.own_update(500)
    assert own is not None
    assert not made.refused({"error": None})
    assert made.refused({"error": {"event_id": own["event_id"]}})
    assert sent(made, 300) is None

"""Sign-ins that are noted, and access that ends for want of them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gateway.errors import Forbidden, Unauthorized
from gateway.keys.cache import KeyCache
from gateway.observe.metrics import Telemetry
from gateway.wings.leavers.access import Access
from gateway.wings.leavers.background import look
from gateway.wings.leavers.policy import INACTIVE, NO_GROUP
from gateway.wings.leavers.settings import DAY_S
from tests.keys.conftest import BY, SECRET, Scenario, settings

ANN = "ann@example.org"
LEAVERS: dict[str, Any] = {"inactive_after": "30d", "exempt": ["robot"]}
IN_FILE = {"id": "ci-bot", "secret": SECRET, "owner": ANN}


@pytest.fixture
def access(scenario: Scenario) -> Access:
    scenario.config = settings(leavers=LEAVERS, keys=[IN_FILE])
    made: Access = scenario.registry.viewed_as(Access)
    return made


async def is_refused(scenario: Scenario, book: KeyCache, secret: str) -> bool:
    await book.hear()
    try:
        await scenario.caller(book, secret)
    except Unauthorized as error:
        return "access has ended" in error.message
    return False


async def looked(scenario: Scenario) -> Telemetry:
    telemetry = Telemetry((), 10)
    await look(scenario.registry, scenario.config, telemetry)
    return telemetry


async def test_keys_end_after_a_warning_and_come_back_with_a_sign_in(
    scenario: Scenario, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    made = (await scenario.registry.create_key({"id": "laptop", "owner": ANN}, BY)).secret
    robots = (await scenario.registry.create_key({"id": "robot", "owner": "robot"}, BY)).secret
    book = scenario.book()
    await looked(scenario)  # she has never signed in: her time begins now
    for days, refused in ((22, False), (2, False), (5, False), (1.1, True)):
        scenario.now += days * DAY_S
        await looked(scenario)
        assert [await is_refused(scenario, book, each) for each in (made, SECRET)] == [refused, refused], days
    assert not await is_refused(scenario, book, robots)
    assert [record.getMessage() for record in caplog.records] == [
        f"{ANN} has not signed in for long: her keys and tokens end in 7 days",
        f"the access of {ANN} has ended: she has not signed in for too long",
    ]
    await access.note_sign_in(ANN, "sign-in")
    assert [await is_refused(scenario, book, each) for each in (made, SECRET)] == [False, False]
    log = [row for row in (await scenario.registry.audit()).rows if row["kind"] == "person"]
    assert [row["action"] for row in reversed(log)] == ["watch_sign_ins", "warn_of_end", "end_access", "give_access"]


async def test_the_metric_counts_who_is_warned_of_and_who_has_ended(scenario: Scenario, access: Access) -> None:
    await access.note_sign_in(ANN, "sign-in")
    for days, counted in ((23, {"warned": 1.0}), (7, {"ended": 1.0})):
        scenario.now += days * DAY_S
        registry = (await looked(scenario)).registry
        names = {outcome: registry.get_sample_value("gateway_people_inactive_total", {"outcome": outcome})
                 for outcome in ("warned", "ended")}  # fmt: skip
        assert {outcome: value for outcome, value in names.items() if value} == counted


async def test_a_sign_in_is_noted_once_a_day(scenario: Scenario, access: Access) -> None:
    for hours in (0, 1, 1, 23):
        scenario.now += hours * 3600
        await access.note_sign_in(ANN, "sign-in")
    assert [row["action"] for row in (await scenario.registry.audit()).rows] == ["sign_in"] * 2


async def test_a_sign_in_does_not_undo_what_someone_else_decided(scenario: Scenario, access: Access) -> None:
    await scenario.registry.set_access(ANN, "scim", BY)
    with pytest.raises(Forbidden) as raised:
        await access.note_sign_in(ANN, "sign-in")
    assert raised.value.code == "access_ended"
    assert not await access.leave_groups(ANN)
    assert await scenario.registry.access_ended_by(ANN) == "scim"


async def test_a_token_shows_no_group_and_gives_nothing_back(scenario: Scenario, access: Access) -> None:
    assert await access.leave_groups(ANN)
    with pytest.raises(Forbidden):
        await access.note_sign_in(ANN, "token")
    assert await scenario.registry.access_ended_by(ANN) == NO_GROUP
    await access.note_sign_in(ANN, "sign-in")
    assert await scenario.registry.access_ended_by(ANN) is None


async def test_a_sign_in_without_a_group_is_not_undone_by_a_token_after_an_absence(
    scenario: Scenario, access: Access
) -> None:
    await scenario.registry.set_access(ANN, INACTIVE, BY)
    assert await access.leave_groups(ANN)
    with pytest.raises(Forbidden):
        await access.note_sign_in(ANN, "token")
    assert await scenario.registry.access_ended_by(ANN) == NO_GROUP


async def test_another_change_of_a_person_keeps_when_she_was_seen(scenario: Scenario, access: Access) -> None:
    await access.note_sign_in(ANN, "sign-in")
    await scenario.registry.end_sessions(ANN, BY)
    scenario.now += 3600
    await access.note_sign_in(ANN, "sign-in")
    assert [row["action"] for row in (await scenario.registry.audit()).rows] == ["end_sessions", "sign_in"]

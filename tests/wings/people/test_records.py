"""The roles of people, and the end of their sessions, in the store."""

from __future__ import annotations

import pytest

from gateway.errors import NotFound
from gateway.wings.people.records import PeopleRecords
from tests.keys.conftest import BY, Scenario, settings
from tests.keys.people import ANN, DAILY, limits, with_two_keys


async def test_a_role_of_a_sign_in_decides_the_limits_until_the_next_one(scenario: Scenario) -> None:
    records: PeopleRecords = scenario.registry.viewed_as(PeopleRecords)
    secret, _ = await with_two_keys(scenario)
    for role, limit in (("lead", 9), ("lead", 9), ("member", 5)):
        await records.note_role(ANN, role)
        assert (f"person:{ANN}", limit) in await limits(scenario, secret)
    changes = [row for row in (await scenario.registry.audit()).rows if row["kind"] == "person"]
    assert [row["after"] for row in changes] == [{"role": "member"}, {"role": "lead"}]
    scenario.config = settings(people={"defaults": {"quotas": DAILY}})
    records = scenario.registry.viewed_as(PeopleRecords)
    await records.note_role("bob", "lead")
    with pytest.raises(NotFound):
        await scenario.registry.find_person("bob")  # nothing is kept where no role has limits


@pytest.mark.parametrize("name", [ANN, ANN.upper()])
async def test_sessions_end_by_themselves_or_with_the_access(scenario: Scenario, name: str) -> None:
    await with_two_keys(scenario)
    records: PeopleRecords = scenario.registry.viewed_as(PeopleRecords)
    assert not await records.are_sessions_ended(name, scenario.now)
    await scenario.registry.end_sessions(ANN, BY)
    assert await records.are_sessions_ended(name, scenario.now)
    assert not await records.are_sessions_ended(name, scenario.now + 1)
    await scenario.registry.set_access(ANN, "scim", BY)
    assert await records.are_sessions_ended(name, scenario.now + 1)

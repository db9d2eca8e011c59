"""Users on a real store: whose access ends, whose comes back, and requests at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import Forbidden
from gateway.store import StoreChange, StoreUnavailable
from gateway.wings.leavers.access import Access
from gateway.wings.leavers.policy import INACTIVE, NO_GROUP
from gateway.wings.scim.directory import Directory
from gateway.wings.scim.faults import ScimFault
from gateway.wings.scim.patch import patched
from gateway.wings.scim.resources import Resource
from tests.keys.conftest import BY, Scenario

ANN = "ann@example.org"
USER: dict[str, Any] = {"userName": ANN, "active": True}


@pytest.fixture
def directory(scenario: Scenario) -> Directory:
    return Directory(scenario.store, scenario.registry, "scim.token", "userName", lambda: scenario.now)


async def ended_by(scenario: Scenario, person: str = ANN) -> Any:
    return await scenario.registry.access_ended_by(person)


async def test_access_that_an_operator_ended_is_not_given_back(scenario: Scenario, directory: Directory) -> None:
    made = await directory.create("User", USER)
    await scenario.registry.set_access(ANN, "operator", BY)
    await directory.change("User", made.id, lambda values: {**values, "active": True, "title": "x"})
    assert await ended_by(scenario) == "operator"
    await directory.change("User", made.id, lambda values: {**values, "active": False})
    assert await ended_by(scenario) == "operator"
    await directory.change("User", made.id, lambda values: {**values, "active": True})
    assert await ended_by(scenario) == "operator"


@pytest.mark.parametrize(
    "how",
    [
        lambda values: {"userName": ANN, "title": "x"},  # PUT
        lambda values: {"userName": ANN, "active": None},
        lambda values: patched(values, {"Operations": [{"op": "remove", "path": "active"}]}),
    ],
)
async def test_a_change_that_leaves_active_out_activates_no_user(
    scenario: Scenario, directory: Directory, how: Callable[[Any], Any]
) -> None:
    made = await directory.create("User", USER)
    assert (await directory.change("User", made.id, how)).is_active
    await directory.change("User", made.id, lambda values: {**values, "active": False})
    assert not (await directory.change("User", made.id, how)).is_active
    assert await ended_by(scenario) == "scim"
    await directory.change("User", made.id, lambda values: {**values, "active": True})
    assert await ended_by(scenario) is None


@pytest.mark.parametrize("cause", [INACTIVE, NO_GROUP])
async def test_a_sign_in_gives_nothing_back_to_the_deactivated(
    scenario: Scenario, directory: Directory, cause: str
) -> None:
    made = await directory.create("User", USER)
    await scenario.registry.set_access(ANN, cause, BY)
    await directory.change("User", made.id, lambda values: {**values, "active": False})
    access: Access = scenario.registry.viewed_as(Access)
    with pytest.raises(Forbidden):
        await access.note_sign_in(ANN, "sign-in")
    assert await ended_by(scenario) == "scim"
    await directory.change("User", made.id, lambda values: {**values, "active": True})
    assert await ended_by(scenario) is None


async def test_access_ends_even_if_the_document_cannot_be_written(
    scenario: Scenario, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await directory.create("User", USER)

    async def away(*_: Any) -> bool:
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "_write", away)
        with pytest.raises(StoreUnavailable):
            await directory.change("User", made.id, lambda values: {**values, "active": False})
    assert await ended_by(scenario) == "scim"
    assert (await directory.find("User", made.id)).is_active


async def test_changes_at_the_same_time_are_all_kept(directory: Directory) -> None:
    group = await directory.create("Group", {"displayName": "g"})

    def adding(number: int) -> Any:
        return lambda values: {**values, "members": [*values.get("members", ()), {"value": str(number)}]}

    await asyncio.gather(*[directory.change("Group", group.id, adding(number)) for number in range(6)])
    assert sorted((await directory.find("Group", group.id)).members) == [str(number) for number in range(6)]


async def test_of_two_users_with_one_name_one_is_made(directory: Directory) -> None:
    made = await asyncio.gather(*[directory.create("User", USER) for _ in range(4)], return_exceptions=True)
    faults = [each for each in made if isinstance(each, ScimFault)]
    assert [each.kind for each in faults] == ["uniqueness"] * 3
    assert len((await directory.page("User")).rows) == 1


async def test_a_list_is_read_in_portions(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.wings.scim.directory.PAGE", 2)
    for number in range(5):
        await directory.create("User", {"userName": f"user-{number}"})
        await directory.create("Group", {"displayName": f"group-{number}"})
    assert {each.name for each in (await directory.page("User")).rows} == {f"user-{number}" for number in range(5)}
    assert {each.name for each in (await directory.page("Group")).rows} == {f"group-{number}" for number in range(5)}


@pytest.mark.parametrize(
    ("attribute", "first", "second"),
    [
        ("userName", {"userName": "Ada@Example.org"}, {"userName": "ada@example.org"}),
        ("userName", {"userName": "zo\u00eb"}, {"userName": "ZOE\u0308"}),
        ("email", {"userName": "a", "emails": [{"value": ANN}]}, {"userName": "b", "emails": [{"value": ANN.upper()}]}),
        ("externalId", {"userName": "a", "externalId": "x1"}, {"userName": "b", "externalId": "X1"}),
    ],
)
async def test_no_two_users_are_one_person(
    scenario: Scenario, attribute: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """The end of one would be that of the other, who is active."""
    directory = Directory(scenario.store, scenario.registry, "scim.token", attribute, lambda: scenario.now)
    made = await directory.create("User", first)
    with pytest.raises(ScimFault) as refused:
        await directory.create("User", second)
    assert (refused.value.status, refused.value.kind, attribute in refused.value.detail) == (409, "uniqueness", True)
    other = await directory.create("User", {"userName": "other"})
    with pytest.raises(ScimFault):
        await directory.change("User", other.id, lambda values: {**values, **second})
    assert (await directory.change("User", made.id, lambda values: {**values, **second})).id == made.id


async def kept_before(scenario: Scenario, user: str, **values: Any) -> str:
    """A user whom a gateway before 0.3 kept beside another one with her name in other case."""
    found = Resource("User", user, {"userName": ANN.upper(), **values}, 1.0, 1.0)
    assert await scenario.store.change(StoreChange("scim", f"User:{user}", None, found.encode(), ""))
    return user


async def test_a_deactivated_user_is_not_let_in_by_her_older_double(scenario: Scenario, directory: Directory) -> None:
    """A change of the double, who is active, gives nothing back."""
    made = await directory.create("User", USER)
    double = await kept_before(scenario, "double")
    await directory.change("User", made.id, lambda values: {**values, "active": False})
    await directory.change("User", double, lambda values: {**values, "title": "x"})
    assert await ended_by(scenario) == "scim"
    await directory.delete("User", double)
    assert await ended_by(scenario) == "scim"
    await directory.change("User", made.id, lambda values: {**values, "active": True})
    assert await ended_by(scenario) is None


async def test_the_end_of_a_double_is_that_of_the_user_until_her_next_change(
    scenario: Scenario, directory: Directory
) -> None:
    made = await directory.create("User", USER)
    await directory.delete("User", await kept_before(scenario, "double"))
    assert await ended_by(scenario) == "scim"
    await directory.change("User", made.id, lambda values: {**values, "title": "x"})
    assert await ended_by(scenario) is None

"""A person with two keys, and limits of people."""

from __future__ import annotations

from .conftest import BY, Scenario, settings

ANN = "ann@example.org"
DAILY, MORE = [{"requests": 5, "per": "day"}], [{"requests": 9, "per": "day"}]
PEOPLE = {"defaults": {"quotas": DAILY}, "role:lead": {"quotas": MORE}, "named": {"quotas": DAILY}}


async def with_two_keys(scenario: Scenario) -> tuple[str, ...]:
    """The secrets of keys of one person."""
    scenario.config = settings(people=PEOPLE, teams={"red": {"member_quotas": DAILY}})
    made = [
        await scenario.registry.create_key({"id": name, "owner": ANN, **more}, BY)
        for name, more in (("one", {}), ("two", {"team": "red"}))
    ]
    return tuple([each.secret for each in made])


async def limits(scenario: Scenario, secret: str) -> list[tuple[str, int]]:
    """Scope and limit of the windows that bind a key at a worker that has heard of all changes."""
    cache = scenario.book()
    await cache.hear()
    key = await scenario.caller(cache, secret)
    return [(each.scope, each.window(scenario.now).limit) for each in cache.terms.of(key)]

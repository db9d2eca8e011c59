"""A page of people reads few documents."""

from __future__ import annotations

from gateway.wings.budgets.people import limits_of
from tests.keys.conftest import BY, Scenario
from tests.store.test_key_index import CountedReads, registry_of


async def test_a_page_of_people_reads_the_keys_of_its_people(scenario: Scenario) -> None:
    counted = CountedReads(scenario.store)
    registry, other = limits_of(registry_of(counted)), registry_of(scenario.store)
    for number in range(30):
        await other.create_key({"id": f"k{number:02}", "owner": f"O{number % 10}"}, BY)
    await other.update_key("k03", {"owner": "zoe"}, BY)
    for number in (13, 23):
        await other.revoke_key(f"k{number}", BY)
    names = [f"O{number}" for number in range(10) if number != 3]
    first = await registry.list_people("", 2)
    assert ([row["name"] for row in first.rows], first.next) == (names[:2], "O1")
    counted.documents = 0
    page = await registry.list_people("o1", 2)
    assert ([row["name"] for row in page.rows], page.next) == (["O2", "O4"], "O4")
    assert page.rows[1]["keys"] == ["k04", "k14", "k24"]
    assert counted.documents <= 2 * 3 * 3 + 3, "the keys and overlays of four people, two of them behind the page"
    rest = await registry.list_people("O4", 100)
    assert ([row["name"] for row in rest.rows], rest.next) == ([*names[4:], "zoe"], None)

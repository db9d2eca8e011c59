"""An operator ends the access of a person and gives it back, through a gateway."""

from __future__ import annotations

from typing import Any

from tests.flows.gateway_process import key, secret
from tests.web.conftest import ADMIN_TOKEN, Inside, until

ALICE = "alice@example.org"


async def test_an_operator_ends_access_and_gives_it_back(inside: Inside) -> None:
    client = await inside("http://127.0.0.1:9/v1", keys=[key("hers", owner=ALICE), key("his")])

    async def ask(method: str, path: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        async with client.request(method, f"/admin/api/{path}", headers=headers) as answer:
            return answer.status, await answer.json()

    status, person = await ask("POST", f"people/{ALICE}/end_access")
    assert (status, person["name"], person["access_ended_by"]) == (200, ALICE, "operator")
    await until(client, secret("hers"), 401)
    await until(client, secret("his"), 200)
    status, person = await ask("POST", f"people/{ALICE}/give_access")
    assert (status, person["access_ended_by"]) == (200, None)
    await until(client, secret("hers"), 200)
    assert (await ask("POST", "people/no-one/give_access"))[0] == 404
    _, log = await ask("GET", "audit")
    assert [(row["kind"], row["name"], row["action"], row["actor"]) for row in log["data"]] == [
        ("person", ALICE, "give_access", "admin.token from 127.0.0.1"),
        ("person", ALICE, "end_access", "admin.token from 127.0.0.1"),
    ]

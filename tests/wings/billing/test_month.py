"""The statement of a month: who spent what, bills, differences and their causes; as an answer and as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path
from typing import Any

import pytest

from gateway.records import Usage
from gateway.wings.billing.bill import Account, Bill, Billed, Side
from gateway.wings.billing.compare import RecordedUsage
from gateway.wings.billing.explain import CAUSES, Explained
from gateway.wings.billing.month import COLUMNS, format_statement_csv, month_of, spenders, statement
from gateway.wings.billing.recorded import ComparedBill
from tests.flows.gateway_process import key
from tests.flows.planted import plant, record
from tests.reports.test_csv_text import NAMES, has_no_formula
from tests.web.conftest import ADMIN_TOKEN, Inside

LEAD = "lead-token-0123456789"
NOTHING = {"requests": 1, "total_tokens": 10, "unpriced": 0}


def row(person: str, key: str, team: str, cost: float | None) -> dict[str, Any]:
    return {"person": person, "key": key, "team": team, "cost_usd": cost, **NOTHING}


def bill(since: str) -> ComparedBill:
    side = Side(1, (1, 0, 0, 0), (5_000_000_000, 0, 0, 0))
    one = Explained(
        "2026-11-02", "m", RecordedUsage(1, cost_nusd=2_000_000_000), Billed(side), {"price": 3_000_000_000}
    )
    return ComparedBill("openai", Bill(1_795_000_000.0, since, {}, Account()), "2026-11-28", [one])


@pytest.mark.parametrize("name", ["2026-13", "2026-1", "26-01", "november", "0000-01", "2026-11-01"])
def test_what_is_no_month(name: str) -> None:
    with pytest.raises(ValueError, match="a month such as"):
        month_of(name)


def test_a_person_is_one_row_in_each_team_and_a_key_without_owner_another() -> None:
    rows = [row("ann", "a1", "crew", 1.0), row("ann", "a2", "crew", 2.0), row("ann", "a3", "lab", None),
            row("", "ci", "lab", 0.5), row("", "bot", "lab", 9.0)]  # fmt: skip
    found = [(each["person"], each["key"], each["team"], each["cost_usd"], each["requests"]) for each in spenders(rows)]
    assert found == [
        ("", "bot", "lab", 9.0, 1), ("ann", "", "crew", 3.0, 2), ("", "ci", "lab", 0.5, 1), ("ann", "", "lab", 0.0, 1),
    ]  # fmt: skip


def test_a_statement_adds_up_and_notes_what_it_lacks() -> None:
    rows = [row("ann", "a1", "crew", 1.5), row("", "ci", "", 0.5)]
    found = statement(month_of("2026-11"), rows, [bill("2026-11-05")], [], "2026-11-29")
    assert found["total"] == {"requests": 2, "total_tokens": 20, "unpriced": 0, "cost_usd": 2.0}
    (billed,) = found["bills"]
    assert (billed["bill_usd"], billed["recorded_usd"], billed["difference_usd"]) == (5.0, 2.0, 3.0)
    assert sum(billed["causes"].values()) == billed["difference_usd"]
    assert found["notes"] == [
        "The month is not over.", "The bill of openai was read from 2026-11-05 on: what was before is in no sum of it."
    ]  # fmt: skip
    over = statement(month_of("2026-11"), rows, [bill("2026-11-01")], [], "2026-12-01")
    assert (over["notes"], over["until"]) == ([], "2026-11-30")


def test_the_csv_has_each_amount_on_a_line() -> None:
    rows = [row("ann", "a1", "crew", 1.5), row("", "ci", "", 0.5)]
    found = statement(month_of("2026-11"), rows, [bill("2026-11-01")], [], "2026-12-01")
    lines = list(csv.DictReader(io.StringIO(format_statement_csv(found))))
    assert tuple(lines[0]) == COLUMNS
    assert [(each["line"], each["name"], float(each["usd"])) for each in lines] == [
        ("person", "ann", 1.5), ("key", "ci", 0.5), ("total", "", 2.0), ("bill", "openai", 5.0),
        ("recorded", "openai", 2.0), ("difference", "openai", 3.0), ("price", "openai", 3.0),
    ]  # fmt: skip
    assert lines[-1]["explanation"] == CAUSES["price"]


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_of_the_csv_begins_like_a_formula(name: str) -> None:
    has_no_formula(format_statement_csv(statement(month_of("2026-11"), [row(name, "a", "", 1.0)], [], [], "")), name)


async def asked(client: Any, query: str = "", token: str = ADMIN_TOKEN) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with client.get(f"/admin/api/statement{query}", headers=headers) as answer:
        return answer.status, await (answer.text() if "csv" in query else answer.json())


async def test_a_lead_gets_what_her_team_spent_and_no_bill(inside: Inside, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    good = Usage(100, 50, source="reported")
    usd = 1_000_000_000
    await asyncio.to_thread(plant, url, [
        record("2026-10-20", name, team=team, upstream="up", usage=good, cost_nusd=nusd)
        for name, team, nusd in (("a1", "ours", usd), ("a2", "ours", 2 * usd), ("b", None, 4 * usd))
    ])  # fmt: skip
    hers = [
        key(name, team="ours", owner=owner) for name, owner in (("a1", "Ann@example.org"), ("a2", "ann@example.org"))
    ]
    client = await inside(
        "http://127.0.0.1:9/v1", store={"url": url, "journal_dir": str(tmp_path / "journal")}, teams={"ours": {}},
        keys=[*hers, key("b")],
        admin={"token": ADMIN_TOKEN, "tokens": {"head": {"token": LEAD, "role": "lead", "team": "ours"}}},
    )  # fmt: skip
    status, found = await asked(client, "?month=2026-10")
    assert (status, found["since"], found["until"]) == (200, "2026-10-01", "2026-10-31")
    names = [(each["person"], each["key"], each["team"], each["cost_usd"]) for each in found["spent"]]
    assert names == [("", "b", "", 4.0), ("Ann@example.org", "", "ours", 3.0)]
    assert (found["bills"], found["notes"]) == ([], [])
    status, of_team = await asked(client, "?month=2026-10", LEAD)
    assert [(each["person"], each["cost_usd"]) for each in of_team["spent"]] == [("Ann@example.org", 3.0)]
    assert of_team["notes"] == ["A bill is that of the whole account, so it is shown to those who may see all teams."]
    status, text = await asked(client, "?month=2026-10&format=csv", LEAD)
    assert [each["name"] for each in csv.DictReader(io.StringIO(text))] == ["Ann@example.org", ""]
    status, refused = await asked(client, "?month=october")
    assert (status, refused["error"]["param"]) == (400, "month")

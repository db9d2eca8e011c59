"""`POST /admin/api/invoice`: a provider's export against the usage of a gateway."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.records import Usage
from gateway.wings.billing import comparison, endpoints
from tests.flows.planted import plant, record
from tests.reports.test_csv_text import NAMES, has_no_formula
from tests.web.conftest import ADMIN_TOKEN, Inside

DAY, NEXT = "2026-11-20", "2026-11-21"
HEAD = "date,model,num_model_requests,input_tokens,output_tokens,amount_value"
LEAD = "lead-token-0123456789"
NOWHERE = "http://127.0.0.1:9/v1"
Client = TestClient[Any, Any]


@pytest.fixture
async def client(inside: Inside, tmp_path: Path) -> AsyncIterator[Client]:
    """A gateway with three calls: two of the key of the team `ours`, one of another."""
    url = f"embedded:{tmp_path / 'data'}"
    good = Usage(100, 50, source="reported")
    guessed = dict.fromkeys(("model", "label_model", "routed_model", "returned_model"), "guessed")
    made = [
        record(DAY, "a", team="ours", upstream="up", usage=good, cost_nusd=1_000_000),
        record(DAY, "a", team="ours", upstream="up", usage=Usage(10, 5, source="estimated"), **guessed),
        record(DAY, "b", upstream="up", usage=good, cost_nusd=1_000_000),
    ]
    await asyncio.to_thread(plant, url, made)
    admin = {"token": ADMIN_TOKEN, "tokens": {"head": {"token": LEAD, "role": "lead", "team": "ours"}}}
    store = {"url": url, "journal_dir": str(tmp_path / "journal")}
    started = await inside(NOWHERE, store=store, admin=admin, teams={"ours": {}})
    yield started
    await started.close()


async def asked(client: Client, body: Any, query: str = "", token: str = ADMIN_TOKEN) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"}
    async with client.post(f"/admin/api/invoice{query}", headers=headers, json=body) as answer:
        return answer.status, await answer.text()


def lines(*rows: str) -> dict[str, Any]:
    return {"text": "\n".join([HEAD, *rows]) + "\n"}


async def test_an_invoice_is_compared_by_day_and_model(client: Client) -> None:
    status, text = await asked(client, lines(f"{DAY},m,2,200,100,0.003", f"{DAY},foreign,1,7,3,0.5"))
    answer = json.loads(text)
    assert (status, answer["object"], answer["since"], answer["until"]) == (200, "comparison", DAY, DAY)
    rows = {row["model"]: row for row in answer["data"]}
    assert (rows["m"]["requests_difference"], rows["m"]["total_tokens_difference"]) == (0, 0)
    assert (rows["m"]["cost_usd_ours"], rows["m"]["cost_usd_difference"]) == (0.002, -0.001)
    assert rows["m"]["why"] == [
        "The tokens agree and the cost does not: the price here is not the one that was billed."
    ]
    assert rows["foreign"]["why"][0].startswith("Only the provider has it")
    assert rows["guessed"]["only"] == "ours"
    assert "15 of our tokens are estimated, because the provider reported none." in rows["guessed"]["why"]
    assert answer["total"]["requests_ours"] == sum(row["requests_ours"] for row in answer["data"]) == 3


async def test_a_lead_compares_the_usage_of_her_team_alone(client: Client) -> None:
    status, text = await asked(client, lines(f"{DAY},m,2,200,100,0.003"), token=LEAD)
    answer = json.loads(text)
    assert status == 200
    assert {row["model"]: row["requests_ours"] for row in answer["data"]} == {"m": 1, "guessed": 1}
    assert answer["notes"][0].startswith("The gateway's side is that of the team ours alone")


async def test_the_csv_is_that_of_the_command(client: Client) -> None:
    status, text = await asked(client, lines(f"{DAY},m,2,200,100,0.003"), "?format=csv")
    assert status == 200
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == comparison.COLUMNS
    assert {row["model"] for row in rows} == {"m", "guessed"}


@pytest.mark.parametrize("name", NAMES)
async def test_no_cell_of_the_csv_begins_like_a_formula(client: Client, name: str) -> None:
    row = io.StringIO()
    csv.writer(row).writerow([NEXT, name, 1, 1, 1, 0])
    status, text = await asked(client, lines(row.getvalue().rstrip("\r\n")), "?format=csv")
    assert status == 200
    has_no_formula(text, name.strip())


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "text", "Missing required"),
        ({"text": 5}, "text", "string"),
        ({"text": "x,y\n1,2\n"}, "text", "found the columns x, y"),
        ({"text": f"{HEAD}\n{DAY},m,two,1,1,0\n"}, "text", "line 2: num_model_requests: 'two' is no number"),
        ({**lines(), "upstreams": ["nowhere"]}, "upstreams", "there is no upstream 'nowhere'; there are: up"),
        ({**lines(), "since": "yesterday"}, "since", "expected a day such as"),
        ({**lines(), "file": "x"}, "file", "file"),
    ],
)
async def test_what_cannot_be_read_is_said(client: Client, body: dict[str, Any], param: str, said: str) -> None:
    status, text = await asked(client, body)
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, param)
    assert said in error["message"]


async def test_a_file_is_bounded_in_bytes_and_in_rows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_BYTES", 1000)
    assert (await asked(client, {"text": "x" * 1000}))[0] == 413
    monkeypatch.setattr(endpoints, "MOST_ROWS", 2)
    status, text = await asked(client, lines(*[f"{DAY},m{number},1,1,1,0" for number in range(3)]))
    assert (status, json.loads(text)["error"]["param"]) == (400, "text")


async def test_days_narrow_the_comparison(client: Client) -> None:
    body = {**lines(f"{DAY},m,2,200,100,0", f"{NEXT},m,1,1,1,0"), "since": NEXT, "upstreams": ["up"]}
    answer = json.loads((await asked(client, body))[1])
    assert (answer["since"], answer["until"]) == (NEXT, NEXT)
    assert [(row["day"], row["only"]) for row in answer["data"]] == [(NEXT, "theirs")]

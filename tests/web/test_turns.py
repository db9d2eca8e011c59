"""No request of the dashboard holds the event loop for long, however much there is to show."""

from __future__ import annotations

import asyncio
import http.client
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.amounts import amount
from tests.browser.stores import days, filled, large
from tests.browser.viewers import ALWAYS, MEMBER_VIEWS, VIEWS, Subjects, Views, paths
from tests.fakes.turns import MOST_CALLS, counted
from tests.flows.gateway_process import key, secret
from tests.flows.planted import plant, record

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
YEAR = 400
"""Days with sums: more than a year."""
KEYS = amount(1000, 400)
QUOTAS = [{"requests": 60, "per": "minute"}, {"tokens": 1000, "per": "day"}]
ISSUED = [key(f"key-{place:04}", team=f"team-{place % 20}", quotas=QUOTAS) for place in range(KEYS)]
OF = Subjects(key="key-0007", team="team-7", model="model-3", upstream="upstream-1")
TEAMS = {f"team-{place}": {"quotas": QUOTAS} for place in range(20)}


def fetch(port: int, path: str, token: str = ADMIN_TOKEN) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", urljoin("/admin/api/", path), headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body
    finally:
        connection.close()


def asked_in(views: Views) -> set[str]:
    """Every request of these views, and those of any view where they are an operator's."""
    polls = [poll for view in views.values() for poll in paths(view, OF)]
    return {poll.path for poll in [*polls, *(ALWAYS if views is VIEWS else ())]}


@pytest.mark.shortened
@pytest.mark.parametrize("kind", ["embedded", "redis"])
async def test_no_request_of_the_page_holds_the_loop(
    inside: Inside, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*large(2, days(YEAR)[:-3]), *large(KEYS, days(3))]
    with filled(kind, tmp_path, rows) as url:
        await asyncio.to_thread(plant, url, [record(days(1)[0], "key-0007") for _ in range(1000)])
        client = await inside(
            NOWHERE, keys=ISSUED, teams=TEAMS, store={"url": url, "journal_dir": str(tmp_path / "journal")}
        )
        more = {"calls?limit=1000", "calls?limit=1000&key=key-0007"}
        more |= {f"usage?group_by={groups}&limit=100" for groups in ("model,day", "key", "key,day", "day")}
        asked = [(ADMIN_TOKEN, path) for path in sorted(more | asked_in(VIEWS))]
        asked += [(secret(OF.key), path) for path in sorted(asked_in(MEMBER_VIEWS))]
        for token, path in asked:
            with counted(monkeypatch) as turns:
                await asyncio.to_thread(fetch, client.port, path, token)
            assert turns.most <= MOST_CALLS, f"{path}: {turns.by}"
        await client.close()

"""The bill of a real one-api: what it has logged of calls to a simulated upstream, in pages of ten."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Upstream
from gateway.wings.billing.account import read_bill
from gateway.wings.billing.bill import Bill, BillFault
from gateway.wings.billing.settings import BillSource
from tests.fakes.one_api import OPENAI, OneAPI

MODEL = "gpt-4o-mini"
CALLS = 12
TOKEN = "Initial Root Token"

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def reseller(tmp_path: Path, simulated_port: int) -> Iterator[OneAPI]:
    with OneAPI(tmp_path / "one-api", f"http://127.0.0.1:{simulated_port}", "sk-simulated", {OPENAI: [MODEL]}) as made:
        yield made


def call(reseller: OneAPI) -> None:
    body = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"Authorization": f"Bearer {reseller.key}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{reseller.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=30).close()


async def bill_of(reseller: OneAPI, key: str, **more: Any) -> Bill:
    fields = {"provider": "oneapi", "api_key": key, "base_url": reseller.url, **more}
    return await read_bill(BillSource.model_validate(fields), Upstream(base_url=reseller.url), time.time(), 2, waits=())


async def test_each_call_of_its_log_is_billed(reseller: OneAPI) -> None:
    for _ in range(CALLS):
        call(reseller)
    until = time.monotonic() + 60
    bill = await bill_of(reseller, reseller.access_token, key_ids=(TOKEN,))
    while sum(billed.ours.requests for billed in bill.rows.values()) < CALLS:  # newer ones than 2 s are not read
        assert time.monotonic() < until
        bill = await bill_of(reseller, reseller.access_token, key_ids=(TOKEN,))
    log = reseller.logs()
    ((_, billed),) = bill.rows.items()
    assert (billed.ours.requests, len(log)) == (CALLS, 10), "its page has ten"
    quota = {entry["quota"] for entry in log}
    (prompt,), (completion,) = ({entry[f"{kind}_tokens"] for entry in log} for kind in ("prompt", "completion"))
    assert billed.ours.tokens == (CALLS * prompt, 0, CALLS * completion, 0)
    assert billed.ours.nusd[3] == sum(CALLS * each for each in quota) * Decimal(10**9) / 500_000
    assert bill.account.left_usd is not None
    with pytest.raises(BillFault, match="expected an access token"):
        await bill_of(reseller, "wrong-token")

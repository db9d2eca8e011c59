"""The demo: a past on which its reports, windows and records agree, and calls that go on."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.api import auth
from gateway.commands.demo import Demo
from gateway.commands.demo_history import DAYS, PEOPLE, SPARE, history, write_history
from gateway.config import Config
from gateway.quota.windows import LimitTable
from gateway.reports.calls import timeline_of
from gateway.store import Store
from gateway.store.opening import open_store
from tests.conftest import StartsProcesses
from tests.flows.client import request
from tests.flows.gateway_process import eventually


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """The configuration of a demo that is not served."""
    with closing(Demo(0, str(tmp_path))) as demo:
        yield demo.config


def test_the_past_is_the_same_each_time_and_looks_like_one(config: Config) -> None:
    now = time.time()
    made = list(history(config, now))
    assert [each.id for each in made] == [each.id for each in history(config, now)]
    assert {each.key for each in made} == set(PEOPLE)
    assert [each.time for each in made] == sorted(each.time for each in made)
    assert now - DAYS * 86400 < made[0].time < made[-1].time < now
    ends = Counter(each.ended for each in made)
    assert 0.9 < ends["done"] / len(made) < 1
    assert ends["error"]
    repeated = [each for each in made if each.failed.startswith(f"{SPARE}:")]
    assert {each.status for each in repeated} == {200, 502}
    assert all(len(timeline_of(each.timeline)) == each.attempts for each in repeated)
    assert all(each.cost_nusd is not None for each in made)


def test_no_quota_of_the_demo_is_spent_at_the_end_of_a_month(config: Config) -> None:
    now = datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp()
    month = [each for each in history(config, now) if each.time >= datetime(2026, 12, 1, tzinfo=UTC).timestamp()]
    spent: Counter[str] = Counter()
    for each in month:
        spent.update({f"key:{each.key}": each.cost_nusd or 0, f"team:{each.team}": each.cost_nusd or 0})
    keys = {key.id: auth.read(key) for key in config.keys}
    limits = [limit for key in keys.values() for limit in LimitTable((), config.teams, {}).of(key)]
    of_money = [limit for limit in limits if (limit.unit, limit.per) == ("usd", "month")]
    assert len({limit.scope for limit in of_money}) > 4
    assert [limit.scope for limit in of_money if spent[limit.scope] > limit.limit] == []


async def test_windows_and_sums_of_the_past_agree(config: Config) -> None:
    await write_history(config, time.time())
    store: Store = await open_store(config.store)
    try:
        month = time.strftime("%Y-%m-01", time.gmtime())
        used = {row["key"]: row["cost_usd"] for row in await store.usage(["key"], month)}
        records = [record for record in history(config, time.time()) if record.key == "notebooks"]
        (whole,) = await store.usage([], where=(("key", "notebooks"),))
        assert abs(whole["requests"] - len(records)) <= 1  # a minute may have passed
        assert await store.refusals(1000)
        assert sum(each or 0 for each in used.values()) > 0 or time.gmtime().tm_mday == 1
    finally:
        await store.close()


def ask(found: re.Match[str], path: str) -> Any:
    headers = {"Authorization": f"Bearer {found[2]}"}
    answer = request(int(found[1]), "GET", f"/admin/api/{path}", b"", headers)
    assert answer.status == 200, answer
    return answer.json


def start(process: StartsProcesses, *more: str) -> tuple[Any, re.Match[str]]:
    demo = process("demo", "--port", "0", *more)
    return demo, demo.wait_for(r"http://127\.0\.0\.1:(\d+)/dashboard#token=(\S+)")


def test_the_demo_lives(process: StartsProcesses) -> None:
    demo, found = start(process)
    assert {row["id"] for row in ask(found, "keys")["data"]} == {"demo", *PEOPLE}
    assert len(ask(found, "teams")["data"]) == 3
    assert {row["key"] for row in ask(found, "usage")["data"]} == set(PEOPLE)
    assert len(ask(found, "usage?group_by=day")["data"]) >= DAYS - 1
    month = time.strftime("%Y-%m-01", time.gmtime())
    spent = {row["key"]: row["cost_usd"] for row in ask(found, f"usage?since={month}")["data"]}
    for row in ask(found, "quotas")["data"]:
        if row["key"] is not None and (row["unit"], row["per"]) == ("usd", "month"):
            assert abs(row["used"] - spent.get(row["key"], 0)) < 0.05, row
    before = ask(found, "live")["requests"]
    eventually(lambda: ask(found, "live")["requests"] > before + 1, 60)
    demo.kill(signal.SIGTERM)
    assert demo.wait() == 0
    assert not [line for line in demo.stderr.splitlines() if "quota alert" not in line and "shaky" not in line]


def test_the_demo_listens_where_it_is_asked_to(process: StartsProcesses) -> None:
    host = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # elsewhere this needs a setting of the system
    demo = process("demo", "--port", "0", "--empty", "--host", host)
    port = int(demo.wait_for(rf"http://{host}:(\d+)/dashboard")[1])
    with socket.create_connection((host, port), timeout=60) as raw:
        raw.sendall(b"GET /readyz HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("listener", "printed"),
    [("http://0.0.0.0:80", "http://127.0.0.1:80"), ("http://[::]:80", "http://[::1]:80"), ("http://[::1]:80",) * 2],
)
def test_a_demo_at_every_address_prints_one_that_a_browser_takes(listener: str, printed: str, tmp_path: Path) -> None:
    """As in a container."""
    with closing(Demo(0, str(tmp_path), is_empty=True)) as demo:
        assert set(re.findall(r"http://[^/\s]+", demo.welcome(listener))) == {printed}


def test_an_empty_demo_has_one_key_and_no_calls(process: StartsProcesses) -> None:
    _, found = start(process, "--empty")
    assert [row["id"] for row in ask(found, "keys")["data"]] == ["demo"]
    for path in ("usage", "calls", "refusals", "teams"):
        assert ask(found, path)["data"] == [], path
    assert [row["name"] for row in ask(found, "upstreams")["data"]] == ["simulator"]
    assert json.dumps(ask(found, "live")["requests"]) == "0"

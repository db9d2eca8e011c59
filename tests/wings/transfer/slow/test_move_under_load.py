"""The way of docs/moving.md, as an operator goes it: from SQLite to Redis while people call."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.conftest import StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.flows import books
from tests.flows.books import ACCOUNTS, QUOTAS, sums_of
from tests.flows.gateway_process import Process, eventually, run, settings
from tests.flows.scenario import Scenario
from tests.flows.steering import Operator

PEOPLE = 40


def names_of_people() -> tuple[str, ...]:
    return tuple(f"person-{number}" for number in range(PEOPLE))


def move(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_forty_people_move_from_sqlite_to_redis_while_they_call(
    start_gateway: StartsGateways, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scenario() as scenario:
        old = start_gateway(settings(scenario.url, **ACCOUNTS, server={"drain_timeout_s": 30}))
        operator = Operator(old)
        for team in ("red", "blue"):
            operator.done("POST", "teams", {"name": team})
        people = names_of_people()
        secrets = {
            who: operator.create(who, team=("red", "blue")[at % 2], quotas=QUOTAS, max_parallel=500)
            for at, who in enumerate(people)
        }
        monkeypatch.setattr(books, "WHO", people)
        monkeypatch.setattr(books, "secret", secrets.__getitem__)
        there = settings(scenario.url, **ACCOUNTS, store={"url": redis_server.url})
        config = tmp_path / "new.yaml"
        config.write_text(yaml.safe_dump(there))
        first, second = tmp_path / "first.jsonl.gz", tmp_path / "second.jsonl.gz"
        serving = [old]
        with scenario.callers.at_work(lambda: serving[-1].port):
            eventually(lambda: len(old.calls()) > 80)
            move("export", "--config", str(old.file), str(first))
            broken = Process(tmp_path / "broken", "import", "store", "--config", str(config), str(first))
            eventually(lambda: broken.process.poll() is not None or "taken" in redis_server.cli("KEYS", "*:taken:*"))
            broken.kill(signal.SIGKILL)
            broken.wait()
            assert "DIFFERS" not in move("import", "store", "--config", str(config), str(first))
            new = start_gateway(there)
            serving.append(new)
            before = len(new.calls(limit=1_000_000))
            eventually(lambda: len(new.calls(limit=1_000_000)) > before + 40)
            old.stop()
            shown = move("export", "--config", str(old.file), str(second))
            assert "under way" not in shown
            assert "DIFFERS" not in move("import", "store", "--config", str(config), str(second))
            served = len(new.calls(limit=1_000_000))
            eventually(lambda: len(new.calls(limit=1_000_000)) > served + 40)
        ended = scenario.check(new)
        assert ended["done"] > 160
        assert "lost" not in ended
        assert {call.status for call in scenario.callers.received} <= {0, 200, 503}
        records = new.calls(limit=1_000_000)
        assert {record["key"] for record in records} == {*people}
        used = sum(sums_of(record)["requests"] for record in records if record["key"] == people[0])
        rows = new.admin("quotas", key=people[0]).json["data"]
        (window,) = [row for row in rows if (row["unit"], row["per"]) == ("requests", "month")]
        assert window["used"] == used
        assert {row["action"] for row in Operator(new).rows("audit")} >= {"create"}

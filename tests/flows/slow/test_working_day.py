"""A working day: a key is made, used, raised, exhausted, topped up, rotated, revoked; the configuration is reloaded;
finance and the auditor ask in the evening. With two workers on one file, and with two gateways on one Redis.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, model, run, secret, settings
from tests.flows.steering import Operator, until_all_know, until_all_say, use, window

PROMPT, COMPLETION = 30, 20
PRICE = {"input": 100, "output": 200}
COST_USD = (PROMPT * 100 + COMPLETION * 200) / 1e6


@pytest.fixture(params=["two workers", "two gateways"])
def gateways(
    request: pytest.FixtureRequest, start_gateway: StartsGateways, shared_upstream: ScriptedUpstream, tmp_path: Path
) -> Iterator[Sequence[Gateway]]:
    """The gateways of that day."""
    shared_upstream.answer_with(
        always=ok_json({"choices": [], "usage": {"prompt_tokens": PROMPT, "completion_tokens": COMPLETION}})
    )
    config = settings(
        shared_upstream.url,
        models={COMPLETIONS: model("completions", price=PRICE)},
        keys=[key("alice", team="office")],
        teams={"office": {"quotas": [{"usd": 100, "per": "month"}]}},
    )
    if request.param == "two workers":
        yield [start_gateway({**config, "server": {**config["server"], "workers": 2}})]
        return
    with RedisServer(tmp_path / "redis") as server:
        yield [start_gateway({**config, "store": {"url": server.url}}) for _ in range(2)]


def served(gateways: Sequence[Gateway], made: str, times: int) -> list[int]:
    """The statuses of this number of calls, made at each gateway in turn."""
    return [use(gateways[number % len(gateways)], made).status for number in range(times)]


def limit(received: dict[str, Any], unit: str, per: str) -> int:
    found: int = window(received["quotas"], unit, per)["limit"]
    return found


def test_a_working_day(gateways: Sequence[Gateway], upstream: ScriptedUpstream) -> None:
    upstream.answer_with(
        always=ok_json({"choices": [], "usage": {"prompt_tokens": PROMPT, "completion_tokens": COMPLETION}})
    )
    here, there = Operator(gateways[0]), Operator(gateways[-1])

    # In the morning a team and a key are made, at one gateway, and work at every one.
    here.done("POST", "teams", {"name": "platform", "quotas": [{"tokens": 10**6, "per": "month"}]})
    made = here.create("dora", team="platform", quotas=[{"requests": 4, "per": "day"}], models=["gpt-3.5*"])
    until_all_say(gateways, made, 200)
    assert served(gateways, made, 5) == [200, 200, 200, 200, 429]
    spent = use(gateways[0], made)
    assert (spent.status, spent.error["code"], spent.headers["x-should-retry"]) == (429, "insufficient_quota", "false")

    # Her limit is raised at the other one; what she has used stays used.
    there.done("PATCH", "keys/dora", {"quotas": [{"requests": 6, "per": "day"}]})
    until_all_know(gateways, made, lambda received: limit(received, "requests", "day") == 6)
    assert served(gateways, made, 3) == [200, 200, 429]

    # It does not last; for today she gets two more.
    rows = here.done("POST", "keys/dora/top_up", {"requests": 2, "per": "day"})["data"]
    assert (rows[0]["limit"], rows[0]["used"], rows[0]["remaining"]) == (8, 6, 2)
    until_all_know(gateways, made, lambda received: limit(received, "requests", "day") == 8)
    assert served(gateways, made, 3) == [200, 200, 429]

    # The secret was in a chat: another one, and an hour for the programs that have the old one.
    there.done("POST", "keys/dora/reset", {})
    second = there.done("POST", "keys/dora/rotate", {"overlap_s": 3600})["secret"]
    there.done("PATCH", "keys/dora", {"max_parallel": 50})  # who knows of this has heard of the rotation
    until_all_know(gateways, second, lambda received: received["quotas"][-1]["limit"] == 50)
    assert [served(gateways, each, 2) for each in (made, second)] == [[200, 200], [200, 200]]

    # The file changes meanwhile: alice gets a lower limit, and a key is added. No call fails because of it.
    for gateway in gateways:
        gateway.config["keys"] = [key("alice", team="office", quotas=[{"requests": 1, "per": "day"}]), key("colleague")]
        gateway.file.write_text(yaml.safe_dump(gateway.config))
        gateway.kill(signal.SIGHUP)
    until_all_say(gateways, secret("colleague"), 200)
    until_all_know(gateways, secret("alice"), lambda received: limit(received, "requests", "day") == 1)
    assert served(gateways, secret("alice"), 2) == [200, 429]
    assert served(gateways, second, 2) == [200, 200]

    # In the evening she leaves: both secrets are dead everywhere, and so is a colleague's from the file.
    here.done("DELETE", "keys/dora")
    there.done("DELETE", "keys/colleague")
    for each in (made, second, secret("colleague")):
        until_all_say(gateways, each, 401)
    assert served(gateways, made, 2) == [401, 401]
    assert here.send("POST", "keys", {"id": "dora"}).refusal[3] == "already_exists"

    _ask_in_the_evening(gateways, here)


def _ask_in_the_evening(gateways: Sequence[Gateway], operator: Operator) -> None:
    """What finance takes away, and what the auditor reads, agree with what was done; by API and by command."""
    config = ("--config", str(gateways[0].file))
    eventually(lambda: sum(row["requests"] for row in gateways[0].usage(group_by="key")) == 15)

    done = run("usage", *config, "--by", "team,month", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    by_team = {row["team"]: row for row in json.loads(done.stdout)}
    assert {team: row["requests"] for team, row in by_team.items()} == {"office": 1, "platform": 14}
    assert by_team["platform"]["total_tokens"] == 14 * (PROMPT + COMPLETION)
    assert by_team["platform"]["cost_usd"] == pytest.approx(14 * COST_USD)
    assert gateways[-1].usage(group_by="team,month") == json.loads(done.stdout)

    received = [(row["action"], row["name"]) for row in operator.done("GET", "audit")["data"]]
    assert received == [
        ("revoke", "colleague"), ("revoke", "dora"), ("update", "dora"), ("rotate", "dora"), ("reset", "dora"),
        ("top_up", "dora"), ("update", "dora"), ("create", "dora"), ("create", "platform"),
    ]  # fmt: skip
    audit = run("audit", *config, "--json")
    assert [(row["action"], row["name"]) for row in json.loads(audit.stdout)] == received
    assert "sk-gw-" not in audit.stdout

    rows = operator.done("GET", "quotas?team=platform")["data"]
    assert window(rows, "tokens", "month")["used"] == 14 * (PROMPT + COMPLETION)
    assert [row["id"] for row in operator.done("GET", "keys?team=platform")["data"]] == ["dora"]

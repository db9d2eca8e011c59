"""Claude Code finishes tasks through a gateway of two workers, and every record agrees with the upstream's ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Stage, StartsGateways
from tests.flows import claude_code
from tests.flows.claude_code import FILE, MODEL, WORDS, Agent
from tests.flows.house import Gateway, eventually, key, model, secret, settings


def house_settings(url: str) -> dict[str, Any]:
    config = settings(url, server={"workers": 2}, upstreams={"main": {"capabilities": {"messages": True}}})
    config["models"] = {MODEL: model("messages")}
    config["keys"] = [key("alice"), key("spent", quotas=[{"requests": 1, "per": "day"}])]
    return config


def charged(call: dict[str, Any]) -> dict[str, int]:
    """A record in the counts of the upstream's usage."""
    units = call["units"]
    written = units.get("cache_write", 0) + units.get("cache_write_1h", 0)
    assert units.get("cache_write_1h", 0) * 60 == units.get("cache_write", 0) * 40
    return {
        "input_tokens": call["prompt_tokens"] - call["cached_tokens"] - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": call["cached_tokens"],
        "output_tokens": call["completion_tokens"],
    }


def check_task(folder: Path, ran: claude_code.Ran, agent: Agent) -> None:
    assert (ran.code, ran.told["result"], ran.told["is_error"]) == (0, "All done.", False), ran
    assert ((folder / FILE).read_text(), (folder / "twice.txt").read_text()) == (WORDS, WORDS * 2)
    assert [turn.number for turn in agent.ledger if turn.number >= 0] == [0, 1, 2]


def check_records(house: Gateway, agent: Agent) -> None:
    """One record for each message of the upstream, equal to the last token."""

    def messages() -> list[dict[str, Any]]:
        return [call for call in house.calls("alice") if call["endpoint"] == "messages"]

    assert eventually(lambda: len(messages()) >= len(agent.ledger))
    found, told = [charged(call) for call in messages()], [turn.usage for turn in agent.ledger]
    assert sorted(found, key=json.dumps) == sorted(told, key=json.dumps)
    assert {(call["status"], call["usage_source"]) for call in messages()} == {(200, "reported")}


def test_a_task_of_three_turns_with_tools(gateway: StartsGateways, upstream: Stage, tmp_path: Path) -> None:
    house, agent = gateway(house_settings(upstream.url)), Agent(tmp_path)
    upstream.play(always=agent.behaviour)
    check_task(tmp_path, claude_code.run(tmp_path, house.url, secret("alice"), "Write and double the note."), agent)
    check_records(house, agent)


def test_both_workers_are_killed_between_two_turns(gateway: StartsGateways, upstream: Stage, tmp_path: Path) -> None:
    house = gateway(house_settings(upstream.url))
    before = house.workers()
    agent = Agent(tmp_path, also_run=f"; kill -9 {' '.join(map(str, before))}")
    upstream.play(always=agent.behaviour)
    ran = claude_code.run(tmp_path, house.url, secret("alice"), "Write and double the note.")
    check_task(tmp_path, ran, agent)
    assert eventually(lambda: len(house.workers()) == 2 and not set(before) & set(house.workers()))
    check_records(house, agent)


def test_a_spent_quota_ends_it_with_one_request(gateway: StartsGateways, upstream: Stage, tmp_path: Path) -> None:
    house, agent = gateway(house_settings(upstream.url)), Agent(tmp_path)
    upstream.play(always=agent.behaviour)
    ran = claude_code.run(tmp_path, house.url, secret("spent"), "Write and double the note.")
    assert [turn.number for turn in agent.ledger] == [0]
    assert house.line(status=429)["error"] == "insufficient_quota"
    assert house.metric("gateway_requests_total", status="429") == 1
    assert "You exceeded the quota of your key of requests per day" in ran.told["result"]
    assert ran.told["is_error"]


def test_a_base_url_with_v1_ends_it_at_once(gateway: StartsGateways, upstream: Stage, tmp_path: Path) -> None:
    house = gateway(house_settings(upstream.url))
    ran = claude_code.run(tmp_path, f"{house.url}/v1", secret("alice"), "Hello")
    assert (ran.code, ran.told["is_error"], ran.told["api_error_status"]) == (1, True, 404)
    assert house.line(status=404, method="POST")["path"] == "/v1/v1/messages"

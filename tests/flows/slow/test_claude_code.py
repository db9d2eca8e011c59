"""Claude Code finishes tasks through a gateway of two workers, and every record agrees with the upstream's ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk
from tests.flows import claude_code
from tests.flows.chat_agent import ChatAgent, recorded
from tests.flows.claude_code import FILE, MODEL, WORDS, Agent, stream_of
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings


def gateway_settings(url: str) -> dict[str, Any]:
    config = settings(url, server={"workers": 2}, upstreams={"main": {"capabilities": {"messages": True}}})
    config["models"] = {MODEL: model("messages")}
    config["keys"] = [
        key("alice"), key("spent", quotas=[{"requests": 1, "per": "day"}]),
        key("paced", quotas=[{"requests": 1, "per": 8}]),
    ]  # fmt: skip
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
    assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
    assert ((folder / FILE).read_text(), (folder / "twice.txt").read_text()) == (WORDS, WORDS * 2)
    assert [turn.number for turn in agent.ledger if turn.number >= 0] == [0, 1, 2]


def check_records(gateway: Gateway, agent: Agent) -> None:
    """One record for each message of the upstream, equal to the last token."""

    def messages() -> list[dict[str, Any]]:
        return [call for call in gateway.calls("alice") if call["endpoint"] == "messages"]

    assert eventually(lambda: len(messages()) >= len(agent.ledger))
    found, received = [charged(call) for call in messages()], [turn.usage for turn in agent.ledger]
    assert sorted(found, key=json.dumps) == sorted(received, key=json.dumps)
    assert {(call["status"], call["usage_source"]) for call in messages()} == {(200, "reported")}


def test_a_task_of_three_turns_with_tools(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gateway, agent = start_gateway(gateway_settings(upstream.url)), Agent(tmp_path)
    upstream.answer_with(always=agent.behaviour)
    check_task(tmp_path, claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note."), agent)
    check_records(gateway, agent)


def test_both_workers_are_killed_between_two_turns(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gateway = start_gateway(gateway_settings(upstream.url))
    before = gateway.workers()
    agent = Agent(tmp_path, also_run=f"; kill -9 {' '.join(map(str, before))}")
    upstream.answer_with(always=agent.behaviour)
    ran = claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note.")
    check_task(tmp_path, ran, agent)
    assert eventually(lambda: len(gateway.workers()) == 2 and not set(before) & set(gateway.workers()))
    check_records(gateway, agent)


def test_a_spent_quota_ends_it_with_one_request(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gateway, agent = start_gateway(gateway_settings(upstream.url)), Agent(tmp_path)
    upstream.answer_with(always=agent.behaviour)
    ran = claude_code.run(tmp_path, gateway.url, secret("spent"), "Write and double the note.")
    assert [turn.number for turn in agent.ledger] == [0]
    assert gateway.line(status=429)["error"] == "insufficient_quota"
    assert gateway.metric("gateway_requests_total", status="429") == 1
    assert "You exceeded the quota of your key of requests per day" in ran.received["result"]
    assert ran.received["is_error"]


def test_a_base_url_with_v1_ends_it_at_once(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gateway = start_gateway(gateway_settings(upstream.url))
    ran = claude_code.run(tmp_path, f"{gateway.url}/v1", secret("alice"), "Hello")
    assert (ran.code, ran.received["is_error"], ran.received["api_error_status"]) == (1, True, 404)
    assert gateway.line(status=404, method="POST")["path"] == "/v1/v1/messages"


def test_a_rate_is_waited_for(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    gateway, agent = start_gateway(gateway_settings(upstream.url)), Agent(tmp_path)
    upstream.answer_with(always=agent.behaviour)
    check_task(tmp_path, claude_code.run(tmp_path, gateway.url, secret("paced"), "Write and double the note."), agent)
    gateway.stop()  # then its access log is whole
    statuses = [line["status"] for line in gateway.lines() if line.get("key") == "paced"]
    assert statuses.count(200) == len(agent.ledger)
    assert "429, 429" not in str(statuses)  # it waits as long as the gateway says
    assert 429 in statuses


def breaks_once(agent: Agent, blocks: list[dict[str, Any]], events: int, asked: list[Any]) -> Any:
    """The agent, whose first stream with tools breaks off behind so many events of these blocks. `asked` gets whether
    a stream was asked for."""

    async def behaviour(wire: Wire) -> None:
        body = wire.request.json
        if body.get("tools"):
            asked.append(body.get("stream"))
        if asked != [True]:
            await agent.behaviour(wire)
            return
        usage = {"input_tokens": 3, "output_tokens": 20, "cache_creation": {}}
        message = {
            "id": "msg_cut", "type": "message", "role": "assistant", "model": body["model"], "content": blocks,
            "stop_reason": "end_turn", "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        await wire.write(
            CHUNKED + chunk(b"".join(each + b"\n\n" for each in stream_of(message).split(b"\n\n")[:events]))
        )
        wire.close()

    return behaviour


BEGUN = {"type": "text", "text": "I will begin."}


def test_a_stream_that_breaks_is_asked_for_again_without_a_stream(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Until a block is finished."""
    gateway, agent, asked = start_gateway(gateway_settings(upstream.url)), Agent(tmp_path), list[Any]()
    upstream.answer_with(always=breaks_once(agent, [BEGUN], 4, asked))
    check_task(tmp_path, claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note."), agent)
    assert asked == [True, None, True, True]
    calls = [call for call in gateway.calls("alice") if call["endpoint"] == "messages"]
    assert [(call["ended"], call["usage_source"]) for call in calls].count(("error", "estimated")) == 1


def test_a_stream_that_breaks_behind_a_finished_block_ends_the_task(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """As it does with Anthropic itself."""
    gateway, agent, asked = start_gateway(gateway_settings(upstream.url)), Agent(tmp_path), list[Any]()
    tool = {"type": "tool_use", "id": "toolu_1", "name": "Write", "input": {"file_path": FILE}}
    upstream.answer_with(always=breaks_once(agent, [BEGUN, tool], 7, asked))
    ran = claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note.")
    assert (ran.code, ran.received["is_error"], asked) == (1, True, [True])
    assert ran.received["result"] == "API Error: The upstream for this model broke off its answer."
    assert not (tmp_path / FILE).exists()


def test_a_task_with_a_chat_model(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    config = gateway_settings(upstream.url)
    config["upstreams"]["main"]["capabilities"] = {"messages": "via_chat"}
    gateway = start_gateway(config)
    agent = ChatAgent([
        ("Write", {"file_path": str(tmp_path / FILE), "content": WORDS}),
        ("Bash", {"command": f"cat {FILE} {FILE} > twice.txt", "description": "Doubles the file"}),
    ])  # fmt: skip
    upstream.answer_with(always=agent.behaviour)
    ran = claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note.")
    assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
    assert (tmp_path / "twice.txt").read_text() == WORDS * 2

    def messages() -> list[dict[str, Any]]:
        return [call for call in gateway.calls("alice") if call["endpoint"] == "messages" and call["status"] == 200]

    assert eventually(lambda: len(messages()) >= len(agent.ledger))
    assert recorded(messages()) == agent.reported()
    assert {call["usage_source"] for call in messages()} == {"reported"}

"""Another configuration while two workers serve: what takes effect, and what goes on as it began."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ScriptedUpstream, StartsGateways, StartsProcesses
from tests.fakes.scripted import CHUNKED, Wire, chunk, error_json, event, ok_json
from tests.flows.books import ACCOUNTS, ClientCall
from tests.flows.client import Answer, events
from tests.flows.gateway_process import (
    ADMIN_TOKEN,
    CHAT,
    COMPLETIONS,
    UPSTREAM_KEY,
    Gateway,
    eventually,
    key,
    model,
    settings,
)
from tests.flows.scenario import Scenario

TWO = {"workers": 2}
PRICE = {"input": 1, "output": 2}
APPLIED = "the configuration is reloaded"
REFUSED = "the configuration is not reloaded"


def write(gateway: Gateway, config: Mapping[str, Any]) -> None:
    """Put this in the place of the file, in one move."""
    new = gateway.file.with_suffix(".new")
    new.write_text(yaml.safe_dump(dict(config)))
    new.replace(gateway.file)


def ask(gateway: Gateway) -> Answer:
    """Ask for a reload."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    return gateway.send("POST", "/admin/api/reload", key=None, headers=headers)


def change(gateway: Gateway, **sections: Any) -> list[str]:
    """Reload with these sections in the place of what was there; what has changed.

    By the log, for where this process is held up for a second, the gateway has seen the file before it is asked.
    """
    before = len(gateway.stderr)
    gateway.config = {**copy.deepcopy(gateway.config), **sections}
    write(gateway, gateway.config)
    answer = ask(gateway)
    assert answer.status == 200, answer
    changed = re.findall(r"WARNING gateway:   (.*)", gateway.stderr[before:])
    assert answer.json["changed"] in (changed, [])
    return changed


def preview(gateway: Gateway) -> Any:
    """What a reload would change."""
    answer = gateway.admin("reload")
    assert answer.status == 200, answer
    return answer.json


def everywhere(gateway: Gateway, times: int = 12, **more: Any) -> set[int]:
    """The statuses of so many calls, each on a connection of its own, so that each worker gets some."""
    return {gateway.complete(**more).status for _ in range(times)}


def count(gateway: Gateway, words: str) -> int:
    return gateway.stderr.count(words)


class Held:
    """A stream that says one event, and the rest when the test lets it."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    async def __call__(self, wire: Wire) -> None:
        def piece(text: str, finish: str | None = None) -> bytes:
            return chunk(event({"model": "up", "choices": [{"text": text, "index": 0, "finish_reason": finish}]}))

        await wire.write(CHUNKED + piece("one"))
        await asyncio.to_thread(self.let_go.wait, 30)
        usage = {"prompt_tokens": 1000, "completion_tokens": 500}
        await wire.write(piece("two", "stop") + chunk(event({"choices": [], "usage": usage})))
        await wire.write(chunk(event("[DONE]")) + b"0\r\n\r\n")


# --------------------------------------------------------------------------------------------------------- under load


def test_running_streams_survive_a_reload_and_the_death_of_a_sibling(start_gateway: StartsGateways) -> None:
    with Scenario() as scenario:
        gateway = start_gateway(settings(scenario.url, server=TWO, **ACCOUNTS))
        first = [received for _ in range(5) for received in scenario.begin(gateway, 20)]
        upstream = {"base_url": scenario.url, "api_key": UPSTREAM_KEY, "headers": {"X-New": "1"}}
        models = {COMPLETIONS: model("completions", price={"input": 5, "output": 5})}
        assert len(change(gateway, upstreams={"main": upstream}, models=models, server={**TWO, "port": 0})) > 2
        eventually(lambda: gateway.metric("gateway_in_flight_requests") == 100)
        assert scenario.call(gateway).is_served
        scenario.end()
        assert [received for received in first if not received.is_served] == []

        second = [received for _ in range(5) for received in scenario.begin(gateway, 20)]
        victim = gateway.workers()[0]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: victim not in gateway.workers())
        eventually(lambda: gateway.metric("gateway_in_flight_requests") < 100)
        scenario.end()
        survived, lost = _split(second)
        assert survived
        assert lost
        assert all(received.status in (0, 200) and not received.is_whole for received in lost)
        ended = scenario.check(gateway)
        assert ended == {"done": 100 + 1 + len(survived), "lost": len(lost)}
        prices = Counter(call["price"]["input"] for call in gateway.calls(limit=1000))
        assert prices == {1: 100, 5: 101}


def _split(received: list[ClientCall]) -> tuple[list[ClientCall], list[ClientCall]]:
    return [each for each in received if each.is_served], [each for each in received if not each.is_served]


class Provider:
    """An upstream that takes some keys and refuses all others."""

    def __init__(self, *valid: str) -> None:
        self.valid = set(valid)
        self.seen: Counter[str] = Counter()
        self.refused = 0

    async def __call__(self, wire: Wire) -> None:
        shown = wire.request.headers["authorization"].removeprefix("Bearer ")
        self.seen[shown] += 1
        if shown in self.valid:
            await ok_json()(wire)
        else:
            self.refused += 1
            await error_json(401, code="invalid_api_key")(wire)


def test_the_key_of_an_upstream_is_rotated_without_a_failed_call(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    old, new = "the-old-key-of-the-upstream", "the-new-key-of-the-upstream"
    file = tmp_path / "upstream-key"
    file.write_text(f"{old}\n")
    provider = Provider(old)
    upstream.answer_with(always=provider)
    gateway = start_gateway(
        settings(upstream.url, server=TWO, upstreams={"main": {"api_key": f"${{file:{file}}}"}}, keys=[key("alice")])
    )
    received: list[Counter[str]] = [Counter() for _ in range(6)]
    is_enough = threading.Event()

    def work(mine: Counter[str]) -> None:
        while not is_enough.is_set():
            answer = gateway.complete()
            mine["ok" if answer.status == 200 else answer.error["code"]] += 1

    def wait_for_calls(number: int) -> None:
        """Until each has had so many answers more: whatever was under way has long ended."""
        seen = [each.total() for each in received]
        eventually(lambda: all(now.total() >= was + number for now, was in zip(received, seen, strict=True)), 30)

    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in received]
    for thread in threads:
        thread.start()
    try:
        wait_for_calls(5)
        provider.valid.add(new)  # the provider takes both for a while
        file.write_text(f"{new}\n")
        eventually(lambda: APPLIED in gateway.stderr, 30)
        wait_for_calls(2)
        provider.valid.discard(old)
        seen = provider.seen[new]
        wait_for_calls(10)
    finally:
        is_enough.set()
        for thread in threads:
            thread.join(30)
    # That a disk takes its time on a busy machine is another story.
    assert sum(received, Counter[str]()).keys() - {"store_unavailable"} == {"ok"}
    assert provider.refused == 0
    assert provider.seen[old] > 0
    assert provider.seen[new] > seen
    assert "upstreams.main.api_key: (secret) changed" in gateway.stderr
    for secret in (old, new):
        assert secret not in gateway.stderr + gateway.stdout


# ------------------------------------------------------------------------------------------- one gateway, many changes


@pytest.fixture(scope="module")
def second() -> Iterator[ScriptedUpstream]:
    """Another upstream."""
    with ScriptedUpstream() as scripted:
        yield scripted
        scripted.check()


@pytest.fixture(scope="module")
def shared(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """One gateway for the tests below; each begins with the configuration that it likes."""
    return start_shared_gateway(settings(shared_upstream.url, server=TWO))


@pytest.fixture
def gateway(shared: Gateway, upstream: ScriptedUpstream) -> Gateway:
    """It, with its first configuration again."""
    upstream.answer_with(always=ok_json())
    shared.config = {**settings(upstream.url, server=TWO), "store": shared.config["store"]}
    change(shared)
    return shared


def test_keys_come_and_go_and_prices_change(gateway: Gateway) -> None:
    assert everywhere(gateway, key="dave") == {401}
    keys = [key("alice"), key("dave", models=["gpt-3*"])]
    changed = change(
        gateway, keys=keys, models={**gateway.config["models"], COMPLETIONS: model("completions", price=PRICE)}
    )
    assert changed == [
        f'models."{COMPLETIONS}".price: added', "keys.bob: removed", "keys.carol: removed", "keys.dave: added",
    ]  # fmt: skip
    assert everywhere(gateway, key="dave") == {200}
    assert everywhere(gateway, key="bob") == {401}
    assert gateway.chat("dave").status == 404
    assert eventually(lambda: gateway.calls("dave", 1))[0]["price"]["input"] == 1
    change(gateway, keys=[key("alice"), key("dave", expires="2001-01-01T00:00:00Z")])
    assert everywhere(gateway, key="dave") == {401}


def test_a_changed_quota_keeps_what_was_used(gateway: Gateway) -> None:
    def with_limit(limit: int) -> list[str]:
        return change(gateway, keys=[key("erin", quotas=[{"requests": limit, "per": "day"}])])

    def standing() -> tuple[int, int]:
        (row,) = gateway.get("/v1/key", key="erin").json["quotas"]
        return row["limit"], row["used"]

    with_limit(10)
    assert [gateway.complete("erin").status for _ in range(6)] == [200] * 6
    eventually(lambda: standing() == (10, 6))
    assert with_limit(4) == ["keys.erin.quotas[0].requests: 10 -> 4"]
    assert standing() == (4, 6)
    assert everywhere(gateway, key="erin") == {429}
    with_limit(8)
    assert [gateway.complete("erin").status for _ in range(4)] == [200, 200, 429, 429]
    eventually(lambda: standing() == (8, 8))


def test_running_calls_keep_the_configuration_they_began_with(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    held = Held()
    change(gateway, models={COMPLETIONS: model("completions", price=PRICE)})
    upstream.answer_with(held)
    second.answer_with(always=ok_json())
    with gateway.stream("carol") as client:
        assert client.read_head().status == 200
        client.read_chunk()
        # Its upstream is gone, its model costs something else, and its key is taken back.
        change(
            gateway,
            upstreams={"other": {"base_url": second.url, "api_key": UPSTREAM_KEY}},
            models={COMPLETIONS: model("completions", "other", price={"input": 7, "output": 7})},
            keys=[key("alice")],
        )
        assert everywhere(gateway) == {200}
        assert everywhere(gateway, key="carol") == {401}
        held.let_go.set()
        assert events(client.read_chunks())[-1] == "[DONE]"
    (record,) = eventually(lambda: gateway.calls("carol"))
    assert (record["upstream"], record["ended"], record["price"]["input"]) == ("main", "done", 1)
    assert record["cost_usd"] == pytest.approx((1000 * 1 + 500 * 2) / 1e6)
    calls = eventually(lambda: [call for call in gateway.calls("alice") if call["time"] > record["time"]])
    assert {(call["upstream"], call["price"]["input"]) for call in calls} == {("other", 7)}
    # Of the upstream that is gone nothing is shown any more.
    assert [row["name"] for row in gateway.admin("upstreams").json["data"]] == ["other"]
    states = {labels["upstream"] for name, labels, _ in gateway.metrics() if name == "gateway_upstream_state"}
    assert states == {"other"}
    eventually(lambda: upstream.open_now == 0)


def test_a_call_that_has_to_be_repeated_takes_the_routes_it_began_with(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    let_go = threading.Event()

    async def fail_late(wire: Wire) -> None:
        await asyncio.to_thread(let_go.wait, 30)
        await error_json(500)(wire)

    upstream.answer_with(fail_late)
    second.answer_with(ok_json())
    routes = [{"upstream": "main"}, {"upstream": "other", "priority": 2}]
    both = {"main": {"base_url": upstream.url}, "other": {"base_url": second.url}}
    change(gateway, upstreams=both, models={COMPLETIONS: {**model("completions"), "routes": routes}})
    received: list[Answer] = []
    caller = threading.Thread(target=lambda: received.append(gateway.complete()), daemon=True)
    caller.start()
    eventually(lambda: upstream.hits == 1)
    change(gateway, upstreams={"new": {"base_url": second.url}}, models={CHAT: model("chat", "new")})
    assert everywhere(gateway) == {404}  # there is no such model any more
    let_go.set()
    caller.join(30)
    (answer,) = received
    assert (answer.status, answer.headers["x-gateway-upstream"]) == (200, "other")


def test_limits_of_the_server_take_effect(gateway: Gateway) -> None:
    server = gateway.config["server"]
    change(gateway, server={**server, "max_request_bytes": 200, "access_log": "off"})
    unseen = [gateway.complete(prompt="x" * 300) for _ in range(6)]
    assert {answer.status for answer in unseen} == {413}
    change(gateway, server={**server, "trusted_proxies": ["127.0.0.0/8"]}, keys=[key("alice", ips=["10.0.0.0/8"])])
    seen = [gateway.complete(prompt="x" * 300) for _ in range(6)]
    assert {answer.status for answer in seen} == {401}
    logged = eventually(
        lambda: {answer.id for answer in seen} <= (found := {each["id"] for each in gateway.lines()}) and found
    )
    assert not {answer.id for answer in unseen} & logged
    body = json.dumps({"model": COMPLETIONS, "prompt": "x"}).encode()
    forwarded = {"X-Forwarded-For": "10.1.2.3"}
    assert {gateway.post("/v1/completions", body, headers=forwarded).status for _ in range(6)} == {200}


def test_faults_are_reported_at_once_and_change_nothing(gateway: Gateway) -> None:
    applied, refused = (gateway.metric("gateway_config_reloads_total", result=each) for each in ("applied", "refused"))
    generation = gateway.metric("gateway_config_generation")
    bad = copy.deepcopy(gateway.config)
    bad["models"][CHAT]["routes"] = [{"upstream": "mian"}]
    bad["keys"] = [key("Zoe"), key("alice", models="*")]
    write(gateway, bad)
    answer = ask(gateway)
    assert answer.refusal == (400, "invalid_request_error", None, "invalid_configuration")
    for path in (f"models.{CHAT}.routes[0].upstream: there is no upstream 'mian'", "keys[0].id", "keys[1].models"):
        assert path in answer.error["message"]
        assert path in gateway.stderr
    assert everywhere(gateway, key="bob") == {200}
    assert gateway.metric("gateway_config_reloads_total", result="refused") > refused
    write(gateway, gateway.config)  # mended
    answer = ask(gateway)
    assert answer.json == {"object": "reload", "generation": generation, "changed": []}
    assert gateway.metric("gateway_config_generation") == generation
    assert gateway.metric("gateway_config_reloads_total", result="applied") > applied


def test_what_needs_a_restart_is_refused_by_name(gateway: Gateway) -> None:
    other = copy.deepcopy(gateway.config)
    other["server"] = {**other["server"], "port": 1234, "workers": 3, "access_log": "off"}
    other["store"] = {**other["store"], "on_outage": "allow"}
    other["keys"] = [key("alice")]
    write(gateway, other)
    answer = ask(gateway)
    assert answer.refusal == (400, "invalid_request_error", None, "restart_required")
    for path in ("server.port", "server.workers", "store.on_outage"):
        assert f"{path}: has changed, which needs a restart" in answer.error["message"]
    assert "access_log" not in answer.error["message"]
    assert everywhere(gateway, key="bob") == {200}  # and nothing of the rest is applied


def test_a_signal_reloads_and_so_does_a_change_of_the_content(gateway: Gateway) -> None:
    by_signal, by_content = (
        count(gateway, f"{APPLIED} (SIGHUP)"),
        count(gateway, f"{APPLIED} (its content has changed)"),
    )
    for pid in (*gateway.workers(), gateway.process.pid):  # a terminal sends it to all of them
        os.kill(pid, signal.SIGHUP)
    eventually(lambda: "is read again (SIGHUP): nothing has changed" in gateway.stderr)
    for attempt in range(5):  # if this process is held up for long, the gateway sees it by itself
        seen = count(gateway, APPLIED)
        write(gateway, {**gateway.config, "keys": [key("alice"), key(f"frank-{attempt}")]})
        gateway.kill(signal.SIGHUP)
        eventually(lambda seen=seen: count(gateway, APPLIED) > seen, 30)  # type: ignore[misc]
        assert everywhere(gateway, key=f"frank-{attempt}") == {200}
        if count(gateway, f"{APPLIED} (SIGHUP)") > by_signal:
            break
    assert count(gateway, f"{APPLIED} (SIGHUP)") == by_signal + 1
    write(gateway, {**gateway.config, "keys": [key("alice"), key("grace")]})
    eventually(lambda: count(gateway, f"{APPLIED} (its content has changed)") > by_content, 30)
    assert everywhere(gateway, key="grace") == {200}
    assert everywhere(gateway, key="frank-0") == {401}
    refused = count(gateway, f"{REFUSED} (its content has changed)")
    gateway.file.write_text("keys: [")
    eventually(lambda: count(gateway, f"{REFUSED} (its content has changed)") == refused + 1, 30)
    assert everywhere(gateway, key="grace") == {200}


def test_an_upstream_s_health_is_reported_for_all_workers(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    change(gateway, upstreams={"main": {"base_url": upstream.url, "api_key": "a-good-key-of-ours"}})
    eventually(lambda: upstream.open_now == 0)  # of the one that was called so
    assert everywhere(gateway) == {200}
    (row,) = eventually(lambda: [row for row in gateway.admin("upstreams").json["data"] if row["workers"] == 2])
    assert (row["name"], row["base_url"], row["state"]) == ("main", upstream.url, "closed")
    assert (row["in_flight"], row["last_failure"], row["models"]) == (0, None, [])
    assert row["connections"] == upstream.open_now > 0
    assert row["credentials"] == [{"number": 1, "resting_s": 0, "model": None, "fault": None}]
    upstream.answer_with(always=error_json(401, code="invalid_api_key"))
    assert everywhere(gateway) == {502}
    (row,) = gateway.admin("upstreams").json["data"]
    (credential,) = row["credentials"]
    assert 0 < credential["resting_s"] <= 60
    assert (credential["fault"], row["last_failure"]["fault"]) == ("auth_failed", "auth_failed")
    upstream.answer_with(always=error_json(500))
    change(gateway, upstreams={"main": {"base_url": upstream.url, "api_key": "a-better-key-of-ours"}})
    assert everywhere(gateway, 30) <= {502, 503}
    (row,) = gateway.admin("upstreams").json["data"]
    assert row["state"] == "open"
    (circuit,) = [each for each in row["models"] if each["model"] == COMPLETIONS]
    assert circuit["state"] == "open"
    assert circuit["state_s"] >= 0
    assert "a-better-key" not in gateway.admin("upstreams").body.decode()
    upstream.answer_with(always=ok_json())
    change(gateway, upstreams={"main": {"base_url": upstream.url, "api_key": UPSTREAM_KEY}})  # nothing held against it
    assert everywhere(gateway) == {200}


def test_many_reloads_leave_no_descriptor_open(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    def reload(number: int) -> None:
        main = {"base_url": upstream.url, "api_key": f"key-number-{number}", "headers": {"X-Number": str(number)}}
        change(gateway, upstreams={"main": main, f"other-{number}": main})
        assert everywhere(gateway, 4) == {200}

    def open_now() -> list[int]:
        return [sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) for pid in (gateway.process.pid, *gateway.workers())]

    for number in range(3):
        reload(number)
    change(gateway, upstreams={"main": {"base_url": upstream.url}})
    eventually(lambda: upstream.open_now == 0)
    before = open_now()
    for number in range(3, 18):
        reload(number)
    change(gateway, upstreams={"main": {"base_url": upstream.url, "probe_s": 0}})
    eventually(lambda: upstream.open_now == 0)
    eventually(lambda: all(now <= was + 2 for now, was in zip(open_now(), before, strict=True)), 20)


def test_a_worker_that_starts_later_has_the_newest_configuration(gateway: Gateway) -> None:
    change(gateway, keys=[key("heidi")])
    old = gateway.workers()
    for worker in old:
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: len(gateway.workers()) == 2 and not set(gateway.workers()) & set(old), 30)
    eventually(lambda: [row["workers"] for row in gateway.admin("upstreams").json["data"]] == [2], 30)
    assert everywhere(gateway, key="heidi") == {200}
    assert everywhere(gateway, key="alice") == {401}
    assert change(gateway, keys=[key("alice")])  # and is given the next ones
    assert everywhere(gateway) == {200}


def test_a_gateway_without_a_file_has_nothing_to_reload(process: StartsProcesses) -> None:
    demo = process("demo", "--port", "0", "--empty")
    demo.wait_for("Talk to it")
    demo.kill(signal.SIGHUP)
    eventually(lambda: "started without a file" in demo.stderr)
    demo.kill(signal.SIGTERM)
    assert demo.wait() == 0


def test_a_preview_says_what_a_reload_would_change(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream
) -> None:
    gateway = start_shared_gateway(settings(shared_upstream.url, server={"reload_on_change": False, **TWO}))
    assert preview(gateway)["changes"] == []
    before = copy.deepcopy(gateway.config)
    config = copy.deepcopy(before)
    config["models"][CHAT]["max_attempts"] = 1
    write(gateway, config)
    received = preview(gateway)
    assert received["changes"] == [
        {"setting": f'models."{CHAT}".max_attempts', "what": "3 -> 1", "needs_restart": False}
    ]
    assert (received["code"], received["applies_by_itself"]) == (None, False)
    assert ask(gateway).json["changed"] == [f'models."{CHAT}".max_attempts: 3 -> 1']
    assert preview(gateway) == {**received, "generation": 2, "changes": []}
    write(gateway, {**before, "server": {**before["server"], "workers": 3}})
    assert preview(gateway)["code"] == "restart_required"
    write(gateway, {**before, "models": {}, "prise": 1})
    received = preview(gateway)
    assert received["code"] == "invalid_configuration"
    assert any("prise" in fault for fault in received["faults"])
    assert ask(gateway).status == 400

"""What the calls of one key hold of something that a wing or the web server shares leaves room for those of others, and
their failures close nothing for them."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.observe.metrics import Telemetry
from gateway.upstream.circuit_breaker import CONSECUTIVE_FAILURES
from gateway.wings.content.keeper import ContentStores, Keeper
from gateway.wings.content.settings import ContentSettings
from gateway.wings.hooks.places import Places
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire, ok_json
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, secret, settings

IN_FLIGHT = 12
HOOKS = ["refuse", "allow"]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    url = f"{shared_upstream.url}/hooks"
    hooks = {
        "before_call": {
            name: {"url": f"{url}/{name}", "sees": "body", "on_failure": name, "keys": [f"*-{name}"], "at_once": 2}
            for name in HOOKS
        }
    }
    names = ["alice", "bob", *[f"{who}-{name}" for name in HOOKS for who in ("alice", "bob")]]
    keys = [key(name, max_parallel=9 if "-" in name else 1) for name in names]
    return start_shared_gateway(
        settings(shared_upstream.url, server={"max_in_flight": IN_FLIGHT, "workers": 1}, keys=keys, hooks=hooks)
    )


async def answers(wire: Wire) -> None:
    """The hook fails with a body that says so, and refuses one that is bad; the upstream answers."""
    body = wire.request.body
    if "/hooks/" not in wire.request.path:
        await ok_json()(wire)
    elif b"failing" in body:
        await ok_json({"action": "none of the actions"})(wire)
    else:
        await ok_json({"action": "refuse" if b"forbidden" in body else "allow"})(wire)


@pytest.mark.parametrize("on_failure", HOOKS)
def test_a_hook_that_fails_for_one_key_is_asked_about_others(
    gateway: Gateway, upstream: ScriptedUpstream, on_failure: str
) -> None:
    upstream.answer_with(always=answers)
    alice, bob = f"alice-{on_failure}", f"bob-{on_failure}"
    for _ in range(CONSECUTIVE_FAILURES + 1):
        assert gateway.complete(key=alice, prompt="failing").status == (503 if on_failure == "refuse" else 200)
    before = gateway.metric("gateway_hook_calls_total", hook=on_failure, outcome="circuit_open")
    assert before == 1
    assert gateway.complete(key=bob, prompt="forbidden").status == 403
    assert gateway.complete(key=bob).status == 200
    assert gateway.metric("gateway_hook_calls_total", hook=on_failure, outcome="circuit_open") == before


async def test_a_key_whose_questions_take_long_leaves_others_a_place() -> None:
    places, done = Places(4), asyncio.Event()

    async def ask(who: str) -> None:
        async with places.of(who):
            await done.wait() if who == "alice" else None

    waiting = [asyncio.create_task(ask("alice")) for _ in range(9)]
    await asyncio.sleep(0)
    await ask("bob")  # hangs for ever where none is left
    done.set()
    await asyncio.gather(*waiting)
    assert not places._by_key


async def test_the_content_of_one_key_leaves_room_for_that_of_others(tmp_path: Path) -> None:
    made = ContentSettings.model_validate({
        "files": {"folder": str(tmp_path)}, "keep": [{}], "max_call_bytes": 10, "max_waiting_bytes": 300,
    })  # fmt: skip
    keeper = Keeper()
    keeper.stores = ContentStores(made, keeper, Telemetry([], 0))
    assert [keeper.hold(10, "alice") for _ in range(6)] == [True] * 5 + [False]
    assert keeper.hold(50, "bob")
    await keeper.stores.close()


BODIES: dict[str, tuple[str, bytes]] = {
    "json": ("application/json", json.dumps({"model": COMPLETIONS, "prompt": "Hi"}).encode()),
    "form": ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="file"'),
}


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_of_one_key_that_come_slowly_leave_calls_to_others(
    gateway: Gateway, upstream: ScriptedUpstream, kind: str
) -> None:
    """They hold a place of `max_in_flight` before the key's own limits are asked."""
    upstream.answer_with(always=answers)
    content_type, begun = BODIES[kind]
    before = gateway.metric("gateway_rejections_total", reason="too_many_calls")
    path = "/v1/completions" if kind == "json" else "/v1/audio/transcriptions"
    head: dict[str, Any] = {"Host": "x", "Content-Type": content_type, "Authorization": f"Bearer {secret('alice')}"}
    lines = "".join([f"{name}: {value}\r\n" for name, value in {**head, "Content-Length": 1000}.items()])
    with ExitStack() as stack:
        clients = [stack.enter_context(gateway.connect()) for _ in range(IN_FLIGHT)]
        for client in clients:
            client.send(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + begun)
        eventually(
            lambda: gateway.metric("gateway_rejections_total", reason="too_many_calls") == before + IN_FLIGHT // 2
        )
        assert gateway.complete(key="bob").status == 200

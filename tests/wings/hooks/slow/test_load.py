"""Hooks that hang, answer what is no answer, send 10 MB, close, or are killed, under 200 calls a second: `on_failure`
decides about each call, and each served call has one record. Counts are judged, never times."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import scripted
from tests.fakes.scripted import Scripted
from tests.flows.gateway_process import CHAT, Gateway, eventually, key, secret, settings
from tests.wings.hooks.test_hooks import GOOD, SECRET, TOO_LONG

CALLS_A_SECOND = 200
CALLS = 600
KILLED_AT = CALLS // 2
FOLDER = Path(__file__).parents[4] / "examples" / "hooks"

PROGRAM = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import hook_server
server = hook_server.server(lambda question: hook_server.ALLOW, {SECRET!r})
print(server.server_address[1], flush=True)
server.serve_forever()
"""

BAD = {
    "hangs": scripted.silent,
    "lies": scripted.ok_json({"action": "replace", "body": {"model": "other"}}),
    "sends": TOO_LONG,
    "closes": scripted.close_without_answer,
}


class Answered(NamedTuple):
    key: str
    status: int
    code: str | None
    id: str


@contextmanager
def program() -> Iterator[tuple[str, int]]:
    """The address and the process id of a hook that allows all."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/", process.pid
        finally:
            process.kill()


async def load(url: str, keys: list[str], hook: int) -> list[Answered]:
    """The answers to calls of these keys by turns. In the middle this process is killed."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call(name: str) -> Answered:
            body = {"model": CHAT, "user": name, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
            headers = {"Authorization": f"Bearer {secret(name)}"}
            async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                error = (await answer.json()).get("error") or {}
                return Answered(name, answer.status, error.get("code"), answer.headers["x-request-id"])

        began, calls = asyncio.get_running_loop().time(), []
        for number in range(CALLS):
            await asyncio.sleep(began + number / CALLS_A_SECOND - asyncio.get_running_loop().time())
            calls.append(asyncio.create_task(call(keys[number % len(keys)])))
            if number == KILLED_AT:
                await asyncio.gather(*calls[: len(keys)])  # of each key one, however slow the machine is
                os.kill(hook, signal.SIGKILL)
        return await asyncio.gather(*calls)


def started(start_gateway: StartsGateways, upstream: str, urls: dict[str, str], good: str, silent: str) -> Gateway:
    """With a hook for the calls of each key, which has its name: it allows or refuses where the hook fails."""
    before = {
        f"{name}-{way}": {
            "url": url, "secret": SECRET, "keys": [f"{name}-{way}"], "on_failure": way,
            "timeout_ms": 500 if name == "hangs" else 20_000,
        }
        for name, url in urls.items()
        for way in ("allow", "refuse")
    }  # fmt: skip
    after = {
        "good": {"url": good, "secret": SECRET, "answers_of": ["*-allow"], "timeout_ms": 30_000},
        "silent": {"url": silent, "secret": SECRET, "timeout_ms": 200, "max_waiting": 8},
    }
    return start_gateway(
        settings(
            upstream, server={"workers": 2}, keys=[key(name) for name in before],
            hooks={"before_call": before, "after_call": after},
        )
    )  # fmt: skip


def outcomes(gateway: Gateway) -> dict[str, Counter[str]]:
    """The outcomes of each hook."""
    found: dict[str, Counter[str]] = {}
    for _, labels, value in gateway.metrics("gateway_hook_calls_total"):
        found.setdefault(labels["hook"], Counter())[labels["outcome"]] += int(value)
    return found


def _totals(found: dict[str, Counter[str]]) -> dict[str, int]:
    return {hook: each.total() for hook, each in found.items()}


def recorded(gateway: Gateway, name: str, number: int) -> list[dict[str, Any]]:
    """The records of this key, as soon as there are so many; it may have none."""
    return eventually(lambda: [found] if len(found := gateway.calls(name, 1000)) >= number else None)[0]


def test_under_load_each_call_ends_as_its_setting_has_it_and_has_its_record(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=GOOD)
    with ExitStack() as stack:
        hooks = {name: stack.enter_context(Scripted(always=each)) for name, each in BAD.items()}
        url, process = stack.enter_context(program())
        good = stack.enter_context(Scripted(always=scripted.ok_json({})))
        urls = {**{name: each.url for name, each in hooks.items()}, "killed": url}
        gateway = started(start_gateway, upstream.url, urls, good.url, hooks["hangs"].url)
        keys = [f"{name}-{way}" for name in urls for way in ("allow", "refuse")]
        answered = asyncio.run(load(gateway.url, keys, process))

        served = {each.id: each.key for each in answered if each.status == 200}
        refused = Counter(each.key for each in answered if (each.status, each.code) == (503, "hook_failed"))
        assert len(served) + refused.total() == CALLS
        assert Counter(each.json["user"] for each in upstream.requests) == Counter(served.values())

        each_key = CALLS // len(keys)
        wanted = {**dict.fromkeys(keys, each_key), "good": len(served), "silent": len(served)}
        asked = eventually(lambda: _totals(found := outcomes(gateway)) == wanted and found, 60)
        for name in keys:
            ids, found = {each for each, whose in served.items() if whose == name}, asked[name]
            failed = each_key - found["allowed"]
            records = recorded(gateway, name, len(ids))
            assert sorted(each["id"] for each in records) == sorted(ids)
            assert sum("was passed over" in each["amended"] for each in records) == len(ids) - found["allowed"]
            assert refused[name] == (failed if name.endswith("-refuse") else 0)
            assert (failed == each_key) != name.startswith("killed"), found

        posted = {each.json["call"]["id"]: each.json.get("answer") for each in good.requests}
        has_agreed = {"texts": ["Hi"], "cut": False}
        assert posted == {each: has_agreed if whose.endswith("-allow") else None for each, whose in served.items()}
        assert asked["good"] == {"delivered": len(served)}

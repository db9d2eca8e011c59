"""Two gateways behind a balancer are restarted in turn, under load: no call fails, and all records agree."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from pathlib import Path

import openai

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.balancer import Balancer
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import CHUNKED, Wire, chunk, dead_port, event, ok_json
from tests.flows.gateway_process import CHAT, COMPLETIONS, Gateway, eventually, key, secret, settings

EVENTS = 30
USAGE = {"prompt_tokens": 3, "completion_tokens": EVENTS, "total_tokens": 3 + EVENTS}


async def answer(wire: Wire) -> None:
    """A stream takes about half a second."""
    if not wire.request.json.get("stream"):
        await ok_json()(wire)
        return
    await wire.write(CHUNKED)
    for number in range(EVENTS):
        finish = "stop" if number == EVENTS - 1 else None
        piece = {"index": 0, "delta": {"content": f" {number}"}, "finish_reason": finish}
        await wire.write(chunk(event({"model": "up", "choices": [piece]})))
        await asyncio.sleep(0.015)
    await wire.write(chunk(event({"choices": [], "usage": USAGE})) + chunk(event("[DONE]")) + b"0\r\n\r\n")


class Caller(threading.Thread):
    """Calls again and again through the official SDK, which may not repeat anything."""

    def __init__(self, port: int, name: str, *, is_stream: bool) -> None:
        super().__init__(daemon=True)
        self.received: Counter[str] = Counter()
        self.is_enough = threading.Event()
        self._is_stream = is_stream
        self._client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=secret(name), max_retries=0)

    def run(self) -> None:
        while not self.is_enough.is_set():
            try:
                self._stream() if self._is_stream else self._complete()
            except openai.OpenAIError as error:
                self.received[repr(error)] += 1
            else:
                self.received["ok"] += 1
        self._client.close()

    def _complete(self) -> None:
        assert self._client.completions.create(model=COMPLETIONS, prompt="Hello").choices

    def _stream(self) -> None:
        messages = [{"role": "user", "content": "Hello"}]
        stream = self._client.chat.completions.create(model=CHAT, messages=messages, stream=True)  # type: ignore[arg-type]
        assert "".join(part.choices[0].delta.content or "" for part in stream).endswith(f" {EVENTS - 1}")


def test_a_rolling_restart_fails_no_call(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.answer_with(always=answer)
    with RedisServer(tmp_path / "redis") as redis:
        config = settings(
            upstream.url,
            server={"workers": 2, "drain_delay_s": 1.0, "drain_timeout_s": 30},
            store={"url": redis.url},
            keys=[key("alice", quotas=[{"tokens": 10**9, "per": "day"}])],
        )
        ports = [dead_port(), dead_port()]

        def start(port: int) -> Gateway:
            return start_gateway(config, "--port", str(port))

        gateways = [start(port) for port in ports]
        with Balancer(ports) as balancer:
            callers = [Caller(balancer.port, "alice", is_stream=number % 2 == 0) for number in range(6)]
            for caller in callers:
                caller.start()
            for number, port in enumerate(ports):
                eventually(lambda: len(balancer.ready) == 2, 60)
                before = sum(caller.received["ok"] for caller in callers)
                eventually(lambda before=before: sum(caller.received["ok"] for caller in callers) > before + 50, 60)  # type: ignore[misc]
                gateways[number].kill(signal.SIGTERM)
                assert gateways[number].wait() == 0
                gateways[number] = start(port)
            eventually(lambda: len(balancer.ready) == 2, 60)
            for caller in callers:
                caller.is_enough.set()
            for caller in callers:
                caller.join(60)
        received = sum((caller.received for caller in callers), Counter[str]())
        assert list(received) == ["ok"]
        (row,) = gateways[0].usage(group_by="key")
        assert row["requests"] == received.total()
        assert Counter(call["ended"] for call in gateways[1].calls(limit=10_000)) == {"done": received.total()}
        (quota,) = gateways[0].get("/v1/key").json["quotas"]
        assert (quota["used"], quota["reserved"]) == (row["total_tokens"], 0)

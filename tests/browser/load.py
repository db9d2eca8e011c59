"""Whether viewers of the dashboard delay calls: python -m tests.browser.load

Fills a store with a year of a thousand keys, starts a gateway over it in front of the simulated upstream, and makes
calls at a steady rate. In every other phase three viewers request what the dashboard's page requests
(tests/browser/viewers.py): one the overview, one all views in turn, one a member's view with an API key. Printed for
each phase: the median and 99th percentile of the latency of all calls, from the time each was due; at the end both
kinds of phases side by side, and the spread within each kind, which is the noise of this machine.

Needs redis-server for `--store redis`. It takes half a minute to prepare, and five minutes with the defaults. Only
phases that take turns on the same processes are compared, never two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import uvloop

from tests.flows.gateway_process import COMPLETIONS, Gateway, Process, key, model, secret, settings

from .stores import days, filled, large
from .viewers import VIEWS, Subjects

TEAMS, MODELS = 20, 5
LOOKED_AT = Subjects(key="key-0007", team="team-7", model="model-3", upstream="upstream-1")
ANSWER_S = 0.02
"""Delay of the upstream, in seconds."""
WARM_S = 3.0
LATE_S = 30.0
IDLE_S = 10.0
"""Seconds of idle time after which a connection is not reused: the gateway may close it."""


class Phase(NamedTuple):
    """Latencies of the calls of one phase, in milliseconds."""

    is_open: bool
    calls: int
    failed: int
    p50_ms: float
    p99_ms: float
    most_ms: float
    looked: dict[str, Any]
    """Requests of the dashboard: their number, and the slowest in seconds."""


def config(upstream: str, store: str, keys: int, workers: int) -> dict[str, Any]:
    """`keys` keys in 20 teams, each with its own quotas."""
    quotas = [{"requests": 1_000_000, "per": "minute"}, {"tokens": 10_000_000_000, "per": "day"}]
    return settings(
        upstream,
        store={"url": store},
        server={"workers": workers, "access_log": "off"},
        models={COMPLETIONS: model("completions", price={"input": 1.5, "output": 2})},
        teams={f"team-{place}": {"quotas": [{"usd": 1_000_000, "per": "month"}]} for place in range(TEAMS)},
        keys=[key(f"key-{place:04}", team=f"team-{place % TEAMS}", quotas=quotas) for place in range(keys)],
    )


# --------------------------------------------------------------------------------------------------------------- calls


class Caller:
    """Calls at a steady rate, each on an idle connection."""

    def __init__(self, port: int, keys: int, per_s: float) -> None:
        self._port = port
        self._keys = keys
        self._per_s = per_s
        self._free: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        """Since when, and the connection."""
        self._made = 0
        self.took_s: list[float] = []
        self.failed = 0

    async def call_for(self, seconds: float) -> None:
        """Makes the calls that are due within this time, and waits for the last."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as calls:
            for place in range(int(seconds * self._per_s)):
                due = began + place / self._per_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                calls.create_task(self._call(due))

    async def _call(self, due: float) -> None:
        self._made += 1
        # Every third call is streamed.
        wish = {"model": COMPLETIONS, "prompt": "Once upon a time", "stream": self._made % 3 == 0,
                "simulate": {"delay_s": ANSWER_S, "tokens": 8}}  # fmt: skip
        body = json.dumps(wish).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {secret(f'key-{self._made % self._keys:04}')}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        async with asyncio.timeout(LATE_S):
            reader, writer = await self._connection()
            writer.write(head.encode() + body)
            is_good = await _read(reader)
        self.took_s.append(time.monotonic() - due)
        self.failed += not is_good
        self._free.append((time.monotonic(), reader, writer))

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            since, reader, writer = self._free.pop()
            if time.monotonic() - since < IDLE_S:
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        for _, _, writer in self._free:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    else:
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return head.startswith(b"http/1.1 200 ")


# -------------------------------------------------------------------------------------------------------------- phases


class Looking:
    """The other process, which requests the dashboard."""

    def __init__(self, url: str, number: int, stay_s: float) -> None:
        command = [sys.executable, "-m", "tests.browser.viewers", url, str(number), str(stay_s), *LOOKED_AT]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        received: dict[str, Any] = json.loads(self._process.stdout.readline())
        return received

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LATE_S)


async def measure(caller: Caller, looking: Looking, seconds: float, *, is_open: bool) -> Phase:
    """One phase. The page is opened as it begins, and closed as it ends."""
    caller.took_s.clear()
    caller.failed = 0
    if is_open:
        looking.tell("open")
    await caller.call_for(seconds)
    looked = looking.tell("close") if is_open else {}
    took_ms = [1000 * each for each in caller.took_s]
    cuts = quantiles(took_ms, n=100)
    return Phase(is_open, len(took_ms), caller.failed, cuts[49], cuts[98], max(took_ms), looked)


async def run(gateway: Gateway, wish: argparse.Namespace) -> list[Phase]:
    """All phases: quiet, open, quiet, ..., quiet."""
    caller = Caller(gateway.port, wish.keys, wish.rate)
    looking = Looking(gateway.url, wish.viewers, wish.seconds / len(VIEWS))
    looking.tell("close")  # wait until it has started
    phases = []
    await caller.call_for(WARM_S)
    for place in range(2 * wish.rounds + 1):
        phase = await measure(caller, looking, wish.seconds, is_open=place % 2 == 1)
        phases.append(phase)
        print(
            f"{'open ' if phase.is_open else 'quiet'}  {phase.calls:6} calls, {phase.failed} failed   "
            f"p50 {phase.p50_ms:7.2f} ms   p99 {phase.p99_ms:7.2f} ms   longest {phase.most_ms:7.2f} ms",
            flush=True,
        )
    looking.end()
    caller.close()
    return phases


def summary(phases: list[Phase]) -> str:
    """Both kinds of phases side by side."""
    lines = []
    for name in ("p50_ms", "p99_ms"):
        quiet, looked = ([getattr(each, name) for each in phases if each.is_open is kind] for kind in (False, True))
        ratio, spread = median(looked) / median(quiet), max(quiet) / min(quiet)
        lines.append(
            f"{name[:3]}: open {_range(looked)}, quiet {_range(quiet)}; open / quiet {ratio:.3f}, "
            f"longest / shortest of the quiet {spread:.3f}"
        )
    slowest: dict[str, tuple[int, float]] = {}
    for phase in phases:
        for path, (times, took) in phase.looked.items():
            known = slowest.get(path, (0, 0.0))
            slowest[path] = known[0] + times, max(known[1], took)
    lines += [f"  {times:5} x {path}: at most {took:.2f} s" for path, (times, took) in slowest.items()]
    return "\n".join(lines)


def _range(values_ms: list[float]) -> str:
    return f"{median(values_ms):.2f} ms ({min(values_ms):.2f} to {max(values_ms):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--store", choices=("embedded", "redis"), default="embedded")
    parser.add_argument("--rounds", type=int, default=4, help="open phases; there is one quiet one more")
    parser.add_argument("--seconds", type=float, default=30, help="of one phase")
    parser.add_argument("--rate", type=float, default=150, help="calls a second")
    parser.add_argument("--viewers", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--days", type=int, default=365)
    wish = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-load-") as made:
        folder = Path(made)
        with filled(wish.store, folder, large(wish.keys, days(wish.days), MODELS)) as store:
            simulator = Process(folder / "simulator", "simulate", "--port", "0")
            gateway = None
            try:
                address = simulator.wait_for(r"serves (http://\S+)")[1]
                gateway = Gateway(folder / "gateway", config(address, store, wish.keys, wish.workers))
                print(summary(uvloop.run(run(gateway, wish))))
                gateway.stop()
            finally:
                if gateway is not None:
                    gateway.end()
                simulator.end()


if __name__ == "__main__":
    main()

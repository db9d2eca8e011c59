"""Clients in their own process, which all call at the same moment; it imports only the standard library.

python -m tests.flows.crowd                              # reads one line of JSON: the calls
{"calls": [[PORT, PATH, SECRET, BODY], ...]}             # each on a connection of its own
ready                                                    # all are connected; a line is awaited
[200, 429, ...]                                          # the status of each
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0

Call = tuple[int, str, str, Any]
"""The gateway's port, the path, the key's secret, the body."""


def statuses(calls: Sequence[Call], processes: int) -> list[int]:
    """The HTTP statuses of these calls, in their order, when this number of client processes makes them at once."""
    parts = [calls[number::processes] for number in range(processes)]
    crowds = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.flows.crowd"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in parts
    ]
    try:
        for crowd, part in zip(crowds, parts, strict=True):
            assert crowd.stdin is not None
            crowd.stdin.write(json.dumps({"calls": part}) + "\n")
            crowd.stdin.flush()
        for crowd in crowds:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "ready\n"
        received = [0] * len(calls)
        for crowd in crowds:
            assert crowd.stdin is not None
            crowd.stdin.write("\n")
            crowd.stdin.flush()
        for number, crowd in enumerate(crowds):
            said, _ = crowd.communicate(timeout=PATIENCE_S)
            received[number::processes] = json.loads(said)
        return received
    finally:
        for crowd in crowds:
            with crowd:
                crowd.kill()


async def _main() -> None:
    calls: list[Call] = json.loads(sys.stdin.readline())["calls"]
    connections = [await asyncio.open_connection("127.0.0.1", port) for port, *_ in calls]
    print("ready", flush=True)
    sys.stdin.readline()
    received = await asyncio.gather(
        *[_tell(*connection, call) for connection, call in zip(connections, calls, strict=True)]
    )
    print(json.dumps(received), flush=True)


async def _tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Call) -> int:
    _, path, secret, body = call
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1", "Host: gateway", f"Authorization: Bearer {secret}", "Content-Type: application/json",
        f"Content-Length: {len(content)}", "Connection: close", "", "",
    ]  # fmt: skip
    writer.write("\r\n".join(lines).encode() + content)
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


if __name__ == "__main__":
    asyncio.run(_main())

"""Whole answers: wrk on 64 connections, and what it says of them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import calls
from .processes import BenchError

CONNECTIONS = 64


@dataclass(frozen=True)
class Load:
    """What wrk has seen in one run. Latencies in milliseconds."""

    requests: int
    p50_ms: float
    p99_ms: float


def script() -> str:
    """In Lua: the call, made once, and the sums in a form that a program can read."""
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in calls.HEADERS.items())
    return f"""wrk.method = "POST"
wrk.body = [==[{calls.request().decode()}]==]
{headers}
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('\\n{{"requests": %d, "p50_us": %d, "p99_us": %d, "status": %d, "connect": %d, "read": %d, ' ..
    '"write": %d, "timeout": %d}}\\n', summary.requests, latency:percentile(50), latency:percentile(99),
    e.status, e.connect, e.read, e.write, e.timeout))
end
"""


def parse(text: str) -> Load:
    """The line that the script prints. Raises `BenchError` when a single call failed, or none was made."""
    line = next((line for line in text.splitlines() if line.startswith('{"requests"')), None)
    if line is None:
        raise BenchError(f"wrk did not say what it has done: {text.strip()[-500:]}")
    told: dict[str, int] = json.loads(line)
    wrong = {name: told[name] for name in ("status", "connect", "read", "write", "timeout") if told[name]}
    if wrong or not told["requests"]:
        raise BenchError(f"of {told['requests']} calls some failed: {wrong}")
    return Load(told["requests"], told["p50_us"] / 1000, told["p99_us"] / 1000)


def run(port: int, seconds: int, folder: Path) -> Load:
    """Load this port with whole chat calls for so long, from the core that this process has."""
    file = folder / "call.lua"
    file.write_text(script())
    url = f"http://127.0.0.1:{port}{calls.PATH}"
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "5s", "-s", str(file), url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 30)
    if ended.returncode:
        raise BenchError(f"wrk ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return parse(ended.stdout)

"""Whole answers: wrk on 64 connections, and what it says of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import calls, cases
from .cases import Case
from .processes import BenchError

CONNECTIONS = 64


@dataclass(frozen=True)
class Load:
    """What wrk has seen in one run. Latencies in milliseconds."""

    requests: int
    p50_ms: float
    p99_ms: float


def script(
    case: Case | None = None, first: int = 0, headers: Mapping[str, str] = {}, body: bytes = calls.request()
) -> str:
    """In Lua: the calls, and the sums in a form that a program can read. `first`: how many there were before."""
    return f"""{_one_call(headers, body) if case is None else _calls_of(case, first)}
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('\\n{{"requests": %d, "p50_us": %d, "p99_us": %d, "status": %d, "connect": %d, "read": %d, ' ..
    '"write": %d, "timeout": %d}}\\n', summary.requests, latency:percentile(50), latency:percentile(99),
    e.status, e.connect, e.read, e.write, e.timeout))
end
"""


def _one_call(more: Mapping[str, str], body: bytes) -> str:
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in {**calls.HEADERS, **more}.items())
    return f"""wrk.method = "POST"
wrk.body = [==[{body.decode()}]==]
{headers}"""


def _calls_of(case: Case, first: int) -> str:
    """Keys and models take turns."""
    bodies = ", ".join(f"[==[{case.request(number).decode()}]==]" for number in range(case.models))
    (before, after) = cases.secret(0).split(f"{0:06d}", 1)
    return f"""local bodies = {{{bodies}}}
local ends = {{}}
for number, body in ipairs(bodies) do
  ends[number] = "\\r\\nContent-Type: application/json\\r\\nContent-Length: " .. #body .. "\\r\\n\\r\\n" .. body
end
local before = "POST {case.path} HTTP/1.1\\r\\nHost: bench\\r\\nAuthorization: Bearer "
local count = {first}
function request()
  local key = count % {case.callers}
  count = count + 1
  return before .. string.format("{before}%06d-%0{len(after) - 1}d", key, key) .. ends[count % {case.models} + 1]
end"""


def parse(text: str) -> Load:
    """The line that the script prints. Raises `BenchError` when a single call failed, or none was made."""
    line = next((line for line in text.splitlines() if line.startswith('{"requests"')), None)
    if line is None:
        raise BenchError(f"wrk did not say what it has done: {text.strip()[-500:]}")
    received: dict[str, int] = json.loads(line)
    wrong = {name: received[name] for name in ("status", "connect", "read", "write", "timeout") if received[name]}
    if wrong or not received["requests"]:
        raise BenchError(f"of {received['requests']} calls some failed: {wrong}")
    return Load(received["requests"], received["p50_us"] / 1000, received["p99_us"] / 1000)


def run(
    port: int, seconds: int, folder: Path, case: Case | None = None, first: int = 0, headers: Mapping[str, str] = {},
    connections: int = CONNECTIONS, path: str = calls.PATH, body: bytes = calls.request(),
) -> Load:  # fmt: skip
    """Load this port with whole calls for so long, from the core that this process has."""
    file = folder / "call.lua"
    file.write_text(script(case, first, headers, body))
    if case is not None:
        path, connections = case.path, case.connections
    url = f"http://127.0.0.1:{port}{path}"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s", "-s", str(file), url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 30)
    if ended.returncode:
        raise BenchError(f"wrk ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return parse(ended.stdout)

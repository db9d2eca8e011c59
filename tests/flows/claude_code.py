"""Claude Code as people have it, headless, and an upstream that makes it use tools.

    upstream.answer_with(always=agent.behaviour)       # an Agent: writes a file, runs a command, and finishes
    ran = claude_code.run(folder, gateway.url, secret("alice"), "Do it.")

The agent decides by the number of tool results in the request how far the task is, and keeps a ledger of what it has
generated and reported. Side requests of Claude Code (titles and the like) have no tools: they get a short text.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import CHUNKED, Wire, chunk

PROGRAM = ROOT / ".venv/servers/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64/claude"
"""Where .ci/servers puts it."""
RUN_S = 120.0
MODEL = "claude-sonnet-4-5"
FILE, WORDS = "note.txt", "written by the tool"


class MissingProgram(Exception):
    """Claude Code is not installed; the sentence says what to do."""


class Ran(NamedTuple):
    """One run: its exit code and what it printed, parsed if it is JSON."""

    code: int
    received: Any
    errors: str


def start(folder: Path, url: str, secret: str, prompt: str, **env: str) -> subprocess.Popen[str]:
    """Begin a task in this folder, which is also its home. Raises `MissingProgram`."""
    if not PROGRAM.exists():
        raise MissingProgram(f"{PROGRAM} is not there, and this test needs the real one: run `make servers`.")
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "CLAUDE"))}
    given = {
        **clean, "HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / ".claude"), "IS_SANDBOX": "1",
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": secret, "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", **env,
    }  # fmt: skip
    tools = ["--allowedTools", "Write", "Bash", "--permission-mode", "acceptEdits"]
    return subprocess.Popen(
        [PROGRAM, "-p", prompt, "--output-format", "json", *tools],
        cwd=folder, env=given, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> Ran:
    """Wait for its end; it is killed if there is none."""
    try:
        out, errors = process.communicate(timeout=RUN_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    try:
        received = json.loads(out)
    except ValueError:
        received = out
    return Ran(process.returncode, received, errors)


def run(folder: Path, url: str, secret: str, prompt: str, **env: str) -> Ran:
    """One whole task."""
    return finish(start(folder, url, secret, prompt, **env))


@dataclass
class Turn:
    """What the agent has generated for one request, as its usage reported it."""

    number: int
    """Of tool results that the request held; -1: a side request without tools."""
    usage: dict[str, int]


@dataclass
class Agent:
    """An upstream with the Messages API that has Claude Code write a file and run a command."""

    folder: Path
    also_run: str = ""
    """The rest of the command, between the second turn and the third."""
    more_tokens: int = 0
    """Further tokens of the prompt that each answer reports."""
    ledger: list[Turn] = field(default_factory=list)

    async def behaviour(self, wire: Wire) -> None:
        asked = wire.request.json
        if wire.request.path.partition("?")[0].endswith("/count_tokens"):
            await _plain(wire, {"input_tokens": 10})
            return
        names = [tool.get("name") for tool in asked.get("tools") or []]
        number = _tool_results(asked) if "Write" in names else -1
        usage = {
            "input_tokens": 3 + number + self.more_tokens, "cache_creation_input_tokens": 100 * (number + 2),
            "cache_read_input_tokens": 1000 * (number + 1), "output_tokens": 20 + number,
        }  # fmt: skip
        self.ledger.append(Turn(number, usage))
        content, reason = self._next(number, names)
        split = {"ephemeral_5m_input_tokens": 60 * (number + 2), "ephemeral_1h_input_tokens": 40 * (number + 2)}
        message = {
            "id": f"msg_{len(self.ledger)}", "type": "message", "role": "assistant", "model": asked["model"],
            "content": content, "stop_reason": reason, "stop_sequence": None,
            "usage": usage | {"cache_creation": split},
        }  # fmt: skip
        if asked.get("stream"):
            await wire.write(CHUNKED + chunk(stream_of(message)) + b"0\r\n\r\n")
        else:
            await _plain(wire, message)

    def _next(self, number: int, names: list[Any]) -> tuple[list[dict[str, Any]], str]:
        if number == 0:
            given = {"file_path": str(self.folder / FILE), "content": WORDS}
            return [{"type": "tool_use", "id": "toolu_write", "name": "Write", "input": given}], "tool_use"
        if number == 1 and "Bash" in names:
            ran = {"command": f"cat {FILE} {FILE} > twice.txt{self.also_run}", "description": "Doubles the file"}
            return [{"type": "tool_use", "id": "toolu_bash", "name": "Bash", "input": ran}], "tool_use"
        return [{"type": "text", "text": "All done." if number > 0 else "A title"}], "end_turn"


def _tool_results(asked: Mapping[str, Any]) -> int:
    """How many tools have been used, by the ids of their results."""
    blocks = [block for message in asked["messages"] for block in message["content"] if isinstance(block, dict)]
    return len({block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"})


def stream_of(message: Mapping[str, Any]) -> bytes:
    """The events of a message."""
    usage = dict(message["usage"])
    received: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None,
                                              "usage": usage | {"output_tokens": 1}}},
        {"type": "ping"},
    ]  # fmt: skip
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            begun, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            begun, delta = (
                block | {"input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
            )
        received.append({"type": "content_block_start", "index": index, "content_block": begun})
        received.append({"type": "content_block_delta", "index": index, "delta": delta})
        received.append({"type": "content_block_stop", "index": index})
    usage.pop("cache_creation")
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    received += [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in received)


async def _plain(wire: Wire, value: Any) -> None:
    body = json.dumps(value).encode()
    await wire.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )

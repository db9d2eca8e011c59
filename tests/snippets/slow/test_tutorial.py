"""docs/tutorial.md, typed as printed: its files, its commands in order, and what it promises after each step.

Addresses get free ports, the identity provider is a real one of this machine, and Claude Code is the real program.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.flows.claude_code import PROGRAM
from tests.flows.gateway_process import eventually
from tests.snippets.pages import ROOT, Snippet, snippets

PAGE = "docs/tutorial.md"
SERVERS = ROOT / ".venv" / "servers"
NOT_TYPED = ("python3 -m venv", "pip install")
"""Commands that install; tests/slow/test_package.py installs the wheel."""
COMMAND_S = 120


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Channel:
    """The webhook of a chat: it keeps the texts that were posted."""

    def __init__(self) -> None:
        texts: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """It is quiet."""

        self.texts = texts
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Reader:
    """A person who types the page into three terminals of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "gateway.yaml"
        self.channel = Channel()
        self.ports = {"8080": free_port(), "8081": free_port(), "9000": self.channel.port}
        self.login = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "bin").mkdir()
        (folder / "bin" / "claude").symlink_to(PROGRAM)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "CLAUDE"))}
        self.env = {
            **clean, "HOME": str(folder), "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self._begin("provider", f"exec {_node()} {ROOT}/tests/browser/oidc_provider.mjs {SERVERS}/oidc-provider "
                    f"{self.login} {self.url}/admin/sign-in/callback", "ready")  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['8080']}"

    def adapted(self, text: str) -> str:
        """With the ports and the provider of this test."""
        for printed, own in self.ports.items():
            text = re.sub(rf"(127\.0\.0\.1:|--port ){printed}\b", rf"\g<1>{own}", text)
        return text.replace("https://login.example.org", f"http://127.0.0.1:{self.login}")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _begin(self, name: str, command: str, ready: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.running[name] = process
        assert eventually(lambda: ready in self.log(name) or process.poll() is not None), self.log(name)
        assert process.poll() is None, self.log(name)

    def write(self, block: Snippet) -> None:
        """The file, or an addition to it, which a running gateway applies."""
        number = self.log("serve").count("the configuration is reloaded") if "serve" in self.running else 0
        with self.file.open("a") as file:
            file.write(self.adapted(block.text))
        if "serve" in self.running:
            assert eventually(lambda: self.log("serve").count("the configuration is reloaded") > number)

    def type(self, line: str) -> str:
        """Returns what is printed. Raises AssertionError where the command fails."""
        line = self.adapted(line)
        if line.startswith(NOT_TYPED):
            return ""
        if line.startswith("gateway simulate"):
            self._begin("simulate", f"exec {line}", "serves")
        elif line.startswith("gateway serve"):
            self._begin("serve", f"exec {line}", "")
            assert eventually(self._is_ready, COMMAND_S), self.log("serve")
        elif line.startswith("export "):
            words = line.replace("=...", "=client-secret")
            shown = self._run(f"{words}; env -0")
            self.env |= dict(each.split("=", 1) for each in shown.split("\0") if "=" in each)
        else:
            return self._run(line)
        return ""

    def _is_ready(self) -> bool:
        assert self.running["serve"].poll() is None, self.log("serve")
        try:
            return requests.get(f"{self.url}/readyz", timeout=5).ok
        except requests.ConnectionError:
            return False

    def _run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"{line}\n{done.stdout}\n{done.stderr}\n{self.log('serve') if 'serve' in self.running else ''}"
        )
        return done.stdout

    def end(self) -> None:
        self.channel.close()
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _node() -> Path | str:
    own = SERVERS / "node-sdk" / "node"
    return own if own.exists() else "node"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    assert PROGRAM.exists(), f"{PROGRAM} is not there: run `make servers`"
    made = Reader(tmp_path)
    try:
        yield made
    finally:
        made.end()


def sign_in(url: str, person: str) -> str:
    """The role of a person who signs in at the provider's pages."""
    with requests.Session() as browser:
        page = browser.get(f"{url}/admin/sign-in", timeout=30)
        for form in ({"prompt": "login", "login": person, "password": "x"}, {"prompt": "consent"}):
            (action,) = re.findall(r'<form[^>]* action="([^"]+)"', page.text)
            page = browser.post(requests.compat.urljoin(page.url, action), data=form, timeout=30)  # type: ignore[attr-defined]
        assert page.url.startswith(f"{url}/dashboard"), page.url
        role: str = browser.get(f"{url}/admin/api/session", timeout=30).json()["role"]
        return role


@pytest.mark.timeout(600)
def test_the_page_works_as_printed(reader: Reader) -> None:
    shown: dict[str, str] = {}
    for block in [each for each in snippets("yaml", "console") if each.page == PAGE]:
        if block.language == "yaml":
            reader.write(block)
            continue
        for line in block.commands:
            output = reader.type(line)
            shown[" ".join(line.split()[:3])] = output
            assert '"error"' not in output

    assert "is good" in shown["gateway check"]
    assert json.loads(shown["curl --fail-with-body --silent"])["choices"][0]["message"]["content"]
    assert shown["claude --model claude-sonnet-5"].strip()
    assert eventually(lambda: len(reader.channel.texts) == 2), reader.channel.texts
    assert ["80" in reader.channel.texts[0], "100" in reader.channel.texts[1]] == [True, True], reader.channel.texts
    assert all("ci" in text for text in reader.channel.texts)
    assert {"research", "product", "ann", "ben", "ci"} <= set(re.findall(r"[\w-]+", shown["gateway usage --by"]))
    assert "ann@example.org" in shown["gateway people list"]
    assert "gpt-4o-mini" in shown["gateway calls --key"]
    assert (reader.folder / "backup.sqlite").stat().st_size > 0
    assert [sign_in(reader.url, person) for person in ("ops.cleo", "heads.bea")] == ["admin", "lead"]


def test_a_call_beyond_the_limit_is_refused_until_the_top_up(reader: Reader) -> None:
    """The sixth call, before and after the command of the page that permits five more."""
    blocks = [each for each in snippets("yaml", "console") if each.page == PAGE]
    lines = [line for block in blocks if block.language == "console" for line in block.commands]
    reader.write(blocks[[each.language for each in blocks].index("yaml")])
    for line in lines:
        if line.startswith(("gateway simulate", "gateway keys create --id ci")) or "admin-token" in line:
            reader.type(line)
        if line.startswith("gateway serve") and "serve" not in reader.running:
            reader.type(line)
    (five,) = [line for line in lines if line.startswith("for number")]
    (top_up,) = [line for line in lines if line.startswith("gateway keys top-up")]
    reader.type(five)
    body: Any = {"model": "gpt-4o-mini", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello!"}]}
    headers = {"Authorization": f"Bearer {(reader.folder / 'ci.key').read_text().strip()}"}

    def call() -> requests.Response:
        return requests.post(f"{reader.url}/v1/chat/completions", json=body, headers=headers, timeout=30)

    refused = call()
    assert refused.status_code == 429
    assert "your key" in refused.json()["error"]["message"]
    reader.type(top_up)
    assert eventually(lambda: call().status_code == 200)

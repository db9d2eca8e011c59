"""`gateway init` as a new user types it: from an empty folder to the first call."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import StartsProcesses
from tests.flows.client import request
from tests.flows.gateway_process import Process, command, run

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def simulator(process: StartsProcesses) -> str:
    """The address of a simulated upstream."""
    found: Process = process("simulate", "--port", "0")
    return found.wait_for(r"serves (http://127\.0\.0\.1:\d+)/v1\n")[1]


def init(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **env}
    return subprocess.run(
        command("init", *arguments), cwd=folder, env=given, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_from_nothing_to_the_first_call(tmp_path: Path, simulator: str, process: StartsProcesses) -> None:
    done = init(tmp_path, "--url", simulator, "--key-variable", "UP_KEY", "--key", "ada", UP_KEY="any-key-at-all")
    assert done.returncode == 0, done
    secret = re.findall(r"^  (sk-gw-ada-\S{43})$", done.stdout, re.MULTILINE)[0]
    assert re.findall(r"^  (gateway .*)$", done.stdout, re.MULTILINE) == [
        "gateway check --config gateway.yaml", "gateway serve --config gateway.yaml",
    ]  # fmt: skip
    assert "any-key-at-all" not in (tmp_path / "gateway.yaml").read_text() + done.stdout + done.stderr
    file, env = str(tmp_path / "gateway.yaml"), {"UP_KEY": "any-key-at-all"}
    # The store of the file is relative to where the gateway runs.
    text = Path(file).read_text().replace("./", f"{tmp_path}/")
    Path(file).write_text(text)
    checked = run("check", "--config", file, env=env).stdout
    assert checked.startswith(f"{file} is good.")
    assert re.search(r"models     those that local lists \((\d\d?) in all", checked), checked
    served = process("serve", "--config", file, "--port", "0", env=env)
    port = int(served.wait_for(r"serves http://127\.0\.0\.1:(\d+)")[1])
    body = json.dumps({"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
    answer = request(port, "POST", "/v1/chat/completions", body, headers)
    assert answer.status == 200, answer
    served.kill(signal.SIGINT)  # which does not wait for `drain_delay_s`
    assert served.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "argument --url: is required without a terminal"),
        (["--url", "ftp://x"], 2, "expected an address such as https://api.openai.com/v1"),
        (["--url", NOWHERE, "--key-variable", "sk-proj-abc123"], 2, "expected the NAME of an environment variable"),
        (["--url", NOWHERE, "--key-variable", "NOT_SET_AT_ALL"], 2, "NOT_SET_AT_ALL is not set: set it"),
        (["--url", NOWHERE, "--no-key", "--name", "a b"], 2, "argument --name: expected letters"),
        (["--url", NOWHERE, "--no-key"], 1, f"GET {NOWHERE}/models: cannot connect to 127.0.0.1:9"),
        (["--url", NOWHERE, "--no-key", "--config", "nowhere/x.yaml", "--anyway"], 1, "cannot write nowhere/x.yaml"),
    ],
)
def test_nothing_is_written_and_it_says_why(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    done = init(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "sk-proj" not in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_anyway_and_force(tmp_path: Path) -> None:
    done = init(tmp_path, "--url", "openrouter.ai", "--anyway", http_proxy="", https_proxy="http://127.0.0.1:9")
    assert done.returncode == 0, done
    assert "The upstream was not reached:" in done.stdout
    text = (tmp_path / "gateway.yaml").read_text()
    upstream = yaml.safe_load(text)["upstreams"]["openrouter"]
    assert upstream.items() >= {"base_url": "https://openrouter.ai/api/v1", "api_key": "${OPENROUTER_API_KEY}"}.items()
    again = init(tmp_path, "--url", NOWHERE, "--no-key", "--anyway")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert (tmp_path / "gateway.yaml").read_text() == text
    assert init(tmp_path, "--url", NOWHERE, "--no-key", "--anyway", "--force").returncode == 0
    assert (tmp_path / "gateway.yaml").read_text() != text


def test_on_a_terminal_it_asks(tmp_path: Path, simulator: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command("init"), cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs) as asked:
        os.close(theirs)
        shown = b""
        for question, words in (
            (b"Address of the upstream's API", simulator), (b"(never the key itself", "-"), (b"first key", "ada"),
        ):  # fmt: skip
            while question not in shown:
                shown += os.read(ours, 4096)
            os.write(ours, f"{words}\n".encode())
        while b"gateway serve" not in shown:
            shown += os.read(ours, 4096)
        assert asked.wait(60) == 0
    os.close(ours)
    assert b"sk-gw-ada-" in shown
    assert simulator in (tmp_path / "gateway.yaml").read_text()

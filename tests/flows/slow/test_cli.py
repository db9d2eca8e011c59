"""The commands as an operator types them: what they say, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import __version__
from gateway.config import StoreSettings
from gateway.journal.directory import JournalDirectory
from tests.conftest import ScriptedUpstream, StartsGateways, StartsProcesses
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import ok_json
from tests.flows.client import events, request
from tests.flows.gateway_process import ADMIN_TOKEN, UPSTREAM_KEY, eventually, key, run, secret, settings

NOWHERE = "http://127.0.0.1:9/v1"


def written(folder: Path, config: Any) -> str:
    """A file with this configuration, or with this text."""
    path = folder / "gateway.yaml"
    path.touch(mode=0o600)  # or it is warned of, because it has secrets
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return str(path)


def says(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, and these words on standard error in plain lines."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    for each in words:
        assert each in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------------------ arguments


def test_help() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("serve", "demo", "check", "keys", "teams", "audit", "usage", "backup", "simulate"):
        assert name in done.stdout
        shown = run(name, "--help")
        assert shown.returncode == 0
        assert shown.stdout.startswith(f"usage: gateway {name}")


def test_version() -> None:
    assert run("--version").stdout == f"gateway {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["dance"], ["serve"], ["check", "a", "b"], ["serve", "--config"],
     ["serve", "--config", "x", "--port", "http"], ["check", "--config", "x", "--fix"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_arguments(arguments: list[str]) -> None:
    says(run(*arguments), "usage: gateway")


def test_check_without_a_file_says_what_to_name() -> None:
    says(run("check"), "gateway: expected the configuration: gateway check gateway.yaml")


@pytest.mark.parametrize("command", [["usage"], ["keys", "list"], ["audit"], ["calls"]], ids=" ".join)
def test_a_command_without_a_place_says_what_to_name(command: list[str]) -> None:
    says(run(*command), "gateway: expected --config FILE or --url URL")


def test_installed_command_is_the_module() -> None:
    installed = Path(sys.executable).parent / "gateway"
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"gateway {__version__}\n"


# ---------------------------------------------------------------------------------------------------------------- check


def test_check_of_a_good_file(tmp_path: Path) -> None:
    config = settings(
        "${UPSTREAM}", store={"url": "embedded:./data"}, keys=[key("alice"), {"id": "b", "secret": "${B_KEY}"}]
    )
    file = written(tmp_path, config)
    done = run("check", "--config", file, env={"UPSTREAM": NOWHERE, "B_KEY": "b" * 24})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{file} is good.\n")
    for words in (NOWHERE, "gpt-4o-mini", "alice", "embedded:./data", "1 worker\n"):
        assert words in done.stdout
    for each in (secret("alice"), UPSTREAM_KEY, ADMIN_TOKEN, "b" * 24):
        assert each not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.yaml"]  # looking changes nothing


def test_check_of_a_file_with_a_probable_mistake(tmp_path: Path) -> None:
    config = settings(NOWHERE, store={"url": "embedded:./data"}, keys=[key("alice", models=["misspelled"])])
    file = written(tmp_path, config)
    done = run("check", "--config", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{file} can be used, but see 1 warning.\n")
    line = Path(file).read_text().splitlines().index("  - misspelled") + 1
    assert f"  warning    {file}:{line}: keys[0].models[0]: matches none of the models: " in done.stdout


def test_who_reads_a_check_may_leave_or_know_no_letters_but_ascii(tmp_path: Path) -> None:
    model = {"routes": [{"upstream": "main"}], "max_output_tokens": 9}
    config = settings(NOWHERE, store={"url": "embedded:./data"}, models={"modèle": model})
    file = written(tmp_path, config)
    done = run("check", "--config", file, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "mod\\xe8le" in done.stdout
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "gateway", "check", "--config", file]
    with os.fdopen(writes, "wb") as nobody:
        left = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, timeout=120, check=False)
    assert (left.returncode, left.stderr) == (0, b"")


def test_check_reports_every_fault_at_once(tmp_path: Path) -> None:
    config = settings(
        "ftp://example.com",
        server={"prot": 8080, "workers": 0},
        models={"m": {"routes": [{"upstream": "elsewhere"}]}},
        keys=[key("alice") | {"secret": "short"}, key("Bob!"), {"id": "c", "secret": "${NOT_SET_ANYWHERE}"}],
        nonsense=1,
    )
    file = written(tmp_path, config)
    done = run("check", "--config", file)
    line = Path(file).read_text().splitlines().index("  prot: 8080") + 1
    says(
        done,
        f"gateway: {file}:{line}: server.prot: there is no such setting; did you mean 'port'?",
        "server.workers: ",
        "upstreams.main.base_url: expected an address",
        "keys[0].secret: a secret needs at least 24 characters",
        "keys[1].id: ",
        "keys[2].secret: the environment variable NOT_SET_ANYWHERE is not set",
        "nonsense: there is no such setting",
    )
    assert len(done.stderr.splitlines()) >= 7
    assert "short" not in done.stderr
    assert all(re.match(rf"gateway: {re.escape(str(file))}:\d+: ", line) for line in done.stderr.splitlines())


@pytest.mark.parametrize("name", ["check", "serve"])
def test_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    missing = str(tmp_path / "missing.yaml")
    says(run(name, "--config", missing), f"gateway: {missing}: cannot read the file: no such file or directory")
    says(run(name, "--config", str(tmp_path)), f"gateway: {tmp_path}: cannot read the file: is a directory")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {port: [", "not valid YAML at line 1"),
        ("server:\n\tport: 1", "not valid YAML at line 2"),
        ("- a\n- b", "expected settings as 'name: value' lines"),
        ("", "expected settings as 'name: value' lines"),
        ("server: {port: 1}\nserver: {port: 2}", "'server' is given twice"),
        ("a: &a [*a]", ""),
    ],
)
def test_broken_file(tmp_path: Path, text: str, words: str) -> None:
    says(run("check", "--config", written(tmp_path, text)), words)


@pytest.mark.parametrize("text", ["server: hello", "server: [1, 2]"])
def test_option_has_no_place_in_a_broken_file(tmp_path: Path, text: str) -> None:
    done = run("serve", "--port", "0", "--config", written(tmp_path, text))
    says(done, "server: expected settings as 'name: value' lines")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "99999"], "argument --port: '99999' is not a port: expected 0 to 65535"),
        (["--port", "-1"], "argument --port: '-1' is not a port: expected 0 to 65535"),
        (["--port", "x"], "argument --port: 'x' is not a port: expected 0 to 65535"),
        (["--workers", "0"], "server.workers: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_option_out_of_range(tmp_path: Path, arguments: list[str], words: str) -> None:
    says(run("serve", "--config", written(tmp_path, settings(NOWHERE)), *arguments), words)


def test_check_warns_of_journals_that_no_gateway_would_deliver(tmp_path: Path) -> None:
    config = settings(NOWHERE, store={"url": "embedded:./data", "journal_dir": str(tmp_path / "journal")})
    file, journals = written(tmp_path, config), tmp_path / "journal"
    origins = ["redis://old:6379/0 gateway", "redis://old:6379/0 gateway", "/elsewhere gateway"]
    for origin in [*origins, StoreSettings(url=f"embedded:{Path.cwd() / 'data'}").origin]:
        JournalDirectory.make(journals, origin).leave()
    (journals / "notes").mkdir()
    (journals / ("f" * 32)).mkdir()
    (journals / ("f" * 32) / "lock").write_text("nonsense")
    done = run("check", "--config", file)
    assert (done.returncode, done.stderr) == (0, "")
    received = sorted(line.strip() for line in done.stdout.splitlines() if "warning" in line)
    what = "start once with the old store.url to deliver them"
    assert received == [
        f"warning    1 journal in {journals} belongs to another ledger (/elsewhere gateway); {what}",
        f"warning    2 journals in {journals} belong to another ledger (redis://old:6379/0 gateway); {what}",
    ]


@pytest.mark.parametrize(("name", "code"), [("check", 2), ("usage", 1), ("serve", 1)])
def test_a_database_that_the_server_does_not_have(tmp_path: Path, name: str, code: int) -> None:
    with RedisServer(tmp_path / "redis", extra=["databases 2"]) as redis:
        url = f"redis://127.0.0.1:{redis.port}/5"
        config = settings(NOWHERE, store={"url": url, "journal_dir": str(tmp_path / "journal")})
        done = run(name, "--config", written(tmp_path, config))
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gateway: ")
    assert url in line
    assert "out of range" in line


# ---------------------------------------------------------------------------------------------------------------- serve


def test_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        store = {"url": f"embedded:{tmp_path / 'data'}"}
        done = run("serve", "--config", written(tmp_path, settings(NOWHERE, store=store)), "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"gateway: cannot listen on 127.0.0.1:{port}: address already in use; "
        "is another gateway running? Choose another with --port\n"
    )


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_address_that_is_not_ours(tmp_path: Path, host: str) -> None:
    config = settings(NOWHERE, server={"host": host}, store={"url": f"embedded:{tmp_path / 'data'}"})
    done = run("serve", "--config", written(tmp_path, config))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"gateway: cannot listen on {host}:0: ")
    assert len(done.stderr.splitlines()) == 1


def test_second_gateway_on_the_same_folder(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.answer_with(ok_json())
    gateway = start_gateway(settings(upstream.url))
    done = run("serve", "--config", str(gateway.file))
    assert (done.returncode, done.stdout) == (1, "")
    folder = gateway.config["store"]["url"].removeprefix("embedded:")
    assert done.stderr == f"gateway: another gateway is using {folder}; stop it, or give this one its own store.url\n"
    assert gateway.complete().status == 200


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = f"embedded:{tmp_path / 'file' / 'data'}"
    done = run("serve", "--config", written(tmp_path, settings(NOWHERE, store={"url": url})))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"gateway: cannot use {url}: {tmp_path / 'file' / 'data'} is not a folder\n"


@pytest.mark.parametrize("name", ["check", "serve"])
def test_ca_file_that_is_no_certificate(tmp_path: Path, name: str) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    upstreams = {"main": {"base_url": "https://127.0.0.1:9/v1", "ca_file": str(tmp_path / "ca.pem")}}
    file = written(tmp_path, settings(NOWHERE, upstreams=upstreams))
    says(run(name, "--config", file), f"gateway: {file}:", ": upstreams.main.ca_file: ", "holds no certificates in PEM")


def test_environment_reaches_the_workers(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """The supervisor resolves once; a worker never looks at the environment or the file again."""
    upstream.answer_with(ok_json())
    config = settings("${UPSTREAM_URL}", upstreams={"main": {"api_key": "${UPSTREAM_KEY}"}})
    gateway = start_gateway(config, env={"UPSTREAM_URL": upstream.url, "UPSTREAM_KEY": "sk-from-the-environment"})
    gateway.file.unlink()
    (worker,) = gateway.workers()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: gateway.workers() not in ([], [worker]))
    assert gateway.complete().status == 200
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-from-the-environment"


# ---------------------------------------------------------------------------------------------------- demo and simulate


def test_simulate(process: StartsProcesses) -> None:
    simulator = process("simulate", "--port", "0")
    found = simulator.wait_for(r"The simulated upstream serves (http://127\.0\.0\.1:(\d+)/v1)\n")
    body = json.dumps({"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer anything-that-is-a-key"}
    answer = request(int(found[2]), "POST", "/v1/chat/completions", body, headers)
    assert answer.status == 200
    assert answer.json["usage"]["total_tokens"] > 0
    simulator.kill(signal.SIGTERM)
    assert simulator.wait() == 0
    assert simulator.stderr == ""


def test_demo_works_as_printed(process: StartsProcesses) -> None:
    demo = process("demo", "--port", "0")
    address = demo.wait_for(r"The gateway serves (http://127\.0\.0\.1:\d+) in front of a simulated upstream")[1]
    text = demo.wait_for(r"(?s).*Ctrl-C ends the demo\.")[0]
    curl, usage = (re.sub(r"\\\n\s*", "", found) for found in re.findall(r"  (curl (?:.*\\\n)*.*)\n", text))

    streamed = subprocess.run(["bash", "-c", f"{curl} -sS"], capture_output=True, timeout=120, check=True)
    assert events(streamed.stdout)[-1] == "[DONE]"
    assert streamed.stderr == b""

    snippet = "\n".join(line[2:] for line in re.findall(r"(?s)\n(  from openai .*?)\n\n", text)[0].splitlines())
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "CompletionUsage" in done.stdout

    shown = subprocess.run(["bash", "-c", f"{usage} -sS"], capture_output=True, timeout=120, check=True).stdout
    (row,) = [row for row in json.loads(shown)["data"] if row["key"] == "demo"]
    assert (row["key"], row["model"], row["requests"]) == ("demo", "gpt-4o-mini", 2)
    assert row["total_tokens"] > 0
    assert row["estimated_tokens"] == 0

    metrics = subprocess.run(["curl", "-sS", f"{address}/metrics"], capture_output=True, timeout=120, check=True).stdout
    assert b"gateway_requests_total{" in metrics
    demo.kill(signal.SIGTERM)
    assert demo.wait() == 0
    assert not [line for line in demo.stderr.splitlines() if "quota alert" not in line and "shaky" not in line]


def test_demo_says_when_its_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("demo", "--port", str(taken.getsockname()[1]))
    assert (done.returncode, done.stdout) == (1, "")
    assert "address already in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert shlex.split(done.stderr)

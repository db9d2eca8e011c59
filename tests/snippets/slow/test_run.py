"""The commands and programs in the README and the docs run as printed against a whole gateway.

Each page has a gateway of its own, in front of the simulated upstream, and its examples run in their order. Addresses
and the paths of an installed gateway are replaced; `systemctl` stops and starts the process itself. A table has what
does not run here, with the reason or the test that runs it.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.redis_servers import RedisServer
from tests.flows.gateway_process import ADMIN_TOKEN, CHAT, Gateway, model, secret, settings
from tests.flows.slow.test_sdk import simulated
from tests.flows.steering import Operator
from tests.snippets.pages import ROOT, Snippet, snippets

SERVERS = ROOT / ".venv" / "servers"
NODE_SDK = SERVERS / "node-sdk"

NOT_RUN = {
    "make": "make demo is run by tests/slow/test_package.py, make test is the suite",
    "gateway init": "asks; tests/commands/slow/test_init_command.py answers",
    "gateway serve": "is how the gateway of each page starts",
    "docker": "needs a container engine; tests/deploy/slow/test_compose.py and test_image.py read the files",
    "OPENAI_API_KEY=sk-... deploy/compose/start": "the same",
    "helm": "installs into a cluster; tests/deploy/slow/test_helm.py renders and lints the chart",
    "python3 -m venv /opt/gateway": "installs for the whole machine; tests/slow/test_package.py installs the wheel",
    "useradd": "adds a user to the machine",
    "install": "needs that user; tests/deploy/slow/test_node.py checks the unit and its configuration",
    "kubectl": "needs a cluster; tests/deploy/slow/test_kubernetes.py reads the manifests",
    "journalctl": "needs systemd",
    "timedatectl": "needs systemd",
    "gateway demo": "serves until it is stopped; tests/slow/test_package.py runs it",
    "pip install": "downloads from a package index; tests/slow/test_package.py installs the wheel",
    "pipx": "downloads the dependencies; tests/slow/test_package.py runs the command of the installed wheel",
    "uvx": "the same",
    "gateway export --config old.yaml": "needs two stores; tests/wings/transfer moves one to another under load",
    "gateway import store --config new.yaml": "the same",
    "sudo": "needs the user of an installation; tests/wings/transfer/test_restore.py restores",
    "chown": "needs the user of an installation",
    "aider": "is run by tests/flows/slow/test_coding_agents.py",
    "claude": "is run by tests/flows/slow/test_claude_code.py",
    "git push": "publishes a tag",
    "gh release": "publishes a release; tests/slow/test_release.py builds, signs and verifies one",
    "minisign": "is run by tests/slow/test_release.py",
    "sha256sum": "the same",
    "gateway bill": "asks a provider; tests/wings/billing/test_gateway.py runs it",
    "gateway usage --config gateway.yaml --compare live": "the same",
    "python examples/hooks/": "serves until it is stopped; tests/wings/hooks/test_examples.py runs it",
    "GATEWAY_KEY=$MODERATION_KEY python": "the same",
    "PYTHONPATH=/srv/our-plugins gateway serve": "is how the gateway of each page starts",
    "gateway teams create platform --usd": "is run by tests/flows/test_leaders_walk.py, with forty people",
    "gateway people top-up person-07": "the same",
    "gateway people show person-07": "the same",
    "for page in": "asks a reseller on the internet",
}
"""Beginnings of command lines that do not run here."""

PACKAGES = {
    "docs/clients/anthropic-sdk.md": SERVERS / "anthropic-node",
    "docs/clients/langchain.md": SERVERS / "python-clients",
    "docs/clients/llamaindex.md": SERVERS / "llamaindex",
    "docs/clients/openai-agents.md": SERVERS / "python-clients",
    "docs/clients/vercel-ai-sdk.md": SERVERS / "ai-sdk",
}
"""Where a page's program finds its packages, if they are not the suite's own or openai-node."""

TUTORIAL = "docs/tutorial.md"
"""Run by tests/snippets/slow/test_tutorial.py, with its files and in order."""

PAGES = list(dict.fromkeys(each.page for each in snippets("console", "sh") if each.page != TUTORIAL))


def log_of(now: int) -> list[dict[str, Any]]:
    """What a reseller's log says of one call."""
    return [{"model_name": CHAT, "created_at": now, "prompt_tokens": 1, "completion_tokens": 1, "quota": 5}]


def usage_of(now: int) -> dict[str, Any]:
    """What OpenAI's export of usage says of one day."""
    return {
        "start_time": now // 86400 * 86400, "end_time": now // 86400 * 86400 + 86400, "model": CHAT,
        "num_model_requests": 1, "input_tokens": 1, "output_tokens": 1, "input_cached_tokens": 0,
    }  # fmt: skip


class Place:
    """An installed gateway with keys, a team and the files that the pages name."""

    def __init__(self, folder: Path, simulator: str) -> None:
        self.folder = folder
        self._redis: RedisServer | None = None
        quotas = [{"tokens": 10**6, "per": "day"}, {"usd": 100, "per": "month"}]
        price = {"input": 1, "output": 2}
        messages = {**model("messages"), "price": price}
        self._settings = settings(
            simulator,
            store={"url": f"embedded:{folder / 'gateway-data'}", "journal_dir": str(folder / "gateway-journal")},
            upstreams={
                "main": {"capabilities": {"messages": True, "responses": True}, "provider": "anthropic"},
                **{name: {"base_url": simulator} for name in ("openai", "reseller")},
                "google": {"base_url": f"{simulator}beta", "capabilities": {"generate_content": True}},
            },
            models={
                CHAT: {**model("chat"), "endpoints": ["chat", "responses"], "price": price},
                "claude-sonnet-5": messages,
                "gemini-2.5-flash": {**model("generate_content", "google"), "price": price},
                "claude-sonnet-4-5": {**messages, "price": "auto"},
            },
            admin={"viewer_token": "viewer-token-of-this-place"},
            teams={"platform": {"quotas": quotas}},
            keys=[{"id": "ada", "secret": secret("ada")}],
        )
        self._starts = 0
        self.start()
        Operator(self.gateway).create("alice", team="platform", quotas=quotas)
        for name in ("secrets", "backups"):
            (folder / name).mkdir()
        now = int(time.time())
        (folder / "log.json").write_text(json.dumps({"success": True, "data": log_of(now)}))
        with (folder / "openai-usage.csv").open("w", newline="") as file:
            rows = csv.DictWriter(file, usage_of(now))
            rows.writeheader()
            rows.writerow(usage_of(now))

    def start(self) -> None:
        self._starts += 1
        self.gateway = Gateway(self.folder / f"start-{self._starts}", self._settings)

    def end(self) -> None:
        self.gateway.end()
        if self._redis is not None:
            self._redis.kill()

    def _redis_cli(self, _: object) -> str:
        self._redis = self._redis or RedisServer(self.folder / "redis", extra=["cluster-enabled yes"])
        return f"redis-cli -e -p {self._redis.port} "

    def adapted(self, text: str) -> str:
        """A command or program with the addresses and paths of this place."""
        for pattern, place in (
            (r"/etc/gateway/gateway\.yaml|(?<![\w/.])(my-)?gateway\.yaml|\bFILE\b", str(self.gateway.file)),
            (r"(?<!/)deploy/make-secrets", str(ROOT / "deploy" / "make-secrets")),
            (r"(?<!/)examples/", f"{ROOT / 'examples'}/"),
            (r"/etc/gateway/secrets|deploy/compose/secrets", str(self.folder / "secrets")),
            (r"/var/lib/gateway", str(self.folder)),
            (r"/backups", str(self.folder / "backups")),
            (r"https?://(HOST:8080|127\.0\.0\.1:8080|gateway(-admin)?\.example\.org)", self.gateway.url),
            (r"~/\.gateway-token", str(self.folder / "token")),
            (r"sk-gw-\.\.\.", secret("ada")),
        ):
            text = re.sub(pattern, place, text)
        return re.sub("redis-cli ", self._redis_cli, text)

    def run(self, script: str) -> None:
        """Lines of bash. Raises AssertionError where one fails."""
        (self.folder / "token").write_text(ADMIN_TOKEN)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.adapted(script)],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        assert '"error"' not in done.stdout, f"{script}\n{done.stdout}"

    def run_program(self, words: list[str], text: str, file: Path, **env: str) -> str:
        """A program in a file; returns what it prints."""
        file.write_text(self.adapted(text))
        done = subprocess.run(
            [*words, str(file)],
            cwd=file.parent, env=self._environment() | env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GATEWAY": self.gateway.url,
            "GATEWAY_KEY": secret("ada"),
            "OPENAI_API_KEY": secret("ada"),
            "ADMIN_TOKEN": ADMIN_TOKEN,
            "METRICS_TOKEN": "viewer-token-of-this-place",
            "NEW_KEY": "sk-of-the-upstream",
            "GATEWAY_TOKEN": ADMIN_TOKEN,
            "GATEWAY_ADMIN_TOKEN": ADMIN_TOKEN,
            "TEAM_KEY": secret("team"),
        }


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with simulated(tmp_path_factory) as address:
        yield address


@pytest.fixture
def place(tmp_path: Path, simulator: str) -> Iterator[Place]:
    made = Place(tmp_path, simulator)
    try:
        yield made
    finally:
        made.end()


def portions(snippet: Snippet) -> Iterator[str]:
    """Its command lines; a loop is one."""
    yield from re.findall(r"^for [\s\S]*?^done$|^.+$", "\n".join(snippet.commands), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_succeed(page: str, place: Place) -> None:
    kept: list[str] = []
    for snippet in [each for each in snippets("console", "sh") if each.page == page]:
        for line in portions(snippet):
            if line.startswith("systemctl"):
                if place.gateway.process.poll() is None:
                    place.gateway.stop()
                if "stop" not in line:
                    place.start()
            elif line.startswith("export "):  # values shown as ... are in the environment
                kept += [f"export {word}" for word in line.split("#")[0].split()[1:] if not word.endswith("...")]
            elif not line.startswith(tuple(NOT_RUN)):
                place.run("\n".join([*kept, line]))


def test_nothing_is_listed_as_not_run_that_no_page_has() -> None:
    lines = [line for snippet in snippets("console", "sh") for line in portions(snippet)]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    assert [page for page in PACKAGES if not (ROOT / page).exists()] == []


NO_CLIENTS = {
    "docs/openings.md": "is how a hook verifies a signature; tests/wings/hooks/test_examples.py does",
    "docs/plugins.md": "is a plug-in; tests/snippets/test_configurations.py loads it",
}


def test_code_that_is_no_client_is_on_a_page() -> None:
    assert {each.page for each in snippets("python")} >= NO_CLIENTS.keys()


@pytest.mark.parametrize("snippet", [each for each in snippets("python") if each.page not in NO_CLIENTS], ids=repr)
def test_a_python_program_is_served(snippet: Snippet, place: Place) -> None:
    packages = PACKAGES.get(snippet.page)
    env = {"PYTHONPATH": str(packages)} if packages else {}
    place.run_program([sys.executable], snippet.text, place.folder / "program.py", **env)
    assert [record["status"] for record in place.gateway.calls("ada")] == [200]


def test_the_error_in_the_readme_is_what_the_sdk_raises(place: Place) -> None:
    (example,) = snippets("pycon")
    call, shown = re.findall(r"^(?:>>> )?(.+)$", example.text, re.MULTILINE)
    call = call.replace("gpt-3.5-turbo-instruct", CHAT).replace("completions", "chat.completions")
    call = call.replace('prompt="Hi"', 'messages=[{"role": "user", "content": "Hi"}]')
    head = f'import openai\nclient = openai.OpenAI(base_url="{place.gateway.url}/v1", api_key="{secret("ada")}")\n'
    text = f'{head}try:\n    {call}\nexcept Exception as error:\n    print(f"openai.{{type(error).__name__}}", error)\n'
    received = place.run_program([sys.executable], text, place.folder / "program.py").strip()
    raised, message = shown.split(" - ")
    assert received.startswith(raised.replace(":", "", 1))
    assert message in received


@pytest.mark.parametrize("snippet", snippets("js"), ids=repr)
def test_a_node_program_runs(snippet: Snippet, place: Place) -> None:
    packages = PACKAGES.get(snippet.page, NODE_SDK)
    (place.folder / "node_modules").symlink_to(packages / "node_modules")
    node = NODE_SDK / "node"
    assert node.exists(), f"{node} is not there: run `make servers`"
    place.run_program([str(node)], snippet.text, place.folder / "program.mjs")

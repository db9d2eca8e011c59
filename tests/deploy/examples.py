"""The examples of deploy/ in use, with paths and addresses replaced that a test cannot have."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.redis_servers import ROOT
from tests.fakes.resp import Refusal, ask
from tests.flows.gateway_process import UPSTREAM_KEY

from .programs import Running, on_some_port

DEPLOY = ROOT / "deploy"


def load(place: str) -> Any:
    """A YAML file of deploy/ with one document."""
    return yaml.safe_load((DEPLOY / place).read_text())


def make_secrets(folder: Path) -> Path:
    """The secrets of a stack, as its operator makes them."""
    subprocess.run(
        [DEPLOY / "make-secrets", folder], env={**os.environ, "OPENAI_API_KEY": UPSTREAM_KEY}, check=True, timeout=30
    )
    return folder


def secret_files(text: str) -> set[str]:
    """The paths of all `${file:...}` references in a configuration."""
    return set(re.findall(r"\$\{file:([^}]+)\}", text))


def settle(text: str, changes: Mapping[str, str]) -> str:
    """The text with these replacements; each must occur in it."""
    for old, new in changes.items():
        assert old in text, f"{old!r} does not stand in it"
        text = text.replace(old, new)
    return text


@contextmanager
def redis_of(folder: Path, settings: Path, script: str, changes: Mapping[str, str], password: str) -> Iterator[int]:
    """Starts Redis by the settings file and shell script of an example; yields the port."""
    data = folder / "data"
    data.mkdir()

    def start(port: int) -> Running:
        lines = settle(settings.read_text(), {"dir /data": f"dir {data}"})
        (folder / "redis.conf").write_text(f"{lines}\nbind 127.0.0.1\nport {port}\n")
        return Running(folder, ["sh", "-c", settle(script, changes)])

    def answers(port: int) -> bool:
        try:
            return ask(port, "PING", password=password) == "PONG"
        except Refusal:
            return False  # another process has the port

    with on_some_port(start, answers) as (port, _):
        yield port

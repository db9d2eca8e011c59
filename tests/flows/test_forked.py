"""A fork of the gateway's command behaves as an interpreter that is started for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .forked import Forks
from .gateway_process import command, eventually

pytestmark = [
    pytest.mark.rest,
    pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux alone"),
]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    made.begin()
    yield made
    made.end()


@pytest.mark.parametrize("arguments", [["--version"], ["check", "--config", "gateway.yaml"], ["serve", "--port", "x"]])
def test_it_says_and_returns_the_same(forks: Forks, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "gateway.yaml").write_text("keys: [{id: alice, secret: '${OF_ALICE}'}]\nserver: {port: ninety}\n")
    given = {**os.environ, "OF_ALICE": "sk-alice-0123456789abcdef"}
    expected = subprocess.run(
        command(*arguments), cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60, check=False
    )
    fork = forks.start(arguments, given, tmp_path, tmp_path)
    said = [fork.wait(60), *((tmp_path / name).read_text() for name in ("stdout", "stderr"))]
    assert said == [expected.returncode, expected.stdout, expected.stderr]


def test_it_has_a_session_of_its_own_and_takes_signals(forks: Forks, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    first, second = (forks.start(["simulate", "--port", "0"], os.environ, folder, folder) for folder in folders)
    try:
        assert os.getsid(first.pid) == first.pid != os.getsid(second.pid)
        eventually(lambda: all("serves" in (folder / "stdout").read_text() for folder in folders), timeout_s=60)
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0)
        first.kill()
        assert first.wait(60) == -signal.SIGKILL
        first.kill()  # it has ended: no error, as with Popen
        assert second.poll() is None
        second.terminate()
        assert second.wait(60) == 0
    finally:
        first.kill()
        second.kill()


def test_another_environment_of_python_needs_an_interpreter(forks: Forks) -> None:
    assert forks.can_start(os.environ)
    assert not forks.can_start({**os.environ, "PYTHONDEVMODE": "1"})
    assert not forks.can_start({**os.environ, "SSL_CERT_FILE": "/of/an/authority.pem"})
    assert not forks.can_start({**os.environ, "PYTHONPATH": "/of/somebody"})
    assert not Forks().can_start(os.environ)

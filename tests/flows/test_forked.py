"""A fork of the gateway's command behaves as an interpreter that is started for it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .forked import Forks
from .gateway_process import command, eventually, is_group_in

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


def test_a_pid_that_the_system_gives_again_has_no_exit_code_yet(tmp_path: Path) -> None:
    forks = Forks()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        forks._lines = [mine]
        theirs.sendall(b'{"pid": 7}\n{"pid": 7, "code": -9}\n{"pid": 7}\n')
        first, second = (forks.start([], {}, tmp_path, tmp_path) for _ in range(2))
        assert (first.poll(), second.poll()) == (-signal.SIGKILL, None)


def test_a_group_of_another_folder_is_not_taken_for_one_that_has_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path, start_new_session=True) as process:
        try:
            assert is_group_in(process.pid, tmp_path)
            assert not is_group_in(process.pid, tmp_path.parent)
        finally:
            process.kill()
    assert not is_group_in(process.pid, tmp_path)


def test_one_interpreter_is_for_several_processes(tmp_path: Path) -> None:
    shared = Forks()
    shared.begin()
    shared.share(2)

    def work(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        shared.take(number)
        code = shared.start(["--version"], os.environ, folder, folder).wait(60)
        shared.end()
        os._exit(code)

    processes = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(2)]
    for process in processes:
        process.start()
    shared.keep_none()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert {(tmp_path / name / "stdout").read_text().split()[0] for name in ("0", "1")} == {"gateway"}
    shared.end()  # returns when the forking processes have ended


def test_another_environment_of_python_needs_an_interpreter(forks: Forks) -> None:
    assert forks.can_start(os.environ)
    assert not forks.can_start({**os.environ, "PYTHONDEVMODE": "1"})
    assert not forks.can_start({**os.environ, "SSL_CERT_FILE": "/of/an/authority.pem"})
    assert not forks.can_start({**os.environ, "PYTHONPATH": "/of/somebody"})
    assert not Forks().can_start(os.environ)

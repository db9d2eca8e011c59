"""A real Redis server for tests; several together are in redis_groups.py.

    with RedisServer(tmp_path) as server:
        ...                                                  # server.url is what `store.url` takes
        server.kill()
        server.restart()

Every process listens on 127.0.0.1 alone, keeps all its files in the folder that it was given, reads no configuration
from elsewhere, and is ended by its own number when the block is left. A server that is not installed fails the test
that needs it, with a sentence that says what to install; no test is left out for it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from .resp import Refusal, Reply, ask, flat
from .scripted import Authority

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 75
"""How long anything here may take on a slow machine; nothing waits that long when all is well."""

SERVERS_VARIABLE = "GATEWAY_TEST_SERVERS"
"""`first` or `all`: set by tests/conftest.py from its options, for the workers of pytest-xdist too."""

PORTS = range(10_000, 22_000)
"""Below what systems give to clients: while a server is down, no client's own end takes its port. The other end of a
cluster's bus (port + 10,000) is below it too."""

Fsync = Literal["no", "always", "everysec", "unsynced"]
"""Of the append-only file: none at all; or when it is synced. What is written unsynced outlives the death of its
process all the same, and no batch waits for a slow disk: for tests that kill, and count."""


class MissingServer(Exception):
    """A server program is not installed; the sentence says what to do."""


def found(binary: str) -> str:
    """Where this program is. Raises `MissingServer`."""
    if path := shutil.which(binary):
        return path
    raise MissingServer(
        f"{binary} is not installed, and this test needs the real one. Debian and Ubuntu: apt-get install redis-server;"
        " macOS: brew install redis."
    )


def servers_to_test() -> list[str]:
    """Every server that the store's tests run on, each once: redis-server and valkey-server of this system, what
    .ci/servers has put into .venv/servers, and what TEST_REDIS_SERVERS names (paths, separated by colons).

    The fast tier uses the first of them. Without any server the result is redis-server all the same: the slow tier
    then fails and says that it is missing; the fast tier skips what needs it and says so in its header.
    """
    kept = ROOT / ".venv" / "servers"
    named = os.environ.get("TEST_REDIS_SERVERS", "").split(":")
    candidates = ["redis-server", "valkey-server", *(str(path) for path in sorted(kept.glob("*-server-*"))), *named]
    by_file: dict[str, str] = {}
    for path in filter(None, map(shutil.which, filter(None, candidates))):
        by_file.setdefault(os.path.realpath(path), path)
    found = list(by_file.values()) or ["redis-server"]
    return found[:1] if os.environ.get(SERVERS_VARIABLE) == "first" else found


@cache
def name_of(binary: str) -> str:
    """What a server calls itself: redis-7.0.15, valkey-8.0.1."""
    if shutil.which(binary) is None:
        return Path(binary).name
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    return f"{said.split()[0].lower()}-{said.partition(' v=')[2].split()[0]}"


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Look again and again; a server that does not answer is one where it is not so yet."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, Refusal):
            if is_so():
                return
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE_S} s in vain until {what}")


class Certificates:
    """An authority and a certificate for 127.0.0.1 and localhost, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority(folder)
        self.ca_file = authority.ca_file
        self.server_file = authority.server_file("127.0.0.1", "localhost")


class RedisServer:
    """One server. Runs from the beginning; a context manager that ends it.

    `acl`: users beside the default one, each as in "gateway on >secret ~* &* +@all". `extra`: more lines of its
    configuration. `password`: of the default user.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        appendonly: Fsync = "no",
        password: str | None = None,
        acl: Iterable[str] = (),
        tls: Certificates | None = None,
        maxmemory: str | None = None,
        extra: Iterable[str] = (),
        binary: str = "redis-server",
        is_sentinel: bool = False,
    ) -> None:
        self.folder = folder
        self.password = password
        self.tls = tls
        self._binary = found(binary)
        self._arguments = ["--sentinel"] if is_sentinel else []
        self._process: subprocess.Popen[bytes] | None = None
        # Secrets stand in a file, never in the arguments, which all users of a machine can read.
        self._lines = ["bind 127.0.0.1", "daemonize no", 'logfile ""', f"dir {folder}", *extra]
        if not is_sentinel:
            self._lines += ['save ""', f"appendonly {'no' if appendonly == 'no' else 'yes'}"]
        self._lines += [f"appendfsync {appendonly.replace('unsynced', 'no')}"] if appendonly != "no" else []
        self._lines += [f"requirepass {password}"] if password else []
        self._lines += [f"user {user}" for user in acl]
        self._lines += [f"maxmemory {maxmemory}"] if maxmemory else []
        if tls is not None:
            self._lines += [
                f"tls-ca-cert-file {tls.ca_file}", f"tls-cert-file {tls.server_file}",
                f"tls-key-file {tls.server_file}", "tls-auth-clients no",
            ]  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        for candidate in [port] if port else random.sample(PORTS, 20):
            self.port = candidate
            self._configure()
            if self._start():
                return
        raise AssertionError(f"no port was free for {self!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {Path(self._binary).name} on port {self.port}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def _configure(self) -> None:
        ports = [f"port {self.port}"] if self.tls is None else ["port 0", f"tls-port {self.port}"]
        (self.folder / "redis.conf").write_text("\n".join([*ports, *self._lines, ""]))

    def _start(self) -> bool:
        """Whether it runs; False if its port is taken."""
        path = self.folder / "redis.log"
        with path.open("wb") as log:
            self._process = subprocess.Popen(
                [self._binary, str(self.folder / "redis.conf"), *self._arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            wait_until(lambda: not self.is_running or self._answers(), f"{self!r} answered")
        except BaseException:
            self.kill()
            raise
        if self.is_running:
            return True
        received = path.read_text(errors="replace")
        assert "already in use" in received, f"{self!r} ended with {self._process.returncode}:\n{received[-2000:]}"
        return False

    def _answers(self) -> bool:
        received = flat(self.call("INFO"))
        # Another server on this port answers with another process id.
        return f"process_id:{self.pid}\r" in received and "loading:1" not in received

    # ------------------------------------------------------------------------------------------------------ asking

    @property
    def url(self) -> str:
        """As `store.url`, for the default user."""
        return self.url_for(password=self.password)

    def url_for(self, username: str = "", password: str | None = None, *, port: int | None = None) -> str:
        """As `store.url`, for this user; with `port` by way of another port, such as a `WireProxy`'s."""
        scheme, query = ("redis", "") if self.tls is None else ("rediss", f"?ca_file={self.tls.ca_file}")
        who = f"{quote(username, safe='')}:{quote(password, safe='')}@" if password is not None else ""
        return f"{scheme}://{who}127.0.0.1:{port or self.port}/0{query}"

    def call(self, *words: str | int, timeout_s: float = 5) -> Reply:
        """One command as the default user, and its answer. Raises `Refusal` and OSError."""
        ca_file = None if self.tls is None else self.tls.ca_file
        return ask(self.port, *words, password=self.password, ca_file=ca_file, timeout_s=timeout_s)

    def cli(self, *words: str | int) -> str:
        """`call`, with the answer as lines of text."""
        return flat(self.call(*words))

    def info(self, name: str) -> str:
        """One value of INFO; empty if there is none of this name."""
        return dict(_pairs(self.cli("INFO"))).get(name, "")

    # ------------------------------------------------------------------------------------------------ life and death

    @property
    def is_running(self) -> bool:
        """Whether the process lives; one that is stopped by a signal does."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As if the power had failed: SIGKILL, also of a stopped one."""
        self._end(signal.SIGKILL)

    def shutdown(self) -> None:
        """In good order: SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)

    def restart(self) -> None:
        """Start it again, with the same folder and the same port; one that still runs is shut down before."""
        self.shutdown()
        wait_until(self._start, f"the port of {self!r} was free again")

    def stop(self) -> None:
        """Let it stand still, with its connections open: SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on: SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value

"""A whole gateway in processes of its own, as an operator would start it.

gateway = Gateway(folder, settings(upstream.url))         # waits for its ready line
gateway.post("/v1/completions", {...}, key="alice")
gateway.stop()                                            # TERM; exit code 0, no traceback, no secret in its logs
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

import yaml
from prometheus_client.parser import text_string_to_metric_families

from .client import Answer, Raw, request
from .forked import FORKS, Fork

ADMIN_TOKEN = "admin-token-that-nobody-may-see"
UPSTREAM_KEY = "sk-upstream-key-that-nobody-may-see"
COMPLETIONS = "gpt-3.5-turbo-instruct"
CHAT = "gpt-4o-mini"
EMBEDDINGS = "text-embedding-3-small"

START_S = 60.0
STOP_S = 60.0
"""Bounds here are for the slowest of machines: nothing waits so long when all is well."""

TROUBLES = ("Traceback", "was never retrieved", "was never awaited", "background task")
"""What no log may hold."""

SIMULATOR = "tests.fakes.simulator"
"""The tests' simulated upstream: a module that `Process` takes in place of a command of the gateway."""

ROOT = Path(__file__).parents[2]
BYTECODE = ROOT / ".pytest_cache" / "bytecode"

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The first is five times as fast, for files of many models."""

T = TypeVar("T")


OFTEN_S, SELDOM_S = 0.005, 0.05


def eventually(look: Callable[[], T | Literal[False] | None], timeout_s: float = 30.0, seldom_s: float = SELDOM_S) -> T:
    """Look again and again until there is something to see; fails the test when there never is.

    The longer it takes the less often, down to once in `seldom_s`: many looks are requests, whose work would slow what
    is waited for.
    """
    began = time.monotonic()
    while not (seen := look()):
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"this never came true within {timeout_s:g} s"
        time.sleep(min(max(OFTEN_S, waited_s / 10), seldom_s))
    return seen


def side_by_side(*scenarios: Callable[[], object]) -> None:
    """Most of each is waiting, so they wait together."""
    with ThreadPoolExecutor(len(scenarios)) as threads:
        faults = [
            fault for future in [threads.submit(scenario) for scenario in scenarios] if (fault := future.exception())
        ]
    if faults:
        raise BaseExceptionGroup(f"{len(faults)} of {len(scenarios)} stories", faults)


def records(gateway: Gateway, call_id: str) -> list[dict[str, Any]]:
    """The usage records of a call: one, when it is there."""
    rows: list[dict[str, Any]] = gateway.admin("calls", id=call_id).json["data"]
    return rows


def check(record: Mapping[str, Any], **expected: Any) -> None:
    """Whether a record has these values."""
    assert {name: record[name] for name in expected} == expected


def secret(key: str) -> str:
    """The secret of the key with this id, the same in every test."""
    return f"sk-gw-{key}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def key(name: str, **more: Any) -> dict[str, Any]:
    """A key as it stands in a configuration."""
    return {"id": name, "secret": secret(name), **more}


WITHOUT_TOKENS = {"PYTHONPATH": str(Path(__file__).parent.parent / "fakes" / "without_tokens")}
"""Environment of a process in which the extra `tokens` counts as not installed. It is the default of the tests: their
estimates are then easy to compute, and no process loads tables of 100 MB."""
WITH_TOKENS = {"PYTHONPATH": ""}


def model(endpoint: str, upstream: str = "main", **more: Any) -> dict[str, Any]:
    """A model of one endpoint and one route."""
    return {"endpoints": [endpoint], "routes": [{"upstream": upstream}], "max_output_tokens": 4096, **more}


def settings(upstream: str, **changes: Any) -> dict[str, Any]:
    """A configuration in front of this address, with these changes merged into it; lists are replaced."""
    plain = {
        "server": {"port": 0, "drain_delay_s": 0, "drain_timeout_s": 10},
        "admin": {"token": ADMIN_TOKEN},
        "upstreams": {"main": {"base_url": upstream, "api_key": UPSTREAM_KEY}},
        "models": {COMPLETIONS: model("completions"), CHAT: model("chat"), EMBEDDINGS: model("embeddings")},
        "keys": [key("alice"), key("bob"), key("carol")],
    }
    return _merged(plain, changes)


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(one)
    for name, value in other.items():
        mine = merged.get(name)
        merged[name] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged


def command(*arguments: str) -> list[str]:
    """The gateway's command line, or that of `SIMULATOR`."""
    return [sys.executable, "-m", *([] if arguments[:1] == (SIMULATOR,) else ["gateway"]), *arguments]


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command that ends by itself."""
    given = {**os.environ, **(env or {})}
    if not FORKS.can_start(given):
        return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, env=given, check=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = FORKS.start(arguments, given, Path.cwd(), folder).wait(60)
        said = [(folder / stream).read_text() for stream in ("stdout", "stderr")]
    return subprocess.CompletedProcess(command(*arguments), code, *said)


def children(pid: int) -> list[int]:
    """The processes that this one has started and that still run."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return sorted(int(child) for child, parent, state in rows if int(parent) == pid and not state.startswith("Z"))


def keep_bytecode() -> None:
    """Let this process and those that it starts keep compiled modules where the environment forbids it.

    Each gateway that starts would compile all of its modules otherwise, which takes longer than the rest of its start.
    They are kept outside the folders of the sources, where that environment does not want them.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(BYTECODE)
        sys.dont_write_bytecode = False


class Process:
    """One process with its standard output and error in files, alone in its process group."""

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """What is run."""
        return command(*arguments)

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        given = {**os.environ, "TMPDIR": str(folder), **WITHOUT_TOKENS, **(env or {})}
        run = self.command(*arguments)
        self.process: subprocess.Popen[bytes] | Fork
        if run == command(*arguments) and FORKS.can_start(given):
            self.process = FORKS.start(arguments, given, folder, folder)
            return
        if arguments[:1] == (SIMULATOR,):
            given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), given["PYTHONPATH"]]))
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                run, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True, cwd=folder, env=given
            )

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        """Wait until this stands in its standard output."""

        def look() -> re.Match[str] | None:
            code = self.process.poll()
            found = re.search(pattern, self.stdout)
            assert found or code is None, f"ended with {code} before it said {pattern!r}: {self.stderr}"
            return found

        return eventually(look, timeout_s)

    def kill(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """Leave nothing of it behind, whatever the test has done to it."""
        if self.process.poll() is None or is_group_in(self.process.pid, self.folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended (EPERM: macOS)
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)


def is_group_in(group: int, folder: Path) -> bool:
    """Whether a process of this group works in this folder. The number of a group that has ended is given to others."""
    if not Path("/proc/self/stat").exists():
        return True  # not to be known; such a system gives numbers again after a long time
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if int(stat_of(process.name)[2]) == group and (process / "cwd").readlink() == folder:
                return True
    return False


def stat_of(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat (proc(5)) from the third on; the second is a name that may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Gateway(Process):
    """`gateway serve` with a configuration, started and ready."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *arguments: str,
        env: Mapping[str, str] | None = None,
        is_awaited: bool = True,
    ) -> None:
        self.config = _merged({"store": {"url": f"embedded:{folder / 'data'}"}}, config)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "gateway.yaml"
        self.file.touch(mode=0o600)  # it has secrets
        self.file.write_text(yaml.dump(self.config, Dumper=DUMPER))
        super().__init__(folder, "serve", "--config", str(self.file), *arguments, env=env)
        self.url = ""
        self.port = 0
        self.expected_code = 0
        if is_awaited:
            self.wait_until_ready()

    def __repr__(self) -> str:
        return f"<Gateway {self.url or 'starting'}, pid {self.process.pid}>"

    def wait_until_ready(self) -> None:
        found = self.wait_for(r"serves (http://127\.0\.0\.1:(\d+)) with")
        self.url, self.port = found[1], int(found[2])

    # ----------------------------------------------------------------------------------------------- as a client

    def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = "alice", headers: Mapping[str, str] = {}
    ) -> Answer:
        """One request with the secret of this key."""
        given = dict(headers)
        if key is not None:
            given.setdefault("Authorization", f"Bearer {secret(key)}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            given.setdefault("Content-Type", "application/json")
        return request(self.port, method, path, body, given)

    def post(self, path: str, body: Any, **more: Any) -> Answer:
        return self.send("POST", path, body, **more)

    def complete(self, key: str = "alice", **changes: Any) -> Answer:
        """A small completion."""
        return self.post("/v1/completions", {"model": COMPLETIONS, "prompt": "Hello"} | changes, key=key)

    def chat(self, key: str = "alice", **changes: Any) -> Answer:
        """A small chat."""
        members = {"model": CHAT, "messages": [{"role": "user", "content": "Hello"}]} | changes
        return self.post("/v1/chat/completions", members, key=key)

    def get(self, path: str, **more: Any) -> Answer:
        return self.send("GET", path, **more)

    def connect(self) -> Raw:
        """A socket, for those who write HTTP by hand."""
        return Raw(self.port)

    def stream(self, key: str = "alice", version: str = "1.1", path: str = "/v1/completions", **changes: Any) -> Raw:
        """A streamed completion on a socket of its own; the head of the answer has still to be read."""
        raw = self.connect()
        members = {"model": COMPLETIONS, "prompt": "Hello", "stream": True} | changes
        raw.post(path, json.dumps(members).encode(), secret(key), version)
        return raw

    # --------------------------------------------------------------------------------------------- as an operator

    def admin(self, path: str, **query: str) -> Answer:
        shown = f"/admin/api/{path}" + (f"?{urlencode(query)}" if query else "")
        return self.send("GET", shown, key=None, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})

    def usage(self, **query: str) -> list[dict[str, Any]]:
        """Rows of the usage report."""
        rows: list[dict[str, Any]] = self.admin("usage", **query).json["data"]
        return rows

    def calls(self, key: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest usage records of a key, the newest first, page by page."""
        rows: list[dict[str, Any]] = []
        query = {"key": key} if key else {}
        while True:
            page = self.admin("calls", limit=str(min(1000, limit - len(rows))), **query).json
            rows += page["data"]
            if page["next"] is None or len(rows) >= limit:
                return rows
            query["before"] = page["next"]

    def call(self, answer_id: str) -> dict[str, Any]:
        """The usage record of one call, as soon as it is there."""
        (record,) = eventually(lambda: records(self, answer_id))
        return record

    def metrics(self, name: str = "") -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Every sample of one scrape, or those whose names begin so."""
        text = self.get("/metrics", key=None).body.decode()
        if name:  # most of the time goes into the others
            text = "".join([line for line in text.splitlines(keepends=True) if line.startswith(name)])
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples with this name and these labels."""
        return sum(
            value for found, has, value in self.metrics(name) if found == name and labels.items() <= dict(has).items()
        )

    def lines(self) -> list[dict[str, Any]]:
        """The access lines that are written so far."""
        whole = self.stdout.rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def line(self, **fields: Any) -> dict[str, Any]:
        """The access line with these fields, as soon as it is there."""
        return eventually(lambda: next((line for line in self.lines() if fields.items() <= line.items()), None))

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        return children(self.process.pid)

    # ------------------------------------------------------------------------------------------------------- the end

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop it politely, and look whether it has behaved."""
        if self.process.poll() is None:
            self.kill(number)
        try:
            code = self.wait()
        finally:
            self.end()
        assert code == self.expected_code, f"exit code {code}: {self.stderr}"
        self.check_logs()

    def check_logs(self) -> None:
        """No traceback, nothing that asyncio has to complain of, and no secret."""
        for words in TROUBLES:
            assert words not in self.stderr, self.stderr
        secrets = [UPSTREAM_KEY, ADMIN_TOKEN, *(key["secret"] for key in self.config["keys"] if "secret" in key)]
        for text in (self.stdout, self.stderr):
            assert not [each for each in secrets if each in text], text

"""one-api as a reseller: a real relay of another project, with channels to an upstream of the test.

`make servers` builds it from its Go module, if Go and the module proxy are available. It listens on loopback only and
stores its records in an SQLite file. Instead of downloaded tokeniser tables it gets the smallest possible ones (one
token for each byte); all its other downloads go to a proxy that does not exist.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from .redis_servers import ROOT

PROGRAM = ROOT / ".venv" / "servers" / "one-api"
KEY = "sk-oneapiKeyThatNobodyMaySee00000000000000000000000"
_ADMIN = "0123456789abcdef0123456789abcdef"
START_S = 60.0
STOP_S = 10.0
OPENAI, ANTHROPIC = 1, 14
"""Types of channels (one-api, relay/channeltype): what it speaks to the upstream."""

_TABLES = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"


class MissingRelay(Exception):
    """It is not installed; the sentence says what to do."""


class OneAPI:
    """One of them on a port that was free, with a channel to the upstream for each type. Raises `MissingRelay`."""

    program = PROGRAM
    key = KEY
    """Of its clients."""
    access_token = _ADMIN
    """Of its operator, who is also the user of the key."""

    def __init__(self, folder: Path, upstream: str, upstream_key: str, models: Mapping[int, Sequence[str]]) -> None:
        if not self.program.exists():
            raise MissingRelay(
                f"{self.program} is not there, and this test needs it: run `make servers`, which says why not."
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._log = folder / "log"
        nowhere = "http://127.0.0.1:9"
        env = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "PORT": str(self.port), "GIN_MODE": "release",
            "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1", **self._environment(folder),
        }  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self.program], env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._wait()
            self._set_up()
            for kind, names in models.items():
                self.add_channel(kind, upstream, upstream_key, names)
        except BaseException:
            self.close()
            raise

    def _environment(self, folder: Path) -> Mapping[str, str]:
        for name in ("cl100k_base", "o200k_base", "p50k_base", "r50k_base"):
            lines = [f"{base64.b64encode(bytes([each])).decode()} {each}" for each in range(256)]
            place = folder / hashlib.sha1(_TABLES.format(name).encode(), usedforsecurity=False).hexdigest()
            place.write_text("\n".join(lines) + "\n")
        return {
            "TIKTOKEN_CACHE_DIR": str(folder), "SQLITE_PATH": str(folder / "one-api.db"),
            "INITIAL_ROOT_TOKEN": KEY.removeprefix("sk-"), "INITIAL_ROOT_ACCESS_TOKEN": _ADMIN,
            "GLOBAL_API_RATE_LIMIT": "100000",
        }  # fmt: skip

    def _set_up(self) -> None:
        """What it needs before channels."""

    def _headers(self) -> Mapping[str, str]:
        """Of its operator's requests."""
        return {"Authorization": _ADMIN}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where it serves, without /v1."""
        return f"http://127.0.0.1:{self.port}"

    def logs(self) -> list[dict[str, Any]]:
        """Its own records of calls, the newest first."""
        return list(self._ask("GET", "/api/log/?p=0&type=2")["data"])

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while True:
            try:
                self._ask("GET", "/api/status")
            except (OSError, urllib.error.URLError):
                is_late = self._process.poll() is not None or time.monotonic() > until
                assert not is_late, self._log.read_text()[-2000:]
                time.sleep(0.1)
            else:
                return

    def add_channel(self, kind: int, upstream: str, upstream_key: str, models: Sequence[str]) -> None:
        """A channel of this type to an upstream, for these models."""
        channel = {
            "name": f"simulated-{kind}", "type": kind, "key": upstream_key, "base_url": upstream,
            "models": ",".join(models), "group": "default",
        }  # fmt: skip
        received = self._ask("POST", "/api/channel/", self._channel(channel))
        assert received["success"], received

    def _channel(self, channel: dict[str, Any]) -> dict[str, Any]:
        """The body that makes this channel."""
        return channel

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        asked = urllib.request.Request(
            f"{self.url}{path}", method=method, data=None if body is None else json.dumps(body).encode(),
            headers={**self._headers(), "Content-Type": "application/json"},
        )  # fmt: skip
        with self._opener.open(asked, timeout=10) as answer:
            return json.loads(answer.read())

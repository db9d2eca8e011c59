"""new-api as a reseller: the successor of one-api, with an upstream of the test behind its channels.

`make servers` builds it from its Go module. Its first visitor makes its operator, who makes a key and the channels.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .one_api import OneAPI
from .redis_servers import ROOT

MIDJOURNEY, GEMINI = 2, 24
"""Types of channels (new-api, constant/channel.go), beside those of one-api."""
_OPERATOR = {"username": "root", "password": "password-of-root"}


class NewAPI(OneAPI):
    """See the head of the file."""

    program = ROOT / ".venv" / "servers" / "new-api"
    _token = ""

    def _environment(self, folder: Path) -> Mapping[str, str]:
        limits = {f"{name}_RATE_LIMIT_ENABLE": "false" for name in ("GLOBAL_API", "GLOBAL_WEB")}
        return {"SQLITE_PATH": str(folder / "new-api.db"), "UPDATE_TASK": "false", **limits}

    def _set_up(self) -> None:
        self._ask("POST", "/api/setup", _OPERATOR | {
            "confirmPassword": _OPERATOR["password"], "SelfUseModeEnabled": True, "DemoSiteEnabled": False,
        })  # fmt: skip
        self._good("POST", "/api/user/login", _OPERATOR)
        self._token = self._good("GET", "/api/user/token")
        self._good("POST", "/api/token/", {"name": "gateway", "expired_time": -1, "unlimited_quota": True})
        (made,) = self._good("GET", "/api/token/?p=1&page_size=10")["items"]
        self.key = f"sk-{made['key']}"

    def _good(self, method: str, path: str, body: Any = None) -> Any:
        received = self._ask(method, path, body)
        assert received["success"], received
        return received.get("data")

    def _headers(self) -> Mapping[str, str]:
        return {"New-Api-User": "1", **({"Authorization": self._token} if self._token else {})}

    def _channel(self, channel: dict[str, Any]) -> dict[str, Any]:
        return {"mode": "single", "channel": channel}

    def notify(self, task: str) -> None:
        """Report the good end of a task of Midjourney, as midjourney-proxy does."""
        body = {"id": task, "status": "SUCCESS", "progress": "100%", "imageUrl": "https://pictures.example/cat.png"}
        asked = urllib.request.Request(
            f"{self.url}/mj/notify", json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )  # fmt: skip
        urllib.request.urlopen(asked, timeout=10).close()

    def logs(self) -> list[dict[str, Any]]:
        return list(self._good("GET", "/api/log/?p=1&page_size=100&type=2")["items"])

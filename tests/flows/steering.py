"""What an operator does through the admin API, in the words of a test.

operator = Operator(gateway)
secret = operator.create("alice", quotas=[{"requests": 5, "per": "day"}])
operator.use(secret).status
operator.send("PATCH", "keys/alice", {"max_parallel": 2}).json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

from gateway.keys.cache import CHANGES_EVERY_S

from .client import Answer, request
from .gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually

HEARD_S = 30.0
"""How long a test waits until every worker has heard of a change; they promise 5 s where nothing else is slow."""

IN_A_ROW = 16
"""Calls, each on a connection of its own, that reach every worker of a gateway."""


class Operator:
    """Of one gateway."""

    def __init__(self, gateway: Gateway, token: str | None = ADMIN_TOKEN) -> None:
        self.gateway = gateway
        self.token = token

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request; a body that is not a string is sent as JSON."""
        given = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if raw is not None:
            given["Content-Type"] = "application/json"
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return request(self.gateway.port, method, f"/admin/api/{quote(path, safe='/?=&%')}", raw, given)

    def done(self, method: str, path: str, body: Any = None) -> Any:
        """What a request came to that is granted."""
        answer = self.send(method, path, body)
        assert answer.status in (200, 201), answer.body
        return answer.json

    def create(self, key: str, **settings: Any) -> str:
        """A new key's secret."""
        answer = self.send("POST", "keys", {"id": key, **settings})
        assert answer.status == 201, answer.body
        made: str = answer.json["secret"]
        return made

    def rows(self, path: str) -> list[dict[str, Any]]:
        """All rows of a list, page by page."""
        rows: list[dict[str, Any]] = []
        page = self.done("GET", path)
        while True:
            rows += page["data"]
            if page["next"] is None:
                return rows
            page = self.done("GET", f"{path}{'&' if '?' in path else '?'}after={quote(page['next'], safe='')}")

    def use(self, secret: str, **changes: Any) -> Answer:
        """A small completion with this secret."""
        return use(self.gateway, secret, **changes)


def use(gateway: Gateway, secret: str, **changes: Any) -> Answer:
    """A small completion with this secret."""
    body = {"model": COMPLETIONS, "prompt": "Hello", **changes}
    return gateway.post("/v1/completions", body, key=None, headers={"Authorization": f"Bearer {secret}"})


def until_all_say(gateways: Gateway | Iterable[Gateway], secret: str, status: int) -> None:
    """Wait until every worker of all these gateways answers so to this secret, without spending anything."""
    _until_all(gateways, secret, lambda answer: answer.status == status)


def until_all_know(gateways: Gateway | Iterable[Gateway], secret: str, look: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until each worker's report of this key's limits fulfils `look`."""
    _until_all(gateways, secret, lambda answer: answer.status == 200 and look(answer.json))


def _until_all(gateways: Gateway | Iterable[Gateway], secret: str, look: Callable[[Answer], bool]) -> None:
    ports = [gateway.port for gateway in ([gateways] if isinstance(gateways, Gateway) else gateways)] * IN_A_ROW
    given = {"Authorization": f"Bearer {secret}"}

    def is_so() -> bool:
        return all(look(request(port, "GET", "/v1/key", None, given)) for port in ports)

    # On a busy machine one worker may have taken all of these connections: another look, when every worker has read
    # the store's list of changes once more.
    eventually(is_so, timeout_s=HEARD_S)
    time.sleep(CHANGES_EVERY_S + 0.5)
    eventually(is_so, timeout_s=HEARD_S)


def window(rows: Sequence[dict[str, Any]], unit: str, per: str) -> dict[str, Any]:
    """The first window of this unit and time: a key's own come before all others."""
    return next(row for row in rows if (row["unit"], row["per"]) == (unit, per))

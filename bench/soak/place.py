"""The processes of a soak: a store, the watched gateway with two workers, and on Redis another that is restarted."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import yaml

from tests.fakes.redis_servers import RedisServer
from tests.flows.gateway_process import ADMIN_TOKEN, CHAT, COMPLETIONS, EMBEDDINGS, UPSTREAM_KEY, Gateway, key, model

from .market import Market

WIDE: list[dict[str, Any]] = [
    {"tokens": 10**12, "per": "day"},
    {"requests": 10**9, "per": "month"},
    {"usd": 10**6, "per": "month"},
]
POOR = 40
"""Calls per day of the key with a small quota."""
FAST = 3
"""Calls per second of the key with a high rate."""
PRICE = {"input": 1, "output": 2}

ROUTES = [{"upstream": "main", "priority": 1}, {"upstream": "spare", "priority": 2}]


class Place:
    """See the head of the file. A context manager; `gateway` is the gateway that is watched."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.market = Market()
        self.redis: RedisServer | None = None
        self.ended: list[Gateway] = []
        """Restarted gateways; their logs are checked as well."""
        self._ends = contextlib.ExitStack()
        self._numbers = itertools.count()
        self._guests = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as begun:
            begun.enter_context(self.market)
            if self.kind == "redis":
                self.redis = begun.enter_context(RedisServer(self.folder / "redis", appendonly="everysec"))
            self.gateway = self.start("watched", workers=2)
            self.elder = self.gateway.workers()[0]
            """The worker that is never killed."""
            self.second = self.start("second") if self.redis else None
            self._ends = begun.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        for gateway in self.gateways:
            gateway.end()
        self._ends.__exit__(*exc)  # type: ignore[arg-type]

    @property
    def running(self) -> list[Gateway]:
        """Running gateways, the watched one first."""
        return [self.gateway] + ([self.second] if self.second else [])

    @property
    def gateways(self) -> list[Gateway]:
        """All gateways, with ended ones."""
        return self.running + self.ended

    def start(self, name: str, workers: int = 1) -> Gateway:
        """Starts a gateway on the store; gateways of one name run one after the other, with the same journal folder."""
        gateway = Gateway(
            self.folder / f"{name}-{next(self._numbers)}", self._settings(name, workers), is_awaited=False
        )
        try:
            gateway.wait_until_ready()
        except BaseException:
            gateway.end()
            raise
        return gateway

    @contextlib.contextmanager
    def without_second(self) -> Iterator[None]:
        """Ends the second gateway with its drain, and replaces it at the end of the block."""
        leaving, self.second = self.second, None
        assert leaving is not None
        self.ended.append(leaving)
        time.sleep(0.5)  # clients may have just chosen it
        leaving.stop()
        yield
        self.second = self.start("second")

    def invite(self) -> str:
        """Writes a configuration with a new guest key; returns its name."""
        self._guests += 1
        guest = f"guest-{self._guests}"
        config = {**self.gateway.config, "keys": [*self._keys(), key(guest, quotas=WIDE)]}
        self.gateway.file.write_text(yaml.safe_dump(config))
        return guest

    def journals(self, name: str) -> list[Path]:
        """The existing folders of journals, of running and ended workers."""
        return [path for path in self._journal(name).iterdir() if path.is_dir() and not path.suffix]

    def _journal(self, name: str) -> Path:
        return self.folder / f"journal-{name}"

    def _settings(self, name: str, workers: int) -> dict[str, Any]:
        timeouts = {"connect_s": 2, "head_s": 2, "idle_s": 2, "total_s": 60}
        store = self.redis.url if self.redis else f"embedded:{self.folder / 'data'}"
        shared: dict[str, Any] = {"routes": ROUTES, "price": PRICE}
        return {
            "server": {
                "port": 0, "workers": workers, "drain_delay_s": 1, "drain_timeout_s": 100, "client_head_timeout_s": 2,
            },
            "store": {"url": store, "journal_dir": str(self._journal(name))},
            "admin": {"token": ADMIN_TOKEN},
            "upstreams": {
                name: {"base_url": url, "api_key": UPSTREAM_KEY, "timeouts": timeouts, "max_connection_age_s": 20}
                for name, url in self.market.urls.items()
            },
            "models": {
                COMPLETIONS: model("completions", **shared),
                CHAT: model("chat", price=PRICE),
                EMBEDDINGS: model("embeddings", **shared),
            },
            "quotas": [{"tokens": 10**13, "per": "day"}],
            "keys": self._keys(),
        }  # fmt: skip

    def _keys(self) -> list[dict[str, Any]]:
        return [
            *(key(who, quotas=WIDE, max_parallel=500) for who in ("alice", "bob")),
            key("poor", quotas=[{"requests": POOR, "per": "day"}]),
            key("fast", quotas=[{"requests": FAST, "per": "second"}, {"tokens": 10**12, "per": "day"}]),
        ]

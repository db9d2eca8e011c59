"""The stack: nginx, two gateways of two workers, Redis, two simulated upstreams and Prometheus, each a real process."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from bench.soak.place import PRICE, ROUTES, WIDE
from tests.deploy.nginx import nginx
from tests.deploy.programs import found
from tests.fakes import redis_servers
from tests.fakes.prometheus import prometheus
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Authority, dead_port
from tests.flows.gateway_process import CHAT, COMPLETIONS, EMBEDDINGS, UPSTREAM_KEY, Gateway, key, model, settings
from tests.flows.steering import Operator, until_all_say

from .public import GUEST, ISSUED, METERED
from .rules import accelerated
from .upstream import Upstream

NAMES = ("first", "second")
WORKERS = 2
FEW = 12
"""Calls per day of the metered key."""


@dataclass
class Run:
    """One run of a gateway. Times are Unix times; `ended` is 0 while it runs."""

    name: str
    gateway: Gateway
    began: float
    ended: float = 0.0


class Place:
    """See the head of the file. A context manager; gateways of one name run one after the other, on one port."""

    def __init__(self, folder: Path) -> None:
        for program in ("nginx", "prometheus"):
            found(program)
        redis_servers.found("redis-server")
        self.folder = folder
        self.runs: list[Run] = []
        self._ports = {name: dead_port() for name in NAMES}
        self._quotas: list[dict[str, Any]] = [{"requests": FEW, "per": "day"}]
        self._guests: list[dict[str, Any]] = []
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as begun:
            self.redis = begun.enter_context(RedisServer(self.folder / "redis", appendonly="everysec"))
            self.upstreams = {name: Upstream(self.folder / name) for name in ("main", "spare")}
            for upstream in self.upstreams.values():
                begun.callback(upstream.end)
            begun.callback(self._end_gateways)
            self.start(*NAMES)
            self.issued = self._issue()
            authority = Authority(self.folder)
            self.ca_file = authority.ca_file
            certificate = authority.server_file("127.0.0.1", "gateway.example.com")
            (front := self.folder / "nginx").mkdir()
            self.front = begun.enter_context(nginx(front, [*self._ports.values()], certificate))
            watch = prometheus(self.folder / "prometheus", [*self._ports.values()], accelerated(self.folder / "rules"))
            self.prometheus = begun.enter_context(watch)
            self._ends = begun.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.__exit__(*exc)  # type: ignore[arg-type]

    def _end_gateways(self) -> None:
        for gateway in self.gateways:
            gateway.end()

    @property
    def gateways(self) -> list[Gateway]:
        """All runs, with ended ones."""
        return [run.gateway for run in self.runs]

    @property
    def alive(self) -> list[Gateway]:
        """Gateways that run now."""
        return [run.gateway for run in self.runs if not run.ended]

    def _issue(self) -> str:
        """Makes a key that is stored in Redis only; returns its secret once every worker knows it."""
        secret = Operator(self.alive[0]).create(ISSUED, quotas=WIDE)
        until_all_say(self.alive, secret, 200)
        return secret

    def run_of(self, name: str) -> Run:
        """The running gateway of this name."""
        return next(run for run in self.runs if run.name == name and not run.ended)

    def start(self, *names: str) -> None:
        """Starts gateways on the store in parallel; returns when all of them serve."""
        begun = []
        for name in names:
            folder = self.folder / f"{name}-{sum(run.name == name for run in self.runs)}"
            port = str(self._ports[name])
            began = time.time()
            begun.append(Run(name, Gateway(folder, self._settings(name), "--port", port, is_awaited=False), began))
            self.runs.append(begun[-1])
        for run in begun:
            run.gateway.wait_until_ready()

    def stop(self, name: str) -> None:
        """Ends a gateway with SIGTERM; raises AssertionError if it fails."""
        run = self.run_of(name)
        run.gateway.kill(signal.SIGTERM)
        code = run.gateway.wait()
        run.ended = time.time()
        assert code == 0, f"{run.gateway!r} ended with {code}"

    def change_configuration(self) -> None:
        """Writes a configuration for both gateways with a guest key and a larger quota for the metered key."""
        self._quotas, self._guests = [{"requests": 10**6, "per": "day"}], [key(GUEST, quotas=WIDE)]
        for run in self.runs:
            if not run.ended:
                run.gateway.config = self._settings(run.name)
                new = run.gateway.file.with_suffix(".new")
                new.write_text(yaml.safe_dump(run.gateway.config))
                new.replace(run.gateway.file)

    def journals(self, name: str) -> Sequence[Path]:
        """The existing folders of journals, of running and ended workers."""
        return [path for path in self._journal(name).iterdir() if path.is_dir() and not path.suffix]

    def _journal(self, name: str) -> Path:
        return self.folder / f"journal-{name}"

    def _settings(self, name: str) -> dict[str, Any]:
        shared = {"routes": ROUTES, "price": PRICE}
        return settings(
            "",
            server={"workers": WORKERS, "drain_delay_s": 1, "drain_timeout_s": 60, "trusted_proxies": ["127.0.0.1/32"]},
            store={"url": self.redis.url, "journal_dir": str(self._journal(name))},
            upstreams={
                name: {"base_url": upstream.url, "api_key": UPSTREAM_KEY, "probe_s": 1}
                for name, upstream in self.upstreams.items()
            },
            models={
                COMPLETIONS: model("completions", **shared),  # type: ignore[arg-type]
                CHAT: model("chat", **shared),  # type: ignore[arg-type]
                EMBEDDINGS: model("embeddings", **shared),  # type: ignore[arg-type]
            },
            quotas=[{"tokens": 10**13, "per": "day"}],
            keys=[
                *(key(who, quotas=WIDE, max_parallel=500) for who in ("alice", "bob")),
                key(METERED, quotas=self._quotas),
                *self._guests,
            ],
        )

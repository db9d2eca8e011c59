"""`gateway demo`: a gateway in front of simulated upstreams, with a past and a trickle of calls; without a network, a
key or a server. `--empty` has neither past nor calls."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from .serve import port_number, supervise

if TYPE_CHECKING:
    from aiohttp import web

    from gateway import simulator
    from gateway.config import Config

    from .simulate import WingDemo

DEMO_MODELS: dict[str, dict[str, Any]] = {
    "gpt-3.5-turbo-instruct": {"endpoints": ["completions"], "price": {"input": 1.5, "output": 2}},
    "gpt-4o-mini": {"endpoints": ["chat", "responses"], "price": {"input": 0.15, "output": 0.6, "cached_input": 0.075}},
    "deepseek-reasoner": {"endpoints": ["chat", "responses"], "price": {"input": 0.55, "output": 2.19}},
    "text-embedding-3-small": {"endpoints": ["embeddings"], "price": {"input": 0.02}},
    "claude-sonnet-5": {
        "endpoints": ["messages"],
        "price": {"input": 3, "output": 15, "cached_input": 0.3, "cache_write": 3.75, "cache_write_1h": 6},
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1; 0.0.0.0 in a container")
    parser.add_argument("--port", type=port_number, default=8080, help="default: 8080; 0 takes a free one")
    parser.add_argument("--empty", action="store_true", help="one key, no earlier calls, and no generated calls")
    parser.set_defaults(config="demo")


def run(args: argparse.Namespace) -> int:
    """Serve the demo; returns the exit code."""
    from gateway.config.source import Reading

    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as folder:
        demo = Demo(args.port, folder, host=args.host, is_empty=args.empty)
        if not args.empty:
            from .demo_history import write_history

            asyncio.run(write_history(demo.config, demo.began))
        return supervise(Reading(demo.config, demo.values, frozenset()), None, demo)


class Demo:
    """Simulated upstreams, a store that is thrown away, keys and an admin token, made for this run."""

    def __init__(self, port: int, folder: str, *, host: str = "127.0.0.1", is_empty: bool = False) -> None:
        from gateway.tasks import Tasks

        self.began = time.time()
        """The Unix time at which the past ends."""
        self._tasks = Tasks()
        self.key_secrets: dict[str, str] = {}
        """Secrets of the keys that the demo itself calls with, by key id."""
        self.key = f"sk-gw-demo-{secrets.token_urlsafe(24)}"
        self.admin_token = secrets.token_urlsafe(24)
        self._upstream_key = secrets.token_urlsafe(24)
        self._upstream = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._shaky: socket.socket | None = None
        self._of_wings: list[WingDemo] = []
        self.values: dict[str, Any] = {
            "server": {"host": host, "port": port, "access_log": "off", "drain_delay_s": 0, "drain_timeout_s": 5},
            "store": {"url": f"embedded:{folder}/data", "journal_dir": f"{folder}/journal"},
            "admin": {"token": self.admin_token},
            "upstreams": {"simulator": self._settings_of(self._upstream)},
            "models": {
                name: {**model, "routes": [{"upstream": "simulator"}], "max_output_tokens": 4096}
                for name, model in DEMO_MODELS.items()
            },
            "keys": [
                {
                    "id": "demo",
                    "secret": self.key,
                    "quotas": [
                        {"requests": 600, "per": "minute"},
                        {"tokens": 1000000, "per": "day"},
                        {"usd": 5, "per": "month"},
                    ],
                }
            ],
        }

        if not is_empty:
            self._add_life()

    def _add_life(self) -> None:
        """More keys, in teams, and a second upstream, which fails now and then."""
        from .demo_history import PEOPLE, SPARE, TEAMS
        from .simulate import demos_of_wings

        self._shaky = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.values["upstreams"][SPARE] = self._settings_of(self._shaky)
        for model in self.values["models"].values():
            model["routes"] = [{"upstream": "simulator", "weight": 3}, {"upstream": SPARE}]
        self.key_secrets = {name: f"sk-gw-{name}-{secrets.token_urlsafe(24)}" for name in PEOPLE}
        self.values["teams"] = dict(TEAMS)
        self.values["keys"] += [
            {
                "id": name,
                "secret": self.key_secrets[name],
                "team": person.team,
                "quotas": list(person.quotas),
                "labels": {"center": person.center},
                "owner": person.owner,
            }
            for name, person in PEOPLE.items()
        ]
        self._of_wings = demos_of_wings()
        for each in self._of_wings:
            self.values[each.section] = each.settings(self.values["upstreams"])

    @cached_property
    def config(self) -> Config:
        from gateway.config import build

        return build(self.values)

    def _settings_of(self, listener: socket.socket) -> dict[str, Any]:
        """The settings of the simulated upstream that listens there."""
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        return {"base_url": address, "api_key": self._upstream_key, "capabilities": {"messages": True}}

    def close(self) -> None:
        """Close the sockets of upstreams that were never served."""
        for listener in filter(None, (self._upstream, self._shaky)):
            listener.close()

    async def start_upstream(self) -> None:
        """Serve the simulated upstreams beside the supervisor."""
        from gateway import simulator

        settings = simulator.Settings(api_key=self._upstream_key, first_token_delay_s=0.15, tokens_per_s=40)
        await simulator.serve_on(self._upstream, settings, self._built("simulator"))
        if self._shaky is not None:
            failing = replace(settings, fails_every_s=240, fails_for_s=40)
            await simulator.serve_on(self._shaky, failing, self._built("shaky"))

    def _built(self, upstream: str) -> Callable[[simulator.Settings], web.Application]:
        from gateway import simulator

        made = [partial(each.build, upstream, self.config, self.began) for each in self._of_wings]
        return made[0] if made else simulator.build_app

    def welcome(self, address: str) -> str:
        """The commands to type next. Begins the calls of the other keys."""
        for every, local in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
            address = address.replace(every, local)
        if self.key_secrets:
            from .demo_history import call_now_and_then

            self._tasks.spawn(call_now_and_then(address, self.key_secrets), "demo-calls")
        return f"""\
The gateway serves {address} in front of a simulated upstream. Nothing leaves this machine.

Talk to it:

  curl -N {address}/v1/chat/completions \\
    -H "Authorization: Bearer {self.key}" -H "Content-Type: application/json" \\
    -d '{{"model": "gpt-4o-mini", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

Or with the official SDK (`pip install openai`):

  from openai import OpenAI
  client = OpenAI(base_url="{address}/v1", api_key="{self.key}")
  answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content, answer.usage)

Then see the usage of each key in a browser:

  {address}/dashboard#token={self.admin_token}

Or ask what it cost, by model:

  curl "{address}/admin/api/usage?group_by=key,model" -H "Authorization: Bearer {self.admin_token}"

Metrics are at {address}/metrics. Ctrl-C ends the demo."""

"""`gateway demo`: a gateway in front of a simulated upstream, without a network, a key or a server."""

from __future__ import annotations

import argparse
import secrets
import socket
import tempfile
from typing import Any

from .serve import port_number, supervise

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
    """The arguments of the command."""
    parser.add_argument("--port", type=port_number, default=8080, help="default: 8080; 0 takes a free one")
    parser.set_defaults(config="demo")


def run(args: argparse.Namespace) -> int:
    """Serve the demo; returns the exit code."""
    from gateway.config import build
    from gateway.config.source import Reading

    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as folder:
        demo = Demo(args.port, folder)
        return supervise(Reading(build(demo.values), demo.values, frozenset()), None, demo)


class Demo:
    """A simulated upstream, a store that is thrown away, a key and an admin token, made for this run."""

    def __init__(self, port: int, folder: str) -> None:
        self.key = f"sk-gw-demo-{secrets.token_urlsafe(24)}"
        self.admin_token = secrets.token_urlsafe(24)
        self._upstream_key = secrets.token_urlsafe(24)
        self._upstream = socket.create_server(("127.0.0.1", 0), backlog=128)
        upstream_port = self._upstream.getsockname()[1]
        self.values: dict[str, Any] = {
            "server": {"port": port, "access_log": "off", "drain_delay_s": 0, "drain_timeout_s": 5},
            "store": {"url": f"embedded:{folder}/data", "journal_dir": f"{folder}/journal"},
            "admin": {"token": self.admin_token},
            "upstreams": {
                "simulator": {
                    "base_url": f"http://127.0.0.1:{upstream_port}/v1",
                    "api_key": self._upstream_key,
                    "capabilities": {"messages": True},
                }
            },
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

    async def start_upstream(self) -> None:
        """Serve the simulated upstream beside the supervisor."""
        from gateway import simulator

        settings = simulator.Settings(api_key=self._upstream_key, first_token_delay_s=0.15, tokens_per_s=40)
        await simulator.serve_on(self._upstream, settings)

    def welcome(self, address: str) -> str:
        """What to type next."""
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

"""An upstream with background responses, and a configuration in front of it."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any
from urllib.parse import parse_qs

from tests.fakes import responses_api as api
from tests.fakes.scripted import CHUNKED, Wire, chunk, error_json, ok_json

from .client import Raw
from .gateway_process import Gateway, eventually, key, model, records, secret, settings

MODEL = "gpt-4.1"
PRICE = {"input": 2, "cached_input": 1, "output": 8, "cache_write": 3}
OUTPUT = [api.message("All is said.")]
OUTPUT_LIMIT = 200


class Background:
    """Keeps responses, which are queued until the test ends them. A `Behaviour`."""

    def __init__(self) -> None:
        self.responses: dict[str, dict[str, Any]] = {}
        self.polls = 0
        self.answers_after_s = 0.0
        """Pause before a new response is answered."""
        self.ignores_stream = False
        self.shows = 0
        """Events of each stream that are shown before the test ends the response."""
        self.cut_after: int | None = None
        """The number of the event after which the next stream is cut off."""
        self.ends_with: Any = None
        """An event in place of the last one."""
        self._numbers = itertools.count(1)

    def events(self, made: str) -> list[api.Event]:
        """All events of a response; the last is its end."""
        response = self.responses[made]
        is_over = response["status"] not in ("queued", "in_progress")
        end = response if is_over else response | {"output": OUTPUT}
        kind = f"response.{end['status']}" if is_over else "response.completed"
        return api.events(OUTPUT, end, kind, start=response | {"output": []})

    async def _stream(self, wire: Wire, made: str, after: int) -> None:
        cut_after, self.cut_after = self.cut_after, None
        await wire.write(CHUNKED)
        number = after + 1
        while number < len(events := self.events(made)):
            is_over = self.responses[made]["status"] not in ("queued", "in_progress")
            if cut_after is not None and number > cut_after:
                wire.reset()
                return
            if not is_over and number >= min(self.shows, len(events) - 1):
                await asyncio.sleep(0.01)
                continue
            event = events[number]
            if number == len(events) - 1 and self.ends_with is not None:
                event = self.ends_with | {"sequence_number": number}
            await wire.write(chunk(api.one(event)))
            number += 1
        await wire.write(b"0\r\n\r\n")

    async def __call__(self, wire: Wire) -> None:
        path, _, query = wire.request.path.partition("?")
        if wire.request.method == "POST" and path == "/v1/responses":
            asked = wire.request.json
            made = f"resp_{next(self._numbers):032x}"
            more = {"store": asked["store"]} if "store" in asked else {}
            self.responses[made] = api.response(id=made, status="queued", usage=None, background=True, **more)
            await asyncio.sleep(self.answers_after_s)
            if asked.get("stream") and not self.ignores_stream:
                await self._stream(wire, made, -1)
                return
            await ok_json(self.responses[made])(wire)
            return
        if "stream=true" in query:
            await self._stream(wire, path.rpartition("/")[2], int(parse_qs(query).get("starting_after", ["-1"])[0]))
            return
        self.polls += wire.request.method == "GET"
        made, _, action = path.removeprefix("/v1/responses/").partition("/")
        if made not in self.responses:
            await error_json(404, message=f"Response with id '{made}' not found.")(wire)
            return
        if action == "cancel":
            self.responses[made] |= {"status": "cancelled"}
        await ok_json(self.responses[made])(wire)

    def end(self, made: str, status: str = "completed", usage: Any = api.USAGE, **more: Any) -> None:
        self.responses[made] |= {"status": status, "usage": usage, "output": OUTPUT} | more


def config(upstream: str, url: str, **more: Any) -> dict[str, Any]:
    return settings(
        upstream,
        models={MODEL: model("responses", price=PRICE)},
        keys=[
            key("alice", quotas=[{"tokens": 10**6, "per": "day"}, {"usd": 100, "per": "month"}], max_parallel=3),
            key("bob"),
        ],
        server={"workers": 2, "access_log": "json"},
        store={"url": url, **more},
    )


def begin(gateway: Gateway, who: str = "alice", **members: Any) -> tuple[str, str]:
    """A background response: the id of the request, and its own."""
    asked = {"model": MODEL, "input": "Hello", "background": True, "max_output_tokens": OUTPUT_LIMIT} | members
    answer = gateway.post("/v1/responses", asked, key=who)
    assert (answer.status, answer.json["status"]) == (200, "queued"), answer
    return answer.id, answer.json["id"]


def begin_stream(gateway: Gateway, raw: Raw, who: str = "alice", **members: Any) -> str:
    """A background response that is streamed over this connection; the id of the request."""
    asked = {"model": MODEL, "input": "Hello", "background": True, "stream": True} | members
    raw.post("/v1/responses", json.dumps(asked).encode(), secret(who))
    head = raw.read_head()
    assert head.status == 200
    return head.id


def received(body: bytes) -> list[Any]:
    """The events of a stream."""
    return [json.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n") if line.startswith(b"data: ")]


def held(gateway: Gateway, who: str = "alice") -> tuple[int, int]:
    """Tokens that are used and reserved of the key's day."""
    rows = gateway.get("/v1/key", key=who).json["quotas"]
    (row,) = [row for row in rows if row["unit"] == "tokens"]
    return row["used"], row["reserved"]


def settled(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """The record of a call, which is the only one."""
    eventually(lambda: records(gateway, request_id))
    (record,) = records(gateway, request_id)
    return record

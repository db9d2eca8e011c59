"""An upstream with background responses, and a configuration in front of it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from tests.fakes import responses_api as api
from tests.fakes.scripted import Wire, error_json, ok_json

from .house import Gateway, eventually, key, model, settings

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
        self._numbers = itertools.count(1)

    async def __call__(self, wire: Wire) -> None:
        path = wire.request.path.partition("?")[0]
        if wire.request.method == "POST" and path == "/v1/responses":
            made = f"resp_{next(self._numbers):032x}"
            self.responses[made] = api.response(id=made, status="queued", usage=None, background=True)
            await asyncio.sleep(self.answers_after_s)
            await ok_json(self.responses[made])(wire)
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


def begin(house: Gateway, who: str = "alice", **members: Any) -> tuple[str, str]:
    """A background response: the id of the request, and its own."""
    asked = {"model": MODEL, "input": "Hello", "background": True, "max_output_tokens": OUTPUT_LIMIT} | members
    answer = house.post("/v1/responses", asked, key=who)
    assert (answer.status, answer.json["status"]) == (200, "queued"), answer
    return answer.id, answer.json["id"]


def held(house: Gateway, who: str = "alice") -> tuple[int, int]:
    """Tokens that are used and reserved of the key's day."""
    rows = house.get("/v1/key", key=who).json["quotas"]
    (row,) = [row for row in rows if row["unit"] == "tokens"]
    return row["used"], row["reserved"]


def records(house: Gateway, request_id: str) -> list[dict[str, Any]]:
    return [row for row in house.calls(limit=1000) if row["id"] == request_id]


def settled(house: Gateway, request_id: str) -> dict[str, Any]:
    """The record of a call, which is the only one."""
    eventually(lambda: records(house, request_id))
    (record,) = records(house, request_id)
    return record

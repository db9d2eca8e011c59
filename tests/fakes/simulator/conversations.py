"""OpenAI's Conversations API of the simulated upstream: conversations with their items, which responses continue.

A response in a conversation adds the items of its input and its output: a plain or streamed one when its generation
begins, a background one when it ends.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import uuid4

from aiohttp import web

from gateway.simulator.requests import APIError

KEPT = 1000
"""The newest conversations that are kept."""
PAGE = 20
"""Items of a page where the query has no `limit`."""

PATH = "/v1/conversations"
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


class Conversation:
    """One conversation."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.id = f"conv_{uuid4().hex}"
        self.items: dict[str, dict[str, Any]] = {}
        """By their ids, the oldest first."""
        self.metadata = metadata
        self._created = int(time.time())

    def __repr__(self) -> str:
        return f"<Conversation {self.id}: {len(self.items)} items>"

    def add(self, items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add items; as they are then."""
        added = [_kept(item) for item in items]
        self.items |= {item["id"]: item for item in added}
        return added

    def find(self, name: str) -> dict[str, Any]:
        """The item of this id. Raises `APIError`."""
        if name not in self.items:
            raise APIError(404, f"Item with id '{name}' not found.")
        return self.items[name]

    def as_json(self) -> dict[str, Any]:
        """The conversation object."""
        return {"id": self.id, "object": "conversation", "created_at": self._created, "metadata": self.metadata}


def _kept(item: dict[str, Any]) -> dict[str, Any]:
    """An item with an id, a message with parts and a status, as the API shows them."""
    kind = item.get("type", "message")
    kept = {"id": f"{_PREFIXES.get(kind, 'item')}_{uuid4().hex}", "status": "completed", **item, "type": kind}
    if isinstance(content := kept.get("content"), str):
        part = "output_text" if kept.get("role") == "assistant" else "input_text"
        kept["content"] = [{"type": part, "text": content}]
    return kept


def _listed(items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": items, "has_more": False, **ends, **more}


class ConversationStore:
    """The conversations by their ids, and their endpoints."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Conversation] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ConversationStore: {len(self._kept)} conversations>"

    def find(self, name: str) -> Conversation:
        """The conversation of this id. Raises `APIError`."""
        if name not in self._kept:
            raise APIError(404, f"Conversation with id '{name}' not found.")
        return self._kept[name]

    def routes(self, authorise: Callable[[web.Request], None]) -> list[web.RouteDef]:
        """The endpoints. `authorise` raises `APIError`."""

        def serving(answer: Callable[[web.Request], Awaitable[dict[str, Any]]]) -> Any:
            async def handle(request: web.Request) -> web.Response:
                authorise(request)
                return web.json_response(await answer(request))

            return handle

        one = f"{PATH}/{{id}}"
        item = f"{one}/items/{{item}}"
        return [
            web.post(PATH, serving(self._create)),
            web.get(one, serving(self._show)),
            web.post(one, serving(self._update)),
            web.delete(one, serving(self._delete)),
            web.post(f"{one}/items", serving(self._add)),
            web.get(f"{one}/items", serving(self._list)),
            web.get(item, serving(self._show_item)),
            web.delete(item, serving(self._delete_item)),
        ]

    async def _create(self, request: web.Request) -> dict[str, Any]:
        asked = await _body(request)
        made = Conversation(asked.get("metadata") or {})
        made.add(_items(asked))
        self._kept[made.id] = made
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return made.as_json()

    async def _show(self, request: web.Request) -> dict[str, Any]:
        return self._asked(request).as_json()

    async def _update(self, request: web.Request) -> dict[str, Any]:
        found = self._asked(request)
        found.metadata = (await _body(request)).get("metadata") or {}
        return found.as_json()

    async def _delete(self, request: web.Request) -> dict[str, Any]:
        name = self._asked(request).id
        del self._kept[name]
        return {"id": name, "object": "conversation.deleted", "deleted": True}

    async def _add(self, request: web.Request) -> dict[str, Any]:
        found = self._asked(request)
        return _listed(found.add(_items(await _body(request))))

    async def _list(self, request: web.Request) -> dict[str, Any]:
        """A page of the items, the newest first unless the query has `order=asc`."""
        items = list(self._asked(request).items.values())
        if request.query.get("order") != "asc":
            items.reverse()
        if after := request.query.get("after"):
            items = items[[item["id"] for item in items].index(self._asked(request).find(after)["id"]) + 1 :]
        limit = _number(request, "limit", PAGE)
        return _listed(items[:limit], has_more=len(items) > limit)

    async def _show_item(self, request: web.Request) -> dict[str, Any]:
        return self._asked(request).find(request.match_info["item"])

    async def _delete_item(self, request: web.Request) -> dict[str, Any]:
        found = self._asked(request)
        del found.items[found.find(request.match_info["item"])["id"]]
        return found.as_json()

    def _asked(self, request: web.Request) -> Conversation:
        return self.find(request.match_info["id"])


async def _body(request: web.Request) -> dict[str, Any]:
    """The body, which may be missing. Raises `APIError`."""
    try:
        asked = await request.json() if request.can_read_body else {}
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise APIError(400, "The body is not a JSON object.")
    return asked


def _items(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a body. Raises `APIError`."""
    items = asked.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise APIError(400, "'items' is not a list of objects.", param="items")
    return items


def _number(request: web.Request, name: str, default: int) -> int:
    """A number of the query. Raises `APIError`."""
    given = request.query.get(name, str(default))
    if not given.isdecimal():
        raise APIError(400, f"'{name}' is not a number.", param=name)
    return int(given)

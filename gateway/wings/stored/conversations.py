"""Conversations that an upstream keeps (OpenAI's Conversations API): made, read, changed, deleted, and their items.

A new one has no model, and so no route of its own. It goes to the upstream that is the first choice of most of the
caller's models, among those with Responses of their own, and stays there with the API key that made it: calls with
`conversation` go there, too. Requests count in limits of requests per time alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import quote
from zlib import crc32

from aiohttp import web

from gateway.accounting.bonds import MAX_SHOWN_ID
from gateway.api import auth, capabilities, validate
from gateway.api.file_ids import named_files
from gateway.api.json_document import has_more_nested, parse
from gateway.api.large_body import LARGE_BYTES
from gateway.api.schema import ConversationBody
from gateway.config import Config
from gateway.config.model_names import is_pattern
from gateway.errors import BodyTooLarge, InvalidRequest, NotFound, UpstreamFailed
from gateway.formats import token_rule
from gateway.formats.openai.responses import RESPONSES, kept_items, refuse_references
from gateway.records import Bond, Failure, Fault, ItemRef, Key, Phase
from gateway.store.bonds import is_bond_id
from gateway.upstream.credentials import account_of
from gateway.web.bodies import BodyReader
from gateway.web.capacity import Capacity
from gateway.web.endpoints import check_type, continue_later
from gateway.web.middleware import CONTEXT, RequestContext
from gateway.web.responses import Whole
from gateway.web.status import Status

from .binding import elsewhere, named_in_items
from .kept import FindsCaller, KeptAtUpstream, object_of

PATH = "/v1/conversations"

MAX_BODY_BYTES = 1_048_576
MAX_NESTED = 65_536
"""The maximum size of the items of one request, and of the objects and lists in them: they are read in one step, and
more would take too long."""


_NAMES = frozenset(ConversationBody.model_fields)


class _Asked(NamedTuple):
    body: bytes = b"{}"
    items: tuple[ItemRef, ...] = ()
    file_ids: Sequence[str] = ()
    tokens: int = 0
    """The estimate of the items' tokens, without those of files."""


class Conversations:
    """The endpoints of conversations. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status, capacity: Capacity) -> None:
        self._kept = KeptAtUpstream(
            caller, status, capacity, "conversation_id", "/conversations", RESPONSES, name="conversation"
        )
        self._bodies = BodyReader(capacity)

    def routes(self) -> list[web.RouteDef]:
        one = f"{PATH}/{{conversation:[^{{}}/]+}}"
        item = f"{one}/items/{{item:[^{{}}/]+}}"
        post = partial(web.post, expect_handler=continue_later)
        return [
            post(PATH, self.create),
            web.get(one, self._kept.relay, allow_head=False),
            post(one, self.update),
            web.delete(one, self._kept.delete),
            post(f"{one}/items", self.add),
            web.get(f"{one}/items", partial(self._kept.relay, action="/items"), allow_head=False),
            web.get(item, self.relay_item, allow_head=False),
            web.delete(item, self.relay_item),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Make one, and bind its id to the key."""
        context = request[CONTEXT]
        key, since = await self._kept.key(request, context), time.perf_counter()
        asked = await self._body(request, context)
        key = await self._kept.key_if_late(request, context, since) or key
        files = await named_in_items(key.in_team, asked.file_ids, asked.items, context.parts)
        bond = _new_bond(key, context, _tokens(asked, files))
        if files:  # it has to be where they are
            bond = bond._replace(upstream=files[0].upstream, account=files[0].account)
        _refuse_elsewhere(files, bond)
        answer = await self._kept.fetch(request, context, bond, method="POST", body=asked.body)
        fields = object_of(answer.body)
        made = None if fields is None else fields.get("id")
        if not isinstance(made, str) or not is_bond_id(made):
            raise UpstreamFailed.after(Failure(bond.upstream, Phase.WAITING, Fault.NOT_JSON))
        await context.parts.bonds.keep(bond._replace(id=made))
        return self._kept.whole(context, answer)

    async def update(self, request: web.Request) -> web.StreamResponse:
        context = request[CONTEXT]
        bond = await self._kept.bond(request, context)
        return await self._send(request, context, bond, "")

    async def add(self, request: web.Request) -> web.StreamResponse:
        """Add items, of which later calls repeat the tokens."""
        context = request[CONTEXT]
        bond = await self._kept.bond(request, context)
        return await self._send(request, context, bond, "/items")

    async def relay_item(self, request: web.Request) -> web.StreamResponse:
        """One item: read or deleted."""
        item = request.match_info["item"]
        if not is_bond_id(item) or not item.strip("."):
            raise NotFound(f"Item with id '{item[:MAX_SHOWN_ID]}' not found.")
        return await self._kept.relay(request, f"/items/{quote(item, safe='')}")

    async def _send(self, request: web.Request, context: RequestContext, bond: Bond, action: str) -> Whole:
        since, asked = time.perf_counter(), await self._body(request, context)
        if (key := await self._kept.key_if_late(request, context, since)) is not None:
            bond = await self._kept.bond(request, context, key)
        files = await named_in_items(bond.in_team, asked.file_ids, asked.items, context.parts)
        _refuse_elsewhere(files, bond)
        # Before, because the upstream may add them also if the client leaves.
        await context.parts.bonds.keep(bond._replace(tokens=_tokens(asked, files) if action else 0))
        answer = await self._kept.fetch(request, context, bond, action, "POST", asked.body, is_read=False)
        return self._kept.whole(context, answer)

    async def _body(self, request: web.Request, context: RequestContext) -> _Asked:
        """The body, which is an object without references to other items. Raises `InvalidRequest`."""
        if not request.can_read_body:
            return _Asked()
        check_type(request)
        pieces = await self._bodies.read(request, context)
        if sum(map(len, pieces)) > MAX_BODY_BYTES:
            raise BodyTooLarge(
                f"The items of one request may have {MAX_BODY_BYTES} bytes. Add them in several requests, or send large"
                f" ones in 'input' of POST {RESPONSES.path}."
            )
        body = b"".join(pieces)
        return await asyncio.to_thread(_checked, body) if len(body) > LARGE_BYTES else _checked(body)


def _checked(body: bytes) -> _Asked:
    """Raises `InvalidRequest` for a body that is not valid."""
    if has_more_nested(body, MAX_NESTED):
        raise InvalidRequest(
            f"The items of one request may have {MAX_NESTED} objects and lists. Add them in several requests.",
            param="items",
        )
    document = parse(body)
    members = document.members
    validate.refuse_other_case(members, _NAMES)
    asked = validate.checked(ConversationBody, members)
    refuse_references(asked.items or (), "items")
    items = kept_items(members.get("items"), "items", with_whole=True)
    body = document.text.encode()
    return _Asked(body, items, named_files(document), token_rule.tokens_of(token_rule.count(body).quarters))


def _tokens(asked: _Asked, files: Sequence[Bond]) -> int:
    """The estimate of the tokens of items, with those of the files that they name."""
    return asked.tokens + sum([file.tokens for file in files])


def _refuse_elsewhere(files: Sequence[Bond], bond: Bond) -> None:
    """Raises `InvalidRequest` for a file that another account keeps than the conversation."""
    for file in files:
        if (file.upstream, file.account) != (bond.upstream, bond.account):
            raise elsewhere(file, files[0] if not bond.id else bond)


def _new_bond(key: Key, context: RequestContext, tokens: int) -> Bond:
    """The bond of a new conversation, without its id. Raises `NotFound` where no upstream can keep it."""
    config = context.parts.config
    name = _upstream_of(key, config)
    if name is None:
        raise NotFound("No upstream of your models keeps conversations: send the whole conversation in 'input'.")
    upstream = config.upstreams[name]
    account = account_of(upstream, crc32(context.id.encode()) % len(upstream.credentials))
    return Bond("", key.id, key.team, name, account, "", tokens, context.parts.clock.now(), kind="conversation")


def _upstream_of(key: Key, config: Config) -> str | None:
    """The upstream that is the first choice of most of the key's models among those with Responses of their own."""
    served: Counter[str] = Counter()
    for name, model in config.models.items():
        is_usable = is_pattern(name) or auth.may_use(key, name)  # a pattern may have names that the key may use
        if not is_usable or not capabilities.lists(model, RESPONSES.name):
            continue
        keeping = [
            route
            for route in model.routes
            if capabilities.serves(RESPONSES.name, able := config.upstreams[route.upstream].capabilities)
            and not capabilities.is_translated(RESPONSES.name, able)
        ]
        served.update({min(keeping, key=lambda route: route.priority).upstream} if keeping else ())
    return served.most_common(1)[0][0] if served else None

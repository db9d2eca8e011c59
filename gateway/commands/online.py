"""`gateway check --online`: asks each server that the configuration names, and reports each request and its outcome.

Upstreams get GET /models with each of their keys, and a chat of one token with `--spend` only. Redis gets PING and the
question for its persistence, the collector an export without a span. Wings may ask more. All within `WITHIN_S`.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway import untrusted_json
from gateway.config import Config, Upstream
from gateway.config.faults import few
from gateway.upstream.ask import Listing, ask, list_models
from gateway.wings import parts

WITHIN_S = 15.0

MAX_NAMED = 3
"""Models that are named in one line."""

_NO_CHAT = re.compile(
    r"embed|whisper|tts|dall|image|moderation|audio|realtime|transcri|gpt-3.5-turbo-instruct|babbage|davinci|rerank"
)
"""Parts of the names of models that serve no chat."""


class Asked(NamedTuple):
    """One question and its answer."""

    what: str
    came: str
    """Outcome of the request, as text."""
    is_good: bool = True
    is_doubtful: bool = False
    """It may be well: a list of models need not be complete."""


class WingQuestion(NamedTuple):
    """A question of a wing. It has no answers if the settings of the wing name no server."""

    ask: Callable[[Config], Awaitable[Sequence[Asked]]]


async def ask_all(config: Config, *, spends: bool) -> list[Asked]:
    """Ask everything, in the order of the file."""
    asking: list[Awaitable[Sequence[Asked]]] = [_store(config)]
    asking += [_upstream(name, upstream, config, spends) for name, upstream in config.upstreams.items()]
    asking += [each.ask(config) for each in parts(WingQuestion, "online")]
    if config.tracing.endpoint is not None:
        asking.append(_collector(config))
    return [asked for several in await asyncio.gather(*asking) for asked in several]


def lines_of(asked: Iterable[Asked]) -> list[str]:
    marks = ["FAILED" if not each.is_good else "doubtful" if each.is_doubtful else "answered" for each in asked]
    return [f"  {mark:<10} {each.what}: {each.came}" for mark, each in zip(marks, asked, strict=True)]


# -------------------------------------------------------------------------------------------------------- upstreams


async def _upstream(name: str, upstream: Upstream, config: Config, spends: bool) -> Sequence[Asked]:
    keys = len(upstream.credentials) if upstream.lists_models else 0
    listings = await asyncio.gather(*[list_models(upstream, WITHIN_S, key=place) for place in range(keys)])
    asked = []
    for place, listing in enumerate(listings):
        which = f" with key {place + 1} of {keys}" if keys > 1 else ""
        came, is_good = _judge(listing, has_key=upstream.credentials[place] is not None)
        if listing.reply.status in (None, 400) and upstream.way is None and await _speaks_tls(upstream.base_url):
            came = f"{came}: this port speaks TLS; write https:// in base_url"
        asked.append(Asked(f"upstream {name}, GET {upstream.base_url}/models{which}", came, is_good))
    listed = next((listing.names for listing in listings if listing.names is not None), None)
    wanted = sent_names(name, config)
    if listed is not None and (missing := [each for each in wanted if each not in listed]):
        asked.append(Asked(f"upstream {name}, models", f"not in its list: {few(missing, MAX_NAMED)}", is_doubtful=True))
    if spends:
        asked.append(await _spend(name, upstream, wanted or listed or ()))
    return asked


async def _speaks_tls(base_url: str) -> bool:
    """Whether this is the plain address of a port with TLS: many servers close such a connection without an answer."""
    address, context = urlsplit(base_url), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if address.scheme != "http":
        return False
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent over it
    try:
        async with asyncio.timeout(WITHIN_S):
            (await asyncio.open_connection(address.hostname, address.port or 80, ssl=context))[1].close()
    except (OSError, TimeoutError):
        return False
    return True


def _judge(listing: Listing, *, has_key: bool) -> tuple[str, bool]:
    """The meaning of an answer to GET /models, and whether it is good."""
    reply, names = listing
    if names is not None:
        return f"{len(names)} models", True
    match reply.status:
        case None:
            return reply.detail, False
        case 401 | 403:
            what = "the key is refused" if has_key else "it wants a key, and api_key is not set"
            return f"it answered {reply.status}: {what}", False
        case 404 | 405:
            return f"it answered {reply.status}: base_url is wrong, or it has no list of models", False
        case 200:
            return "it answered 200, and not with a list of models: base_url is probably wrong", False
    return reply.describe("it"), False


def sent_names(upstream: str, config: Config) -> list[str]:
    """The exact names that routes to an upstream send."""
    names = [
        route.model or name for name, model in config.models.items() for route in model.routes
        if route.upstream == upstream
    ]  # fmt: skip
    return [name for name in dict.fromkeys(names) if "*" not in name]


async def _spend(name: str, upstream: Upstream, models: Sequence[str]) -> Asked:
    """A chat of one output token with the first model that looks as if it had chat."""
    model = next((each for each in models if not _NO_CHAT.search(each)), None)
    what = f"upstream {name}, a chat of one token"
    if model is None:
        return Asked(what, "not tried: no model is named that serves chat")
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], upstream.capabilities.max_tokens_field: 1}
    reply = await ask(upstream, "/chat/completions", WITHIN_S, method="POST", body=json.dumps(body).encode())
    if reply.status == 200 and _has_choices(reply.body):
        return Asked(f"{what} with {model}", "it works")
    return Asked(f"{what} with {model}", reply.describe("it"), is_good=False)


def _has_choices(body: bytes) -> bool:
    try:
        return bool(untrusted_json.parse(body)["choices"])
    except (ValueError, LookupError, TypeError):
        return False


# -------------------------------------------------------------------------------------------------- everything else


async def _store(config: Config) -> Sequence[Asked]:
    from gateway.store import StoreMisconfigured, StoreUnavailable

    if config.store.is_embedded:
        return []
    from gateway.store.redis.connection import ServerMisconfigured
    from gateway.store.redis.store import RedisStore

    what = f"store {config.store.shown_url}, PING and persistence"
    store = RedisStore(config.store)
    try:
        async with asyncio.timeout(WITHIN_S):
            doubts = await store.look()
    except TimeoutError:
        return [Asked(what, f"no answer within {WITHIN_S:g} s", is_good=False)]
    except (StoreUnavailable, StoreMisconfigured, ServerMisconfigured) as error:
        return [Asked(what, str(error), is_good=False)]
    finally:
        await store.close()
    return [Asked(what, "; ".join(doubts) or "it keeps an append-only file")]


async def _collector(config: Config) -> Sequence[Asked]:
    """An export without a span, as protobuf: an empty body."""
    address = config.tracing.address
    headers = [(name, value.get_secret_value()) for name, value in config.tracing.headers.items()]
    headers.append(("Content-Type", "application/x-protobuf"))
    reply = await ask(Upstream(base_url=address), "", WITHIN_S, method="POST", headers=headers)
    what = f"tracing.endpoint, POST {address} without a span"
    is_good = reply.status is not None and 200 <= reply.status < 300
    return [Asked(what, "taken" if is_good else reply.describe("it"), is_good)]

"""One request to an upstream outside of any call, over the same connections as calls: TLS, proxy and headers count.

`ask` is for the commands `init` and `check --online`, which want to know what an upstream answers; `fetch` is for what
upstreams keep. Neither raises for what the upstream does; the time and the size of the answer are bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from gateway import untrusted_json
from gateway.api.form import Upload
from gateway.config import Upstream
from gateway.errors import GatewayError
from gateway.records import Failure, Fault, Phase

from . import refusal
from .connection import Head
from .pool import Pool, pool_of

MAX_BYTES = 16 * 2**20
"""The maximum size of an answer: the largest list of models known has less than 1 MB."""


MAX_PAGES = 50
"""The maximum number of pages of one list. Anthropic's pages have 20 models unless more are requested."""


class Reply(NamedTuple):
    """The outcome of one request."""

    status: int | None
    """HTTP status; None means that there was no answer."""
    body: bytes = b""
    detail: str = ""
    """Why there was no answer, in plain words. Never holds a secret."""
    location: str = ""
    """Where a redirect leads to."""

    def describe(self, where: str) -> str:
        """Describes the outcome in plain words. `where` is the address of the request."""
        if self.status is None:
            return self.detail or f"no answer from {where}"
        target = f", which leads to {self.location}" if self.location else ""
        return f"{where} answered {self.status}{target}"


class Fetched(NamedTuple):
    """A whole answer of an upstream."""

    head: Head
    body: bytes


class _Collector:
    """Receives one answer. `hold` is asked for room for its bytes as they come, and may raise."""

    def __init__(self, max_bytes: int, hold: Callable[[int], None] | None = None) -> None:
        self.max_bytes = max_bytes
        self._hold = hold
        self.over: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        self.head: Head | None = None
        self.body = bytearray()
        self.is_too_large = False

    def head_received(self, head: Head) -> None:
        self.head = head

    def body_received(self, data: bytes) -> None:
        if self.over.done():
            return
        try:
            if self._hold is not None:
                self._hold(len(data))
        except GatewayError as full:
            self.over.set_exception(full)
            return
        self.body += data
        if len(self.body) > self.max_bytes:
            self.is_too_large = True
            self.over.set_result(None)

    def ended(self, failure: Failure | None) -> None:
        if not self.over.done():
            self.over.set_result(failure)


async def ask(
    settings: Upstream, path: str, within_s: float, *, method: str = "GET", body: bytes = b"",
    headers: Sequence[tuple[str, str]] = (), key: int = 0,
) -> Reply:  # fmt: skip
    """Send one request and return the answer. `key` is the position of the API key that is presented."""
    if body and not headers:
        headers = [("Content-Type", "application/json")]
    try:
        pool = pool_of("upstream", settings, 1)
    except OSError as error:
        return Reply(None, detail=f"TLS cannot be used: {error}")
    try:
        request = pool.request(path, [("Accept", "application/json"), *headers], body, method=method, key=key)
        answer = await fetch("upstream", pool, request, within_s, MAX_BYTES)
    finally:
        await pool.close()
    if isinstance(answer, Failure):
        return Reply(None, detail=answer.detail or "the connection was closed")
    location = next((value for name, value in answer.head.headers if name == "location"), "")
    return Reply(answer.head.status, answer.body, location=location)


async def fetch(
    name: str, pool: Pool, request: list[bytes | memoryview], within_s: float, max_bytes: int,
    upload: Upload | None = None, hold: Callable[[int], None] | None = None,
) -> Fetched | Failure:  # fmt: skip
    """Send one request over this pool, of the upstream `name`, and return the whole answer. `upload` is the body of a
    request that is its head alone. `hold` is asked for room for the answer as it comes; what it raises ends the
    request."""
    collector, connection = _Collector(max_bytes, hold), None
    try:
        async with asyncio.timeout(within_s):
            got = await pool.acquire()
            if isinstance(got, Failure):
                return got
            connection = got
            connection.send(request, collector, None if upload is None else upload.open())
            failure = await collector.over
            if failure is None and not collector.is_too_large:
                connection = None  # it goes back to the pool by itself
    except TimeoutError:
        return Failure(name, Phase.WAITING, Fault.TIMEOUT, f"no answer within {within_s:g} s")
    finally:
        if connection is not None:
            connection.abort()
            collector.body.clear()  # an exception refers to it, and it to the exception: only a collection ends both
    if failure is not None:
        return failure
    if collector.is_too_large or collector.head is None:
        return Failure(name, Phase.WAITING, Fault.TOO_LARGE, f"more than {max_bytes} bytes")
    return Fetched(collector.head, bytes(collector.body))


class Listing(NamedTuple):
    """The models that an upstream lists."""

    reply: Reply
    """The last answer, which has the reason if the list ends early."""
    names: list[str] | None
    """Sorted; None: the first answer is no list of models."""


async def list_models(settings: Upstream, within_s: float, *, key: int = 0) -> Listing:
    """GET /models, page by page, within `within_s` seconds, `MAX_PAGES` pages and `MAX_BYTES` in all.

    A page that cannot be read ends the list: `names` has those of the pages before, and `reply` has the reason.
    """
    until, size, query = time.monotonic() + within_s, 0, ""
    found: set[str] | None = None
    for _ in range(MAX_PAGES):
        reply = await ask(settings, f"/models{query}", max(0.0, until - time.monotonic()), key=key)
        names, query = await asyncio.to_thread(_read_page, reply)
        size += len(reply.body)
        is_new = names is not None and (found is None or not found.issuperset(names))
        if names is not None:
            found = {*(found or ()), *names}
        if not is_new or not query or size > MAX_BYTES:
            break
    return Listing(reply, None if found is None else sorted(found))


def _read_page(reply: Reply) -> tuple[list[str] | None, str]:
    query = next_page(reply)
    return model_names(reply), f"?{query}" if query else ""


def model_names(reply: Reply) -> list[str] | None:
    """The names in an answer to GET /models; None where it is no such list."""
    if reply.status != 200:
        return None
    try:
        rows = untrusted_json.parse(reply.body)["data"]
        return sorted({str(row["id"]) for row in rows})
    except (ValueError, LookupError, TypeError):
        return None


def next_page(reply: Reply) -> str | None:
    """The query of the page behind this one; None: there is none.

    Anthropic (Models API, "List Models"): `has_more` and `last_id` lead to `after_id`. OpenAI's lists, which have
    `object: list` as well, call the parameter `after`. Google (AIP-158): `nextPageToken` leads to `pageToken`.
    """
    try:
        page = untrusted_json.parse(reply.body)
        last, token = page.get("last_id"), page.get("nextPageToken")
    except (ValueError, AttributeError):
        return None
    if page.get("has_more") is True and isinstance(last, str) and last:
        return urlencode({"after" if page.get("object") == "list" else "after_id": last})
    return urlencode({"pageToken": token}) if isinstance(token, str) and token else None


async def cleaned_body(body: bytes, hide: Iterable[tuple[str, str]], names: Collection[str] = refusal.REASONS) -> bytes:
    """A good answer's body as `refusal.cleaner_of` cleans it. Other calls have their turn in between."""
    if not refusal.has_reason(body, names):
        return body
    cleaner, cleaned = refusal.cleaner_of(hide, names), []
    for at in range(0, len(body), refusal.AT_ONCE):
        cleaned.append(cleaner.feed(body[at : at + refusal.AT_ONCE]))
        await asyncio.sleep(0)
    return b"".join([*cleaned, cleaner.feed(b"", is_last=True)])

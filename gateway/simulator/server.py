"""The simulated upstream as an aiohttp application: authentication, pace, and the record of served calls.

1. The head waits for the delay of the first token; then each choice runs at `tokens_per_s`.
2. Each event has a due time, counted from the first event, so that a late wake-up causes no drift. Events that are due
   together leave in one write; without a set speed, in writes of `WRITE_BYTES`.
3. When the client leaves, its handler is cancelled (`serve` enables that), and generation ends.
4. The tests' simulated upstream (tests/fakes/simulator) is a `Simulator` with further formats and the same ledger.

Embeddings are unit vectors that follow from model and input; both encodings hold the same float32 values.

Chats have a prefix cache, as those of an inference server: the beginning that an earlier prompt had costs less.

A prompt is its tools and messages in order, cut into blocks of `BLOCK_TOKENS`; the hash of a block covers all blocks
before it (vLLM, "Automatic Prefix Caching"). Cached are the leading blocks that are known, if they are at least
`LEAST_TOKENS` (OpenAI, "Prompt caching": from 1024 tokens, in steps of 128). The least recently used blocks leave a
full cache. Each API key has blocks of its own, as organisations at OpenAI have.

Served calls: the newest 100, and sums since the start or the last reset.

A call to a generating endpoint is entered once, when it ends: `done`, `error` (answered with an error), `cut` (cut by
request) or `aborted` (the client left; the counts are what was generated until then). It is entered before its last
byte is sent, so that a client with the whole answer finds it here. One process, one event loop.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import math
import socket
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import shake_128
from typing import Any, Literal
from uuid import uuid4

from aiohttp import web

from . import answers, choices
from .answers import SimulatedAnswer, SimulatedEvent
from .choices import GeneratedUsage, Settings, compact
from .messages import END, MessageRequest, PromptCache, SimulatedMessage, error_body
from .requests import (
    DIMENSIONS,
    APIError,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Simulate,
    SimulatedCall,
    parse,
    split_forms,
    unknown_model,
)
from .responses import ResponseRequest, SimulatedResponse, as_chat, response_events
from .text import count_tokens, key_of, split_tokens

CALLS_KEPT = 100

Ended = Literal["done", "error", "cut", "aborted"]


@dataclass(slots=True)
class ServedCall:
    """One call, filled in while it is served. Counts are tokens."""

    id: str
    endpoint: str
    time: float = field(default_factory=time.time)
    """Unix time of its start."""
    model: str | None = None
    stream: bool = False
    status: int = 200
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    audio_ms: int = 0
    characters: int = 0
    images: int = 0
    tasks: int = 0
    ended: Ended | None = None


@dataclass(slots=True)
class Totals:
    """Sums of all ended calls; `calls` includes aborted ones and errors."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    audio_ms: int = 0
    characters: int = 0
    images: int = 0
    tasks: int = 0
    aborted: int = 0
    errors: int = 0


_SUMMED = [each.name for each in fields(Totals) if each.name in {own.name for own in fields(ServedCall)}]


class CallHistory:
    """The ended calls, and the number of open ones."""

    def __init__(self) -> None:
        self._calls: deque[ServedCall] = deque(maxlen=CALLS_KEPT)
        self._totals = Totals()
        self._open = 0

    def __repr__(self) -> str:
        return f"<CallHistory: {self._open} open, {self._totals}>"

    def open(self, request_id: str, endpoint: str) -> ServedCall:
        """Begin a call; it is listed once it is closed."""
        self._open += 1
        return ServedCall(request_id, endpoint)

    def close(self, entry: ServedCall, ended: Ended) -> None:
        """Enter an ended call. Only the first time counts, so that several exits may close it."""
        if entry.ended is not None:
            return
        entry.ended = ended
        self._open -= 1
        self._calls.appendleft(entry)
        totals = self._totals
        for name in _SUMMED:
            setattr(totals, name, getattr(totals, name) + getattr(entry, name))
        totals.calls += 1
        totals.aborted += ended == "aborted"
        totals.errors += ended == "error"

    def reset(self) -> None:
        """Forget the ended calls; open ones are entered when they end."""
        self._calls.clear()
        self._totals = Totals()

    def as_json(self) -> dict[str, Any]:
        """The body of GET /simulator/ledger, newest call first."""
        return {"calls": [asdict(entry) for entry in self._calls], "totals": asdict(self._totals), "open": self._open}


BLOCK_TOKENS = 128
LEAST_TOKENS = 1024


class PrefixCache:
    """A limited number of blocks; 0: nothing is ever cached."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def take(self, request: ChatRequest, owner: str, prompt_tokens: int) -> int:
        """How many of the prompt's tokens are cached; all of its blocks are from now on."""
        if not self._blocks:
            return 0
        key, cached, is_leading = key_of(request.model, owner), 0, True
        parts = [*(request.tools or []), *request.messages]
        tokens = [token for part in parts for token in split_tokens(compact(part))]
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = key_of(key, tokens[start : start + BLOCK_TOKENS])
            is_leading = is_leading and key in self._known
            cached += BLOCK_TOKENS if is_leading else 0
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > self._blocks:
            self._known.popitem(last=False)
        # The JSON around a message is in no count of prompt tokens.
        cached = min(cached, prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
        return cached if cached >= LEAST_TOKENS else 0


def embed(model: str, text: str | list[int], dimensions: int) -> bytes:
    """The vector as little-endian float32. Fewer dimensions are the first values of more, normalised again."""
    digest = shake_128(key_of(model, text)).digest(2 * dimensions)
    values = [number + 0.5 for number in struct.unpack(f"<{dimensions}h", digest)]  # never all zero
    norm = math.sqrt(sum(value * value for value in values))
    return struct.pack(f"<{dimensions}f", *(value / norm for value in values))


def usage_of(request: EmbeddingRequest) -> GeneratedUsage:
    """Embeddings cost their input: a token array its length, a text its tokens."""
    forms = split_forms(request.input)
    return GeneratedUsage(prompt=sum(count_tokens(form) if isinstance(form, str) else len(form) for form in forms))


def embeddings_body(request: EmbeddingRequest, usage: GeneratedUsage) -> bytes:
    dimensions = request.dimensions or DIMENSIONS
    data = []
    for index, form in enumerate(split_forms(request.input)):
        packed = embed(request.model, form, dimensions)
        is_base64 = request.encoding_format == "base64"
        vector = base64.b64encode(packed).decode() if is_base64 else struct.unpack(f"<{dimensions}f", packed)
        data.append({"object": "embedding", "index": index, "embedding": vector})
    total = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    return json.dumps({"object": "list", "data": data, "model": request.model, "usage": total}).encode()


WRITE_BYTES = 16_384
"""Size of a write if no event has to wait."""

MAX_BODY_BYTES = 26_214_400
"""OpenAI's limit for the body of a request."""

MODELS_CREATED = 1_700_000_000
"""The field `created` of every model, in Unix time."""

MESSAGES_PATH = "/v1/messages"

CALL_ID = web.RequestKey("id", str)
_STARTED = web.RequestKey("started", float)

_BODIES: Mapping[str, type[SimulatedCall]] = {
    "completions": CompletionRequest,
    "chat": ChatRequest,
    "embeddings": EmbeddingRequest,
    "responses": ResponseRequest,
    "messages": MessageRequest,
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(settings: Settings) -> web.Application:
    """The application. Its ledger at /simulator/ledger needs no key."""
    return Simulator(settings).app()


async def serve(
    host: str, port: int, settings: Settings, build: Callable[[Settings], web.Application] = build_app
) -> tuple[web.AppRunner, int]:
    """Serve on an address; port 0 takes a free one. Returns the runner, to be cleaned up, and the bound port."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listener = socket.create_server(infos[0][4][:2], family=infos[0][0], backlog=1024)
    try:
        return await serve_on(listener, settings, build), listener.getsockname()[1]
    except BaseException:
        listener.close()
        raise


async def serve_on(
    listener: socket.socket, settings: Settings, build: Callable[[Settings], web.Application] = build_app
) -> web.AppRunner:
    """Serve on a bound socket, which the runner closes with its `cleanup`."""
    runner = web.AppRunner(build(settings), access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=1024).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner


# ------------------------------------------------------------------------------------------------------------- the app


@dataclass(frozen=True, slots=True)
class Pace:
    delay_s: float
    tokens_per_s: float | None
    tokens_per_event: int
    cut_after_events: int | None

    def after(self, tokens: int) -> float:
        """Seconds from the head of the answer until a choice has this many tokens."""
        return tokens / self.tokens_per_s if self.tokens_per_s else 0.0


class Simulator:
    """One simulated upstream with its settings and its ledger."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ledger = CallHistory()
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._prompts = PromptCache()
        self._prefixes = PrefixCache(settings.prefix_cache_blocks)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._error_responses], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(self.routes())
        return app

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/completions", self.serving("completions")),
            web.post("/v1/chat/completions", self.serving("chat")),
            web.post("/v1/responses", self.serving("responses")),
            web.post("/v1/embeddings", self.serving("embeddings")),
            web.post(MESSAGES_PATH, self.serving("messages")),
            web.post(f"{MESSAGES_PATH}/count_tokens", self._count_tokens),
            web.get("/v1/models", self._list_models),
            web.get("/v1/models/{id:.+}", self._show_model),
            web.get("/simulator/ledger", self._show_ledger),
            web.delete("/simulator/ledger", self._reset_ledger),
        ]

    def serving(self, endpoint: str) -> Handler:

        async def handle(request: web.Request) -> web.StreamResponse:
            entry = self.ledger.open(request[CALL_ID], endpoint)
            try:
                return await self.generate(request, endpoint, entry)
            except (asyncio.CancelledError, ConnectionError):
                self.close(entry, "aborted")
                raise
            except (APIError, web.HTTPException) as error:
                entry.status = error.status
                raise
            finally:
                self.close(entry, "error")

        return handle

    def close(self, entry: ServedCall, ended: Ended) -> None:
        """Enter a call whose handler ends, unless it is entered already."""
        self.ledger.close(entry, ended)

    def authorise(self, request: web.Request) -> None:
        """Raises `APIError` if the request has not the key."""
        if self._key is None:
            return
        other = request.headers.get("x-api-key") or request.headers.get("x-goog-api-key")
        given = f"Bearer {other}" if other is not None else request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), b"Bearer " + self._key):
            raise APIError(401, "Incorrect API key provided.", code="invalid_api_key")

    def admit(self, request: web.Request) -> None:
        """Raises `APIError` if the request has not the key, or if calls fail at present."""
        self.authorise(request)
        every_s = self.settings.fails_every_s
        if every_s > 0 and time.monotonic() % every_s >= every_s - self.settings.fails_for_s:
            raise APIError(503, "The server is overloaded.", error_type="server_error")

    async def generate(self, request: web.Request, endpoint: str, entry: ServedCall) -> web.StreamResponse:
        """The answer of a generating endpoint, sent in its pace. Raises `APIError`."""
        self.admit(request)
        asked = await self.read(request, endpoint)
        entry.model, entry.stream = asked.model, asked.is_stream
        # Models of chats are those of responses, too.
        if self.settings.models.get(asked.model) not in (endpoint, "chat" if endpoint == "responses" else endpoint):
            raise unknown_model(asked.model)
        pace = self._pace(asked.pace)
        if (failure := asked.pace.failure()) is not None:
            await asyncio.sleep(pace.delay_s)
            raise failure
        return await self.respond(request, asked, entry, pace)

    async def read(self, request: web.Request, endpoint: str) -> SimulatedCall:
        """The body of a call. Raises `APIError`."""
        return parse(_BODIES[endpoint], await request.read())

    async def respond(
        self, request: web.Request, asked: SimulatedCall, entry: ServedCall, pace: Pace
    ) -> web.StreamResponse:
        """Generate an answer and send it. Raises `APIError`."""
        answer = self.answer(request, asked, entry, pace.tokens_per_event)
        return await self.send(request, entry, answer, pace)

    async def send(
        self, request: web.Request, entry: ServedCall, answer: SimulatedAnswer, pace: Pace
    ) -> web.StreamResponse:
        """Send an answer in its pace, as the call asked for it; the ledger has what was generated."""
        entry.prompt_tokens = answer.usage.prompt
        if entry.stream:
            return await self._stream(request, entry, answer, pace)
        return await self._plain(entry, answer, pace)

    def answer(
        self, request: web.Request, asked: SimulatedCall, entry: ServedCall, tokens_per_event: int
    ) -> SimulatedAnswer:
        """Generate the answer of any endpoint; its bytes are made on demand."""
        match asked:
            case CompletionRequest():
                generated = choices.complete(asked)
                return SimulatedAnswer(
                    generated.usage,
                    generated.longest,
                    lambda: answers.completion_body(asked, generated),
                    lambda: answers.completion_events(asked, generated, tokens_per_event),
                )
            case ChatRequest():
                generated = choices.chat(asked)
                usage = generated.usage
                owner = request.headers.get("Authorization", "")
                entry.cached_tokens = self._prefixes.take(asked, owner, usage.prompt)
                generated = replace(generated, usage=replace(usage, cached=entry.cached_tokens))
                return SimulatedAnswer(
                    generated.usage,
                    generated.longest,
                    lambda: answers.chat_body(asked, generated),
                    lambda: answers.chat_events(asked, generated, tokens_per_event),
                )
            case EmbeddingRequest():
                usage = usage_of(asked)
                return SimulatedAnswer(usage, 0, lambda: embeddings_body(asked, usage), lambda: iter(()))
            case ResponseRequest():
                if asked.needs_a_store:
                    raise APIError(400, "No response is stored here: send the whole conversation as 'input'.")
                return response_answer(SimulatedResponse(asked, choices.chat(as_chat(asked))), tokens_per_event)
            case MessageRequest():
                return self._message(asked, entry, tokens_per_event)
        raise NotImplementedError(type(asked).__name__)

    def error_body(self, request: web.Request, error: APIError) -> bytes:
        """A refusal in the form of the API that was called."""
        if request.path.startswith(MESSAGES_PATH):
            return error_body(error.status, error.error["message"] or "", request[CALL_ID])
        return error.body()

    @web.middleware
    async def _error_responses(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        request[CALL_ID], request[_STARTED] = f"req_{uuid4().hex}", time.monotonic()
        try:
            return await handler(request)
        except APIError as refused:
            error = refused
        except web.HTTPException as refused:
            error = APIError(refused.status, f"{refused.reason}: {request.method} {request.path}")
        body = self.error_body(request, error)
        return web.Response(status=error.status, body=body, content_type="application/json")

    async def _count_tokens(self, request: web.Request) -> web.Response:
        """Generates nothing, and is no call of the ledger."""
        self.authorise(request)
        body = await request.json()
        asked = parse(MessageRequest, json.dumps({"max_tokens": 0, **body}).encode())
        return web.json_response({"input_tokens": PromptCache().bill(asked).total})

    async def _list_models(self, request: web.Request) -> web.Response:
        self.authorise(request)
        return web.json_response({"object": "list", "data": [_model_object(name) for name in self.settings.models]})

    async def _show_model(self, request: web.Request) -> web.Response:
        self.authorise(request)
        name = request.match_info["id"]
        if name not in self.settings.models:
            raise unknown_model(name)
        return web.json_response(_model_object(name))

    async def _show_ledger(self, request: web.Request) -> web.Response:
        return web.json_response(self.ledger.as_json())

    async def _reset_ledger(self, request: web.Request) -> web.Response:
        self.ledger.reset()
        return web.Response(status=204)

    def _message(self, asked: MessageRequest, entry: ServedCall, tokens_per_event: int) -> SimulatedAnswer:
        prompt = self._prompts.bill(asked)
        message = SimulatedMessage(asked, prompt)
        entry.cached_tokens = prompt.read
        entry.cache_write_tokens, entry.cache_write_1h_tokens = prompt.written, prompt.written_1h
        return SimulatedAnswer(
            GeneratedUsage(prompt.total, message.output.cost),
            message.output.cost,
            message.body,
            lambda: (SimulatedEvent(*values) for values in message.events(tokens_per_event)),
            END,
        )

    def _pace(self, asked: Simulate) -> Pace:
        settings = self.settings
        return Pace(
            settings.first_token_delay_s if asked.delay_s is None else asked.delay_s,
            settings.tokens_per_s if asked.tokens_per_s is None else asked.tokens_per_s,
            settings.tokens_per_event if asked.tokens_per_event is None else asked.tokens_per_event,
            asked.cut_after_events,
        )

    async def _plain(self, entry: ServedCall, answer: SimulatedAnswer, pace: Pace) -> web.Response:
        started, generating_s = time.monotonic(), pace.after(answer.longest)
        usage = answer.usage
        try:
            if wait_s := pace.delay_s + generating_s:
                await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            generated_s = max(0.0, time.monotonic() - started - pace.delay_s)
            share = min(1.0, generated_s / generating_s) if generating_s else 0.0
            entry.completion_tokens = int(usage.completion * share)
            entry.reasoning_tokens = int(usage.reasoning * share)
            raise
        body = answer.body()
        entry.completion_tokens, entry.reasoning_tokens = usage.completion, usage.reasoning
        self.ledger.close(entry, "done")
        return web.Response(body=body, content_type="application/json")

    async def _stream(
        self, request: web.Request, entry: ServedCall, answer: SimulatedAnswer, pace: Pace
    ) -> web.StreamResponse:
        if pace.delay_s:
            await asyncio.sleep(pace.delay_s)
        response = await open_stream(request)
        started = time.monotonic()
        pending: list[bytes] = []
        pending_bytes = 0
        for number, event in enumerate(answer.events()):
            if number == pace.cut_after_events:
                return await self._cut(request, response, entry, b"".join(pending))
            wait_s = started + pace.after(event.step) - time.monotonic() if pace.tokens_per_s else 0.0
            if (wait_s > 0 or pending_bytes > WRITE_BYTES) and pending:
                await response.write(b"".join(pending))
                pending, pending_bytes = [], 0
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            entry.completion_tokens += event.tokens
            entry.reasoning_tokens += event.reasoning
            pending.append(event.data)
            pending_bytes += len(event.data)
        self.ledger.close(entry, "done")
        await response.write(b"".join(pending) + answer.end)
        return response

    async def _cut(
        self, request: web.Request, response: web.StreamResponse, entry: ServedCall, rest: bytes
    ) -> web.StreamResponse:
        """Send the rest and close the connection inside the chunked body."""
        self.ledger.close(entry, "cut")
        if rest:
            await response.write(rest)
        close_connection(request)
        return response


def close_connection(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
    response.content_type = "text/event-stream"
    await response.prepare(request)
    return response


def response_answer(made: SimulatedResponse, tokens_per_event: int) -> SimulatedAnswer:
    return SimulatedAnswer(
        made.usage, made.longest,
        lambda: answers.encode(made.whole()).encode(), lambda: response_events(made, tokens_per_event), b"",
    )  # fmt: skip


def _model_object(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": MODELS_CREATED, "owned_by": "simulator"}


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["x-request-id"] = response.headers["request-id"] = request[CALL_ID]
    response.headers["openai-processing-ms"] = str(int((time.monotonic() - request[_STARTED]) * 1000))
    response.headers["openai-version"] = "2020-10-01"

"""The simulated upstream as an aiohttp application: authentication, pace, and the record of served calls.

1. The head waits for the delay of the first token; then each choice runs at `tokens_per_s`.
2. Each event has a due time, counted from the first event, so that a late wake-up causes no drift. Events that are due
   together leave in one write; without a set speed, in writes of `WRITE_BYTES`.
3. When the client leaves, its handler is cancelled (`serve` enables that), and generation ends.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from aiohttp import web

from . import answers, choices, files, media, vectors
from .answers import SimulatedAnswer, SimulatedEvent
from .batches import BatchStore
from .choices import Generated, GeneratedUsage
from .conversations import ConversationStore
from .files import FileStore
from .gemini import ContentRequest, EmbedContentRequest, content_body, content_events, google_error_body
from .ledger import CallHistory, ServedCall
from .message_batches import MessageBatchStore
from .messages import END, MessageRequest, PromptCache, SimulatedMessage, error_body
from .prefix_cache import PrefixCache
from .realtime import SimulatedSession
from .requests import (
    APIError,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Request,
    Simulate,
    parse,
    unknown_model,
)
from .responses import ResponseRequest, SimulatedResponse, as_chat, response_events
from .settings import Endpoint, MediaEndpoint, Settings
from .stored_responses import ResponseStore, StoredResponse
from .tasks import TASK_PATHS, TaskStore, family_of, read_options

WRITE_BYTES = 16_384
"""Size of a write if no event has to wait."""

MAX_BODY_BYTES = 26_214_400
"""The limit of OpenAI."""

_EMBEDS = ("embedContent", "batchEmbedContents")

MODELS_CREATED = 1_700_000_000
"""The field `created` of every model, in Unix time."""

MESSAGES_PATH = "/v1/messages"
CONTENT_PATH = "/v1beta/models/{model:.+}"

_ID = web.RequestKey("id", str)
_STARTED = web.RequestKey("started", float)

_KINDS: Mapping[str, type[Request | ResponseRequest | MessageRequest | ContentRequest | EmbedContentRequest]] = {
    "completions": CompletionRequest,
    "chat": ChatRequest,
    "embeddings": EmbeddingRequest,
    "responses": ResponseRequest,
    "messages": MessageRequest,
    "generate_content": ContentRequest,
    "embed_content": EmbedContentRequest,
}
_OF_GOOGLE: frozenset[Endpoint] = frozenset({"generate_content", "embed_content"})

_MEDIA: Mapping[str, MediaEndpoint] = {
    "/v1/audio/speech": "speech",
    "/v1/audio/transcriptions": "transcriptions",
    "/v1/audio/translations": "translations",
    "/v1/images/generations": "images",
    "/v1/images/edits": "image_edits",
    "/v1/images/variations": "image_variations",
}

_ALSO: Mapping[Endpoint, Endpoint] = {
    "responses": "chat", "translations": "transcriptions", "image_edits": "images", "image_variations": "images",
}  # fmt: skip
"""Endpoints that the models of another one have too."""


def build_app(settings: Settings) -> web.Application:
    """The application. Its ledger at /simulator/ledger needs no key."""
    simulator = _Simulator(settings)
    app = web.Application(middlewares=[_error_responses], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(_add_headers)
    app.router.add_post("/v1/completions", simulator.serving("completions"))
    app.router.add_post("/v1/chat/completions", simulator.serving("chat"))
    app.router.add_post("/v1/responses", simulator.serving("responses"))
    app.router.add_get("/v1/responses/{id}", simulator.show_response)
    app.router.add_delete("/v1/responses/{id}", simulator.delete_response)
    app.router.add_post("/v1/responses/{id}/cancel", simulator.cancel_response)
    app.router.add_get("/v1/responses/{id}/input_items", simulator.list_input)
    app.router.add_routes(simulator.conversations.routes(simulator.authorise))
    app.router.add_post("/v1/files", simulator.add_file)
    app.router.add_get("/v1/files", simulator.list_files)
    app.router.add_get("/v1/files/{id}", simulator.show_file)
    app.router.add_delete("/v1/files/{id}", simulator.delete_file)
    app.router.add_get("/v1/files/{id}/content", simulator.show_content)
    app.router.add_post("/v1/batches", simulator.add_batch)
    app.router.add_get("/v1/batches/{id}", simulator.show_batch)
    app.router.add_post("/v1/batches/{id}/cancel", simulator.cancel_batch)
    app.router.add_post("/v1/embeddings", simulator.serving("embeddings"))
    app.router.add_post(MESSAGES_PATH, simulator.serving("messages"))
    app.router.add_post(f"{MESSAGES_PATH}/count_tokens", simulator.count_tokens)
    batches = f"{MESSAGES_PATH}/batches"
    app.router.add_post(batches, simulator.add_message_batch)
    app.router.add_get(f"{batches}/{{id}}", simulator.show_message_batch)
    app.router.add_delete(f"{batches}/{{id}}", simulator.delete_message_batch)
    app.router.add_post(f"{batches}/{{id}}/cancel", simulator.cancel_message_batch)
    app.router.add_get(f"{batches}/{{id}}/results", simulator.show_results)
    for method in ("generateContent", "streamGenerateContent"):
        app.router.add_post(f"{CONTENT_PATH}:{{method:{method}}}", simulator.serving("generate_content"))
    app.router.add_post(f"{CONTENT_PATH}:countTokens", simulator.count_content_tokens)
    for method in _EMBEDS:
        app.router.add_post(f"{CONTENT_PATH}:{{method:{method}}}", simulator.serving("embed_content"))
    for path, endpoint in _MEDIA.items():
        app.router.add_post(path, simulator.serving(endpoint))
    app.router.add_get("/v1/realtime", simulator.open_realtime)
    app.router.add_get("/v1/models", simulator.list_models)
    app.router.add_get("/v1/models/{id:.+}", simulator.show_model)
    app.router.add_get("/simulator/ledger", simulator.show_ledger)
    app.router.add_delete("/simulator/ledger", simulator.reset_ledger)
    app.router.add_post(TASK_PATHS, simulator.submit_task)
    app.router.add_get(TASK_PATHS, simulator.show_task)
    app.router.add_delete(TASK_PATHS, simulator.delete_task)
    return app


async def serve(host: str, port: int, settings: Settings) -> tuple[web.AppRunner, int]:
    """Serve on an address; port 0 takes a free one. Returns the runner, to be cleaned up, and the bound port."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listener = socket.create_server(infos[0][4][:2], family=infos[0][0], backlog=1024)
    try:
        return await serve_on(listener, settings), listener.getsockname()[1]
    except BaseException:
        listener.close()
        raise


async def serve_on(listener: socket.socket, settings: Settings) -> web.AppRunner:
    """Serve on a bound socket, which the runner closes with its `cleanup`."""
    runner = web.AppRunner(build_app(settings), access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=1024).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner


# ------------------------------------------------------------------------------------------------------------- the app


@dataclass(frozen=True, slots=True)
class _Pace:
    """The pace of one call."""

    delay_s: float
    tokens_per_s: float | None
    tokens_per_event: int
    cut_after_events: int | None

    def after(self, tokens: int) -> float:
        """Seconds from the head of the answer until a choice has this many tokens."""
        return tokens / self.tokens_per_s if self.tokens_per_s else 0.0


class _Simulator:
    """One simulated upstream with its settings and its ledger."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._ledger = CallHistory()
        self._prompts = PromptCache()
        self._prefixes = PrefixCache(settings.prefix_cache_blocks)
        self.conversations = ConversationStore()
        self._responses = ResponseStore(self.conversations)
        self._files = FileStore()
        self._tasks = TaskStore()
        self._batches = BatchStore(self._files, self._ledger, settings)
        self._message_batches = MessageBatchStore(self._ledger, settings)
        self._in_progress: set[str] = set()
        """Ids of the calls whose background responses are being made."""

    def serving(self, endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of one generating endpoint."""

        async def handle(request: web.Request) -> web.StreamResponse:
            entry = self._ledger.open(request[_ID], endpoint)
            try:
                return await self._serve(request, endpoint, entry)
            except (asyncio.CancelledError, ConnectionError):
                if entry.id not in self._in_progress:
                    self._ledger.close(entry, "aborted")
                raise
            except (APIError, web.HTTPException) as error:
                entry.status = error.status
                raise
            finally:
                if entry.id not in self._in_progress:
                    self._ledger.close(entry, "error")

        return handle

    async def count_tokens(self, request: web.Request) -> web.Response:
        """POST /v1/messages/count_tokens: generates nothing, and is no call of the ledger."""
        self.authorise(request)
        body = await request.json()
        asked = parse(MessageRequest, json.dumps({"max_tokens": 0, **body}).encode())
        return web.json_response({"input_tokens": PromptCache().bill(asked).total})

    async def count_content_tokens(self, request: web.Request) -> web.Response:
        """countTokens of Gemini's API: generates nothing, and is no call of the ledger."""
        self.authorise(request)
        asked = parse(ContentRequest, _with_path(request, await request.read()))
        return web.json_response({"totalTokens": choices.chat(asked.as_chat()).usage.prompt})

    async def list_models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        self.authorise(request)
        return web.json_response({"object": "list", "data": [_model_object(name) for name in self._settings.models]})

    async def show_model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{id}."""
        self.authorise(request)
        name = request.match_info["id"]
        if name not in self._settings.models:
            raise unknown_model(name)
        return web.json_response(_model_object(name))

    async def open_realtime(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/realtime: each of its responses is a call of the ledger."""
        self.authorise(request)
        name = request.query.get("model", "")
        if self._settings.models.get(name) != "realtime":
            raise unknown_model(name)
        return await SimulatedSession(name, self._settings, self._ledger, lambda: f"resp_{uuid4().hex}").serve(request)

    async def submit_task(self, request: web.Request) -> web.Response:
        """A submission of any task API. The ledger has it when its task has ended."""
        self.authorise(request)
        found = family_of(request.path)
        if found is None:
            return await self.show_task(request)
        name, family = found
        asked = await read_options(request)
        if asked.get("refuses"):
            if family.refused is None:
                raise APIError(400, "The request was refused.")
            return web.json_response(family.refused)
        entry = self._ledger.open(request[_ID], name)
        task_id, task = self._tasks.submit(family, asked)

        def end() -> None:
            entry.tasks = 0 if task.fails else 1
            self._ledger.close(entry, "error" if task.fails else "done")

        if family.read is None:
            end()
        else:
            asyncio.get_running_loop().call_later(task.ends - time.monotonic(), end)
        answer = family.submitted(task_id) if family.read is not None or task.shows is None else task.shows
        return web.json_response(answer, status=family.status)

    async def show_task(self, request: web.Request) -> web.Response:
        """A read of a task."""
        self.authorise(request)
        if (shown := self._tasks.show(request.path_qs)) is None:
            raise web.HTTPNotFound
        return shown

    async def delete_task(self, request: web.Request) -> web.Response:
        """A deleted task goes on here, like one that ends before the deletion comes. Runway and Luma answer 204."""
        shown = await self.show_task(request)
        return shown if request.path.startswith("/v1/videos") else web.Response(status=204)

    async def show_ledger(self, request: web.Request) -> web.Response:
        """GET /simulator/ledger."""
        return web.json_response(self._ledger.as_json())

    async def reset_ledger(self, request: web.Request) -> web.Response:
        """DELETE /simulator/ledger."""
        self._ledger.reset()
        return web.Response(status=204)

    def authorise(self, request: web.Request) -> None:
        """Raises `APIError` if the request has not the key."""
        if self._key is None:
            return
        other = request.headers.get("x-api-key") or request.headers.get("x-goog-api-key")
        given = f"Bearer {other}" if other is not None else request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), b"Bearer " + self._key):
            raise APIError(401, "Incorrect API key provided.", code="invalid_api_key")

    def _is_failing(self) -> bool:
        every_s = self._settings.fails_every_s
        return every_s > 0 and time.monotonic() % every_s >= every_s - self._settings.fails_for_s

    async def _serve(self, request: web.Request, endpoint: Endpoint, entry: ServedCall) -> web.StreamResponse:
        self.authorise(request)
        if self._is_failing():
            raise APIError(503, "The server is overloaded.", error_type="server_error")
        if request.path in _MEDIA:
            return await self._media(request, endpoint, entry)
        body = await request.read()
        asked = parse(_KINDS[endpoint], _with_path(request, body) if endpoint in _OF_GOOGLE else body)
        entry.model, entry.stream = asked.model, asked.is_stream
        if self._settings.models.get(asked.model) not in (endpoint, _ALSO.get(endpoint, endpoint)):
            raise unknown_model(asked.model)
        pace = self._pace(asked.pace)
        if (failure := asked.pace.failure()) is not None:
            await asyncio.sleep(pace.delay_s)
            raise failure
        if isinstance(asked, ResponseRequest):
            return await self._respond(request, asked, entry, pace)
        if isinstance(asked, MessageRequest):
            answer = self._message(asked, entry, pace.tokens_per_event)
        else:
            answer = _answer(asked, pace.tokens_per_event, partial(self._cached, request, entry))
        entry.prompt_tokens = answer.usage.prompt
        if asked.is_stream:
            return await self._stream(request, entry, answer, pace)
        return await self._plain(entry, answer, pace)

    async def _respond(
        self, request: web.Request, asked: ResponseRequest, entry: ServedCall, pace: _Pace
    ) -> web.StreamResponse:
        items = self._responses.whole_input(asked)
        generated = choices.chat(as_chat(asked.model_copy(update={"input": items})))
        made = SimulatedResponse(asked, generated)
        entry.prompt_tokens = generated.usage.prompt
        if asked.background:
            return await self._in_background(request, asked, made, items, entry, pace, generated)
        if asked.store is not False:
            self._responses.keep(made.whole(), items, 0, 0)
        self._responses.note(asked, made.whole())
        answer = SimulatedAnswer(
            generated.usage,
            generated.longest,
            lambda: answers.encode(made.whole()).encode(),
            lambda: response_events(made, pace.tokens_per_event),
            b"",
        )
        if asked.is_stream:
            return await self._stream(request, entry, answer, pace)
        return await self._plain(entry, answer, pace)

    async def _in_background(
        self,
        request: web.Request,
        asked: ResponseRequest,
        made: SimulatedResponse,
        items: list[dict[str, Any]],
        entry: ServedCall,
        pace: _Pace,
        generated: Generated,
    ) -> web.StreamResponse:
        """Answer at once. The ledger has the call with all of its tokens when it ends, with none if it is cancelled."""
        takes_s, usage = pace.after(generated.longest), generated.usage
        kept = self._responses.keep(made.whole(), items, pace.delay_s, takes_s)
        self._in_progress.add(entry.id)

        def end() -> None:
            if not kept.is_cancelled:
                entry.completion_tokens, entry.reasoning_tokens = usage.completion, usage.reasoning
                self._responses.note(asked, kept.whole)
            self._in_progress.discard(entry.id)
            self._ledger.close(entry, "aborted" if kept.is_cancelled else "done")

        asyncio.get_running_loop().call_later(pace.delay_s + takes_s, end)
        if not asked.is_stream:
            return web.json_response(kept.as_json())
        kept.stream, kept.tokens_per_s = list(response_events(made, pace.tokens_per_event)), pace.tokens_per_s
        return await self._relay_stream(request, kept, -1, pace.cut_after_events)

    async def _relay_stream(
        self, request: web.Request, kept: StoredResponse, after: int, cut_after: int | None = None
    ) -> web.StreamResponse:
        """The stream of a background response behind an event, cut off after `cut_after` events."""
        events = kept.events_after(after)
        response = await _opened(request)
        sent = 0
        async for event in events:
            if sent == cut_after:
                _close(request)
                break
            await response.write(event.data)
            sent += 1
        return response

    async def show_response(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/responses/{id}, also as a stream."""
        self.authorise(request)
        found = self._responses.find(request.match_info["id"])
        if request.query.get("stream") != "true":
            return web.json_response(found.as_json())
        after = request.query.get("starting_after", "-1")
        if not after.removeprefix("-").isdecimal():
            raise APIError(400, "'starting_after' is not a number.", param="starting_after")
        return await self._relay_stream(request, found, int(after))

    async def delete_response(self, request: web.Request) -> web.Response:
        """DELETE /v1/responses/{id}."""
        self.authorise(request)
        return web.json_response(self._responses.delete(request.match_info["id"]))

    async def cancel_response(self, request: web.Request) -> web.Response:
        """POST /v1/responses/{id}/cancel."""
        self.authorise(request)
        return web.json_response(self._responses.cancel(request.match_info["id"]))

    async def list_input(self, request: web.Request) -> web.Response:
        """GET /v1/responses/{id}/input_items."""
        self.authorise(request)
        return web.json_response(self._responses.input_items(request.match_info["id"]))

    async def add_file(self, request: web.Request) -> web.Response:
        """POST /v1/files."""
        self.authorise(request)
        return web.json_response((await files.read(request, self._files)).as_json())

    async def list_files(self, request: web.Request) -> web.Response:
        """GET /v1/files."""
        self.authorise(request)
        return web.json_response(self._files.as_json())

    async def show_file(self, request: web.Request) -> web.Response:
        """GET /v1/files/{id}."""
        self.authorise(request)
        return web.json_response(self._files.find(request.match_info["id"]).as_json())

    async def delete_file(self, request: web.Request) -> web.Response:
        """DELETE /v1/files/{id}."""
        self.authorise(request)
        return web.json_response(self._files.remove(request.match_info["id"]))

    async def show_content(self, request: web.Request) -> web.Response:
        """GET /v1/files/{id}/content."""
        self.authorise(request)
        return web.Response(body=self._files.find(request.match_info["id"]).content)

    async def add_batch(self, request: web.Request) -> web.Response:
        """POST /v1/batches."""
        self.authorise(request)
        return web.json_response(self._batches.add(await request.json()).as_json())

    async def show_batch(self, request: web.Request) -> web.Response:
        """GET /v1/batches/{id}."""
        self.authorise(request)
        return web.json_response(self._batches.find(request.match_info["id"]).as_json())

    async def cancel_batch(self, request: web.Request) -> web.Response:
        """POST /v1/batches/{id}/cancel."""
        self.authorise(request)
        return web.json_response(self._batches.cancel(request.match_info["id"]).as_json())

    async def add_message_batch(self, request: web.Request) -> web.Response:
        """POST /v1/messages/batches."""
        self.authorise(request)
        made = self._message_batches.add(await request.json())
        return web.json_response(made.as_json(str(request.url.origin())))

    async def show_message_batch(self, request: web.Request) -> web.Response:
        """GET /v1/messages/batches/{id}."""
        self.authorise(request)
        found = self._message_batches.find(request.match_info["id"])
        return web.json_response(found.as_json(str(request.url.origin())))

    async def cancel_message_batch(self, request: web.Request) -> web.Response:
        """POST /v1/messages/batches/{id}/cancel."""
        self.authorise(request)
        found = self._message_batches.cancel(request.match_info["id"])
        return web.json_response(found.as_json(str(request.url.origin())))

    async def delete_message_batch(self, request: web.Request) -> web.Response:
        """DELETE /v1/messages/batches/{id}."""
        self.authorise(request)
        return web.json_response(self._message_batches.remove(request.match_info["id"]))

    async def show_results(self, request: web.Request) -> web.Response:
        """GET /v1/messages/batches/{id}/results."""
        self.authorise(request)
        results = self._message_batches.find(request.match_info["id"]).results
        text = "".join([f"{json.dumps(result)}\n" for result in results])
        return web.Response(text=text, content_type="application/x-jsonl")

    async def _media(self, request: web.Request, endpoint: Endpoint, entry: ServedCall) -> web.Response:
        asked = await media.read(request)
        entry.model, entry.stream = asked.model, asked.is_stream
        if self._settings.models.get(asked.model) not in (endpoint, _ALSO.get(endpoint, endpoint)):
            raise unknown_model(asked.model)
        answer = await media.answer(request, endpoint, asked, entry)
        self._ledger.close(entry, "done")
        return answer

    def _cached(self, request: web.Request, entry: ServedCall, asked: ChatRequest, prompt_tokens: int) -> int:
        owner = request.headers.get("Authorization", "")
        entry.cached_tokens = self._prefixes.take(asked, owner, prompt_tokens)
        return entry.cached_tokens

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

    def _pace(self, asked: Simulate) -> _Pace:
        settings = self._settings
        return _Pace(
            settings.first_token_delay_s if asked.delay_s is None else asked.delay_s,
            settings.tokens_per_s if asked.tokens_per_s is None else asked.tokens_per_s,
            settings.tokens_per_event if asked.tokens_per_event is None else asked.tokens_per_event,
            asked.cut_after_events,
        )

    async def _plain(self, entry: ServedCall, answer: SimulatedAnswer, pace: _Pace) -> web.Response:
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
        self._ledger.close(entry, "done")
        return web.Response(body=body, content_type="application/json")

    async def _stream(
        self, request: web.Request, entry: ServedCall, answer: SimulatedAnswer, pace: _Pace
    ) -> web.StreamResponse:
        if pace.delay_s:
            await asyncio.sleep(pace.delay_s)
        response = await _opened(request)
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
        self._ledger.close(entry, "done")
        await response.write(b"".join(pending) + answer.end)
        return response

    async def _cut(
        self, request: web.Request, response: web.StreamResponse, entry: ServedCall, rest: bytes
    ) -> web.StreamResponse:
        """Send the rest and close the connection inside the chunked body."""
        self._ledger.close(entry, "cut")
        if rest:
            await response.write(rest)
        _close(request)
        return response


def _close(request: web.Request) -> None:
    """Close the connection inside the chunked body."""
    if request.transport is not None:
        request.transport.close()


async def _opened(request: web.Request) -> web.StreamResponse:
    """The head of a stream, sent."""
    response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
    response.content_type = "text/event-stream"
    await response.prepare(request)
    return response


def _with_path(request: web.Request, body: bytes) -> bytes:
    """A body of Gemini's API with the parameters of its path."""
    try:
        members = json.loads(body)
    except ValueError:
        return body
    if not isinstance(members, dict):
        return body
    method = request.match_info.get("method")
    parameters: dict[str, Any] = {"model": request.match_info["model"], "stream": method == "streamGenerateContent"}
    if method in _EMBEDS:
        parameters["is_batch"] = method == "batchEmbedContents"
        parameters["requests"] = members.get("requests") if parameters["is_batch"] else [members]
    return json.dumps({**members, **parameters}).encode()


def _answer(
    asked: Request | ContentRequest | EmbedContentRequest,
    tokens_per_event: int,
    cached: Callable[[ChatRequest, int], int],
) -> SimulatedAnswer:
    """Generate the answer of any endpoint; its bytes are made on demand. `cached` returns how many tokens of a chat's
    prompt are."""
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
            generated = replace(generated, usage=replace(usage, cached=cached(asked, usage.prompt)))
            return SimulatedAnswer(
                generated.usage,
                generated.longest,
                lambda: answers.chat_body(asked, generated),
                lambda: answers.chat_events(asked, generated, tokens_per_event),
            )
        case ContentRequest():
            generated = choices.chat(asked.as_chat())
            return SimulatedAnswer(
                generated.usage,
                generated.longest,
                lambda: content_body(asked, generated),
                lambda: content_events(asked, generated, tokens_per_event),
                b"",
            )
        case EmbeddingRequest():
            usage = vectors.usage_of(asked)
            return SimulatedAnswer(usage, 0, lambda: vectors.embeddings_body(asked, usage), lambda: iter(()))
        case EmbedContentRequest():
            usage = vectors.content_usage_of(asked)
            return SimulatedAnswer(usage, 0, lambda: vectors.embedded_contents_body(asked, usage), lambda: iter(()))


def _model_object(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": MODELS_CREATED, "owned_by": "simulator"}


# -------------------------------------------------------------------------------------------------------------- errors


@web.middleware
async def _error_responses(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every refusal into OpenAI's error object."""
    request[_ID], request[_STARTED] = f"req_{uuid4().hex}", time.monotonic()
    try:
        return await handler(request)
    except APIError as refused:
        error = refused
    except web.HTTPException as refused:
        error = APIError(refused.status, f"{refused.reason}: {request.method} {request.path}")
    body = error.body()
    if request.path.startswith(MESSAGES_PATH):
        body = error_body(error.status, error.error["message"] or "", request[_ID])
    if request.path.startswith("/v1beta/"):
        body = google_error_body(error.status, error.error["message"] or "")
    return web.Response(status=error.status, body=body, content_type="application/json")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["x-request-id"] = response.headers["request-id"] = request[_ID]
    response.headers["openai-processing-ms"] = str(int((time.monotonic() - request[_STARTED]) * 1000))
    response.headers["openai-version"] = "2020-10-01"

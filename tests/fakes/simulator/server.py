"""The simulated upstream of the package with further routes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from aiohttp import web

from gateway.simulator import choices
from gateway.simulator.answers import SimulatedAnswer
from gateway.simulator.choices import Settings
from gateway.simulator.requests import APIError, SimulatedCall, parse, unknown_model
from gateway.simulator.responses import ResponseRequest, as_chat, response_events
from gateway.simulator.server import (
    CALL_ID,
    MESSAGES_PATH,
    Ended,
    Handler,
    Pace,
    ServedCall,
    Simulator,
    close_connection,
    open_stream,
    response_answer,
)

from . import files, gemini, media
from .batches import BatchStore
from .conversations import ConversationStore
from .files import FileStore
from .message_batches import MessageBatchStore
from .realtime import SimulatedSession
from .stored_responses import KeptResponse, ResponseStore, StoredResponse
from .tasks import TASK_PATHS, TaskStore, family_of, read_options

CONTENT_PATH = "/v1beta/models/{model:.+}"

MODELS: Mapping[str, str] = MappingProxyType({
    "gemini-2.5-flash": "generate_content", "gemini-embedding-001": "embed_content", "gpt-realtime": "realtime",
    "whisper-1": "transcriptions", "gpt-4o-mini-transcribe": "transcriptions", "tts-1": "speech",
    "gpt-image-1": "images", "dall-e-2": "images",
})  # fmt: skip
"""Beside those of the settings."""

_GEMINI: Mapping[str, type[SimulatedCall]] = {
    "generate_content": gemini.ContentRequest, "embed_content": gemini.EmbedContentRequest,
}  # fmt: skip

_MEDIA: Mapping[str, str] = {
    "/v1/audio/speech": "speech",
    "/v1/audio/transcriptions": "transcriptions",
    "/v1/audio/translations": "translations",
    "/v1/images/generations": "images",
    "/v1/images/edits": "image_edits",
    "/v1/images/variations": "image_variations",
}

_MODELS_OF: Mapping[str, str] = {
    "translations": "transcriptions", "image_edits": "images", "image_variations": "images",
}  # fmt: skip
"""Endpoints that have the models of another one."""


def build_app(settings: Settings) -> web.Application:
    """The application, as `gateway.simulator.build_app` makes it."""
    return WholeSimulator(replace(settings, models={**settings.models, **MODELS})).app()


class WholeSimulator(Simulator):
    """The simulated upstream with every format."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._conversations = ConversationStore()
        self._responses = ResponseStore(self._conversations)
        self._files = FileStore()
        self._tasks = TaskStore()
        self._batches = BatchStore(self._files, self.ledger, settings)
        self._message_batches = MessageBatchStore(self.ledger, settings)
        self._in_progress: set[str] = set()
        """Ids of the calls whose background responses are being made."""

    def routes(self) -> list[web.RouteDef]:
        """All endpoints."""
        response, file, batch = "/v1/responses/{id}", "/v1/files/{id}", "/v1/batches/{id}"
        message_batches = f"{MESSAGES_PATH}/batches"
        message_batch = f"{message_batches}/{{id}}"
        return [
            *super().routes(),
            web.get(response, self._show_response),
            web.delete(response, self._of(lambda name, _: self._responses.delete(name))),
            web.post(f"{response}/cancel", self._of(lambda name, _: self._responses.cancel(name))),
            web.get(f"{response}/input_items", self._of(lambda name, _: self._responses.input_items(name))),
            *self._conversations.routes(self.authorise),
            web.post("/v1/files", self._add_file),
            web.get("/v1/files", self._list_files),
            web.get(file, self._of(lambda name, _: self._files.find(name).as_json())),
            web.delete(file, self._of(lambda name, _: self._files.remove(name))),
            web.get(f"{file}/content", self._show_content),
            web.post("/v1/batches", self._add_batch),
            web.get(batch, self._of(lambda name, _: self._batches.find(name).as_json())),
            web.post(f"{batch}/cancel", self._of(lambda name, _: self._batches.cancel(name).as_json())),
            web.post(message_batches, self._add_message_batch),
            web.get(message_batch, self._of(lambda name, origin: self._message_batches.find(name).as_json(origin))),
            web.delete(message_batch, self._of(lambda name, _: self._message_batches.remove(name))),
            web.post(
                f"{message_batch}/cancel",
                self._of(lambda name, origin: self._message_batches.cancel(name).as_json(origin)),
            ),
            web.get(f"{message_batch}/results", self._show_results),
            web.post(f"{CONTENT_PATH}:{{method:generateContent}}", self.serving("generate_content")),
            web.post(f"{CONTENT_PATH}:{{method:streamGenerateContent}}", self.serving("generate_content")),
            web.post(f"{CONTENT_PATH}:countTokens", self._count_content_tokens),
            web.post(f"{CONTENT_PATH}:{{method:embedContent}}", self.serving("embed_content")),
            web.post(f"{CONTENT_PATH}:{{method:batchEmbedContents}}", self.serving("embed_content")),
            *(web.post(path, self.serving(endpoint)) for path, endpoint in _MEDIA.items()),
            web.get("/v1/realtime", self._open_realtime),
            web.post(TASK_PATHS, self._submit_task),
            web.get(TASK_PATHS, self._show_task),
            web.delete(TASK_PATHS, self._delete_task),
        ]

    def close(self, entry: ServedCall, ended: Ended) -> None:
        """Enter a call whose handler ends, but not the one of a background response that goes on."""
        if entry.id not in self._in_progress:
            super().close(entry, ended)

    def error_body(self, request: web.Request, error: APIError) -> bytes:
        """A refusal in the form of the API that was called."""
        if request.path.startswith("/v1beta/"):
            return gemini.google_error_body(error.status, error.error["message"] or "")
        return super().error_body(request, error)

    def _of(self, answer: Callable[[str, str], dict[str, Any]]) -> Handler:
        """The handler that answers with an object. It is given the id in the path and the origin of the address."""

        async def handle(request: web.Request) -> web.Response:
            self.authorise(request)
            return web.json_response(answer(request.match_info["id"], str(request.url.origin())))

        return handle

    # ------------------------------------------------------------------------------------------------ generating calls

    async def generate(self, request: web.Request, endpoint: str, entry: ServedCall) -> web.StreamResponse:
        """The answer of a generating endpoint. Raises `APIError`."""
        if request.path not in _MEDIA:
            return await super().generate(request, endpoint, entry)
        self.admit(request)
        asked = await media.read(request)
        entry.model, entry.stream = asked.model, asked.is_stream
        if self.settings.models.get(asked.model) not in (endpoint, _MODELS_OF.get(endpoint, endpoint)):
            raise unknown_model(asked.model)
        answer = await media.answer(request, endpoint, asked, entry)
        self.ledger.close(entry, "done")
        return answer

    async def read(self, request: web.Request, endpoint: str) -> SimulatedCall:
        """The body of a call. Raises `APIError`."""
        if endpoint in _GEMINI:
            return parse(_GEMINI[endpoint], gemini.with_path(request, await request.read()))
        return await super().read(request, endpoint)

    def answer(
        self, request: web.Request, asked: SimulatedCall, entry: ServedCall, tokens_per_event: int
    ) -> SimulatedAnswer:
        """Generate the answer of any endpoint."""
        return gemini.answer(asked, tokens_per_event) or super().answer(request, asked, entry, tokens_per_event)

    async def respond(
        self, request: web.Request, asked: SimulatedCall, entry: ServedCall, pace: Pace
    ) -> web.StreamResponse:
        """Generate an answer and send it; responses are stored. Raises `APIError`."""
        if not isinstance(asked, ResponseRequest):
            return await super().respond(request, asked, entry, pace)
        items = self._responses.whole_input(asked)
        made = KeptResponse(asked, choices.chat(as_chat(asked.model_copy(update={"input": items}))))
        if asked.background:
            entry.prompt_tokens = made.usage.prompt
            return await self._in_background(request, asked, made, items, entry, pace)
        if asked.store is not False:
            self._responses.keep(made.whole(), items, 0, 0)
        self._responses.note(asked, made.whole())
        return await self.send(request, entry, response_answer(made, pace.tokens_per_event), pace)

    async def _in_background(
        self,
        request: web.Request,
        asked: ResponseRequest,
        made: KeptResponse,
        items: list[dict[str, Any]],
        entry: ServedCall,
        pace: Pace,
    ) -> web.StreamResponse:
        """Answer at once. The ledger has the call with all of its tokens when it ends, with none if it is cancelled."""
        takes_s, usage = pace.after(made.longest), made.usage
        kept = self._responses.keep(made.whole(), items, pace.delay_s, takes_s)
        self._in_progress.add(entry.id)

        def end() -> None:
            if not kept.is_cancelled:
                entry.completion_tokens, entry.reasoning_tokens = usage.completion, usage.reasoning
                self._responses.note(asked, kept.whole)
            self._in_progress.discard(entry.id)
            self.ledger.close(entry, "aborted" if kept.is_cancelled else "done")

        asyncio.get_running_loop().call_later(pace.delay_s + takes_s, end)
        kept.when_cancelled = end
        if not asked.is_stream:
            return web.json_response(kept.as_json())
        kept.stream, kept.tokens_per_s = list(response_events(made, pace.tokens_per_event)), pace.tokens_per_s
        return await self._relay_stream(request, kept, -1, pace.cut_after_events)

    async def _relay_stream(
        self, request: web.Request, kept: StoredResponse, after: int, cut_after: int | None = None
    ) -> web.StreamResponse:
        """The stream of a background response behind an event, cut off after `cut_after` events."""
        events = kept.events_after(after)
        response = await open_stream(request)
        sent = 0
        async for event in events:
            if sent == cut_after:
                close_connection(request)
                break
            await response.write(event.data)
            sent += 1
        return response

    async def _show_response(self, request: web.Request) -> web.StreamResponse:
        """A stored response, also as a stream."""
        self.authorise(request)
        found = self._responses.find(request.match_info["id"])
        if request.query.get("stream") != "true":
            return web.json_response(found.as_json())
        after = request.query.get("starting_after", "-1")
        if not after.removeprefix("-").isdecimal():
            raise APIError(400, "'starting_after' is not a number.", param="starting_after")
        return await self._relay_stream(request, found, int(after))

    async def _count_content_tokens(self, request: web.Request) -> web.Response:
        """Generates nothing, and is no call of the ledger."""
        self.authorise(request)
        asked = parse(gemini.ContentRequest, gemini.with_path(request, await request.read()))
        return web.json_response({"totalTokens": choices.chat(asked.as_chat()).usage.prompt})

    async def _open_realtime(self, request: web.Request) -> web.StreamResponse:
        """Each response of the session is a call of the ledger."""
        self.authorise(request)
        name = request.query.get("model", "")
        if self.settings.models.get(name) != "realtime":
            raise unknown_model(name)
        return await SimulatedSession(name, self.settings, self.ledger, lambda: f"resp_{uuid4().hex}").serve(request)

    # ----------------------------------------------------------------------------------------------- files and batches

    async def _add_file(self, request: web.Request) -> web.Response:
        self.authorise(request)
        return web.json_response((await files.read(request, self._files)).as_json())

    async def _list_files(self, request: web.Request) -> web.Response:
        self.authorise(request)
        return web.json_response(self._files.as_json())

    async def _show_content(self, request: web.Request) -> web.Response:
        self.authorise(request)
        return web.Response(body=self._files.find(request.match_info["id"]).content)

    async def _add_batch(self, request: web.Request) -> web.Response:
        self.authorise(request)
        return web.json_response(self._batches.add(await request.json()).as_json())

    async def _add_message_batch(self, request: web.Request) -> web.Response:
        self.authorise(request)
        made = self._message_batches.add(await request.json())
        return web.json_response(made.as_json(str(request.url.origin())))

    async def _show_results(self, request: web.Request) -> web.Response:
        self.authorise(request)
        results = self._message_batches.find(request.match_info["id"]).results
        text = "".join([f"{json.dumps(result)}\n" for result in results])
        return web.Response(text=text, content_type="application/x-jsonl")

    # ----------------------------------------------------------------------------------------------------------- tasks

    async def _submit_task(self, request: web.Request) -> web.Response:
        """A submission of any task API. The ledger has it when its task has ended."""
        self.authorise(request)
        found = family_of(request.path)
        if found is None:
            return await self._show_task(request)
        name, family = found
        asked = await read_options(request)
        if asked.get("refuses"):
            if family.refused is None:
                raise APIError(400, "The request was refused.")
            return web.json_response(family.refused)
        entry = self.ledger.open(request[CALL_ID], name)
        task_id, task = self._tasks.submit(family, asked)

        def end() -> None:
            entry.tasks = 0 if task.fails else 1
            self.ledger.close(entry, "error" if task.fails else "done")

        if family.read is None:
            end()
        else:
            asyncio.get_running_loop().call_later(task.ends - time.monotonic(), end)
        answer = family.submitted(task_id) if family.read is not None or task.shows is None else task.shows
        return web.json_response(answer, status=family.status)

    async def _show_task(self, request: web.Request) -> web.Response:
        self.authorise(request)
        if (shown := self._tasks.show(request.path_qs)) is None:
            raise web.HTTPNotFound
        return shown

    async def _delete_task(self, request: web.Request) -> web.Response:
        """A deleted task goes on here, like one that ends before the deletion comes. Runway and Luma answer 204."""
        shown = await self._show_task(request)
        return shown if request.path.startswith("/v1/videos") else web.Response(status=204)

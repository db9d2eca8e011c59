"""Sessions of OpenAI's Realtime API: text in, text out, over a WebSocket. No audio is understood or made.

Each `response.create` is a call of the ledger. Its prompt is the whole text of the session, with one token a role.
`{"response": {"simulate": {"tokens_per_s": 50}}}` sets its pace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType, web

from gateway.simulator.choices import Settings
from gateway.simulator.server import CallHistory, ServedCall
from gateway.simulator.text import count_tokens, key_of, write


class SimulatedSession:
    """One session with this model. `new_id` makes ids of calls."""

    def __init__(self, model: str, settings: Settings, ledger: CallHistory, new_id: Callable[[], str]) -> None:
        self._model = model
        self._settings = settings
        self._ledger = ledger
        self._new_id = new_id
        self._session: dict[str, Any] = {"type": "realtime", "object": "realtime.session", "model": model}
        self._texts: list[str] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Until the client leaves."""
        socket = web.WebSocketResponse(protocols=("realtime",), compress=False, max_msg_size=0)
        await socket.prepare(request)
        await socket.send_json({"type": "session.created", "session": self._session})
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await self._hear(socket, message.data)
        return socket

    async def _hear(self, socket: web.WebSocketResponse, text: str) -> None:
        try:
            event = json.loads(text)
            kind = event["type"]
        except (ValueError, TypeError, KeyError):
            await self._refuse(socket, "invalid_json")
            return
        if kind == "session.update":
            self._session |= {name: value for name, value in (event.get("session") or {}).items() if name != "model"}
            await socket.send_json({"type": "session.updated", "session": self._session})
        elif kind == "conversation.item.create":
            item = event.get("item") or {}
            self._texts.append("".join([str(part.get("text") or "") for part in item.get("content") or []]))
            await socket.send_json({"type": "conversation.item.added", "item": item})
        elif kind == "response.create":
            await self._respond(socket, event.get("response") or {})
        else:
            await self._refuse(socket, "unknown_event")

    async def _refuse(self, socket: web.WebSocketResponse, code: str) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": "The event is not understood."}
        await socket.send_json({"type": "error", "error": error})

    async def _respond(self, socket: web.WebSocketResponse, asked: dict[str, Any]) -> None:
        entry = self._ledger.open(self._new_id(), "realtime")
        entry.model, entry.stream = self._model, True
        try:
            await self._generate(socket, asked, entry)
            self._ledger.close(entry, "done")
        except (asyncio.CancelledError, ConnectionError):
            self._ledger.close(entry, "aborted")
            raise
        await socket.send_json({"type": "response.done", "response": self._response(entry, "completed")})

    async def _generate(self, socket: web.WebSocketResponse, asked: dict[str, Any], entry: ServedCall) -> None:
        entry.prompt_tokens = sum([count_tokens(text) + 1 for text in self._texts])
        await asyncio.sleep(self._settings.first_token_delay_s)
        await socket.send_json({"type": "response.created", "response": self._response(entry, "in_progress")})
        limit = asked.get("max_output_tokens", self._session.get("max_output_tokens"))
        tokens = write(key_of(self._model, self._texts), limit if isinstance(limit, int) else None)
        simulate = asked.get("simulate")
        pace = (simulate if isinstance(simulate, dict) else {}).get("tokens_per_s", self._settings.tokens_per_s)
        for token in tokens:
            entry.completion_tokens += 1
            await socket.send_json({"type": "response.output_text.delta", "response_id": entry.id, "delta": token})
            if pace:
                await asyncio.sleep(1 / pace)
        self._texts.append("".join(tokens))

    def _response(self, entry: ServedCall, status: str) -> dict[str, Any]:
        given, made = entry.prompt_tokens, entry.completion_tokens
        usage = {
            "total_tokens": given + made, "input_tokens": given, "output_tokens": made,
            "input_token_details": {"text_tokens": given, "audio_tokens": 0, "image_tokens": 0, "cached_tokens": 0},
            "output_token_details": {"text_tokens": made, "audio_tokens": 0},
        }  # fmt: skip
        about = {"object": "realtime.response", "id": entry.id, "status": status}
        return about if status == "in_progress" else {**about, "usage": usage}

"""An upstream of OpenAI's Realtime API that does what a test wrote down: a real server in a thread of its own.

with RealtimeUpstream() as upstream:      # upstream.url is what base_url takes
    ...                                   # it answers each `response.create` with `upstream.usage`

Events of a type `test.…` say what it does next: `_answer`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from typing import Any, Self

from aiohttp import WSMsgType, web

USAGE = {
    "total_tokens": 130, "input_tokens": 100, "output_tokens": 30,
    "input_token_details": {
        "text_tokens": 40, "audio_tokens": 60, "cached_tokens": 20,
        "cached_tokens_details": {"text_tokens": 10, "audio_tokens": 10},
    },
    "output_token_details": {"text_tokens": 10, "audio_tokens": 20},
}  # fmt: skip


class RealtimeUpstream:
    """See the head of the file."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.usage: dict[str, Any] | None = USAGE
        self.status = 101
        """Of the answer to a handshake."""
        self.stops_inside = False
        """Whether a response stays unfinished behind its first words."""
        self.takes_limits = True
        """Whether a `session.update` may have an output limit."""
        self.speaks_itself = True
        """Whether it answers events beside those of a type `test.…` and output limits."""
        self.seen: list[dict[str, Any]] = []
        """Every event that came, in order."""
        self.texts: list[str] = []
        """The same as it was written."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Path with query, and headers, of every handshake."""
        self.close_codes: list[int | None] = []
        self.flooded = 0
        """Bytes of audio that were sent by a `test.flood`."""
        self.goes_on = threading.Event()
        """Ends a `test.pause`, in which nothing is read."""
        self.port = 0
        self._open = 0
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def reset(self) -> None:
        """As at the beginning. Waits until all sessions have ended."""
        assert self._is_idle.wait(10)
        self.usage, self.status, self.stops_inside, self.flooded = USAGE, 101, False, 0
        self.takes_limits = self.speaks_itself = True
        self.goes_on.clear()
        for each in (self.seen, self.texts, self.requests, self.close_codes):
            each.clear()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/realtime", self._serve)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = runner.addresses[0][1]
        self._is_ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _chat(self, request: web.Request) -> web.Response:
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path_qs, dict(request.headers)))
        if self.status != 101:
            away = {"Location": "/v1/realtime?elsewhere"} if self.status == 302 else {}
            return web.json_response({"error": {"message": "no"}}, status=self.status, headers=away)
        socket = web.WebSocketResponse(protocols=("realtime",), max_msg_size=0)
        self._open += 1
        self._is_idle.clear()
        try:
            await self._converse(socket, request)
        finally:
            self._open -= 1
            if not self._open:
                self._is_idle.set()
        return socket

    async def _converse(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        await socket.prepare(request)
        await socket.send_json({"type": "session.created", "session": {"id": "sess_1", "type": "realtime"}})
        async for message in socket:
            assert message.type is WSMsgType.TEXT
            self.texts.append(message.data)
            event = json.loads(message.data)
            self.seen.append(event)
            if event["type"] == "test.say":
                for _ in range(event.get("times", 1)):
                    await socket.send_json(event["event"])
            elif event["type"] == "test.unfinished":
                half = b"x" * event["bytes"]
                _transport_of(socket).write(b"\x81\x7f" + (2 * len(half)).to_bytes(8) + half)
            elif self.speaks_itself or event["type"].startswith("test.") or "max_output_tokens" in str(event):
                await self._answer(socket, event, len(self.seen))
        self.close_codes.append(socket.close_code)

    async def _answer(self, socket: web.WebSocketResponse, event: dict[str, Any], number: int) -> None:
        match event["type"]:
            case "response.create" | "input_audio_buffer.commit":
                await self._respond(socket, event, f"resp_{number}")
            case "session.update":
                await self._update(socket, event)
            case "conversation.item.create":
                usage = event.get("transcribed")
                if usage is not None:
                    done = "conversation.item.input_audio_transcription.completed"
                    await socket.send_json({"type": done, "transcript": "Hi", "usage": usage})
            case "test.refuse":
                await socket.send_json({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}})
            case "test.close":
                await socket.close(code=event["code"])
            case "test.cut":
                _transport_of(socket).abort()
            case "test.half":
                _transport_of(socket).write_eof()
            case "test.large":
                await socket.send_str("x" * event["bytes"])
            case "test.flood":
                await self._flood(socket, event["bytes"])
            case "test.pause":
                await asyncio.to_thread(self.goes_on.wait, 60)

    async def _update(self, socket: web.WebSocketResponse, event: dict[str, Any]) -> None:
        if not self.takes_limits and "max_output_tokens" in event["session"]:
            error = {"type": "invalid_request_error", "code": "unknown_parameter", "event_id": event.get("event_id")}
            await socket.send_json({"type": "error", "error": error})
        else:
            await socket.send_json({"type": "session.updated", "session": event["session"]})

    async def _flood(self, socket: web.WebSocketResponse, size: int) -> None:
        piece = "A" * 65536
        for _ in range(size // len(piece)):
            await socket.send_json({"type": "response.output_audio.delta", "delta": piece})
            self.flooded += len(piece)
        await socket.send_json({"type": "test.flooded"})

    async def _respond(self, socket: web.WebSocketResponse, event: dict[str, Any], number: str) -> None:
        if "refused" in event.get("response", {}):
            error = {"type": "invalid_request_error", "message": "no", "event_id": event.get("event_id")}
            await socket.send_json({"type": "error", "error": error})
            return
        await socket.send_json({"type": "response.created", "response": {"id": number, "status": "in_progress"}})
        for word in ("Hel", "lo"):
            await socket.send_json({"type": "response.output_text.delta", "response_id": number, "delta": word})
        if not self.stops_inside:
            done = {"id": number, "status": "completed", "usage": self.usage}
            await socket.send_json({"type": "response.done", "response": done})


def _transport_of(socket: web.WebSocketResponse) -> asyncio.Transport:
    """What the frames of a served socket go over."""
    transport = socket._req.transport if socket._req is not None else None
    assert isinstance(transport, asyncio.Transport)
    return transport

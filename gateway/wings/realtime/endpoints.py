"""OpenAI's Realtime API: `GET /v1/realtime?model=NAME`, upgraded to a WebSocket.

Everything is checked and reserved before the upgrade, so that a refusal is an ordinary answer. Then messages are passed
on as they come, one after the other in each direction, as fast as the other side takes them. The client's key may be a
subprotocol, because browsers cannot set headers; it goes no further.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from aiohttp import WSMsgType, hdrs, web

from gateway.api.attribution import attribution_of
from gateway.errors import GatewayError, InvalidRequest, internal_error
from gateway.formats.event_scan import parsed
from gateway.formats.reader import text_of
from gateway.formats.table import AZURE, azure_paths
from gateway.records import Call, Document, Failure, Fault, Key, Params, Phase, Usage
from gateway.relay.charge import Ending
from gateway.tasks import Tasks, is_cut_off
from gateway.web.capacity import Capacity, Room, buffers_full
from gateway.web.endpoints import MAX_CLIENT_ID, DataPlane, find_model, forwarded_headers, forwarded_query
from gateway.web.http_guard.client_connection import ClientConnection
from gateway.web.middleware import CONTEXT, RequestContext, new_id
from gateway.web.openapi.operation import JSON, Operation, named
from gateway.web.status import Status, shutting_down
from gateway.web.wings import WingEndpoints

from . import formats as realtime
from .accounts import SessionEnd
from .formats import KEY_PROTOCOL, PROTOCOL, REALTIME, UPSTREAM_PROTOCOLS
from .held_messages import HeldMessages
from .opening import RealtimeSession, open_session
from .output import EventIds
from .websocket import CLOSE_WITHIN_S, HEARTBEAT_S, messages_of

log = logging.getLogger("gateway")

GOING_AWAY, REFUSED, BROKEN, TRY_AGAIN = 1001, 1008, 1011, 1013
"""Close codes (RFC 6455, 7.4.1, and IANA's registry of them): the gateway ends, or the session's time is over; a limit;
the upstream is gone; there is no room for its messages."""


_ANY_KIND = Document('"audio" "image"', {})
"""A session has no body. Its responses may use audio and images, and are reserved at the dearest of these prices."""


class _End(NamedTuple):
    """Why a session ends, and how that is sent to the client."""

    code: int
    session: SessionEnd
    error: GatewayError | None = None
    """Sent as an event before the close."""
    failure: Failure | None = None
    upstream_code: int = 1000


def _passed_code(code: int | None, otherwise: int) -> int:
    """A close code that may be sent (RFC 6455, 7.4)."""
    is_sendable = code is not None and (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999)
    return code if code is not None and is_sendable else otherwise


MODEL, DEPLOYMENT = "model", "deployment"
"""Parameters of the query that name the model; the second one is Azure's."""


class RealtimeSessions:
    """Serves the endpoint of Realtime sessions."""

    def __init__(self, plane: DataPlane, status: Status, capacity: Capacity) -> None:
        self._plane = plane
        self._status = status
        self._capacity = capacity

    def routes(self) -> list[web.RouteDef]:
        return [web.get(path, self.serve) for path in PATHS]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One session, from its handshake to its close."""
        context = request[CONTEXT]
        context.endpoint = REALTIME.name
        context.trace = context.parts.accounting.tracer.begin(REALTIME.name, context.id, request.headers)
        telemetry, calls, task = context.parts.accounting.telemetry, self._status.calls, asyncio.current_task()
        self._capacity.refuse_when_full(len(calls))
        telemetry.count_under_way(1)
        calls.add(task)
        try:
            return await self._serve(request, context)
        finally:
            calls.discard(task)
            telemetry.count_under_way(-1)

    async def _serve(self, request: web.Request, context: RequestContext) -> web.StreamResponse:
        offered = _offered(request)
        secrets = [each.removeprefix(KEY_PROTOCOL) for each in offered if each.startswith(KEY_PROTOCOL)]

        async def admit() -> Key:
            return await self._plane.caller(request, context, more_keys=secrets)

        key = await admit()
        if self._status.is_draining:
            raise shutting_down()
        _check_handshake(request, offered)
        call = await self._plane.amend(_call(request, context, key), context)

        def reserved() -> None:
            context.is_recorded = True

        upstream_protocols = [each for each in offered if each in UPSTREAM_PROTOCOLS]
        held = _Held(self._capacity.memory, context.key)
        try:
            async with open_session(
                call, context.parts, upstream_protocols, admit, reserved, held.of_upstream, context.trace
            ) as session:
                client = _Client(
                    timeout=CLOSE_WITHIN_S, heartbeat=HEARTBEAT_S, protocols=(PROTOCOL,), compress=False,
                    max_msg_size=context.parts.config.server.max_request_bytes, autoping=False,
                )  # fmt: skip
                client.headers.update([("x-request-id", context.id), *session.log.headers()])
                client.count(request, held.of_client)
                await client.prepare(request)
                await _Relay(session, client, held).run()
                return client
        finally:
            held.close()


class _Client(web.WebSocketResponse):
    """The client's side, whose messages are counted while they are held."""

    def count(self, request: web.Request, held: HeldMessages) -> None:
        """Counts messages from the upgrade on, because the upgrade creates the queue of messages and their parser."""
        assert isinstance(request.protocol, ClientConnection)
        request.protocol.before_parser = lambda parser: held.watch(parser, self._reader)


def _offered(request: web.Request) -> list[str]:
    """The subprotocols that the client offers."""
    lines = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, ())
    return [each.strip() for line in lines for each in line.split(",") if each.strip()]


def _check_handshake(request: web.Request, offered: Sequence[str]) -> None:
    """Raises `InvalidRequest` for what is no handshake of this API (RFC 6455, 4.2.1)."""
    headers = request.headers
    is_upgrade = headers.get(hdrs.UPGRADE, "").lower().strip() == "websocket"
    if not is_upgrade or "upgrade" not in headers.get(hdrs.CONNECTION, "").lower():
        raise InvalidRequest("Connect with a WebSocket: GET /v1/realtime?model=NAME.", code="websocket_required")
    try:
        nonce = base64.b64decode(headers.get(hdrs.SEC_WEBSOCKET_KEY, ""), validate=True)
    except binascii.Error:
        nonce = b""
    if headers.get(hdrs.SEC_WEBSOCKET_VERSION) != "13" or len(nonce) != 16:
        raise InvalidRequest(
            "The WebSocket handshake is not valid: it needs Sec-WebSocket-Version 13 and a Sec-WebSocket-Key of 16 "
            "bytes.",
            code="invalid_handshake",
        )
    if offered and PROTOCOL not in offered:
        raise InvalidRequest(
            f"Offer the subprotocol '{PROTOCOL}' as well: it is the one that the gateway answers.",
            code="unknown_subprotocol",
        )


def _call(request: web.Request, context: RequestContext, key: Key) -> Call:
    """The call of the session. Raises `GatewayError` for a model that this key may not use here."""
    names = request.query.getall(MODEL, [])
    if request.path.startswith(f"{AZURE}/"):  # openai-python, lib/azure.py, `_configure_realtime`
        names += request.query.getall(DEPLOYMENT, [])
    if len(names) != 1 or not names[0]:
        raise InvalidRequest(
            "You must provide a model parameter, once, in the query.", param="model", code="missing_required_parameter"
        )
    if "call_id" in request.query:
        raise InvalidRequest(
            "Unsupported parameter: 'call_id'. Calls over WebRTC and SIP do not pass through the gateway.",
            param="call_id",
            code="unsupported_parameter",
        )
    name, config = names[0], context.parts.config
    found = find_model(name, key, REALTIME.name, context)
    client_id = request.headers.get("X-Client-Request-Id")
    user, tags = attribution_of(request.headers.items(), {}, config.records)
    return Call(
        id=context.id,
        started=context.parts.clock.now(),
        key=key,
        endpoint=REALTIME.name,
        params=Params(_ANY_KIND, name, stream=True, default_output=0, is_prompt_exact=True),
        model=found.model,
        label_model=context.model,
        arrived=context.arrived,
        forwarded_headers=_headers(request),
        client_request_id=client_id[:MAX_CLIENT_ID] if client_id else None,
        remote=context.remote,
        query=_without_model(forwarded_query(request)),
        target=None if found.alias is None else found.name,
        priority=key.priority,
        user=user,
        tags=tags,
    )


def _headers(request: web.Request) -> tuple[tuple[str, str], ...]:
    """The headers of the handshake that the upstream gets. openai-python names a content type, and new-api v0.9.0 then
    refuses that the handshake has no body."""
    given = forwarded_headers(request, REALTIME.request_headers)
    return tuple([(name, value) for name, value in given if name.lower() != "content-type"])


def _without_model(query: str) -> str:
    """Returns the query without the names of a model, in upper or lower case, because some upstreams read those of a
    query in any case."""
    parts = [part for part in query.removeprefix("?").split("&") if part]
    kept = [part for part in parts if unquote(part.partition("=")[0]).lower() not in (MODEL, DEPLOYMENT)]
    return f"?{'&'.join(kept)}" if kept else ""


class _Held:
    """The messages of both sides that are held. `full` is done once there is no room for one."""

    def __init__(self, memory: Room, key: str) -> None:
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.of_client = HeldMessages(memory, key, self.full)
        self.of_upstream = HeldMessages(memory, key, self.full)

    def close(self) -> None:
        self.of_client.close()
        self.of_upstream.close()


class _Relay:
    """Passes messages on between a client and a session."""

    def __init__(self, session: RealtimeSession, client: web.WebSocketResponse, held: _Held) -> None:
        self._session = session
        self._client = client
        self._held = held
        self._ids = EventIds()
        self._gate = asyncio.Lock()
        """Held while a reservation is made: until then no message of the client may begin a response."""

    async def run(self) -> None:
        """Runs until the session has ended and is accounted for. A cancellation means that the client is gone, unless
        the task is cut off."""
        tasks = Tasks()
        end = _End(BROKEN, SessionEnd(500, "error", Ending.STOPPED, "server_error"), internal_error(self._call_id))
        try:
            end = await self._until_end(tasks)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if not is_cut_off(cancelled) or task is None:
                end = _CLIENT_GONE
                raise
            task.uncancel()  # its client is still there, and hears of it
            end = _End(GOING_AWAY, SessionEnd(503, "error", Ending.STOPPED, "shutting_down"))
        except Exception as error:
            log.error("realtime session %s failed: %s", self._call_id, type(error).__name__)
        finally:
            await tasks.cancel_all()
            self._account(end)
        await self._say(end)

    @property
    def _call_id(self) -> str:
        return self._session.log.call.id

    async def _until_end(self, tasks: Tasks) -> _End:
        sides = [tasks.spawn(self._up(), "realtime-up"), tasks.spawn(self._down(), "realtime-down")]
        done, _ = await asyncio.wait(
            [*sides, self._held.full], timeout=self._session.total_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self._held.full in done:
            return _refused(buffers_full())._replace(code=TRY_AGAIN)
        if not done:
            error = InvalidRequest(
                f"Your session hit the maximum duration of {self._session.total_s:g} seconds.", code="session_expired"
            )
            return _End(GOING_AWAY, SessionEnd(200, "done", Ending.STOPPED), error)
        return next(each.result() for each in sides if each in done)  # type: ignore[no-any-return]

    def _account(self, end: _End) -> None:
        session, ending = self._session, end.session
        session.accounts.close(ending)
        if end.failure is not None:
            session.fail(end.failure)
        session.log.close(status=ending.status, usage=Usage(), ended=ending.ended, error=ending.error)

    async def _say(self, end: _End) -> None:
        await self._session.log.acknowledged()
        if end.error is not None:
            await self._send_error(end.error)
        await self._session.socket.close(code=end.upstream_code)
        await self._client.close(code=end.code)

    async def _send_error(self, error: GatewayError, about: str | None = None) -> None:
        try:
            await self._client.send_str(realtime.error_event(error, f"event_{new_id()}", about))
        except ConnectionError:
            pass  # the reader of this side sees it

    # ------------------------------------------------------------------------------------------------ from the client

    async def _up(self) -> _End:
        try:
            async with self._gate:
                await self._keep_limit()
            async for message in messages_of(self._client):
                if message.type is WSMsgType.TEXT:
                    with self._held.of_client.in_hand(len(message.data)):
                        end = await self._pass_up(message.data)
                    if end is not None:
                        return end
                elif message.type is WSMsgType.BINARY:
                    with self._held.of_client.in_hand(len(message.data)):
                        await self._send_error(
                            InvalidRequest("Send events as text: binary messages are not part of this API.")
                        )
        except ConnectionError:
            return _upstream_gone("the connection is lost")
        return _CLIENT_GONE._replace(upstream_code=_passed_code(self._client.close_code, 1000))

    async def _pass_up(self, text: str) -> _End | None:
        about = None
        try:
            event = realtime.read_client_event(text)
            about = event["event_id"] if isinstance(event.get("event_id"), str) else None
            self._session.accounts.refuse_unanswered(event["type"])
            asked = realtime.asked_output(event, "response" if event["type"] == realtime.CREATE else "session")
            transcriber = realtime.asked_transcriber(event)
            is_changed = bool(realtime.settings_of(event)) and self._session.check(event)
            await self._session.check_files(event)
        except GatewayError as error:
            await self._send_error(error, about)
            return None
        is_changed |= self._ids.name(event)
        async with self._gate:
            try:
                is_changed |= await self._reserve(event, transcriber, *asked)
            except GatewayError as error:
                return _refused(error)
            await self._session.socket.send_str(realtime.write_event(event) if is_changed else text)
            await self._keep_limit()
        return None

    async def _reserve(
        self, event: dict[str, Any], transcriber: tuple[bool, str | None], is_limited: bool, output_tokens: int | None
    ) -> bool:
        """Reserve what this event asks for. Whether it had to be changed, in place. Raises the refusal."""
        session, kind, event_id = self._session, event["type"], event.get("event_id")
        accounts = session.accounts
        if kind == realtime.APPEND:
            accounts.transcriptions.appended(event.get("audio"))
            return False
        accounts.note(event)
        if kind == realtime.CREATE:
            await accounts.asked(output_tokens, event_id)
        elif kind == realtime.COMMIT:
            await accounts.transcriptions.commits(event_id)
        elif kind == realtime.CLEAR:
            accounts.transcriptions.clears()
        elif kind in realtime.UPDATES:
            if is_limited and kind == realtime.UPDATE:
                await accounts.limit(output_tokens)
            is_given, model = transcriber
            accounts.transcriptions.transcribers.asked(event_id, model, is_change=is_given)
            return kind == realtime.UPDATE and session.outputs.note_update(event)
        return False

    async def _keep_limit(self) -> None:
        """Make what is reserved for a response the limit of the session at the upstream."""
        if (update := self._session.outputs.own_update(self._session.accounts.spare_output)) is None:
            return
        try:
            await self._session.socket.send_str(realtime.write_event(update))
        except ConnectionError:
            pass  # the reader of that side sees it

    # ---------------------------------------------------------------------------------------------- from the upstream

    async def _down(self) -> _End:
        socket = self._session.socket
        try:
            async for message in messages_of(socket):
                if message.type is WSMsgType.TEXT:
                    with self._held.of_upstream.in_hand(len(message.data)):
                        end = await self._pass_down(message.data)
                    if end is not None:
                        return end
                elif message.type is WSMsgType.BINARY:
                    with self._held.of_upstream.in_hand(len(message.data)):
                        await self._client.send_bytes(message.data)
        except ConnectionError:
            return _CLIENT_GONE
        code = socket.close_code
        if code in (1000, 1001):
            return _End(code, SessionEnd(200, "done", Ending.BROKEN))
        return _upstream_gone(f"closed with {code}")._replace(code=_passed_code(code, BROKEN))

    async def _pass_down(self, text: str) -> _End | None:
        accounts = self._session.accounts
        event = parsed(text) or {}
        kind = text_of(event.get("type"))
        try:
            if kind == realtime.CREATED and (response := realtime.response_id(event)) is not None:
                await accounts.began(response)
            elif kind in _SETTINGS:
                is_own = kind == realtime.UPDATED and self._session.outputs.answered()
                self._session.note_settings(event, is_answer=kind in _ANSWERS and not is_own)
                if is_own:
                    return None
            elif kind == "error":
                return await self._pass_error(event, text)
            elif kind == realtime.DONE:
                return await self._settle(event, text)
            else:
                accounts.saw(event)
                if kind in realtime.OF_AUDIO:
                    await accounts.transcriptions.saw(kind, event)
        except GatewayError as error:
            return _refused(error)
        await self._client.send_str(await self._session.cleaned(text))
        if kind != realtime.TRANSCRIBED:
            return None
        async with self._gate:
            return await self._ready(anew=True)  # no quota could refuse a transcription that the upstream began

    async def _pass_error(self, event: realtime.Event, text: str) -> _End | None:
        """Pass on an error of the upstream, if it is about the client's events."""
        session, about = self._session, realtime.error_about(event)
        if session.outputs.refused(event):
            return _refused(_NO_LIMIT) if session.outputs.is_bound else None
        if about is not None and (given := self._ids.given(about)) != about:
            text = realtime.write_event({**event, "error": {**event["error"], "event_id": given}})
        await self._client.send_str(await session.cleaned(text))
        async with self._gate:
            if about is not None:
                session.accounts.refused(about)
            return await self._ready()

    async def _ready(self, *, anew: bool = False) -> _End | None:
        """Reserve for what may come next. The gate is held."""
        try:
            await self._session.accounts.ready(anew=anew)
        except GatewayError as error:
            return _refused(error)
        await self._keep_limit()
        return None

    async def _settle(self, event: realtime.Event, text: str) -> _End | None:
        """Charge what this event reports, pass it on, and reserve for what may come next."""
        async with self._gate:
            await self._session.accounts.ended(realtime.read_end(event))
            await self._client.send_str(await self._session.cleaned(text))
            return await self._ready()


_ANSWERS = frozenset({realtime.UPDATED, realtime.UPDATED_TRANSCRIPTION})
_SETTINGS = frozenset({"session.created", "transcription_session.created", *_ANSWERS})


_CLIENT_GONE = _End(1000, SessionEnd(200, "client_gone", Ending.STOPPED))


_NO_LIMIT = InvalidRequest(
    "The output of this key or model is limited (limits.max_tokens), and the upstream takes no limit for a Realtime "
    "session. Ask the operator of the gateway for a key or model without this limit.",
    param="model",
    code="output_limit_not_supported",
)


def _refused(error: GatewayError) -> _End:
    """A limit of the key, or the key itself, ends the session."""
    return _End(REFUSED, SessionEnd(error.status, "error", Ending.STOPPED, error.name), error)


def _upstream_gone(detail: str) -> _End:
    failure = Failure("", Phase.RELAYING, Fault.CUT, detail)
    return _End(BROKEN, SessionEnd(502, "error", Ending.BROKEN, "upstream_error"), failure=failure)


PATHS = (REALTIME.path, *azure_paths(REALTIME))
"""The second one is that of openai-python's AzureOpenAI."""

SESSION = Operation(
    "A session of OpenAI's Realtime API over a WebSocket, with the model in the query: 101. Refused otherwise.",
    "key", {JSON: named("Error")}, (401, 403, 404, 429, 502, 503, 504), status=400,
)  # fmt: skip

ENDPOINTS = WingEndpoints(
    dict.fromkeys([("GET", path) for path in PATHS], SESSION),
    lambda parts: RealtimeSessions(parts.plane, parts.status, parts.capacity).routes(),
)

"""One completions call carried as several: one for each of its prompts, to upstreams that take no other.

Each prompt goes its own way through the pipeline: it is tried, tried again and tried elsewhere like any call. Its cost
and its answer come together here: choices are numbered over all prompts, streams are passed on as they come, and the
call is accounted for once, when the last prompt has ended. One prompt that fails in the end fails the call; the others
are cut off, and charged for what came of them.

A client that leaves is gone for every prompt: where answers are read on for their usage (relay/disconnect.py), the
call is accounted for when the last of them has ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from gateway.accounting.call_log import Accounting, CallLog
from gateway.accounting.share import PartLog
from gateway.api.capabilities import PROMPTS_AT_ONCE, Adaptation, adaptation
from gateway.config import Upstream
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.formats import sse
from gateway.formats.events import Unfit
from gateway.formats.openai.frame import Frame
from gateway.quota import pricing
from gateway.records import Call, Ended, Failure, Fault, Phase, Usage
from gateway.relay import Answer, Streamed
from gateway.relay.attempt import MakesAnswers
from gateway.relay.client_stream import ClientStream, Headers, StreamWriter
from gateway.tasks import Tasks, cut_off, is_cut_off

from .answer import NamedBy, One, OneAnswer, Stream, answer_of, plain_event, usage_event, write
from .bridges import Split, characters, reword

log = logging.getLogger("gateway")

_EVENTS = (("content-type", "text/event-stream"),)


CarriesOne = Callable[[Call, CallLog, ClientStream], Coroutine[Any, Any, Answer | Streamed]]
"""Carries a call with a single prompt to an upstream and back."""


class PromptByPrompt:
    """Carries one call of completions prompt by prompt, and accounts for it."""

    def __init__(
        self, call: Call, whole: CallLog, client: ClientStream, one: CarriesOne, upstreams: Mapping[str, Upstream],
        accounting: Accounting, make: MakesAnswers, max_response_bytes: int,
    ) -> None:  # fmt: skip
        self._call = call
        self._whole = whole
        self._client = client
        self._one = one
        self._upstreams = upstreams
        self._accounting = accounting
        self._make = make
        self._max_response_bytes = max_response_bytes
        self._split = Split(call)
        self._frame = Frame.of(call)
        self._numbers = iter(range(len(self._split)))
        self._left = len(self._split)
        self._shares: list[PartLog] = []
        self._before = whole.progress
        self._choices: dict[int, bytes] = {}
        """Choices of plain answers, by the numbers of their prompts."""
        self._bytes = 0
        self._headers: Headers = ()
        """Headers of the first plain answer."""
        self._first: NamedBy | None = None
        self._over: asyncio.Future[GatewayError | None] = asyncio.get_running_loop().create_future()
        self._left_as: tuple[int, Ended] | None = None
        """The status and the end of a call whose client is gone."""

    async def run(self, tasks: Tasks) -> Answer | Streamed:
        """Raises `GatewayError` for errors that the client gets as a status. Cancelled: the client is gone."""
        began = time.perf_counter()
        workers = [tasks.spawn(self._work(), "prompt") for _ in range(min(PROMPTS_AT_ONCE, self._left))]
        try:
            error = await self._over
            if error is not None:
                await self._cut_off(workers)
        except asyncio.CancelledError as cancelled:
            self._leave(workers, is_gateway_ending=is_cut_off(cancelled))
            raise
        except Exception:  # a bug of the gateway
            await self._cut_off(workers)
            self._close(500, "error", is_truncated=self._client.writer is not None, error=GatewayError.type)
            raise
        finally:
            self._whole.note_upstream_wait(time.perf_counter() - began)
        if error is not None:
            return await self._fail(error)
        return await (self._finish_stream() if self._call.params.stream else self._finish_plain())

    # ------------------------------------------------------------------------------------------------- each prompt

    async def _work(self) -> None:
        """Carry one prompt after the other, as long as nothing has failed."""
        try:
            for number in self._numbers:
                await self._carry(number)
        except GatewayError as error:
            self._end(error)
        except asyncio.CancelledError:
            self._over.cancel()  # cancelled by the worker, which is shutting down
            raise
        except Exception as bug:
            if not self._over.done():
                self._over.set_exception(bug)

    async def _carry(self, number: int) -> None:
        call = self._split.call(number)
        async with PartLog(self._whole, self._accounting, call, self._share_ended) as share:
            self._shares.append(share)
            side = ClientStream(
                partial(self._open, number, call, share), tuple, 0, hold=self._client.hold, reads_plain=True
            )
            try:
                result = await self._one(call, share, side)
                if isinstance(result, Answer):
                    asked = self._asked(number, call, share)
                    made = await self._make(call.key.id, answer_of, result.body, asked)
                    self._take(result, made, number, share)
                elif result.fault is not None:
                    raise _refusal_of(result.last or b"", share.status)
            except UpstreamRefused as refused:
                if self._is_chat(call, share):
                    raise reword(refused, self._call.params.document.members, number) from None
                raise
            except Unfit as unfit:
                raise self._unfit(unfit, share) from None
        self._left -= 1
        if not self._left:
            self._end(None)

    def _take(self, answer: Answer, made: OneAnswer, number: int, share: PartLog) -> None:
        """A plain answer; some upstreams send one where a stream was asked for."""
        self._first = self._first or made.source
        if self._call.params.stream:
            self._sum_up()
            event = plain_event(self._frame, made, shows_usage=self._call.params.include_usage)
            self._client.open(_EVENTS).write(event)
            return
        self._bytes += len(answer.body)
        if self._bytes > self._max_response_bytes:
            detail = f"more than {self._max_response_bytes} bytes"
            raise UpstreamFailed.after(self._failure(share, Fault.TOO_LARGE, detail))
        self._choices[number] = made.choices
        self._headers = self._headers or answer.headers

    def _open(self, number: int, call: Call, share: PartLog, headers: Headers) -> StreamWriter:
        self._sum_up()
        stream = Stream(
            self._asked(number, call, share),
            self._frame,
            shows_usage=self._call.params.include_usage,
            max_event_bytes=self._max_response_bytes,
        )
        return _PromptStream(self, stream, share, self._client.open(headers), self._client)

    def _asked(self, number: int, call: Call, share: PartLog) -> One:
        has_logprobs = call.params.document.members.get("logprobs") is not None
        return One(number, call.params.n, self._is_chat(call, share), has_logprobs, characters(call))

    def _is_chat(self, call: Call, share: PartLog) -> bool:
        """Whether the prompt was sent, or would have been, as a chat."""
        if share.route is None:
            return False
        return (
            adaptation(call.endpoint, call.params, self._upstreams[share.route.upstream].capabilities)
            is Adaptation.VIA_CHAT
        )

    def pass_on(self, stream: Stream, share: PartLog, data: bytes) -> bytes:
        """The bytes of a prompt's stream that the client may get now; none once the call has failed."""
        if self._over.done():
            return b""
        try:
            seen = stream.feed(data)
        except Unfit as unfit:
            self._end(self._unfit(unfit, share))
            return b""
        if self._first is None and stream.first is not None:
            self._first = stream.first
        return seen

    def _unfit(self, unfit: Unfit, share: PartLog) -> UpstreamFailed:
        failure = self._failure(share, Fault.UNFIT, str(unfit))
        log.warning(
            "upstream %s: %s (%s), call %s", failure.upstream, failure.fault.value, failure.detail, self._call.id
        )
        return UpstreamFailed.after(failure)

    def _failure(self, share: PartLog, fault: Fault, detail: str) -> Failure:
        return Failure(share.route.upstream if share.route else "", Phase.RELAYING, fault, detail)

    # ------------------------------------------------------------------------------------------------------ the end

    def _end(self, error: GatewayError | None) -> None:
        if not self._over.done():
            self._over.set_result(error)

    async def _cut_off(self, workers: list[asyncio.Task[Any]]) -> None:
        """Cancel the other prompts: each is charged for what it has generated."""
        for share in self._shares:
            share.cut_off()
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)

    def _leave(self, workers: list[asyncio.Task[Any]], *, is_gateway_ending: bool) -> None:
        """The client is gone, and the call is accounted for when nothing of it is read on any more; or the gateway
        ends, and with it every prompt."""
        self._left_as = (503, "error") if is_gateway_ending else (499, "client_gone")
        self._whole.hand_over()
        self._over.cancel()
        for worker in workers:
            if is_gateway_ending:
                cut_off(worker)
            else:
                worker.cancel()
        self._share_ended()

    def _share_ended(self) -> None:
        if self._left_as is not None and not any(share.is_open for share in self._shares):
            status, ended = self._left_as
            error = "shutting_down" if ended == "error" else None
            self._close(status, ended, is_truncated=self._call.params.stream, error=error)

    def _sum_up(self) -> None:
        self._whole.sum_up(self._before, self._shares)

    def _close(self, status: int, ended: Ended, *, is_truncated: bool = False, error: str | None = None) -> None:
        self._sum_up()
        usage = pricing.total_usage([share.usage for share in self._shares])
        model = next((share.returned_model for share in self._shares if share.returned_model), None)
        self._whole.close(
            status=status, usage=usage, ended=ended, is_truncated=is_truncated, returned_model=model, error=error
        )

    @property
    def _usage(self) -> Usage | None:
        """The usage for the client: the sum, if every prompt's usage was reported."""
        usages = [share.answer_usage for share in self._shares]
        return pricing.total_usage(usages) if all(usage.source == "reported" for usage in usages) else None

    async def _finish_plain(self) -> Answer:
        choices = [self._choices[number] for number in sorted(self._choices)]
        body = write(self._frame, self._first or NamedBy(), choices, self._usage)
        self._close(200, "done")
        await self._whole.acknowledged()
        headers = [(name, value) for name, value in self._headers if name != "content-type"]
        return Answer(200, (*headers, ("content-type", "application/json")), body)

    async def _finish_stream(self) -> Streamed:
        usage = self._usage if self._call.params.include_usage else None
        usage_bytes = b"" if usage is None else usage_event(self._frame, self._first or NamedBy(), usage)
        self._close(200, "done")
        await self._whole.acknowledged()
        self._client.open(_EVENTS)
        return Streamed(usage_bytes + sse.DONE)

    async def _fail(self, error: GatewayError) -> Streamed:
        has_begun = self._client.writer is not None
        self._close(error.status, "error", is_truncated=has_begun, error=error.name)
        if not has_begun:
            raise error
        await self._whole.acknowledged()
        return Streamed(sse.write_event(error.body()), Fault.IN_BAND)


class _PromptStream:
    """The client's side of one prompt's stream, among the others'."""

    def __init__(
        self, fan_out: PromptByPrompt, stream: Stream, share: PartLog, writer: StreamWriter, client: ClientStream
    ) -> None:
        self._fan_out = fan_out
        self._stream = stream
        self._share = share
        self._writer = writer
        self._client = client
        self._clock = asyncio.get_running_loop().time

    @property
    def is_congested(self) -> bool:
        return self._writer.is_congested

    def write(self, data: bytes) -> bool:
        seen = self._fan_out.pass_on(self._stream, self._share, data)
        if not seen:
            return self._writer.is_congested
        self._client.spoke_at = self._clock()
        return self._writer.write(seen)

    def write_last(self, data: bytes) -> None:
        self.write(data)

    async def wait_until_writable(self) -> None:
        await self._writer.wait_until_writable()


def _refusal_of(event: bytes, status: int) -> UpstreamRefused:
    data = sse.data_of(event.lstrip(b"\n"))
    error = json.loads(data)["error"] if data else {}
    return UpstreamRefused(
        status, error.get("message", ""), error.get("type", ""), error.get("param"), error.get("code")
    )

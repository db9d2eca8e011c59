"""Reads a plain answer: its usage, its model, or why it is no answer for the client."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from pydantic import BaseModel

from gateway.errors import UpstreamRefused
from gateway.records import Failure, Fault
from gateway.upstream import provider_errors

from . import charge
from .attempt import Attempt
from .exchange import Exchange


class _Body(BaseModel):
    """The members of a plain answer that are read. Others are not built, because it is validated from the bytes."""

    model: Any = None
    usage: Any = None
    error: Any = None
    success: Any = None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


class PlainAnswer(NamedTuple):
    """What a plain answer cost, and of which model; `trouble`: why it is no answer for the client."""

    charged: charge.Charge
    model: str | None = None
    trouble: Failure | UpstreamRefused | None = None


def read_plain(this: Attempt, exchange: Exchange, failure: Failure | None) -> PlainAnswer:
    """Read a plain answer that has ended, with this failure if it has one."""
    sent, head, body = this.sent, exchange.head, bytes(exchange.body)
    if failure is not None:
        shown = body if head is not None and head.status == 200 else b""
        return PlainAnswer(charge.of_broken(sent, charge.ending_of(failure), shown), None, failure)
    assert head is not None
    if head.status != 200:
        judged = provider_errors.judge(this.route.upstream, head, body, now=time.time(), hide=this.hidden)
        return PlainAnswer(charge.of_broken(sent, _ending_of(judged)), None, judged)
    try:
        answer = _Body.model_validate_json(body)
        if b"NaN" in body or b"Infinity" in body:
            # Pydantic accepts these as numbers; JSON does not have them, and most clients fail on them.
            json.loads(body, parse_constant=_refuse_constant)
    except ValueError:  # ValidationError is one
        failure = exchange.failure(Fault.NOT_JSON, f"content-type {head.get('content-type')}"[:200])
        return PlainAnswer(charge.of_broken(sent, charge.ending_of(failure), body), None, failure)
    model = answer.model if isinstance(answer.model, str) else None
    if (answer.error or answer.success is False) and (error := provider_errors.error_of(body)) is not None:
        in_band = provider_errors.judge_in_band(this.route.upstream, error, head, hide=this.hidden)
        if answer.usage is not None or b'"choices"' in body:
            charged = charge.of_plain(sent, answer.usage, body, model, charge.Ending.ERROR)
        else:
            charged = charge.of_broken(sent, _ending_of(in_band))
        return PlainAnswer(charged, model, in_band)
    return PlainAnswer(charge.of_plain(sent, answer.usage, body, model), model)


def _ending_of(judged: Failure | UpstreamRefused) -> charge.Ending:
    return charge.Ending.REFUSED if isinstance(judged, UpstreamRefused) else charge.ending_of(judged)

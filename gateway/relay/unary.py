"""What a plain answer says."""

from __future__ import annotations

import json
import time
from typing import Any

from pydantic import BaseModel

from gateway.errors import UpstreamRefused
from gateway.records import Failure, Fault
from gateway.upstream import provider_errors

from . import charge
from .attempt import Attempt
from .exchange import Exchange


class _Body(BaseModel):
    """What matters of a plain answer. Validated from the bytes: what is not named here is never built."""

    model: Any = None
    usage: Any = None
    error: Any = None
    success: Any = None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def read_plain(
    this: Attempt, exchange: Exchange, failure: Failure | None
) -> tuple[charge.Charge, str | None] | Failure:
    """What a plain answer used, and of which model. Raises `UpstreamRefused`."""
    if failure is not None:
        return failure
    head, body = exchange.head, bytes(exchange.body)
    assert head is not None
    if head.status != 200:
        judged = provider_errors.judge(this.route.upstream, head, body, now=time.time(), hide=this.hidden)
        if isinstance(judged, UpstreamRefused):
            raise judged
        return judged
    try:
        answer = _Body.model_validate_json(body)
        if b"NaN" in body or b"Infinity" in body:
            # Pydantic takes these for numbers; JSON has no such thing, and most clients stumble over them.
            json.loads(body, parse_constant=_refuse_constant)
    except ValueError:  # ValidationError is one
        return exchange.failure(Fault.NOT_JSON, f"content-type {head.get('content-type')}"[:200])
    if (answer.error or answer.success is False) and (error := provider_errors.error_of(body)) is not None:
        in_band = provider_errors.judge_in_band(this.route.upstream, error, head, hide=this.hidden)
        if isinstance(in_band, UpstreamRefused):
            raise in_band
        return in_band
    model = answer.model if isinstance(answer.model, str) else None
    return charge.of_plain(this.sent, answer.usage, body, model), model

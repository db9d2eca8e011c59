"""Reads a plain answer: its usage, its model, or why it is no answer for the client."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from gateway.errors import UpstreamRefused
from gateway.formats.format import PlainFacts
from gateway.records import Failure, Fault
from gateway.upstream import error_shapes, provider_errors

from . import charge
from .attempt import Attempt
from .exchange import Exchange

_HTML = re.compile(rb"\s*<(?:!doctype|html)\b", re.IGNORECASE)
"""A page of something in front of the upstream."""


class PlainAnswer(NamedTuple):
    """The charge of a plain answer, and its model; `problem`: why it is no answer for the client."""

    charged: charge.Charge
    model: str | None = None
    problem: Failure | UpstreamRefused | None = None
    kept_id: str | None = None
    pending_id: str | None = None
    """`kept_id` of an answer that is still being made, without this connection."""
    items: tuple[str, ...] = ()
    """The ids of what it consists of."""


def read_plain(exchange: Exchange, body: bytes, failure: Failure | None) -> PlainAnswer:
    """Read a plain answer that has ended with this body, and with this failure if it has one."""
    this = exchange.attempt
    sent, head = this.sent, exchange.head
    if failure is not None:
        shown = body if head is not None and head.status == 200 else b""
        return PlainAnswer(charge.of_broken(sent, charge.ending_of(failure), shown), None, failure)
    assert head is not None
    if head.status not in this.format.good_statuses:
        judged = provider_errors.judge(this.route.upstream, head, body, now=time.time(), hide=this.hidden)
        return PlainAnswer(charge.of_broken(sent, _ending_of(judged)), None, judged)
    try:
        if exchange.facts_reader is not None:
            answer = exchange.facts_reader.facts()
        else:
            answer = this.format.facts(body) if this.format.is_text is None else _facts_of_text(this, body)
    except ValueError:  # ValidationError is one
        failure = exchange.failure(Fault.NOT_JSON, f"content-type {head.get('content-type')}"[:200])
        return PlainAnswer(charge.of_broken(sent, charge.ending_of(failure), body), None, failure)
    model = answer.model
    if this.format.tier_header:
        answer = answer._replace(usage=exchange.as_served(answer.usage))
    if answer.is_error and (error := answer.error or error_shapes.error_of(body)) is not None:
        in_band = provider_errors.judge_in_band(this.route.upstream, error, head, hide=this.hidden)
        if answer.has_usage or answer.has_output:
            charged = charge.of_plain(sent, answer.usage, body, model, charge.Ending.ERROR)
        else:
            charged = charge.of_broken(sent, _ending_of(in_band))
        return PlainAnswer(charged, model, in_band)
    pending_id = answer.kept_id if answer.is_pending and this.call.params.is_deferred else None
    charged = charge.of_plain(sent, answer.usage, body, model)
    return PlainAnswer(charged, model, None, answer.kept_id, pending_id, answer.items)


def _facts_of_text(this: Attempt, body: bytes) -> PlainFacts:
    """Of an answer that may be text. Raises `ValueError` if it is not what was asked for."""
    is_text = this.format.is_text
    if is_text is None or not is_text(this.call.params) or body.lstrip()[:1] == b"{":
        return this.format.facts(body)
    if _HTML.match(body) is not None:
        raise ValueError("a page in HTML")
    return PlainFacts(has_output=True)


def _ending_of(judged: Failure | UpstreamRefused) -> charge.Ending:
    return charge.Ending.REFUSED if isinstance(judged, UpstreamRefused) else charge.ending_of(judged)

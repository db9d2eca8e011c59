"""What an upstream's answer means when it is not the answer that was asked for.

One judgement for every error: a `Failure` when it is the upstream's fault or the gateway's own account's, which the
client cannot mend, or an `UpstreamRefused` when the client's request has to change. Whose fault it is says a table
(upstream/error_table.py), and what a client may see of it upstream/refusal.py. An error inside a 200 is judged by
its own words,
as if it had come with the status it should have had. The log keeps what the client does not see: the codes as they
came, and the upstream's identifier of the request, by which its support finds it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from gateway.errors import UpstreamRefused
from gateway.records import Failure, Fault, Phase

from .connection import Head
from .error_table import RELAYED, fault_of
from .refusal import cleaned, shown, unwrapped

_ID_HEADERS = ("x-oneapi-request-id", "x-request-id")
_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)
_NOT_PRINTABLE = re.compile(r"[^ -~]+")
_LONGEST_WORD = 80


def retry_after_s(head: Head, now: float) -> float | None:
    """When the upstream says to come back, in seconds from the Unix time `now`; both its headers are understood."""
    try:
        if (ms := head.get("retry-after-ms")) is not None:
            seconds = float(ms) / 1000
        elif (after := head.get("retry-after")) is None:
            return None
        elif after.strip().replace(".", "", 1).isdigit():
            seconds = float(after)
        else:
            seconds = parsedate_to_datetime(after).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def error_of(body: bytes) -> dict[str, Any] | None:
    """The error object of an answer, None where there is none.

    The management side of one-api says `{"success": false, "message": ...}`; some who build on it say so everywhere.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    error = answer.get("error")
    if not error and answer.get("success") is False:
        return {"message": answer.get("message"), "code": answer.get("code")}
    if isinstance(error, str) and error:
        return {"message": error}
    return error if isinstance(error, dict) and error else None


def judge(
    upstream: str, head: Head, body: bytes, *, now: float, hide: Iterable[tuple[str, str]]
) -> Failure | UpstreamRefused:
    """What an answer with an error status means. `hide` are texts a client must not see, each with its stand-in."""
    if 300 <= head.status < 400:
        return Failure(upstream, Phase.REFUSED, Fault.REDIRECT, f"status {head.status}", head.status)
    error, hide = error_of(body), list(hide)
    detail = _detail(f"status {head.status}", error, head, hide)
    if (fault := fault_of(head.status, error)) is not None:
        return Failure(upstream, Phase.REFUSED, fault, detail, head.status, retry_after_s(head, now))
    return shown(head.status if head.status in RELAYED else 400, error or {}, hide, detail=detail)


def judge_in_band(
    upstream: str, error: dict[str, Any], head: Head | None = None, *, hide: Iterable[tuple[str, str]]
) -> Failure | UpstreamRefused:
    """What an error inside a 200 means, as if it had come with the status it should have had."""
    hide = list(hide)
    status = _status_of(error)
    detail = _detail("in a 200", error, head, hide)
    if (fault := fault_of(status, error)) is not None:
        return Failure(upstream, Phase.REFUSED, fault, detail, status)
    return shown(status if status in RELAYED else 400, error, hide, detail=detail)


def _status_of(error: dict[str, Any]) -> int | None:
    """The status that an error inside a 200 names as its code (OpenRouter 502, LiteLLM "429")."""
    code = str(error.get("code"))
    return int(code) if re.fullmatch(r"[45][0-9][0-9]", code) else None


def _detail(where: str, error: dict[str, Any] | None, head: Head | None, hide: Sequence[tuple[str, str]]) -> str:
    """What the log says of an error: on one line, and nothing that anybody has written to the model."""
    parts = [where]
    if error is not None:
        word = cleaned(str(error.get("code") or error.get("type")), hide)
        parts.append(f"code {_NOT_PRINTABLE.sub('?', word)[:_LONGEST_WORD]}")
    ids = [unwrapped(error.get("message"))[1] if error else None]
    ids += [head.get(name) for name in _ID_HEADERS] if head else []
    if (found := next((each for each in ids if each and _ID.fullmatch(each)), None)) is not None:
        parts.append(f"request id {found}")
    return ", ".join(parts)

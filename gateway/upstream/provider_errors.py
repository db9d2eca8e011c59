"""Errors of upstreams: the fault of an answer that is not the expected one, decided by a table.

1. The result is a `Failure` where the upstream or our account there is at fault, and an `UpstreamRefused` where the
   client has to change its request.
2. The first row of `TABLE` that fits decides. Statuses alone do not suffice: resellers send a spent balance as 403, an
   error of the client as 500, a model without a channel as 503 or 500, and each of these inside a 200 as well. So a row
   matches the status, the words for programs (`code` and `type`), or the beginning of the message. Only its beginning:
   the rest may quote the client, and a client must not be able to fake a spent balance.
3. An error inside a 200 is judged like one with the status that it names. error_shapes.py finds the error in an answer,
   and its reason.
4. The log has what the client does not see: the original codes, and the upstream's request id for its support.

Sources: one-api (middleware/auth.go, middleware/distributor.go, monitor/manage.go) and new-api (types/error.go,
middleware/distributor.go). Their messages are Chinese unless the owner chose another language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple

from gateway.errors import UpstreamRefused
from gateway.formats.reason_cleaner import MAX_TEXT
from gateway.records import Failure, Fault, Phase
from gateway.wings import parts

from .connection import Head
from .error_shapes import error_of, normal
from .learned_limits import has_room
from .refusal import cleaned, shown, unwrapped

_ID_HEADERS = ("x-oneapi-request-id", "x-request-id", "request-id")
_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)
_NOT_PRINTABLE = re.compile(r"[^ -~]+")
_MAX_CODE_CHARS = 80
_QUOTED = re.compile(r"""(["'`])(?:(?!\1).){40,}(?:\1|$)""")
_MAX_LINE_CHARS = 200


NO_ERROR_OBJECT = "no error object"
"""The message of an answer without an error object."""

RELAYED = frozenset({400, 404, 413, 422})
"""Statuses that blame the request."""


_STATUS_OF_TYPE: Mapping[str, int] = {
    "billing_error": 402, "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429,
    "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip
"""Anthropic's types, which its streams give without a status ("Errors")."""


class Row(NamedTuple):
    """A pattern of errors. An error fits if its status and, where given, one of the words or the message match."""

    fault: Fault | None
    """None: the client has to change its request."""
    statuses: frozenset[int | None] = frozenset()
    """None: an error inside a 200 that names no status. Empty: any status."""
    words: frozenset[str] = frozenset()
    message: re.Pattern[str] | None = None
    is_of_credential: bool = False
    """The error certainly concerns the gateway's own key. Any other 401 or spent balance may be that of a channel of
    the reseller, which hands on the words of its own upstream."""

    def fits(self, status: int | None, words: set[str], text: str) -> bool:
        """Whether an error matches this row."""
        if self.statuses and status not in self.statuses:
            return False
        if not self.words and self.message is None:
            return True
        return bool(words & self.words) or (self.message is not None and self.message.search(text) is not None)


def starts(*beginnings: str) -> re.Pattern[str]:
    """Messages with one of these beginnings; new-api puts the masked key before some."""
    return re.compile(rf"\A(?:\[sk-[^\]]*\] ?)?(?:{'|'.join(beginnings)})", re.IGNORECASE)


TABLE: tuple[Row, ...] = (
    # The request is at fault, and its status is passed on, which clients know: it is longer than the rate per minute
    # (Aider-AI/aider#1880), has a context that the account does not pay for (Wei-Shaw/sub2api#572), was flagged
    # (openrouter.ai/docs, "Errors"), or names a file that the account may not read (js-genai#666).
    Row(None, frozenset({429}), message=starts("request too large for ", "extra usage is required for long context")),
    Row(None, frozenset({403}), message=starts(
        r"\S{1,200} requires moderation ", "permission denied while accessing input file",
    )),
    # Our balance is spent. (Each token of one-api and new-api has a balance of its own.)
    Row(Fault.BALANCE, words=frozenset({"insufficient_user_quota", "pre_consume_token_quota_failed"}), message=starts(
        "(?:user|token) quota is not enough",
        "该令牌额度已用尽", "令牌额度不足", "用户额度不足", "预扣费额度失败",
        r"令牌 .{1,200}\uff08#[0-9]{1,20}\uff09额度已用尽",  # 令牌 NAME(#ID)额度已用尽, in full-width parentheses
    ), is_of_credential=True),
    Row(Fault.BALANCE, frozenset({402})),
    Row(Fault.BALANCE, words=frozenset({
        "insufficient_quota", "billing_hard_limit_reached", "credit_balance_exhausted", "project_spend_limit_exceeded",
        "billing_not_active", "billing_error",
    })),
    Row(Fault.BALANCE, message=starts(
        "your credit balance is too low",  # Anthropic's 400
        "insufficient balance", "余额不足",
    )),
    # It has no channel for this model at present. Its other models may work.
    Row(Fault.NO_CHANNEL, frozenset({503}), frozenset({"model_not_found"}),
        re.compile(r"\bno (?:available )?channels?\b|无可用渠道", re.IGNORECASE)),
    Row(Fault.NO_CHANNEL, words=frozenset({
        "get_channel_failed", "model_price_error", "channel:no_available_key", "channel:invalid_key",
        "channel:param_override_invalid", "channel:header_override_invalid", "channel:model_mapped_error",
        "channel:aws_client_error", "channel:response_time_exceeded",
    })),
    Row(Fault.NO_CHANNEL, message=starts(
        "no (?:available )?channels? for ", "unsupported model: ", r"(?:当前)?分组 .{1,200}无可用渠道",
        "获取分组 ", "无效的渠道", "该渠道已被禁用",
    )),
    # It does not accept our key, or not for this model. (new-api answers "Invalid token" for a spent token, too.)
    Row(Fault.AUTH, message=starts(
        "无效的令牌", "该令牌已过期", "该令牌状态不可用", "令牌验证失败", "用户已被封禁", "未提供令牌",
        r"invalid token\Z",
        r"api key (?:not valid|expired)\. ",  # Google's 400
    ), is_of_credential=True),
    Row(Fault.AUTH, frozenset({401, 403})),
    Row(Fault.AUTH, words=frozenset({
        "invalid_api_key", "account_deactivated", "authentication_error", "permission_error",
        "no_db_connection",  # LiteLLM without a database: 400 for any key but its master key
    })),
    Row(Fault.AUTH, message=starts(
        "(?:this )?organization has been (?:disabled|restricted)", "your access was terminated",
        "普通用户不支持指定渠道", "user location is not supported",
    )),
    Row(Fault.RATE_LIMITED, frozenset({429})),
    Row(Fault.RATE_LIMITED, words=frozenset({"rate_limit_exceeded", "rate_limit_error", "slow_down"})),
    # It does not have this URL: a page, a text, or OpenAI's words for it.
    Row(Fault.WRONG_URL, frozenset({404}), message=starts(
        rf"{NO_ERROR_OBJECT}\Z", r"invalid url \((?:GET|POST) ", r"(?:resource |404 page )?not found\.?\Z",
        r"could not route to /", r"no route matched with those values\Z",  # Cloudflare, Kong
    )),
    # The request is at fault. new-api sends a 500 for it (new-api#6773).
    Row(None, RELAYED),
    Row(None, frozenset({500, None}), frozenset({
        "invalid_request", "invalid_request_error", "sensitive_words_detected", "prompt_blocked", "bad_request_body",
        "content_filter",
    })),
    # The upstream is at fault, or its error has no known cause.
    Row(Fault.IN_BAND, frozenset({None})),
    Row(Fault.STATUS),
)  # fmt: skip


class WingAnswers(NamedTuple):
    """The answers of upstreams that a wing knows: rows before those of `TABLE`, headers with an upstream's request id,
    and further headers that clients see, in lower case."""

    rows: tuple[Row, ...] = ()
    id_headers: tuple[str, ...] = ()
    shown: frozenset[str] = frozenset()


@cache
def of_wings() -> tuple[WingAnswers, ...]:
    return tuple(parts(WingAnswers, "upstream_answers"))


def row_of(status: int | None, error: dict[str, Any] | None) -> Row:
    """The row of `TABLE` that decides. `status` is that of the answer, or the one that an error inside a 200 names."""
    if error is None:
        error = {"message": NO_ERROR_OBJECT}
    words = {str(error.get("code")), str(error.get("type"))}
    message = unwrapped(error.get("message"))[0]
    rows = (*[row for each in of_wings() for row in each.rows], *TABLE)
    return next(row for row in rows if row.fits(status, words, message))


# ------------------------------------------------------------------------------------------------------- one answer


def retry_after_s(head: Head, now: float) -> float | None:
    """Seconds from the Unix time `now` until a retry: `retry-after-ms`, else `retry-after` (RFC 9110, 10.2.3)."""
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


_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


def _retry_delay_s(error: Mapping[str, Any] | None) -> float | None:
    """Seconds until a retry that Google's errors name (error_details.proto, RetryInfo)."""
    details = error.get("details") if error is not None else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and (found := _DELAY.fullmatch(str(detail.get("retryDelay")))):
            return float(found[1])
    return None


def judge(
    upstream: str, head: Head, body: bytes, *, now: float, hide: Iterable[tuple[str, str]]
) -> Failure | UpstreamRefused:
    """Judge an answer with an error status. `hide` holds texts to keep from the client, with replacements."""
    if 300 <= head.status < 400:
        return Failure(upstream, Phase.REFUSED, Fault.REDIRECT, f"status {head.status}", head.status)
    is_page = "html" in (head.get("content-type") or "").lower()
    error, hide = None if is_page else error_of(body), list(hide)
    detail = _detail(f"status {head.status}", error, head, hide)
    row = row_of(head.status, error)
    if row.fault is Fault.WRONG_URL:
        detail += ", the upstream has no such URL: check the setting base_url"
    if row.fault is not None:
        return Failure(
            upstream, Phase.REFUSED, row.fault, detail, head.status,
            _retry_delay_s(error) if (wait_s := retry_after_s(head, now)) is None else wait_s,
            is_of_credential=row.is_of_credential, message=_first_line(row, error, hide),
            has_room=has_room(head.get),
        )  # fmt: skip
    is_known = head.status in RELAYED or row.message is not None
    return shown(head.status if is_known else 400, error or {}, hide, detail=detail)


def judge_in_band(
    upstream: str, error: dict[str, Any], head: Head | None = None, *, hide: Iterable[tuple[str, str]]
) -> Failure | UpstreamRefused:
    """Judge an error inside a 200, as if the answer had the status that the error names."""
    error, hide = normal({"error": error}) or {}, list(hide)
    status = _status_of(error)
    detail = _detail("in a 200", error, head, hide)
    row = row_of(status, error)
    if row.fault is not None:
        return Failure(
            upstream, Phase.REFUSED, row.fault, detail, status, is_of_credential=row.is_of_credential,
            message=_first_line(row, error, hide),
        )  # fmt: skip
    return shown(status if status in RELAYED else 400, error, hide, detail=detail)


def _status_of(error: dict[str, Any]) -> int | None:
    """The status of an error inside a 200: its code (OpenRouter 502, LiteLLM "429"), or the status of its type."""
    code = str(error.get("code"))
    return int(code) if re.fullmatch(r"[45][0-9][0-9]", code) else _STATUS_OF_TYPE.get(str(error.get("type")))


def _first_line(row: Row, error: dict[str, Any] | None, hide: Sequence[tuple[str, str]]) -> str:
    """The first line of the message, without long quotations, which may be a prompt; empty for a refused API key, which
    vendors repeat in part."""
    text = "" if error is None or row.fault is Fault.AUTH else unwrapped(error.get("message"))[0].strip()
    return _QUOTED.sub('"..."', cleaned(text.partition("\n")[0][:MAX_TEXT], hide))[:_MAX_LINE_CHARS]


def _detail(where: str, error: dict[str, Any] | None, head: Head | None, hide: Sequence[tuple[str, str]]) -> str:
    """The text for the log: one line, without any text of a prompt."""
    parts = [where]
    if error is not None:
        word = cleaned(str(error.get("code") or error.get("type")), hide)
        parts.append(f"code {_NOT_PRINTABLE.sub('?', word)[:_MAX_CODE_CHARS]}")
    ids = [unwrapped(error.get("message"))[1] if error else None]
    names = (*_ID_HEADERS, *[name for each in of_wings() for name in each.id_headers])
    ids += [head.get(name) for name in names] if head else []
    if (found := next((each for each in ids if each and _ID.fullmatch(each)), None)) is not None:
        parts.append(f"request id {found}")
    return ", ".join(parts)

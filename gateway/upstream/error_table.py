"""Whose fault an upstream's error is, as a table: the first row that fits an error decides.

Statuses alone do not tell. Resellers send a spent balance as 403, a client's mistake as 500, a model that nobody serves
as 503 or 500, and all of it inside a 200, too. So a row looks at the status, at the words that are meant for programs
(`code` and `type`), or at how the message begins. Only how it begins: further on it may repeat what a client has
written, and no client may make us believe that our balance is spent.

Read in one-api (middleware/auth.go, middleware/distributor.go, monitor/manage.go) and new-api (types/error.go,
middleware/distributor.go); their messages are Chinese unless their owner has chosen another language.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gateway.records import Fault

from .refusal import unwrapped

RELAYED = frozenset({400, 404, 413, 422})
"""Statuses that say the client's request has to change."""


class Row(NamedTuple):
    """What an error may look like. It fits with one of the statuses, and one of the words or the text where given."""

    fault: Fault | None
    """None: the client has to change its request."""
    statuses: frozenset[int | None] = frozenset()
    """None: it came inside a 200 and names none. Empty: whatever the status."""
    words: frozenset[str] = frozenset()
    says: re.Pattern[str] | None = None

    def fits(self, status: int | None, words: set[str], message: str) -> bool:
        """Whether an error looks so."""
        if self.statuses and status not in self.statuses:
            return False
        if not self.words and self.says is None:
            return True
        return bool(words & self.words) or (self.says is not None and self.says.search(message) is not None)


def _starts(*beginnings: str) -> re.Pattern[str]:
    """Messages that begin so; new-api puts the masked key before some."""
    return re.compile(rf"\A(?:\[sk-[^\]]*\] ?)?(?:{'|'.join(beginnings)})", re.IGNORECASE)


TABLE: tuple[Row, ...] = (
    # Our balance there is spent. (The tokens of one-api and new-api have a balance of their own.)
    Row(Fault.BALANCE, frozenset({402})),
    Row(Fault.BALANCE, words=frozenset({
        "insufficient_quota", "insufficient_user_quota", "pre_consume_token_quota_failed",
        "billing_hard_limit_reached", "credit_balance_exhausted", "project_spend_limit_exceeded", "billing_not_active",
    })),
    Row(Fault.BALANCE, says=_starts(
        "your credit balance is too low",  # Anthropic's 400
        "(?:user|token) quota is not enough", "insufficient balance",
        "该令牌额度已用尽", "令牌额度不足", "用户额度不足", "预扣费额度失败", "余额不足",
    )),
    # It has nobody who serves this model at present. Its other models may be well.
    Row(Fault.NO_CHANNEL, frozenset({503}), frozenset({"model_not_found"}),
        re.compile(r"\bno (?:available )?channels?\b|无可用渠道", re.IGNORECASE)),
    Row(Fault.NO_CHANNEL, words=frozenset({
        "get_channel_failed", "model_price_error", "channel:no_available_key", "channel:invalid_key",
        "channel:param_override_invalid", "channel:header_override_invalid", "channel:model_mapped_error",
        "channel:aws_client_error", "channel:response_time_exceeded",
    })),
    Row(Fault.NO_CHANNEL, says=_starts(
        "no (?:available )?channels? for ", r"(?:当前)?分组 .{1,200}无可用渠道",
        "获取分组 ", "无效的渠道", "该渠道已被禁用",
    )),
    # It does not accept our key, or not for this.
    Row(Fault.AUTH, frozenset({401, 403})),
    Row(Fault.AUTH, words=frozenset({
        "invalid_api_key", "account_deactivated", "authentication_error", "permission_error",
        "no_db_connection",  # LiteLLM's 400 for a key that is not its master key, where it keeps no others
    })),
    Row(Fault.AUTH, says=_starts(
        "(?:this )?organization has been (?:disabled|restricted)", "your access was terminated",
        "无效的令牌", "该令牌已过期", "该令牌状态不可用", "用户已被封禁", "普通用户不支持指定渠道", "未提供令牌",
    )),
    Row(Fault.RATE_LIMITED, frozenset({429})),
    Row(Fault.RATE_LIMITED, words=frozenset({"rate_limit_exceeded", "rate_limit_error", "slow_down"})),
    # The request is at fault. new-api says so with a 500 (new-api#6773).
    Row(None, RELAYED),
    Row(None, frozenset({500, None}), frozenset({
        "invalid_request", "invalid_request_error", "sensitive_words_detected", "prompt_blocked", "bad_request_body",
    })),
    # It is itself at fault, or does not say who is.
    Row(Fault.IN_BAND, frozenset({None})),
    Row(Fault.STATUS),
)  # fmt: skip


def fault_of(status: int | None, error: dict[str, Any] | None) -> Fault | None:
    """Whose fault an error is: None where the client has to change its request.

    `status` is that of the answer, or the one that an error inside a 200 names.
    """
    error = error or {}
    words = {str(error.get("code")), str(error.get("type"))}
    message = unwrapped(error.get("message"))[0]
    return next(row.fault for row in TABLE if row.fits(status, words, message))

"""How resellers answer, and what has to come of it: a row for every answer in tests/recorded/resellers.

The answers are written after the sources of one-api and new-api and after what people show in their issues, with names
and numbers changed. Each file is one HTTP answer with LF for its line ends and without its framing, which is added when
it is played.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.records import Fault
from tests.fakes.scripted import chunk

RECORDED = Path(__file__).parents[1] / "recorded" / "resellers"
REQUEST_ID = "2024062813295764322ZpQfVrGy"
"""The reseller's own, in its messages and headers."""
POISON = (
    REQUEST_ID, "default", "vip", "#17", "渠道", "分组", "额度", "余额", "\uff04", "$0", "org-Q9", "proj_8R",
    "sk-", "10.1.2.3", "behind.example", "Plans & Billing", "new_api", "one_api", "bad_response_status_code",
    "127.0.0.1", "nginx",
)  # fmt: skip
"""What no client may see of it: whose account, which channels and groups, how much money, who stands behind."""


@dataclass(frozen=True)
class Recorded:
    """One answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    body: bytes

    @property
    def is_stream(self) -> bool:
        return dict(self.headers).get("content-type") == "text/event-stream"

    @property
    def error(self) -> dict[str, Any]:
        """Of an answer or a stream: its last error object."""
        texts = [line.removeprefix("data: ") for line in self.body.decode().splitlines()] if self.is_stream else None
        found: dict[str, Any] = next(
            json.loads(text)["error"] for text in reversed(texts or [self.body.decode()]) if '"error"' in text
        )
        return found

    @property
    def wire(self) -> bytes:
        """As it comes over a connection: a stream in a chunk for each event, all else with its length."""
        lines = [f"HTTP/1.1 {self.status} Said", *(f"{name}: {value}" for name, value in self.headers)]
        lines.append("transfer-encoding: chunked" if self.is_stream else f"content-length: {len(self.body)}")
        head = "\r\n".join([*lines, "", ""]).encode()
        if not self.is_stream:
            return head + self.body
        events = [event + b"\n\n" for event in self.body.split(b"\n\n") if event]
        return head + b"".join(map(chunk, events)) + b"0\r\n\r\n"


def recorded(name: str, folder: Path = RECORDED) -> Recorded:
    head, _, body = (folder / f"{name}.http").read_bytes().partition(b"\n\n")
    first, *lines = head.decode().split("\n")
    pairs = [line.split(": ", 1) for line in lines]
    return Recorded(int(first.split()[1]), tuple((name.lower(), value) for name, value in pairs), body)


@dataclass(frozen=True)
class Row:
    """One answer that is an error, and what it means."""

    name: str
    fault: Fault | None
    """None: the client has to change its request."""
    status: int
    """What the client sees, of a stream what it would have seen; then `code`, and of a refusal type, param and text."""
    code: str | None
    param: str | None = None
    message: str = ""
    type: str = "invalid_request_error"
    log: str = ""
    """What the log keeps of it."""


def _spent(name: str, log: str) -> Row:
    return Row(name, Fault.BALANCE, 502, "upstream_quota_exceeded", log=log)


def _refused_key(name: str, log: str) -> Row:
    return Row(name, Fault.AUTH, 502, "upstream_auth_failed", log=log)


def _wrong_url(name: str) -> Row:
    return Row(
        name, Fault.WRONG_URL, 502, "upstream_error", log="the upstream has no such URL: check the setting base_url"
    )


def _nobody(name: str, log: str) -> Row:
    return Row(name, Fault.NO_CHANNEL, 503, "upstream_error", log=log)


def _failed(name: str, log: str, fault: Fault = Fault.STATUS) -> Row:
    return Row(name, fault, 502, "upstream_error", log=log)


def _limited(name: str, log: str) -> Row:
    return Row(name, Fault.RATE_LIMITED, 429, "upstream_rate_limited", log=log)


def _refused(
    name: str, message: str, code: str | None, param: str | None = None, status: int = 400, log: str = REQUEST_ID
) -> Row:
    return Row(name, None, status, code, param, message, log=log)


TOO_LONG = (
    "This model's maximum context length is 4097 tokens. However, your messages resulted in 4799 tokens. "
    "Please reduce the length of the messages."
)
UNMARSHALLED = "json: cannot unmarshal number into Go struct field GeneralOpenAIRequest.logprobs of type bool"
TOO_LARGE = "max_tokens is too large: 99999. This model supports at most 4096 completion tokens."
WITH_ID = f", request id {REQUEST_ID}"

ROWS = (
    # Error types, the identifier behind the message, "" for null, names that are not there.
    _refused("behind-it-refused", "bad response status code 400", None, log="code bad_response_status_code" + WITH_ID),
    _refused("too-long-for-the-model", TOO_LONG, "context_length_exceeded", "messages"),
    _refused("null-became-empty", "you must provide a model parameter", None, log="status 400"),
    _refused("without-param-and-code", "field prompt is required", None, log="code one_api_error" + WITH_ID),
    _refused("code-as-type", "unexpected end of JSON input", "bad_request_body"),
    _refused("chinese-refusal", "请求参数有误: n 不支持", "invalid_value", "n"),
    _refused("integer-logprobs", UNMARSHALLED, None),
    _refused("whose-account", "Organization *** and project *** have no access; key *** of *** at the upstream",
             "unsupported_value"),
    # A client's mistake as a 500, or inside a 200.
    _refused("clients-mistake-as-500", "field messages is required", "invalid_request", log="status 500, code invalid"),
    _refused("sensitive-words-as-500", "用户输入包含敏感词", "sensitive_words_detected"),
    _refused("clients-mistake-in-a-200", TOO_LARGE, "invalid_value", "max_tokens", log="in a 200, code invalid_value"),
    # Our balance there, whatever the status.
    _spent("balance-of-the-account", "status 403, code insufficient_user_quota" + WITH_ID),
    _spent("balance-of-the-token", "status 403, code pre_consume_token_quota_failed" + WITH_ID),
    _spent("balance-of-one-api-token", "status 401, code one_api_error" + WITH_ID),
    _spent("balance-of-one-api-token-later", "status 401, code one_api_error" + WITH_ID),
    _spent("balance-of-a-channel", "status 429, code insufficient_quota" + WITH_ID),
    _spent("balance-behind-it", "status 400, code invalid_request_error" + WITH_ID),
    _spent("balance-in-a-200", "in a 200, code new_api_error" + WITH_ID),
    _spent("stream-balance-later", "in a 200, code new_api_error" + WITH_ID),
    # Our key. An auto-disabled channel says at first what it was disabled for.
    _refused_key("token-not-valid", "status 401, code new_api_error" + WITH_ID),
    _refused_key("token-not-valid-in-a-200", "in a 200, code one_api_error"),
    _refused_key("group-not-ours", "status 403"),
    _refused_key("channel-disabled-by-words", "status 400"),
    # The setting base_url is wrong.
    _wrong_url("wrong-url"),
    _wrong_url("wrong-url-as-text"),
    # No channel serves this model.
    _nobody("no-channel", "status 503, code one_api_error" + WITH_ID),
    _nobody("no-channel-in-english", "status 503, code model_not_found" + WITH_ID),
    _nobody("no-channel-as-500", "status 500, code get_channel_failed" + WITH_ID),
    _nobody("no-channel-in-a-200", "in a 200"),
    _nobody("no-price", "status 400, code model_price_error"),
    _nobody("stream-error-first", "in a 200"),
    # A limit of our account: 429 without Retry-After.
    _limited("limited-empty", "status 429"),
    _limited("limited-behind-it", "status 429, code bad_response_status_code" + WITH_ID),
    _limited("limited-in-a-200", "in a 200, code rate_limit_exceeded"),
    # Itself: errors, pages, nothing.
    _failed("behind-it-failed", "status 500, code do_request_failed" + WITH_ID),
    _failed("behind-it-had-502", "status 502, code bad_response_status_code" + WITH_ID),
    _failed("page-502", "status 502"),
    _failed("page-200", "content-type text/html", Fault.NOT_JSON),
    _failed("nothing-200", "content-type application/json", Fault.NOT_JSON),
    _failed("error-in-a-200", "in a 200, code do_request_failed" + WITH_ID, Fault.IN_BAND),
    _failed("envelope-in-a-200", "in a 200", Fault.IN_BAND),
    _failed("stream-overloaded", "in a 200, code server_is_overloaded" + WITH_ID, Fault.IN_BAND),
    _failed("stream-false-done", "ended without every finish_reason", Fault.CUT),
    _failed("stream-cut-at-64-KB", "ended without every finish_reason", Fault.CUT),
)  # fmt: skip
GOOD = frozenset({"good", "no-usage", "reasoning", "stream-usage-called-chat", "stream-ping", "stream-reasoning"})
"""Answers that are none, each with its own test through a whole gateway."""

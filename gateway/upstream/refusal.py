"""The refusal of an upstream as its client sees it: the author's message, without wrappers of resellers and without
anything of the gateway's account.

Sources: one-api and new-api (types/error.go) and answers of LiteLLM's proxy 1.106. They append a request id to the
message, send `""` or the text `None` for null, use types and codes of their own, or repeat the status as the code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache, partial
from typing import Any

from gateway.errors import UpstreamRefused
from gateway.formats.reader import HAS_ERROR
from gateway.formats.reason_cleaner import MAX_TEXT, ReasonCleaner

NO_REASON = "The upstream refused this request without a reason."
_OWN_CODE = "bad_response_status_code"
"""The code of a reseller for a refusal of its own upstream; its `param` is then a status."""
_FOREIGN_TYPE = re.compile(rf"\w+_api_error|(?:upstream|openai|claude|gemini)_error|{_OWN_CODE}")
_REQUEST_ID = re.compile(r"\s?\(request id: ([^()]*)\)\s*\Z", re.IGNORECASE)
_PREFIX = re.compile(r"\A(?:litellm\.\w+: (?:\w+ - )?)+")
_SUFFIX = re.compile(
    r"(?:LiteLLM: model group |Received Model Group=|\nmodel=\S+ context_window_fallbacks=).*\Z", re.DOTALL
)
PORT = re.compile(r"\b(the upstream|the proxy):[0-9]{1,5}\b", re.ASCII)
"""The rest of an address after its host was replaced."""
_BEGINS = r"(?:\b|(?<=\\[bfnrt]))"
"""Where a name can begin, also behind an escape of JSON."""
ACCOUNT = re.compile(
    rf"{_BEGINS}(?:(?:org-|proj_)[A-Za-z0-9]{{16,}}\b"  # OpenAI's ids of organizations and projects
    r"|sk-[\w-]{0,16}\*{3,}[\w*-]*|sk-[\w-]{20,}"  # keys, masked or not, of the gateway or of the reseller
    r"|AIza[\w-]{35}|(?:AKIA|ASIA)[A-Z0-9]{16}\b|(?:gsk_|xai-|hf_|r8_|pplx-|nvapi-)\w{20,})"  # of other vendors
    r"|(?<=[Bb]earer )[\w.~+/-]{16,}=*"
    r"|\barn:aws[\w-]*:[^\s'\",;]+|(?<=/accounts/)[0-9a-f]{32}"  # AWS, Cloudflare
    r"|(?<=/subscriptions/)[0-9a-fA-F-]{36}|(?<=\bprojects/)[\w:.-]+"  # Azure, Google
    rf"|{_BEGINS}(?:10|127|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{{1,3}}){{2,3}}(?::\d{{1,5}})?\b"  # hosts
    r"|(?<![\w-])[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}\.(?:svc\.cluster\.local|internal|local)(?::\d{1,5})?\b",
    re.ASCII,  # a letter of another script may stand beside a name
)
REASONS = frozenset({
    "error", "errors", "last_error", "status_details", "failure", "failure_reason", "failureReason", "fail_reason",
    "failReason", "task_status_msg", "message", "msg", "detail",
})  # fmt: skip
"""Members with the reason of a failure: of OpenAI's files, responses, batches (openai-python, `types`), and of the task
APIs in config/tasks.yaml."""
_HAS_REASON = re.compile(rb'"(?:%b)"\s*:\s*(?!null|\s|""|\[\]|\{\})' % "|".join(sorted(REASONS)).encode())
MAX_MESSAGE = 2000
"""Characters of a message that are shown: some upstreams repeat the whole request."""
AT_ONCE = 512
"""Bytes of a body that are cleaned between turns of other calls: a hundred members."""
_SEARCHED = 65_536
"""Bytes of a body that is searched at once for a reason."""
_NULLS = ("", "None", "null")

_TOO_LONG_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG = re.compile(
    r"this model's maximum (?:context|prompt) length is"  # OpenAI, vLLM, xAI
    r"|the (?:decoder )?prompt \(length \d+\) is longer than the maximum model length"  # vLLM
    r"|prompt is too long: \d+ tokens"  # Anthropic
    r"|the input token count\b.{0,40}exceeds the maximum number of tokens"  # Gemini
    r"|(?:the request|request \(\d+ tokens\)) exceeds the available context size"  # llama.cpp
    r"|prompt contains \d+ tokens\b.{0,80}maximum context length",  # Mistral
    re.IGNORECASE,
)
"""Beginnings of messages, because the rest may quote the client."""


def is_context_too_long(refused: UpstreamRefused) -> bool:
    """Whether the upstream refused a prompt that is longer than its model's context."""
    return bool({refused.code, refused.type} & _TOO_LONG_CODES) or _TOO_LONG.match(str(refused)) is not None


def unwrapped(message: Any) -> tuple[str, str | None]:
    """The message without wrappers, and the request id that the reseller appended to it."""
    text = _SUFFIX.sub("", str(message or "")).rstrip()
    found = _REQUEST_ID.search(text)
    if found is not None:
        text = text[: found.start()]
    return _PREFIX.sub("", text), found[1] if found else None


def cleaned(text: str, hide: Iterable[tuple[str, str]]) -> str:
    """The text without our secrets, hosts and account ids; `hide` holds pairs of a text and its replacement.

    The match ignores case, because host names do and upstreams repeat them in any case.
    """
    for secret, replacement in hide:
        if secret:
            text = _pattern(secret).sub(replacement.replace("\\", r"\\"), text)
    return ACCOUNT.sub("***", PORT.sub(r"\1", text))


@lru_cache(1024)  # each comment of a stream is looked through
def _pattern(secret: str) -> re.Pattern[str]:
    return re.compile(pattern_of(secret), re.IGNORECASE)


def pattern_of(secret: str) -> str:
    """It may be written as JSON that escapes slashes."""
    return re.escape(secret).replace("/", r"\\?/")


def cleaner_of(hide: Iterable[tuple[str, str]], names: Collection[str] = REASONS) -> ReasonCleaner:
    """Cleans a good answer's JSON: the members of these names, reasons of failures, as `cleaned` has it."""
    return ReasonCleaner(names, partial(cleaned, hide=tuple(hide)))


def has_reason(body: bytes, names: Collection[str]) -> bool:
    """Whether an answer has something to clean; of a long one this is not known."""
    return len(body) > _SEARCHED or (_HAS_REASON if names is REASONS else HAS_ERROR).search(body) is not None


def shown(status: int, error: dict[str, Any], hide: Iterable[tuple[str, str]], *, detail: str) -> UpstreamRefused:
    """The refusal as the client sees it. `detail` goes to the log."""
    hide = list(hide)

    def clean(name: str) -> str | None:
        value = error.get(name)
        return None if value is None or value in _NULLS else cleaned(str(value), hide)

    # Unwrapped first: a replacement may be the client's own model name, which can look like a wrapper.
    message = cleaned(unwrapped(error.get("message"))[0][:MAX_TEXT], hide)
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}..."
    code, param, error_type = clean("code"), clean("param"), clean("type")
    if code == _OWN_CODE:
        code = param = None
    if code is not None and code.isdecimal():
        code = None  # the status again
    if (
        error_type is None
        or error_type == error.get("code")
        or _FOREIGN_TYPE.fullmatch(error_type)
        or ":" in error_type
    ):  # RFC 9457's is an address
        error_type = "invalid_request_error"
    return UpstreamRefused(status, message or NO_REASON, error_type, param, code, detail=detail)

"""What a client is shown of an upstream's refusal: its own words, without what its makers and resellers put around
them, and without anything of the account that the gateway has there.

Read in the source of one-api and new-api (types/error.go), and seen from LiteLLM's proxy 1.106: an identifier behind
the message, `""` or the text `None` for what is null, types and codes of their own, the status once more as the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gateway.errors import UpstreamRefused

SAYS_NOTHING = "The upstream refused this request and did not say why."
_OWN_CODE = "bad_response_status_code"
"""A reseller's word for "the one behind me refused"; its `param` is a status then."""
_FOREIGN_TYPE = re.compile(rf"\w+_api_error|(?:upstream|openai|claude|gemini)_error|{_OWN_CODE}")
_REQUEST_ID = re.compile(r"\s?\(request id: ([^()]*)\)\s*\Z", re.IGNORECASE)
_PREFIX = re.compile(r"\A(?:litellm\.\w+: (?:\w+ - )?)+")
_SUFFIX = re.compile(
    r"(?:LiteLLM: model group |Received Model Group=|\nmodel=\S+ context_window_fallbacks=).*\Z", re.DOTALL
)
_PORT = re.compile(r"\b(the upstream|the proxy):[0-9]{1,5}\b")
"""What is left of an address when the stand-in has taken its host's place."""
_ACCOUNT = re.compile(
    r"\b(?:org-|proj_)[A-Za-z0-9]{16,}\b"  # whose account it is, as OpenAI names organizations and projects
    r"|\bsk-[\w-]{0,16}\*{3,}[\w*-]*|\bsk-[\w-]{20,}"  # keys, perhaps masked, perhaps those of whoever stands behind
)
_NULLS = ("", "None", "null")


def unwrapped(message: Any) -> tuple[str, str | None]:
    """A message as its author wrote it, and the reseller's identifier of the request that stood behind it."""
    text = _SUFFIX.sub("", str(message or "")).rstrip()
    found = _REQUEST_ID.search(text)
    if found is not None:
        text = text[: found.start()]
    return _PREFIX.sub("", text), found[1] if found else None


def cleaned(text: str, hide: Iterable[tuple[str, str]]) -> str:
    """A text without our secrets, our hosts and our account; `hide` are pairs of a text and its stand-in.

    In any spelling: host names are the same in capitals, and upstreams repeat them as they like.
    """
    for secret, stand_in in hide:
        if secret:
            said = stand_in.replace("\\", r"\\")
            text = re.sub(re.escape(secret), said, text, flags=re.IGNORECASE)
    return _ACCOUNT.sub("***", _PORT.sub(r"\1", text))


def shown(status: int, error: dict[str, Any], hide: Iterable[tuple[str, str]], *, detail: str) -> UpstreamRefused:
    """The refusal as a client sees it. `detail` is what the log keeps of it."""
    hide = list(hide)

    def clean(name: str) -> str | None:
        value = error.get(name)
        return None if value is None or value in _NULLS else cleaned(str(value), hide)

    # Before anything is replaced: a stand-in is the client's own name of a model, and may look like anything.
    message = cleaned(unwrapped(error.get("message"))[0], hide)
    code, param, error_type = clean("code"), clean("param"), clean("type")
    if code == _OWN_CODE:
        code = param = None
    if code is not None and code.isdecimal():
        code = None  # the status once more
    if error_type is None or error_type == error.get("code") or _FOREIGN_TYPE.fullmatch(error_type):
        error_type = "invalid_request_error"
    return UpstreamRefused(status, message or SAYS_NOTHING, error_type, param, code, detail=detail)

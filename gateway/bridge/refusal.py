"""Translates an upstream's refusal of a bridged call into a refusal of the client's own call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.errors import UpstreamRefused

_MESSAGE_PATH = r"messages(?:\[\d+\](?:\.content(?:\[\d+\](?:\.text)?)?)?|\.\d+(?:\.content)?)"
_IN_QUOTES = re.compile(rf"(['\"`])(?:messages|{_MESSAGE_PATH})\1")
_BARE_PATH = re.compile(rf"\b{_MESSAGE_PATH}")
_IN_WORDS = re.compile(r"\b(the|your) messages\b")


def reword(refused: UpstreamRefused, members: Mapping[str, Any], prompt: int) -> UpstreamRefused:
    """The refusal of the chat call for the prompt with this number, for the client that sent these members."""
    path = f"prompt[{prompt}]" if isinstance(members.get("prompt"), list) else "prompt"
    names = {name: own for name, own in (("max_completion_tokens", "max_tokens"), ("top_logprobs", "logprobs"))
             if name not in members}  # fmt: skip
    message = _IN_QUOTES.sub(rf"\g<1>{path}\g<1>", refused.message)
    message = _IN_WORDS.sub(r"\1 prompt", _BARE_PATH.sub(path, message))
    for name, own in names.items():
        message = re.sub(rf"\b{name}\b", own, message)
    param = refused.param
    if param is not None:
        param = path if re.fullmatch(rf"messages|{_MESSAGE_PATH}", param) else names.get(param, param)
    return UpstreamRefused(refused.status, message, refused.type, param, refused.code)


def renamed(refused: UpstreamRefused, names: Mapping[str, str]) -> UpstreamRefused:
    """The refusal of a translated call, with the client's names of parameters: in `param`, and quoted in the message.

    `names` are the upstream's parameters, each with the client's own.
    """
    message = refused.message
    for name, own in names.items():
        message = re.sub(rf"(['\"`]){re.escape(name)}\b", rf"\g<1>{own}", message)
    param = refused.param
    if param is not None:
        found = next((name for name in names if re.match(rf"{re.escape(name)}(?!\w)", param)), None)
        param = param if found is None else names[found] + param[len(found) :]
    return UpstreamRefused(refused.status, message, refused.type, param, refused.code, detail=refused.detail)

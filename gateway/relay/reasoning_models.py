"""Output that an upstream may generate and bill without showing it: reasoning, and candidates that are not returned.

It cannot be counted without a report of the upstream. So a call that may have such output and has no report is charged
its whole reservation (relay/charge.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gateway.formats import FORMATS
from gateway.records import Call

THINKING_MODELS = (
    "o1", "o1-*", "o3", "o3-*", "o4-*", "gpt-5*", "gpt-oss*", "codex-*", "computer-use-*",
    "deepseek-reasoner*", "deepseek-r1*", "qwq*", "gemini-2.5-*", "gemini-3*", "grok-3-mini*", "grok-4*", "magistral*",
    "*-thinking*", "*-reasoning*", "*-reasoner*",
)  # fmt: skip
"""Models that reason by default, by the last part of their names in lower case."""
SILENT_MODELS = ("gpt-5-chat*", "gpt-5.*-chat*", "*-non-reasoning*", "*-non-thinking*")
"""Exceptions from `THINKING_MODELS`."""


def may_be_hidden(call: Call, models: Iterable[str | None], *, has_reasoned: bool, is_whole: bool) -> bool:
    """Whether an answer may have more output than it shows.

    `models` are the names of the call's model. An answer that shows its reasoning (`has_reasoned`) may have more of it
    until it is whole.
    """
    if call.params.candidates > call.params.choices:
        return True
    if has_reasoned and FORMATS[call.endpoint].may_reason:
        return not is_whole
    return may_reason(call, models)


def may_reason(call: Call, models: Iterable[str | None]) -> bool:
    """Whether a call asks for reasoning, or its model reasons by default."""
    if not FORMATS[call.endpoint].may_reason:
        return False
    asked = _asks_to_think(call.params.document.members)
    return _thinks(models) if asked is None else asked


def _asks_to_think(members: Mapping[str, Any]) -> bool | None:
    """Whether a body asks for reasoning, by any provider's parameter for it; None: it has none of them."""
    template = members.get("chat_template_kwargs")
    more = template if isinstance(template, dict) else {}
    for asked in (
        members.get("reasoning_effort"), members.get("reasoning"), members.get("thinking"),
        members.get("enable_thinking"), more.get("enable_thinking"), more.get("thinking"),
    ):  # fmt: skip
        value = asked
        if isinstance(asked, dict):
            value = asked.get("enabled", asked.get("effort", asked.get("type", bool(asked))))
        if value is not None:
            return value not in (False, "none", "disabled")
    return None


def _thinks(models: Iterable[str | None]) -> bool:
    names = {name.lower().removeprefix("ft:").rpartition("/")[2] for name in models if name}
    return any(_is_among(name, THINKING_MODELS) and not _is_among(name, SILENT_MODELS) for name in names)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)

"""What an upstream may generate, and bill, that nobody sees: reasoning, and the candidates that lost.

Nobody can count it before the upstream reports it. So where it may be there and no report came, a call is charged for
all the output that it was allowed to have (relay/charge.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gateway.records import Call

THINKING_MODELS = (
    "o1", "o1-*", "o3", "o3-*", "o4-*", "gpt-5*", "gpt-oss*", "codex-*", "computer-use-*",
    "deepseek-reasoner*", "deepseek-r1*", "qwq*", "gemini-2.5-*", "gemini-3*", "grok-3-mini*", "grok-4*", "magistral*",
    "*-thinking*", "*-reasoning*", "*-reasoner*",
)  # fmt: skip
"""Models that think without being asked to, by the last part of their names in lower case."""
SILENT_MODELS = ("gpt-5-chat*", "gpt-5.*-chat*", "*-non-reasoning*", "*-non-thinking*")
"""Those of them that do not."""


def may_be_hidden(call: Call, models: Iterable[str | None], *, has_reasoned: bool, is_whole: bool) -> bool:
    """Whether more may have been generated than anybody has seen.

    `models` are the names that this call's model goes by. An answer that shows its reasoning (`has_reasoned`) has more
    of it until it is whole.
    """
    params = call.params
    if params.candidates > params.choices:
        return True
    if call.endpoint != "chat":
        return False
    if has_reasoned:
        return not is_whole
    asked = _asks_to_think(params.document.members)
    return _thinks(models) if asked is None else asked


def _asks_to_think(members: Mapping[str, Any]) -> bool | None:
    """Whether a body asks for reasoning, in one of the ways that upstreams know; None where it does not say."""
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

"""Tools with which an upstream acts by itself: what it does for a call that is sent twice is done twice.

Items and blocks may bring tools of any kind (openai-python, `AdditionalTools`, `ResponseToolSearchOutputItemParam`;
anthropic-sdk, `BetaRequestToolAdditionBlockParam`), for which `limits.deny: [tools]` holds as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.records import Document
from gateway.spelling import folded

_KINDS = frozenset(map(folded, ("mcp", "computer", "computer_use_preview", "code_interpreter", "shell")))
"""Types of tools with which an upstream acts by itself."""

_SERVERS, _TEMPLATE, _TOOLS, _TYPE = map(folded, ("mcp_servers", "prompt", "tools", "type"))
"""The template is one that the upstream keeps with its tools (openai-openapi, `ResponsePrompt`)."""


def acts(document: Document) -> bool:
    """Whether a body has such a tool. A large one was looked through by its reader."""
    return document.large.acts if document.large is not None else acting_in(document.members)


def acting_in(members: Mapping[str, Any]) -> bool:
    """Whether there is such a tool among these members, or among those of their items (`input[].tools`)."""
    for name, value in members.items():
        meant = folded(name)
        if (meant == _SERVERS and value) or (meant == _TEMPLATE and isinstance(value, dict)):
            return True
        if meant == _TOOLS and any(map(_is_acting, _objects(value))):
            return True
    return any(map(acting_in, _objects(members.get("input"))))


def are_inside(document: Document) -> bool:
    """Whether items or blocks of a body bring tools."""
    return document.large.has_inner_tools if document.large is not None else are_in_items(document.members)


def are_in_items(members: Mapping[str, Any]) -> bool:
    """Whether items or blocks among these members bring tools. Arguments of tools are not looked through."""
    waiting = [value for name, value in members.items() if folded(name) in _LISTS]
    while waiting:
        for each in _objects(waiting.pop()):
            for name, value in each.items():
                if (meant := folded(name)) in ("tool", _TOOLS) and value and isinstance(value, dict | list):
                    return True
                if meant in ("content", "output"):
                    waiting.append(value)
    return False


_LISTS = ("input", "messages", "contents", "system")


def _is_acting(tool: Mapping[str, Any]) -> bool:
    return any(
        folded(name) == _TYPE and isinstance(kind, str) and folded(kind) in _KINDS for name, kind in tool.items()
    )


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each

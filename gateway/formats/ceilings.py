"""Upper bounds of the usage that upstreams report, as far as they follow from a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.records import Document

PROMPT_ALLOWANCE = 32_768
"""Tokens that an upstream may add to a prompt."""

OUTPUT_ALLOWANCE = 4_096
"""Tokens of output that no limit holds."""

_PART_TOKENS: Mapping[str, int] = {
    "text": 0, "refusal": 0, "image_url": 65_536, "input_audio": 131_072,
    "input_text": 0, "output_text": 0, "summary_text": 0, "reasoning_text": 0, "input_image": 65_536,
}  # fmt: skip
"""At most 48,000 for a picture (gpt-4o-mini: 2,833 and 8 tiles of 5,667); an hour of sound at 32 a second."""

_MEDIA_TOKENS: Mapping[str, int] = {"inlinedata": 131_072, "filedata": 1_048_576}
"""By the name of a part of Gemini's contents, in lower case without underscores."""

ADDED_TEXT_TOKENS = 1_048_576
"""A file, a film, or the results of a search: the largest context of common models."""

_ADDING_MEMBERS = frozenset({
    "web_search_options", "search_parameters", "plugins", "data_sources", "documents", "file_ids",
    "previous_response_id", "conversation", "cachedContent", "cached_content",
})  # fmt: skip
"""Members with which an upstream reads more than the request (OpenAI, xAI, OpenRouter, Azure, Cohere)."""


def output_ceiling(limit: int) -> int:
    """The most tokens of an answer to a request with this limit, if it shows none and has no reasoning: upstreams count
    end tokens and rejected drafts."""
    return 2 * limit + OUTPUT_ALLOWANCE


def added_tokens(document: Document) -> int:
    """The most tokens of a prompt that are not in the bytes of its request: `_PART_TOKENS` for each part of a message
    that is not text, `ADDED_TEXT_TOKENS` if the request makes the upstream read or search."""
    members = document.members
    if (
        document.large is not None
        or document.form is not None
        or not _ADDING_MEMBERS.isdisjoint(members)
        or _has_foreign_tools(members)
    ):
        return ADDED_TEXT_TOKENS
    if isinstance(members.get("prompt"), dict):  # a template that the upstream keeps
        return ADDED_TEXT_TOKENS
    given = members.get("messages") or members.get("input")
    messages = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    contents = [each.get(name) for each in messages for name in ("content", "output")]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    tokens = sum([_PART_TOKENS.get(str(part.get("type")), ADDED_TEXT_TOKENS) for part in parts])
    return tokens + _media_tokens(members["contents"]) if "contents" in members else tokens


def _media_tokens(contents: Any) -> int:
    """Tokens of the parts of Gemini's contents that are not text."""
    turns = contents if isinstance(contents, list) else [contents]
    given = [each.get("parts") for each in turns if isinstance(each, dict)]
    parts = [part for each in given for part in (each if isinstance(each, list) else [each])]
    names = [name for part in parts if isinstance(part, dict) for name in part]
    return sum([_MEDIA_TOKENS.get(name.replace("_", "").lower(), 0) for name in names])


def _has_foreign_tools(members: Mapping[str, Any]) -> bool:
    """Whether a tool of the upstream's own, which reads or searches, is among the tools."""
    tools = members.get("tools") or []
    given = tools if isinstance(tools, list) else [tools]
    return any(isinstance(tool, dict) and tool.get("type") != "function" for tool in given)

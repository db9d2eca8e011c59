"""Upper bounds of the usage that upstreams report, as far as they follow from a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway import units
from gateway.records import Params

from .reader import objects_of

PROMPT_ALLOWANCE = 32_768
"""Tokens that an upstream may add to a prompt."""

OUTPUT_ALLOWANCE = 4_096
"""Tokens of output that no limit holds."""

_PART_TOKENS: Mapping[str, int] = {
    "text": 0, "refusal": 0, "image_url": 65_536, "input_audio": 131_072,
    "input_text": 0, "output_text": 0, "summary_text": 0, "reasoning_text": 0, "input_image": 65_536,
}  # fmt: skip
"""Most tokens of a part, by its type. A picture has at most 48,000 (gpt-4o-mini: 2,833 and 8 tiles of 5,667); an hour
of audio has 115,200, at 32 a second."""

_MEDIA_TOKENS: Mapping[str, int] = {"inlinedata": 131_072, "filedata": 1_048_576}
"""Most tokens of a part of Gemini's contents, by its name in lower case without underscores."""

ADDED_TEXT_TOKENS = 1_048_576
"""A file, a film, or the results of a search: the largest context of common models."""

_ADDING_MEMBERS = frozenset({
    "web_search_options", "search_parameters", "plugins", "data_sources", "documents", "file_ids",
    "previous_response_id", "conversation", "cachedContent", "cached_content", "mcp_servers", "container",
    "enable_search", "web_fetch_options", "extra_body", "preset",
})  # fmt: skip
"""Members with which an upstream reads more than the request (OpenAI, xAI, OpenRouter, Azure, Cohere, DashScope;
Anthropic's servers of tools and skills of a container: anthropic-sdk, `types/beta/message_create_params.py`)."""

KNOWN_FACTOR, MOST_UNITS = 4, 1_000
_MORE_UNITS = {"image_tool_in": ADDED_TEXT_TOKENS, "image_tool_out": ADDED_TEXT_TOKENS, "audio_ms": 3_600_000}
"""Most units beside tokens are `KNOWN_FACTOR` times those that a request states and these more, else `MOST_UNITS` more:
the longest research makes some hundred searches."""

_GEMINI_MEMBERS = ("contents", "content", "requests", "systemInstruction", "system_instruction")
"""The members with the parts of a prompt: of generateContent, embedContent and batchEmbedContents."""

_COMPACTED = frozenset({"compaction", "compaction_summary", "reasoning"})
"""Items of a response whose bytes are no measure of their tokens, because they are encrypted."""


def output_ceiling(limit: int) -> int:
    """The most tokens of an answer to a request with this limit, if it shows none and has no reasoning: upstreams count
    end tokens and rejected drafts."""
    return 2 * limit + OUTPUT_ALLOWANCE


def prompt_ceiling(size: int, params: Params) -> int:
    """The most tokens of the prompt of a request of `size` bytes: never less than what was reserved for it, which has
    the tokens of what the request only names."""
    return max(size + PROMPT_ALLOWANCE, params.prompt_tokens) + added_tokens(params)


def most_units(of: units.Counts, stated: units.Counts) -> units.Counts:
    """The units of a report, those beside tokens as far as they can be true. `stated`: those of the request."""
    known = dict(stated)
    most = {name: KNOWN_FACTOR * known.get(name, 0) + _MORE_UNITS.get(name, MOST_UNITS) for name in units.BESIDE}
    return units.counts({name: min(count, most.get(name, count)) for name, count in of})


def added_tokens(params: Params) -> int:
    """The most tokens of a prompt that are not in the bytes of its request: `_PART_TOKENS` for each part of a message
    that is not text, `ADDED_TEXT_TOKENS` if the request makes the upstream read or search, or names what it keeps."""
    document = params.document
    members = document.members
    if (
        document.large is not None
        or document.form is not None
        or params.items
        or params.refers_to is not None
        or not _ADDING_MEMBERS.isdisjoint(members)
        or _has_foreign_tools(members)
        or isinstance(members.get("prompt"), dict)  # a template that the upstream keeps
    ):
        return ADDED_TEXT_TOKENS
    given = members.get("messages") or members.get("input")
    messages = objects_of(given) if isinstance(given, list) else []
    contents = [each.get(name) for each in messages for name in ("content", "output")]
    parts = [part for content in contents for part in objects_of(content)]
    tokens = sum([_PART_TOKENS.get(str(part.get("type")), ADDED_TEXT_TOKENS) for part in parts])
    tokens += _PART_TOKENS["input_audio"] * sum(["audio" in each for each in messages])  # of earlier answers
    kinds = [each.get("type") for each in messages]
    pictures = kinds.count("image_generation_call") + sum([len(objects_of(each.get("images"))) for each in messages])
    tokens += _PART_TOKENS["image_url"] * pictures
    tokens += ADDED_TEXT_TOKENS * any(kind in _COMPACTED for kind in kinds if isinstance(kind, str))
    tokens += _PART_TOKENS["image_url"] * sum([len(objects_of(members.get(name))) for name in ("images", "mask")])
    return tokens + sum([_media_tokens(members[name]) for name in _GEMINI_MEMBERS if name in members])


def _media_tokens(given: Any) -> int:
    """Tokens of the parts of Gemini's contents, or of requests with them, that are not text; also of those in the
    results of functions."""
    turns = [turn for each in objects_of(given) for turn in objects_of(each.get("content", each))]
    tokens = 0
    while turns:
        members = [member for part in objects_of(turns.pop().get("parts")) for member in part.items()]
        tokens += sum([_MEDIA_TOKENS.get(name.replace("_", "").lower(), 0) for name, _ in members])
        turns += [value for _, value in members if isinstance(value, dict) and "parts" in value]
    return tokens


def _has_foreign_tools(members: Mapping[str, Any]) -> bool:
    """Whether a tool of the upstream's own, which reads or searches, is among the tools."""
    return any(tool.get("type") != "function" for tool in objects_of(members.get("tools")))

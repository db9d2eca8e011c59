"""One attempt's request as far as its cost depends on it, and the most that the upstream can have used for it.

The ceilings bound usage reports. They are generous, so that no true report exceeds one:

1. Prompt: one token per byte of the request, because a token has at least one byte; `PROMPT_ALLOWANCE` for text that
   the upstream adds (chat templates, its own instructions); `_PART_TOKENS` for each part of a message that is not text,
   because its tokens are not in the bytes; `ADDED_TEXT_TOKENS` if the request makes the upstream read or search.
2. Output: twice the limit of all candidates, because upstreams count end tokens and rejected drafts; `SHOWN_FACTOR`
   tokens for each token that formats/token_rule.py counts in the answer, because some upstreams ignore the limit;
   `OUTPUT_ALLOWANCE` for pictures, sound and formats; `REASONING_ALLOWANCE` for each candidate that may reason, because
   some upstreams limit only the text behind the reasoning; the request's bytes if it has a `prediction`, because
   rejected parts of it are output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.formats import FORMATS, token_rule
from gateway.formats.format import NO_TEXT
from gateway.quota import windows
from gateway.records import Call, Usage

from . import reasoning_models

PROMPT_ALLOWANCE = 32_768
"""Tokens that an upstream may add to a prompt."""

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

OUTPUT_ALLOWANCE = 4_096
REASONING_ALLOWANCE = 131_072
"""The longest output of common reasoning models, rounded up: 128,000."""
UNLIMITED_OUTPUT = 131_072
"""Used as the limit of a request without one, where the format has no default."""
SHOWN_FACTOR = 4
"""Random letters have up to 1.8 times the tokens that the rule counts; a tokeniser of single bytes has up to 4."""


def _nothing_shown() -> int:
    return 0


class SentRequest(NamedTuple):
    """What the upstream was asked for."""

    call: Call
    routed_model: str | None = None
    """The model's name at the upstream, if it differs."""
    output_limit: int | None = None
    """Tokens per candidate in the forwarded body; None: it has no limit."""
    count_texts: token_rule.CountsTexts = token_rule.count
    pieces: Sequence[bytes | memoryview] = ()
    """The bytes of the request."""
    uploaded_bytes: int = 0
    """The size of a body that is sent in pieces, or is gone."""

    @property
    def reserved_output(self) -> int:
        """Tokens that all candidates together may have, as reserved."""
        return windows.output_limit(self.call) * self.call.params.candidates

    def texts_of(self, body: bytes) -> list[bytes]:
        """The generated texts in an answer to it, as in its JSON."""
        texts = FORMATS[self.call.endpoint].texts
        return [] if texts is NO_TEXT else texts.findall(body)

    def prompt_ceiling(self) -> int:
        """The most prompt tokens that the request can have."""
        plain = self._bytes + PROMPT_ALLOWANCE
        return plain + _added_tokens(self.call)

    def output_ceiling(self, shown_tokens: int, *, reasons: bool) -> int:
        """The most output tokens that the request can have if the answer shows this many."""
        params = self.call.params
        limit = windows.output_limit(self.call)
        if self.output_limit is None and params.default_output is None:
            limit = max(limit, UNLIMITED_OUTPUT)
        most = 2 * max(limit, self.output_limit or 0) + (REASONING_ALLOWANCE if reasons else 0)
        most += SHOWN_FACTOR * -(-shown_tokens // max(1, params.choices))
        if params.document.members.get("prediction") is not None:
            most += self._bytes
        return most * params.candidates + OUTPUT_ALLOWANCE

    def allows(self, report: Usage, count_shown: Callable[[], int] = _nothing_shown) -> bool:
        """Whether a report is below both ceilings. Counts the shown tokens only if the answer depends on them."""
        return report == self.bounded(report, count_shown)

    def bounded(self, report: Usage, count_shown: Callable[[], int] = _nothing_shown) -> Usage:
        """The report, or what of it is below the ceilings, marked as an estimate."""
        prompt, output = report.prompt_tokens, report.completion_tokens
        if prompt > PROMPT_ALLOWANCE:
            prompt = min(prompt, self.prompt_ceiling())
        if output > OUTPUT_ALLOWANCE:
            names = (self.call.params.model, self.routed_model)
            reasons = report.reasoning_tokens > 0 or reasoning_models.may_reason(self.call, names)
            if output > self.output_ceiling(0, reasons=reasons):
                output = min(output, self.output_ceiling(count_shown(), reasons=reasons))
        if (prompt, output) == (report.prompt_tokens, report.completion_tokens):
            return report
        return report._replace(prompt_tokens=prompt, completion_tokens=output, source="estimated", parts=())

    @property
    def _bytes(self) -> int:
        return sum([len(piece) for piece in self.pieces]) + self.uploaded_bytes


def _added_tokens(call: Call) -> int:
    """Tokens of a prompt that are not in the bytes of the request."""
    document = call.params.document
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
    said = members.get("messages") or members.get("input")
    messages = [each for each in said if isinstance(each, dict)] if isinstance(said, list) else []
    contents = [each.get(name) for each in messages for name in ("content", "output")]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    tokens = sum([_PART_TOKENS.get(str(part.get("type")), ADDED_TEXT_TOKENS) for part in parts])
    return tokens + _media_tokens(members["contents"]) if "contents" in members else tokens


def _media_tokens(contents: Any) -> int:
    """Tokens of the parts of Gemini's contents that are not text."""
    given = [each.get("parts") for each in contents if isinstance(each, dict)] if isinstance(contents, list) else []
    parts = [part for each in given for part in (each if isinstance(each, list) else [each])]
    names = [name for part in parts if isinstance(part, dict) for name in part]
    return sum([_MEDIA_TOKENS.get(name.replace("_", "").lower(), 0) for name in names])


def _has_foreign_tools(members: Mapping[str, Any]) -> bool:
    """Whether a tool of the upstream's own, which reads or searches, is among the tools."""
    tools = members.get("tools")
    return isinstance(tools, list) and any(isinstance(tool, dict) and tool.get("type") != "function" for tool in tools)

"""Tokens from an upstream's report, or an estimate when nobody says.

The estimate's rule: one token for every four bytes of UTF-8 text, rounded up, and at least one for every event that
brought text. It is marked as an estimate wherever it is shown.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.records import Usage

BYTES_PER_TOKEN = 4

# JSON escapes every quote inside a string, so a quoted name in the bytes is a name, never a piece of somebody's text.
# Possessive, because a plain repetition keeps a hundred bytes for each one it has passed, and an answer may be long.
_TEXT = re.compile(rb'"(?:content|text|arguments|reasoning_content|reasoning|refusal)"\s*:\s*"((?:[^"\\]++|\\.)++)"')


def reported(report: Any) -> Usage | None:
    """The usage object of an answer or a chunk; None where there is none that can be understood."""
    if not isinstance(report, dict):
        return None
    prompt, completion = _count(report.get("prompt_tokens")), _count(report.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    cached = _detail(report.get("prompt_tokens_details"), "cached_tokens")
    reasoning = _detail(report.get("completion_tokens_details"), "reasoning_tokens")
    return Usage(prompt or 0, completion or 0, cached, reasoning, "reported")


def estimated(prompt_tokens: int, delivered_bytes: int, events: int = 0) -> Usage:
    """What a call probably cost: its estimated prompt, and what was delivered."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=max(tokens_of_bytes(delivered_bytes), events),
        source="estimated",
    )


def text_bytes(data: bytes) -> int:
    """Bytes of generated text in an answer or an event, as they stand in its JSON."""
    return sum(map(len, _TEXT.findall(data)))


def texts(data: bytes) -> list[tuple[int, int]]:
    """Where each generated text that is not empty stands in an answer or an event."""
    return [match.span(1) for match in _TEXT.finditer(data)]


def tokens_of_bytes(size: int) -> int:
    """The estimate for so many bytes of text."""
    return -(-size // BYTES_PER_TOKEN)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _detail(details: Any, name: str) -> int:
    return (_count(details.get(name)) or 0) if isinstance(details, dict) else 0

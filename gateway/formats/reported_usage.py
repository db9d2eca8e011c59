"""Usage reports of upstreams, and the generated text in their answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from gateway import units, untrusted_json
from gateway.records import Usage

from . import token_rule

# JSON escapes every quote inside a string, so a quoted name in the bytes is a name, never a part of a text.
# Possessive, because a plain repetition keeps a hundred bytes for each one it has passed, and an answer may be long.
TEXT = re.compile(
    rb'"(?:content|text|arguments|reasoning_content|reasoning|refusal|name|input)"\s*:\s*"((?:[^"\\]++|\\.)++)"'
)
REASONING = re.compile(rb'"reasoning(?:_content)?"\s*:\s*"(?!")')
"""Finds some of the model's reasoning in an answer or an event."""
_USAGE = re.compile(rb'"usage(?:Metadata)?"\s*+:\s*+(\{(?:[^{}]++|\{[^{}]*+\})*+\})')
_DIGITS = re.compile(r"[0-9]{1,16}")
USAGE_WITHIN = 8192
"""Bytes at the end of an answer in which a usage report is looked for."""

MAX_AUDIO_MS = 7 * 24 * 3_600_000
"""A week; longer audio is not believed."""

HEARD_TOKENS_PER_S, WRITTEN_TOKENS_PER_S = 10, 5
"""Tokens that are reserved for transcripts of models that charge tokens, and charged where the answer reports none.
OpenAI counts a token for 100 ms of audio; fast speech has four words a second."""


def of_total(total: Any) -> Usage | None:
    """The usage where a report has nothing but its total: an estimate, all of it output until the prompt is estimated
    (`relay/charge.py`); None if there is none."""
    return Usage(0, found, source="estimated") if (found := count(total)) else None


def all_prompt(usage: Usage | None) -> Usage | None:
    """The usage of a format that generates nothing: where only the total is known, it is the prompt."""
    if usage is None or usage.prompt_tokens or not usage.completion_tokens:
        return usage
    return Usage(usage.completion_tokens, source="reported")


class PlainText(NamedTuple):
    """The generated text in a plain answer."""

    tokens: int
    number: int
    """How many texts there are."""
    has_reasoned: bool
    has_media: bool


def plain_text(body: bytes, texts: re.Pattern[bytes] | None, media: re.Pattern[bytes]) -> PlainText:
    """Counts by the token rule what the first pattern finds, or the whole body, which is a text then."""
    found = [as_in_json(body)] if texts is None else texts.findall(body)
    quarters = sum([token_rule.count(text + b'"').quarters for text in found])
    return PlainText(token_rule.tokens_of(quarters), len(found), *beside_text(body, media))


def as_in_json(text: bytes) -> bytes:
    """A text as it is inside the quotes of JSON."""
    return json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False)[1:-1].encode("utf-8", "replace")


def beside_text(body: bytes, media: re.Pattern[bytes]) -> tuple[bool, bool]:
    """Whether a plain answer has reasoning, and whether it has sound or a picture, which this pattern finds."""
    return REASONING.search(body) is not None, media.search(body) is not None


def found_in(body: bytes, read: Callable[[Any], Usage | None]) -> Usage | None:
    """The last usage object at the end of an answer that is not whole JSON, for instance with a byte behind it."""
    objects = _USAGE.findall(body[-USAGE_WITHIN:])
    try:
        return read(untrusted_json.parse(objects[-1])) if objects else None
    except ValueError:
        return None


def highest(one: Usage | None, other: Usage) -> Usage:
    """The higher count of each kind in two reports of one answer."""
    if one is None:
        return other
    prompt, completion, cached, reasoning = map(max, one[:4], other[:4])
    return Usage(
        prompt,
        completion,
        cached,
        reasoning,
        "reported",
        units.highest(one.more, other.more),
        other.variant or one.variant,
    )


_FRESH = ("cache_write_1h", "cache_write", "audio_in", "image_in", "video_in")
"""Parts of the prompt that was not read from a cache."""
_CACHED = ("cached_audio", "cached_image")


def coherent(usage: Usage) -> Usage:
    """Cached tokens are part of the prompt, and reasoning is part of the completion: clamped to these, and so are
    further units of either. No token is in two parts: one that was read from a cache was not written to it, and where
    a report has no kinds of its cached tokens, as many tokens of a kind as fit beside them were not cached."""
    prompt, completion, cached, reasoning = usage[:4]
    if cached <= prompt and reasoning <= completion and not usage.more:
        return usage
    cached, reasoning = min(cached, prompt), min(reasoning, completion)
    more = usage.more and units.within(usage.more, prompt, completion)
    given = dict(more)
    for left, parts in ((prompt - cached, _FRESH), (cached, _CACHED)):
        for name in parts:
            if name in given:
                given[name] = min(given[name], left)
                left -= given[name]  # noqa: PLW2901
    return usage._replace(cached_tokens=cached, reasoning_tokens=reasoning, more=units.counts(given))


def count(value: Any) -> int | None:
    """A count in a report; None: it is none. Some upstreams write `12.0` or `"12"`."""
    kind = value.__class__
    if (kind is float and value.is_integer()) or (kind is str and _DIGITS.fullmatch(value)):
        kind, value = int, int(value)
    return value if kind is int and 0 <= value < 2**53 else None


def input_and_output(report: Any) -> tuple[int, int] | None:
    """`input_tokens` and `output_tokens` of a report, as OpenAI's newer formats write them, or the names of chat, which
    relays write in their place (Helicone/helicone#5003); None: it has neither."""
    if not isinstance(report, dict):
        return None
    given, made = count(report.get("input_tokens")), count(report.get("output_tokens"))
    if given is None and made is None:
        given, made = count(report.get("prompt_tokens")), count(report.get("completion_tokens"))
    return None if given is None and made is None else (given or 0, made or 0)


def of_media(report: Any) -> tuple[int, int] | None:
    """Reads `input_and_output` of an answer that has a picture or sound. Returns None also if all counts are zero,
    because a picture always costs tokens."""
    tokens = input_and_output(report)
    return tokens if tokens is not None and any(tokens) else None


def detail(details: Any, name: str) -> int:
    """A count among the details of a report; 0 if it is not there."""
    return (count(details.get(name)) or 0) if isinstance(details, dict) else 0


def of_transcript(report: Any) -> Usage | None:
    """The `usage` of a transcription: seconds (`type: duration`) or tokens. Mistral bills its `prompt_audio_seconds`,
    whatever tokens are beside them (docs.mistral.ai, audio transcription)."""
    for name in ("seconds", "prompt_audio_seconds") if isinstance(report, dict) else ():
        if audio_ms := milliseconds(report.get(name)):
            return Usage(source="reported", more=units.counts({"audio_ms": audio_ms}))
    if (tokens := of_media(report)) is None:
        return None
    details = report.get("input_token_details") or report.get("input_tokens_details")
    audio = detail(details, "audio_tokens")
    return Usage(*tokens, source="reported", more=units.within(units.counts({"audio_in": audio}), *tokens))


def milliseconds(seconds: Any) -> int | None:
    """The milliseconds of a length in seconds, rounded up; None: it is no length."""
    try:
        value = float(seconds) if isinstance(seconds, int | float | str) and not isinstance(seconds, bool) else -1.0
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(value) or not 0 <= value * 1000 <= MAX_AUDIO_MS:
        return None
    return math.ceil(round(value * 1000, 3))


def more_of(prompt: Any, completion: Any) -> units.Counts:
    """Further units of a report's details of prompt and completion, as OpenAI writes them: `cache_write_tokens` holds
    writes of every duration."""
    written = detail(prompt, "cache_write_tokens")
    longer = detail(prompt.get("cache_write_tokens_details"), "ttl_12h_tokens") if written else 0
    longer = min(longer, written)
    return units.counts(
        {
            "cache_write": written - longer,
            "cache_write_1h": longer,
            "audio_in": detail(prompt, "audio_tokens"),
            "image_in": detail(prompt, "image_tokens"),
            "video_in": detail(prompt, "video_tokens"),
            "audio_out": detail(completion, "audio_tokens"),
            "image_out": detail(completion, "image_tokens"),
        }
    )

"""Usage reports of Gemini's API.

`promptTokenCount` includes cached tokens; the tokens of tool results come on top of it, and thoughts on top of the
candidates (google-genai, types.py, `GenerateContentResponseUsageMetadata`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway import units
from gateway.formats.reported_usage import count
from gateway.records import Usage

TEXT = re.compile(rb'"(?:text|name|code|output)"\s*:\s*"((?:[^"\\]++|\\.)++)"')
"""Generated texts in an answer or an event that are not empty: its one group."""

THOUGHT = re.compile(rb'"thought"\s*:\s*true')

_COUNTS = ("promptTokenCount", "candidatesTokenCount", "toolUsePromptTokenCount", "thoughtsTokenCount")
_PROMPT_DETAILS = ("promptTokensDetails", "toolUsePromptTokensDetails", "promptTokenDetails")
"""The last one is that of embeddings (`EmbeddingUsageMetadata`)."""
_OUTPUT_DETAILS = ("candidatesTokensDetails",)
TIER_HEADER = "x-gemini-service-tier"
_TIERS = ("serviceTier", "trafficType")
"""Members that name the tier that served: of the Gemini API (ai.google.dev, "Priority inference"; its own body is at
discuss.ai.google.dev/t/174074), and of Vertex AI (google-genai, `TrafficType`). The former stands in `TIER_HEADER` as
well."""
_TIER_PREFIX = re.compile("service_tier_|on_demand_")


def reported(report: Any, searches: int = 0) -> Usage | None:
    """The usage in `usageMetadata`; None if it cannot be read. `searches`: web searches that the answer names."""
    if not isinstance(report, dict):
        return None
    given = [count(report.get(name)) for name in _COUNTS]
    if given[0] is None and given[1] is None:
        return None
    prompt, output, tools, thoughts = [each or 0 for each in given]
    more = units.counts(
        {
            "audio_in": _of_modality(report, _PROMPT_DETAILS, "AUDIO"),
            "image_in": _of_modality(report, _PROMPT_DETAILS, "IMAGE"),
            "audio_out": _of_modality(report, _OUTPUT_DETAILS, "AUDIO"),
            "image_out": _of_modality(report, _OUTPUT_DETAILS, "IMAGE"),
            "web_searches": searches,
        }
    )
    cached = count(report.get("cachedContentTokenCount")) or 0
    tiers = [tier for name in _TIERS if isinstance(tier := report.get(name), str)]
    variant = _TIER_PREFIX.sub("", tiers[0].lower()) if tiers else ""
    return Usage(prompt + tools, output + thoughts, cached, thoughts, "reported", more, variant)


def _of_modality(report: Mapping[str, Any], names: Iterable[str], modality: str) -> int:
    details = [each for name in names for each in _objects(report.get(name))]
    return sum([count(each.get("tokenCount")) or 0 for each in details if each.get("modality") == modality])


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def candidates(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The candidates of an answer or a chunk."""
    return _objects(answer.get("candidates"))


def searches(candidate: Mapping[str, Any]) -> int:
    """How many web searches a candidate is grounded in."""
    grounding = candidate.get("groundingMetadata")
    queries = grounding.get("webSearchQueries") if isinstance(grounding, dict) else None
    return len(queries) if isinstance(queries, list) else 0


def is_blocked(answer: Mapping[str, Any]) -> bool:
    """Whether the prompt was refused: then there are no candidates."""
    feedback = answer.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))


class GeminiUsage:
    """Follows the reports of one answer."""

    def __init__(self) -> None:
        self._searches: dict[Any, int] = {}
        """The searches of each candidate."""

    def take(self, value: Mapping[str, Any]) -> Usage | None:
        """Take an answer or a chunk; return the usage so far if this is a report of it."""
        for place, candidate in enumerate(candidates(value)):
            index, found = candidate.get("index", place), searches(candidate)
            if found and isinstance(index, int):
                self._searches[index] = max(found, self._searches.get(index, 0))
        return reported(value.get("usageMetadata"), sum(self._searches.values()))

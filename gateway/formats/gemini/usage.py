"""Usage reports of Gemini's API.

`promptTokenCount` includes cached tokens; the tokens of tool results come on top of it, and thoughts on top of the
candidates (google-genai, types.py, `GenerateContentResponseUsageMetadata`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway import units
from gateway.formats.reported_usage import all_prompt, count, of_total
from gateway.records import Usage

TEXT = re.compile(rb'"(?:text|name|code|output)"\s*:\s*"((?:[^"\\]++|\\.)++)"')
"""Generated texts in an answer or an event that are not empty: its one group."""

_COUNTS = ("promptTokenCount", "candidatesTokenCount", "toolUsePromptTokenCount", "thoughtsTokenCount")
_PROMPT_DETAILS = ("promptTokensDetails", "toolUsePromptTokensDetails", "promptTokenDetails")
"""The last one is that of embeddings (`EmbeddingUsageMetadata`)."""
_CACHED_DETAILS = ("cacheTokensDetails",)
"""The modalities of those tokens of the prompt that were cached (google-genai, types.py, `cache_tokens_details`)."""
_OUTPUT_DETAILS = ("candidatesTokensDetails",)
_MODALITIES = {"AUDIO": "audio", "IMAGE": "image", "DOCUMENT": "image", "VIDEO": "video"}
"""Pages of documents are images (genai-prices, google)."""
TIER_HEADER = "x-gemini-service-tier"
_TIERS = ("serviceTier", "trafficType")
"""Members that name the tier that served: of the Gemini API (ai.google.dev, "Priority inference"; its own body is at
discuss.ai.google.dev/t/174074), and of Vertex AI (google-genai, `TrafficType`). `TIER_HEADER` has the former too."""
_TIER_PREFIX = re.compile("service_tier_|on_demand_")


def reported(report: Any, paid: Mapping[str, int] | None = None) -> Usage | None:
    """The usage in `usageMetadata`; None if it cannot be read. `paid`: units that the answer names elsewhere.

    The total is the sum of the four counts: what it has beyond those that are given is output
    (agentscope-ai/agentscope-java#3033)."""
    if not isinstance(report, dict):
        return None
    given = [count(report.get(name)) for name in _COUNTS]
    if given[0] is None and given[1] is None:
        return of_total(report.get("totalTokenCount"))
    prompt, output, tools, thoughts = [each or 0 for each in given]
    rest = (count(report.get("totalTokenCount")) or 0) - prompt - output - tools - thoughts
    if rest > 0 and given[1] is None:
        output += rest
    elif rest > 0 and given[3] is None:
        thoughts = rest
    asked, kept, made = [_by_modality(report, names) for names in (_PROMPT_DETAILS, _CACHED_DETAILS, _OUTPUT_DETAILS)]
    more = dict(paid or {})
    if asked or kept or made:
        more |= {f"{kind}_in": max(0, amount - kept.get(kind, 0)) for kind, amount in asked.items()}
        more |= {f"{kind}_out": amount for kind, amount in made.items()}
        more |= {f"cached_{kind}": amount for kind, amount in kept.items() if kind != "video"}
    cached = count(report.get("cachedContentTokenCount")) or 0
    tiers = [tier for name in _TIERS if isinstance(tier := report.get(name), str)]
    variant = _TIER_PREFIX.sub("", tiers[0].lower()) if tiers else ""
    return Usage(prompt + tools, output + thoughts, cached, thoughts, "reported", units.counts(more), variant)


def embedded(report: Any) -> Usage | None:
    """As `reported`, of embeddings, whose tokens are all prompt, also where the total alone is reported."""
    return all_prompt(reported(report))


def _by_modality(report: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in [each for name in names for each in _objects(report.get(name))]:
        if (kind := _MODALITIES.get(str(each.get("modality")))) is not None:
            found[kind] = found.get(kind, 0) + (count(each.get("tokenCount")) or 0)
    return found


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def candidates(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The candidates of an answer or a chunk."""
    return _objects(answer.get("candidates"))


_A_PROMPT = re.compile(r"(?:^|/)gemini-[12][.-]")
"""Models of which a grounded prompt is billed; of others each query is (ai.google.dev, pricing)."""
_QUERIES = ("webSearchQueries", "imageSearchQueries")


def searches(candidate: Mapping[str, Any]) -> tuple[set[str], bool]:
    """The searches that a candidate is grounded in, those that are billed: each query once, and no empty one
    (ai.google.dev, grounding with Google Search: pricing); and whether it is grounded in Google Maps."""
    grounding = candidate.get("groundingMetadata")
    if not isinstance(grounding, dict):
        return set(), False
    lists = [given for name in _QUERIES if isinstance(given := grounding.get(name), list)]
    queries = {query for given in lists for query in given if isinstance(query, str) and query.strip()}
    has_maps = any("maps" in chunk for chunk in _objects(grounding.get("groundingChunks")))
    return queries, has_maps or bool(grounding.get("googleMapsWidgetContextToken"))


def is_blocked(answer: Mapping[str, Any]) -> bool:
    """Whether the prompt was refused: then there are no candidates."""
    feedback = answer.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))


class GeminiUsage:
    """Follows the reports of one answer."""

    def __init__(self) -> None:
        self._queries: dict[Any, set[str]] = {}
        """The queries of each candidate."""
        self._has_maps = False
        self._is_by_prompt = False

    def take(self, value: Mapping[str, Any]) -> Usage | None:
        """Take an answer or a chunk; return the usage so far if this is a report of it."""
        for place, candidate in enumerate(candidates(value)):
            if "groundingMetadata" in candidate:
                queries, has_maps = searches(candidate)
                self._queries.setdefault(str(candidate.get("index", place)), set()).update(queries)
                self._has_maps = self._has_maps or has_maps
        if not self._queries:
            return reported(value.get("usageMetadata"))
        self._is_by_prompt = self._is_by_prompt or _A_PROMPT.search(str(value.get("modelVersion"))) is not None
        searched = sum(map(len, self._queries.values()))
        paid = {
            "web_searches": min(searched, 1) if self._is_by_prompt else searched,
            "maps_searches": int(self._has_maps),
        }
        return reported(value.get("usageMetadata"), paid)

"""Reads answers of Gemini's API, and the chunks of their streams, which are answers of one shape.

`promptTokenCount` includes cached tokens; the tokens of tool results come on top of it, and thoughts on top of the
candidates (google-genai, types.py, `GenerateContentResponseUsageMetadata`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway import units
from gateway.formats import sse
from gateway.formats.event_scan import EventScan
from gateway.formats.member_reader import EACH
from gateway.formats.reader import AnswerReader, keep, objects, value_at
from gateway.formats.reported_usage import all_prompt, count, of_total
from gateway.records import Usage

TEXT = re.compile(rb'"(?:text|name|code|output)"\s*:\s*"((?:[^"\\]++|\\.)++)"')
"""Generated texts in an answer or an event that are not empty: its one group."""

MEDIA = re.compile(rb'"(?:inlineData|inline_data|fileData|file_data)"\s*+:\s*+\{')
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
    """Returns the usage of embeddings, whose tokens are all prompt, even if only the total is reported. None where
    `reported` returns None."""
    return all_prompt(reported(report))


def _by_modality(report: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in [each for name in names for each in objects(report.get(name))]:
        if (kind := _MODALITIES.get(str(each.get("modality")))) is not None:
            found[kind] = found.get(kind, 0) + (count(each.get("tokenCount")) or 0)
    return found


_A_PROMPT = re.compile(r"(?:^|/)gemini-[12][.-]")
"""Models of which a grounded prompt is billed; of others each query is (ai.google.dev, pricing)."""
_QUERIES, _MAPS = ("webSearchQueries", "imageSearchQueries"), "googleMapsWidgetContextToken"
_RETRIEVED = "retrievalQueries"  # billed by prompt (Google Cloud, pricing: "Grounding with your data")


def searches(candidate: Mapping[str, Any]) -> tuple[set[str], bool]:
    """The searches that a candidate is grounded in, those that are billed: each query once, and no empty one
    (ai.google.dev, grounding with Google Search: pricing); and whether it is grounded in Google Maps."""
    grounding = candidate.get("groundingMetadata")
    if not isinstance(grounding, dict):
        return set(), False
    lists = [given for name in _QUERIES if isinstance(given := grounding.get(name), list)]
    queries = {query for given in lists for query in given if isinstance(query, str) and query.strip()}
    has_maps = any("maps" in chunk for chunk in objects(grounding.get("groundingChunks")))
    return queries, has_maps or bool(grounding.get(_MAPS))


class GeminiReader(AnswerReader):
    """Follows one answer. `begun` and `finished` are indexes of candidates; `is_blocked`: the prompt was refused."""

    WANTED = (
        ("usageMetadata",), ("promptFeedback",), ("modelVersion",), ("error",), ("candidates", EACH, "index"),
        ("candidates", EACH, "finishReason"),
        *[("candidates", EACH, "groundingMetadata", it) for it in (*_QUERIES, _RETRIEVED, "groundingChunks", _MAPS)],
    )  # fmt: skip

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.finished: set[int] = set()
        self.is_blocked = False
        self._queries: set[int] = set()
        self._has_maps = self._has_retrieved = False
        self._is_by_prompt = False

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        if value.get("error"):
            self.take_error(value["error"])
            return None
        for place, candidate in enumerate(objects(value.get("candidates"))):
            index = candidate.get("index", place)
            index = index if isinstance(index, int) else place
            keep(self.begun, (index,))
            if candidate.get("finishReason") not in (None, "", "FINISH_REASON_UNSPECIFIED"):
                keep(self.finished, (index,))
            if "groundingMetadata" in candidate:
                queries, has_maps = searches(candidate)
                keep(self._queries, (f"{index} {query}" for query in queries))
                self._has_maps = self._has_maps or has_maps
                self._has_retrieved |= bool(value_at(candidate, ("groundingMetadata", _RETRIEVED)))
        feedback = value.get("promptFeedback")
        self.is_blocked = self.is_blocked or bool(isinstance(feedback, dict) and feedback.get("blockReason"))
        self.take_model(value.get("modelVersion"))
        if not (self._queries or self._has_maps or self._has_retrieved):
            return reported(value.get("usageMetadata"))
        self._is_by_prompt = self._is_by_prompt or _A_PROMPT.search(str(value.get("modelVersion"))) is not None
        searched = len(self._queries)
        paid = {
            "web_searches": min(searched, 1) if self._is_by_prompt else searched,
            "maps_searches": int(self._has_maps),
            "file_searches": int(self._has_retrieved),
        }
        return reported(value.get("usageMetadata"), paid)


class GeminiScan(EventScan):
    """Follows one streamed answer.

    The stream has no event that ends it, and upstreams name a `finishReason` on the last chunk, on each, or on one
    before the last (one-api#1477): it is read to the end of its message, or to a relay's `[DONE]`. Where it breaks off,
    it is complete if each candidate has a reason and no text came behind the last one. Every chunk has the usage so
    far, so each is parsed. Nothing but chunks leaves: google-genai fails on a comment, on `event:` lines and on
    `[DONE]` (`_api_client.py`, `HttpResponse`).
    """

    READER = GeminiReader
    TEXTS = TEXT
    MEDIA = MEDIA
    THINKS = re.compile(rb'"thought"\s*:\s*true')
    HAS_COMMENTS = False

    reader: GeminiReader

    def _has_all(self) -> bool:
        reader = self.reader
        return reader.is_blocked or (bool(reader.finished) and reader.begun <= reader.finished)

    def _ends_with_done(self) -> bool:
        return self._has_all()

    def is_alike(self, data: bytes) -> bool:
        """Never: each chunk has its own usage."""
        return False

    def _shown(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        return event if _is_plain(event) else chunk(data)

    def _unread(self, event: bytes, data: bytes) -> bytes:
        return self._cleaned(chunk(data))


def _is_plain(event: bytes) -> bool:
    """Whether the event is one line of data, as google-genai reads it."""
    return event.startswith(b"data: ") and len(event.splitlines()) == 2 and event.endswith(b"\n")


def chunk(data: bytes) -> bytes:
    """The event of a chunk, or of a whole answer, on one line."""
    return b"data: " + b" ".join(data.splitlines()) + b"\r\n\r\n"


class Items:
    """A stream as one JSON array: each event's data is an item. It takes events of one line of data, also in pieces."""

    headers = (("content-type", "application/json; charset=UTF-8"),)

    def __init__(self) -> None:
        self._splitter = sse.EventSplitter()
        self._opening = b"["
        self._is_inside = False

    def write(self, data: bytes) -> bytes:
        return b"".join([self._item(piece, is_whole) for piece, is_whole in self._splitter.split(data)])

    def end(self) -> bytes:
        return b"[]" if self._opening == b"[" else b"]"

    def _item(self, piece: bytes, is_whole: bool) -> bytes:
        if self._is_inside:
            self._is_inside = is_inside = not sse.ends_event(piece)
            return piece if is_inside else piece.rstrip(b"\r\n")
        data = sse.data_of(piece) if is_whole else piece.partition(b"data:")[2]
        if not data:
            return b""
        self._is_inside = not is_whole
        opening, self._opening = self._opening, b",\r\n"
        return opening + data

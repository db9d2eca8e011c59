"""The usage that an answer of chat completions, completions or embeddings reports.

`OWN` has the counts that vendors and resellers write under names of their own. OpenAI's own name wins, also with a
count of 0.

The sums differ as well. A total that is more than prompt and completion has tokens that neither of them counts: the
cache, where it is just as much, else thoughts, which xAI and Gemini's chat endpoint leave out of `completion_tokens`
and bill (docs.x.ai, "Reasoning"; discuss.ai.google.dev/t/98760).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway import units
from gateway.formats.reader import objects, value_at
from gateway.formats.reported_usage import all_prompt, count, detail, more_of, of_total
from gateway.records import Usage


class Own(NamedTuple):
    """A count in a report, under a name that is not OpenAI's."""

    vendor: str
    path: tuple[str, ...]
    meaning: str
    """`prompt`, `completion`; `cached`, `written` and `written_1h` of the prompt; `reasoning`; `audio_s`
    seconds of sound; or one of `units.UNITS`."""
    source: str
    adds: bool = False
    """Whether it counts beside others of its meaning; else the highest is the count."""


_ANTHROPIC = "anthropic-sdk, Usage and CacheCreation; LiteLLM, `Usage` in types/utils.py"
_XAI = "docs.x.ai, pricing: each call of a server-side tool is billed"
_PERPLEXITY = "docs.perplexity.ai, sonar-deep-research: pricing"

OWN = (
    Own("mlx-vlm", ("input_tokens",), "prompt", "earendil-works/pi#2326"),
    Own("mlx-vlm", ("output_tokens",), "completion", "earendil-works/pi#2326"),
    Own("llama.cpp", ("prompt_n",), "prompt", "llama.cpp, tools/server/README.md, `timings`"),
    Own("llama.cpp", ("predicted_n",), "completion", "llama.cpp, tools/server/README.md, `timings`"),
    Own("llama.cpp", ("cache_n",), "cached", "llama.cpp, tools/server/README.md, `timings`"),
    Own("Cohere", ("tokens", "input_tokens"), "prompt", "genai-prices, cohere"),
    Own("Cohere", ("tokens", "output_tokens"), "completion", "genai-prices, cohere"),
    Own("Moonshot, Anthropic", ("cached_tokens",), "cached", "vercel/ai, convert-moonshotai-chat-usage.ts"),
    Own("DeepSeek", ("prompt_cache_hit_tokens",), "cached", "api-docs.deepseek.com, create chat completion"),
    Own("xAI", ("cached_prompt_text_tokens",), "cached", "genai-prices, x-ai"),
    Own("Databricks, LiteLLM", ("cache_read_input_tokens",), "cached", f"genai-prices, databricks; {_ANTHROPIC}"),
    Own("Perplexity", ("input_tokens_details", "cache_read_input_tokens"), "cached", "genai-prices, perplexity"),
    Own("LiteLLM", ("cache_creation_input_tokens",), "written", _ANTHROPIC),
    Own("LiteLLM", ("prompt_tokens_details", "cache_creation_tokens"), "written", _ANTHROPIC),
    Own("LiteLLM", ("cache_creation", "ephemeral_1h_input_tokens"), "written_1h", _ANTHROPIC),
    Own("Databricks, Modal, Perplexity", ("reasoning_tokens",), "reasoning", "genai-prices, these providers"),
    Own("Perplexity", ("citation_tokens",), "citations", _PERPLEXITY),
    Own("Perplexity", ("num_search_queries",), "web_searches", _PERPLEXITY),
    Own("LiteLLM", ("server_tool_use", "web_search_requests"), "web_searches", _ANTHROPIC),
    Own("LiteLLM", ("prompt_tokens_details", "web_search_requests"), "web_searches", "LiteLLM, PromptTokensDetails"),
    Own("Perplexity", ("tool_calls_details", "search_web", "invocation"), "web_searches", "genai-prices, perplexity"),
    Own("Perplexity", ("tool_calls_details", "fetch_url", "invocation"), "tool_calls", "docs.perplexity.ai, pricing"),
    Own("xAI", ("server_side_tool_usage_details", "web_search_calls"), "web_searches", _XAI),
    Own("xAI", ("server_side_tool_usage_details", "x_search_calls"), "tool_calls", _XAI, adds=True),
    Own("xAI", ("server_side_tool_usage_details", "code_interpreter_calls"), "tool_calls", _XAI, adds=True),
    Own("xAI", ("server_side_tool_usage_details", "file_search_calls"), "file_searches", _XAI, adds=True),
    Own("xAI", ("server_side_tool_usage_details", "document_search_calls"), "file_searches", _XAI, adds=True),
    Own("xAI", ("num_sources_used",), "search_sources", "docs.x.ai, live search: each source is billed"),
    Own("Mistral", ("prompt_audio_seconds",), "audio_s", "docs.mistral.ai, audio"),
)
"""Vendor, place, meaning and source."""

_THOUGHTS_BESIDE = frozenset({"citation_tokens", "num_search_queries", "cached_prompt_text_tokens"})
"""Members of the reports in which `reasoning_tokens` are beside `completion_tokens`: of Perplexity, and of xAI's old
form (genai-prices, `perplexity` and `x-ai`). Others have them within, as OpenAI has."""

_PLAIN = frozenset({
    "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details",
})  # fmt: skip
_PLAIN_DETAILS = frozenset({
    "cached_tokens", "audio_tokens", "text_tokens", "image_tokens", "cache_write_tokens", "cache_write_tokens_details",
})  # fmt: skip


def reported(report: Any, service_tier: Any = None) -> Usage | None:
    """The usage object of an answer or a chunk, and the service tier named beside it; None if the former is missing or
    cannot be read."""
    if not isinstance(report, dict):
        return None
    prompt, completion = count(report.get("prompt_tokens")), count(report.get("completion_tokens"))
    of_prompt, of_completion = report.get("prompt_tokens_details"), report.get("completion_tokens_details")
    variant = service_tier if isinstance(service_tier, str) else ""
    if not (
        _PLAIN.issuperset(report)
        and report.get("total_tokens", 0) in (0, (prompt or 0) + (completion or 0))
        and (not isinstance(of_prompt, dict) or _PLAIN_DETAILS.issuperset(of_prompt))
    ):
        return _by_own_names(report, variant)
    if prompt is None and completion is None:
        return of_total(report.get("total_tokens"))
    cached, reasoning = detail(of_prompt, "cached_tokens"), detail(of_completion, "reasoning_tokens")
    # Asked here, because most reports have none of them.
    has_more = (
        isinstance(of_prompt, dict)
        and (of_prompt.get("cache_write_tokens") or of_prompt.get("audio_tokens") or of_prompt.get("image_tokens"))
    ) or (isinstance(of_completion, dict) and (of_completion.get("audio_tokens") or of_completion.get("image_tokens")))
    more = more_of(of_prompt, of_completion) if has_more else ()
    return Usage(prompt or 0, completion or 0, cached, reasoning, "reported", more, variant)


def embedded(report: Any, service_tier: Any = None) -> Usage | None:
    """As `reported`, of embeddings, whose tokens are all prompt: Voyage and DashScope report the total alone
    (docs.voyageai.com, embeddings; alibabacloud.com, text embedding)."""
    return all_prompt(reported(report, service_tier))


def _by_own_names(report: Mapping[str, Any], variant: str) -> Usage | None:
    """A report with members or sums that are not OpenAI's."""
    own = own_counts(report)
    of_prompt, of_completion = report.get("prompt_tokens_details"), report.get("completion_tokens_details")
    total = count(report.get("total_tokens")) or 0
    prompt, completion = count(report.get("prompt_tokens")), count(report.get("completion_tokens"))
    prompt, completion = prompt or own.get("prompt", prompt), completion or own.get("completion", completion)
    if prompt is None and completion is None:
        return of_total(total)
    is_whole = completion is not None
    prompt, completion = prompt or 0, completion or 0
    more = dict(more_of(of_prompt, of_completion))
    cached = _first(count(value_at(of_prompt, ("cached_tokens",))), own.get("cached"))
    if "cache_write" not in more and "cache_write_1h" not in more:
        more["cache_write_1h"] = own.get("written_1h", 0)
        more["cache_write"] = max(0, own.get("written", 0) - own.get("written_1h", 0))
    reasoning = _first(count(value_at(of_completion, ("reasoning_tokens",))), own.get("reasoning"))
    of_cache = cached + more.get("cache_write", 0) + more.get("cache_write_1h", 0)
    if of_cache and ("cached" in own or "written" in own) and of_cache > prompt:
        prompt += of_cache  # beside the prompt, as Anthropic counts
    elif of_cache and of_cache != reasoning and total == prompt + completion + of_cache:
        prompt += of_cache
    rest = total - prompt - completion if is_whole else 0
    if not _THOUGHTS_BESIDE.isdisjoint(report):
        completion += own.get("reasoning", 0) + own.get("citations", 0)
    elif rest > 0 and "audio_s" not in own:
        completion, reasoning = completion + rest, max(reasoning, rest)
    more |= {name: own[name] for name in own if name in units.UNITS}
    more["audio_ms"] = 1000 * own.get("audio_s", 0)
    return Usage(prompt, completion, cached, reasoning, "reported", units.counts(more), variant)


def own_counts(report: Mapping[str, Any]) -> dict[str, int]:
    """The counts of a report by the names of `OWN`, by their meaning."""
    own: dict[str, int] = {}
    for each in OWN:
        if found := count(value_at(report, each.path)):
            before = own.get(each.meaning, 0)
            own[each.meaning] = before + found if each.adds else max(before, found)
    return own


def _first(one: int | None, other: int | None) -> int:
    return (other or 0) if one is None else one


ReadsUsage = Callable[[Any, Any], Usage | None]
"""Given a usage object and the service tier beside it."""


NAMED = (b'"url_citation"', b'"executed_tools"', b'"web_search"')
"""An answer without any of these in its bytes names no paid tool beside its usage."""

SEARCHES_ALWAYS = re.compile(r"\bgpt-[\w.-]+-search-(?:preview|api)\b")
"""OpenAI's models that search for each call of a chat (OpenAI's guide on web search)."""


class ChatUsage:
    """Follows the reports of one answer, and the paid tools that it names beside them.

    These are citations of a search, of which there was one at least (openai-python, ChatCompletionMessage.annotations),
    tools that Groq ran (groq-sdk, ChatCompletionMessage.executed_tools), and the results of Z.AI's search."""

    def __init__(self) -> None:
        self._is_searched = False
        self._tools: set[Any] = set()
        """The tools that ran, by their numbers."""

    def take(self, value: Mapping[str, Any]) -> Usage | None:
        """Take an answer or a chunk; return the usage so far if this is a report of it."""
        report, choices, model = value.get("usage"), value.get("choices"), value.get("model")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if report is None:  # Moonshot's streams: northes/go-moonshot#17
                report = choice.get("usage")
            message = choice.get("delta") or choice.get("message")
            if isinstance(message, dict) and (message.get("annotations") or message.get("executed_tools")):
                self._note(message)
        if value.get("web_search") or (isinstance(model, str) and SEARCHES_ALWAYS.search(model) is not None):
            self._is_searched = True
        if report is None and ("x_groq" in value or "timings" in value):
            report = _elsewhere(value)
        usage = None if report is None else reported(report, value.get("service_tier"))
        if usage is None or not (self._is_searched or self._tools):
            return usage
        paid = units.counts({"web_searches": int(self._is_searched), "tool_calls": len(self._tools)})
        return usage._replace(more=units.highest(usage.more, paid))

    def _note(self, message: Mapping[str, Any]) -> None:
        cited = [each.get("type") for each in objects(message.get("annotations"))]
        self._is_searched = self._is_searched or "url_citation" in cited
        tools = objects(message.get("executed_tools"))
        self._tools |= {str(tool.get("index", place)) for place, tool in enumerate(tools)}


def _elsewhere(value: Mapping[str, Any]) -> Any:
    """A report in `x_groq` (Groq's streams: groq-sdk, ChatCompletionChunk), or llama.cpp's `timings`."""
    groq, timings = value.get("x_groq"), value.get("timings")
    if isinstance(groq, dict) and isinstance(groq.get("usage"), dict):
        return groq["usage"]
    if not isinstance(timings, dict):
        return None
    cached = count(timings.get("cache_n")) or 0
    return {**timings, "prompt_n": (count(timings.get("prompt_n")) or 0) + cached}

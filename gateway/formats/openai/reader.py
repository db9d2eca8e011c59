"""Reads answers of chat completions, completions and embeddings, and the chunks of their streams.

Some upstreams send content as parts, thoughts among them (Mistral); reasoning is `reasoning_content` (DeepSeek, vLLM)
or `reasoning` (OpenRouter, newer vLLM). Choices differ by `index`; a translation is made of answers of one.

`OWN` has the counts that vendors and resellers write under names of their own. OpenAI's own name wins, also with a
count of 0.

The sums differ as well. A total that is more than prompt and completion has tokens that neither of them counts: the
cache, where it is just as much, else thoughts, which xAI and Gemini's chat endpoint leave out of `completion_tokens`
and bill (docs.x.ai, "Reasoning"; discuss.ai.google.dev/t/98760).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

from gateway import units
from gateway.api import json_document
from gateway.errors import InvalidRequest
from gateway.formats import reported_usage, sse, token_rule
from gateway.formats.event_scan import EventScan
from gateway.formats.events import (
    CallPiece,
    Ended,
    Event,
    Picture,
    Refusal,
    ServedTier,
    Text,
    Thought,
    ToolCalls,
    Unfit,
)
from gateway.formats.format import ScanInput
from gateway.formats.member_reader import EACH
from gateway.formats.reader import AnswerReader, as_arguments, keep, objects, text_of, value_at
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
_QWEN = "alibabacloud.com, Model Studio: context cache, web search"
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
    Own("Perplexity", ("prompt_tokens_details", "cache_read_input_tokens"), "cached", "genai-prices, perplexity"),
    Own("LiteLLM", ("cache_creation_input_tokens",), "written", _ANTHROPIC),
    Own("LiteLLM", ("prompt_tokens_details", "cache_creation_tokens"), "written", _ANTHROPIC),
    Own("DashScope", ("prompt_tokens_details", "cache_creation_input_tokens"), "written", _QWEN),
    Own("DashScope", ("prompt_tokens_details", "cache_creation", "ephemeral_1h_input_tokens"), "written_1h", _QWEN),
    Own("GoModel over Bedrock", ("cache_write_input_tokens",), "written", "ENTERPILOT/GoModel#726"),
    Own("LiteLLM", ("cache_creation", "ephemeral_1h_input_tokens"), "written_1h", _ANTHROPIC),
    Own("Databricks, Modal, Perplexity", ("reasoning_tokens",), "reasoning", "genai-prices, these providers"),
    Own("Perplexity", ("citation_tokens",), "citations", _PERPLEXITY),
    Own("Perplexity", ("num_search_queries",), "web_searches", _PERPLEXITY),
    Own("LiteLLM", ("server_tool_use", "web_search_requests"), "web_searches", _ANTHROPIC),
    Own("OpenRouter", ("server_tool_use_details", "web_search_requests"), "web_searches", "beside it, in streams"),
    Own("Mistral", ("connectors", "web_search"), "web_searches", "docs.mistral.ai, agents: connectors"),
    Own("Volcano's Ark", ("tool_usage", "web_search"), "web_searches", "volcengine.com/docs/82379/1262333"),
    Own("LiteLLM", ("prompt_tokens_details", "web_search_requests"), "web_searches", "LiteLLM, PromptTokensDetails"),
    Own("Perplexity", ("tool_calls_details", "search_web", "invocation"), "web_searches", "genai-prices, perplexity"),
    Own("Perplexity", ("tool_calls_details", "fetch_url", "invocation"), "tool_calls", "docs.perplexity.ai, pricing"),
    Own("xAI", ("server_side_tool_usage_details", "web_search_calls"), "web_searches", _XAI),
    Own("xAI", ("server_side_tool_usage_details", "x_search_calls"), "tool_calls", _XAI, adds=True),
    Own("xAI", ("server_side_tool_usage_details", "code_interpreter_calls"), "tool_calls", _XAI, adds=True),
    Own("xAI", ("server_side_tool_usage_details", "file_search_calls"), "file_searches", _XAI, adds=True),
    Own("xAI", ("server_side_tool_usage_details", "document_search_calls"), "file_searches", _XAI, adds=True),
    Own("xAI", ("server_side_tool_usage_details", "image_generation_calls"), "images", _XAI),
    Own("DashScope", ("plugins", "search", "count"), "web_searches", _QWEN),
    Own("DashScope", ("x_tools", "web_search", "count"), "web_searches", _QWEN),
    Own("DashScope", ("x_tools", "web_extractor", "count"), "tool_calls", _QWEN, adds=True),
    Own("xAI", ("num_sources_used",), "search_sources", "docs.x.ai, live search: each source is billed"),
    Own("Mistral", ("prompt_audio_seconds",), "audio_s", "docs.mistral.ai, audio"),
)

_THOUGHTS_BESIDE = frozenset({"citation_tokens", "num_search_queries", "cached_prompt_text_tokens"})
"""Members of the reports in which `reasoning_tokens` are beside `completion_tokens`: of Perplexity, and of xAI's old
form (genai-prices, `perplexity` and `x-ai`). Others have them within, as OpenAI has."""

_PLAIN = frozenset({
    "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details",
})  # fmt: skip
_PLAIN_DETAILS = frozenset({
    "cached_tokens", "audio_tokens", "text_tokens", "image_tokens", "cache_write_tokens", "cache_write_tokens_details",
})  # fmt: skip


def reported(report: Any, service_tier: Any = None, provider: Any = None) -> Usage | None:
    """The usage object of an answer or a chunk, and the service tier and the vendor named beside it; None if the former
    is missing or cannot be read."""
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
        return _by_own_names(report, variant, is_beside=provider == "anthropic")
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


def embedded(report: Any, *beside: Any) -> Usage | None:
    """Returns the usage of embeddings, whose tokens are all prompt: Voyage and DashScope report the total alone
    (docs.voyageai.com, embeddings; alibabacloud.com, text embedding). None where `reported` returns None."""
    return all_prompt(reported(report, *beside))


def _by_own_names(report: Mapping[str, Any], variant: str, *, is_beside: bool) -> Usage | None:
    """A report with members or sums that are not OpenAI's. `is_beside`: it is Claude's, with Anthropic's counts."""
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
    shown = count(value_at(of_prompt, ("cached_tokens",)))
    cached = own.get("cached", 0) if shown is None else shown
    if "cache_write" not in more and "cache_write_1h" not in more:
        more["cache_write_1h"] = own.get("written_1h", 0)
        more["cache_write"] = max(0, own.get("written", 0) - own.get("written_1h", 0))
    shown = count(value_at(of_completion, ("reasoning_tokens",)))
    reasoning = own.get("reasoning", 0) if shown is None else shown
    of_cache = cached + more.get("cache_write", 0) + more.get("cache_write_1h", 0)
    if of_cache and ("cached" in own or "written" in own) and (is_beside or of_cache > prompt):
        prompt += of_cache  # beside the prompt, as Anthropic counts; so does GoModel (providers/anthropic)
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


NAMED = (b'"url_citation"', b'"executed_tools"', b'web_search"')
"""An answer without any of these in its bytes names no paid tool beside its usage."""

_SEARCHES_ALWAYS = re.compile(r"\bgpt-[\w.-]{1,64}-search-(?:preview|api)\b")
"""OpenAI's models that search for each call of a chat (OpenAI's guide on web search)."""


def searches_always(model: object) -> bool:
    return isinstance(model, str) and _SEARCHES_ALWAYS.search(model) is not None


def _beside_error(value: Mapping[str, Any]) -> Usage | None:
    """The report beside an error, which bills what was made before it; None: it counts nothing."""
    usage = reported(value.get("usage"), value.get("service_tier"), value.get("provider"))
    return usage if usage is not None and (usage.prompt_tokens or usage.completion_tokens) else None


def _elsewhere(value: Mapping[str, Any]) -> Any:
    """A report in `x_groq` (Groq's streams: groq-sdk, ChatCompletionChunk), or llama.cpp's `timings`."""
    groq, timings = value.get("x_groq"), value.get("timings")
    if isinstance(groq, dict) and isinstance(groq.get("usage"), dict):
        return groq["usage"]
    if not isinstance(timings, dict):
        return None
    cached = count(timings.get("cache_n")) or 0
    return {**timings, "prompt_n": (count(timings.get("prompt_n")) or 0) + cached}


_REASONS = {
    "max_tokens": "length", "MAX_TOKENS": "length", "model_length": "length", "max_output_tokens": "length",
    "STOP": "stop", "end_turn": "stop", "eos": "stop", "COMPLETE": "stop",
    "tool_use": "tool_calls", "TOOL_CALL": "tool_calls", "function_call": "tool_calls",
    "SAFETY": "content_filter", "refusal": "content_filter", "sensitive": "content_filter",
}  # fmt: skip
"""Reasons of other APIs that relays pass on (qwen-code#9884, ferro-labs#142), as chat has them."""
_FAILURES = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})
"""Reasons of an answer that broke off: OpenRouter's, vLLM's, DeepSeek's, Z.AI's."""
_TEXTS = frozenset({"text", "output_text"})
_THOUGHTS = frozenset({"thinking", "reasoning", "redacted_thinking"})
_SEEN = frozenset({"reference", "tool_reference", "image_url"})
"""Parts that are no text: those of Mistral's that name sources by number (vercel/ai#4747, mistralai/client-python#325),
and pictures."""
MOST_CHOICES = 128
_NAMING = frozenset({"annotations", "executed_tools", "tool_calls"})
_NAMES_TOOLS = (
    ("delta", "annotations"), ("delta", "executed_tools"), ("message", "annotations"), ("message", "executed_tools"),
)  # fmt: skip


class ChatReader(AnswerReader):
    """Follows one answer. `finished` are the indexes of choices whose `finish_reason` has come, negative where they are
    not known."""

    WANTED = (
        ("model",), ("service_tier",), ("provider",), ("usage",), ("error",), ("x_groq",), ("web_search",),
        ("choices", EACH, "index"), ("choices", EACH, "finish_reason"), ("choices", EACH, "usage"),
        *[("choices", EACH, *path) for path in _NAMES_TOOLS],
    )  # fmt: skip

    def __init__(self) -> None:
        self.finished: set[int] = set()
        self._is_searched = False
        self._searches: set[int] = set()
        self._tools: set[int] = set()
        self._of_choices: dict[int, Usage] = {}
        self._calls = ToolCalls()

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        """Take the facts, among them the paid tools that an answer names beside its usage: citations of a search, of
        which there was one at least (openai-python, ChatCompletionMessage.annotations), tools that Groq ran (groq-sdk,
        ChatCompletionMessage.executed_tools), and the results of Z.AI's search."""
        if value.get("error"):
            self.take_error(value["error"])
            return _beside_error(value)
        report, choices, model, of_choices = value.get("usage"), value.get("choices"), value.get("model"), None
        if self.model is None:
            self.take_model(model)
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if choice.get("error"):  # OpenRouter (genkit#6259)
                self.take_error(choice["error"])
                return _beside_error(value)
            index, reason = choice.get("index"), choice.get("finish_reason")
            if reason and isinstance(reason, str) and isinstance(index, int | None):
                keep(self.finished, (self._unnamed() if index is None else index,))
            if report is None and choice.get("usage") and (used := reported(choice["usage"])) is not None:
                of_choices = self._of_all(index, used)
            message = choice.get("delta") or choice.get("message")
            if isinstance(message, dict) and not _NAMING.isdisjoint(message):
                self._note(message, index)
        if value.get("web_search") or searches_always(model):
            self._is_searched = True
        if report is None and ("x_groq" in value or "timings" in value):
            report = _elsewhere(value)
        usage = of_choices if report is None else reported(report, value.get("service_tier"), value.get("provider"))
        paid: units.Counts = self._named.more
        if self._is_searched or self._tools or self._searches:
            searches = len(self._searches) or int(self._is_searched)
            paid = units.counts({"web_searches": searches, "tool_calls": len(self._tools)})
        self._named = Usage(more=paid, variant=text_of(value.get("service_tier")) or self._named.variant)
        return usage if usage is None or not paid else usage._replace(more=units.highest(usage.more, paid))

    def _of_all(self, index: object, used: Usage) -> Usage:
        """The usage of all choices so far: in Moonshot's streams each has its own report, with the same prompt
        (northes/go-moonshot#17; platform.moonshot.ai, "Use the streaming feature")."""
        choice = index if isinstance(index, int) and len(self._of_choices) < MOST_CHOICES else 0
        self._of_choices[choice] = reported_usage.highest(self._of_choices.get(choice), used)
        each = [*self._of_choices.values()]
        return reduce(reported_usage.highest, each)._replace(
            completion_tokens=sum(one.completion_tokens for one in each),
            reasoning_tokens=sum(one.reasoning_tokens for one in each),
        )

    def _note(self, message: Mapping[str, Any], choice: object) -> None:
        cited = [each.get("type") for each in objects(message.get("annotations"))]
        self._is_searched = self._is_searched or "url_citation" in cited
        tools = objects(message.get("executed_tools"))
        keep(self._tools, (str(tool.get("index", place)) for place, tool in enumerate(tools)))
        for place, call in enumerate(objects(message.get("tool_calls"))):
            if value_at(call, ("function", "name")) == "$web_search":  # Kimi's, billed by call (kimi.com/help, billing)
                keep(self._searches, (f"{choice} {call.get('index', place)}",))

    def events(self, value: Mapping[str, Any]) -> list[Event]:
        choices, tier = value.get("choices"), value.get("service_tier")
        found: list[Event] = [ServedTier(tier)] if isinstance(tier, str) else []
        if not isinstance(choices, list) or not choices:
            return found
        choice = choices[0]
        # Foundry Local numbers its chunks, and has a message beside the delta (foundry-local#144).
        is_numbered = isinstance(choice, dict) and "delta" in choice and "message" in choice
        if len(choices) > 1 or not isinstance(choice, dict) or ((choice.get("index") or 0) != 0 and not is_numbered):
            raise Unfit("a choice that was not asked for")
        delta = choice.get("delta", choice.get("message"))
        delta = {} if delta is None else delta
        if not isinstance(delta, dict):
            raise Unfit("the message of a choice is not a JSON object")
        found += list(_content(delta, choice.get("logprobs")))
        found += self._called(delta.get("tool_calls"))
        if delta.get("function_call"):  # the older form (can1357/oh-my-pi#1692)
            found += self._called([{"function": delta["function_call"]}])
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        if reason is not None and not isinstance(reason, str):
            raise Unfit("a finish_reason that is no text")
        if reason in _FAILURES:
            raise Unfit(f"the finish_reason {reason}")
        if reason or isinstance(stop, str):  # vLLM's stop_reason is the stop sequence
            found.append(Ended(_REASONS.get(reason or "", reason or ""), stop if isinstance(stop, str) else None))
        return found

    def rest(self) -> list[Event]:
        return [CallPiece(call, arguments) for call, arguments in self._calls.rests()]

    def _unnamed(self) -> int:
        """The index of a choice that has none: upstreams leave it out of the only one, and some of all."""
        return -1 - len(self.finished) if 0 in self.finished else 0

    def _called(self, given: Any) -> Iterator[Event]:
        given = [given] if isinstance(given, dict) else given if isinstance(given, list) else []
        for number, each in enumerate(given):
            function = each.get("function") if isinstance(each, dict) else None
            if not isinstance(function, dict | None) or not isinstance(each, dict):
                raise Unfit("a tool call that is no function call")
            if each.get("type", "function") not in ("function", None, ""):
                raise Unfit("a tool call that is no function call")
            function, index = function or {}, each.get("index")
            if type(index) is not int and len(given) > 1:
                index = number  # calls that come together, without numbers
            for call, piece in self._calls.take(
                index if type(index) is int else None,
                text_of(each.get("id")), text_of(function.get("name")), as_arguments(function.get("arguments")),
            ):  # fmt: skip
                yield CallPiece(call, piece)


def _content(delta: Mapping[str, Any], logprobs: Any) -> Iterator[Event]:
    """The thoughts, the text, the refusal and the pictures in a message or a delta."""
    thought, text = contents(delta.get("content"))
    shown = text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning")) or thought
    details = objects(delta.get("reasoning_details"))  # OpenRouter's (inspect_ai#4184)
    if shown := shown or "".join([text_of(each.get("text")) or text_of(each.get("summary")) for each in details]):
        yield Thought(shown)
    annotations = objects(delta.get("annotations"))
    if text or annotations:
        yield Text(text, objects(logprobs.get("content")) if isinstance(logprobs, dict) else (), annotations)
    if refusal := text_of(delta.get("refusal")):
        yield Refusal(refusal)
    yield from map(Picture, pictures(delta))


def pictures(message: Mapping[str, Any]) -> list[str]:
    """The data URLs or addresses of the pictures in a message or a delta: OpenRouter, Vercel and LiteLLM write `images`
    (openrouter.ai/docs, "Image Generation"; litellm#13983), some relays parts of the content."""
    parts = (*objects(message.get("images")), *objects(message.get("content")))
    return [url for part in parts if (url := text_of(value_at(part, ("image_url", "url"))))]


def contents(content: Any) -> tuple[str, str]:
    """The thoughts and the text of a content. Raises `Unfit` for a part that is neither."""
    if content is None or isinstance(content, str):
        return "", content or ""
    thoughts, texts = [], []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        kind = kind if isinstance(kind, str) else None
        if kind in _TEXTS:
            texts.append(text_of(part.get("text")))
        elif kind in _THOUGHTS:
            thoughts.append(contents(part.get("thinking", part.get("text")))[1])
        elif kind not in _SEEN:
            raise Unfit("content that is no text")
    return "".join(thoughts), "".join(texts)


_CHAT_CHUNK = "chat.completion.chunk"


MEDIA = re.compile(rb'"(?:audio|image_url)"\s*+:\s*+\{')
"""Finds sound and pictures in an answer (openai-python, ChatCompletionAudio; `pictures`)."""


class StreamScan(EventScan):
    """Follows one streamed answer of completions or chat. `is_done`: `[DONE]` has come.

    Events leave as they came, except: the usage chunk is left out for a client that did not ask for it, `usage` on
    another chunk becomes null for it; the usage chunk of a completion is no longer called a chat's; `id:` and `retry:`
    lines and events without data are dropped; from everything that is not a chunk, such as a comment, the gateway's own
    texts are removed. `[DONE]` and errors are not passed on here: the relay decides that.
    """

    READER = ChatReader
    THINKS = reported_usage.REASONING
    MEDIA = MEDIA
    MATTERS = re.compile(
        rb'"finish_reason"\s*:\s*"(?!")|"usage"\s*:\s*(?!\s|null)|"error"\s*:\s*(?!\s|null)|"url_citation"|"\$web_search"'
        rb'|"(?:executed_tools|web_search)"\s*:\s*\['
    )
    NAMES_MODEL = re.compile(rb'"model"\s*:\s*"')

    reader: ChatReader

    def __init__(self, asked: ScanInput, *, is_chat: bool = True) -> None:
        # Choices come by turns: only of a single one all texts are one.
        super().__init__(asked if asked.choices == 1 else asked._replace(count_texts=token_rule.count))
        self._choices = asked.choices
        self._shows_usage = asked.shows_usage
        self._is_chat = is_chat

    def _has_all(self) -> bool:
        """Whether every choice that was asked for has had its `finish_reason`."""
        return len(self.reader.finished) >= self._choices

    def _ends_with_done(self) -> bool:
        return True

    def _last(self) -> bytes:
        """`[DONE]`, if it came. An answer without it ends without: both SDKs take that, and an invented one would be
        false."""
        return sse.DONE if self.is_done else b""

    def _shown(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        if value.get("usage") is None:
            return event
        has_content = any(_has_content(choice) for choice in objects(value.get("choices")))
        if self._shows_usage:
            if self._is_chat or has_content or value.get("object") != _CHAT_CHUNK:
                return event
            # new-api writes this chunk itself, always as for a chat (relay/helper). The chunks before it are from the
            # provider behind it, and have the right object name.
            return sse.write_event(_changed(data, value, {"object": "text_completion"}))
        if has_content:
            return sse.write_event(_changed(data, value, {"usage": None}))
        return b""


def _changed(data: bytes, chunk: Mapping[str, Any], values: dict[str, Any]) -> bytes:
    """The chunk with these values, all else as the upstream wrote it; `chunk` is the same, parsed."""
    try:
        changed = json_document.replace(json_document.parse(data), values)
    except InvalidRequest:  # odder than a request may be: written anew
        return json.dumps({**chunk, **values}, separators=(",", ":")).encode()
    return changed.replace(b"\n", b" ")  # lines of data, which are only between the members


def as_event(answer: bytes, shows_usage: bool, charged: Usage) -> bytes:
    """A whole answer, which is an object in JSON, as the one event of a stream: for a client that reads only events."""
    try:
        chunk = json.loads(answer)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return sse.write_event(b" ".join(answer.splitlines()))
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict) and isinstance(message := choice.pop("message", None), dict):
            calls = message.get("tool_calls")
            for index, call in enumerate(calls if isinstance(calls, list) else []):
                if isinstance(call, dict):
                    call.setdefault("index", index)
            choice["delta"] = message
    if chunk.get("object") == "chat.completion":
        chunk["object"] = _CHAT_CHUNK
    if not shows_usage:
        chunk.pop("usage", None)
    return sse.json_event(chunk)


def _has_content(choice: dict[str, Any]) -> bool:
    """Whether a choice of a chunk holds more than its index (LiteLLM's usage chunk has `choices: [{"index": 0}]`)."""
    return any(value for name, value in choice.items() if name != "index")

"""Every shape in which vendors and resellers report the usage of an answer, and what each report means.

A shape is data: the members that hold the report, in a plain answer and at the places of a stream, and the counts that
it means. The reports are this project's own. `says` holds what the vendor's SDK reads where that is not what the report
means; `source` names who says what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.formats.openai.reader import OWN, Own

PRICE: dict[str, Any] = {
    "input": 1, "cached_input": 0.1, "output": 10, "reasoning": 12, "cache_write": 2, "cache_write_1h": 4,
    "audio_in": 3, "audio_out": 20, "image_in": 5, "image_out": 30,
}  # fmt: skip
"""US dollars for a million tokens. Each row differs, so that a token in the wrong row changes the cost."""

IMAGE_PRICE = {"input": 1, "output": 30, "image_in": 5, "image_out": 30, "image": 0.04}
RERANK_PRICE = {"input": 1, "search_units_per_1000": 2}
SECOND_PRICE = {"audio_per_minute": 0.006}
CHARACTER_PRICE = {"characters_per_million": 15}

_NUSD = {row: round(usd * 1000) for row, usd in PRICE.items()}
"""Billionths of a US dollar for one token."""


class Counts(NamedTuple):
    """The meaning of a report. Parts are included in `prompt` and `output`."""

    prompt: int
    output: int
    cached: int = 0
    written: int = 0
    """To the upstream's cache, for any time."""
    reasoning: int = 0

    def times(self, factor: int) -> Counts:
        return Counts(*[factor * each for each in self])


class Shape(NamedTuple):
    """One shape of a report. Without `counts` the report means nothing, and the usage is an estimate."""

    name: str
    source: str
    counts: Counts | None
    plain: Mapping[str, Any] | None = None
    """Members of a plain answer; None: the shape is one of streams. Members named `choice` belong to the choice."""
    stream: Sequence[tuple[str, Mapping[str, Any]]] | None = None
    """Members of events by their places, in order; None: the shape is one of plain answers."""
    says: Counts | None = None
    """What the vendor's SDK reads, where it differs."""
    parts: Mapping[str, int] = {}
    """Audio and image tokens that are not cached, and writes that last an hour, by rows of the price."""
    total: int | None = None
    """The sum of prompt and output, where the report has nothing else."""
    nusd: int | None = None
    """The cost, where it is no sum over `PRICE`."""
    knows_reasoning: bool = True
    """Whether the report says how much of the output is reasoning."""
    is_final: bool = True
    """Whether the report comes with the end of the answer. If not, the same counts may be marked as an estimate."""


def cost_nusd(counts: Counts, parts: Mapping[str, int]) -> int:
    """The cost of these counts at `PRICE`, each token at one rate."""
    of_prompt = {row: count for row, count in parts.items() if row in ("audio_in", "image_in")}
    of_output = {row: count for row, count in parts.items() if row in ("audio_out", "image_out")}
    longer = parts.get("cache_write_1h", 0)
    amounts = {
        "input": counts.prompt - counts.cached - counts.written - sum(of_prompt.values()),
        "cached_input": counts.cached,
        "cache_write": counts.written - longer,
        "cache_write_1h": longer,
        "output": counts.output - counts.reasoning - sum(of_output.values()),
        "reasoning": counts.reasoning,
        **of_prompt,
        **of_output,
    }
    return sum([_NUSD[row] * count for row, count in amounts.items()])


# ------------------------------------------------------------------------------------------------------ OpenAI's chats

OPENAI = "openai-openapi, CompletionUsage"
LAST_COUNTS = "vLLM, continuous_usage_stats: each report is cumulative"
HIGHEST = "docs/usage.md: the highest plausible report counts, a lower one or one of nothing behind it changes nothing"
NULL = "openai/openai-agents-js#1474: a chunk without usage leaves the one before"


def chat_usage(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **more}}


def anywhere(
    name: str, source: str, counts: Counts | None, members: Mapping[str, Any], *, place: str = "last", **more: Any
) -> Shape:
    """A report that plain answers and streams have alike."""
    return Shape(name, source, counts, members, [(place, members)], **more)


def streamed(
    name: str, source: str, counts: Counts | None, *stream: tuple[str, Mapping[str, Any]], **more: Any
) -> Shape:
    return Shape(name, source, counts, None, stream, **more)


_WHOLE = chat_usage(300, 120)
_ZEROS = chat_usage(0, 0)
_PLAIN = Counts(300, 120)
_THOUGHT = {"completion_tokens_details": {"reasoning_tokens": 80}}

CHAT: list[Shape] = [
    anywhere("counts", OPENAI, _PLAIN, _WHOLE),
    anywhere(
        "cached, written and reasoning", OPENAI, Counts(300, 120, 200, 50, 40),
        chat_usage(300, 120, prompt_tokens_details={"cached_tokens": 200, "cache_write_tokens": 50},
                   completion_tokens_details={"reasoning_tokens": 40}),
    ),
    anywhere(
        "sound", OPENAI, _PLAIN,
        chat_usage(300, 120, prompt_tokens_details={"audio_tokens": 100, "cached_tokens": 0},
                   completion_tokens_details={"audio_tokens": 70, "reasoning_tokens": 0}),
        parts={"audio_in": 100, "audio_out": 70},
    ),
    anywhere(
        "pictures", OPENAI, _PLAIN,
        chat_usage(300, 120, prompt_tokens_details={"image_tokens": 100},
                   completion_tokens_details={"image_tokens": 70}),
        parts={"image_in": 100, "image_out": 70},
    ),
    anywhere(
        "details that are null", OPENAI, _PLAIN,
        chat_usage(300, 120, prompt_tokens_details=None, completion_tokens_details=None),
    ),
    # Names and sums of vendors.
    anywhere(
        "Moonshot's cached_tokens", "vercel/ai, convert-moonshotai-chat-usage.ts reads usage.cached_tokens first",
        Counts(300, 120, 200), chat_usage(300, 120, cached_tokens=200), says=_PLAIN,
    ),
    anywhere(
        "DeepSeek's hits and misses", "api-docs.deepseek.com, context caching: hits and misses are the prompt",
        Counts(300, 120, 200), chat_usage(300, 120, prompt_cache_hit_tokens=200, prompt_cache_miss_tokens=100),
        says=_PLAIN,
    ),
    anywhere(
        "thoughts in the total alone", "discuss.ai.google.dev/t/98760: they are billed as output",
        Counts(300, 1120), chat_usage(300, 120, total_tokens=1420), says=_PLAIN,
        knows_reasoning=False,
    ),
    anywhere(
        "reasoning beside the completion", "docs.x.ai: total_tokens is prompt, completion and reasoning",
        Counts(300, 200, reasoning=80), chat_usage(300, 120, total_tokens=500, **_THOUGHT),
        says=Counts(300, 120, reasoning=80),
    ),
    anywhere(
        "the names of Responses", "earendil-works/pi#2326: some hosts write them in chats", _PLAIN,
        {"usage": {"input_tokens": 300, "output_tokens": 120, "total_tokens": 420}}, says=Counts(0, 0),
    ),
    streamed(
        "inside the choice", "platform.moonshot.ai, chat: streams have usage in the last choice", _PLAIN,
        ("finish", {"choice": _WHOLE}), says=Counts(0, 0),
    ),
    streamed(
        "Groq's x_groq", "groq-python, ChatCompletionChunk.x_groq.usage: sent in the final chunk", _PLAIN,
        ("finish", {"x_groq": {"id": "req_1", **_WHOLE}}), says=Counts(0, 0),
    ),
    anywhere(
        "only a total", "kind E: a count that is there is used", None, {"usage": {"total_tokens": 420}}, total=420,
        says=Counts(0, 0),
    ),
    # Places in a stream.
    streamed("beside the finish", OPENAI, _PLAIN, ("finish", _WHOLE)),
    streamed("in a chunk with an empty choice", "xAI and Azure: BerriAI/litellm#17136", _PLAIN, ("after", _WHOLE)),
    streamed("before the text, alone", "docs/usage.md: a report on the way is a lower bound", None,
             ("begin", chat_usage(300, 1)), says=Counts(300, 1)),
    streamed("with the last text, then null", NULL, _PLAIN, ("text", _WHOLE), ("finish", {"usage": None}),
             ("after", {"usage": None}), is_final=False),
    streamed("with the finish, then null", NULL, _PLAIN, ("finish", _WHOLE), ("after", {"usage": None})),
    streamed("null in each chunk before", OPENAI, _PLAIN, ("begin", {"usage": None}), ("text", {"usage": None}),
             ("finish", {"usage": None}), ("last", _WHOLE)),
    streamed("cumulative", LAST_COUNTS, _PLAIN, ("begin", chat_usage(300, 1)), ("text", chat_usage(300, 60)),
             ("finish", _WHOLE)),
    streamed("cumulative, and once more", LAST_COUNTS, _PLAIN, ("begin", chat_usage(300, 1)),
             ("text", chat_usage(300, 60)), ("finish", _WHOLE), ("last", _WHOLE)),
    streamed("twice", "openai/openai-python: the same report in two chunks is one", _PLAIN, ("finish", _WHOLE),
             ("last", _WHOLE)),
    streamed("a preview", "vllm-project/semantic-router#2215: the last report counts", _PLAIN,
             ("finish", chat_usage(300, 4)), ("last", _WHOLE)),
    streamed("the prompt alone before", "vercel/ai#2763", _PLAIN,
             ("begin", {"usage": {"prompt_tokens": 300, "total_tokens": 300}}), ("last", _WHOLE)),
    streamed("details in the first of two", LAST_COUNTS, Counts(300, 120, 200),
             ("finish", chat_usage(300, 120, prompt_tokens_details={"cached_tokens": 200})), ("last", _WHOLE),
             says=_PLAIN),
    streamed("details in the last of two", LAST_COUNTS, Counts(300, 120, 200), ("finish", _WHOLE),
             ("last", chat_usage(300, 120, prompt_tokens_details={"cached_tokens": 200}))),
    streamed("lower later", HIGHEST, _PLAIN, ("finish", _WHOLE), ("last", chat_usage(300, 90)), says=Counts(300, 90)),
    streamed("zeros at the end", HIGHEST, _PLAIN, ("finish", _WHOLE), ("last", _ZEROS), says=Counts(0, 0)),
    streamed("thoughts in the total, cumulative", "discuss.ai.google.dev/t/98760", Counts(300, 1120),
             ("begin", chat_usage(300, 20, total_tokens=1320)), ("finish", chat_usage(300, 120, total_tokens=1420)),
             says=_PLAIN, knows_reasoning=False),
    # Nothing that can be believed.
    anywhere("none", "no report is an estimate", None, {}),
    anywhere("null", "no report is an estimate", None, {"usage": None}),
    anywhere("empty", "no report is an estimate", None, {"usage": {}}),
    anywhere("zeros", "docs/usage.md: zero output is not believed where text was shown", None, _ZEROS,
             says=Counts(0, 0)),
    anywhere("absurd", "docs/usage.md: a report above the ceilings is bounded", None,
             chat_usage(900_000_000, 900_000_000), says=Counts(900_000_000, 900_000_000)),
]  # fmt: skip

_OF_MEANING: dict[str, tuple[Counts, int, Mapping[str, int]]] = {
    "prompt": (_PLAIN, 300, {}), "completion": (_PLAIN, 120, {}), "cached": (Counts(300, 120, 200), 200, {}),
    "written": (Counts(300, 120, written=50), 50, {}),
    "written_1h": (Counts(300, 120, written=50), 50, {"cache_write_1h": 50}),
    "reasoning": (Counts(300, 120, reasoning=40), 40, {}),
}  # fmt: skip
"""Meanings of `Own`: what such a report means, the count in it, and parts that have a price of their own. Units beside
tokens are in `test_paid_tools.py` and `test_unpriced_tools.py`."""


def of_vendor(own: Own) -> Shape:
    """A stream's report with this row of the reader's table."""
    means, count, parts = _OF_MEANING[own.meaning]
    replaced = {"prompt": "prompt_tokens", "completion": "completion_tokens"}.get(own.meaning)
    report: Any = {name: value for name, value in _WHOLE["usage"].items() if name not in (replaced, "total_tokens")}
    says = Counts(report.get("prompt_tokens", 0), report.get("completion_tokens", 0))
    inside = report
    for name in own.path[:-1]:
        inside = inside.setdefault(name, {})
    inside[own.path[-1]] = count
    name = f"{own.vendor}: {'.'.join(own.path)}"
    return streamed(name, own.source, means, ("last", {"usage": report}), says=says, parts=parts)


OF_VENDORS = [of_vendor(own) for own in OWN if own.meaning in _OF_MEANING]
"""Every name of a count of tokens that the reader knows."""

_OF_CHAT_ALONE = ("sound", "pictures", "the names of Responses", "inside the choice", "Groq's x_groq")
COMPLETIONS = [shape for shape in CHAT if shape.name not in _OF_CHAT_ALONE]

# ------------------------------------------------------------------------------------------------ Anthropic's Messages

MESSAGES_RULE = "anthropic-sdk, Usage: input_tokens is without the cache"
ACCUMULATED = "anthropic-sdk, accumulate_event: each count that is given replaces its own"
KIMI = "maximhq/bifrost#5510: the first report counts the cache in input_tokens, the last does not"


def messages_usage(**counts: Any) -> dict[str, Any]:
    names = {"fresh": "input_tokens", "output": "output_tokens", "read": "cache_read_input_tokens",
             "written": "cache_creation_input_tokens"}  # fmt: skip
    return {"usage": {names.get(name, name): value for name, value in counts.items()}}


_BOTH = messages_usage(fresh=300, output=120)
_START = messages_usage(fresh=300, output=1)
_CACHES = messages_usage(
    fresh=50, output=120, read=200, written=50, output_tokens_details={"thinking_tokens": 40},
    cache_creation={"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
)  # fmt: skip

MESSAGES: list[Shape] = [
    Shape("counts", MESSAGES_RULE, _PLAIN, _BOTH, [("begin", _START), ("finish", messages_usage(output=120))]),
    Shape("cached, written and thinking", MESSAGES_RULE, Counts(300, 120, 200, 50, 40), _CACHES,
          [("begin", _CACHES), ("finish", messages_usage(output=120, output_tokens_details={"thinking_tokens": 40}))],
          parts={"cache_write_1h": 30}),
    streamed("the input in both", ACCUMULATED, _PLAIN, ("begin", _START), ("finish", _BOTH)),
    streamed("caches in the delta, without input", ACCUMULATED, Counts(300, 120, 200, 50),
             ("begin", messages_usage(fresh=50, output=1, read=0, written=0)),
             ("finish", messages_usage(output=120, read=200, written=50))),
    streamed("caches in the delta, none before", ACCUMULATED, Counts(300, 120, 200, 50),
             ("begin", messages_usage(fresh=50, output=1)),
             ("finish", messages_usage(output=120, read=200, written=50))),
    streamed("more cache in the delta, without input", ACCUMULATED, Counts(300, 120, 250),
             ("begin", messages_usage(fresh=50, output=1, read=100)),
             ("finish", messages_usage(output=120, read=250))),
    streamed("all counts in the delta", "cline/cline#4346", Counts(300, 120, 200, 50),
             ("begin", messages_usage(fresh=0, output=0)),
             ("finish", messages_usage(fresh=50, output=120, read=200, written=50))),
    streamed("input in the delta, nothing before", "cline/cline#4346", _PLAIN, ("begin", messages_usage(output=1)),
             ("finish", _BOTH)),
    streamed("nulls in the delta", "huggingface/tau#617", Counts(300, 120, 200, 50),
             ("begin", messages_usage(fresh=50, output=1, read=200, written=50)),
             ("finish", messages_usage(fresh=None, output=120, read=None, written=None))),
    streamed("zeros of input in the delta", "envoyproxy/ai-gateway#1631: zeros replace nothing", _PLAIN,
             ("begin", _START), ("finish", messages_usage(fresh=0, output=120)), says=Counts(0, 120)),
    streamed("the cache is counted twice at first", KIMI, Counts(300, 120, 200),
             ("begin", messages_usage(fresh=300, output=1, read=200)),
             ("finish", messages_usage(fresh=100, output=120, read=200))),
    streamed("cumulative", ACCUMULATED, _PLAIN, ("begin", _START), ("early", messages_usage(output=20)),
             ("early", messages_usage(output=60)), ("finish", messages_usage(output=120))),
    streamed("cumulative, and once more", ACCUMULATED, _PLAIN, ("begin", _START), ("early", messages_usage(output=60)),
             ("finish", messages_usage(output=120)), ("late", messages_usage(output=120))),
    streamed("behind the stop reason", ACCUMULATED, _PLAIN, ("begin", _START), ("finish", messages_usage(output=2)),
             ("late", messages_usage(output=120))),
    streamed("all at the beginning", "no report in the delta leaves the first", _PLAIN, ("begin", _BOTH),
             ("finish", {"usage": {}}), says=Counts(300, 0), is_final=False),  # the SDK takes a missing count for 0
    streamed("thinking in the last", ACCUMULATED, Counts(300, 120, reasoning=40), ("begin", _START),
             ("finish", messages_usage(output=120, output_tokens_details={"thinking_tokens": 40}))),
    streamed("lower later", HIGHEST, _PLAIN, ("begin", _START), ("early", messages_usage(output=120)),
             ("finish", messages_usage(output=90)), says=Counts(300, 90), is_final=False),
    streamed("zeros at the end", HIGHEST, _PLAIN, ("begin", _START), ("early", messages_usage(output=120)),
             ("finish", messages_usage(fresh=0, output=0, read=0, written=0)), says=Counts(0, 0), is_final=False),
    Shape("none", "no report is an estimate", None, {}, [("begin", {}), ("finish", {})]),
    Shape("null", "no report is an estimate", None, {"usage": None},
          [("begin", {"usage": None}), ("finish", {"usage": None})]),
    Shape("empty", "no report is an estimate", None, {"usage": {}}, [("begin", {"usage": {}}),
          ("finish", {"usage": {}})]),
    Shape("absurd", "docs/usage.md: a report above the ceilings is bounded", None,
          messages_usage(fresh=900_000_000, output=900_000_000),
          [("begin", messages_usage(fresh=900_000_000, output=1)), ("finish", messages_usage(output=900_000_000))],
          says=Counts(900_000_000, 900_000_000)),
]  # fmt: skip

# -------------------------------------------------------------------------------------------------- OpenAI's Responses

RESPONSES_RULE = "openai-python, types/responses/response_usage.py"


def response_usage(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"usage": {"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output, **more}}


_RESPONSE = response_usage(
    300, 120, input_tokens_details={"cached_tokens": 0}, output_tokens_details={"reasoning_tokens": 0}
)
_RESPONSE_DETAILS = response_usage(
    300, 120, input_tokens_details={"cached_tokens": 200, "cache_write_tokens": 50},
    output_tokens_details={"reasoning_tokens": 40},
)  # fmt: skip

RESPONSES: list[Shape] = [
    anywhere("counts", RESPONSES_RULE, _PLAIN, _RESPONSE),
    anywhere("cached, written and reasoning", RESPONSES_RULE, Counts(300, 120, 200, 50, 40), _RESPONSE_DETAILS),
    anywhere("without details", RESPONSES_RULE, _PLAIN, response_usage(300, 120)),
    anywhere("the names of a chat", "some clones write a chat's usage", Counts(300, 120, 200),
             chat_usage(300, 120, prompt_tokens_details={"cached_tokens": 200}), says=Counts(0, 0)),
    anywhere("cached tokens beside the counts", "vercel/ai, convert-moonshotai-chat-usage.ts: usage.cached_tokens",
             Counts(300, 120, 200), response_usage(300, 120, cached_tokens=200), says=_PLAIN),
    streamed("zeros at first", RESPONSES_RULE, _PLAIN, ("begin", response_usage(0, 0)), ("last", _RESPONSE)),
    streamed("growing", RESPONSES_RULE, _PLAIN, ("begin", response_usage(300, 0)),
             ("progress", response_usage(300, 60)), ("last", _RESPONSE)),
    streamed("an incomplete response", RESPONSES_RULE, _PLAIN, ("incomplete", _RESPONSE)),
    streamed("lower later", HIGHEST, _PLAIN, ("progress", _RESPONSE), ("last", response_usage(300, 90)),
             says=Counts(300, 90), is_final=False),
    streamed("zeros at the end", HIGHEST, _PLAIN, ("progress", _RESPONSE), ("last", response_usage(0, 0)),
             says=Counts(0, 0), is_final=False),
    anywhere("only a total", "kind E: a count that is there is used", None, {"usage": {"total_tokens": 420}}, total=420,
             says=Counts(0, 0)),
    anywhere("none", "no report is an estimate", None, {}),
    anywhere("null", "no report is an estimate", None, {"usage": None}),
    anywhere("absurd", "docs/usage.md: a report above the ceilings is bounded", None,
             response_usage(900_000_000, 900_000_000), says=Counts(900_000_000, 900_000_000)),
]  # fmt: skip
COMPACT = [shape for shape in RESPONSES if shape.plain is not None]

# -------------------------------------------------------------------------------------------------------------- Gemini

GEMINI_RULE = "google-genai, types.py, GenerateContentResponseUsageMetadata"
CUMULATIVE = "google-genai: each chunk of a stream has the usage so far"


def gemini_usage(prompt: int, output: int | None, **more: Any) -> dict[str, Any]:
    made = {} if output is None else {"candidatesTokenCount": output}
    total = more.pop("total", prompt + (output or 0))
    return {"usageMetadata": {"promptTokenCount": prompt, **made, "totalTokenCount": total, **more}}


def of_modality(**tokens: int) -> list[dict[str, Any]]:
    return [{"modality": modality, "tokenCount": count} for modality, count in tokens.items()]


_GEMINI = gemini_usage(300, 120)

GEMINI: list[Shape] = [
    anywhere("counts", GEMINI_RULE, _PLAIN, _GEMINI, place="finish"),
    anywhere("cached, thoughts and tool results", GEMINI_RULE, Counts(300, 120, 200, 0, 40),
             gemini_usage(250, 80, total=420, toolUsePromptTokenCount=50, thoughtsTokenCount=40,
                          cachedContentTokenCount=200), place="finish"),
    anywhere("sound and pictures", GEMINI_RULE, _PLAIN,
             gemini_usage(300, 120, promptTokensDetails=of_modality(TEXT=100, AUDIO=150, IMAGE=50),
                          candidatesTokensDetails=of_modality(TEXT=20, IMAGE=100)), place="finish",
             parts={"audio_in": 150, "image_in": 50, "image_out": 100}),
    anywhere("cached pictures", "google-genai: cacheTokensDetails says which tokens are cached", Counts(300, 120, 250),
             gemini_usage(300, 120, cachedContentTokenCount=250, cacheTokensDetails=of_modality(TEXT=50, IMAGE=200),
                          promptTokensDetails=of_modality(TEXT=100, IMAGE=200)), place="finish"),
    anywhere("thoughts in the total alone", "agentscope-ai/agentscope-java#3033", Counts(300, 1120),
             gemini_usage(300, 120, total=1420), place="finish", says=_PLAIN, knows_reasoning=False),
    anywhere("no candidates and a total", "agentscope-ai/agentscope-java#3033", _PLAIN,
             gemini_usage(300, None, total=420), place="finish", says=Counts(300, 0), knows_reasoning=False),
    streamed("in each chunk", CUMULATIVE, _PLAIN, ("begin", gemini_usage(300, 1)), ("text", gemini_usage(300, 60)),
             ("finish", _GEMINI)),
    streamed("the prompt alone at first", CUMULATIVE, _PLAIN, ("begin", gemini_usage(300, None)), ("finish", _GEMINI)),
    streamed("behind the finish, without candidates", "google-genai reads the stream to its end", _PLAIN,
             ("finish", {}), ("last", _GEMINI)),
    streamed("behind the finish, with a candidate", "google-genai reads the stream to its end", _PLAIN,
             ("finish", gemini_usage(300, 4)), ("after", _GEMINI)),
    streamed("twice", CUMULATIVE, _PLAIN, ("finish", _GEMINI), ("last", _GEMINI)),
    streamed("thoughts in the first of two", CUMULATIVE, Counts(300, 160, reasoning=40),
             ("begin", gemini_usage(300, None, total=340, thoughtsTokenCount=40)),
             ("finish", gemini_usage(300, 120, total=460, thoughtsTokenCount=40))),
    streamed("lower later", HIGHEST, _PLAIN, ("finish", _GEMINI), ("last", gemini_usage(300, 90)),
             says=Counts(300, 90)),
    streamed("zeros at the end", HIGHEST, _PLAIN, ("finish", _GEMINI), ("last", gemini_usage(0, 0)),
             says=Counts(0, 0)),
    anywhere("only a total", "kind E: a count that is there is used", None, {"usageMetadata": {"totalTokenCount": 420}},
             place="finish", total=420, says=Counts(0, 0)),
    anywhere("none", "no report is an estimate", None, {}, place="finish"),
    anywhere("null", "no report is an estimate", None, {"usageMetadata": None}, place="finish"),
    anywhere("absurd", "docs/usage.md: a report above the ceilings is bounded", None,
             gemini_usage(900_000_000, 900_000_000), place="finish", says=Counts(900_000_000, 900_000_000)),
]  # fmt: skip

# ---------------------------------------------------------------------------------------------- formats without output

_EMBEDDED = Counts(300, 0)
EMBEDDINGS: list[Shape] = [
    Shape("counts", "openai-openapi, CreateEmbeddingResponse", _EMBEDDED,
          {"usage": {"prompt_tokens": 300, "total_tokens": 300}}),
    Shape("only a total", "voyageai and jina.ai, embeddings: usage.total_tokens is the prompt", _EMBEDDED,
          {"usage": {"total_tokens": 300}}, says=Counts(0, 0)),
    Shape("none", "no report is an estimate", None, {}),
    Shape("null", "no report is an estimate", None, {"usage": None}),
    Shape("zeros", "lmstudio-ai/lmstudio-bug-tracker#1546", None, {"usage": {"prompt_tokens": 0, "total_tokens": 0}},
          says=Counts(0, 0)),
    Shape("absurd", "docs/usage.md: a report above the ceilings is bounded", None,
          {"usage": {"prompt_tokens": 900_000_000, "total_tokens": 900_000_000}}, says=Counts(900_000_000, 0)),
]  # fmt: skip

GEMINI_EMBEDDINGS: list[Shape] = [
    Shape("counts", "google-genai, EmbedContentResponse.usage_metadata", _EMBEDDED,
          {"usageMetadata": {"promptTokenCount": 300}}),
    Shape("a picture", "google-genai, EmbeddingUsageMetadata", _EMBEDDED,
          {"usageMetadata": {"promptTokenCount": 300, "promptTokenDetails": of_modality(TEXT=100, IMAGE=200)}},
          parts={"image_in": 200}),
    Shape("only a total", "kind E: a count that is there is used", _EMBEDDED,
          {"usageMetadata": {"totalTokenCount": 300}}, says=Counts(0, 0)),
    Shape("none", "no report is an estimate", None, {}),
    Shape("absurd", "docs/usage.md: a report above the ceilings is bounded", None,
          {"usageMetadata": {"promptTokenCount": 900_000_000}}, says=Counts(900_000_000, 0)),
]  # fmt: skip

MODERATIONS: list[Shape] = [
    Shape("none", "openai-openapi, CreateModerationResponse: it has no usage and is free", Counts(0, 0), {}, nusd=0),
    Shape("counts", "a report that is there is used", _EMBEDDED, chat_usage(300, 0)),
]  # fmt: skip

RERANK: list[Shape] = [
    Shape("search units", "docs.cohere.com, rerank: meta.billed_units.search_units", Counts(0, 0),
          {"meta": {"billed_units": {"search_units": 3}}}, nusd=3 * 2_000_000),
    Shape("tokens", "jina.ai and voyageai, rerank: usage.total_tokens", _EMBEDDED,
          {"usage": {"total_tokens": 300}}, nusd=300_000),
    Shape("tokens by their own name", "jina.ai, rerank: usage.prompt_tokens beside the total", _EMBEDDED,
          {"usage": {"prompt_tokens": 300, "total_tokens": 300}}, nusd=300_000),
    Shape("tokens of meta", "docs.cohere.com, rerank: meta.tokens.input_tokens", _EMBEDDED,
          {"meta": {"tokens": {"input_tokens": 300, "output_tokens": 0}}}, nusd=300_000),
    Shape("none", "no report is an estimate", None, {}),
]  # fmt: skip

# -------------------------------------------------------------------------------------------------- sound and pictures

_PICTURE_USAGE = response_usage(
    300, 120, input_tokens_details={"text_tokens": 100, "image_tokens": 200},
    output_tokens_details={"text_tokens": 20, "image_tokens": 100},
)  # fmt: skip
IMAGES: list[Shape] = [
    anywhere("tokens", "openai-openapi, ImagesResponse.usage", _PLAIN, _PICTURE_USAGE,
             nusd=100 * 1000 + 200 * 5000 + 120 * 30_000),
    anywhere("none", "openai-openapi, dall-e: an image has a price", Counts(0, 0), {}, nusd=40_000_000),
    anywhere("null", "openai-openapi, dall-e: an image has a price", Counts(0, 0), {"usage": None}, nusd=40_000_000),
]  # fmt: skip

_TRANSCRIBED = response_usage(300, 120, type="tokens", input_token_details={"text_tokens": 100, "audio_tokens": 200})
TRANSCRIPTIONS: list[Shape] = [
    anywhere("tokens", "openai-openapi, TranscriptTextUsageTokens", _PLAIN, _TRANSCRIBED, parts={"audio_in": 200}),
    anywhere("tokens without details", "openai-openapi, TranscriptTextUsageTokens", _PLAIN, response_usage(300, 120)),
]  # fmt: skip
SECONDS: list[Shape] = [
    anywhere("seconds", "openai-openapi, TranscriptTextUsageDuration", Counts(0, 0),
             {"usage": {"type": "duration", "seconds": 30}}, nusd=3_000_000),
    Shape("a duration beside the text", "openai-openapi, CreateTranscriptionResponseVerboseJson", Counts(0, 0),
          {"duration": 30.0}, nusd=3_000_000),
]  # fmt: skip

SPEECH: list[Shape] = [
    streamed("tokens", "openai-openapi, SpeechAudioDoneEvent.usage", _PLAIN, ("last", response_usage(300, 120)),
             parts={"audio_out": 120}),
]  # fmt: skip
CHARACTERS: list[Shape] = [
    streamed("characters", "openai.com/api/pricing: tts-1 is billed by character", Counts(0, 0), ("last", {}),
             nusd=12 * 15_000),
]  # fmt: skip

REALTIME: list[Shape] = [
    Shape("text and sound", "openai-openapi, RealtimeResponse.usage", Counts(100, 30),
          response_usage(100, 30, input_token_details={"text_tokens": 40, "audio_tokens": 60, "cached_tokens": 0},
                         output_token_details={"text_tokens": 10, "audio_tokens": 20}),
          parts={"audio_in": 60, "audio_out": 20}),
    Shape("cached text and sound", "openai-openapi, RealtimeResponse.usage: cached_tokens_details", Counts(100, 30, 20),
          response_usage(100, 30, input_token_details={
              "text_tokens": 40, "audio_tokens": 60, "cached_tokens": 20,
              "cached_tokens_details": {"text_tokens": 10, "audio_tokens": 10}},
              output_token_details={"text_tokens": 10, "audio_tokens": 20}),
          parts={"audio_in": 50, "audio_out": 20}),
    Shape("a picture", "openai-openapi, RealtimeResponse.usage: image_tokens", Counts(100, 30),
          response_usage(100, 30, input_token_details={"text_tokens": 40, "image_tokens": 60, "cached_tokens": 0},
                         output_token_details={"text_tokens": 30, "audio_tokens": 0}), parts={"image_in": 60}),
    Shape("without details", "openai-openapi, RealtimeResponse.usage", Counts(100, 30), response_usage(100, 30)),
    Shape("null", "no report is an estimate", None, {"usage": None}),
]  # fmt: skip


def shapes_with(found: Sequence[Shape], part: str) -> list[Shape]:
    """Those that have a plain answer, or a stream."""
    return [shape for shape in found if getattr(shape, part) is not None]

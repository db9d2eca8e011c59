"""Reports of usage as vendors and resellers write them: each in every way in which its format can carry it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, answer, ok_json
from tests.flows.gateway_process import Gateway

from .reports import (
    EMBEDDED,
    RANKED,
    Ask,
    asks_chat,
    asks_embeddings,
    asks_gemini_embeddings,
    asks_images,
    asks_moderation,
    asks_rerank,
    asks_speech,
    asks_transcription,
    chat_answer,
    check,
    configuration,
    play,
    usd,
    ways,
)


class Row(NamedTuple):
    """A report of usage, and what has to be recorded of it."""

    name: str
    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    kind: str
    """A format, or the name of a model of one."""
    usage: dict[str, Any]
    expected: dict[str, Any]


def counted(prompt: int, output: int, cached: int = 0, reasoning: int = 0, **units: int) -> dict[str, Any]:
    """A record whose counts are the upstream's own, with the cost of tokens alone unless it has `units`."""
    found: dict[str, Any] = {
        "prompt_tokens": prompt, "completion_tokens": output, "cached_tokens": cached, "reasoning_tokens": reasoning,
        "units": units, "usage_source": "reported", "ended": "done",
    }  # fmt: skip
    return found if units else found | {"cost_usd": usd(prompt - cached, cached, output)}


# B. Parts of a prompt that overlap: each token has one price.
OVERLAPS = [
    Row(
        "cached and image tokens overlap, one price", "BerriAI/litellm#37281",
        "OpenAI's guide on prompt caching: `cached_tokens` are part of `prompt_tokens`, images included", "text-price",
        {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110,
         "prompt_tokens_details": {"text_tokens": None, "cached_tokens": 90, "image_tokens": 80}},
        {"prompt_tokens": 100, "cached_tokens": 90, "cost_usd": (10 * 1 + 90 * 0.1 + 10 * 10) / 1e6},
    ),
    Row(
        "the cache reaches into a picture", "BerriAI/litellm#37407",
        "xAI's own `cost_in_usd_ticks` in the thread: cached tokens are billed once, as cached", "text-price",
        {"prompt_tokens": 2461, "completion_tokens": 303, "total_tokens": 2764,
         "prompt_tokens_details": {"text_tokens": 1319, "image_tokens": 1142, "cached_tokens": 2432}},
        {"prompt_tokens": 2461, "cached_tokens": 2432, "cost_usd": (29 * 1 + 2432 * 0.1 + 303 * 10) / 1e6},
    ),
    Row(
        "a prompt that is all cached, sound and all", "wso2/gateway-controllers#285",
        "openai-python, CompletionUsage: `cached_tokens` and `audio_tokens` are both of the prompt", "chat",
        {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010,
         "prompt_tokens_details": {"cached_tokens": 1000, "audio_tokens": 600}},
        {"prompt_tokens": 1000, "cached_tokens": 1000, "cost_usd": usd(0, 1000, 10)},
    ),
    Row(
        "cached sound of Gemini", "pydantic/genai-prices#141",
        "google-genai, `cache_tokens_details`: the modalities of the cached part", "gemini",
        {"promptTokenCount": 1000, "candidatesTokenCount": 10, "totalTokenCount": 1010, "cachedContentTokenCount": 800,
         "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 200}, {"modality": "AUDIO", "tokenCount": 800}],
         "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 800}]},
        {"prompt_tokens": 1000, "cached_tokens": 800, "cost_usd": usd(200, 800, 10)},
    ),
    Row(
        "some of the sound is cached, some of the text too", "pydantic/genai-prices#141",
        "google-genai, `cache_tokens_details`: the modalities of the cached part", "gemini",
        {"promptTokenCount": 1000, "candidatesTokenCount": 10, "totalTokenCount": 1010, "cachedContentTokenCount": 500,
         "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 400}, {"modality": "AUDIO", "tokenCount": 600}],
         "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 300}, {"modality": "AUDIO", "tokenCount": 200}]},
        {"prompt_tokens": 1000, "cached_tokens": 500, "cost_usd": usd(100, 500, 10, audio_in=400)},
    ),
    Row(
        "Gemini's prompt includes its cache", "earendil-works/pi#2588",
        "google-genai, `prompt_token_count`: includes the cached content", "gemini",
        {"promptTokenCount": 20_838, "candidatesTokenCount": 30, "totalTokenCount": 20_868,
         "cachedContentTokenCount": 19_905},
        counted(20_838, 30, 19_905),
    ),
    Row(
        "text of Gemini's details includes its cache", "langchain-ai/langchainjs#10440",
        "google-genai, `prompt_tokens_details`: the whole prompt by modality", "gemini",
        {"promptTokenCount": 3000, "candidatesTokenCount": 30, "totalTokenCount": 3030, "cachedContentTokenCount": 2000,
         "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3000}],
         "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 2000}]},
        counted(3000, 30, 2000),
    ),
    Row(
        "cached tokens are part of a chat's prompt", "earendil-works/pi#2148, tembo/agent-studio#238",
        "OpenAI's guide on prompt caching", "chat",
        {"prompt_tokens": 20_212, "completion_tokens": 931, "total_tokens": 21_143,
         "prompt_tokens_details": {"cached_tokens": 16_298}},
        counted(20_212, 931, 16_298),
    ),
    Row(
        "OpenAI's cache writes are part of the prompt", "mindroom-ai/mindroom#2134",
        "OpenAI's guide on prompt caching: 2,000 read, 400 written, 200 neither", "chat",
        {"prompt_tokens": 2600, "completion_tokens": 30, "total_tokens": 2630,
         "prompt_tokens_details": {"cached_tokens": 2000, "cache_write_tokens": 400}},
        counted(2600, 30, 2000, cache_write=400) | {"cost_usd": usd(200, 2000, 30, cache_write=400)},
    ),
    Row(
        "the same of a response", "mindroom-ai/mindroom#2134, BerriAI/litellm#35127",
        "openai-python, `response_usage.py`", "responses",
        {"input_tokens": 2600, "output_tokens": 30, "total_tokens": 2630,
         "input_tokens_details": {"cached_tokens": 2000, "cache_write_tokens": 400},
         "output_tokens_details": {"reasoning_tokens": 0}},
        counted(2600, 30, 2000, cache_write=400) | {"cost_usd": usd(200, 2000, 30, cache_write=400)},
    ),
    Row(
        "Claude's three parts of a prompt are beside each other", "dust-tt/srchd#67, comet-ml/opik#5214",
        "Anthropic, Messages, usage: the sum of the three", "messages",
        {"input_tokens": 9, "cache_creation_input_tokens": 2400, "cache_read_input_tokens": 9000, "output_tokens": 50},
        counted(11_409, 50, 9000, cache_write=2400) | {"cost_usd": usd(9, 9000, 50, cache_write=2400)},
    ),
    Row(
        "writes for an hour are part of all writes", "BerriAI/litellm#29998",
        "anthropic-sdk, `cache_creation.py`: the breakdown of the tokens written", "messages",
        {"input_tokens": 9, "cache_creation_input_tokens": 6179, "cache_read_input_tokens": 0, "output_tokens": 50,
         "cache_creation": {"ephemeral_5m_input_tokens": 179, "ephemeral_1h_input_tokens": 6000}},
        counted(6188, 50, 0, cache_write=179, cache_write_1h=6000)
        | {"cost_usd": usd(9, 0, 50, cache_write=179, cache_write_1h=6000)},
    ),
    Row(
        "sound that is spoken is part of the output", "comet-ml/opik#7253, pydantic/genai-prices#156",
        "openai-python, CompletionUsage: `audio_tokens` of the completion", "chat",
        {"prompt_tokens": 100, "completion_tokens": 300, "total_tokens": 400,
         "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 250, "text_tokens": 50}},
        counted(100, 300, audio_out=250) | {"cost_usd": usd(100, 0, 50, audio_out=250)},
    ),
    Row(
        "text that a picture model writes is no picture", "BerriAI/litellm#21902",
        "openai-python, ImagesResponse: `output_tokens_details` has text and image tokens", "images",
        {"input_tokens": 357, "output_tokens": 6543, "total_tokens": 6900,
         "input_tokens_details": {"text_tokens": 34, "image_tokens": 323},
         "output_tokens_details": {"text_tokens": 335, "image_tokens": 6208}},
        {"prompt_tokens": 357, "completion_tokens": 6543,
         "cost_usd": usd(34, 0, 335, image_in=323, image_out=6208)},
    ),
    Row(
        "pictures without details of the output are pictures", "BerriAI/litellm#31142, BerriAI/litellm#13847",
        "OpenAI's price list: the output of gpt-image is image tokens", "images",
        {"input_tokens": 150, "output_tokens": 8000, "total_tokens": 8150,
         "input_tokens_details": {"text_tokens": 50, "image_tokens": 100}},
        counted(150, 8000, image_in=100, image_out=8000) | {"cost_usd": usd(50, image_in=100, image_out=8000)},
    ),
    Row(
        "sound and text of a transcription", "maximhq/bifrost#7089",
        "openai-python, Transcription: `input_token_details`", "transcriptions",
        {"type": "tokens", "input_tokens": 29, "output_tokens": 14, "total_tokens": 43,
         "input_token_details": {"audio_tokens": 28, "text_tokens": 1}},
        counted(29, 14, audio_in=28) | {"cost_usd": usd(1, 0, 14, audio_in=28)},
    ),
    Row(
        "text and thoughts beside a picture", "ding113/claude-code-hub#663",
        "google-genai, `candidates_tokens_details`: the modalities of the candidates, without thoughts", "gemini",
        {"promptTokenCount": 326, "candidatesTokenCount": 2340, "totalTokenCount": 3003, "thoughtsTokenCount": 337,
         "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 2000}]},
        counted(326, 2677, reasoning=337, image_out=2000) | {"cost_usd": usd(326, 0, 677, image_out=2000)},
    ),
    Row(
        "results of tools are prompt, thoughts are output", "strands-agents/harness-sdk#3892, BerriAI/litellm#24622",
        "google-genai, `total_token_count`: the sum of the four counts", "gemini",
        {"promptTokenCount": 100, "candidatesTokenCount": 20, "toolUsePromptTokenCount": 5, "thoughtsTokenCount": 30,
         "totalTokenCount": 155},
        counted(105, 50, reasoning=30),
    ),
]  # fmt: skip

# E. A vendor's own names and sums.
NAMES = [
    Row(
        "DeepSeek's cache hits", "NousResearch/hermes-agent#65678, mozilla-ai/any-llm#795, earendil-works/pi#3880",
        "api-docs.deepseek.com, create chat completion: `prompt_tokens` is hits and misses", "chat",
        {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150, "prompt_cache_hit_tokens": 80,
         "prompt_cache_miss_tokens": 20},
        counted(100, 50, 80),
    ),
    Row(
        "DeepSeek's misses are no cache writes", "laravel/ai#705, infiniflow/ragflow#17629",
        "api-docs.deepseek.com, pricing: a miss has the price of input, there is no fee for writing", "chat",
        {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, "prompt_cache_hit_tokens": 20,
         "prompt_cache_miss_tokens": 80, "prompt_tokens_details": {"cached_tokens": 20}},
        counted(100, 10, 20),
    ),
    Row(
        "a standard count of 0 wins over a vendor's own", "router-for-me/CLIProxyAPI#5817",
        "openai-openapi: `cached_tokens` is OpenAI's own field, and 0 is a count", "chat",
        {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, "prompt_cache_hit_tokens": 80,
         "prompt_tokens_details": {"cached_tokens": 0}},
        counted(100, 10, 0),
    ),
    Row(
        "details that are null", "langgenius/dify-plugin-sdks#188",
        "openai-openapi: the details are optional; Huawei Cloud and Gemini's chat endpoint write null", "chat",
        {"prompt_tokens": 4282, "completion_tokens": 46, "total_tokens": 4328, "completion_tokens_details": None,
         "prompt_tokens_details": {"audio_tokens": None, "cached_tokens": 1024}},
        counted(4282, 46, 1024),
    ),
    Row(
        "names of Responses in a chat", "earendil-works/pi#2326",
        "mlx-vlm's own chunk in the thread: `input_tokens`, `output_tokens`", "chat",
        {"input_tokens": 11, "output_tokens": 5, "total_tokens": 16, "prompt_tps": 21.55, "generation_tps": 81.56},
        counted(11, 5),
    ),
    Row(
        "Claude's cache by its own names in a chat", "BerriAI/litellm#11364",
        "LiteLLM's usage object: `prompt_tokens` includes both", "chat",
        {"prompt_tokens": 20_805, "completion_tokens": 512, "total_tokens": 21_317,
         "cache_read_input_tokens": 14_360, "cache_creation_input_tokens": 6435},
        counted(20_805, 512, 14_360, cache_write=6435)
        | {"cost_usd": usd(10, 14_360, 512, cache_write=6435)},
    ),
    Row(
        "the same, and OpenAI's names beside them", "BerriAI/litellm#11364",
        "LiteLLM's usage object: both names hold the same tokens", "chat",
        {"prompt_tokens": 20_805, "completion_tokens": 512, "total_tokens": 21_317,
         "prompt_tokens_details": {"cached_tokens": 14_360, "cache_creation_tokens": 6435, "text_tokens": None},
         "cache_read_input_tokens": 14_360, "cache_creation_input_tokens": 6435},
        counted(20_805, 512, 14_360, cache_write=6435)
        | {"cost_usd": usd(10, 14_360, 512, cache_write=6435)},
    ),
    Row(
        "Claude's writes for an hour in a chat", "BerriAI/litellm#29998",
        "anthropic-sdk, `cache_creation.py`", "chat",
        {"prompt_tokens": 6190, "completion_tokens": 50, "total_tokens": 6240, "cache_read_input_tokens": 0,
         "cache_creation_input_tokens": 6179,
         "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 6179}},
        counted(6190, 50, 0, cache_write_1h=6179) | {"cost_usd": usd(11, 0, 50, cache_write_1h=6179)},
    ),
    Row(
        "Perplexity's reasoning stands beside its output", "bgeneto/open-webui-cost-tracker#6, langfuse/langfuse#14143",
        "docs.perplexity.ai, sonar-deep-research: reasoning tokens are billed beside output tokens", "chat",
        {"prompt_tokens": 108, "completion_tokens": 3256, "total_tokens": 3364, "citation_tokens": 0,
         "num_search_queries": 7, "reasoning_tokens": 7324},
        {"prompt_tokens": 108, "completion_tokens": 10_580, "reasoning_tokens": 7324, "units": {"web_searches": 7},
         "cost_usd": usd(108, 0, 10_580, web_searches_per_1000=7)},
    ),
    Row(
        "embeddings of Voyage", "GottZ/ctx#14, BerriAI/litellm#5087",
        "docs.voyageai.com, embeddings: `usage.total_tokens` alone", "embeddings",
        {"total_tokens": 800},
        counted(800, 0),
    ),
    Row(
        "the same with null", "BerriAI/litellm#5087",
        "the object in the thread: `prompt_tokens=None`", "embeddings",
        {"prompt_tokens": None, "total_tokens": 700},
        counted(700, 0),
    ),
    Row(
        "embeddings of DashScope", "apache/flink-agents#870",
        "alibabacloud.com, text embedding: `usage.total_tokens` is the input", "embeddings",
        {"total_tokens": 6},
        counted(6, 0),
    ),
    Row(
        "pictures by the names of chat", "Helicone/helicone#5003",
        "the object in the thread: `prompt_tokens` and `completion_tokens` beside `input_tokens_details`", "images",
        {"prompt_tokens": 150, "completion_tokens": 4200, "total_tokens": 4350,
         "input_tokens_details": {"text_tokens": 50, "image_tokens": 100}},
        counted(150, 4200, image_in=100, image_out=4200) | {"cost_usd": usd(50, image_in=100, image_out=4200)},
    ),
    Row(
        "seconds of a transcription", "api7/aisix#868, laravel/ai#935",
        "openai-python, Transcription: `UsageDuration`", "seconds",
        {"type": "duration", "seconds": 11},
        {"units": {"audio_ms": 11_000}, "usage_source": "reported", "cost_usd": 11 * 0.006 / 60},
    ),
    Row(
        "seconds of Mistral's transcription", "laravel/ai#1025",
        "docs.mistral.ai, audio transcription: `usage.prompt_audio_seconds`, billed by the minute", "seconds",
        {"prompt_audio_seconds": 11, "prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 300},
        {"units": {"audio_ms": 11_000}, "usage_source": "reported", "cost_usd": 11 * 0.006 / 60},
    ),
    Row(
        "search units of a rerank", "maximhq/bifrost#4239, hugalafutro/model-hotel#1042",
        "docs.cohere.com, rerank: `meta.billed_units.search_units`", "rerank",
        {"meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 3}}},
        {"prompt_tokens": 0, "units": {"search_units": 3}, "usage_source": "reported", "cost_usd": 0.006},
    ),
    Row(
        "tokens of a rerank", "metadist/synaplan#1778",
        "docs.voyageai.com and jina.ai, reranker: `usage.total_tokens`, billed by the token", "rerank",
        {"usage": {"total_tokens": 5000}},
        counted(5000, 0),
    ),
    Row(
        "tokens of a rerank in Cohere's form", "BerriAI/litellm#36186",
        "the answer in the thread has tokens in `meta`: a count that is there is used", "rerank",
        {"meta": {"billed_units": {"total_tokens": 30}, "tokens": {"input_tokens": 30}}},
        counted(30, 0),
    ),
    Row(
        "the same, in billed units alone", "BerriAI/litellm#36186",
        "a count that is there is used", "rerank",
        {"meta": {"billed_units": {"total_tokens": 30}}},
        counted(30, 0),
    ),
    Row(
        "tokens of a rerank beside no search units", "maximhq/bifrost#4897",
        "custom servers bill `input_tokens`; 0 search units are no bill of a rerank that was made", "rerank",
        {"meta": {"billed_units": {"input_tokens": 28, "output_tokens": 0, "search_units": 0},
                  "tokens": {"input_tokens": 28, "output_tokens": 0}}},
        counted(28, 0),
    ),
    Row(
        "no candidates, and a total", "agentscope-ai/agentscope-java#3033",
        "google-genai, `total_token_count`: what is left of it is output", "gemini",
        {"promptTokenCount": 10, "totalTokenCount": 110},
        counted(10, 100),
    ),
    Row(
        "thoughts are no part of the candidates", "computesdk/benchmarks#372, crewAIInc/crewAI#5699",
        "google-genai, `thoughts_token_count`; ai.google.dev, pricing: output includes thinking", "gemini",
        {"promptTokenCount": 12, "candidatesTokenCount": 6, "thoughtsTokenCount": 190, "totalTokenCount": 208},
        counted(12, 196, reasoning=190),
    ),
    Row(
        "thoughts alone, an answer that was cut", "agno-agi/agno#3745",
        "google-genai: `candidates_token_count` is optional", "gemini",
        {"promptTokenCount": 12, "thoughtsTokenCount": 190, "totalTokenCount": 202},
        counted(12, 190, reasoning=190),
    ),
    Row(
        "a chat's usage in a response", "infiniflow/ragflow#17629",
        "a count that is there is used: resellers write a chat's names under Responses", "responses",
        {"prompt_tokens": 30, "completion_tokens": 7, "total_tokens": 37,
         "prompt_tokens_details": {"cached_tokens": 20}},
        counted(30, 7, 20),
    ),
    Row(
        "SGLang's cache under Messages", "sgl-project/sglang#39922",
        "Anthropic, Messages, usage: the parts are beside each other", "messages",
        {"input_tokens": 901, "output_tokens": 6, "cache_read_input_tokens": 6336},
        counted(7237, 6, 6336),
    ),
    Row(
        "vLLM leaves out what it does not know", "vllm-project/vllm#40912",
        "anthropic-sdk, Usage: the counts of the cache are optional", "messages",
        {"input_tokens": 500, "output_tokens": 20},
        counted(500, 20),
    ),
    Row(
        "sound in the total of Voxtral", "laravel/ai#1025, anomalyco/models.dev#3930",
        "docs.mistral.ai, audio: the tokens of the sound are in the total alone, and are no output", "chat",
        {"prompt_audio_seconds": 11, "prompt_tokens": 4, "completion_tokens": 10, "total_tokens": 154},
        {"completion_tokens": 10, "reasoning_tokens": 0},
    ),
    Row(
        "reasoning is part of the output", "anomalyco/opencode#24268",
        "openai-openapi, CompletionUsage: a breakdown of the tokens of the completion", "chat",
        {"prompt_tokens": 100, "completion_tokens": 500, "total_tokens": 600,
         "completion_tokens_details": {"reasoning_tokens": 300}},
        counted(100, 500, reasoning=300),
    ),
    Row(
        "sound of a speech that is streamed", "QuantumNous/new-api#2434, theopenco/llmgateway#2528",
        "openai-python, SpeechAudioDoneEvent: `usage`", "speech",
        {"input_tokens": 14, "output_tokens": 101, "total_tokens": 115},
        counted(14, 101, audio_out=101) | {"cost_usd": usd(14, audio_out=101)},
    ),
    Row(
        "the first report of a completion in two numbers", "vercel/ai#2763",
        "openai-openapi: `completion_tokens` of a chat is a number; LiteLLM leaves out a 0", "completions",
        {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
        counted(11, 3),
    ),
]  # fmt: skip
ROWS = [*OVERLAPS, *NAMES]
CASES = [
    pytest.param(row, ask, said, id=f"{row.name}-{way}")
    for row in ROWS
    for way, (ask, said) in ways(row.kind, row.usage).items()
]

# Answers without a report that can be true: the gateway measures or estimates, and says which.
SECONDS = {"prompt_tokens": 0, "units": {"audio_ms": 2000}, "usage_source": "reported", "cost_usd": 2 * 0.006 / 60}
UNREPORTED = [
    pytest.param(
        asks_transcription("seconds", ("response_format", kind)),
        answer(b"Hi", headers=[("Content-Type", "text/plain")]), SECONDS, id=f"api7/aisix#868: a transcript as {kind}",
    )
    for kind in ("text", "srt", "vtt")
] + [
    pytest.param(
        asks_transcription("seconds", ("response_format", "verbose_json")), ok_json({"text": "Hi", "duration": 2.11}),
        {"units": {"audio_ms": 2110}, "usage_source": "reported"}, id="laravel/ai#935: a length beside the text",
    ),
    pytest.param(
        asks_embeddings(), ok_json({**EMBEDDED, "usage": {"prompt_tokens": 0, "total_tokens": 0}}),
        {"prompt_tokens": 5, "usage_source": "estimated"}, id="lmstudio-ai/lmstudio-bug-tracker#1546: zeros",
    ),
    pytest.param(
        asks_embeddings(), ok_json(EMBEDDED), {"prompt_tokens": 5, "usage_source": "estimated"},
        id="quarkiverse/quarkus-langchain4j#2759: embeddings without usage",
    ),
    pytest.param(
        asks_chat(), chat_answer({"prompt_tokens": 30, "total_tokens": 30}, "Hello there, friend."),
        {"prompt_tokens": 30, "usage_source": "estimated"}, id="api7/aisix#510: a report of the prompt alone",
    ),
    pytest.param(
        asks_chat(max_tokens=70), ok_json({"request_id": "f15c114e"}),
        {"completion_tokens": 70, "usage_source": "estimated"}, id="docs.x.ai: a completion that is made later",
    ),
    pytest.param(
        asks_gemini_embeddings(), ok_json({"embedding": {"values": [0.1]}, "usageMetadata": {
            "promptTokenCount": 260, "promptTokenDetails": [
                {"modality": "TEXT", "tokenCount": 2}, {"modality": "IMAGE", "tokenCount": 258}]}}),
        {"prompt_tokens": 260, "units": {"image_in": 258}, "usage_source": "reported",
         "cost_usd": usd(2, image_in=258)}, id="BerriAI/litellm#33681: a picture that is embedded",
    ),
    pytest.param(
        asks_gemini_embeddings(), ok_json({"embedding": {"values": [0.1]}}),
        {"prompt_tokens": 5, "usage_source": "estimated"}, id="BerriAI/litellm#24339: Gemini without usage",
    ),
    pytest.param(
        asks_rerank(), ok_json(RANKED), {"usage_source": "estimated", "completion_tokens": 0},
        id="maximhq/bifrost#4321: a rerank without usage",
    ),
    pytest.param(
        asks_images("pictures", n=3), ok_json({"created": 1, "data": [{"url": "u"}] * 3}),
        {"units": {"images": 3}, "usage_source": "reported", "cost_usd": 0.12},
        id="ding113/claude-code-hub#1118, QuantumNous/new-api#3519: pictures without usage",
    ),
    pytest.param(
        asks_images("pictures", n=2), ok_json({"created": 1, "data": [{"url": "u"}]}),
        {"units": {"images": 1}, "usage_source": "reported", "cost_usd": 0.04},
        id="xorbitsai/xagent#1424: fewer pictures than asked for",
    ),
    pytest.param(
        asks_images("pictures", n=3),
        ok_json({"created": 1, "data": [{"url": "u"}, {"url": "v"}, {"error": {"code": "InternalServiceError"}}]}),
        {"units": {"images": 2}, "usage_source": "reported", "cost_usd": 0.08},
        id="Comfy-Org/ComfyUI#9952: a picture that failed",
    ),
    pytest.param(
        asks_images("pictures"),
        ok_json({"created": 1, "data": [{"url": "u"}], "usage": {"output_tokens": 6240, "total_tokens": 6240}}),
        {"units": {"images": 1}, "cost_usd": 0.04},
        id="ENTERPILOT/GoModel#970: tokens of pictures that have a price each",
    ),
    pytest.param(
        asks_moderation("by-call"), ok_json({"id": "m", "model": "up", "results": [{"flagged": False}]}),
        {"usage_source": "reported", "cost_usd": 0.00001}, id="theopenco/llmgateway#3292: a price for each moderation",
    ),
    pytest.param(
        asks_speech("characters"), answer(b"\x00" * 100, headers=[("Content-Type", "audio/pcm")]),
        {"units": {"characters": 12}, "usage_source": "reported", "cost_usd": 12 * 15 / 1e6},
        id="r9s-ai/open-next-router#60: characters, not seconds",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize(("row", "ask", "said"), CASES)
def test_each_count_is_charged_once(
    gateway: Gateway, upstream: ScriptedUpstream, row: Row, ask: Ask, said: Behaviour
) -> None:
    got, record = play(gateway, upstream, ask, said)
    assert got.status == 200
    check(record, row.expected)


@pytest.mark.parametrize(("ask", "said", "expected"), UNREPORTED)
def test_what_is_not_reported_is_measured_or_marked(
    gateway: Gateway, upstream: ScriptedUpstream, ask: Ask, said: Behaviour, expected: dict[str, Any]
) -> None:
    got, record = play(gateway, upstream, ask, said)
    assert got.status == 200
    check(record, expected)

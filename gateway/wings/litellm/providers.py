"""Tables: the providers of LiteLLM, and the endpoints that its modes and the names of models stand for.

Addresses and variables are those of LiteLLM 1.110.2 (`litellm_core_utils/get_llm_provider_logic.py` and
`llms/PROVIDER`), but for Anthropic, Azure, Cohere and Gemini, whose APIs have other addresses here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class Provider(NamedTuple):
    """How one provider is reached."""

    base_url: str | None
    """None: each entry has its own in `api_base`."""
    key_variable: str | None = None
    """Where LiteLLM finds the key of an entry that has none."""
    suffix: str = ""
    """The path of its API below `api_base`."""
    settings: Mapping[str, Any] = {}
    """Further settings of the upstream."""
    is_own: bool = False
    """A server of one's own, whose calls LiteLLM counts with 0 USD."""
    table: str = ""
    """Its name in the price table, where its address does not lead to it."""
    chats: Sequence[str] = ("chat", "responses")
    """The endpoints of a model of chats."""


_VIA_CHAT = {"completions": "via_chat", "responses": "via_chat", "messages": "via_chat"}
_CHATS = ("chat", "responses", "messages")
_OLLAMA = Provider(
    "http://localhost:11434", suffix="/v1", settings={"capabilities": {"max_tokens_field": "max_tokens"}}, is_own=True
)
_OWN = Provider(None, is_own=True)
_AZURE = Provider(None, "AZURE_API_KEY", "/openai/v1", {"key_header": "api-key", "provider": "azure"}, table="azure")
"""Azure's v1 API, which needs no api-version (learn.microsoft.com, "Azure OpenAI API version lifecycle")."""

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "text-completion-openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY", chats=("completions",)),
    "custom_openai": Provider(None),
    "openai_like": Provider(None),
    "litellm_proxy": Provider(None, "LITELLM_PROXY_API_KEY"),
    "anthropic": Provider(
        "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY",
        settings={"capabilities": {
            "chat": "via_messages", "completions": False, "embeddings": False, "responses": False,
        }},
        chats=("chat", "messages"),
    ),
    "gemini": Provider(
        "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY",
        settings={"capabilities": _VIA_CHAT}, chats=(*_CHATS, "generate_content"),
    ),
    "azure": _AZURE,
    "azure_text": _AZURE._replace(chats=("completions",)),
    "azure_ai": Provider("https://services.ai.azure.com", "AZURE_AI_API_KEY", table="azure"),
    "bedrock": Provider("https://bedrock", table="aws"),
    "bedrock_mantle": Provider("https://bedrock-mantle", table="aws"),
    "vertex_ai": Provider("https://aiplatform", table="google"),
    "vertex_ai_beta": Provider("https://aiplatform", table="google"),
    "perplexity": Provider(
        "https://api.perplexity.ai", "PERPLEXITYAI_API_KEY",
        settings={"capabilities": {**_VIA_CHAT, "max_tokens_field": "max_tokens", "embeddings": False}}, chats=_CHATS,
    ),
    "cohere": Provider(
        "https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY",
        settings={"provider": "cohere", "capabilities": {**_VIA_CHAT, "max_tokens_field": "max_tokens"}},
        table="cohere", chats=_CHATS,
    ),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "codestral": Provider("https://codestral.mistral.ai/v1", "CODESTRAL_API_KEY"),
    "together_ai": Provider("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
    "fireworks_ai": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_AI_API_KEY"),
    "deepinfra": Provider("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "moonshot": Provider("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "nvidia_nim": Provider("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "sambanova": Provider("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "baseten": Provider("https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "nebius": Provider("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "novita": Provider("https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "volcengine": Provider("https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY"),
    "meta_llama": Provider("https://api.llama.com/compat/v1", "LLAMA_API_KEY"),
    "jina_ai": Provider("https://api.jina.ai/v1", "JINA_AI_API_KEY"),
    "voyage": Provider("https://api.voyageai.com/v1", "VOYAGE_API_KEY"),
    "hosted_vllm": _OWN,
    "lm_studio": _OWN,
    "llamafile": _OWN,
    "infinity": _OWN,
    "huggingface": _OWN._replace(suffix="/v1"),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
}  # fmt: skip
"""Providers by the prefix of `litellm_params.model`. `huggingface` with an `api_base` is a Text Embeddings Inference or
Text Generation Inference, whose APIs in OpenAI's form are below `/v1` (their README)."""

CLOUD_HOSTS: Mapping[str, str] = {"//bedrock": "bedrock", "aiplatform.": "vertex"}
"""Names of upstreams by a part of their addresses, which other modules write in full."""
GEMINI = Provider("https://generativelanguage.googleapis.com/v1beta", "GEMINI_API_KEY")
"""Gemini's own API, for clients of it: a second route beside that of chats."""
RERANKERS: Mapping[str, Provider] = {"cohere": Provider("https://api.cohere.com/v2", "COHERE_API_KEY")}
"""Providers whose reranks have another address than their chats."""
OTHER_RERANKS = frozenset({"huggingface", "nvidia_nim", "voyage"})
"""Providers whose reranks are not as those of Cohere, Jina and vLLM (LiteLLM, `llms/PROVIDER/rerank`)."""

OF_CHATS = "chat"
MODES: Mapping[str, Sequence[str]] = {
    OF_CHATS: ("chat",),
    "completion": ("completions",),
    "embedding": ("embeddings",),
    "responses": ("responses",),
    "image_generation": ("images",),
    "image_edit": ("image_edits",),
    "audio_transcription": ("transcriptions", "translations"),
    "audio_speech": ("speech",),
    "moderation": ("moderations",),
    "rerank": ("rerank",),
    "realtime": ("realtime",),
}
"""Endpoints by `model_info.mode`; those of chats are in the row of the provider."""

BY_NAME: Sequence[tuple[str, str]] = (
    ("*dall-e-*", "image_generation"), ("*gpt-image-*", "image_generation"), ("*imagen-*", "image_generation"),
    ("*-realtime*", "realtime"), ("*whisper*", "audio_transcription"), ("*-transcribe*", "audio_transcription"),
    ("*tts-1*", "audio_speech"), ("*-tts", "audio_speech"), ("*-moderation-*", "moderation"), ("*rerank*", "rerank"),
    ("*embedding*", "embedding"), ("*-embed-*", "embedding"), ("*embed-*", "embedding"),
)  # fmt: skip
"""Modes of models without `mode` by their names, as LiteLLM's list of models has them."""

OF_OPENAI = (
    "completions", "chat", "embeddings", "responses", "moderations", "images", "image_edits", "image_variations",
    "speech", "transcriptions", "translations", "realtime",
)  # fmt: skip
"""The endpoints of a pattern of all models of OpenAI."""


def mode_by_name(model: str) -> str | None:
    """The mode of a model without one; None: its name does not have any of these."""
    return next((mode for pattern, mode in BY_NAME if fnmatchcase(model.lower(), pattern)), None)


def provider_without_prefix(model: str) -> str:
    """The provider of a model without a prefix, as LiteLLM's list of models has it for these families."""
    families = {"claude-": "anthropic", "gemini-": "gemini"}
    return next((name for start, name in families.items() if model.startswith(start)), "openai")

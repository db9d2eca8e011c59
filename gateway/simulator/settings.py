"""Settings of a simulated upstream: its key, its models and its pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Endpoint = Literal["completions", "chat", "embeddings", "responses", "messages"]

DEFAULT_MODELS: Mapping[str, Endpoint] = MappingProxyType(
    {
        "gpt-3.5-turbo-instruct": "completions",
        "gpt-4o-mini": "chat",
        "gpt-4.1-mini": "chat",
        "deepseek-reasoner": "chat",
        "text-embedding-3-small": "embeddings",
        "claude-sonnet-5": "messages",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults of every call; the member `simulate` of a request overrides the pace."""

    api_key: str | None = None
    """The required bearer key; None: no key is required."""
    first_token_delay_s: float = 0.0
    """Seconds before the head of an answer and its first token."""
    tokens_per_s: float | None = None
    """Speed of each choice (choices run in parallel); None: as fast as possible."""
    tokens_per_event: int = 1
    """Tokens in one event of a stream, at least 1; the last event of a text may hold fewer."""
    prefix_cache_blocks: int = 0
    """Blocks of 128 tokens that the prefix cache of chats holds; 0: no token is ever cached."""
    fails_every_s: float = 0.0
    """Length of a period of which calls fail for a while with status 503, in seconds; 0: they do not."""
    fails_for_s: float = 0.0
    """How long they fail at the end of each period."""
    models: Mapping[str, str] = field(default_factory=lambda: DEFAULT_MODELS)
    """The endpoint of each model, by its name."""

    def __post_init__(self) -> None:
        if self.first_token_delay_s < 0 or self.tokens_per_event < 1:
            raise ValueError("first_token_delay_s must be >= 0 and tokens_per_event >= 1")
        if self.tokens_per_s is not None and self.tokens_per_s <= 0:
            raise ValueError("tokens_per_s must be > 0, or None")


def is_reasoning(model: str) -> bool:
    """Whether this model sends `reasoning_content` before its answer."""
    return "reasoner" in model or model.startswith(("o1", "o3"))

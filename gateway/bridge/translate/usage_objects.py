"""The usage that a call is charged, as each format writes it."""

from __future__ import annotations

from typing import Any

from gateway.records import Usage


def as_chat(usage: Usage) -> dict[str, Any]:
    """In the form of chat, where the prompt includes its cached parts (openai-python, `CompletionUsage`)."""
    shown: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": sum(_written(usage))},
    }
    if usage.reasoning_tokens:
        shown["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return shown


def as_completion(usage: Usage) -> dict[str, Any]:
    """In the form of completions: details only where there is something in them."""
    shown = as_chat(usage)
    if details := {name: count for name, count in shown.pop("prompt_tokens_details").items() if count}:
        shown["prompt_tokens_details"] = details
    return shown


def as_message(usage: Usage) -> dict[str, Any]:
    """In the form of Messages, where `input_tokens` is the prompt without its cached parts (anthropic-sdk, `Usage`)."""
    short, longer = _written(usage)
    shown: dict[str, Any] = {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - short - longer),
        "cache_creation_input_tokens": short + longer,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
    if longer:
        shown["cache_creation"] = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": longer}
    if usage.reasoning_tokens:
        shown["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return shown


def as_response(usage: Usage) -> dict[str, Any]:
    """In the form of Responses (openai-python, `ResponseUsage`)."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": sum(_written(usage))},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _written(usage: Usage) -> tuple[int, int]:
    """Tokens written to a cache: for minutes, and for an hour or longer."""
    counts = dict(usage.more)
    return counts.get("cache_write", 0), counts.get("cache_write_1h", 0)

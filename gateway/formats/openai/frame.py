"""The frame of answers that the gateway writes itself: id, time, model and usage."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.records import Call, Usage


class Frame(NamedTuple):
    """The parts of an answer that are not in the upstream's."""

    base: str
    """The end of every id in the answer: that of the call, without its prefix."""
    created: int
    """Start of the call as Unix time in seconds."""
    model: str
    """Model as the client requested it; used only if the upstream does not name one."""
    prompt_tokens: int = 0
    """The gateway's estimate, which `message_start` has."""
    shows_usage: bool = False

    @classmethod
    def of(cls, call: Call) -> Frame:
        """That of the answer to this call."""
        params = call.params
        base = call.id.removeprefix("req_")
        return cls(base, int(call.started), params.model, params.prompt_tokens, params.include_usage)

    def around(self, prefix: str, kind: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """These choices, as those of an answer or a chunk of this kind, with its id and this model."""
        return {
            "id": prefix + self.base, "object": kind, "created": self.created, "model": model, "choices": choices,
        }  # fmt: skip


def as_chat(usage: Usage) -> dict[str, Any]:
    """The usage that a call is charged in the form of chat, where the prompt includes its cached parts (openai-python,
    `CompletionUsage`)."""
    shown: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": sum(cache_writes(usage))},
    }
    if usage.reasoning_tokens:
        shown["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return shown


def as_completion(usage: Usage) -> dict[str, Any]:
    """Returns the usage in the format of completions, with details only if they are not 0."""
    shown = as_chat(usage)
    if details := {name: count for name, count in shown.pop("prompt_tokens_details").items() if count}:
        shown["prompt_tokens_details"] = details
    return shown


def cache_writes(usage: Usage) -> tuple[int, int]:
    """Tokens written to a cache: for minutes, and for an hour or longer."""
    counts = dict(usage.more)
    return counts.get("cache_write", 0), counts.get("cache_write_1h", 0)

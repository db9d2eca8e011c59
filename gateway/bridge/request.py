"""One completions call as several, each with a single prompt; and such a call as a chat.

A prompt becomes the one message of a user, and nothing is invented around it. So a chat model answers a prompt, where
a completions model would go on with it. An empty prompt and null, which ask for a text out of nothing, become an empty
message, and the upstream decides.

Parameters that both formats share are passed on, unknown parameters as well; the others are translated. Without
`max_tokens` a completion ends after 16 tokens, and a chat goes on: so the limit is always sent. Parameters without an
equivalent in chat are refused before (`api/capabilities.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api import prompt_tokens
from gateway.formats.openai.plain import LIMIT_FIELDS
from gateway.quota import windows
from gateway.records import Call, Document

_WITHOUT_CHAT = frozenset({"prompt", "best_of", "echo", "suffix", "logprobs", "max_tokens", "max_completion_tokens"})
"""Parameters of completions that have another form in a chat call, or ask for nothing by the time they come here."""


class Split:
    """The calls that one call becomes. They are made one by one: a body of 2048 prompts must not be held twice."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._prompts = _prompts(call.params.document.members["prompt"])
        self._common = {name: value for name, value in call.params.document.members.items() if name != "prompt"}
        self._written = _write(self._common)

    def __len__(self) -> int:
        return len(self._prompts)

    def call(self, number: int) -> Call:
        """The call for the prompt with this number."""
        prompt, whole = self._prompts[number], self._call.params
        asked = whole._replace(document=_document("prompt", prompt, self._common, self._written), prompts=1)
        if len(self) > 1:
            tokens = prompt_tokens.prompts(prompt, self._common.get("suffix")).tokens
            asked = asked._replace(prompt_tokens=tokens)
        return self._call._replace(params=asked)


def as_chat(call: Call) -> Call:
    """A call with a single prompt, which is text or null, as a chat."""
    members = call.params.document.members
    common = {name: value for name, value in members.items() if name not in _WITHOUT_CHAT}
    if members.get("logprobs") is not None:
        common |= {"logprobs": True, "top_logprobs": members["logprobs"]}
    messages = [{"role": "user", "content": members["prompt"] or ""}]
    given = [members[name] for name in LIMIT_FIELDS if members.get(name) is not None]
    asked = call.params._replace(
        document=_document("messages", messages, common, _write(common)),
        best_of=1,
        prompt_tokens=call.params.prompt_tokens + prompt_tokens.MESSAGE_TOKENS,
        output_limit=min(given, default=windows.output_limit(call)),
        is_output_limit_added=True,  # in the field that the upstream reads
    )
    return call._replace(endpoint="chat", params=asked)


def characters(call: Call) -> int:
    """Of the single prompt of a call, before the first character of its completion; 0 for tokens and null."""
    prompt = call.params.document.members["prompt"]
    return len(prompt) if isinstance(prompt, str) else 0


def _prompts(prompt: Any) -> Sequence[str | list[int] | None]:
    """The single prompts of a checked `prompt` in any of its forms."""
    return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]


def _document(name: str, value: Any, common: Mapping[str, Any], written: str) -> Document:
    # The model's name is always among what they have in common, so something always follows.
    text = f'{{"{name}":{json.dumps(value, separators=(",", ":"))},{written}'
    return Document(text, {name: value, **common})


def _write(members: Mapping[str, Any]) -> str:
    """An object without the brace that opens it."""
    return json.dumps(members, separators=(",", ":"))[1:]

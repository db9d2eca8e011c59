"""OpenAI's chat completions (openai-openapi, CreateChatCompletionRequest)."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.api import prompt_tokens, validate, validation_errors
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Chat
from gateway.config import Capabilities, Route
from gateway.formats import gathered, reported_usage
from gateway.formats.format import Format
from gateway.records import Call, Document, Params

from . import plain
from .chat_scan import StreamScan, as_event
from .reader import ChatReader
from .usage import reported


def _read(document: Document, body: Chat, count: Counter | None) -> Params:
    if body.top_logprobs is not None and not body.logprobs:
        raise validation_errors.wrong_value("top_logprobs", "It is only allowed when 'logprobs' is true.")
    for index, tool in enumerate(body.tools or ()):
        if tool.type == "function" and tool.function is None:
            raise validation_errors.missing(f"tools[{index}].function")
    output_param = "max_tokens" if "max_tokens" in document.members else "max_completion_tokens"
    prompt = prompt_tokens.chat(document, count)
    return validate.generation(document, body, prompt, output_param=output_param, prompt_param="messages")


def _changes(call: Call, route: Route, capabilities: Capabilities, added_limit: int | None) -> dict[str, Any]:
    changes = plain.stream_options(call, capabilities) if call.params.stream else {}
    if added_limit is not None:
        changes[capabilities.max_tokens_field] = added_limit
    return changes


CHAT = Format(
    name="chat",
    path="/v1/chat/completions",
    upstream_path="/chat/completions",
    operation="chat",
    read=partial(validate.read, validate.Rules(Chat, _read)),
    facts=plain.facts,
    usage=reported,
    scan=StreamScan,
    reader=ChatReader,
    gather=gathered.chat,
    streams_only_events=True,
    as_events=lambda answer, shows_usage, _: as_event(answer, shows_usage=shows_usage),
    changes=_changes,
    limit_fields=plain.LIMIT_FIELDS,
    texts=reported_usage.TEXT,
    may_reason=True,
)

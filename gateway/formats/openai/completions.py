"""OpenAI's completions (openai-openapi, CreateCompletionRequest)."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.api import prompt_tokens, validate, validation_errors
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Completion
from gateway.config import Capabilities, Route
from gateway.errors import InvalidRequest
from gateway.formats import gathered, reported_usage
from gateway.formats.format import Format
from gateway.records import Call, Document, Params

from . import plain
from .chat_scan import StreamScan, as_event
from .usage import reported

MAX_CHOICES = 2048
"""Choices of one call, prompts times n. OpenAI caps the product without naming the number (ai-dynamo took 128, which
would refuse batches that the API takes). As many as prompts: one choice for each is what batches are for, and a call
of 2048 prompts with n = 128 would ask for a quarter of a million outputs."""

DEFAULT_OUTPUT = 16
"""OpenAI's default of `max_tokens` (openai-openapi, CreateCompletionRequest)."""


def _read(document: Document, body: Completion, count: Counter | None) -> Params:
    n = body.n or 1
    if body.best_of and body.best_of < n:
        raise InvalidRequest(
            "You requested that the server return more choices than it will generate (HINT: you must set 'n' "
            f"(currently {n}) to be at most 'best_of' (currently {body.best_of}), or omit either parameter if you "
            "don't specifically want to use them.)",
            param="best_of",
        )
    if body.best_of and body.best_of > 1 and body.stream:
        raise validation_errors.wrong_value(
            "best_of", "Results of 'best_of' > 1 cannot be streamed: leave out one of the two."
        )
    prompt = prompt_tokens.prompts(body.prompt, body.suffix, count)
    if prompt.prompts * n > MAX_CHOICES:
        raise validation_errors.wrong_value(
            "n",
            f"'n' (currently {n}) times the number of prompts (currently {prompt.prompts}) must be at most "
            f"{MAX_CHOICES}: ask for fewer choices, or send the prompts in several requests.",
        )
    # best_of: 0 is what the SDKs' own tests send for "not used".
    return validate.generation(document, body, prompt, best_of=body.best_of or 1, default_output=DEFAULT_OUTPUT)


def _changes(call: Call, route: Route, capabilities: Capabilities, added_limit: int | None) -> dict[str, Any]:
    changes = plain.stream_options(call, capabilities) if call.params.stream else {}
    if call.params.is_output_limit_added:  # without a limit the API ends after 16 tokens
        changes["max_tokens"] = added_limit
    return changes


COMPLETIONS = Format(
    name="completions",
    path="/v1/completions",
    upstream_path="/completions",
    operation="text_completion",
    read=partial(validate.read, validate.Rules(Completion, _read)),
    facts=plain.facts,
    usage=reported,
    scan=partial(StreamScan, is_chat=False),
    gather=gathered.chat,
    streams_only_events=True,
    as_events=lambda answer, shows_usage, _: as_event(answer, shows_usage=shows_usage),
    changes=_changes,
    limit_fields=plain.LIMIT_FIELDS,
    texts=reported_usage.TEXT,
)

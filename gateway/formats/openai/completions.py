"""OpenAI's completions, chat completions and embeddings (openai-openapi, CreateCompletionRequest,
CreateChatCompletionRequest, CreateEmbeddingRequest)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gateway.api import other_models, prompt_tokens, validate, validation_errors
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Chat, Completion, Embedding
from gateway.config import Capabilities, Route
from gateway.errors import InvalidRequest
from gateway.formats import gathered, reported_usage
from gateway.formats.format import AnswerMembers, Format, PlainFacts
from gateway.formats.member_reader import EACH, LongAnswer
from gateway.formats.reader import objects, value_at
from gateway.records import Call, Document, Params, Usage

from . import reader as chat
from .reader import ChatReader, StreamScan, as_event

LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")

MAX_CHOICES = 2048
"""Choices of one call, prompts times n. OpenAI caps the product without naming the number (ai-dynamo took 128, which
would refuse batches that the API takes). As many as prompts: one choice for each is what batches are for, and a call
of 2048 prompts with n = 128 would ask for a quarter of a million outputs."""

DEFAULT_OUTPUT = 16
"""OpenAI's default of `max_tokens` (openai-openapi, CreateCompletionRequest)."""


def _read_completion(document: Document, body: Completion, count: Counter | None) -> Params:
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


_MODERATION = ("moderation",)
"""Names a model of its own (openai-python, completion_create_params.py)."""


def _read_chat(document: Document, body: Chat, count: Counter | None) -> Params:
    if body.top_logprobs is not None and not body.logprobs:
        raise validation_errors.wrong_value("top_logprobs", "It is only allowed when 'logprobs' is true.")
    for index, tool in enumerate(body.tools or ()):
        if tool.type == "function" and tool.function is None:
            raise validation_errors.missing(f"tools[{index}].function")
    output_param = "max_tokens" if "max_tokens" in document.members else "max_completion_tokens"
    prompt = prompt_tokens.chat(document, count)
    params = validate.generation(document, body, prompt, output_param=output_param, prompt_param="messages")
    if _MODERATION[0] not in document.members:
        return params
    return params._replace(other_models=other_models.named(document.members, _MODERATION))


def _read_embedding(document: Document, body: Embedding, count: Counter | None) -> Params:
    prompt = prompt_tokens.prompts(body.input, count=count)
    return Params(
        document=document,
        model=body.model,
        prompts=prompt.prompts,
        prompt_tokens=prompt.tokens,
        is_prompt_exact=prompt.is_exact,
        default_output=0,
        output_param="input",
        prompt_param="input",
    )


def _changes(call: Call, route: Route, capabilities: Capabilities, added_limit: int | None) -> dict[str, Any]:
    """Asks for the usage of a stream where the client did not, and adds a limit of the output."""
    params, changes = call.params, other_models.changes(call, route, _MODERATION) if call.other_models else {}
    if params.stream and not params.include_usage and capabilities.stream_usage:
        asked = params.document.members.get("stream_options") or {}
        changes["stream_options"] = {**asked, "include_usage": True}
    if call.endpoint == "completions":
        if params.is_output_limit_added:  # without a limit the API ends after 16 tokens
            changes["max_tokens"] = added_limit
    elif added_limit is not None:
        # OpenAI takes no `max_completion_tokens` beside a prediction (OpenAI's guide, "Predicted Outputs").
        is_predicted = params.document.members.get("prediction") is not None
        changes["max_tokens" if is_predicted else capabilities.max_tokens_field] = added_limit
    return changes


class _Answer(AnswerMembers):
    object: Any = None
    service_tier: Any = None
    provider: Any = None


class _ChoicesAnswer(_Answer):
    """Has the members that are read only where the others are not enough."""

    choices: Any = None
    web_search: Any = None
    x_groq: Any = None
    timings: Any = None


_NOTHING = {"message": "an answer of nothing", "type": "server_error"}
"""The error of an answer that has no output, no end and no tokens. GoModel and Ollama write it for a failure."""


_OUTPUT = (
    ("finish_reason",), ("text",), ("message", "content"), ("message", "tool_calls"), ("message", "reasoning"),
    ("message", "reasoning_content"), ("message", "audio"), ("message", "refusal"), ("message", "function_call"),
    ("message", "images"),
)  # fmt: skip
_NO_DATA = re.compile(rb'"data"\s*:\s*(?:null|\[\s*\])')


def _is_nothing(answer: Mapping[str, Any], body: bytes) -> bool:
    """Whether an answer that counts no tokens has no output either. Others have none of these members."""
    if choices := objects(answer.get("choices")):
        return not any(value_at(choice, path) for choice in choices for path in _OUTPUT)
    return b'"choices"' in body or _NO_DATA.search(body) is not None


def facts(
    body: bytes, members: type[_Answer] = _ChoicesAnswer,
    read: Callable[[Any, Any, Any], Usage | None] = chat.reported, *, may_be_nothing: bool = True,
) -> PlainFacts:  # fmt: skip
    """Returns the facts of a plain answer; `read` reads its usage object, with the tier and the vendor beside it.
    Raises `ValueError` if the body is not JSON."""
    answer = members.read(body)
    error, usage = answer.error, read(answer.usage, answer.service_tier, answer.provider)
    names_tools = (
        chat.NAMED[0] in body or chat.NAMED[1] in body or chat.NAMED[2] in body or chat.searches_always(answer.model)
    )
    if usage is None or not any(usage[:2]) or names_tools or (not error and b'"error"' in body):  # few: more is read
        reader, whole = ChatReader(), vars(answer)
        found = reader.facts(whole)
        error = error or reader.error  # OpenRouter puts it into a choice (genkit#6259)
        usage = (found or usage) if usage is None or names_tools else usage
        if may_be_nothing and not error and (usage is None or not any(usage[:2])) and _is_nothing(whole, body):
            return PlainFacts(is_error=True, error=_NOTHING)
    return PlainFacts(
        model=answer.model if isinstance(answer.model, str) else None,
        usage=usage,
        has_usage=answer.usage is not None,
        is_error=bool(error) or answer.success is False or answer.object == "error",
        has_output=b'"choices"' in body,
        error=error if isinstance(error, dict) else None,
    )


_OF_ANSWER = tuple([(name,) for name in ("object", "type", "success", "timings")])
_WANTED = (*ChatReader.WANTED, *_OF_ANSWER, ("choices", EACH), ("choices", EACH, "error"))
_WANTED_OF_VECTORS = (*[path for path in ChatReader.WANTED if EACH not in path], *_OF_ANSWER, ("data", EACH))


def _vectors(body: bytes, *, may_be_nothing: bool = True) -> PlainFacts:
    return facts(body, _Answer, chat.embedded, may_be_nothing=may_be_nothing)


def _many_vectors(body: bytes) -> PlainFacts:
    return _vectors(body, may_be_nothing=False)._replace(has_output=True)


_TEXT_FORMAT = partial(
    Format,
    facts=facts,
    long_reader=lambda: LongAnswer(partial(facts, may_be_nothing=False), _WANTED),
    usage=chat.reported,
    gather=partial(gathered.whole, gathered.GatheredChat),
    streams_only_events=True,
    as_events=as_event,
    changes=_changes,
    limit_fields=LIMIT_FIELDS,
    texts=reported_usage.TEXT,
)

COMPLETIONS = _TEXT_FORMAT(
    name="completions",
    path="/v1/completions",
    operation="text_completion",
    read=partial(validate.read, validate.Rules(Completion, _read_completion)),
    scan=partial(StreamScan, is_chat=False),
)
CHAT = _TEXT_FORMAT(
    name="chat",
    path="/v1/chat/completions",
    operation="chat",
    read=partial(validate.read, validate.Rules(Chat, _read_chat, with_models=_MODERATION)),
    keeps=other_models.keeping(*_MODERATION),
    scan=StreamScan,
    reader=ChatReader,
    media=chat.MEDIA,
    may_reason=True,
)
EMBEDDINGS = Format(
    name="embeddings",
    path="/v1/embeddings",
    operation="embeddings",
    read=partial(validate.read, validate.Rules(Embedding, _read_embedding)),
    facts=_vectors,
    long_reader=lambda: LongAnswer(_many_vectors, _WANTED_OF_VECTORS),
    usage=chat.embedded,
)

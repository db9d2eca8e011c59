"""Checks a request of Anthropic's Messages API, and estimates its prompt.

Faults have the form that they have there: the path with dots, a colon, and what was expected (`max_tokens: Field
required`). Ranges and rules: Anthropic's API reference and the types of its official SDK.

The prompt is estimated as that of chat is (api/prompt_tokens.py). Pictures count `IMAGE_TOKENS`, the most that one
costs without being scaled down (Anthropic, "Vision"); files the flat rate of chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from gateway.api import other_models, prompt_tokens, validate, validation_errors
from gateway.api.json_document import NOT_JSON, spans
from gateway.api.prompt_tokens import Counter, FindsCounter
from gateway.api.schema import CountTokens, Messages
from gateway.errors import InvalidRequest
from gateway.formats.format import counting
from gateway.formats.reader import objects, values_of
from gateway.records import Document, Params
from gateway.spelling import folded

MIN_THINKING = 1024
IMAGE_TOKENS = 1600
WITH_MODELS = ("fallbacks", "tools")

_SAFE_WORDS = frozenset({
    "missing", "string_type", "bool_type", "int_type", "float_type", "dict_type", "model_type", "list_type",
    "less_than_equal", "greater_than_equal", "too_long", "too_short", "string_too_long", "string_too_short",
    "literal_error", "int_from_float", "finite_number",
})  # fmt: skip
"""Kinds of pydantic's errors whose messages never repeat a value of the body."""


def explain(error: ValidationError) -> InvalidRequest:
    """The first fault in the words of this API, with the parameter and code that every format gives it."""
    detail = error.errors(include_url=False)[0]
    explained = validation_errors.explain(error)
    path = ".".join(str(part) for part in detail["loc"] if isinstance(part, int) or not part.startswith("<"))
    if detail["type"] in _SAFE_WORDS:
        what = detail["msg"]
    elif detail["type"] == validation_errors.ONE_OF:
        what = f"Input should be {detail.get('ctx', {}).get('expected')}"
    else:
        what = "Input is not valid"
    return InvalidRequest(f"{path}: {what}" if path else what, param=explained.param, code=explained.code)


def read(rules: validate.Rules, raw: bytes, find_counter: FindsCounter = prompt_tokens.no_counter) -> Params:
    """The checked parameters of a body. Raises `InvalidRequest` for the first fault."""
    try:
        return validate.read(rules, raw, find_counter)
    except InvalidRequest as fault:
        raise reworded(fault) from None


def reworded(fault: InvalidRequest) -> InvalidRequest:
    if not fault.message.startswith(NOT_JSON):
        return fault
    rest = fault.message.removeprefix(NOT_JSON).removesuffix(")").strip()
    return InvalidRequest(f"The request body is not valid JSON: {rest}")


def _message(document: Document, body: Messages, count: Counter | None) -> Params:
    _refuse_thread(document.members)
    _check_thinking(body)
    others = tuple(dict.fromkeys(_other_models(document.members)))
    return Params(
        document=document,
        model=body.model,
        stream=bool(body.stream),
        include_usage=True,
        prompt_tokens=_prompt(document, count),
        output_limit=max([body.max_tokens, *_fallback_limits(document.members)]),
        prompt_param="messages",
        other_models=others,
    )


def _count(document: Document, body: CountTokens, count: Counter | None) -> Params:
    _refuse_thread(document.members)
    return counting(document, body.model, "messages")


MESSAGES = validate.Rules(Messages, _message, explain, WITH_MODELS)
COUNT = validate.Rules(CountTokens, _count, explain, WITH_MODELS)


def _refuse_thread(members: Mapping[str, Any]) -> None:
    """Refuse a conversation that the upstream keeps for its account (anthropic-sdk, BetaMessageThreadParam)."""
    for name, value in members.items():
        if value is not None and folded(name) == "thread":
            text = f"{name}: The gateway serves no conversations that the upstream keeps. Send all messages."
            raise InvalidRequest(text, param=name, code="unsupported_parameter")


def _check_thinking(body: Messages) -> None:
    thinking = body.thinking
    if thinking is None or thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    path = "thinking.enabled.budget_tokens"
    if budget is None:
        raise _fault(path, "Field required", "missing_required_parameter")
    if not isinstance(budget, int) or isinstance(budget, bool):
        raise _fault(path, "Input should be a valid integer", "invalid_type")
    if budget < MIN_THINKING:
        raise _fault(path, f"Input should be greater than or equal to {MIN_THINKING}", "integer_below_min_value")
    # With tools the budget may be that of several turns (Anthropic, "Interleaved thinking").
    if budget >= body.max_tokens and not body.tools:
        raise InvalidRequest(
            "`max_tokens` must be greater than `thinking.budget_tokens`.",
            param="max_tokens",
            code="integer_below_min_value",
        )


def _fault(path: str, what: str, code: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: {what}", param="thinking.budget_tokens", code=code)


# ------------------------------------------------------------------------------------------------------- other models


def _other_models(members: Mapping[str, Any]) -> Iterator[str]:
    """The models that are named beside `model`: fallbacks, and those of tools (the advisor)."""
    if isinstance(members.get("fallbacks"), str):
        yield other_models.ANY_MODEL
    for name in WITH_MODELS:
        for index, entry in other_models.entries(members, name):
            model = entry.get("model")
            if model is None and name != "fallbacks":
                continue
            if not isinstance(model, str) or not model:
                place = f"{name}.{index}.model"
                raise InvalidRequest(f"{place}: Input should be a valid string", param=place, code="invalid_type")
            yield model


def _fallback_limits(members: Mapping[str, Any]) -> Iterator[int]:
    for index, entry in other_models.entries(members, "fallbacks"):
        limit = entry.get("max_tokens")
        if limit is None:
            continue
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            path = f"fallbacks.{index}.max_tokens"
            raise InvalidRequest(f"{path}: Input should be a positive integer", param=path, code="invalid_value")
        yield limit


# ---------------------------------------------------------------------------------------------------------- the prompt


def _prompt(document: Document, count: Counter | None) -> int:
    texts: list[str] = []
    members = document.members
    contents = [members.get("system"), *[message.get("content") for message in members["messages"]]]
    tokens = sum([_take(content, texts) for content in contents])
    tools = document.text[slice(*spans(document)["tools"])] if members.get("tools") else ""
    tokens += prompt_tokens.MESSAGE_TOKENS * len(members["messages"])
    return tokens + prompt_tokens.of_texts(texts, tools, count)


def _take(content: Any, texts: list[str]) -> int:
    """Add the texts of a content, a text or blocks; return the tokens of what is not text. Unknown blocks count as
    zero."""
    if isinstance(content, str):
        texts.append(content)
        return 0
    return sum([_take_block(block, texts) for block in objects(content)])


def _take_block(block: Mapping[str, Any], texts: list[str]) -> int:
    match block.get("type"):
        case "image":
            return IMAGE_TOKENS
        case "document":
            source = block.get("source")
            if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
                return prompt_tokens.FILE_TOKENS
            return _take(source.get("data"), texts) + _take(source.get("content"), texts)
        case "tool_use" | "server_tool_use":
            texts += values_of(block.get("input"))
            return _take(block.get("name"), texts)
        case "thinking":
            return _take(block.get("thinking"), texts)
        case _:
            return _take(block.get("text"), texts) + _take(block.get("content"), texts)

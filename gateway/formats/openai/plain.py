"""The common part of completions, chat and embeddings: plain answers, added members and generated texts."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel

from gateway.config import Capabilities
from gateway.formats.event_scan import parsed
from gateway.formats.format import PlainFacts
from gateway.records import Call

from .reader import ChatReader
from .usage import NAMED, SEARCHES_ALWAYS, ChatUsage, ReadsUsage, reported

LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")

RESPONSE_TEXT = re.compile(rb'"(?:text|refusal|arguments|input|code)"\s*:\s*"((?:[^"\\]++|\\.)++)"')
"""Generated texts in a plain response of the Responses API: the one group."""


class _Body(BaseModel):
    """The members of a plain answer that are read. Others are not built, because it is validated from the bytes."""

    model: Any = None
    usage: Any = None
    error: Any = None
    success: Any = None
    object: Any = None
    service_tier: Any = None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def refuse_constants(body: bytes) -> None:
    """Raises `ValueError` for NaN and Infinity. Pydantic accepts them as numbers; JSON does not have them, and most
    clients fail on them."""
    if b"NaN" in body or b"Infinity" in body:
        json.loads(body, parse_constant=_refuse_constant)


def facts(body: bytes, read: ReadsUsage = reported) -> PlainFacts:
    """Of a plain answer, whose usage object `read` reads. Raises `ValueError` if it is not JSON."""
    answer = _Body.model_validate_json(body)
    refuse_constants(body)
    error = answer.error or (_error_in_choice(body) if b'"error"' in body else None)
    usage = read(answer.usage, answer.service_tier)
    model = answer.model if isinstance(answer.model, str) else None
    if NAMED[0] in body or NAMED[1] in body or NAMED[2] in body or (model and SEARCHES_ALWAYS.search(model)):
        usage = ChatUsage().take(parsed(body) or {})
    return PlainFacts(
        model=model,
        usage=usage,
        has_usage=answer.usage is not None,
        is_error=bool(error) or answer.success is False or answer.object == "error",
        has_output=b'"choices"' in body,
        error=error if isinstance(error, dict) else None,
    )


def _error_in_choice(body: bytes) -> Any:
    """The error in a choice of a plain answer: OpenRouter puts it there (genkit#6259)."""
    reader = ChatReader()
    reader.facts(parsed(body) or {})
    return reader.error


def stream_options(call: Call, capabilities: Capabilities) -> dict[str, Any]:
    """Of a stream: asks for its usage where the client did not."""
    params = call.params
    if not params.include_usage and capabilities.stream_usage:
        return {"stream_options": {**(params.document.members.get("stream_options") or {}), "include_usage": True}}
    return {}

"""Finds the error in an answer and its reason, whatever object they come in.

`MEMBERS` lists the members in which APIs state their reasons. A text that only repeats the status, or only refers to
another member, counts where nothing else is found. A text that is itself JSON is read as such. A place that a client
may have named, as an unknown parameter, is put in quotes: so it is no beginning in `provider_errors.TABLE`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gateway.formats.reader import text_of
from gateway.formats.reason_cleaner import MAX_TEXT

MEMBERS: tuple[str, ...] = (
    "message",  # OpenAI, Anthropic, Google; alone: Cohere (docs.cohere.com, "Errors"), Mistral, NestJS as a list
    "Message",  # AWS (smithy.io, AWS JSON protocols, "Operation error serialization")
    "errorMessage",  # gateways behind AWS Lambda (NousResearch/hermes-agent#100783)
    "msg",  # pydantic, in FastAPI's `detail`; Suno's resellers
    "detail",  # FastAPI as a text or a list; RFC 9457, 3.1.4; Perplexity, Replicate
    "error",  # Ollama (docs/api/errors) and text-generation-inference (docs, "Error") as a text
    "errors",  # Cloudflare (api-reference, "Response"); ASP.NET's ValidationProblemDetails as an object
    "description",  # Google's BadRequest.FieldViolation; Midjourney's resellers
    "fieldViolations",  # Google (error_details.proto)
    "raw",  # OpenRouter, in `metadata` (openrouter.ai/docs, "Errors")
    "metadata",
    "details",  # Google, Azure
    "value",  # OData v2's `message`, which is an object with a language
    "innererror",  # Azure (api-guidelines, "Error condition responses")
    "title",  # RFC 9457, 3.1.3
)  # fmt: skip

_VAGUE = frozenset({
    "bad request", "unauthorized", "forbidden", "not found", "method not allowed", "conflict", "payload too large",
    "request entity too large", "content too large", "unprocessable entity", "unprocessable content",
    "too many requests", "internal server error", "bad gateway", "service unavailable", "gateway timeout",
    "error", "none", "null",
    "provider returned error",  # OpenRouter
    "request contains an invalid argument.",  # Google
    "one or more validation errors occurred.",  # ASP.NET
    "input validation failed",  # Replicate's title
})  # fmt: skip
_WORDS = ("code", "type", "param", "details")
"""Members that are kept beside the reason."""
_OTHER_WORDS: Mapping[str, str] = {"__type": "type", "error_type": "type", "error_code": "code"}
"""AWS's and others' names of them."""
_PLACES = ("loc", "field")
"""Where pydantic and Google name the place of a fault."""
_OUTSIDE = frozenset({"body", "query", "path", "header"})
"""FastAPI's first element of a place, which is no parameter."""
_WORD = re.compile(r"[\w.:/#-]{1,100}", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")
_EVENT = re.compile(rb"^data:(.*)$", re.MULTILINE)
_MAX_DEPTH = 6
_MAX_REASONS = 5
_MAX_LOOKED_AT = 50
_MAX_JSON_CHARS = 65_536
MAX_ERROR_BYTES, MAX_ERROR_PARTS = 1_048_576, 20_000
"""Longest answer that is searched for an error, in one turn of the event loop, and its arrays, objects and members."""


class _Reason(NamedTuple):
    text: str = ""
    param: str | None = None

    @property
    def is_vague(self) -> bool:
        return self.text.lower() in _VAGUE


def is_too_long(body: bytes) -> bool:
    """Whether an answer is too long to be searched for its error."""
    return len(body) > MAX_ERROR_BYTES or sum(map(body.count, (b"[", b"{", b'":'))) > MAX_ERROR_PARTS


def in_place_of_an_answer(body: bytes) -> dict[str, Any] | None:
    """The error object of a good answer that has an error: an empty one where it is too long to be searched."""
    return {} if is_too_long(body) else error_of(body)


def error_of(body: bytes) -> dict[str, Any] | None:
    """The error object of an answer, as `normal` writes it; None if it has none.

    A text is the reason (text-embeddings-inference and other servers in axum: the rejection of a body), a page is not.
    """
    if is_too_long(body):
        return None
    body = body.lstrip(b"\xef\xbb\xbf \t\r\n")
    if body.startswith((b"data:", b"event:")):  # a stream was asked for
        body = next((each for each in _EVENT.findall(body)), b"").strip()
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return _of_text(body)
    if isinstance(answer, list):  # Google's, where a stream was asked for
        answer = next((each for each in answer if isinstance(each, dict)), {"errors": answer})
    return (
        normal({"message": answer} if isinstance(answer, str) else answer) if isinstance(answer, str | dict) else None
    )


def normal(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error in an object, with the reason as `message`, and `code`, `type`, `param` and `details` where they are
    given; None if it has neither a reason nor a code."""
    error = answer.get("error")
    holder = error if isinstance(error, dict) and error else answer
    found = _reason(holder) if holder is answer else _better(_reason(holder), _reason({**answer, "error": None}))
    kept = {name: holder[name] for name in _WORDS if holder.get(name) is not None}
    for name, meaning in _OTHER_WORDS.items():
        if isinstance(word := holder.get(name), str) and meaning not in kept:
            kept[meaning] = word.rpartition("#")[2]
    if holder is not error:  # members of an answer that may mean something else
        kept = {name: value for name, value in kept.items() if name == "details" or _WORD.fullmatch(str(value))}
    if not found.text and not kept.keys() & {"code", "type"}:
        return None
    if found.param is not None:
        kept.setdefault("param", found.param)
    return {**kept, "message": found.text}


def _of_text(body: bytes) -> dict[str, Any] | None:
    text = body[:_MAX_JSON_CHARS].decode("utf-8", "replace").strip()
    is_text = text and text[0] not in "<{[" and _UNPRINTABLE.search(text) is None and "</" not in text
    return {"message": text} if is_text else None


def _better(first: _Reason, second: _Reason) -> _Reason:
    return second if second.text and not second.is_vague and (not first.text or first.is_vague) else first


def _reason(value: Any, depth: int = 0) -> _Reason:
    if depth > _MAX_DEPTH:
        return _Reason()
    if isinstance(value, str):
        return _of_string(value, depth)
    if isinstance(value, list):
        return _joined((_reason(each, depth + 1) for each in value[:_MAX_LOOKED_AT]), separator="; ")
    if not isinstance(value, dict):
        return _Reason()
    found = _Reason()
    for name in MEMBERS:
        if (given := value.get(name)) is None:
            continue
        further = _fields(given, depth) if name == "errors" and isinstance(given, dict) else _reason(given, depth + 1)
        found = _better(found, further) if found.text else further
        if found.text and not found.is_vague:
            break
    place = next((where for name in _PLACES if (where := _place(value.get(name)))), None)
    if place is not None and found.text:
        found = _Reason(f"'{place}': {found.text}", place)
    if filtered := _filtered(value):
        found = found._replace(text=f"{found.text} (filtered: {filtered})".lstrip())
    return found


def _of_string(text: str, depth: int) -> _Reason:
    text = text.strip()
    if text[:1] in ("{", "[") and len(text) <= _MAX_JSON_CHARS:
        try:
            inner = _reason(json.loads(text), depth + 1)
        except (ValueError, RecursionError):
            return _Reason(text)
        return inner if inner.text else _Reason(text)
    return _Reason(text[:MAX_TEXT])


def _joined(reasons: Iterable[_Reason], *, separator: str) -> _Reason:
    found = [each for each in reasons if each.text][:_MAX_REASONS]
    param = next((each.param for each in found if each.param is not None), None)
    return _Reason(separator.join(dict.fromkeys(each.text for each in found)), param)


def _fields(errors: Mapping[str, Any], depth: int) -> _Reason:
    """Returns the reason in ASP.NET's `errors`: the texts of each field by its name."""
    if "message" in errors:
        return _reason(errors, depth + 1)
    named = ((name, _reason(value, depth + 1)) for name, value in errors.items())
    return _joined((_Reason(f"'{name}': {each.text}", name) for name, each in named if each.text), separator="; ")


def _place(value: Any) -> str:
    """`messages[0].name` of `["body", "messages", 0, "name"]`."""
    if isinstance(value, str):
        return value[:100]
    if not isinstance(value, list):
        return ""
    steps = value[1:] if value and text_of(value[0]) in _OUTSIDE else value
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps[:10])
    return text.removeprefix(".")[:100]


def _filtered(error: Mapping[str, Any]) -> str:
    """The categories of Azure's content filter that refused a prompt (learn.microsoft.com, "Content filtering")."""
    inner = error.get("innererror")
    results = inner.get("content_filter_result") if isinstance(inner, dict) else None
    found = results.items() if isinstance(results, dict) else ()
    return ", ".join(name for name, each in found if isinstance(each, dict) and each.get("filtered") is True)

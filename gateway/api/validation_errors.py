"""Errors for faults in a body: OpenAI's words, parameter paths and codes.

One table turns what pydantic found into an `InvalidRequest`; the same sentences serve the limits of a key or a model,
whose messages name the owner of the limit. Codes and sentences are those that OpenAI has been seen to send
(`integer_above_max_value`, `array_above_max_length`, `empty_array`, `invalid_type`: "expected an integer, but got a
decimal number instead").

A value that the client sent may be a prompt or a secret, so none is repeated except a short number. Paths are made of
our own field names and of indexes only, and are safe to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from gateway.errors import InvalidRequest

MAX_SHOWN_DIGITS = 32

ONE_OF = "one_of"
"""Our own pydantic error type: none of several types that a field may have; its context names them."""

_KINDS: Mapping[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    dict: "an object",
    list: "an array",
    type(None): "null",
    bytes: "a file",
}

_EXPECTED: Mapping[str, str] = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a decimal",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "an array",
    "literal_error": "a string",
    "bytes_type": "a file",
}


def explain(error: ValidationError) -> InvalidRequest:
    """The first fault in the form that OpenAI uses. Fields are checked in the order of their schema."""
    detail = error.errors(include_url=False)[0]
    path, kind, value, context = format_location(detail["loc"]), detail["type"], detail["input"], detail.get("ctx", {})
    explanation = _EXPLANATIONS.get(kind)
    if explanation is not None and (kind != "literal_error" or isinstance(value, str)):
        return explanation(path, value, context)
    if kind in _EXPECTED:
        return wrong_type(path, _EXPECTED[kind], value)
    return wrong_value(path, "The API does not allow it.")


def format_location(location: tuple[str | int, ...]) -> str:
    """A path in the body in OpenAI's form: `messages[0].role`. The arms of a union (`<...>`) are no level of it."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path


def above(path: str, value: float, bound: float, subject: str = "Expected") -> InvalidRequest:
    """A number that is too large; a bound that is a float belongs to a decimal."""
    kind = "decimal" if isinstance(bound, float) else "integer"
    return InvalidRequest(
        f"Invalid '{path}': {kind} above maximum value. "
        f"{subject} a value <= {_number(bound)}, but got {_number(value)} instead.",
        param=path,
        code=f"{kind}_above_max_value",
    )


def below(path: str, value: float, bound: float) -> InvalidRequest:
    kind = "decimal" if isinstance(bound, float) else "integer"
    return InvalidRequest(
        f"Invalid '{path}': {kind} below minimum value. "
        f"Expected a value >= {_number(bound)}, but got {_number(value)} instead.",
        param=path,
        code=f"{kind}_below_min_value",
    )


def array_too_long(path: str, length: int, bound: int, subject: str = "Expected") -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': array too long. {subject} an array with maximum length {bound}, "
        f"but got an array with length {length} instead.",
        param=path,
        code="array_above_max_length",
    )


def wrong_type(path: str, expected: str, value: Any) -> InvalidRequest:
    """A value of another type than the parameter has."""
    got = _KINDS.get(type(value), "something else")
    if type(value) is int and value.bit_length() > 1024:  # as a decimal it would be infinite
        got = _number(value)
    return InvalidRequest(
        f"Invalid type for '{path}': expected {expected}, but got {got} instead.", param=path, code="invalid_type"
    )


def wrong_value(path: str, why: str) -> InvalidRequest:
    """The type is right and the value is not."""
    return InvalidRequest(f"Invalid value for '{path}'. {why}", param=path, code="invalid_value")


def _unreadable(path: str, why: str) -> InvalidRequest:
    """The error of a reader of text, with the reader's reason."""
    sentence = f"{why[:1].upper()}{why[1:]}."
    return wrong_value(path, sentence) if path else InvalidRequest(sentence, code="invalid_value")


def misspelled(given: str, meant: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unknown parameter: '{given}'. Did you mean '{meant}'?", param=param, code="unknown_parameter"
    )


def missing(path: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")


def _empty(path: str, kind: str, article: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': empty {kind}. Expected {article} {kind} with minimum length 1, "
        f"but got an empty {kind} instead.",
        param=path,
        code=f"empty_{kind}",
    )


def _string_too_long(path: str, length: int, bound: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': string too long. Expected a string with maximum length {bound}, "
        f"but got a string with length {length} instead.",
        param=path,
        code="string_above_max_length",
    )


def _number(value: float) -> str:
    """A number as the client may have written it; a long one is only counted."""
    if isinstance(value, int):
        shown = str(value)
        return shown if len(shown) <= MAX_SHOWN_DIGITS else f"a number of {len(shown.lstrip('-'))} digits"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


# pydantic's error type -> our sentence, from path, value and context. All minimum lengths in the schemas are 1.
_EXPLANATIONS: Mapping[str, Callable[[str, Any, Mapping[str, Any]], InvalidRequest]] = {
    "missing": lambda path, _, __: missing(path),
    "less_than_equal": lambda path, value, context: above(path, value, context["le"]),
    "greater_than_equal": lambda path, value, context: below(path, value, context["ge"]),
    "too_long": lambda path, value, context: array_too_long(path, len(value), context["max_length"]),
    "too_short": lambda path, _, __: _empty(path, "array", "an"),
    "string_too_long": lambda path, value, context: _string_too_long(path, len(value), context["max_length"]),
    "string_too_short": lambda path, _, __: _empty(path, "string", "a"),
    "literal_error": lambda path, _, context: wrong_value(path, f"Supported values are: {context['expected']}."),
    "value_error": lambda path, value, context: _unreadable(path, str(context["error"])),
    ONE_OF: lambda path, value, context: wrong_type(path, f"one of {context['expected']}", value),
}

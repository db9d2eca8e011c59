"""Values of tools, ids and pictures as the target API accepts them. A rule's source is the API's own 400 in a report.

| API | rule | report |
|---|---|---|
| Anthropic | `input_schema.type` is `object` | opencodex#75 |
| Anthropic, OpenAI | a schema has no `oneOf`, `allOf` or `anyOf` at its top | claude-code#5319, langchainjs#9804 |
| Anthropic | ids of calls have letters, digits, `_` and `-` | cc-switch#1181 |
| Anthropic, OpenAI | names of tools have at most 64 characters | claude-code#2485, ida-pro-mcp#129 |
| Anthropic | pictures are JPEG, PNG, GIF or WebP, called what they are | hermes-agent#55432, home-assistant#167208 |
| Anthropic, OpenAI | a schema is not a reference (pydantic's, of a model that contains itself) | pydantic-ai#943 |
| OpenAI | descriptions of functions have at most 1,024 characters | sentry-mcp#106, goose#739 |
| OpenAI | ids of calls have at most 40 characters | openclaw#875 |
| OpenAI | the schema of an object has `properties` | spring-ai#4776 |
| OpenAI | a strict schema requires all properties, and allows no others | trae-agent#173 |
| Anthropic | a user is no e-mail address or telephone number, and has at most 256 characters | litellm#10106 |
| OpenAI | a user has at most 64 characters | bifrost#1000 |
| Anthropic | names of properties have at most 64 letters, digits, `_`, `.` and `-` | n8n#30590, claude-code#79418 |
| Anthropic | schemas that bind the model have some keywords only | anthropic-sdk, `lib/_parse/_transform.py` |

An id or a name that has to change comes back as the client wrote it: ids are encoded so that they can be decoded,
changed names are kept with the request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

LONGEST_NAME = 64
LONGEST_CHAT_ID = 40
LONGEST_CHAT_DESCRIPTION = 1024
LONGEST_CHAT_USER, LONGEST_MESSAGES_USER = 64, 256

_OTHER = re.compile(r"[^a-zA-Z0-9_-]")
_ENCODED = re.compile(r"-x([0-9a-f]{2,6})-")
_COMBINED = ("allOf", "anyOf", "oneOf")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_PERSONAL = re.compile(r".*@.*|[+(]?\d[\d ()./-]{5,}", re.DOTALL)


def messages_id(call_id: str) -> str:
    """The id of a call as Messages accepts it; `chat_id` finds it again."""
    return _OTHER.sub(lambda found: f"-x{ord(found[0]):02x}-", call_id) or "call"


def chat_id(call_id: str) -> str:
    """The id of a call as chat accepts it: as its upstream wrote it."""
    decoded = _ENCODED.sub(lambda found: chr(int(found[1], 16)) if int(found[1], 16) < 0x110000 else found[0], call_id)
    if len(decoded) <= LONGEST_CHAT_ID:
        return decoded
    return f"call_{_digest(call_id, 32)}"


def tool_name(name: str) -> str:
    """A name of a tool as both APIs accept it: where it has to change, with a digest at its end."""
    clean = _OTHER.sub("_", name)
    if clean == name and len(name) <= LONGEST_NAME:
        return name
    return f"{clean[: LONGEST_NAME - 9]}_{_digest(name, 8)}"


def changed_names(names: Iterable[str]) -> dict[str, str]:
    """The client's names of tools, by those that are sent where they differ."""
    return {there: name for name in names if (there := tool_name(name)) != name}


def chat_user(user: str) -> str:
    """The user as chat accepts it: a long one as a digest."""
    return user if len(user) <= LONGEST_CHAT_USER else _digest(user, 64)


def messages_user(user: str) -> str:
    """The user as Messages accepts it: one that is long, or may be an address or a number, as a digest."""
    return _digest(user, 64) if len(user) > LONGEST_MESSAGES_USER or _PERSONAL.fullmatch(user) else user


def wrong_property(schema: Mapping[str, Any]) -> str | None:
    """The name of a property of a tool's input that Messages refuses."""
    properties = schema.get("properties")
    names = properties if isinstance(properties, dict) else {}
    return next((name for name in names if not _PROPERTY.fullmatch(name)), None)


def messages_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function as Messages accepts it: of an object, its properties not combined of other schemas."""
    schema = _referred(schema)
    whole = {name: value for name, value in schema.items() if name not in _COMBINED}
    for name in _COMBINED:
        parts = schema.get(name)
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and isinstance(part.get("properties"), dict):
                whole["properties"] = {**(whole.get("properties") or {}), **part["properties"]}
            if name == "allOf" and isinstance(part, dict) and isinstance(part.get("required"), list):
                whole["required"] = [*dict.fromkeys([*(whole.get("required") or []), *part["required"]])]
    return {**whole, "type": "object"}


def chat_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool as chat accepts it: nothing, or as for Messages, with properties. The order of its members
    stays, which is the order in the prompt of a model that reads templates."""
    if not schema:
        return {}
    whole = messages_schema(schema)
    return whole if "properties" in whole or "$ref" in whole else {**whole, "properties": {}}


def _referred(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema that only refers to one of its definitions, as this one; the definitions stay for what is inside it."""
    ref = schema.get("$ref")
    for kind in ("$defs", "definitions"):
        known, start = schema.get(kind), f"#/{kind}/"
        if isinstance(known, dict) and isinstance(ref, str) and ref.startswith(start):
            found = known.get(ref.removeprefix(start))
            if isinstance(found, dict) and "$ref" not in found:
                return {**found, **{name: value for name, value in schema.items() if name != "$ref"}}
    return schema


def chat_function(name: str, description: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """A function as chat accepts it; the rest of a description that is too long begins that of its parameters."""
    function: dict[str, Any] = {"name": name}
    parameters = None if schema is None else chat_schema(schema)
    if len(description) > LONGEST_CHAT_DESCRIPTION:
        start = description[:LONGEST_CHAT_DESCRIPTION]
        end = max(start.rfind("\n"), start.rfind(" "), LONGEST_CHAT_DESCRIPTION // 2)
        parameters = parameters or {"type": "object", "properties": {}}
        texts = (description[end:].lstrip(), parameters.get("description"))
        parameters["description"] = "\n\n".join([text for text in texts if isinstance(text, str) and text])
        description = start[:end].rstrip()
    if description:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return function


_STRING_FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid",
})  # fmt: skip
_BINDING = frozenset({
    "$ref", "$defs", "definitions", "type", "enum", "const", "anyOf", "allOf", "title", "description", "properties",
    "required", "additionalProperties", "items",
})  # fmt: skip
_NESTED = {"properties": dict, "$defs": dict, "definitions": dict, "anyOf": list, "allOf": list}


def binding_schema(schema: Any) -> Any:
    """A schema that the model is bound to, as Messages accepts it. Other keywords (`minimum`, `pattern`) go to the
    description, as Anthropic's SDK has it; an object allows the named properties only.

    Raises `ValueError` for an object that names none, which could only be empty.
    """
    if not isinstance(schema, dict):
        return schema
    given = {**schema}
    if isinstance(given.get("oneOf"), list) and "anyOf" not in given:
        given["anyOf"] = given.pop("oneOf")
    bound: dict[str, Any] = {}
    for name, value in given.items():
        inner = _NESTED.get(name)
        if inner is dict and isinstance(value, dict):
            bound[name] = {each: binding_schema(part) for each, part in value.items()}
        elif inner is list and isinstance(value, list):
            bound[name] = [binding_schema(part) for part in value]
        elif name == "items":
            bound[name] = binding_schema(value)
        elif _binds(name, value):
            bound[name] = value
    if "properties" in bound or bound.get("type") == "object":
        if given.get("additionalProperties") is not False and not {"properties", "anyOf", "allOf"} & bound.keys():
            raise ValueError("an object without named properties")
        bound["additionalProperties"] = False
    if others := {name: value for name, value in given.items() if name not in bound}:
        described = json.dumps(others, ensure_ascii=False)
        bound["description"] = "\n\n".join(text for text in (bound.get("description"), described) if text)
    return bound


def _binds(name: str, value: Any) -> bool:
    if name == "format":
        return value in _STRING_FORMATS
    return value in (0, 1) if name == "minItems" else name in _BINDING


def is_strict(schema: Any) -> bool:
    """Whether a schema can be used with `strict`: every object in it names all its properties as required, and allows
    no others."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if isinstance(properties, dict) or schema.get("type") == "object":
        names, required = properties or {}, schema.get("required")
        if schema.get("additionalProperties") is not False or not isinstance(required, list | None):
            return False
        if not isinstance(names, dict) or set(names) != set(map(str, required or [])):
            return False
        if not all(map(is_strict, names.values())):
            return False
    return all(is_strict(value) for name, value in schema.items() if name not in ("properties", "enum", "const"))


_PICTURES = {"/9j/": "image/jpeg", "iVBORw0KGgo": "image/png", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""Types of pictures by the beginning of their base64."""


def picture_type(media_type: str, data: str) -> str | None:
    """The type of a picture by its first bytes, else as the client calls it; None if Messages does not accept it."""
    found = next((kind for start, kind in _PICTURES.items() if data.startswith(start)), media_type.lower())
    found = "image/jpeg" if found == "image/jpg" else found
    return found if found in _PICTURES.values() else None


def _digest(text: str, size: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:size]

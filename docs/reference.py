"""The page of the API reference, from the same OpenAPI document that a running gateway serves at /openapi.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.web.openapi.document import OPERATIONS, describe

Schema = Mapping[str, Any]

GROUPS = {
    "Calls": "/v1/",
    "Calls of Gemini's API": "/v1beta/",
    "Calls at other paths": ("/openai/", "/v2/", "/rerank"),
    "Admin API": "/admin/api/",
    "Pages and health": "/",
}
"""Headings, and how the paths below them begin; the first that fits counts."""

CALLERS = {
    "key": "an API key",
    "admin": "an operator's token",
    "viewer": "a viewer's token",
    "metrics": "the metrics token, if one is set",
}
BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "maxItems": "at most (items)",
    "pattern": "pattern",
    "format": "format",
    "default": "default",
}
HEAD = """\
# API reference

Every operation of this version, with its parameters, bodies and answers. A running gateway shows the same at `/docs`,
and serves it as `/openapi.json`; there each listener has its own operations. [Formats](formats.md) describes what the
gateway does with a call, [People and roles](people.md) who may use the admin API, [Errors](errors.md) each error.
"""


def page() -> str:
    """The page in Markdown."""
    document = describe(OPERATIONS)
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    for path, methods in document["paths"].items():
        group = next(name for name, start in GROUPS.items() if path.startswith(start))
        groups[group] += ["\n".join(_operation(method, path, each)) for method, each in methods.items()]
    schemas = document["components"]["schemas"]
    parts = [HEAD, *(f"## {name}\n\n" + "\n\n".join(texts) for name, texts in groups.items())]
    return (
        "\n\n".join([*parts, "## Bodies and answers", *(_schema(name, each) for name, each in schemas.items())]) + "\n"
    )


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`\n"
    roles = operation.get("x-roles")
    tokens = [CALLERS.get(name, name) for each in operation["security"] for name in each]
    who = ", ".join(f"{role} ({reach})" for role, reach in roles.items()) if roles else " or ".join(tokens)
    yield f"{operation['summary']} {f'For: {who}.' if who else 'Needs no token.'}\n"
    if parameters := operation.get("parameters"):
        yield from _table("Parameter", [(f"`{each['name']}` ({each['in']})", each) for each in parameters])
    for media, each in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body (`{media}`): {_type(each['schema'])}.\n"
    answers: dict[str, list[str]] = {}
    for status, answer in operation["responses"].items():
        shown = [f"{_type(each['schema'])} (`{media}`)" for media, each in answer["content"].items()]
        answers.setdefault(", ".join(shown) or "no body", []).append(status)
    yield "Answers: " + "; ".join(f"{', '.join(statuses)}: {shown}" for shown, statuses in answers.items()) + "."


def _schema(name: str, schema: Schema) -> str:
    members = schema.get("properties", {})
    needed = set(schema.get("required", ()))
    rows = [(f"`{each}`", {"schema": member, "is_needed": each in needed}) for each, member in members.items()]
    return f"### {name}\n\n" + ("\n".join(_table("Member", rows)) if rows else f"{_type(schema)}.\n")


def _table(head: str, rows: list[tuple[str, Schema]]) -> Iterator[str]:
    yield f"| {head} | Type | Note |\n|---|---|---|"
    for name, row in rows:
        schema = row["schema"]
        notes = [
            "always there" if row.get("is_needed") else "",
            row.get("description") or schema.get("description") or "",
            _bounds(schema),
        ]
        cells = (name, _type(schema), "; ".join(note.rstrip(".") for note in notes if note))
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    yield ""


def _type(schema: Schema) -> str:
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if "items" in schema:
        return f"array of {_type(schema['items'])}"
    kind = schema.get("type", schema.get("description", "any").rstrip("."))
    return " or ".join(kind) if isinstance(kind, list) else kind


def _bounds(schema: Schema) -> str:
    """Of the schema, or of those of its choices that have some."""
    found = [f"{words} `{schema[name]}`" for name, words in BOUNDS.items() if name in schema]
    inner = [_bounds(each) for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
    return "; ".join([*found, *dict.fromkeys(filter(None, inner))])

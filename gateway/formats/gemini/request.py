"""Checks a request of Gemini's API, and estimates its prompt.

Google's JSON reader takes each name in camelCase and in snake_case, and so do these rules; both spellings of one name
in one object are refused, because only one would be obeyed. It takes one object where an array of objects is expected,
as examples of Google's have it: so do these rules. Ranges: Google's API reference ("GenerationConfig") and
the types of google-genai.

The prompt is estimated as that of chat is (api/prompt_tokens.py). Pictures count `IMAGE_TOKENS`; others a flat rate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gateway.api import prompt_tokens, validate, validation_errors
from gateway.api.file_ids import SCHEMAS, texts_in
from gateway.api.json_document import parse, spans
from gateway.api.other_models import refuse_further
from gateway.api.prompt_tokens import Counter, FindsCounter
from gateway.api.schema import MAX_OUTPUT, Part, Penalty, Seed
from gateway.errors import InvalidRequest
from gateway.formats.format import counting
from gateway.formats.reader import objects, objects_of, values_of
from gateway.records import Document, Params
from gateway.spelling import folded, plain_address

CONFIG = "generationConfig"
COUNTED = "generateContentRequest"
"""The member of a countTokens body that holds a whole request."""

IMAGE_TOKENS = 1120
"""A picture at the highest resolution (Google, "Media resolution")."""
MAX_CANDIDATES = 8
MAX_STOPS = 5

_Schema = TypeVar("_Schema", bound=Part)
_UNDERSCORE = re.compile(r"_+([A-Za-z0-9])")


class Camel(Part):
    """Names in camelCase, as Google's reference has them."""

    model_config = ConfigDict(alias_generator=to_camel)


class GenerationConfig(Camel):
    """The limits and parameters of the generation."""

    candidate_count: Annotated[int, Field(ge=1, le=MAX_CANDIDATES)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT)] | None = None
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[float, Field(ge=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    seed: Seed | None = None
    response_mime_type: str | None = None
    response_modalities: Annotated[list[str], Field(fail_fast=True)] | None = None
    thinking_config: dict[str, Any] | None = None


def as_list(value: Any) -> Any:
    """One object as a list of it; anything else as it is."""
    return [value] if isinstance(value, dict) else value


Objects = Annotated[
    list[dict[str, Any]],
    Field(fail_fast=True),
    BeforeValidator(as_list, json_schema_input_type=list[dict[str, Any]] | dict[str, Any]),
]


class Contents(Camel):
    """A turn of the conversation."""

    role: str | None = None
    parts: Objects | None = None


Turns = Annotated[
    list[Contents],
    Field(min_length=1, max_length=100_000, fail_fast=True),
    BeforeValidator(as_list, json_schema_input_type=list[Contents] | Contents),
]


class GenerateContent(Camel):
    """GenerateContentRequest. The model is in the path."""

    contents: Turns
    system_instruction: dict[str, Any] | None = None
    tools: Objects | None = None
    tool_config: dict[str, Any] | None = None
    safety_settings: Objects | None = None
    generation_config: GenerationConfig | None = None
    cached_content: str | None = None


class CountContentTokens(Camel):
    """CountTokensRequest: either contents, or a whole request."""

    contents: Turns | None = None
    generate_content_request: dict[str, Any] | None = None


_REQUEST = ("generateContentRequest",)
"""Names its model itself, in a request that counts."""
_TOP, _CONFIG, _COUNT = [
    frozenset({"model", *map(to_camel, schema.model_fields)})
    for schema in (GenerateContent, GenerationConfig, CountContentTokens)
]


def camel(name: str) -> str:
    """The name in the form of Google's reference: `max_output_tokens` is `maxOutputTokens`."""
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def read(raw: bytes, find_counter: FindsCounter = prompt_tokens.no_counter) -> Params:
    """The checked parameters of a generateContent body, without its model. Raises `InvalidRequest`."""
    document, members, body = _read(raw, GenerateContent, _TOP)
    config = body.generation_config or GenerationConfig()
    members["contents"] = as_list(members["contents"])
    return Params(
        document=document,
        model="",
        include_usage=True,
        n=config.candidate_count or 1,
        prompt_tokens=_prompt(document, members, find_counter("")),
        output_limit=config.max_output_tokens,
        output_param="maxOutputTokens",
        prompt_param="contents",
    )


def read_count(raw: bytes, find_counter: FindsCounter = prompt_tokens.no_counter) -> Params:
    """The checked parameters of a countTokens body, without its model. Raises `InvalidRequest`."""
    document, _, body = _read(raw, CountContentTokens, _COUNT)
    if (body.contents is None) == (body.generate_content_request is None):
        raise validation_errors.missing("contents")
    return counting(document, "", "contents")


def _read(raw: bytes, schema: type[_Schema], names: frozenset[str]) -> tuple[Document, dict[str, Any], _Schema]:
    """A body, its members by their names in camelCase, and these by the schema."""
    document = parse(raw)
    members = by_names(document.members, names)
    refuse_model(members)
    refuse_further(members, read=_REQUEST)
    if CONFIG in names and isinstance(config := members.get(CONFIG), dict):
        members[CONFIG] = by_names(config, _CONFIG, f"{CONFIG}.")
    body = validate.checked(schema, members)
    refuse_kept(document.members)
    return document, members, body


def config_names(params: Params) -> Collection[str]:
    """The name of the configuration as the client spelled it: it has the limits, and one may be added."""
    return [name for name in params.document.members if camel(name) == CONFIG]


def name_in(members: Mapping[str, Any], name: str) -> str:
    """The name as the client spelled it, or as the reference does."""
    return next((each for each in members if camel(each) == name), name)


def refuse_model(members: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` if the body names a model."""
    if members.get("model") is not None:
        raise InvalidRequest(
            "Unknown parameter: 'model'. The model is named in the path of the request; leave it out of the body.",
            param="model",
            code="unknown_parameter",
        )


_DATA = frozenset({"args", "response"})
"""Members of function calls and their results whose names are the client's own."""

_KEPT_ID = re.compile(r"[a-z0-9-]{1,40}(:\w+)?")
"""An id of the Files API (Google, "Method: media.upload", `File.name`), with an action such as `:download`."""

_ABOVE = re.compile(r"v\d\w*|upload")


def refuse_kept(members: Mapping[str, Any]) -> None:
    """Refuse what the upstream keeps for the gateway's account, wherever a body names it: it may be another key's."""
    waiting: list[tuple[str, Any]] = [("", members)]
    while waiting:
        under, value = waiting.pop()
        if isinstance(value, list):
            waiting += [("", each) for each in value]
        elif isinstance(value, dict):
            if under not in SCHEMAS:
                _refuse_kept_in(value)
            waiting += [(name, each) for name, each in value.items() if name not in _DATA]


def _refuse_kept_in(members: Mapping[str, Any]) -> None:
    for name, value in members.items():
        meant = folded(name)
        if meant == "cachedcontent" and value is not None:
            raise _not_kept("cachedContent", "Send the content itself")
        if meant == "fileuri" and any(map(is_kept_file, texts_in(value))):
            raise _not_kept("fileData", "Send the file as inlineData, or name a public address")


def is_kept_file(uri: str) -> bool:
    """Whether an address may be read as one of a file that the upstream keeps, at whatever host."""
    text = plain_address(uri)
    scheme, mark, rest = text.partition("://")
    if not mark or "/" in scheme:
        scheme, rest = "", f"/{text}"
    host, _, path = re.split(r"[?#]", rest)[0].partition("/")
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if "files" not in steps or scheme == "gs":
        return False
    if not scheme or "generativelanguage" in host:
        return True
    *above, folder, last = ["", *steps]
    return folder == "files" and _KEPT_ID.fullmatch(last) is not None and all(map(_ABOVE.fullmatch, above[1:]))


def _not_kept(param: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: '{param}' names something that the upstream keeps, which the gateway does not serve. "
        f"{remedy}.",
        param=param,
        code="unsupported_parameter",
    )


def by_names(members: Mapping[str, Any], known: frozenset[str], inside: str = "") -> dict[str, Any]:
    """These members by their names in camelCase. Raises `InvalidRequest` for two spellings of one name, and for a
    known name in other letters, which some readers would obey."""
    folded = {name.casefold(): name for name in known}
    found: dict[str, Any] = {}
    for given, value in members.items():
        name = camel(given)
        meant = folded.get(given.casefold().replace("_", ""))
        if meant is not None and name != meant:
            raise validation_errors.misspelled(inside + given, inside + meant, inside + meant)
        if name in found:
            raise InvalidRequest(
                f"Duplicate parameter: '{inside}{name}' is given in two spellings. Give it once.",
                param=inside + name,
                code="duplicate_parameter",
            )
        found[name] = value
    return found


# ---------------------------------------------------------------------------------------------------------- the prompt


def _prompt(document: Document, members: Mapping[str, Any], count: Counter | None) -> int:
    texts: list[str] = []
    other = 0
    turns = members["contents"]
    for part in parts_of([members.get("systemInstruction"), *turns]):
        other += take_part(part, texts)
    tools = document.text[slice(*spans(document)["tools"])] if members.get("tools") else ""
    tokens = other + prompt_tokens.MESSAGE_TOKENS * len(turns)
    return tokens + prompt_tokens.of_texts(texts, tools, count)


def parts_of(turns: list[Any]) -> Iterator[Mapping[str, Any]]:
    for turn in objects(turns):
        yield from objects_of(turn.get("parts"))


def take_part(part: Mapping[str, Any], texts: list[str]) -> int:
    """Add the texts of a part; return the tokens of what is not text."""
    tokens = 0
    for given, value in part.items():
        match camel(given), value:
            case ("text", str()):
                texts.append(value)
            case ("inlineData" | "fileData", dict()):
                kind = str(value.get("mimeType") or value.get("mime_type"))
                tokens += IMAGE_TOKENS if kind.startswith("image/") else prompt_tokens.FILE_TOKENS
            case ("functionCall" | "functionResponse" | "executableCode" | "codeExecutionResult", dict()):
                texts += values_of({name: each for name, each in value.items() if name != "parts"})
                tokens += sum([take_part(inner, texts) for inner in parts_of([value])])  # pictures in a result
    return tokens

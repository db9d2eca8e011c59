"""Gemini's embedContent and batchEmbedContents (Google's API reference, "Embeddings").

A request may name its model a second time, as `models/NAME`; google-genai does so in each request of a batch. That has
to be the model of the path, and is written anew where the upstream knows the model by another name.

Older models of Google report no usage: then the estimated tokens of the contents are charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel

from gateway.api import prompt_tokens, validate
from gateway.api.json_document import parse
from gateway.api.other_models import refuse_further
from gateway.api.prompt_tokens import Counter, FindsCounter
from gateway.api.schema import MAX_PROMPTS
from gateway.config import Capabilities, Route
from gateway.errors import InvalidRequest
from gateway.formats.format import Format, PlainFacts
from gateway.formats.member_reader import LongAnswer
from gateway.records import Call, Document, Params

from . import generate, reader
from .request import Camel, Contents, as_list, by_names, parts_of, refuse_kept, refuse_model, take_part

_MODELS = "models/"


class EmbedContent(Camel):
    """Fields follow EmbedContentRequest of the Gemini API."""

    content: Contents
    model: str | None = None
    task_type: str | None = None
    title: str | None = None
    output_dimensionality: Annotated[int, Field(ge=1)] | None = None


class BatchEmbedContents(Camel):
    """Fields follow BatchEmbedContentsRequest of the Gemini API."""

    requests: Annotated[
        list[EmbedContent],
        Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
        BeforeValidator(as_list, json_schema_input_type=list[EmbedContent] | EmbedContent),
    ]


_ONE = frozenset(map(to_camel, EmbedContent.model_fields))
_BATCH = frozenset({"model", "requests"})


def _read(raw: bytes, find_counter: FindsCounter = prompt_tokens.no_counter) -> Params:
    document = parse(raw)
    members = by_names(document.members, _ONE)
    validate.checked(EmbedContent, members)
    return _params(document, [members], "content", find_counter(""))


def _read_batch(raw: bytes, find_counter: FindsCounter = prompt_tokens.no_counter) -> Params:
    document = parse(raw)
    members = by_names(document.members, _BATCH)
    refuse_model(members)
    requests = as_list(members.get("requests"))
    if isinstance(requests, list):
        requests = [
            by_names(each, _ONE, f"requests[{place}].") if isinstance(each, dict) else each
            for place, each in enumerate(requests)
        ]
        members["requests"] = requests
    validate.checked(BatchEmbedContents, members)
    return _params(document, requests, "requests", find_counter(""))


def _params(document: Document, requests: Sequence[Mapping[str, Any]], param: str, count: Counter | None) -> Params:
    """Expects checked requests. The model is the one that they name, or empty. Raises `InvalidRequest` if they name
    different ones."""
    models = {each["model"].removeprefix(_MODELS) for each in requests if each.get("model") is not None}
    if len(models) > 1:
        raise InvalidRequest(
            "Invalid value for 'requests': every request has to name the model of the path.",
            param="requests",
            code="invalid_value",
        )
    contents = [each["content"] for each in requests]
    refuse_kept(document.members)
    refuse_further(document.members)
    texts = [each["title"] for each in requests if each.get("title") is not None]
    other = sum([take_part(part, texts) for part in parts_of(contents)])
    return Params(
        document=document,
        model="".join(models),
        prompts=len(requests),
        prompt_tokens=other + prompt_tokens.of_texts(texts, "", count),
        default_output=0,
        output_param=param,
        prompt_param=param,
    )


def _changes(call: Call, route: Route, capabilities: Capabilities, added_limit: int | None) -> dict[str, Any]:
    """The model's name at the upstream, where a request names it and it differs."""
    members = call.params.document.members
    name = route.model or call.params.model
    if name == call.params.model or members.get("model") is None:
        return {}
    return {"model": _MODELS + name}


def _renamed(members: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"requests": [each | {"model": _MODELS + name} for each in as_list(members["requests"])]}


def _facts(body: bytes) -> PlainFacts:
    answer = generate.GeminiAnswer.read(body)
    return answer.facts(reader.embedded(answer.usage), has_output=b'"values"' in body)


_WANTED = (("usageMetadata",), ("modelVersion",), ("error",), ("type",), ("success",))

EMBED_CONTENT = Format(
    name="embed_content",
    **generate.method("embedContent"),
    operation="embeddings",
    read=_read,
    facts=_facts,
    long_reader=lambda: LongAnswer(lambda body: _facts(body)._replace(has_output=True), _WANTED),
    usage=reader.embedded,
    changes=_changes,
)

BATCH_EMBED_CONTENTS = replace(
    EMBED_CONTENT,
    name="batch_embed_contents",
    **generate.method("batchEmbedContents"),
    read=_read_batch,
    rename=_renamed,
)

"""OpenAI's moderations (openai-openapi, CreateModerationRequest). They report no usage: a call counts as a request."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field, Tag

from gateway.api import prompt_tokens, validate
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import MAX_PROMPTS, Body, one_of
from gateway.formats.format import Format
from gateway.records import Document, Params

from . import completions
from .reader import reported

DEFAULT_MODEL = "omni-moderation-latest"
"""The API's default (openai-openapi, CreateModerationRequest)."""


class Moderation(Body):
    """CreateModerationRequest. The parts of an array of objects are left to the upstream."""

    model: Annotated[str, Field(min_length=1, max_length=256)] = DEFAULT_MODEL
    input: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[list[Any], Field(min_length=1, max_length=MAX_PROMPTS), Tag("<array>")],
        one_of("a string, array of strings or array of objects"),
    ]


def _read(document: Document, body: Moderation, count: Counter | None) -> Params:
    parts = [body.input] if isinstance(body.input, str) else body.input
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    pictures = [part for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]
    text = prompt_tokens.of_texts([each for each in texts if isinstance(each, str)], "")
    return Params(
        document=document,
        model=body.model,
        prompt_tokens=text + prompt_tokens.IMAGE_TOKENS * len(pictures),
        default_output=0,
        output_param="input",
        prompt_param="input",
        is_usage_known=True,
    )


MODERATIONS = Format(
    name="moderations",
    path="/v1/moderations",
    operation="moderation",
    read=partial(validate.read, validate.Rules(Moderation, _read)),
    facts=completions.facts,
    usage=reported,
)

"""OpenAI's image generations (openai-openapi, CreateImageRequest), without streams.

GPT Image models report tokens; DALL-E and most resellers report nothing, and their images are counted in the answer.
A price for each image may have variants by what was asked for: `hd-1024x1792`, `high-auto`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gateway import units
from gateway.api import prompt_tokens, validate, validation_errors
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Body, Name
from gateway.records import Document, Params, Usage

from . import reported_usage
from .format import Format, PlainFacts

MAX_PROMPT = 32_000
"""Characters; of GPT Image models, the longest that the API takes."""

LARGEST_IMAGE_TOKENS = 8_192
"""Output tokens that are reserved for an image: 6,208 is the price list's highest (1024x1536, high)."""


class ImageGeneration(Body):
    """CreateImageRequest. The API's default model is retired, so a model is required."""

    prompt: Annotated[Name, Field(max_length=MAX_PROMPT)]
    n: Annotated[int, Field(ge=1, le=10)] | None = None
    size: Annotated[str, Field(max_length=20, pattern=r"^(auto|[0-9]{2,5}x[0-9]{2,5})$")] | None = None
    quality: Annotated[str, Field(max_length=20, pattern=r"^[a-z0-9_-]+$")] | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    partial_images: Annotated[int, Field(ge=0, le=3)] | None = None
    stream: bool | None = None


def _read(document: Document, body: ImageGeneration, count: Counter | None) -> Params:
    if body.stream:
        raise validation_errors.wrong_value("stream", "The gateway does not stream images: leave it out.")
    n = body.n or 1
    variant = f"{body.quality or 'auto'}-{body.size or 'auto'}"
    images = units.counts({"images": n})
    return Params(
        document=document,
        model=body.model,
        n=n,
        prompt_tokens=prompt_tokens.prompts(body.prompt).tokens,
        default_output=LARGEST_IMAGE_TOKENS,
        output_param="n",
        units=images,
        variant=variant,
        is_usage_known=True,
    )


class _Answer(BaseModel):
    data: Any = None
    usage: Any = None
    error: Any = None


def _facts(body: bytes) -> PlainFacts:
    answer = _Answer.model_validate_json(body)
    images = len(answer.data) if isinstance(answer.data, list) else 0
    usage = reported(answer.usage)
    counted = Usage(source="reported", more=units.counts({"images": images})) if images else None
    return PlainFacts(None, usage or counted, usage is not None, bool(answer.error), images > 0)


def reported(report: Any) -> Usage | None:
    """The `usage` of an answer: tokens for all images together. Output without details is images
    (ImagesResponse.usage). None: it has no counts."""
    if (tokens := reported_usage.input_and_output(report)) is None:
        return None
    made = report.get("output_tokens_details")
    images_in = reported_usage.detail(report.get("input_tokens_details"), "image_tokens")
    images_out = reported_usage.detail(made, "image_tokens") if isinstance(made, dict) else tokens[1]
    more = units.within(units.counts({"image_in": images_in, "image_out": images_out}), *tokens)
    return Usage(*tokens, source="reported", more=more)


IMAGES = Format(
    name="images",
    path="/v1/images/generations",
    upstream_path="/images/generations",
    operation="image_generation",
    read=partial(validate.read, validate.Rules(ImageGeneration, _read)),
    facts=_facts,
    usage=reported,
)

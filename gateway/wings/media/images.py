"""OpenAI's images: generations, edits and variations (openai-openapi, CreateImageRequest, CreateImageEditRequest,
CreateImageVariationRequest).

GPT Image models report tokens; DALL-E and most resellers report nothing, and their images are counted in the answer.
A price for each image may have variants by what was asked for: `hd-1024x1792`, `high-auto`. Answers of tens of MB are
read while they arrive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from gateway import units, untrusted_json
from gateway.api import form, prompt_tokens, validate
from gateway.api.form import File, UploadedFile
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Body, Name, Part
from gateway.errors import InvalidRequest
from gateway.formats import reported_usage, sse
from gateway.formats.events import Unfit
from gateway.formats.format import Format, PlainFacts, no_json
from gateway.formats.member_reader import EACH, MemberReader
from gateway.formats.reader import objects
from gateway.records import Document, Params, Usage
from gateway.spelling import folded, outer

from .typed_scan import TypedScan

MAX_PROMPT = 32_000
"""Characters; of GPT Image models, the longest that the API takes."""

LARGEST_IMAGE_TOKENS = 8_192
"""Output tokens that are reserved for an image: 6,208 is the price list's highest (1024x1536, high)."""

LARGEST_INPUT_TOKENS = 6_400
"""Prompt tokens that are reserved for an image to edit: 6,240 is the highest of OpenAI's guide (high fidelity)."""

LARGEST_GROUP = 15
"""Images of a group whose size the request leaves to Seedream: `max_images` is 15 by default and at most (Volcengine
and BytePlus ModelArk, image generation API, `sequential_image_generation_options`)."""

_ENDS = frozenset({"image_generation.completed", "image_edit.completed"})


class ImageVariation(Body):
    """CreateImageVariationRequest. The API's default model is retired, so a model is required."""

    image: File
    n: Annotated[int, Field(ge=1, le=10)] | None = None
    size: Annotated[str, Field(max_length=20, pattern=r"^(auto|[0-9]{2,5}x[0-9]{2,5})$")] | None = None


class SequentialImages(Part):
    """Options of a group of images."""

    max_images: Annotated[int, Field(ge=1, le=15)] | None = None


class ImageGeneration(Body):
    """CreateImageRequest. The API's default model is retired, so a model is required."""

    prompt: Annotated[Name, Field(max_length=MAX_PROMPT)]
    n: Annotated[int, Field(ge=1, le=10)] | None = None
    size: Annotated[str, Field(max_length=20, pattern=r"^(auto|[0-9]{2,5}x[0-9]{2,5})$")] | None = None
    quality: Annotated[str, Field(max_length=20, pattern=r"^[a-z0-9_-]+$")] | None = None
    resolution: Annotated[str, Field(max_length=20, pattern=r"^(auto|[0-9][A-Za-z0-9.:_]*)$")] | None = None
    """Resolution that xAI accepts in place of a size: 1k or 2k, with prices of their own (docs.x.ai, "Image
    generation")."""
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    partial_images: Annotated[int, Field(ge=0, le=3)] | None = None
    sequential_image_generation: Annotated[str, Field(max_length=20)] | None = None
    """`auto`: a group of images, of which each one costs (BytePlus ModelArk, image generation API)."""
    sequential_image_generation_options: SequentialImages | None = None
    stream: bool | None = None


class ImageEdit(ImageGeneration):
    """Fields follow CreateImageEditRequest, which is sent as a form."""

    image: Annotated[list[File], Field(min_length=1, max_length=16)]
    mask: File | None = None


class ImageEditByReference(ImageGeneration):
    """The same as JSON, with ids or addresses of images."""

    images: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=16)]
    mask: dict[str, Any] | None = None


_SIDES = ("width", "height")
_OF_VENDORS = ("image_size", "steps", "num_inference_steps", "style")
"""Members by which vendors price an image: Together AI and SiliconFlow by pixels and steps (docs.together.ai,
docs.siliconflow.cn, image generation), Recraft by vector styles (recraft.ai/docs, "Styles")."""
_NO_NAME = re.compile(r"[^a-z0-9._/]+")


def _of_vendors(members: Mapping[str, Any]) -> Iterator[str]:
    """The parameters of these that a request has, in the name of a variant. The styles of DALL-E 3 cost the same
    (openai-python, image_generate_params.py)."""
    given = {name: members[name] for name in (*_SIDES, *_OF_VENDORS) if members.get(name) is not None}
    named = {name: _NO_NAME.sub("_", str(value)[:40].lower()) for name, value in given.items()}
    if not named.keys().isdisjoint(_SIDES):
        yield "x".join([named.get(side, "auto") for side in _SIDES])
    yield from (named[name] for name in _OF_VENDORS if named.get(name) not in (None, "", "vivid", "natural"))


def _params(document: Document, body: ImageGeneration | ImageVariation, images: int) -> Params:
    _refuse_svg(document.members)
    n, quality, sizes, text, group = body.n or 1, None, [body.size], 0, 1
    if isinstance(body, ImageGeneration):
        quality, text = body.quality, prompt_tokens.prompts(body.prompt).tokens
        sizes.append(body.resolution and body.resolution.lower())
        if body.sequential_image_generation not in (None, "disabled"):
            options = body.sequential_image_generation_options or SequentialImages()
            group = options.max_images or LARGEST_GROUP
    asked = [*filter(None, sizes), *_of_vendors(document.members)]
    size = "-".join(asked if asked and (asked[0] == "auto" or asked[0][0].isdecimal()) else ["auto", *asked])
    return Params(
        document=document,
        model=body.model,
        stream=isinstance(body, ImageGeneration) and bool(body.stream),
        n=n,
        prompt_tokens=text + LARGEST_INPUT_TOKENS * images,
        default_output=LARGEST_IMAGE_TOKENS * group,
        output_param="n",
        units=units.counts({"images": n * group}),
        variant=f"{quality or 'auto'}-{size}",
        is_usage_known=True,
        token_parts=units.counts({"image_in": LARGEST_INPUT_TOKENS * images, "image_out": units.ALL}),
    )


def _refuse_svg(members: Mapping[str, Any]) -> None:
    """Refuse what a language model writes, whose tokens are billed beside the picture (openai-python,
    images_response.py, `svg_usage`)."""
    for name, value in members.items():
        meant = folded(outer(name))
        if meant == "svg" or (meant == "outputformat" and folded(str(value)[:9]) == "svg"):
            text = f"Unsupported parameter: '{name}': pictures in SVG have no price here. Ask for png, jpeg or webp."
            raise InvalidRequest(text, param=name, code="unsupported_parameter")


def _read(document: Document, body: ImageGeneration, count: Counter | None) -> Params:
    images = len(body.images) if isinstance(body, ImageEditByReference) else 0
    return _params(document, body, images)


def _finish(document: Document, body: ImageEdit | ImageVariation, files: Sequence[UploadedFile]) -> Params:
    form.no_empty_file(files)
    return _params(document, body, len(files))


class ImagesReader:
    """Reads a plain answer in pieces: its usage, or how many images it has."""

    def __init__(self) -> None:
        self._reader = MemberReader((("usage",), ("error",), ("data", EACH), ("data", EACH, "error")))
        self._start = b""

    def feed(self, data: bytes) -> None:
        self._start = self._start or data.lstrip()[:1]
        self._reader.feed(data)

    def facts(self) -> PlainFacts:
        """Raises `ValueError` if it is no whole JSON object."""
        if self._start != b"{" or not self._reader.is_whole:
            raise ValueError("no JSON object")
        # BytePlus makes several and lists one that failed by its error (Comfy-Org/ComfyUI#9952).
        failed = [each for each in objects(self._reader.value().get("data")) if each.get("error")]
        images = self._reader.counts["data", EACH] - len(failed)
        report, error = self._reader.get("usage"), self._reader.get("error")
        usage = reported(report)
        counted = Usage(source="reported", more=units.counts({"images": images})) if images else None
        return PlainFacts(None, usage or counted, report is not None, bool(error), images > 0)


def _facts(body: bytes) -> PlainFacts:
    reader = ImagesReader()
    reader.feed(body)
    return reader.facts()


def reported(report: Any) -> Usage | None:
    """The `usage` of an answer: tokens for all images together. Output without details is images
    (ImagesResponse.usage). None: it has no counts."""
    if (tokens := reported_usage.of_media(report)) is None:
        return None
    made = report.get("output_tokens_details")
    images_in = reported_usage.detail(report.get("input_tokens_details"), "image_tokens")
    images_out = reported_usage.detail(made, "image_tokens") if isinstance(made, dict) else tokens[1]
    more = units.within(units.counts({"image_in": images_in, "image_out": images_out}), *tokens)
    return Usage(*tokens, source="reported", more=more)


def _completed(report: Any) -> Usage:
    """Returns the usage of the event that completes one image; without a report it is one image."""
    return reported(report) or Usage(source="reported", more=units.counts({"images": 1}))


def _as_events(kind: str, body: bytes, shows_usage: bool, charged: Usage) -> bytes:
    """Each image of a plain answer as an event; the usage is in the last."""
    try:
        answer = untrusted_json.parse(body)
        events = [{"type": kind, **image} for image in answer["data"]]
        events[-1]["usage"] = answer.get("usage")
    except (ValueError, TypeError, KeyError, IndexError):
        raise Unfit("a plain answer without an image, where a stream was asked for") from None
    return b"".join([sse.json_event(event) for event in events])


_IMAGE_FORMAT = partial(Format, facts=_facts, facts_reader=ImagesReader, usage=reported)
_STREAMED = partial(_IMAGE_FORMAT, scan=lambda asked: TypedScan(asked, _ENDS, _completed), streams_only_events=True)

IMAGES = _STREAMED(
    name="images",
    path="/v1/images/generations",
    operation="image_generation",
    read=partial(validate.read, validate.Rules(ImageGeneration, _read)),
    as_events=partial(_as_events, "image_generation.completed"),
)
IMAGE_EDITS = _STREAMED(
    name="image_edits",
    path="/v1/images/edits",
    operation="image_edit",
    read=partial(validate.read, validate.Rules(ImageEditByReference, _read)),
    read_form=partial(form.read, validate.Rules(ImageEdit, no_json), _finish),
    as_events=partial(_as_events, "image_edit.completed"),
)
IMAGE_VARIATIONS = _IMAGE_FORMAT(
    name="image_variations",
    path="/v1/images/variations",
    operation="image_variation",
    read=no_json,
    read_form=partial(form.read, validate.Rules(ImageVariation, no_json), _finish),
)

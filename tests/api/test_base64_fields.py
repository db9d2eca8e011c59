"""Each field of a request that holds base64 counts at the flat rate of its medium, and never as text.

The fields are found in the types of the official SDKs: in OpenAI's and Anthropic's by their comments and formats, in
Google's by the type `bytes`. A field that a newer SDK adds fails here until it has a request in `REQUESTS`.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import is_typeddict

from gateway.api.prompt_tokens import AUDIO_TOKENS, FILE_TOKENS, IMAGE_TOKENS
from gateway.formats.anthropic import request as anthropic_request
from gateway.formats.gemini import request as gemini_request
from gateway.formats.table import read
from gateway.records import Endpoint

MEGABYTE = "QUJD" * 250_000
"""250,000 tokens, if it were text."""
AROUND = 100
"""Tokens of what is beside the field in its request, at most."""

NOT_FOR_THE_PROMPT = {
    "type": "the name of the kind of a source",
    "source": "an object, whose own fields are found",
    "GenerateContentConfig.continuation_token": "no member of the API's request (google-genai, _live_converters.py)",
}


def comments(kind: type) -> dict[str, str]:
    """The source of each field of a TypedDict with its comment, those of its bases too."""
    found: dict[str, str] = {}
    for each in [*getattr(kind, "__orig_bases__", ()), kind]:
        module = inspect.getmodule(each)
        name = getattr(each, "__name__", "")
        source = inspect.getsource(module) if module else ""
        body = re.search(rf"^class {name}\(.*?(?=^\S|\Z)", source, re.MULTILINE | re.DOTALL)
        for field in re.split(r"^    (?=\w+: )", body[0] if body else "", flags=re.MULTILINE)[1:]:
            found[field.partition(":")[0]] = field
    return found


def typed_dicts(kind: Any, seen: set[Any]) -> Iterator[tuple[str, str]]:
    """The TypedDict and the name of each field with base64, at any depth."""
    if not is_typeddict(kind):
        for each in typing.get_args(kind):
            yield from typed_dicts(each, seen)
    elif kind not in seen:
        seen.add(kind)
        written = comments(kind)
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            if re.search(r"base64|data url", written.get(name, "") + str(hint), re.IGNORECASE):
                yield kind.__name__, name
            yield from typed_dicts(hint, seen)


def models(kind: Any, seen: set[Any]) -> Iterator[tuple[str, str]]:
    """The model and the name of each field with bytes, at any depth."""
    for each in typing.get_args(kind):
        yield from models(each, seen)
    if isinstance(kind, type) and hasattr(kind, "model_fields") and kind not in seen:
        seen.add(kind)
        for name, field in kind.model_fields.items():
            if "bytes" in str(field.annotation):
                yield kind.__name__, name
            yield from models(field.annotation, seen)


def found() -> set[str]:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as Messages
    from google.genai.types import Content, GenerateContentConfig
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Chat
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as Responses

    fields = [*(pair for kind in (Chat, Responses, Messages) for pair in typed_dicts(kind, set()))]
    fields += [pair for kind in (Content, GenerateContentConfig) for pair in models(kind, set())]
    return {
        f"{kind}.{name}"
        for kind, name in fields
        if name not in NOT_FOR_THE_PROMPT and f"{kind}.{name}" not in NOT_FOR_THE_PROMPT
    }


def messages(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 9}


def items(*given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "x"}, *given], **more}


def contents(part: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [part]}], **more}


def voice(**sample: Any) -> dict[str, Any]:
    config = {"voiceConfig": {"replicatedVoiceConfig": {"mimeType": "audio/wav", **sample}}}
    return contents({"text": "x"}, generationConfig={"speechConfig": config})


URL = f"data:image/png;base64,{MEGABYTE}"
PNG = {"type": "base64", "media_type": "image/png", "data": MEGABYTE}
PDF = {"type": "base64", "media_type": "application/pdf", "data": MEGABYTE}
BLOB = {"mimeType": "image/png", "data": MEGABYTE}
IMAGE = {"type": "input_image", "image_url": URL}
MASK = {"type": "image_generation", "input_image_mask": {"image_url": URL}}
SKILL = {
    "type": "inline", "name": "a", "description": "b",
    "source": {"type": "base64", "media_type": "application/zip", "data": MEGABYTE},
}  # fmt: skip
SHELL = {"type": "shell", "environment": {"type": "container_auto", "skills": [SKILL]}}


def output(*parts: dict[str, Any]) -> dict[str, Any]:
    return items({"type": "function_call_output", "call_id": "c", "output": list(parts)})


REQUESTS: dict[str, tuple[Endpoint, dict[str, Any], int]] = {
    "ImageURL.url": ("chat", messages({"type": "image_url", "image_url": {"url": URL}}), IMAGE_TOKENS),
    "InputAudio.data": (
        "chat", messages({"type": "input_audio", "input_audio": {"data": MEGABYTE, "format": "wav"}}), AUDIO_TOKENS,
    ),
    "FileFile.file_data": ("chat", messages({"type": "file", "file": {"file_data": MEGABYTE}}), FILE_TOKENS),
    "ResponseInputImageParam.image_url": ("responses", items({"role": "user", "content": [IMAGE]}), IMAGE_TOKENS),
    "ResponseInputImageContentParam.image_url": ("responses", output(IMAGE), IMAGE_TOKENS),
    "ResponseInputFileContentParam.file_data": (
        "responses", output({"type": "input_file", "file_data": MEGABYTE}), FILE_TOKENS,
    ),
    "ToolImageGenerationInputImageMask.image_url": ("responses", items(tools=[MASK]), IMAGE_TOKENS),
    "ImageGenerationInputImageMask.image_url": (
        "responses", items({"type": "additional_tools", "role": "developer", "tools": [MASK]}), 0,
    ),
    "InlineSkillSourceParam.data": ("responses", items(tools=[SHELL]), FILE_TOKENS),
    "ImageGenerationCall.result": (
        "responses", items({"type": "image_generation_call", "id": "i", "result": MEGABYTE}), IMAGE_TOKENS,
    ),
    "Base64ImageSourceParam.data": (
        "messages", messages({"type": "image", "source": PNG}), anthropic_request.IMAGE_TOKENS,
    ),
    "Base64PDFSourceParam.data": ("messages", messages({"type": "document", "source": PDF}), FILE_TOKENS),
    "Blob.data": ("generate_content", contents({"inlineData": BLOB}), gemini_request.IMAGE_TOKENS),
    "FunctionResponseBlob.data": (
        "generate_content",
        contents({"functionResponse": {"name": "f", "response": {}, "parts": [{"inlineData": BLOB}]}}),
        gemini_request.IMAGE_TOKENS,
    ),
    "Part.thought_signature": ("generate_content", contents({"text": "x", "thoughtSignature": MEGABYTE}), 0),
    "ReplicatedVoiceConfig.voice_sample_audio": (
        "generate_content", voice(voiceSampleAudio=MEGABYTE), 0,
    ),
    "ReplicatedVoiceConfig.consent_audio": ("generate_content", voice(consentAudio=MEGABYTE), 0),
}  # fmt: skip


def test_each_field_has_a_request() -> None:
    assert found() == set(REQUESTS)


@pytest.mark.parametrize("field", REQUESTS)
def test_a_megabyte_counts_at_the_flat_rate(field: str) -> None:
    endpoint, request, flat = REQUESTS[field]
    raw = json.dumps(request if "contents" in request else {"model": "m", **request}).encode()
    assert len(raw) > len(MEGABYTE)
    assert flat <= read(endpoint, raw).prompt_tokens <= flat + AROUND

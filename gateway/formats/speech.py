"""OpenAI's speech (openai-openapi, CreateSpeechRequest): JSON in, audio out, passed on as it comes.

Audio carries no usage. The characters of `input` are known exactly, and are what tts-1 costs; of a model with a price
for tokens only, the cost is unknown. With `stream_format: sse` the usage is in the event `speech.audio.done`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field, Tag

from gateway import units
from gateway.api import prompt_tokens, validate
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import AnyObject, Body, Name, one_of
from gateway.errors import GatewayError
from gateway.records import Document, Params, Usage

from . import openai, reported_usage
from .format import Format, ScanInput
from .passed_scan import PassedScan

MAX_INPUT = 4096
"""Characters (CreateSpeechRequest, `input`, `instructions`)."""


class Speech(Body):
    """CreateSpeechRequest."""

    input: Annotated[Name, Field(max_length=MAX_INPUT)]
    voice: Annotated[Annotated[Name, Tag("<text>")] | AnyObject, one_of("a string or object")]
    instructions: Annotated[str, Field(max_length=MAX_INPUT)] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None


def _read(document: Document, body: Speech, count: Counter | None) -> Params:
    characters = units.counts({"characters": len(body.input)})
    return Params(
        document=document,
        model=body.model,
        stream=True,
        prompt_tokens=prompt_tokens.prompts(body.input).tokens,
        default_output=0,
        output_param="input",
        prompt_param="input",
        units=characters,
        is_usage_known=True,
    )


def _reported(report: Any) -> Usage | None:
    """The `usage` of `speech.audio.done`: its output is audio."""
    if (tokens := reported_usage.input_and_output(report)) is None:
        return None
    return Usage(*tokens, source="reported", more=units.counts({"audio_out": tokens[1]}))


def _scan(asked: ScanInput) -> PassedScan:
    return PassedScan(_reported)


def _no_event(error: GatewayError, scan: object, request_id: str) -> None:
    """Nothing can be said inside audio: the connection is closed, and the message stays incomplete."""


SPEECH = Format(
    name="speech",
    path="/v1/audio/speech",
    upstream_path="/audio/speech",
    operation="speech",
    read=partial(validate.read, validate.Rules(Speech, _read)),
    facts=openai.facts,
    usage=_reported,
    scan=_scan,
    is_binary=True,
    error_event=_no_event,
    keepalive=b"",
)

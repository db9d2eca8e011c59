"""OpenAI's transcriptions and translations of audio (openai-openapi, CreateTranscriptionRequest): a form in; JSON,
text, subtitles or events out.

The seconds of audio are those of the answer (`usage.seconds`, or `duration` of verbose_json), else those of the file's
header, else an estimate from the file's size. The usage of an answer without a report is estimated in the same way.
Seconds that are too few for the bytes of the file do not count (`Params.least_audio_ms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway import units, untrusted_json
from gateway.api import form, prompt_tokens, validate
from gateway.api.form import File, UploadedFile
from gateway.api.schema import Body
from gateway.api.validation_errors import wrong_value
from gateway.formats import reported_usage, sse
from gateway.formats.events import Unfit
from gateway.formats.format import AnswerMembers, Format, PlainFacts, no_json
from gateway.formats.reported_usage import HEARD_TOKENS_PER_S, WRITTEN_TOKENS_PER_S
from gateway.records import Document, Params, Usage

from . import audio_length
from .typed_scan import TypedScan

LOWEST_BYTES_PER_S = 2_000
"""Assumed bytes per second of audio in a file without a length: 16 kbit/s, the lowest usual bit rate of speech."""

TEXTS = frozenset({"text", "srt", "vtt"})
"""Values of `response_format` whose answer is no JSON."""

ENDS = frozenset({"transcript.text.done"})


class Translation(Body):
    """Form fields of OpenAI's schema `CreateTranslationRequest`."""

    file: File
    prompt: Annotated[str, Field(max_length=32_000)] | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None


class Transcription(Translation):
    """Form fields of OpenAI's schema `CreateTranscriptionRequest`."""

    language: Annotated[str, Field(max_length=64)] | None = None
    stream: bool | None = None
    timestamp_granularities: Annotated[list[Literal["word", "segment"]], Field(max_length=2)] | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    known_speaker_names: Annotated[list[str], Field(max_length=4)] | None = None
    known_speaker_references: Annotated[list[str], Field(max_length=4)] | None = None


def _finish(document: Document, body: Translation, files: Sequence[UploadedFile]) -> Params:
    form.no_empty_file(files)
    if [file.name for file in files] != ["file"]:
        other = next(file.name for file in files if file.name != "file")
        raise wrong_value(other, "This parameter is no file.")
    measured, least_ms = audio_length.length_of(files[0].read, files[0].size)
    audio_ms = measured or -(-1000 * files[0].size // LOWEST_BYTES_PER_S)
    seconds = -(-audio_ms // 1000)
    text = prompt_tokens.prompts(body.prompt).tokens if body.prompt else 0
    return Params(
        document=document,
        model=body.model,
        stream=isinstance(body, Transcription) and bool(body.stream),
        prompt_tokens=text + HEARD_TOKENS_PER_S * seconds,
        default_output=WRITTEN_TOKENS_PER_S * seconds,
        output_param="file",
        prompt_param="file",
        units=units.counts({"audio_ms": audio_ms}),
        is_usage_known=True,
        are_units_estimated=measured is None,
        token_parts=units.counts({"audio_in": HEARD_TOKENS_PER_S * seconds}),
        least_audio_ms=least_ms,
    )


class _Answer(AnswerMembers):
    text: Any = None
    duration: Any = None


def _facts(body: bytes) -> PlainFacts:
    answer = _Answer.read(body)
    usage = reported_usage.of_transcript(answer.usage)
    if usage is None and (audio_ms := reported_usage.milliseconds(answer.duration)):
        usage = Usage(source="reported", more=units.counts({"audio_ms": audio_ms}))
    return answer.facts(usage, has_output=isinstance(answer.text, str))


def _as_events(body: bytes, shows_usage: bool, charged: Usage) -> bytes:
    try:
        answer = untrusted_json.parse(body)
        event = {"type": "transcript.text.done", "text": answer["text"]}
    except (ValueError, TypeError, KeyError):
        raise Unfit("a plain answer without a text, where a stream was asked for") from None
    event |= {name: answer[name] for name in ("usage", "logprobs") if answer.get(name) is not None}
    return sse.json_event(event)


_AUDIO_FORMAT = partial(
    Format,
    read=no_json,
    facts=_facts,
    usage=reported_usage.of_transcript,
    is_text=lambda params: params.document.members.get("response_format") in TEXTS,
)

TRANSCRIPTIONS = _AUDIO_FORMAT(
    name="transcriptions",
    path="/v1/audio/transcriptions",
    operation="transcription",
    read_form=partial(form.read, validate.Rules(Transcription, no_json), _finish),
    scan=lambda asked: TypedScan(asked._replace(choices=1), ENDS, reported_usage.of_transcript),
    as_events=_as_events,
)
TRANSLATIONS = _AUDIO_FORMAT(
    name="translations",
    path="/v1/audio/translations",
    operation="translation",
    read_form=partial(form.read, validate.Rules(Translation, no_json), _finish),
)

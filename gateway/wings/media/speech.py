"""OpenAI's speech (openai-openapi, CreateSpeechRequest): JSON in, audio out, passed on as it comes.

Audio carries no usage. The characters of `input` are known exactly, and are what tts-1 costs. Of a model with a price
for tokens only, audio tokens are estimated from the length of the audio where it can be read, else from the
text. With `stream_format: sse` the usage is in the event `speech.audio.done`.
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
from gateway.formats import reported_usage, sse
from gateway.formats.format import Format, PassedScan, Scan, ScanInput
from gateway.formats.openai import completions
from gateway.records import Document, Params, Usage

from . import audio_length
from .typed_scan import TypedScan

MAX_INPUT = 4096
"""Characters of `input` or `instructions` (CreateSpeechRequest)."""

MS_PER_TOKEN = 50
"""Milliseconds of audio output in one token (OpenAI's guide "Managing costs" of Realtime). gpt-4o-mini-tts was billed
5,392 tokens for 268 s (s-anand.net, "OpenAI TTS cost")."""

AUDIO_TOKENS_PER_BYTE = 1.5
"""Tokens of audio for each byte of the text in UTF-8, at normal speed. The source of `MS_PER_TOKEN` has 1.32 for
English. Letters of other scripts have more bytes and last longer; a syllable of Chinese or Japanese lasts about 200 ms,
which gives 1.3. Digits and abbreviations last up to three times as long."""

PCM_BYTES_PER_S = 48_000
"""`response_format: pcm` is 16 bits at 24 kHz, without a header (OpenAI's guide "Text to speech")."""

HEAD_BYTES = 8192
"""Bytes at the start of the audio in which its header is read."""


class Speech(Body):
    """Fields follow CreateSpeechRequest of the OpenAI API."""

    input: Annotated[Name, Field(max_length=MAX_INPUT)]
    voice: Annotated[Annotated[Name, Tag("<text>")] | AnyObject, one_of("a string or object")]
    instructions: Annotated[str, Field(max_length=MAX_INPUT)] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None


def _read(document: Document, body: Speech, count: Counter | None) -> Params:
    slowness = 1 / min(1.0, body.speed or 1.0)  # not every model speaks faster when asked to
    return Params(
        document=document,
        model=body.model,
        stream=True,
        prompt_tokens=prompt_tokens.of_texts((body.input, body.instructions or ""), ""),
        default_output=int(AUDIO_TOKENS_PER_BYTE * slowness * len(body.input.encode("utf-8", "surrogatepass"))) + 1,
        output_param="input",
        prompt_param="input",
        units=units.counts({"characters": len(body.input)}),
        is_usage_known=True,
        token_parts=units.counts({"audio_out": units.ALL}),
    )


def _reported(report: Any) -> Usage | None:
    """The `usage` of `speech.audio.done`: its output is audio."""
    if (tokens := reported_usage.of_media(report)) is None:
        return None
    return Usage(*tokens, source="reported", more=units.counts({"audio_out": tokens[1]}))


_ENDS = ("speech.audio.done",)


class SpeechScan(PassedScan):
    """Follows the audio, and measures it by its own header."""

    def __init__(self, asked: ScanInput) -> None:
        super().__init__(_reported)
        wanted = asked.members
        self._is_pcm = wanted.get("response_format") == "pcm" and wanted.get("stream_format") != "sse"
        self._head = b""
        self._size = 0

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        if len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        self._size += len(data)
        return super().feed(data)

    def delivered_tokens(self) -> int:
        """Tokens of the audio that has come; 0: its length is not known."""
        if self._is_pcm:
            length_ms: int | None = -(-1000 * self._size // PCM_BYTES_PER_S)
        else:
            length_ms = audio_length.length_ms(self._read_at, self._size)
        return -(-(length_ms or 0) // MS_PER_TOKEN)

    def _read_at(self, place: int, count: int) -> bytes:
        """Returns at most `count` bytes; bytes from the middle of the audio are not kept."""
        end = place + count
        tail = self._tail[max(0, len(self._head) + len(self._tail) - self._size) :]
        begin = self._size - len(tail)
        return self._head[place:end] + tail[max(0, place - begin) : max(0, end - begin)]


def _scan(asked: ScanInput) -> Scan:
    return TypedScan(asked._replace(choices=1), _ENDS, _reported) if asked.is_events else SpeechScan(asked)


def _error_event(error: GatewayError, scan: Scan | None, request_id: str) -> bytes | None:
    """None for audio, which cannot carry an error: the connection is closed, and the message stays incomplete."""
    return sse.write_event(error.body()) if isinstance(scan, TypedScan) else None


SPEECH = Format(
    name="speech",
    path="/v1/audio/speech",
    operation="speech",
    read=partial(validate.read, validate.Rules(Speech, _read)),
    facts=completions.facts,
    usage=_reported,
    scan=_scan,
    is_binary=True,
    error_keeps_status=True,
    error_event=_error_event,
    keepalive=b"",
)

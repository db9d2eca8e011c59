"""Audio and images of the simulated upstream: transcriptions, translations, speech, images, edits and variations.

1. Forms are read by aiohttp, wav files by the standard library: nothing is shared with what a gateway reads them with.
2. A transcription lasts as long as its wav file; of other files, as long as their bytes take at 16 kbit/s. Models named
   `whisper` report seconds, rounded up as OpenAI does; others tokens, 10 a second. Text and subtitles report nothing.
3. An image is `IMAGE`. Models named `dall-e` report nothing; others tokens, `IMAGE_TOKENS` for each image.
4. The field `simulate` is that of JSON bodies, as JSON text. Streams have no pace.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import math
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import BodyPartReader, web
from pydantic import ValidationError

from gateway.simulator import text
from gateway.simulator.requests import APIError, Simulate
from gateway.simulator.server import ServedCall

IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
IMAGE_TOKENS = 272
"""Of each image: GPT Image 1 in low quality."""

AUDIO_TOKENS_PER_S = 10
LOWEST_BYTES_PER_S = 2_000

_TEXTS = {
    "text": "{}\n",
    "srt": "1\n00:00:00,000 --> 00:00:01,000\n{}\n",
    "vtt": "WEBVTT\n\n00:00.000 --> 00:01.000\n{}\n",
}


@dataclass(frozen=True, slots=True)
class MediaRequest:
    """The fields and files of a form, or the members of a JSON body."""

    fields: dict[str, Any]
    files: dict[str, list[bytes]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Raises `APIError` if there is none."""
        model = self.fields.get("model")
        if not isinstance(model, str) or not model:
            raise APIError(400, "Invalid parameter: model.", param="model")
        return model

    @property
    def is_stream(self) -> bool:
        return str(self.fields.get("stream")).lower() == "true"

    @property
    def images(self) -> int:
        """How many are asked for."""
        return int(self.fields.get("n") or 1)

    @property
    def pace(self) -> Simulate:
        """Raises `APIError` for one that cannot be read."""
        given = self.fields.get("simulate")
        if given is None:
            return Simulate()
        try:
            return Simulate.model_validate_json(given if isinstance(given, str) else json.dumps(given))
        except ValidationError:
            raise APIError(400, "Invalid parameter: simulate.", param="simulate") from None


async def read(request: web.Request) -> MediaRequest:
    """A body of either kind."""
    if request.content_type != "multipart/form-data":
        return MediaRequest(json.loads(await request.read()))
    fields: dict[str, Any] = {}
    files: dict[str, list[bytes]] = {}
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader) or part.name is None:
            raise APIError(400, "A part of the form has no name.")
        content = await part.read()
        name = part.name.removesuffix("[]")
        if part.filename is not None:
            files.setdefault(name, []).append(bytes(content))
        else:
            fields[name] = content.decode()
    return MediaRequest(fields, files)


async def answer(request: web.Request, endpoint: str, asked: MediaRequest, entry: ServedCall) -> web.Response:
    """The whole answer; what it costs is entered. Raises `APIError`."""
    pace = asked.pace
    if pace.delay_s:
        await asyncio.sleep(pace.delay_s)
    if (failure := pace.failure()) is not None:
        raise failure
    if endpoint == "speech":
        return _speech(asked, entry)
    if endpoint in ("transcriptions", "translations"):
        return _transcription(asked, entry)
    return _images(endpoint, asked, entry)


def _speech(asked: MediaRequest, entry: ServedCall) -> web.Response:
    spoken = str(asked.fields.get("input", ""))
    entry.characters = len(spoken)
    sound = hashlib.shake_128(spoken.encode()).digest(100 * len(spoken))
    if asked.fields.get("stream_format") != "sse":
        return web.Response(body=sound, content_type="audio/mpeg")
    entry.characters, entry.prompt_tokens, entry.completion_tokens = 0, text.count_tokens(spoken), len(spoken)
    usage = _usage(entry.prompt_tokens, entry.completion_tokens)
    audio = base64.b64encode(sound).decode()
    return _events([{"type": "speech.audio.delta", "audio": audio}, {"type": "speech.audio.done", "usage": usage}])


def _transcription(asked: MediaRequest, entry: ServedCall) -> web.Response:
    file = (asked.files.get("file") or [b""])[0]
    if not file:
        raise APIError(400, "Invalid parameter: file.", param="file")
    seconds = seconds_of(file)
    sentences = text.sentences(text.key_of(file), 3)
    whole = "".join(sentences).strip()
    kind = asked.fields.get("response_format") or "json"
    if kind in _TEXTS:
        entry.audio_ms = math.ceil(seconds * 1000)
        return web.Response(text=_TEXTS[kind].format(whole), content_type="text/plain")
    if "whisper" in asked.model:
        entry.audio_ms = 1000 * math.ceil(seconds)
        usage: dict[str, Any] = {"type": "duration", "seconds": math.ceil(seconds)}
    else:
        audio = AUDIO_TOKENS_PER_S * math.ceil(seconds)
        entry.prompt_tokens, entry.completion_tokens = audio, text.count_tokens(whole)
        usage = _usage(audio, entry.completion_tokens)
        usage |= {"type": "tokens", "input_token_details": {"audio_tokens": audio, "text_tokens": 0}}
    if asked.is_stream:
        deltas = [{"type": "transcript.text.delta", "delta": each} for each in sentences]
        return _events([*deltas, {"type": "transcript.text.done", "text": whole, "usage": usage}])
    more = {"task": "transcribe", "language": "english", "duration": seconds} if kind == "verbose_json" else {}
    return web.json_response({**more, "text": whole, "usage": usage})


def _images(endpoint: str, asked: MediaRequest, entry: ServedCall) -> web.Response:
    images = asked.images
    answer: dict[str, Any] = {"created": 1_700_000_000, "data": [{"b64_json": IMAGE}] * images}
    if asked.model.startswith("dall-e"):
        entry.images = images
        return web.json_response(answer)
    given = sum(len(files) for files in asked.files.values())
    words = text.count_tokens(str(asked.fields.get("prompt", "")))
    entry.prompt_tokens, entry.completion_tokens = words + IMAGE_TOKENS * given, IMAGE_TOKENS * images
    usage = _usage(entry.prompt_tokens, entry.completion_tokens)
    usage["input_tokens_details"] = {"text_tokens": words, "image_tokens": IMAGE_TOKENS * given}
    if not asked.is_stream:
        return web.json_response(answer | {"usage": usage})
    kind = "image_edit" if endpoint == "image_edits" else "image_generation"
    picture = {"b64_json": IMAGE, "output_format": "png", "size": "1024x1024", "quality": "low", "created_at": 0}
    count = int(asked.fields.get("partial_images") or 0)
    partial = [{"type": f"{kind}.partial_image", "partial_image_index": each, **picture} for each in range(count)]
    return _events([*partial, {"type": f"{kind}.completed", **picture, "usage": usage}])


def seconds_of(file: bytes) -> float:
    """The length of a wav file by its frames, of others by their size."""
    try:
        with wave.open(io.BytesIO(file)) as sound:
            return float(sound.getnframes() / sound.getframerate())
    except (wave.Error, EOFError, ZeroDivisionError):
        return len(file) / LOWEST_BYTES_PER_S


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}


def _events(events: list[dict[str, Any]]) -> web.Response:
    return web.Response(body=b"".join(_lines(events)), content_type="text/event-stream")


def _lines(events: list[dict[str, Any]]) -> Iterator[bytes]:
    for each in events:
        yield f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode()

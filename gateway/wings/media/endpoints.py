"""The operations of reranks, images and sound. Their routes are those of the formats."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.formats.format import Format
from gateway.web.openapi.document import FORM, call_operation, more_forms
from gateway.web.openapi.operation import JSON, Operation
from gateway.web.wings import Place, WingEndpoints

from .images import IMAGE_EDITS, IMAGE_VARIATIONS, IMAGES, ImageEdit, ImageGeneration, ImageVariation
from .rerank import RERANK, Rerank
from .speech import SPEECH, Speech
from .transcriptions import TRANSCRIPTIONS, TRANSLATIONS, Transcription, Translation

_IMAGE_EVENTS = "With `stream: true`: events of JSON, partial images and for each image"


def _forms(spec: Format, operation: Operation) -> Mapping[Place, Operation]:
    operation = operation._replace(body_type=JSON if spec.read_form is None else FORM)
    return {("POST", spec.path): operation, **dict(more_forms(spec, operation))}


ENDPOINTS = WingEndpoints(
    {
        **{
            ("POST", path): call_operation("Order documents by a query.", Rerank, "Ranked", streamed=None)
            for path in (RERANK.path, *RERANK.more_paths)
        },
        **_forms(IMAGES, call_operation(
            "Make images.", ImageGeneration, "Embedded", streamed=f"{_IMAGE_EVENTS} `image_generation.completed`."
        )),
        **_forms(IMAGE_EDITS, call_operation(
            "Change images.", ImageEdit, "Embedded", streamed=f"{_IMAGE_EVENTS} `image_edit.completed`."
        )),
        **_forms(IMAGE_VARIATIONS, call_operation(
            "Make images like this one.", ImageVariation, "Embedded", streamed=None
        )),
        **_forms(SPEECH, call_operation("Speak a text.", Speech, "Completed")._replace(
            answers={"audio/*": {"type": "string", "format": "binary"}}
        )),
        **_forms(TRANSCRIPTIONS, call_operation(
            "Write down speech.", Transcription, "Transcribed",
            streamed="With `stream: true`: events of JSON, `transcript.text.done` at the end.",
        )),
        **_forms(TRANSLATIONS, call_operation(
            "Write down speech in English.", Translation, "Transcribed", streamed=None
        )),
    },
    schemas={
        "Transcribed": {
            "type": "object",
            "description": "As the upstream returns it; with a response_format of text, srt or vtt it is text.",
            "properties": {"text": {"type": "string"}, "usage": {"type": ["object", "null"]}},
            "required": ["text"],
        },
    },
)  # fmt: skip

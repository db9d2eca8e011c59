"""The formats of reranks, images and sound. Their order is that of their paths in the OpenAPI document."""

from __future__ import annotations

from . import images, rerank, speech, transcriptions

RERANK = rerank.RERANK
IMAGES, IMAGE_EDITS, IMAGE_VARIATIONS = images.IMAGES, images.IMAGE_EDITS, images.IMAGE_VARIATIONS
SPEECH = speech.SPEECH
TRANSCRIPTIONS, TRANSLATIONS = transcriptions.TRANSCRIPTIONS, transcriptions.TRANSLATIONS

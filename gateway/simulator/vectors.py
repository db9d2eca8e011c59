"""Embeddings: unit vectors that follow from model and input; both encodings hold the same float32 values."""

from __future__ import annotations

import base64
import json
import math
import struct
from hashlib import shake_128

from .choices import GeneratedUsage
from .requests import DIMENSIONS, EmbeddingRequest, split_forms
from .text import count_tokens, key_of


def embed(model: str, text: str | list[int], dimensions: int) -> bytes:
    """The vector as little-endian float32. Fewer dimensions are the first values of more, normalised again."""
    digest = shake_128(key_of(model, text)).digest(2 * dimensions)
    values = [number + 0.5 for number in struct.unpack(f"<{dimensions}h", digest)]  # never all zero
    norm = math.sqrt(sum(value * value for value in values))
    return struct.pack(f"<{dimensions}f", *(value / norm for value in values))


def usage_of(request: EmbeddingRequest) -> GeneratedUsage:
    """Embeddings cost their input: a token array its length, a text its tokens."""
    forms = split_forms(request.input)
    return GeneratedUsage(prompt=sum(count_tokens(form) if isinstance(form, str) else len(form) for form in forms))


def embeddings_body(request: EmbeddingRequest, usage: GeneratedUsage) -> bytes:
    dimensions = request.dimensions or DIMENSIONS
    data = []
    for index, form in enumerate(split_forms(request.input)):
        packed = embed(request.model, form, dimensions)
        is_base64 = request.encoding_format == "base64"
        vector = base64.b64encode(packed).decode() if is_base64 else struct.unpack(f"<{dimensions}f", packed)
        data.append({"object": "embedding", "index": index, "embedding": vector})
    total = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    return json.dumps({"object": "list", "data": data, "model": request.model, "usage": total}).encode()

"""Embeddings: unit vectors that follow from model and input; both encodings hold the same float32 values."""

from __future__ import annotations

import base64
import json
import math
import struct
from hashlib import shake_128

from .choices import GeneratedUsage
from .gemini import EmbedContentRequest, text_of
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
    """The answer to POST /v1/embeddings."""
    dimensions = request.dimensions or DIMENSIONS
    data = []
    for index, form in enumerate(split_forms(request.input)):
        packed = embed(request.model, form, dimensions)
        is_base64 = request.encoding_format == "base64"
        vector = base64.b64encode(packed).decode() if is_base64 else struct.unpack(f"<{dimensions}f", packed)
        data.append({"object": "embedding", "index": index, "embedding": vector})
    total = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    return json.dumps({"object": "list", "data": data, "model": request.model, "usage": total}).encode()


def content_usage_of(request: EmbedContentRequest) -> GeneratedUsage:
    """Contents cost their texts."""
    return GeneratedUsage(prompt=sum([count_tokens(text_of(each["content"])) for each in request.requests]))


def embedded_contents_body(request: EmbedContentRequest, usage: GeneratedUsage) -> bytes:
    """The answer to embedContent, or to batchEmbedContents."""
    vectors = []
    for each in request.requests:
        dimensions = each.get("outputDimensionality") or DIMENSIONS
        packed = embed(request.model, text_of(each["content"]), dimensions)
        vectors.append({"values": struct.unpack(f"<{dimensions}f", packed)})
    shown = {"embeddings": vectors} if request.is_batch else {"embedding": vectors[0]}
    return json.dumps({**shown, "usageMetadata": {"promptTokenCount": usage.prompt}}).encode()

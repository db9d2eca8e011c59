"""OpenAI's embeddings (openai-openapi, CreateEmbeddingRequest)."""

from __future__ import annotations

from functools import partial

from gateway.api import prompt_tokens, validate
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Embedding
from gateway.formats import reported_usage
from gateway.formats.format import Format
from gateway.records import Document, Params

from . import plain
from .usage import embedded


def _read(document: Document, body: Embedding, count: Counter | None) -> Params:
    prompt = prompt_tokens.prompts(body.input, count=count)
    return Params(
        document=document,
        model=body.model,
        prompts=prompt.prompts,
        prompt_tokens=prompt.tokens,
        is_prompt_exact=prompt.is_exact,
        default_output=0,
        output_param="input",
        prompt_param="input",
    )


EMBEDDINGS = Format(
    name="embeddings",
    path="/v1/embeddings",
    upstream_path="/embeddings",
    operation="embeddings",
    read=partial(validate.read, validate.Rules(Embedding, _read)),
    facts=partial(plain.facts, read=embedded),
    usage=embedded,
    texts=reported_usage.TEXT,
)

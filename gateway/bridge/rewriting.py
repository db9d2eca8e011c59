"""Large bodies of which more has to change on the way up than single members: translations, models that are named
inside lists, and prompts that go up one by one.

The worker asks for what its routes may need (`needed`) and takes the result (`taken`), the process of large bodies
makes it (`made`): the steps take seconds for 25 MB, which would block the worker's other calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.api import json_document, large_body
from gateway.api.capabilities import Adaptation, adaptation, is_translated
from gateway.api.large_body import Piece
from gateway.config import Model, Upstream
from gateway.errors import InvalidRequest
from gateway.formats import FORMATS
from gateway.records import Document, Endpoint, LargeBody, Params, Rewriting

from .bridges import WAYS
from .request import SPLIT, split, split_of

MAX_NOTE_BYTES = 262_144
"""Maximum size in bytes of the facts of a request that the answer of a translated call needs."""


def needed(
    endpoint: Endpoint, asked: Params, models: Iterable[Model], upstreams: Mapping[str, Upstream]
) -> list[Rewriting]:
    """The rewritings of a large body that routes of these models may need, each once."""
    found: list[Rewriting] = []
    spec = FORMATS[endpoint]
    for model in models:
        for route in model.routes:
            able = upstreams[route.upstream].capabilities
            if endpoint == "completions":
                if adaptation(endpoint, asked, able) is not Adaptation.PLAIN:
                    found.append(SPLIT)
            elif is_translated(endpoint, able) and endpoint in WAYS:
                found.append(Rewriting("translated", able.max_tokens_field))
            elif spec.rename is not None:
                name = route.model or asked.model
                if spec.has_model_in_path or name != asked.model:
                    found.append(Rewriting("renamed", name))
    return list(dict.fromkeys(found))


def made(endpoint: Endpoint, rewriting: Rewriting, raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The facts for `taken`, and the body as it goes up. Raises `InvalidRequest`."""
    document = json_document.parse(raw)
    if rewriting.kind == "renamed":
        rename = FORMATS[endpoint].rename
        assert rename is not None
        return {}, json_document.replace(document, rename(document.members, rewriting.detail))
    if rewriting == SPLIT:
        return split(document.members)
    asked = WAYS[endpoint].ask(document.members, rewriting.detail, None)
    note = asked.noted()
    if len(json.dumps(note)) > MAX_NOTE_BYTES:
        note = asked.noted(is_short=True)
        if len(json.dumps(note)) > MAX_NOTE_BYTES:
            raise InvalidRequest("The body has too many tools, or too long names of tools.", param="tools")
    known, body = large_body.written(asked.body)
    return {"note": note, **known}, body


def taken(rewriting: Rewriting, known: Mapping[str, Any], pieces: Sequence[Piece]) -> Any:
    """A value of `LargeBody.rewritten`, with the body in these pieces."""
    if rewriting.kind == "renamed":
        return Document("", {}, LargeBody(pieces, 0, {}))
    if rewriting == SPLIT:
        return split_of(known, pieces)
    return known["note"], large_body.from_written(known, pieces)


def renamed(large: LargeBody, model: str) -> LargeBody:
    """The body with this name of the model in each place inside it."""
    found = large.rewritten.get(Rewriting("renamed", model))
    return large if found is None else found.large

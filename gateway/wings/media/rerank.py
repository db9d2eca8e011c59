"""Rerank in the request shape that Cohere (`/v2/rerank`), Jina and vLLM share.

Usage is what comes first and is not 0 of: `meta.billed_units.search_units` (Cohere, types/api_meta_billed_units.py),
tokens of `meta.billed_units` (BerriAI/litellm#36186), `usage.total_tokens` (Jina; vLLM,
entrypoints/pooling/score/protocol.py), `meta.tokens`; else the estimated tokens.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from gateway import units
from gateway.api import prompt_tokens, validate
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Body, Name
from gateway.formats.format import AnswerMembers, Format, PlainFacts
from gateway.formats.reader import value_at
from gateway.records import Document, Params, Usage

MAX_DOCUMENTS = 10_000
"""Cohere recommends at most 1000 and refuses more than 10,000 (its API reference, "documents")."""

DOCUMENTS_A_UNIT = 100
"""A search unit is a query with up to 100 documents (Cohere's pricing page)."""


class Rerank(Body):
    """The members that are checked."""

    query: Name
    documents: Annotated[list[Any], Field(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None


def _read(document: Document, body: Rerank, count: Counter | None) -> Params:
    texts = [_text_of(each) for each in body.documents]
    # The query is read beside each document.
    prompts = prompt_tokens.prompts(texts)
    query = prompt_tokens.prompts(body.query)
    return Params(
        document=document,
        model=body.model,
        prompt_tokens=prompts.tokens + query.tokens * len(texts),
        default_output=0,
        output_param="documents",
        prompt_param="documents",
        units=units.counts({"search_units": math.ceil(len(texts) / DOCUMENTS_A_UNIT)}),
    )


def _text_of(document: Any) -> str:
    """The texts of a document. One as an object may have several, and pictures in base64 (Jina, `image`)."""
    if not isinstance(document, dict):
        return document if isinstance(document, str) else str(document)
    return " ".join([str(value) for name, value in document.items() if name != "image"])


class _Answer(AnswerMembers):
    meta: Any = None


def _facts(body: bytes) -> PlainFacts:
    answer = _Answer.read(body)
    usage = reported(answer.meta) or reported(answer.usage)
    return answer.facts(usage, has_output=b'"results"' in body)._replace(has_usage=usage is not None)


def reported(report: Any) -> Usage | None:
    """The usage in a `meta` or `usage` object; None: it has none."""
    if not isinstance(report, dict):
        return None
    found = [(_count(value_at(report, path)), path) for path in _COUNTS]
    given = [(amount, path) for amount, path in found if amount is not None]
    if not given:
        return None
    # No search units beside tokens are no bill of a rerank that was made (maximhq/bifrost#4897).
    amount, path = next((each for each in given if each[0]), given[0])
    if path[-1] == "search_units":
        return Usage(source="reported", more=units.counts({"search_units": amount}))
    return Usage(amount, source="reported")


_COUNTS = (
    ("billed_units", "search_units"), ("billed_units", "total_tokens"), ("billed_units", "input_tokens"),
    ("total_tokens",), ("tokens", "input_tokens"),
)  # fmt: skip


def _count(value: Any) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
    return math.ceil(value) if is_number else None


RERANK = Format(
    name="rerank",
    path="/v1/rerank",
    more_paths=("/v2/rerank", "/rerank"),
    operation="rerank",
    read=partial(validate.read, validate.Rules(Rerank, _read)),
    facts=_facts,
    usage=reported,
)
